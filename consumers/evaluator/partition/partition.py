"""State of one partition number of the four inputs, as long as it is assigned to this process."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from consumers.engine.intake.admission import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.state_bytes import TakesBytes
from consumers.evaluator.partition.evaluates import Evaluates
from consumers.evaluator.partition.misread_records import MisreadRecords
from consumers.evaluator.reading.input_merge import InputMerge
from consumers.evaluator.reading.record_order import TIME_MS, Records, in_time_order
from consumers.evaluator.writing.carry_out import carry_out
from consumers.evaluator.writing.outbox import Group, Outbox
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.ledger_record import LedgerRecord
from schemas.quarantine import QuarantineRecord

MAX_QUARANTINE_LINES: Final = 5
"""Most log lines about refused records of one batch. A broken producer sends thousands, and the quarantine topic has them all."""
MAX_INCOMPLETE_NAMED: Final = 20
"""Most incomplete calls that one log line names. The metric counts all of them."""

log = structlog.get_logger()


class InputStart(NamedTuple):
    """Start of reading an input partition.

    Attributes:
        offset: Offset of the first record to fold.
        seen_before: An earlier owner read the records below this offset, and wrote refused ones to quarantine.
    """

    offset: int
    seen_before: int


class Partition:
    """The engine's state of one partition number, and its unwritten effects.

    It begins when the partition is assigned to this process and is dropped when the partition is given up. No method waits, so
    nothing else can run between a record and its effects.

    Attributes:
        number: The partition number.
        outbox: Records to write, in order.
        is_active: Whether records are folded. Records that arrive while it is false are read again from `next_offsets`.
        next_offsets: By topic, the offset after the last folded record.
        last_record_ms: By topic, the latest broker timestamp of the records that were read.
        merge: Records that were read and wait for an input that lags.
        stops: By topic, the offset before which folding stops, with time stopped too; None for none. See `progress`.
        time_ms: Broker time up to which the state has advanced; 0 before the first advance.
        has_cut: Whether a call was closed so that the partition makes progress.
        has_handed_over: Whether its state is written for a successor. Then it is inactive, so that the state does not change.
        is_being_snapshotted: Whether another thread is writing the engine's state, so that nothing may change it.
    """

    def __init__(
        self,
        number: int,
        evaluator: Evaluates,
        limits: Limits,
        source_by_topic: Mapping[str, InputSource],
        instruments: Instruments,
        redactor: Redactor | None = None,
        misread: MisreadRecords | None = None,
    ) -> None:
        """Starts with nothing folded, inactive.

        Args:
            number: The partition number.
            evaluator: The engine's new state.
            limits: Bounds on records.
            source_by_topic: The input of each topic, by its name on this cluster.
            instruments: Take the counts.
            redactor: Redacts reports about refused records; None for the default rules.
            misread: Reports records that are not understood, for all partitions; None to report them by itself.
        """
        self.number = number
        self.outbox = Outbox()
        self.is_active = False
        self.next_offsets: dict[str, int] = {}
        self.last_record_ms: dict[str, int] = {}
        self.merge = InputMerge()
        self.stops: Mapping[str, int] | None = None
        self.has_cut = False
        self.has_handed_over = False
        self.is_being_snapshotted = False
        self.time_ms = 0
        self._evaluator = evaluator
        self._limits = limits
        self._source_by_topic = source_by_topic
        self._instruments = instruments
        self._redactor = redactor or Redactor()
        self._misread = misread or MisreadRecords(instruments)
        self._seen_before: Mapping[str, int] = {}
        self._replayed_counted = 0
        self._incomplete: frozenset[str] = frozenset()

    @property
    def open_calls(self) -> int:
        """Calls that have not closed yet."""
        return self._evaluator.open_calls

    @property
    def heaviest_call(self) -> tuple[int, int, str] | None:
        """Bytes, events and id of the open call with the largest state; None when no call is open."""
        return self._evaluator.heaviest_call()

    def cut(self, conversation_id: str, *, is_scored: bool) -> None:
        """Closes an open call as a limit, without a transcript, and without final scores unless `is_scored`."""
        self.has_cut = True
        self.outbox.journal.end()
        carry_out(self._evaluator.cut(conversation_id, is_scored=is_scored), self.outbox, self._instruments)

    def start(self, starts: Mapping[str, InputStart], goes_on_at: Mapping[str, int] | None = None) -> None:
        """Starts folding, once the scores of earlier owners are recalled.

        Args:
            starts: By topic, the offset at which a replay begins, and how far earlier owners had read.
            goes_on_at: By topic, the offset at which the restored state goes on; None for a replay.
        """
        self._seen_before = {topic: start.seen_before for topic, start in starts.items()}
        if goes_on_at is None:
            self.next_offsets = {topic: start.offset for topic, start in starts.items()}
            # Time starts at 0, because the broker's time is not known yet. Everything that depends on it waits.
            self._evaluator.pass_time(0)
        else:
            self.next_offsets = dict(goes_on_at)
        self.is_active = True

    def handed_over(self) -> None:
        """Stops folding and time, because the state is written for a successor that is not known yet."""
        self.is_active = False
        self.has_handed_over = True

    def stays(self) -> None:
        """Resumes, because the partition stays here. Records that came meanwhile are read again from `next_offsets`."""
        self.is_active = True
        self.has_handed_over = False

    def write_snapshot(self, into: TakesBytes) -> None:
        """Writes the engine's state; `is_being_snapshotted` must be set, so that records wait and no time passes."""
        self._evaluator.write_snapshot(into)

    def go_on_with(self, evaluator: Evaluates, unwritten: Sequence[Group] = ()) -> None:
        """Takes the state of an earlier owner, instead of a replay, and its unwritten decisions. Call it before `start`."""
        self._evaluator = evaluator
        for group in unwritten:
            self.outbox.put(group)
        self._redactor = evaluator.redactor
        self._replayed_counted = evaluator.replayed_elements

    def reading_starts_at(self, starts: Mapping[str, InputStart]) -> None:
        """Sets the start of reading, before `recall`, so that recalled calls without later records can be forgotten."""
        self._evaluator.reading_starts_at({self._source_by_topic[topic]: at.offset for topic, at in starts.items()})

    def recall(self, record: LedgerRecord) -> None:
        """Recalls a record that an earlier owner wrote."""
        self._evaluator.recall(record)

    def drop(self) -> None:
        """Stops folding and writing for good, because the partition is given up."""
        self.is_active = self.has_handed_over = False
        self.outbox.clear()
        self.merge.clear()

    def read_again(self) -> None:
        """Drops waiting records, because reading starts again at `next_offsets`."""
        for topic in [topic for topic in self.last_record_ms if self.merge.waits(topic)]:
            del self.last_record_ms[topic]
        self.merge.clear()

    def polled(self, runs: Sequence[Records]) -> None:
        """Notes the times of records before they are folded."""
        for run in runs:
            topic = run[0].topic
            # A producer's clock may step back, an offset does not.
            newest_ms = max(map(TIME_MS, run))
            self.last_record_ms[topic] = max(newest_ms, self.last_record_ms.get(topic, newest_ms))

    def fold(self, runs: Sequence[Records], known_ms: int | None, until_ms: int | None = None) -> None:
        """Folds one poll's records of this partition and the waiting ones. Between them, time passes as it did at the broker.

        Args:
            runs: The partition's records of each topic, in order.
            known_ms: Broker time up to which every input is known, these records included; None if one is not known.
            until_ms: Broker time up to which records may be folded, because an input lags; None if none lags.
        """
        if self.is_being_snapshotted:
            self.merge.put(runs)
            return
        receive, next_offsets = self._evaluator.receive, self.next_offsets
        journal, groups, is_noted = self.outbox.journal, 0, not self.outbox.journal.has_ended
        report = self._misread.take
        outbox, instruments, limits, sources = self.outbox, self._instruments, self._limits, self._source_by_topic
        refused: list[QuarantineRecord] = []
        if until_ms is None and self.stops is None and not self.merge.waiting_records:
            records = in_time_order(runs)
        else:
            self.merge.put(runs)
            records = self.merge.let_through(until_ms, self.stops)
        for record in records:
            if known_ms is not None:
                self.advance(min(record.timestamp, known_ms))
            arrival = admit(sources[record.topic], record, limits, self._redactor)
            if isinstance(arrival, Arrival):
                effects = receive(arrival)
                if effects:
                    groups = carry_out(effects, outbox, instruments, report)
            else:
                refused.append(arrival)
            if is_noted:
                journal.folded(record.topic, record.offset, groups)
                groups = 0
            next_offsets[record.topic] = record.offset + 1
        if refused:
            self.refuse(refused)

    def advance(self, now_ms: int) -> None:
        """Lets broker time pass, if the engine waits for that moment and the partition is not stopped."""
        if self.stops is not None or self.is_being_snapshotted:
            return
        wakeup_ms = self._evaluator.next_wakeup()
        if wakeup_ms is not None and wakeup_ms <= now_ms:
            groups = carry_out(self._evaluator.pass_time(now_ms), self.outbox, self._instruments)
            self.outbox.journal.time_passed(now_ms, groups)
        if now_ms > self.time_ms:
            self.time_ms = now_ms

    @property
    def closing_calls(self) -> int:
        """Calls that are over and not closed yet; 0 while the partition is stopped or its state is packed, because they then wait."""
        return self._evaluator.closing_calls if self.stops is None and not self.is_being_snapshotted else 0

    def close_some(self) -> None:
        """Closes calls that are over: as many as fit into a step."""
        groups = carry_out(self._evaluator.close_some(), self.outbox, self._instruments)
        self.outbox.journal.closed_some(groups)

    def records_lost(self) -> None:
        """Counts and logs the calls that are incomplete because records were deleted unread, each call once."""
        unfinished = frozenset(self._evaluator.unfinished_calls())
        incomplete = sorted(unfinished - self._incomplete)
        self._incomplete = unfinished
        if incomplete:
            self._instruments.inc("callgauge_calls_incomplete_total", (), len(incomplete))
            log.error(
                "calls_incomplete", partition=self.number, calls=len(incomplete),
                conversation_ids=incomplete[:MAX_INCOMPLETE_NAMED],
                what_happens_now="They go on and close without the lost records: their scores may lack turns and ends.",
                what_to_do="Leave these calls out where it matters; only their producers still have the lost records.",
            )  # fmt: skip

    def offsets_to_commit(self) -> dict[str, int]:
        """Returns by topic the offset at which a successor must start: the oldest open call's first record, or the next record."""
        watermarks = self._evaluator.low_watermarks()
        return {
            topic: min(offset, watermarks.get(self._source_by_topic[topic], offset))
            for topic, offset in self.next_offsets.items()
        }

    def count_events(self) -> None:
        """Moves the engine's own counts to the metrics, except while a snapshot of it is being written."""
        if self.is_being_snapshotted:
            return
        carry_out(self._evaluator.drain_counts(), self.outbox, self._instruments)
        replayed = self._evaluator.replayed_elements
        self._instruments.inc("callgauge_replayed_elements_total", (), replayed - self._replayed_counted)
        self._replayed_counted = replayed

    def refuse(self, refused: Sequence[QuarantineRecord]) -> None:
        """Writes refused records to quarantine, except those that an earlier owner wrote there."""
        seen_before = self._seen_before
        fresh = []
        for record in refused:
            if record.offset < seen_before.get(record.topic, 0):
                self._instruments.inc("callgauge_events_total", (self._source_by_topic[record.topic], "replayed"))
            else:
                fresh.append(record)
        self._report(fresh)

    def _report(self, refused: Sequence[QuarantineRecord]) -> None:
        for record in refused:
            self.outbox.put((record,))
            source = self._source_by_topic[record.topic]
            self._instruments.inc("callgauge_events_total", (source, "quarantined"))
            self._instruments.inc("callgauge_quarantined_total", (source, record.reason))
        for record in refused[:MAX_QUARANTINE_LINES]:
            log.warning(
                "record_quarantined", conversation_id=record.key or None, topic=record.topic, partition=record.partition,
                offset=record.offset, reason=record.reason.value, message=record.message(),
            )  # fmt: skip
        if len(refused) > MAX_QUARANTINE_LINES:
            log.warning("more_records_quarantined", partition=self.number, records=len(refused) - MAX_QUARANTINE_LINES)
