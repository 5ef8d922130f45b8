"""The signature of webhooks: only bodies that ElevenLabs signed are accepted, and no header breaks the check."""

import json
import time

import pytest
from elevenlabs.errors import BadRequestError
from elevenlabs.webhooks_custom import WebhooksClient
from hypothesis import example, given
from hypothesis import strategies as st

from streamer.sources.http.elevenlabs import (
    MAX_AGE_SECONDS,
    MAX_AHEAD_SECONDS,
    MAX_HEADER_BYTES,
    MAX_SIGNATURES,
    Signature,
    SignatureError,
    SignedBody,
    check_time,
    read_signature,
)
from tests.support.webhooks import SECRET, signature_header

NOW = 1_790_000_000
BODY = b'{"type": "post_call_transcription"}'


def verify(header: bytes, body: bytes = BODY, now: float = NOW) -> Signature:
    """Runs all checks, in their order."""
    signature = read_signature(header)
    check_time(signature, now)
    signed = SignedBody(signature, SECRET.encode())
    signed.add(body)
    signed.check()
    return signature


def fault_of(header: bytes, body: bytes = BODY, now: float = NOW) -> str:
    with pytest.raises(SignatureError) as caught:
        verify(header, body, now)
    return caught.value.fault


def header(at: int | str = NOW, body: bytes = BODY) -> bytes:
    return signature_header(body, at).encode()


@given(st.binary(max_size=300), st.integers(min_value=NOW - MAX_AGE_SECONDS, max_value=NOW + MAX_AHEAD_SECONDS))
def test_what_was_signed_with_our_secret_is_taken(body: bytes, at: int) -> None:
    assert verify(header(at, body), body).time_seconds == at


@given(st.text(max_size=200))
def test_the_vendors_own_check_agrees_on_what_it_signs(text: str) -> None:
    body = json.dumps({"data": text}).encode()
    now = int(time.time())
    client = WebhooksClient(client_wrapper=None)  # it sends no request
    assert client.construct_event(body.decode(), signature_header(body, now), SECRET) == {"data": text}
    assert verify(header(now, body), body, now)
    with pytest.raises(BadRequestError):
        client.construct_event(body.decode() + " ", signature_header(body, now), SECRET)
    assert fault_of(header(now, body), body + b" ", now) == "forged"


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"")
@example(b"t=1790000000")
@example(b"v0=" + b"a" * 64)
@example("t=١٧٩٠٠٠٠٠٠٠,v0=".encode() + b"a" * 64)
def test_no_other_header_is_taken_and_none_breaks_the_parser(other: bytes) -> None:
    assert fault_of(other) in ("malformed", "stale", "ahead", "forged")


@given(st.integers(min_value=0, max_value=10**12 - 1))
def test_a_time_outside_the_window_is_refused(at: int) -> None:
    if at < NOW - MAX_AGE_SECONDS:
        assert fault_of(header(at)) == "stale"
    elif at > NOW + MAX_AHEAD_SECONDS:
        assert fault_of(header(at)) == "ahead"
    else:
        verify(header(at))


@given(st.data())
def test_one_changed_byte_is_a_forgery(data: st.DataObject) -> None:
    good = bytearray(header())
    place = data.draw(st.integers(min_value=good.index(b"v0=") + 3, max_value=len(good) - 1))
    good[place] = data.draw(st.integers(min_value=0, max_value=255).filter(lambda byte: byte not in (good[place], 44)))
    assert fault_of(bytes(good)) in ("forged", "malformed")  # malformed: blanks at the end do not count


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (str(NOW + 10 * 365 * 86_400), "ahead"),
        (str(NOW - MAX_AGE_SECONDS - 1), "stale"),
        ("1_790_000_000", "malformed"),
        ("١٧٩٠٠٠٠٠٠٠", "malformed"),
        ("+1790000000", "malformed"),
        ("-1790000000", "malformed"),
        ("1790000000.0", "malformed"),
        ("9" * 13, "malformed"),
        ("abc", "malformed"),
        ("", "malformed"),
    ],
)
def test_times_that_look_like_one(written: str, fault: str) -> None:
    """Each is signed with our secret, so that only the time can be the fault."""
    assert fault_of(header(written)) == fault


def test_shapes_of_the_header() -> None:
    time_part, digest_part = header().split(b",")
    forged = b"v0=" + b"0" * 64
    assert verify(b" " + time_part + b" ,\t" + digest_part + b" ")
    assert verify(digest_part + b"," + time_part)
    assert verify(time_part + b",v1=unknown," + digest_part)
    # While a secret is exchanged there are two signatures, in any order.
    assert verify(b",".join((time_part, forged, digest_part)))
    assert verify(b",".join((time_part, digest_part, forged)))
    assert fault_of(b",".join((time_part, forged, forged))) == "forged"
    assert fault_of(b",".join((time_part, time_part, digest_part))) == "malformed"
    assert fault_of(b",".join((time_part, *[digest_part] * (MAX_SIGNATURES + 1)))) == "malformed"
    assert fault_of(time_part + b"," + digest_part[:-1]) == "malformed"
    assert fault_of(time_part + b"," + digest_part + b"0") == "malformed"
    assert fault_of(time_part + b"," + "v0=é".encode() + b"0" * 62) == "forged"
    assert fault_of(time_part + b"," + digest_part + b"," + b" " * MAX_HEADER_BYTES) == "malformed"


def test_pieces_of_a_body_are_the_body() -> None:
    signed = SignedBody(read_signature(header()), SECRET.encode())
    for byte in BODY:
        signed.add(bytes([byte]))
    signed.check()
