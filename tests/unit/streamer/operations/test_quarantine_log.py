"""Filters choose entries of the quarantine topic, and memory is bounded by the number of entries asked for."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import RefusalReason
from schemas.quarantine import QuarantineRecord
from streamer import quarantine as quarantine_log
from streamer.cluster.readers import Coordinates
from streamer.quarantine import Entries, Wanted, quarantined


def entry(offset: int, **fields: Any) -> QuarantineRecord:
    given: dict[str, Any] = {
        "topic": "x.pipecat.events",
        "partition": 0,
        "key": "c",
        "reason": RefusalReason.INVALID_EVENT,
        "what": "it is wrong",
        "expected_and_seen": "expected right, saw wrong",
        "what_happens_now": "Nothing.",
        "what_to_do": "Something.",
        "quarantined_at_ms": 1_000 + offset,
    }
    return QuarantineRecord(offset=offset, **{**given, **fields})


async def read(
    monkeypatch: pytest.MonkeyPatch, values: Iterable[bytes | None], wanted: Wanted | None = None, most: int = 100
) -> Entries:
    async def given(*_: object) -> AsyncIterator[bytes | None]:
        for value in values:
            yield value

    monkeypatch.setattr(quarantine_log, "_values", given)
    return await quarantined(KafkaSettings(), wanted or Wanted(), most=most)


def values(*entries: QuarantineRecord) -> list[bytes | None]:
    return [each.model_dump_json().encode() for each in entries]


def offsets(found: Entries) -> list[int]:
    return [each.offset for each in found.newest]


@pytest.mark.parametrize("text", ["x.pipecat.events[3]@17", " a-b_c.d[0]@0 "])
def test_coordinates_are_read_as_they_are_printed(text: str) -> None:
    assert str(Coordinates.parse(text)) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "x", "x[1]", "x@1", "x[-1]@1", "x[1]@-1", "x[a]@1", "[1]@1", "x y[1]@1", "x[1]@1!", "x[1]@" + "9" * 30]
)
def test_what_is_no_place_of_a_record_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"TOPIC\[PARTITION\]@OFFSET"):
        Coordinates.parse(text)


def test_a_place_in_a_message_can_be_given_back() -> None:
    printed = entry(17).message().split(" ")[0]
    assert Coordinates.parse(printed) == Coordinates.of(entry(17))


@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        (Wanted(), [1, 2, 3]),
        (Wanted(reasons={RefusalReason.EMPTY_KEY}), [2]),
        (Wanted(topics={"x.audit.events"}), [3]),
        (Wanted(conversation="other"), [2]),
        (Wanted(since_ms=1_002), [2, 3]),
        (Wanted(until_ms=1_002), [1]),
        (Wanted(since_ms=1_002, until_ms=1_003), [2]),
        (Wanted(places={Coordinates("x.pipecat.events", 0, 1)}), [1]),
        (Wanted(reasons={RefusalReason.EMPTY_KEY}, conversation="c"), []),
    ],
)
async def test_filters_choose(monkeypatch: pytest.MonkeyPatch, wanted: Wanted, matching: list[int]) -> None:
    written = [entry(1), entry(2, key="other", reason=RefusalReason.EMPTY_KEY), entry(3, topic="x.audit.events")]
    found = await read(monkeypatch, values(*written), wanted)
    assert offsets(found) == matching
    assert found.matching == len(matching)


async def test_the_newest_are_kept_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    written = [entry(5), entry(9), entry(1, reason=RefusalReason.EMPTY_KEY), entry(7), entry(3)]
    found = await read(monkeypatch, values(*written), most=2)
    assert offsets(found) == [7, 9]
    assert found.by_reason == {RefusalReason.INVALID_EVENT: 4, RefusalReason.EMPTY_KEY: 1}


async def test_a_record_refused_twice_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = entry(1), entry(2), entry(1), entry(2)
    assert offsets(await read(monkeypatch, values(*again))) == [1, 2]
    found = await read(monkeypatch, values(*again), most=1)  # even if the first occurrence was forgotten
    assert offsets(found) == [2]
    assert found.matching == 4


async def test_what_cannot_be_read_is_counted_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = entry(2).model_dump_json().replace("invalid_event", "a_reason_to_come").encode()
    found = await read(monkeypatch, [None, b"", b"{", unknown, *values(entry(1))])
    assert (found.unreadable, offsets(found)) == (4, [1])
