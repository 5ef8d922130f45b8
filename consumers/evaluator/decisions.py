"""What the steps of partitions decide: effects become records, decisions wait whole and in order,
and each has the place behind it.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, assert_never

from consumers.engine.effects import (
    Count,
    Effect,
    NotUnderstood,
    PublishRow,
    PublishTranscript,
    PublishWords,
    RequestVerdict,
)
from consumers.evaluator.refusals import report_misread
from consumers.runtime.registry import Instruments
from schemas.judging import JudgeRequest
from schemas.owners import WRITER_HEADER, PartitionRow
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, GoalsRow, Row, TurnRow, WordsRow, encode, kind_of, united
from schemas.topics import (
    JUDGE_REQUESTS_TOPIC,
    OWNER_MARK_KEY,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TRANSCRIPTS_TOPIC,
    WORDS_TOPIC,
)
from schemas.transcript import Transcript

# Unwritten decisions, in order. What one step decided is written whole or not at all.

Written = Row | WordsRow | QuarantineRecord | JudgeRequest | Transcript

MAX_TRANSACTION_RECORDS: Final = 1_000
"""Number of records at which a transaction takes no further decision: some 500 kB, far below the
broker's limit.
"""
MOMENTS: Final = frozenset(
    {"started", "wait", "user_turn", "dead_air", "tool", "errors", "goals", "subgoal", "stall"}
)
"""First parts of names in `news` that are written immediately, because they happen just now. All
else that a row says, and a transcript, may wait for half a second.
"""


class Trip(NamedTuple):
    """When the event of a decision passed the first points of its way, in epoch milliseconds.

    Attributes:
        produced: The broker's timestamp of the event.
        polled: When the evaluator began with the poll that had it.
        folded: When its records were decided.
    """

    produced: int
    polled: int
    folded: int


class Decision(NamedTuple):
    """What one step decided.

    Attributes:
        outlet: The way out of the partition that took the step.
        records: Records to write.
        row: The row of the partition behind this step.
        trip: The way of the event that this step folded; None if time passed, or if it was decided
            again.
    """

    outlet: "Outlet"
    records: tuple[Written, ...]
    row: PartitionRow
    trip: Trip | None = None


class Outbox:
    """The decisions of all partitions that wait to be written, in order.

    Attributes:
        records: Number of unwritten records.
        waiting_since: Since when something waits and nothing is written, in seconds of the
            monotonic clock; None if nothing waits.
    """

    def __init__(self, patience_seconds: float = 0.0) -> None:
        """Decisions without a moment wait up to `patience_seconds`, so that one transaction has
        several.
        """
        self.records = 0
        self.waiting_since: float | None = None
        self._patience_seconds = patience_seconds
        self._decisions: deque[Decision] = deque()
        self._due_at = math.inf  # when the next transaction has to begin
        self._changed = asyncio.Event()

    @property
    def is_filled(self) -> bool:
        """Whether there is a decision to write."""
        return bool(self._decisions)

    def put(self, decision: Decision) -> None:
        """Adds a decision behind all others."""
        if not self._decisions:
            self.waiting_since = time.monotonic()
            self._due_at = self.waiting_since + self._patience_seconds
        self._decisions.append(decision)
        self.records += len(decision.records)
        if self.records >= MAX_TRANSACTION_RECORDS or is_moment(decision):
            self._due_at = 0.0
        self._changed.set()

    def first(self) -> list[Decision]:
        """Returns the decisions of the next transaction. They stay here until `written`."""
        decisions: list[Decision] = []
        records = 0
        for decision in self._decisions:
            decisions.append(decision)
            records += len(decision.records)
            if records >= MAX_TRANSACTION_RECORDS:
                break
        return decisions

    def written(self, decisions: Iterable[Decision]) -> None:
        """Removes the first decisions, which are written. Those that were forgotten meanwhile are
        gone already.
        """
        done = set(map(id, decisions))
        while self._decisions and id(self._decisions[0]) in done:
            decision = self._decisions.popleft()
            decision.outlet.place = decision.row.place
            self.records -= len(decision.records)
        # what came during a transaction has waited for it
        self.waiting_since = self._due_at = time.monotonic()
        self._settle()

    def forget(self, outlet: "Outlet") -> None:
        """Drops all decisions of a partition, because another owner takes these steps."""
        self._decisions = deque(each for each in self._decisions if each.outlet is not outlet)
        self.records = sum(len(each.records) for each in self._decisions)
        self._settle()

    def _settle(self) -> None:
        if not self._decisions:
            self.waiting_since, self._due_at = None, math.inf
        self._changed.set()

    async def until_due(self) -> None:
        """Waits until there is a moment to write, enough for a whole transaction, or anything for
        as long as it may wait.
        """
        while (left_seconds := self._due_at - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_seconds if self._decisions else None):
                    await self._changed.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Has what waits written immediately, and waits until this holds."""
        if self._decisions and not holds():
            self._due_at = 0.0
            self._changed.set()
        while not holds():
            self._changed.clear()
            await self._changed.wait()


def is_moment(decision: Decision) -> bool:
    return any(map(_is_urgent, decision.records))


def _is_urgent(record: Written) -> bool:
    if isinstance(record, (TurnRow, CallRow)):
        return any(name.partition(".")[0] in MOMENTS for name in record.news)
    # a goal set comes with the row of its call
    return not isinstance(record, (GoalsRow, WordsRow, Transcript))


# A record for the broker: its address, its bytes, and whether its group can be written without it.


class LeftOut(NamedTuple):
    """Consequence of writing a group without one of its records.

    Attributes:
        limit: The value of the label `limit` under which it is counted.
        what_happens_now: Explanation for a person.
    """

    limit: str
    what_happens_now: str


_BESIDE_SCORES: Final[Mapping[type, tuple[str, LeftOut]]] = {
    WordsRow: (WORDS_TOPIC, LeftOut("words", "The turn has all its values and no words.")),
    Transcript: (
        TRANSCRIPTS_TOPIC,
        LeftOut("transcript", "The call closes with all its scores and has no transcript."),
    ),
    JudgeRequest: (
        JUDGE_REQUESTS_TOPIC,
        LeftOut(
            "judge_request",
            "The judge is not asked; the subject of the question is unscored when its deadline has "
            "passed.",
        ),
    ),
    QuarantineRecord: (
        QUARANTINE_TOPIC,
        LeftOut(
            "quarantine_record",
            "The refused record is not in quarantine; its coordinates are in the log.",
        ),
    ),
}
"""The topics of records that are no scores, and what it means to write their group without one."""


class Outgoing(NamedTuple):
    """One record, ready to be sent.

    Attributes:
        number: The partition whose step decided it.
        topic: Name of the topic on this cluster.
        key: The conversation's id, or the own key of a refused record.
        value: The bytes; None for the row of a partition.
        partition: Partition number; None if the key decides.
        headers: Headers; None for none.
        kind: What a row of `scores` is of, for its count; None for other records.
        left_out: Consequence of leaving it out; None for a score or the row of a partition, which
            must not be left out.
    """

    number: int
    topic: str
    key: bytes
    value: bytes | None
    partition: int | None = None
    headers: list[tuple[str, bytes]] | None = None
    kind: str | None = None
    left_out: LeftOut | None = None


def newest(decisions: Iterable[Decision]) -> list[Written]:
    """The records of these decisions. Of several rows of one turn or call the last is enough; what
    counts in it is what counts in all.
    """
    written: dict[object, Written] = {}
    for place, record in enumerate(record for decision in decisions for record in decision.records):
        if not isinstance(record, (TurnRow, CallRow, WordsRow)):
            written[place] = record
            continue
        turn = None if isinstance(record, CallRow) else record.turn
        subject = type(record), record.conversation_id, turn
        older = written.pop(subject, None)
        written[subject] = record
        if isinstance(record, (TurnRow, CallRow)) and isinstance(older, (TurnRow, CallRow)):
            record.news = united(older.news, record.news)
    return list(written.values())


class Outlet:
    """The way out of one partition.

    Attributes:
        number: The partition number.
        outbox: Where its decisions wait, in the order of all partitions.
        place: Place of the last row that was written; None before the first.
        topic: Gives the full name of a topic.
    """

    def __init__(
        self, number: int, topic: Callable[[str], str], outbox: Outbox | None = None
    ) -> None:
        self.number = number
        self.outbox = outbox or Outbox()
        self.place: int | None = None
        self.topic = topic
        self._scores = topic(SCORES_TOPIC)

    def put(self, records: Iterable[Written], row: PartitionRow, trip: Trip | None = None) -> None:
        """Has written what a step decided."""
        self.outbox.put(Decision(self, tuple(records), row, trip))

    def records_of(self, decisions: Sequence[Decision], writer_id: str) -> list[Outgoing]:
        """Returns the records of these decisions, and last the row of the partition behind them."""
        records = [self.addressed(record) for record in newest(decisions)]
        headers = [(WRITER_HEADER, writer_id.encode()), decisions[-1].row.header()]
        records.append(
            Outgoing(self.number, self._scores, OWNER_MARK_KEY, None, self.number, headers)
        )
        return records

    def addressed(self, record: Written) -> Outgoing:
        """Returns the record with its address."""
        number = self.number
        if isinstance(record, (TurnRow, CallRow, GoalsRow)):
            key = record.conversation_id.encode()
            return Outgoing(number, self._scores, key, encode(record), number, kind=kind_of(record))
        key = (
            record.key if isinstance(record, QuarantineRecord) else record.conversation_id
        ).encode()
        partition: int | None = None
        match record:
            case WordsRow():  # in the partition of the call's scores
                value, partition = encode(record), number
            case Transcript():
                value = record.value
            case _:
                value = record.model_dump_json().encode()
        topic, left_out = _BESIDE_SCORES[type(record)]
        return Outgoing(number, self.topic(topic), key, value, partition, left_out=left_out)


# Carries out the effects of the engine: one `match`.


def carry_out(effects: Iterable[Effect], instruments: Instruments) -> list[Written]:
    """Adds counts to the metrics and returns the records to write.

    Args:
        effects: Effects of one step, as the engine returned them.
        instruments: Take the counts, and the kinds of records that are not understood.

    Returns:
        The records in order. The closed row of a call comes after all its other rows and its
        transcript.
    """
    records: list[Written] = []
    for effect in effects:
        match effect:
            case PublishRow(row) | PublishWords(row):
                records.append(row)
            case PublishTranscript(conversation_id, value):
                records.append(Transcript(conversation_id, value))
            case RequestVerdict(request):
                records.append(request)
            case Count(metric, labels, by):
                instruments.inc(metric, labels, by)
            case NotUnderstood():
                report_misread(effect, instruments)
            case _:
                assert_never(effect)
    return records
