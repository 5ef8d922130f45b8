"""Brings a restored state past the records that were written after its snapshot, by the steps that its owner took."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.engine.intake.admission import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.evaluator.recall.journal_piece import CLOSE_SOME, JournalPlace, Piece, Step, piece_in
from consumers.evaluator.snapshots.manifest import Refusal, RefusedError
from consumers.evaluator.writing.carry_out import carry_out
from consumers.evaluator.writing.outbox import Group
from consumers.evaluator.writing.outgoing import Addresses, check_of
from schemas.closed_sets import InputSource
from schemas.quarantine import QuarantineRecord
from schemas.topics import JOURNAL_KEY, OWNER_MARK_KEY
from schemas.undecodable import UndecodableRecord

MAX_TAIL_STEPS: Final = 200_000
"""Most steps that are taken again: some ten seconds of work. A state that is further back is not used."""
STEPS_AT_ONCE: Final = 50
"""Steps after which other partitions of the process have a turn: some milliseconds."""
POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 500
_IN_EACH_SCORE: Final = b'"code_version"'
"""A field that every version writes into each record of `scores`."""


class Tail(NamedTuple):
    """Steps that lead from a snapshot to the last written record.

    Attributes:
        steps: The steps, in order.
        checks: Checksum of each group of records that they decided and that was written.
        left: Groups of the last step that were not written.
    """

    steps: Sequence[Step]
    checks: Sequence[int]
    left: int


class Redone(NamedTuple):
    """Result of taking the steps again, beside the state.

    Attributes:
        positions: By topic, the offset after the last folded record.
        unwritten: Groups of records that were decided and not written.
        refused: Refused records. Some of them may be in quarantine already.
    """

    positions: Mapping[str, int]
    unwritten: Sequence[Group]
    refused: Sequence[QuarantineRecord]


async def pieces_after(consumer: AIOKafkaConsumer, tp: TopicPartition, scores_end: int, mark: int) -> Sequence[Piece]:
    """Reads the pieces of the journal that were written after a snapshot. No other owner may have written since then.

    Args:
        consumer: A client without a group.
        tp: The partition of `scores`.
        scores_end: The snapshot covers its records below this offset.
        mark: Offset of our own mark, before which all records are read.

    Raises:
        RefusedError: A record is in no piece, or an owner has begun between the snapshot and our own mark.
        KafkaError: The broker refused.
    """
    consumer.assign([tp])
    firsts = await consumer.beginning_offsets([tp])
    covered = f"it covers `scores` up to {scores_end}"
    if not firsts[tp] <= scores_end <= mark:
        raise RefusedError(Refusal.STALE, f"{covered}, and our own begin at {mark}")
    consumer.seek(tp, scores_end)
    pieces: list[Piece] = []
    loose: list[int] = []
    while await consumer.position(tp) <= mark:  # the end of a transaction takes an offset and is no record
        batches = await consumer.getmany(tp, timeout_ms=POLL_MS, max_records=MAX_POLL_RECORDS)
        for record in (each for each in batches.get(tp, ()) if each.offset < mark):
            if _is_foreign(record):
                continue
            piece = None if isinstance(record, UndecodableRecord) else _piece_in(record)
            if piece is None:
                loose.append(record.offset)
            elif len(loose) != piece.scores:
                raise RefusedError(
                    Refusal.STALE,
                    f"{covered}, and the piece at {record.offset} is of {piece.scores} records, not {len(loose)}",
                )
            else:
                pieces.append(piece)
                loose.clear()
    if loose:
        raise RefusedError(Refusal.STALE, f"{covered}, and {loose[0]} was written later")
    return pieces


def _is_foreign(record: Any) -> bool:
    """Whether no evaluator wrote a record of `scores`. If that is not certain, it counts as theirs, and the state is not used."""
    if isinstance(record, UndecodableRecord):
        return record.is_transactional is False
    if record.value is None:
        return record.key not in (OWNER_MARK_KEY, JOURNAL_KEY)
    return _IN_EACH_SCORE not in record.value


def _piece_in(record: Any) -> Piece | None:
    try:
        return piece_in(record.headers) if record.value is None else None
    except ValueError as error:
        raise RefusedError(Refusal.STALE, str(error)) from error


def tail_of(place: JournalPlace | None, pieces: Sequence[Piece]) -> Tail:
    """Joins the pieces of the journal from the moment of the snapshot on.

    Args:
        place: That moment; None if there was no journal.
        pieces: All pieces that were written after it, in the order of the log.

    Raises:
        RefusedError: They do not follow each other and the snapshot without a gap.
    """
    if place is None:
        if pieces:
            raise RefusedError(Refusal.STALE, "it has no place in the journal that goes on after it")
        return Tail((), (), 0)
    steps: list[Step] = []
    checks: list[int] = []
    at_step = at_group = left = None
    for piece in pieces:
        is_next = (
            (piece.first_step, piece.first_group) == (at_step, at_group)
            if at_step is not None
            else piece.first_step <= place.steps and piece.first_group == place.written
        )
        if piece.journal_id != place.journal_id or not is_next:
            raise RefusedError(Refusal.STALE, f"the journal does not go on from it at step {piece.first_step}")
        try:
            steps += piece.each_step()[max(0, place.steps - piece.first_step) :]
        except ValueError as error:
            raise RefusedError(Refusal.STALE, f"the journal cannot be read: {error}") from error
        checks += piece.checks[max(0, place.groups - piece.first_group) :]
        at_step, at_group, left = piece.first_step + piece.steps, piece.first_group + len(piece.checks), piece.left
        if len(steps) > MAX_TAIL_STEPS:
            raise RefusedError(Refusal.TOO_FAR_BACK, f"more than {MAX_TAIL_STEPS:,} steps were taken after it")
    if (place.written if at_group is None else at_group) < place.groups:
        raise RefusedError(Refusal.STALE, "records that were decided before it are not written")
    return Tail(steps, checks, (left or 0) if steps else 0)


class InputReader:
    """Reads the inputs of one partition from a snapshot's positions on, up to the last step."""

    def __init__(
        self, consumer: AIOKafkaConsumer, number: int, positions: Mapping[str, int], steps: Sequence[Step]
    ) -> None:
        """Seeks the positions.

        Args:
            consumer: A client without a group.
            number: The partition number.
            positions: By topic, the first offset to read.
            steps: The steps whose records are read.
        """
        ends = {topic: offset + 1 for topic, offset in steps if topic is not None}  # offsets ascend: the last counts
        self._ends = {TopicPartition(topic, number): end for topic, end in ends.items()}
        self._waiting: dict[str, deque[Any]] = {topic: deque() for topic in ends}
        self._consumer = consumer
        consumer.assign(list(self._ends))
        for tp in self._ends:
            consumer.seek(tp, positions[tp.topic])

    async def next(self, topic: str) -> Any:
        """Returns the next record of a topic. It waits until there is one.

        Raises:
            KafkaError: The broker refused.
        """
        waiting = self._waiting[topic]
        while not waiting:
            unread = [tp for tp, end in self._ends.items() if await self._consumer.position(tp) < end]
            if not any(tp.topic == topic for tp in unread):
                raise RefusedError(Refusal.INPUTS_MOVED, f"{topic} has fewer records than were folded")
            batches = await self._consumer.getmany(*unread, timeout_ms=POLL_MS, max_records=MAX_POLL_RECORDS)
            for tp, batch in batches.items():
                self._waiting[tp.topic].extend(batch)
        return waiting.popleft()


class Redoing:
    """Takes the steps of a tail again, on a restored state."""

    def __init__(self, sources: Mapping[str, InputSource], limits: Limits, addresses: Addresses) -> None:
        """Stores its settings.

        Args:
            sources: The input of each topic, by its name on this cluster.
            limits: Bounds on records.
            addresses: Makes the bytes of a record, which must be those that were written.
        """
        self._sources = sources
        self._limits = limits
        self._addresses = addresses
        self._groups: list[Group] = []
        self._refused: list[QuarantineRecord] = []

    async def redo(
        self,
        evaluator: PartitionEvaluator,
        positions: Mapping[str, int],
        tail: Tail,
        inputs: InputReader,
        gets_on: Callable[[], None] = lambda: None,
    ) -> Redone:
        """Takes the steps, and compares their decisions with the written records.

        Args:
            evaluator: The restored state. If this raises, it is of no use any more.
            positions: By topic, the offset after the last record folded into it.
            tail: The steps.
            inputs: Reads the records of the steps.
            gets_on: Called now and then while it gets on.

        Raises:
            RefusedError: A record is not there, or a step decided other records than were written.
            KafkaError: The inputs cannot be read.
        """
        reached = dict(positions)
        checked = 0
        for number, (topic, value) in enumerate(tail.steps, 1):
            if (topic, value) == CLOSE_SOME:
                carry_out(evaluator.close_some(), self, None)
            elif topic is None:
                carry_out(evaluator.pass_time(value), self, None)
            else:
                record = await inputs.next(topic)
                if record.offset != value:
                    raise RefusedError(Refusal.INPUTS_MOVED, f"{topic} has {record.offset} instead of {value}")
                self._fold(evaluator, topic, record)
                reached[topic] = value + 1
            while checked < min(len(self._groups), len(tail.checks)):
                self._check(checked, tail.checks[checked])
                checked += 1
            if number % STEPS_AT_ONCE == 0:
                gets_on()
                await asyncio.sleep(0)
        unwritten = self._groups[checked:]
        if checked < len(tail.checks) or len(unwritten) != tail.left:
            raise RefusedError(
                Refusal.DIFFERS, f"its steps decided {len(self._groups)} groups, and {len(tail.checks)} were written"
            )
        evaluator.drain_counts()  # the owner has counted
        return Redone(reached, unwritten, self._refused)

    def put(self, group: Group) -> None:
        """Takes a group that a step decided."""
        self._groups.append(group)

    def _fold(self, evaluator: PartitionEvaluator, topic: str, record: Any) -> None:
        arrival = admit(self._sources[topic], record, self._limits, evaluator.redactor)
        if isinstance(arrival, Arrival):
            carry_out(evaluator.receive(arrival), self, None)
        else:
            self._refused.append(arrival)

    def _check(self, index: int, expected: int) -> None:
        if check_of(self._addresses.of_group(self._groups[index])) != expected:
            raise RefusedError(Refusal.DIFFERS, f"its steps decided another group {index} than was written")
