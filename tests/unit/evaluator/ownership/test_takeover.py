"""Taking a partition over: other owners are fenced off, then commits and scores are read, then it begins."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.limits import Limits
from consumers.evaluator.ownership.takeover import Takeover
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import Partition
from consumers.evaluator.partition.progress import MAX_TAKEOVERS_WITHOUT_PROGRESS
from consumers.evaluator.recall.commit_note import CommitNote, SnapshotPlace
from consumers.evaluator.recall.ledger import LedgerError
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots.restoring import NotedSnapshot, Restored
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.topics import SOURCE_BY_TOPIC
from tests.support.fakes.evaluator_fakes import (
    AUDIT,
    NOW_MS,
    PIPECAT,
    Record,
    StubEvaluator,
    fact,
    trusted_clock,
    until_idle,
)

TOPICS = (PIPECAT, AUDIT)
FIRST, END = 10, 900
MARK = 1_000
"""A fence ends in `scores` at this offset plus the number of its partition."""


class FakeWriter:
    """Fences when it is let."""

    def __init__(self, number: int, journal: list[str]) -> None:
        self.scores_end: int | None = None
        self.may_fence = asyncio.Event()
        self.may_fence.set()
        self._number = number
        self._journal = journal

    async def fence(self) -> int:
        await self.may_fence.wait()
        self._journal.append(f"fence {self._number}")
        return MARK + self._number


class Taking:
    """Partitions to be taken over, with everything around them made up; `journal` lists the requests in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *numbers: int, is_embedded: bool = False) -> None:
        self.journal: list[str] = []
        self.registry = CollectorRegistry()
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.asked: tuple[str, list[TopicPartition]] | None = None
        self.ledger_starts: Mapping[int, int] = {}
        self.ledger_at_least: Mapping[int, int] = {}
        self.ledger_error: Exception | None = None
        self.closed = 0
        self.noted: dict[TopicPartition, OffsetAndMetadata] = {}
        self.commit_error: Exception | None = None
        instruments = Instruments(self.registry, ["evaluator"])
        monkeypatch.setattr(KafkaSettings, "admin", lambda *_: self)
        monkeypatch.setattr("consumers.evaluator.ownership.takeover.read_ledger", self._read_ledger)
        settings = EvaluatorSettings(group_id="g", ledger_overlap_ms=0)
        self.takeover = Takeover(KafkaSettings(is_embedded=is_embedded), settings, instruments, TOPICS, trusted_clock())
        self.evaluators = {number: StubEvaluator() for number in numbers}
        self.writers = {number: FakeWriter(number, self.journal) for number in numbers}
        self.owned = [
            OwnedPartition(Partition(number, self.evaluators[number], Limits(), SOURCE_BY_TOPIC, instruments), writer)  # type: ignore[arg-type]  # a fake writer
            for number, writer in self.writers.items()
        ]

    def commit(self, topic: str, number: int, offset: int, text: str) -> None:
        self.committed[TopicPartition(topic, number)] = OffsetAndMetadata(offset, text)

    async def take(self) -> None:
        consumer: Any = SimpleNamespace(
            beginning_offsets=self.beginning_offsets, end_offsets=self.end_offsets, commit=self.commit_offsets
        )
        await self.takeover.start()
        await self.takeover.take(self.owned, consumer)

    def commits(self, number: int) -> dict[str, tuple[int, CommitNote]]:
        """The offsets that would be committed now, by topic."""
        (owned,) = (each for each in self.owned if each.partition.number == number)
        return {tp.topic: (at.offset, CommitNote.parse(at.metadata)) for tp, at in owned.to_commit(0).items()}

    # As the administrative client.

    async def start(self) -> None:
        self.journal.append("connect")

    async def close(self) -> None:
        self.closed += 1

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self.journal.append("committed")
        self.asked = (group_id, partitions)
        return self.committed

    # As the consumer.

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, FIRST)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self.journal.append("ends")
        return dict.fromkeys(partitions, END)

    async def commit_offsets(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        assert not any(owned.partition.is_active for owned in self.owned)
        self.journal.append("note")
        if self.commit_error is not None:
            raise self.commit_error
        self.noted = offsets

    # As the ledger.

    async def _read_ledger(
        self,
        _: KafkaSettings,
        starts: Mapping[int, int],
        at_least: Mapping[int, int],
        recalls: Mapping[int, Callable[[Any], None]],
        _instruments: Instruments,
    ) -> dict[int, int]:
        assert not any(owned.partition.is_active for owned in self.owned)
        self.journal.append("ledger")
        self.ledger_starts = starts
        self.ledger_at_least = at_least
        if self.ledger_error is not None:
            raise self.ledger_error
        for number, recall in recalls.items():
            recall(fact(f"of {number}"))
        return {number: start + 1 for number, start in starts.items()}

    @property
    def lost(self) -> float | None:
        return self.registry.get_sample_value("callgauge_input_records_lost_total")


@pytest.fixture
def taking_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Taking]:
    return lambda *numbers, **options: Taking(monkeypatch, *numbers, **options)


async def test_first_nobody_else_can_write_then_what_was_written_is_read(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, 2)
    await taking.take()
    assert taking.journal == ["connect", "fence 0", "fence 2", "committed", "ends", "ledger", "note"]
    assert taking.ledger_at_least == {0: MARK, 2: MARK + 2}
    assert all(owned.partition.is_active for owned in taking.owned)
    assert {number: evaluator.recalled for number, evaluator in taking.evaluators.items()} == {
        0: [fact("of 0")],
        2: [fact("of 2")],
    }
    inputs = {TopicPartition(topic, number) for topic in TOPICS for number in (0, 2)}
    assert taking.asked is not None
    assert (taking.asked[0], set(taking.asked[1])) == ("g", inputs)


async def test_nothing_is_read_before_the_last_former_owner_is_fenced_off(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, 2)
    taking.writers[2].may_fence.clear()
    task = asyncio.create_task(taking.take())
    await until_idle()
    assert taking.journal == ["connect", "fence 0"]
    taking.writers[2].may_fence.set()
    await task
    assert taking.journal[2:4] == ["fence 2", "committed"]


async def test_reading_begins_where_the_commits_say(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, 2)
    for number in (0, 2):
        taking.commit(PIPECAT, number, 20 + number, CommitNote(70 + number, 30).text())
        taking.commit(AUDIT, number, 40, CommitNote(60 + number, 55).text())
    await taking.take()
    # The earlier of the starts that the notes of the two inputs ask for.
    assert taking.ledger_starts == {0: 60, 2: 62}
    for number, owned in zip((0, 2), taking.owned, strict=True):
        assert owned.partition.next_offsets == {PIPECAT: 20 + number, AUDIT: 40}
        assert owned.partition._seen_before == {PIPECAT: 30, AUDIT: 55}
    # And a successor that comes at once needs the same.
    assert taking.commits(2) == {PIPECAT: (22, CommitNote(62, 30, 1)), AUDIT: (40, CommitNote(62, 55, 1))}


@pytest.mark.parametrize("text", [None, "", "theirs", '{"scores": "7", "read": 3}'])
async def test_without_our_note_everything_that_was_written_is_read(
    taking_of: Callable[..., Taking], text: str
) -> None:
    taking = taking_of(0)
    taking.commit(PIPECAT, 0, 20, CommitNote(70, 30).text())
    taking.commit(AUDIT, 0, 40, text)
    await taking.take()
    assert taking.ledger_starts == {0: 0}
    (owned,) = taking.owned
    assert owned.partition.next_offsets == {PIPECAT: 20, AUDIT: 40}
    assert owned.partition._seen_before == {PIPECAT: 30, AUDIT: 0}


async def test_where_nothing_was_committed_reading_begins_at_the_first_record(
    taking_of: Callable[..., Taking],
) -> None:
    taking = taking_of(0)
    taking.commit(AUDIT, 0, -1, "")  # as the broker says it; of the other it says nothing at all
    with capture_logs() as logged:
        await taking.take()
    assert taking.ledger_starts == {0: 0}
    assert taking.owned[0].partition.next_offsets == {PIPECAT: FIRST, AUDIT: FIRST}
    assert taking.lost == 0
    assert logged == []


async def test_what_retention_took_is_counted_and_told(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0)
    taking.commit(PIPECAT, 0, FIRST - 7, CommitNote(70, FIRST - 7).text())
    taking.commit(AUDIT, 0, FIRST, CommitNote(70, FIRST).text())
    with capture_logs() as logged:
        await taking.take()
    assert taking.owned[0].partition.next_offsets == {PIPECAT: FIRST, AUDIT: FIRST}
    assert taking.lost == 7
    assert [(line["event"], line["record"]) for line in logged] == [
        ("input_not_where_it_was", f"{PIPECAT}[0]@{FIRST - 7}")
    ]


@pytest.mark.parametrize("committed", [FIRST - 7, END + 1], ids=["deleted", "made anew"])
async def test_calls_whose_records_are_gone_are_named(taking_of: Callable[..., Taking], committed: int) -> None:
    taking = taking_of(0, 2)
    for number, evaluator in taking.evaluators.items():
        taking.commit(PIPECAT, number, FIRST, "")
        taking.commit(AUDIT, number, committed if number == 2 else FIRST, "")
        evaluator.unfinished = [f"c-{number}"]
    with capture_logs() as logged:
        await taking.take()
    assert [line["conversation_ids"] for line in logged if line["event"] == "calls_incomplete"] == [["c-2"]]
    assert taking.registry.get_sample_value("callgauge_calls_incomplete_total") == 1


async def test_a_commit_above_the_end_is_told_and_reading_begins_at_the_first_record(
    taking_of: Callable[..., Taking],
) -> None:
    taking = taking_of(0)
    taking.commit(PIPECAT, 0, END + 1, CommitNote(70, END + 1).text())
    taking.commit(AUDIT, 0, END, CommitNote(70, END).text())
    with capture_logs() as logged:
        await taking.take()
    assert taking.owned[0].partition.next_offsets == {PIPECAT: FIRST, AUDIT: END}
    # The scores of records read from the first one on were written long before those that the note asks for.
    assert taking.ledger_starts == {0: 0}
    assert taking.lost == 0  # the topic was made anew: its former records do not count as lost
    assert [(line["event"], line["seen"]) for line in logged] == [
        ("input_not_where_it_was", f"the topic has {FIRST} to {END}")
    ]


async def test_what_an_input_made_anew_holds_was_refused_by_nobody_before(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0)
    taking.commit(PIPECAT, 0, END + 1, CommitNote(70, END + 1).text())
    await taking.take()
    partition = taking.owned[0].partition
    partition.fold([[Record(PIPECAT, FIRST, key=None)]], None)
    assert partition.outbox.records == 1


async def test_no_mark_is_noted_before_the_inputs_are_read_to_where_they_ended(
    taking_of: Callable[..., Taking],
) -> None:
    taking = taking_of(0)
    for topic in TOPICS:
        taking.commit(topic, 0, 20, CommitNote(70, 30).text())
    await taking.take()
    (owned,) = taking.owned
    long_after_ms = NOW_MS
    notes = []
    for position, after_ms in ((END - 1, 100_000), (END, 200_000)):
        owned.partition.fold([[Record(topic, position - 1)] for topic in TOPICS], None)
        owned.read_to(dict.fromkeys(TOPICS, position))
        committed = owned.to_commit(long_after_ms + after_ms)
        notes.append({CommitNote.parse(at.metadata).scores for at in committed.values()})
    assert notes == [{70}, {71}]


async def test_taking_over_without_a_connection_is_refused(taking_of: Callable[..., Taking]) -> None:
    """Without commits everything is read again, so their absence must not be a guess."""
    taking = taking_of(0)
    consumer: Any = taking
    with pytest.raises(RuntimeError, match="before it was started, or after it was stopped"):
        await taking.takeover.take(taking.owned, consumer)
    await taking.takeover.start()
    await taking.takeover.stop()
    with pytest.raises(RuntimeError, match="before it was started, or after it was stopped"):
        await taking.takeover.take(taking.owned, consumer)
    assert "ledger" not in taking.journal
    assert not taking.owned[0].partition.is_active


async def test_a_ledger_that_cannot_be_read_leaves_nothing_active(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, 2)
    taking.ledger_error = LedgerError("short")
    with pytest.raises(LedgerError, match="short"):
        await taking.take()
    assert not any(owned.partition.is_active for owned in taking.owned)
    assert taking.commits(0) == {}


async def test_a_fence_that_fails_is_not_passed_over(
    taking_of: Callable[..., Taking], monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = taking_of(0, 2)

    async def fail() -> int:
        raise KafkaConnectionError("gone")

    monkeypatch.setattr(taking.writers[2], "fence", fail)
    with pytest.raises(KafkaConnectionError):
        await taking.take()
    assert "committed" not in taking.journal
    assert not any(owned.partition.is_active for owned in taking.owned)


async def test_the_embedded_broker_keeps_nothing_to_ask_for(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, is_embedded=True)
    await taking.take()
    assert taking.journal == ["fence 0", "ends"]
    assert taking.owned[0].partition.is_active
    assert taking.owned[0].partition.next_offsets == {PIPECAT: FIRST, AUDIT: FIRST}


async def test_it_disconnects_once(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0)
    await taking.takeover.stop()
    await taking.takeover.start()
    assert taking.closed == 0
    await taking.takeover.stop()
    await taking.takeover.stop()
    assert taking.closed == 1


async def test_each_owner_is_counted_before_it_folds(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, 2)
    taking.commit(PIPECAT, 0, 20, CommitNote(70, 30, 2).text())
    taking.commit(AUDIT, 0, 40, CommitNote(60, 55, 2).text())
    with capture_logs() as logged:
        await taking.take()
    assert taking.journal[-2:] == ["ledger", "note"]
    assert {tp: (at.offset, CommitNote.parse(at.metadata)) for tp, at in taking.noted.items()} == {
        TopicPartition(PIPECAT, 0): (20, CommitNote(60, 30, 3)),
        TopicPartition(AUDIT, 0): (40, CommitNote(60, 55, 3)),
        TopicPartition(PIPECAT, 2): (FIRST, CommitNote(0, 0, 1)),
        TopicPartition(AUDIT, 2): (FIRST, CommitNote(0, 0, 1)),
    }
    assert [owned.takeovers for owned in taking.owned] == [3, 1]
    assert [owned.partition.stops for owned in taking.owned] == [None, None]
    assert [(line["event"], line["owners_before"]) for line in logged] == [("partitions_did_not_get_on", {0: 2})]


async def test_after_too_many_owners_reading_stops_where_the_last_one_was(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0)
    taking.commit(PIPECAT, 0, 20, CommitNote(70, 30, MAX_TAKEOVERS_WITHOUT_PROGRESS).text())
    taking.commit(AUDIT, 0, 40, CommitNote(60, END + 9, MAX_TAKEOVERS_WITHOUT_PROGRESS).text())
    await taking.take()
    # A note that goes past the end of the input is about a topic made anew: its offset is never reached.
    assert taking.owned[0].partition.stops == {PIPECAT: 30, AUDIT: END}


async def test_an_owner_that_cannot_be_counted_folds_all_the_same(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0)
    taking.commit_error = KafkaConnectionError("gone")
    with capture_logs() as logged:
        await taking.take()
    assert taking.owned[0].partition.is_active
    assert [line["event"] for line in logged] == ["commit_failed"]


# A state that an earlier owner has handed over.

PLACE = SnapshotPlace(1, 7, 9)


class Restoring:
    """Has the states that a test gives it."""

    def __init__(self, journal: list[str], *numbers: int) -> None:
        self.wanted: Mapping[int, NotedSnapshot] = {}
        self.states = {number: StubEvaluator() for number in numbers}
        self._journal = journal

    async def restore(self, wanted: Mapping[int, NotedSnapshot]) -> dict[int, Restored]:
        self._journal.append("restore")
        self.wanted = wanted
        states: dict[int, Any] = {number: state for number, state in self.states.items() if number in wanted}
        return {number: Restored(state, dict.fromkeys(TOPICS, 500)) for number, state in states.items()}


def handed_over(taking: Taking, number: int, takeovers: int = 0, place: SnapshotPlace | None = PLACE) -> None:
    for topic in TOPICS:
        taking.commit(topic, number, 20, CommitNote(70, 30, takeovers, place).text())


async def test_a_state_that_was_handed_over_is_gone_on_with(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0, 2)
    restoring = Restoring(taking.journal, 0)
    taking.takeover._restoring = restoring  # type: ignore[assignment]  # a fake
    for number in (0, 2):
        handed_over(taking, number)
    await taking.take()
    # The other state could not be used: only that partition is recalled and replayed.
    assert taking.journal[3:] == ["committed", "ends", "restore", "ledger", "note"]
    assert taking.ledger_starts == {2: 70}
    firsts, ends = dict.fromkeys(TOPICS, FIRST), dict.fromkeys(TOPICS, END)
    assert restoring.wanted == {
        0: NotedSnapshot(PLACE, MARK - 1, firsts, ends),
        2: NotedSnapshot(PLACE, MARK + 1, firsts, ends),
    }
    one, other = (owned.partition for owned in taking.owned)
    assert one._evaluator is restoring.states[0]
    assert not restoring.states[0].knows_of_time, "its time goes on, and what it does in it must not be lost"
    assert restoring.states[0].recalled == taking.evaluators[0].recalled == []
    assert one.next_offsets == dict.fromkeys(TOPICS, 500)
    assert other.next_offsets == dict.fromkeys(TOPICS, 20)
    # The committed offsets stay where the oldest open call began, and the state is not offered again.
    assert {tp: (at.offset, CommitNote.parse(at.metadata)) for tp, at in taking.noted.items()} == {
        TopicPartition(topic, number): (20, CommitNote(70, 30, 1)) for topic in TOPICS for number in (0, 2)
    }
    assert taking.owned[0].scores_end == MARK


async def test_nothing_is_lost_of_what_was_folded_before_it_was_deleted(taking_of: Callable[..., Taking]) -> None:
    taking = taking_of(0)
    taking.takeover._restoring = Restoring(taking.journal, 0)  # type: ignore[assignment]  # a fake
    for topic in TOPICS:
        taking.commit(topic, 0, FIRST - 7, CommitNote(70, 30, 0, PLACE).text())
    with capture_logs() as logged:
        await taking.take()
    assert "ledger" not in taking.journal
    assert (taking.lost, logged) == (0, [])


@pytest.mark.parametrize(
    "text",
    [
        CommitNote(70, 30).text(),
        CommitNote(70, 30, 0, SnapshotPlace(1, 7, 10)).text(),
        CommitNote(70, 30, MAX_TAKEOVERS_WITHOUT_PROGRESS, PLACE).text(),
    ],
    ids=["one note has none", "two places", "it does not get on"],
)
async def test_where_the_notes_do_not_agree_on_one_it_is_replayed(taking_of: Callable[..., Taking], text: str) -> None:
    taking = taking_of(0)
    restoring = Restoring(taking.journal, 0)
    taking.takeover._restoring = restoring  # type: ignore[assignment]  # a fake
    taking.commit(PIPECAT, 0, 20, CommitNote(70, 30, 0, PLACE).text())
    taking.commit(AUDIT, 0, 20, text)
    await taking.take()
    assert restoring.wanted == {}
    assert taking.owned[0].partition.next_offsets == dict.fromkeys(TOPICS, 20)
