"""Refused records are chosen, put back unless they are gone or would be refused again, and shown to
a person safely.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError
from aiokafka.structs import ConsumerRecord, RecordMetadata, TopicPartition
from rich.console import RenderableType

from consumers.engine.admission import admit
from consumers.engine.limits import Limits
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import CloseReason, InputSource, RefusalReason
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, encode
from schemas.topics import SOURCE_BY_TOPIC
from streamer import quarantine as quarantine_log
from streamer.cluster.readers import Coordinates, RecordGoneError
from streamer.quarantine import (
    MAX_HEADERS,
    Closed,
    Entries,
    RefusedRecords,
    ReplayOutcome,
    TopicRecords,
    Wanted,
    entry_details,
    listing,
    put_back,
    quarantined,
    record_details,
    replay_headers,
    shown_bytes,
    summary,
)
from streamer.terminal import Screen
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.kept_topics import KeptTopics


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
    monkeypatch: pytest.MonkeyPatch,
    values: Iterable[bytes | None],
    wanted: Wanted | None = None,
    most: int = 100,
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
    "text",
    [
        "",
        "x",
        "x[1]",
        "x@1",
        "x[-1]@1",
        "x[1]@-1",
        "x[a]@1",
        "[1]@1",
        "x y[1]@1",
        "x[1]@1!",
        "x[1]@" + "9" * 30,
    ],
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
async def test_filters_choose(
    monkeypatch: pytest.MonkeyPatch, wanted: Wanted, matching: list[int]
) -> None:
    written = [
        entry(1),
        entry(2, key="other", reason=RefusalReason.EMPTY_KEY),
        entry(3, topic="x.audit.events"),
    ]
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
    # even if the first occurrence was forgotten
    found = await read(monkeypatch, values(*again), most=1)
    assert offsets(found) == [2]
    assert found.matching == 4


async def test_what_cannot_be_read_is_counted_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = entry(2).model_dump_json().replace("invalid_event", "a_reason_to_come").encode()
    found = await read(monkeypatch, [None, b"", b"{", unknown, *values(entry(1))])
    assert (found.unreadable, offsets(found)) == (4, [1])


WRITTEN_MS = 1_790_000_000_000
NOW_MS = WRITTEN_MS + 3_600_000
KAFKA = KafkaSettings(topic_prefix="x.")
LIMITS = Limits()
SPEECH = {"type": "tts_text", "timestamp": WRITTEN_MS, "data": {"frame": "hello"}}


def record(
    offset: int = 0,
    event: object = SPEECH,
    *,
    topic: str = "pipecat.events",
    key: bytes | None = b"c",
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Any:
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    size = len(value)
    return ConsumerRecord(
        f"x.{topic}", 0, offset, WRITTEN_MS, 1, key, value, None, 0, size, tuple(headers)
    )


def refused(of: Any) -> QuarantineRecord:
    """An entry of an older evaluator, which understood less than today's."""
    return QuarantineRecord(
        topic=of.topic,
        partition=of.partition,
        offset=of.offset,
        key=(of.key or b"").decode(),
        reason="invalid_event",
        what="it is wrong",
        expected_and_seen="expected right, saw wrong",
        what_happens_now="",
        what_to_do="",
        quarantined_at_ms=of.timestamp,
    )


class Log:
    """The input topics, as a reader of single records and as a producer."""

    def __init__(self, *records: Any) -> None:
        self.held = {Coordinates(each.topic, each.partition, each.offset): each for each in records}
        self.appended: list[Any] = []
        self.fails_at: int | None = None
        self.unreadable_at: int | None = None

    async def read(self, place: Coordinates) -> Any:
        if place.offset == self.unreadable_at:
            raise KafkaConnectionError("gone away")
        if place not in self.held:
            raise RecordGoneError("retention took it")
        return self.held[place]

    async def send_and_wait(self, topic: str, value: bytes, **rest: Any) -> RecordMetadata:
        if len(value) > 1_000_000:
            raise MessageSizeTooLargeError("too large")
        if self.fails_at == len(self.appended):
            raise KafkaConnectionError("gone away")
        self.appended.append({"topic": topic, "value": value, **rest})
        tp = TopicPartition(topic, rest["partition"])
        return RecordMetadata(topic, tp.partition, tp, 1_000 + len(self.appended), NOW_MS, 1, 0)


def home(log: Any = None) -> TopicRecords:
    return TopicRecords(KAFKA, log, log)


async def replayed(
    log: Log, *records: Any, limits: Limits = LIMITS, closed: Closed | None = None
) -> list[ReplayOutcome]:
    chosen = RefusedRecords(KAFKA, limits, home(log), closed or {})
    entries = [refused(each) for each in records]
    return [outcome async for outcome in put_back(chosen, entries, NOW_MS, asyncio.Event())]


async def test_a_record_is_appended_as_it_was_to_its_own_partition() -> None:
    first, second = record(4, headers=[("ce_id", b"e-1"), ("odd", b"\xff")]), record(7)
    log = Log(first, second)
    outcomes = await replayed(log, first, second)
    assert [str(outcome.appended) for outcome in outcomes] == [
        "x.pipecat.events[0]@1001",
        "x.pipecat.events[0]@1002",
    ]
    assert [outcome.place.offset for outcome in outcomes] == [4, 7]
    assert log.appended[0] == {
        "topic": "x.pipecat.events",
        "partition": 0,
        "key": b"c",
        "value": first.value,
        "headers": [
            ("ce_id", b"e-1"),
            ("odd", b"\xff"),
            ("callgauge_replay_of", b"x.pipecat.events[0]@4"),
        ],
    }


def test_a_replay_of_a_replay_names_the_first_record() -> None:
    first = record(4)
    again = record(8, headers=replay_headers(first))
    assert replay_headers(first) == [("callgauge_replay_of", b"x.pipecat.events[0]@4")]
    assert dict(replay_headers(again)) == dict(again.headers)
    unnamed = record(9, headers=[("callgauge_replay_of", None)])
    assert replay_headers(unnamed)[-1] == ("callgauge_replay_of", b"x.pipecat.events[0]@9")


async def test_what_is_gone_or_another_record_is_not_put_back() -> None:
    old, good = record(1), record(3)
    made_anew = record(2)
    log = Log(record(2, key=b"somebody"), good)
    gone, another, done = await replayed(log, old, made_anew, good)
    assert gone.reason == "retention took it"
    assert "recreated" in str(another.reason)
    assert done.appended is not None
    assert [each["value"] for each in log.appended] == [good.value]


async def test_what_would_be_refused_again_is_not_put_back() -> None:
    broken = record(1, b'{"type":')
    late = record(2, {**SPEECH, "timestamp": WRITTEN_MS - 23 * 3_600_000 - 1_800_000})
    log = Log(broken, late)
    bad, untimely = await replayed(log, broken, late)
    assert "refused again: it is not JSON" in str(bad.reason)
    # It was within a day of the broker's time when it was written; as a new record it is not.
    assert "refused again: the event's time is far" in str(untimely.reason)
    assert log.appended == []
    (outcome,) = await replayed(log, late, limits=Limits(max_event_time_skew_ms=0))
    assert outcome.appended is not None


async def test_a_record_of_no_input_topic_is_never_appended() -> None:
    stray = record(1, topic="scores")
    (outcome,) = await replayed(Log(stray), stray)
    assert outcome.reason == "x.scores is no input topic of this installation"


async def test_what_is_too_large_for_the_producer_is_told_and_the_next_goes_on() -> None:
    large, good = record(1, {**SPEECH, "more": "x" * 1_000_001}), record(2)
    told, done = await replayed(
        Log(large, good), large, good, limits=Limits(max_record_bytes=2_000_000)
    )
    assert "more than a producer of callgauge sends" in str(told.reason)
    assert done.appended is not None


@pytest.mark.parametrize("kind", ["fails_at", "unreadable_at"])
async def test_once_the_broker_fails_what_was_appended_is_told_and_the_rest_is_not_tried(
    kind: str,
) -> None:
    records = [record(offset) for offset in range(10)]
    log = Log(*records)
    setattr(log, kind, 5)
    outcomes = await replayed(log, *records)
    assert [outcome.place.offset for outcome in outcomes if outcome.appended] == [*range(5)]
    assert [(outcome.place.offset, outcome.reason is not None) for outcome in outcomes[5:]] == [
        (5, True)
    ]
    assert len(log.appended) == 5


async def test_a_signal_ends_it_after_the_record_that_is_on_its_way() -> None:
    records = [record(offset) for offset in range(10)]
    log, stop = Log(*records), asyncio.Event()
    chosen = RefusedRecords(KAFKA, LIMITS, home(log))
    outcomes = []
    async for outcome in put_back(chosen, [refused(each) for each in records], NOW_MS, stop):
        stop.set()
        outcomes.append(outcome)
    assert [outcome.appended is not None for outcome in outcomes] == [True]
    assert len(log.appended) == 1


async def test_closed_calls_are_found_by_their_rows_and_records_without_a_key_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def counts(*_: object) -> dict[str, int]:
        return {"scores": 1}

    @asynccontextmanager
    async def kept(*_: object, **__: object) -> AsyncIterator[Any]:
        yield KeptTopics(BrokerRecord("x.scores", 0, WRITTEN_MS, b"over", encode(CLOSED)))

    monkeypatch.setattr(quarantine_log, "partition_counts", counts)
    monkeypatch.setattr(quarantine_log, "onlooker", kept)
    over, unnamed, other = record(3, key=b"over"), record(4, key=None), record(5)
    entries = [refused(each) for each in (over, unnamed, other)]
    assert await home().closed(entries, None) == {"over": CLOSED}
    assert await home().closed([refused(unnamed)], None) == {}


CLOSED = CallRow(
    conversation_id="over",
    revision=1,
    known_ms=WRITTEN_MS,
    state="closed",
    code_version="1",
    close_reason=CloseReason.IDLE,
    turns=1,
    events=9,
)


async def test_a_closed_call_is_left_alone() -> None:
    """Days later an evaluator may have forgotten the call, and would open it anew."""
    of_closed, of_open = record(1, key=b"over"), record(2, key=b"c")
    log = Log(of_closed, of_open)
    left, done = await replayed(log, of_closed, of_open, closed={"over": CLOSED})
    assert left.reason == "its call has closed (idle, 2026-09-21 14:13:20 UTC) and is not reopened"
    assert done.appended is not None


def test_every_input_topic_is_known() -> None:
    assert set(SOURCE_BY_TOPIC.values()) == set(InputSource)


HOSTILE = "\x1b[31m\x07\r\x9b2J\u202ered[bold]"


def text_of(shown: RenderableType, width: int = 200) -> str:
    console = Screen(file=io.StringIO(), width=width)
    console.print(shown)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize("width", [60, 200])
def test_control_characters_are_written_out(width: int) -> None:
    hostile = entry(1, key=HOSTILE, what=HOSTILE, expected_and_seen=HOSTILE, what_to_do=HOSTILE)
    for shown in (listing([hostile]), entry_details(hostile)):
        text = text_of(shown, width)
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "[bold]" in text.replace("\n", "").replace(" ", "")


def test_an_entry_has_one_row() -> None:
    shown = text_of(listing([entry(1), entry(2)]))
    assert [line.split()[2] for line in shown.splitlines()[1:]] == [
        "x.pipecat.events[0]@1",
        "x.pipecat.events[0]@2",
    ]
    for part in ("1970-01-01 00:00:01", "invalid_event", "it is wrong", "saw wrong"):
        assert part in shown


def test_entries_are_counted_by_reason_the_most_frequent_first() -> None:
    found = Entries()
    found.by_reason.update({RefusalReason.EMPTY_KEY: 2, RefusalReason.UNDECODABLE: 30})
    shown = text_of(summary(found))
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["30", "undecodable"],
        ["2", "empty_key"],
    ]


def test_a_preview_is_bounded() -> None:
    assert shown_bytes(b"abc\ndef", 10) == "abc\ndef"
    assert shown_bytes(b"x" * 12, 10) == "x" * 10 + "\n... 2 more bytes"
    assert shown_bytes(b"\xff\x1b", 10) == "\\xff\\x1b"
    many = record(headers=[(f"h{number}", b"v" * 1_000) for number in range(MAX_HEADERS + 5)])
    shown = text_of(record_details(many, admit(InputSource.PIPECAT, many, Limits())))
    assert "... 5 more headers" in shown
    assert "... 800 more bytes" in shown
    assert len(shown) < 20_000


def test_a_record_says_whether_it_would_be_taken_today() -> None:
    good, bad = record(), record(event=b"{", key=None, headers=[("none", None)])
    assert "would be taken" in text_of(
        record_details(good, admit(InputSource.PIPECAT, good, Limits()))
    )
    shown = text_of(record_details(bad, admit(InputSource.PIPECAT, bad, Limits())))
    assert "would be refused again: the record has no usable key" in shown
    assert "none: (none)" in shown
