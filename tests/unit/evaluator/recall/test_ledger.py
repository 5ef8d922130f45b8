"""Reading the ledger back: to its end by position, only our own records, and never silently short."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.records.call_memory import CallMemory
from consumers.evaluator.recall import ledger
from consumers.evaluator.recall.ledger import LedgerError, read_ledger
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.ledger_record import ClosedElsewhere, LedgerRecord, ScoredElsewhere
from schemas.scores.all_records import SCHEMA_VERSION
from schemas.undecodable import UndecodableRecord
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import fact, until_idle

KAFKA = KafkaSettings(topic_prefix="t.")
LATER = f"has schema version {SCHEMA_VERSION + 1}"
MARKER = None
"""The end of a transaction: an offset without a record."""


class Record(NamedTuple):
    offset: int
    value: bytes | None


class Log(NamedTuple):
    """A partition of `scores`: its first offset, and the values from there on; it ends for readers at `end`."""

    first: int
    values: Sequence[bytes | None]
    end: int


class FakeConsumer:
    """Hands over two offsets of a partition at a time, as far as readers may go."""

    def __init__(self, logs: Mapping[int, Log]) -> None:
        self.logs = {TopicPartition("t.scores", number): log for number, log in logs.items()}
        self.assigned: list[TopicPartition] = []
        self.positions: dict[TopicPartition, int] = {}
        self.polled: list[tuple[TopicPartition, ...]] = []
        self.journal: list[str] = []
        self.told_end: int | None = None
        """The end that the broker shows at first, if it is not the real one."""
        self.undecodable: list[UndecodableRecord] = []
        self.is_silent = False
        self.never_starts = False

    async def start(self) -> None:
        self.journal.append("start")
        if self.never_starts:
            await asyncio.Event().wait()

    async def stop(self) -> None:
        self.journal.append("stop")

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned = list(partitions)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp].end if self.told_end is None else self.told_end for tp in partitions}

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp].first for tp in partitions}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        assert tp in self.assigned
        self.positions[tp] = offset

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Record]]:
        assert timeout_ms > 0
        self.polled.append(partitions)
        if self.is_silent:
            await asyncio.sleep(0)
            return {}
        batches: dict[TopicPartition, list[Record]] = {}
        for tp in partitions:
            log, start = self.logs[tp], self.positions[tp]
            stop = min(start + 2, log.end)
            self.positions[tp] = stop
            values = enumerate(log.values[start - log.first : stop - log.first], start)
            records: list[Any] = [Record(offset, value) for offset, value in values if value is not MARKER]
            records += [each for each in self.undecodable if start <= each.offset < stop]
            if records:
                batches[tp] = records
        return batches


class Reading:
    """The records recalled of each partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, logs: Mapping[int, Log]) -> None:
        self.consumer = FakeConsumer(logs)
        self.options: dict[str, Any] = {}
        self.recalled: dict[int, list[str]] = {number: [] for number in logs}
        self.records: list[LedgerRecord] = []
        self.registry = CollectorRegistry()
        monkeypatch.setattr(KafkaSettings, "consumer", self._consumer)

    def _consumer(self, _: str, *topics: str, **options: Any) -> FakeConsumer:
        self.options = {"topics": topics, **options}
        return self.consumer

    def _recall(self, number: int) -> Callable[[LedgerRecord], None]:
        def recall(record: LedgerRecord) -> None:
            self.recalled[number].append(record.conversation_id)
            self.records.append(record)

        return recall

    def odd(self, outcome: str) -> float | None:
        return self.registry.get_sample_value("callgauge_ledger_records_odd_total", {"outcome": outcome})

    async def read(self, starts: Mapping[int, int], at_least: int = 0) -> dict[int, int]:
        recalls = {number: self._recall(number) for number in starts}
        instruments = Instruments(self.registry, ["evaluator"])
        return await read_ledger(KAFKA, starts, dict.fromkeys(starts, at_least), recalls, instruments)


@pytest.fixture
def reading_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[int, Log]], Reading]:
    return lambda logs: Reading(monkeypatch, logs)


def log_of(conversations: str, first: int = 0) -> Log:
    """A letter for each record; a dot is the end of a transaction."""
    values = [MARKER if letter == "." else fact(letter).model_dump_json().encode() for letter in conversations]
    return Log(first, values, first + len(values))


async def test_each_partition_is_read_to_its_end_in_order(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("abc.de."), 2: log_of("x.")})
    assert await reading.read({0: 0, 2: 0}) == {0: 7, 2: 2}
    assert reading.recalled == {0: ["a", "b", "c", "d", "e"], 2: ["x"]}
    assert reading.consumer.journal == ["start", "stop"]
    assert reading.options["topics"] == ()  # by assignment and in no group: this reader shares with no other
    assert "group_id" not in reading.options
    assert reading.options["enable_auto_commit"] is False


async def test_the_end_is_a_position_and_not_a_record(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("a......")})
    assert await reading.read({0: 0}) == {0: 7}
    assert reading.recalled == {0: ["a"]}


async def test_what_was_read_to_its_end_is_asked_for_no_more(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("abcdef"), 2: log_of("x")})
    await reading.read({0: 0, 2: 0})
    short = TopicPartition("t.scores", 2)
    assert [short in polled for polled in reading.consumer.polled] == [True, False, False]


async def test_an_empty_log_is_read_at_once(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("")})
    assert await reading.read({0: 0}) == {0: 0}
    assert reading.consumer.polled == []


@pytest.mark.parametrize(
    ("start", "recalled"),
    [
        pytest.param(0, ["a", "b", "c"], id="older than the log"),
        pytest.param(12, ["c"], id="in the log"),
        pytest.param(13, [], id="at its end"),
        pytest.param(14, ["a", "b", "c"], id="of a topic that was made anew"),
    ],
)
async def test_reading_begins_at_the_start(reading_of: Callable[..., Reading], start: int, recalled: list[str]) -> None:
    reading = reading_of({0: log_of("abc", first=10)})
    assert await reading.read({0: start}) == {0: 13}
    assert reading.recalled == {0: recalled}


async def test_what_is_not_ours_is_passed_over_and_told(reading_of: Callable[..., Reading]) -> None:
    ours = log_of("ab").values
    reading = reading_of({0: Log(0, [ours[0], b"{", b"", b'{"name": "theirs"}', ours[1]], 5)})
    with capture_logs() as logged:
        await reading.read({0: 0})
    assert reading.recalled == {0: ["a", "b"]}
    told = [(line["record"], line["log_level"]) for line in logged if line["event"] == "ledger_record_ignored"]
    assert told == [(f"t.scores[0]@{offset}", "warning") for offset in (1, 2, 3)]
    assert reading.odd("ignored") == 3
    (summary,) = (line for line in logged if line["event"] == "ledger_read")
    assert (summary["log_level"], summary["records"], summary["ignored"]) == ("info", 5, 3)


async def test_a_change_of_owner_is_no_record(
    reading_of: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = reading_of({0: log_of("a")})

    async def mark(tp: TopicPartition, **_: Any) -> dict[TopicPartition, list[Record]]:
        reading.consumer.positions[tp] = 1
        return {tp: [Record(0, None)]}

    monkeypatch.setattr(reading.consumer, "getmany", mark)
    with capture_logs() as logged:
        assert await reading.read({0: 0}) == {0: 1}
    assert reading.recalled == {0: []}
    assert [(line["event"], line["ignored"]) for line in logged] == [("ledger_read", 0)]


async def test_the_ledger_is_read_up_to_our_own_mark_though_the_broker_does_not_show_it_yet(
    reading_of: Callable[..., Reading],
) -> None:
    """The former owner decided on the records before the mark; they may be hidden for another moment."""
    reading = reading_of({0: log_of("abc..")})
    reading.consumer.told_end = 1
    assert await reading.read({0: 0}, at_least=5) == {0: 5}
    assert reading.recalled == {0: ["a", "b", "c"]}


async def test_what_stands_behind_our_mark_is_read_too(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("abc")})
    assert await reading.read({0: 0}, at_least=1) == {0: 3}
    assert reading.recalled == {0: ["a", "b", "c"]}


async def test_a_later_versions_scores_are_not_guessed_at(reading_of: Callable[..., Reading]) -> None:
    later = fact("b").model_copy(update={"schema_version": SCHEMA_VERSION + 1}).model_dump_json().encode()
    reading = reading_of({4: Log(0, [*log_of("a").values, later], 2)})
    with pytest.raises(LedgerError, match=rf"t\.scores\[4\]@1 {LATER}, .* up to {SCHEMA_VERSION}\. .* evaluator ends"):
        await reading.read({4: 0})
    assert reading.recalled == {4: ["a"]}
    assert reading.consumer.journal == ["start", "stop"]


async def test_a_later_versions_scores_are_refused_though_this_one_cannot_read_them(
    reading_of: Callable[..., Reading],
) -> None:
    later = b'{"schema_version": %d, "name": "of a later version", "record_id": "1", "code_version": "9"}' % (
        SCHEMA_VERSION + 1
    )
    reading = reading_of({0: Log(0, [later], 1)})
    with pytest.raises(LedgerError, match=rf"t\.scores\[0\]@0 {LATER}"):
        await reading.read({0: 0})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b'{"schema_version": 2, "name": "theirs"}', id="of our version"),
        pytest.param(b'{"schema_version": 1, "name": "turn"}', id="of an older version"),
        pytest.param(b'{"schema_version": "3"}', id="a version as text"),
        pytest.param(b'{"schema_version": 3}', id="a later version and nothing of ours"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"[2]", id="no object"),
        pytest.param(b"\xff", id="no text"),
    ],
)
async def test_what_claims_no_later_version_is_passed_over(reading_of: Callable[..., Reading], value: bytes) -> None:
    reading = reading_of({0: Log(0, [value, *log_of("a").values], 2)})
    assert await reading.read({0: 0}) == {0: 2}
    assert reading.recalled == {0: ["a"]}


def written_by_another(**changes: Any) -> dict[str, Any]:
    """A record as another version may write it: one more field, and the given changes."""
    return fact("b").model_dump(mode="json") | {"code_version": "9.9", "more": [1]} | changes


def log_with(record: Mapping[str, Any]) -> Log:
    return Log(0, [*log_of("a").values, json.dumps(record).encode(), *log_of("c").values], 3)


CLOSED = {"kind": "closed", "name": "closed", "through": {"audit.events": 7}, "reason": "of a later version"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(CLOSED, id="a reason that is new"),
        pytest.param(CLOSED | {"name": "closed_by_caller"}, id="a name that is new"),
        pytest.param(CLOSED | {"turns": None, "record_id": None}, id="fields that are gone"),
    ],
)
async def test_a_closing_is_never_passed_over(reading_of: Callable[..., Reading], changes: dict[str, Any]) -> None:
    reading = reading_of({0: log_with(written_by_another(**changes))})
    with capture_logs() as logged:
        await reading.read({0: 0})
    assert reading.records[1] == ClosedElsewhere(kind="closed", conversation_id="b", through={"audit.events": 7})
    assert (reading.recalled[0], reading.odd("read_in_part"), reading.odd("ignored")) == (["a", "b", "c"], 1, 0)
    (told,) = (line for line in logged if line["log_level"] == "warning")
    assert (told["event"], told["record"], told["conversation_id"]) == (
        "ledger_record_read_in_part", "t.scores[0]@1", "b",
    )  # fmt: skip


async def test_a_closing_that_no_callgauge_wrote_is_passed_over(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_with({"kind": "closed", "name": "closed"})})
    await reading.read({0: 0})
    assert (reading.recalled[0], reading.odd("ignored")) == (["a", "c"], 1)


@pytest.mark.parametrize("name", ["tool_call", "of a later version"])
async def test_revisions_go_on_from_a_score_that_another_version_wrote(
    reading_of: Callable[..., Reading], name: str
) -> None:
    changes = {"name": name, "turn": 2, "index": 1, "revision": 7, "labels": "of another shape"}
    reading = reading_of({0: log_with(written_by_another(**changes))})
    await reading.read({0: 0})
    record = reading.records[1]
    assert isinstance(record, ScoredElsewhere)
    assert (record.name, record.turn, record.index, record.revision) == (name, 2, 1, 7)
    assert record.is_withdrawn == (name != "tool_call")  # no owner here can take back a record that it cannot name
    assert (reading.odd("read_in_part"), reading.odd("ignored")) == (1, 0)


OF_SCHEMA_1 = (Path(__file__).parents[3] / "support" / "scores_of_schema_1.jsonl").read_bytes().splitlines()


async def test_a_log_of_schema_1_is_recalled_to_its_end(reading_of: Callable[..., Reading]) -> None:
    """Records that schema 2 publishes otherwise continue the numbers from there: nothing in the old ones is obeyed."""
    reading = reading_of({0: Log(0, OF_SCHEMA_1, len(OF_SCHEMA_1))})
    await reading.read({0: 0})
    assert len(reading.records) == len(OF_SCHEMA_1)
    in_part = {each.name for each in reading.records if isinstance(each, ScoredElsewhere)}
    in_full = {each.name for each in reading.records if not isinstance(each, ScoredElsewhere | ClosedElsewhere)}
    assert in_part >= {
        "turn",
        "stage_latencies",
        "turn_taking",
        "speech",
        "eva_x_mean",
        "conciseness",
        "success_final_turn",
    }
    assert in_full >= {"call_started", "goals", "dead_air", "voice_to_voice_latency_ms", "progress", "stall", "closed"}
    assert in_part & in_full == set()
    assert reading.odd("read_in_part") == sum(isinstance(each, ScoredElsewhere) for each in reading.records)


@pytest.mark.parametrize("is_withdrawn", [True, False])
async def test_a_turn_of_schema_1_is_numbered_on_and_no_values_are_taken_from_it(
    reading_of: Callable[..., Reading], *, is_withdrawn: bool
) -> None:
    fact_of_turn = json.loads(next(value for value in OF_SCHEMA_1 if b'"name": "turn", "is_withdrawn"' in value))
    reading = reading_of({0: log_with(fact_of_turn | {"revision": 5, "is_first": True, "is_withdrawn": is_withdrawn})})
    await reading.read({0: 0})
    record = reading.records[1]
    assert isinstance(record, ScoredElsewhere)
    assert (record.name, record.revision, record.is_first, record.is_withdrawn) == ("turn", 5, True, is_withdrawn)
    memory = CallMemory()
    memory.fold(record)
    assert memory.published["turn", record.turn, 0].had_value, "it is counted, and must not be counted again"
    assert memory.counted == {}


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        pytest.param({"kind": "closed", "conversation_id": 7}, "conversation_id: Input should be", id="whose call"),
        pytest.param(CLOSED | {"through": None}, "through: Input should be", id="a closing without its end"),
        pytest.param({"name": "new", "revision": "x"}, "revision: Input should be", id="no revision"),
        pytest.param({"name": "new", "status": "x"}, "status: Input should be", id="no status"),
        pytest.param({"name": "dead_air"}, "dead_air.silent_since_ms: Field required", id="a silence to obey"),
        pytest.param({"name": "goals"}, "goals.goal_set: Field required", id="goals to obey"),
        pytest.param({"name": "turn"}, "turn.kind: Input should be", id="values that were counted"),
        pytest.param(
            {"name": "dead_air", "schema_version": 1}, "dead_air.silent_since_ms", id="an older silence to obey"
        ),
        pytest.param({"name": ["turn"], "schema_version": 1}, "name: Input should be", id="no name"),
    ],
)
async def test_what_a_callgauge_wrote_and_cannot_be_read_ends_the_evaluator(
    reading_of: Callable[..., Reading], changes: dict[str, Any], seen: str
) -> None:
    reading = reading_of({0: log_with(written_by_another(**changes))})
    with pytest.raises(LedgerError) as caught:
        await reading.read({0: 0})
    text = str(caught.value)
    assert text.startswith("Ledger: t.scores[0]@1 was written by callgauge '9.9' and cannot be read here (")
    assert seen in text
    assert "deploy/upgrades.md" in text
    assert reading.recalled[0] == ["a"]


@pytest.mark.parametrize("name", ["turn", "stage_latencies", "speech", "eva_x_mean"])
async def test_what_schema_1_said_of_turns_and_calls_is_read_in_part(
    reading_of: Callable[..., Reading], name: str
) -> None:
    """Its `turn` only reported a turn's status; the next owner of an open call goes on with the next revision."""
    kind = "fact" if name == "turn" else "score"
    record = written_by_another(name=name, kind=kind, turn=2, revision=3, schema_version=1, is_change=True)
    reading = reading_of({0: log_with(record)})
    await reading.read({0: 0})
    read = reading.records[1]
    assert isinstance(read, ScoredElsewhere)
    assert (read.name, read.turn, read.revision, read.is_withdrawn) == (name, 2, 3, name != "turn")
    assert (reading.odd("read_in_part"), reading.odd("ignored")) == (1, 0)


async def test_of_many_records_that_are_not_ours_a_few_are_logged_and_all_counted(
    reading_of: Callable[..., Reading],
) -> None:
    reading = reading_of({0: Log(0, [b"{}"] * 40, 40)})
    with capture_logs() as logged:
        await reading.read({0: 0})
    assert len([line for line in logged if line["log_level"] == "warning"]) == ledger.MAX_ODD_RECORD_LINES
    assert reading.odd("ignored") == 40


async def test_a_reading_that_is_cancelled_while_it_connects_disconnects(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("abc")})
    reading.consumer.never_starts = True
    task = asyncio.create_task(reading.read({0: 0}))
    await until_idle()
    assert reading.consumer.journal == ["start"]
    task.cancel()
    await asyncio.wait([task])
    assert reading.consumer.journal == ["start", "stop"]


async def test_a_log_that_does_not_come_is_an_error(
    reading_of: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_SILENT_SECONDS", -1.0)  # is over at once
    reading = reading_of({0: log_of("abc"), 2: log_of("")})
    reading.consumer.is_silent = True
    with pytest.raises(LedgerError, match=r"records outstanding in t\.scores\[0\] before 3\. .* evaluator ends"):
        await reading.read({0: 0, 2: 0})
    assert reading.consumer.journal == ["start", "stop"]


async def test_a_log_that_comes_slowly_is_none(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("abc")})
    reading.consumer.is_silent = True
    task = asyncio.create_task(reading.read({0: 0}))
    await until_idle()
    assert len(reading.consumer.polled) > 1
    reading.consumer.is_silent = False
    assert await task == {0: 3}
    assert reading.recalled == {0: ["a", "b", "c"]}


async def test_a_reading_that_is_cancelled_disconnects(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("abc")})
    reading.consumer.is_silent = True
    task = asyncio.create_task(reading.read({0: 0}))
    await until_idle()
    assert reading.consumer.polled
    task.cancel()
    await asyncio.wait([task])
    assert reading.consumer.journal == ["start", "stop"]


@pytest.mark.parametrize("is_transactional", [True, None])
async def test_what_may_be_the_end_of_a_call_and_cannot_be_decoded_is_never_passed(
    reading_of: Callable[..., Reading], is_transactional: bool | None
) -> None:
    reading = reading_of({0: log_of("a..b")})
    reading.consumer.undecodable = [stand_in("t.scores", 1, 2, is_transactional=is_transactional)]
    with pytest.raises(LedgerError, match=r"t\.scores\[0\]@1 to @2: .* evaluator ends\. .* up to @3 of that partition"):
        await reading.read({0: 0})


async def test_what_no_evaluator_wrote_and_cannot_be_decoded_stops_none(reading_of: Callable[..., Reading]) -> None:
    reading = reading_of({0: log_of("a..b")})
    reading.consumer.undecodable = [stand_in("t.scores", 1, 2, is_transactional=False)]
    with capture_logs() as lines:
        await reading.read({0: 0})
    assert reading.recalled == {0: ["a", "b"]}
    assert [line["event"] for line in lines] == ["ledger_record_ignored", "ledger_read"]
    assert lines[1]["ignored"] == 1
