"""The id of a call is the key on Kafka, byte for byte as it was sent, or the event is refused;
nobody takes another tenant's.
"""

import json
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.events.envelope import read_envelope
from schemas.wire import MAX_NAME_CHARS
from streamer.settings.all_settings import SenderSettings
from streamer.sources.http import receiving
from streamer.sources.http.body import UnreadableBodyError
from streamer.sources.http.posted import Accepted, Batches
from streamer.sources.http.receiving import Senders, key_of
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver
from tests.unit.streamer.sources.http.test_posted import NOW_MS, read, started

LIMITS = Limits(max_event_time_skew_ms=0)
CE = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "s",
    "ce-type": "callgauge.call.call_started.v1",
}
# Normal forms, look-alikes, blanks, percent signs, quotes, replacement characters, halves of pairs.
confusable = st.sampled_from(
    [
        "é",
        "é",
        "\N{CYRILLIC SMALL LETTER A}",
        "a",
        "v",
        "A",
        "%",
        "%2D",
        "%zz",
        "-",
        "\N{HYPHEN}",
        "\u200b",
        " ",
        '"',
        "\\",
        "?",
        "�",
        "\x00",
        "�",
        "�",
        "�",
    ]
)
ids = st.lists(confusable | st.text(max_size=3), max_size=8).map("".join)


class Tenants:
    """Two tenants, and what each may write."""

    def __init__(self) -> None:
        self._senders = Senders(
            {name: SenderSettings.model_validate({"token": name}) for name in ("acme", "globex")}
        )
        self._batches = Batches(self._senders, LIMITS, Redactor(), lambda: NOW_MS)

    def key(
        self,
        tenant: str,
        body: bytes,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> bytes | None:
        """The key under which an event of the tenant is written; None if it is refused."""
        try:
            (posted,) = read(body, content_type, headers or {})
        except UnreadableBodyError:  # halves of surrogate pairs are no JSON
            return None
        outcome = self._batches.checked(posted, self._senders.by_tenant[tenant], "request")
        if not isinstance(outcome, Accepted):
            return None
        assert dict(outcome.record.headers)["ce_subject"] == outcome.record.key
        return outcome.record.key


def exact(conversation_id: str) -> bytes | None:
    try:
        key = conversation_id.encode()
    except UnicodeEncodeError:
        return None
    return key if 0 < len(key) <= MAX_NAME_CHARS else None


@given(ids, ids)
def test_an_id_is_its_key_and_has_one_owner(one: str, other: str) -> None:
    """Whichever way an event names its call: in its body, as a CloudEvent or in a header."""
    tenants = Tenants()
    plain = json.dumps(started(conversation_id=one)).encode()
    assert tenants.key("acme", plain) == exact(one)
    elsewhere = started(conversation_id="z")
    attributes = {
        "specversion": "1.0",
        "id": "1",
        "source": "s",
        "type": CE["ce-type"],
        "subject": other,
    }
    ways: list[tuple[object, str, dict[str, str]]] = [
        (started(conversation_id=other), "application/json", {})
    ]
    if other:  # an empty subject is none
        ways.append(({**attributes, "data": elsewhere}, "application/cloudevents+json", {}))
    if exact(other):
        ways.append((elsewhere, "application/json", {**CE, "ce-subject": quote(other, safe="")}))
    for document, content_type, headers in ways:
        expected = None if exact(other) == exact(one) else exact(other)
        assert (
            tenants.key("globex", json.dumps(document).encode(), content_type, headers) == expected
        )


LOOK_ALIKES = (
    "v-1",
    "V-1",
    "v-1 ",
    " v-1",
    "v\N{HYPHEN}1",
    "v-1\u200b",
    "v%2D1",
    '"v-1"',
    "v\u00e9",
    "ve\u0301",
    "v?",
    "v\ufffd",
    "v\\xff",
)


def test_ids_that_look_alike_are_calls_of_their_own() -> None:
    tenants = Tenants()
    for number, name in enumerate(LOOK_ALIKES):
        body = json.dumps(started(conversation_id=name)).encode()
        owner, thief = ("acme", "globex") if number % 2 else ("globex", "acme")
        assert tenants.key(owner, body) == name.encode()
        assert tenants.key(thief, body) is None
    for broken in (b"v%ff", b"v\xff"):
        headers = {**CE, "ce-subject": broken.decode("utf-8", "surrogateescape")}
        assert tenants.key("acme", json.dumps(started()).encode(), headers=headers) is None


@given(
    st.binary(max_size=12)
    | st.sampled_from(
        [b"v%FF2", b"v%3F2", b"v%2D1", b"v%2", b"%", b"\xc3\xa9", b"%C3%A9", b"\xc3%A9", b"v\xff2"]
    )
)
async def test_a_header_is_its_key_byte_for_byte(subject: bytes) -> None:
    if (
        subject.strip() != subject
        or not subject
        or b'"' in subject
        or any(byte < 32 or byte == 127 for byte in subject)
    ):
        return  # HTTP does not carry it, or it is quoted
    receiver = Receiver()
    headers = [
        (name.encode(), value.encode())
        for name, value in {**CE, "authorization": f"Bearer {TOKEN}"}.items()
    ]
    body = json.dumps(started(conversation_id="z")).encode()
    response = await receiver._client.post(
        "/events", content=body, headers=[*headers, (b"ce-subject", subject)]
    )
    sent = unquote_to_bytes(subject)
    try:
        sent.decode()
    except UnicodeDecodeError:
        assert (response.status_code, receiver.writer.records) == (422, [])
    else:
        assert [each.key for each in receiver.writer.records] == [sent]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"v 1"', b"v 1"),
        ('"v\\"1"', b'v"1'),
        ('"v', b'"v'),
        ('v"', b'v"'),
        ("v%2D1", b"v-1"),
        ("v%251", b"v%1"),
        ('"', b'"'),
    ],
)
def test_a_quoted_header(value: str, expected: bytes) -> None:
    body = json.dumps(started(conversation_id="z")).encode()
    assert Tenants().key("acme", body, headers={**CE, "ce-subject": value}) == expected


@pytest.mark.parametrize("name", ["id", "source", "type"])
def test_an_attribute_that_is_no_text_is_refused(name: str) -> None:
    body = json.dumps(started(conversation_id="z")).encode()
    assert Tenants().key("acme", body, headers={**CE, f"ce-{name}": "%FF"}) is None
    document = {
        "specversion": "1.0",
        "id": "1",
        "source": "s",
        "type": "t",
        "subject": "z",
        "data": started(),
    } | {name: "\ud800"}
    assert (
        Tenants().key("acme", json.dumps(document).encode(), "application/cloudevents+json") is None
    )


def test_two_ids_of_events_stay_two() -> None:
    one, other = (
        read_envelope([("ce_id", value), ("ce_source", b"bot")]) for value in (b"\xff", b"\xfe")
    )
    assert one != other


def test_no_key() -> None:
    none: tuple[object, ...] = (True, 1.5, None, [], {}, "", "x" * 257, "é" * 129)
    assert [key_of(each) for each in none] == [None] * 8
    assert [key_of(each) for each in (0, -7, "x" * 256, "é" * 128)] == [
        b"0",
        b"-7",
        b"x" * 256,
        "é".encode() * 128,
    ]


def test_a_tenant_that_floods_makes_us_forget_only_calls_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "MAX_REMEMBERED_CALLS", 4)
    senders = Senders(
        {name: SenderSettings.model_validate({"token": name}) for name in ("acme", "globex")}
    )
    acme, globex = senders.by_tenant.values()
    senders.claim(acme, b"quiet")
    for number in range(100):
        senders.claim(globex, b"%d" % number)
    assert senders.is_foreign(globex, b"quiet")
    assert (list(acme.calls), list(globex.calls)) == ([b"quiet"], [b"97", b"98", b"99"])
    assert not senders.is_foreign(acme, b"96"), "its owner is forgotten"
