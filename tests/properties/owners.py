"""Owners of one partition after each other, with the log of scores between them, as the evaluator's shell is without a broker."""

import asyncio
import io
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from consumers.engine.effects import CloseCall, Effect, PublishScore
from consumers.engine.intake.admission import Arrival
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.evaluator.partition.partition import InputStart, Partition
from consumers.evaluator.recall.journal_piece import JournalPlace, Piece, piece_in
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots.tail import Redoing, tail_of
from consumers.evaluator.writing.outbox import Group
from consumers.evaluator.writing.outgoing import Addresses
from consumers.evaluator.writing.partition_writer import PartitionWriter
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.judging import JudgeRequest
from schemas.quarantine import QuarantineRecord
from schemas.scores.all_records import AnyScoreRecord, ClosedFact
from schemas.topics import INPUT_TOPICS, SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from schemas.transcript import Transcript
from tests.properties.evaluation import EveryCall, fresh
from tests.support.fakes.engine_feed import records_of
from tests.support.fakes.evaluator_fakes import Record

ANY_TIME = Limits(max_event_time_skew_ms=0)
"""Admission alone: the broker's times of these calls are made up."""


def record_of(arrival: Arrival) -> Record:
    """The record that an arrival was."""
    topic = TOPIC_BY_SOURCE[arrival.source]
    return Record(topic, arrival.offset, arrival.broker_time_ms, arrival.conversation_id.encode(), arrival.value)


class Snapshot(NamedTuple):
    """A snapshot as the topic keeps it; `pieces` is how many pieces of the journal the log of scores had when it was taken."""

    state: bytes
    positions: Mapping[str, int]
    journal: JournalPlace
    pieces: int
    put: int


@dataclass
class Log:
    """The owners' records: groups, in the order of their transactions, and the pieces of the journal beside them."""

    groups: list[Group] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    @property
    def scores(self) -> list[AnyScoreRecord]:
        """The records of `scores`, by their order in the log."""
        return records_of(self.effects())

    def effects(self) -> list[Effect]:
        """The effects that were written."""
        effects: list[Effect] = []
        for group in self.groups:
            records = tuple(
                each for each in group if not isinstance(each, Transcript | JudgeRequest | QuarantineRecord)
            )
            transcripts = [each.value for each in group if isinstance(each, Transcript)]
            if records and isinstance(records[-1], ClosedFact):
                effects.append(CloseCall(records[-1].conversation_id, records, transcripts[0] if transcripts else None))
            else:
                effects += map(PublishScore, records)
        return effects


class Inputs:
    """Gives the records of a tail, each topic in its own order."""

    def __init__(self, records: Iterable[Record], positions: Mapping[str, int]) -> None:
        self._waiting: dict[str, deque[Record]] = {topic: deque() for topic in INPUT_TOPICS}
        for record in records:
            if record.offset >= positions[record.topic]:
                self._waiting[record.topic].append(record)

    async def next(self, topic: str) -> Record:
        return self._waiting[topic].popleft()


class Owner:
    """One owner of the partition, from its takeover to its end."""

    def __init__(self, log: Log) -> None:
        """Recalls the written records, to replay from the first record."""
        self.log = log
        self.instruments = Instruments(CollectorRegistry(), ["evaluator"])
        evaluator = fresh()
        for record in log.scores:
            evaluator.recall(record)
        self.partition = self._partition(evaluator)
        self.partition.start(dict.fromkeys(INPUT_TOPICS, InputStart(0, 0)))
        self._writer = self._writer_of(self.partition)

    @classmethod
    def restored(cls, log: Log, snapshot: Snapshot, records: Sequence[Record]) -> "Owner":
        """Goes on from a snapshot.

        Raises:
            RefusedError: It cannot.
        """
        owner = cls.__new__(cls)
        owner.log = log
        owner.instruments = Instruments(CollectorRegistry(), ["evaluator"])
        tail = tail_of(snapshot.journal, log.pieces[snapshot.pieces :])
        evaluator = PartitionEvaluator.restore(snapshot.state, EveryCall())
        redoing = Redoing(SOURCE_BY_TOPIC, ANY_TIME, Addresses(0, KafkaSettings()))
        inputs: Any = Inputs(records, snapshot.positions)
        redone = asyncio.run(redoing.redo(evaluator, snapshot.positions, tail, inputs))
        owner.partition = owner._partition(fresh())
        owner.partition.go_on_with(evaluator, redone.unwritten)
        owner.partition.start(dict.fromkeys(INPUT_TOPICS, InputStart(0, 0)), redone.positions)
        owner._writer = owner._writer_of(owner.partition)
        return owner

    def fold(self, record: Record, known_ms: int | None = None) -> None:
        """Folds one record, and lets time pass before it as far as inputs are known."""
        if record.offset >= self.partition.next_offsets[record.topic]:
            self.partition.fold([[record]], known_ms)

    def advance(self, now_ms: int) -> None:
        """Lets time pass, and takes a step of closing ended calls."""
        self.partition.advance(now_ms)
        if self.partition.closing_calls:
            self.partition.close_some()

    def end(self, now_ms: int) -> None:
        """Lets time pass until every call has closed, and writes everything."""
        while self.partition.open_calls:
            self.advance(now_ms)
        while self.partition.outbox.records:
            self.write()

    def write(self, groups: int | None = None) -> None:
        """One transaction with the next groups; None for all of them."""
        outbox = self.partition.outbox
        ready = outbox.first()[:groups]
        if not ready:
            return
        for each in self._writer._outgoing(ready):
            if each.value is None:
                piece = piece_in(each.headers or ())
                assert piece is not None
                self.log.pieces.append(piece)
        self.log.groups += ready
        outbox.written(len(ready))

    def snapshot(self) -> Snapshot:
        """The state of now. It counts only once everything that was decided before it is written."""
        partition, outbox = self.partition, self.partition.outbox
        if outbox.journal.has_ended:
            self.write()  # records written while a journal begins have no piece of it
            outbox.begin_journal(partition.next_offsets)
        partition.count_events()
        into = io.BytesIO()
        partition.write_snapshot(into)
        place, pieces = outbox.journal.place, len(self.log.pieces)
        assert place is not None
        return Snapshot(into.getvalue(), dict(partition.next_offsets), place, pieces, outbox.put_so_far)

    def _partition(self, evaluator: PartitionEvaluator) -> Partition:
        return Partition(0, evaluator, ANY_TIME, SOURCE_BY_TOPIC, self.instruments)

    def _writer_of(self, partition: Partition) -> PartitionWriter:
        return PartitionWriter(0, partition.outbox, KafkaSettings(), EvaluatorSettings(), self.instruments)
