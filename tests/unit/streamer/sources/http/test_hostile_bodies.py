"""`POST /events` and any JSON of any shape: an answer with the line, a turn for others in between,
and a charge for its sender.
"""

import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import InputSource
from schemas.events.examples import EXAMPLES
from schemas.events.simulator import STREAMS
from schemas.topics import TOPIC_BY_SOURCE
from streamer.settings.all_settings import IngestSettings, SenderSettings
from streamer.sources.http import posted as events
from streamer.sources.http.body import MAX_EVENTS, UnreadableBodyError
from tests.support.calls.hostile import GOOD, Hostile
from tests.support.webhooks import SECRET
from tests.unit.streamer.sources.http.receiver import Receiver
from tests.unit.streamer.sources.http.test_posted import NOW_MS, read, started

MAX_RECORD_PARTS = Limits().max_record_parts
NDJSON, JSON = "application/x-ndjson", "application/json"
ANY_TYPE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    10**400,
    "",
    "x",
    "\ud800",
    [],
    ["x"],
    [[]],
    {},
    {"a": 1},
    {"type": ["x"]},
)


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in value.items():
        yield (*path, name)
        if isinstance(inner, dict):
            yield from places(inner, (*path, name))


def changed(event: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    return {**event, name: changed(event[name], tuple(rest), value) if rest else value}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_field_of_any_type_costs_its_own_event_at_most(
    name: str, receiver: Receiver
) -> None:
    """Each field of each event with each type of JSON, also the stream and the id: over HTTP, and
    then as Kafka has it.
    """
    event = {"conversation_id": "c", **EXAMPLES[name], "timestamp": NOW_MS}
    named = [
        event,
        *({**event, "stream": stream} for stream in STREAMS),
        {**event, "stream": "pipecat", "extra": 1},
    ]
    strange = [
        changed(each, path, value) for each in named for path in places(each) for value in ANY_TYPE
    ]
    lines = [started(conversation_id="first"), *strange, started(conversation_id="last")]
    body = "\n".join(map(json.dumps, lines)).encode()
    assert len(lines) < MAX_EVENTS
    response = await receiver.post(
        "/events", body, authorization="Bearer token-of-everybody", content_type=NDJSON
    )
    assert response.status_code == 207
    answer = response.json()
    assert answer["accepted_events"] + answer["refused_events"] == len(lines)
    keys = [record.key for record in receiver.writer.records]
    assert (keys[0], keys[-1]) == (b"first", b"last")
    evaluator = PartitionEvaluator(Limits(), "test")
    for offset, record in enumerate(receiver.writer.records):
        arrival = admit(record.source, _AsKafkaHasIt(record, offset), Limits())
        assert isinstance(arrival, Arrival)
        evaluator.receive(arrival)
    evaluator.advance(10**15)
    assert evaluator.open_calls == ()


class _AsKafkaHasIt:
    def __init__(self, record: Any, offset: int) -> None:
        self.topic, self.partition, self.offset = (
            TOPIC_BY_SOURCE[InputSource(record.source)],
            0,
            offset,
        )
        self.timestamp, self.key, self.value, self.headers = (
            NOW_MS,
            record.key,
            record.value,
            record.headers,
        )


@pytest.mark.parametrize(
    "bodies", [1_500, pytest.param(100_000, marks=pytest.mark.long, id="long")]
)
async def test_bodies_of_a_hostile_tenant_break_nothing_and_reach_no_call_of_another_one(
    bodies: int,
) -> None:
    """On every route, with the events of good calls between them; what is accepted is folded, as
    from Kafka.
    """
    hostile_settings = {
        "token": "hostile",
        "elevenlabs_secret": SECRET,
        "events_per_second": 1_000_000,
    }
    tenants = {
        "good": {"token": "good", "events_per_second": 1_000_000},
        "hostile": hostile_settings,
    }
    receiver = Receiver(
        IngestSettings(),
        {name: SenderSettings.model_validate(each) for name, each in tenants.items()},
    )
    call = [
        {**started(), "type": "tts_text", "data": {"frame": str(number)}} for number in range(50)
    ]
    evaluator, offset = PartitionEvaluator(Limits(), "test", writes_transcripts=True), 0
    statuses: Counter[int] = Counter()
    values: dict[bytes, list[bytes]] = {
        b"alone": [],
        **{f"{GOOD}-{number}".encode(): [] for number in range(4)},
    }

    async def say(name: str, event: dict[str, Any]) -> None:
        assert (
            await receiver.events([{**event, "conversation_id": name}], "good")
        ).status_code == 202

    async def of_good_calls(number: int) -> None:
        for name in values:
            await say(name.decode(), call[number])

    hostile = Hostile(7, wall_clock_ms).bodies(bodies)
    for number in range(len(call)):
        await of_good_calls(number)
        for each in itertools.islice(hostile, bodies // len(call)):
            headers = {name.replace("-", "_"): value for name, value in each.headers.items()}
            answer = await receiver.post(
                each.path, each.body, authorization="Bearer hostile", **headers
            )
            statuses[answer.status_code] += 1
        for record in receiver.writer.records:
            offset += 1
            values.get(record.key, []).append(record.value)
            arrival = admit(InputSource(record.source), _AsKafkaHasIt(record, offset), Limits())
            if isinstance(arrival, Arrival):
                evaluator.receive(arrival)
        receiver.writer.records.clear()
        evaluator.advance(wall_clock_ms())
    evaluator.advance(10**15)
    assert evaluator.open_calls == ()
    assert sum(statuses.values()) == bodies
    assert set(statuses) == {200, 202, 207, 400, 401, 422}
    assert all(said == values[b"alone"] for said in values.values())
    assert len(values[b"alone"]) == len(call)


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"[]{},\n')),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
indents = st.sampled_from([None, 0, 2])


@given(st.lists(any_json, max_size=5), indents)
def test_an_array_is_read_element_by_element(values: list[Any], indent: int | None) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=indent is None).encode()
    assert [(each.place, each.event) for each in read(body, JSON, {})] == list(enumerate(values, 1))


@given(st.lists(any_json, min_size=2, max_size=5))
def test_lines_are_read_line_by_line(values: list[Any]) -> None:
    body = "\n\n".join(map(json.dumps, values)).encode()
    expected = list(zip(range(1, 100, 2), values, strict=False))
    assert [(each.place, each.event) for each in read(body, NDJSON, {})] == expected
    if isinstance(values[0], dict):
        assert [(each.place, each.event) for each in read(body, JSON, {})] == expected


@given(st.dictionaries(st.text(), any_json), indents)
def test_one_object_is_read_over_lines(value: dict[str, Any], indent: int | None) -> None:
    assert [each.event for each in read(json.dumps(value, indent=indent).encode(), JSON, {})] == [
        value
    ]


SIZE = events.MAX_BODY_BYTES
HOSTILE = {
    "lines without JSON": (b"x\n", b"", b"", NDJSON),
    "lines of numbers": (b"1\n", b"", b"", NDJSON),
    "blank lines": (b"\n", b"", b"", NDJSON),
    "small objects": (b"{}\n", b"", b"", JSON),
    "array of lists": (b"[],", b"[", b"[]]", JSON),
    "array of objects": (b"{},", b"[", b"{}]", JSON),
    "array of texts": (b'"",', b"[", b'""]', JSON),
    "array in an array": (b"[],", b"[[", b"[]]]", JSON),
    "nested lists in an array": (b"[[0]],", b"[[", b"[]]]", JSON),
    "one object": (b"[],", b'{"a":[', b"[]]}", JSON),
    "one object over lines": (b"[],", b'{"a":\n[', b"[]]}", JSON),
    "escaped quotes": (b'\\"', b'["', b"", JSON),
    "escaped quotes over lines": (b'\\"', b'{\n"', b"", JSON),
    "quotes": (b'"', b"[", b"", JSON),
    "deep": (b"[", b"", b"", JSON),
    "deep objects": (b'{"a":', b"\n", b"", JSON),
    "closed": (b"]", b"[", b"", JSON),
    "cloudevent": (b"[],", b'{"data":[', b"[]]}", "application/cloudevents+json"),
    "cloudevents": (b"[],", b'[{"data":[', b"[]]}]", "application/cloudevents-batch+json"),
}


def hostile(name: str, size: int) -> tuple[bytes, str]:
    unit, begin, end, content_type = HOSTILE[name]
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end, content_type


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_takes_forty_megabytes_at_most(name: str) -> None:
    body, content_type = hostile(name, SIZE)
    tracemalloc.start()
    try:
        read(body, content_type, {})
    except UnreadableBodyError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 5 * len(body)


async def test_an_event_of_too_many_parts_is_refused_by_its_line(receiver: Receiver) -> None:
    full = started(x=[0] * MAX_RECORD_PARTS)
    for body, content_type in (
        (json.dumps([started(), full, started()]), JSON),
        ("\n".join(map(json.dumps, (started(), full, started()))), NDJSON),
    ):
        response = await receiver.events(body.encode(), content_type=content_type)
        assert response.status_code == 207
        (refused,) = response.json()["refused"]
        assert refused["line"] == 2
        assert (
            f"at most {MAX_RECORD_PARTS} commas and opening brackets"
            in refused["expected_and_seen"]
        )
    for body in (json.dumps(full), json.dumps(full, indent=1)):
        response = await receiver.events(body.encode())
        assert (response.status_code, response.json()["refused"][0]["line"]) == (422, 1)


@pytest.mark.parametrize(("backslashes", "is_read"), [(3_999_000, True), (4_100_000, False)])
def test_a_body_of_escapes_is_read_up_to_a_tenth_of_the_bound(
    backslashes: int, is_read: bool
) -> None:
    body = b'["%b"]' % (b'\\"' * backslashes)
    if is_read:
        assert [len(each.event) for each in read(body, JSON, {})] == [backslashes]
        return
    with pytest.raises(UnreadableBodyError, match="saw 1 and 4100000 backslashes"):
        read(body, JSON, {})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x\n" * (MAX_EVENTS + 1), 400),
        (b"[" * 20_000, 422),
        (b"\n" * 20_000, 400),
        (b"[" + b" " * SIZE + b"]", 413),
        (json.dumps(started(x=[0] * MAX_RECORD_PARTS)).encode(), 422),
    ],
)
async def test_a_refused_body_is_charged_to_its_sender(body: bytes, status: int) -> None:
    settings = SenderSettings.model_validate({"token": "of-acme", "events_per_second": 2})
    receiver = Receiver(
        IngestSettings(),
        {"acme": settings, "globex": SenderSettings.model_validate({"token": "of-globex"})},
    )
    assert (await receiver.events(body, "of-acme", content_type=NDJSON)).status_code == status
    assert (await receiver.events([started()], "of-acme")).status_code == 429
    assert (await receiver.events([started(conversation_id="c2")], "of-globex")).status_code == 202
