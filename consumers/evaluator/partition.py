"""State of one partition number of the four inputs, as long as it is assigned to this process: every step is noted where it is taken."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, NotUnderstood, OpenCall, PublishScore
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.reading import TIME_MS, InputMerge, Records, in_time_order
from consumers.evaluator.recovery import UNPUBLISHED, CommitNote, PublishedCalls, Replay, Withheld
from consumers.evaluator.writer import Decision, Outlet, Trip, Written, carry_out
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.order import OrderEncoder, Renumbered
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import GoalsFact

# Counts records that are taken and not understood, and logs each kind of them once, with the remedy.

MAX_KINDS: Final = 256
"""Kinds that one process logs. A producer that makes up a new one for each record would fill the disk otherwise."""

log = structlog.get_logger()


class MisreadRecords:
    """The kinds that this process has met, over all of its partitions."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._logged: set[tuple[str, str]] = set()

    def take(self, report: NotUnderstood) -> None:
        """Counts a record that was not understood, and logs it if it is the first of its kind."""
        misread, source = report.misread, report.source.value
        self._instruments.inc("callgauge_misread_records_total", (source, misread.reason.value))
        kind = source, misread.what
        if kind in self._logged or len(self._logged) >= MAX_KINDS:
            return
        self._logged.add(kind)
        log.warning(
            "records_not_understood", source=source, seen=misread.what, conversation_id=report.conversation_id,
            what_happens_now="They are counted and do nothing, or less than they could. This kind is logged once.",
            what_to_do=misread.what_to_do,
        )  # fmt: skip


# State of one partition number of the four inputs, as long as it is assigned to this process.

MAX_QUARANTINE_LINES: Final = 5
"""Most log lines about refused records of one batch. A broken producer sends thousands, and the quarantine topic has them all."""
MAX_INCOMPLETE_NAMED: Final = 20
"""Most incomplete calls that one log line names. The metric counts all of them."""
MAX_PENDING_STEPS_BYTES: Final = 50_000
"""Steps that wait for a decision: minutes of a partition that decides nothing. Beyond it they are written without one."""


Offsets = dict[TopicPartition, OffsetAndMetadata]


class CatchingUp:
    """Silent folding by broker time of what the owner before had folded, because that one wrote no order.

    Attributes:
        until: By topic, the offset before which nothing is published.
        published: Its calls in `scores`. Records of those that closed are skipped; the others are published in a new generation,
            also those of which no record is left.
        is_cut: Whether records before the first one that is read are lost.
        withheld: Results of the open calls.
    """

    def __init__(self, until: Mapping[str, int], published: PublishedCalls, *, is_cut: bool = False) -> None:
        """Starts with nothing withheld."""
        self.until = until
        self.published = published
        self.is_cut = is_cut
        self.withheld = Withheld()


class Partition:
    """The engine's state of one partition number, and the way out of what it decides.

    It begins when the partition is assigned to this process and is dropped when the partition is given up. No method waits, so
    nothing else can run between a record and its effects. Every step of the engine is noted in the order.

    Attributes:
        number: The partition number.
        outlet: The way out of its decisions.
        outbox: Decisions to write, in order.
        writer_id: Id of the producer that may write it; None until it is claimed.
        is_active: Whether records are folded. Records that arrive while it is false are read again from `next_offsets`.
        next_offsets: By topic, the offset after the last folded record.
        last_record_ms: By topic, the latest broker timestamp of the records that were read.
        merge: Records that were read and wait for an input that lags.
        time_ms: Broker time up to which the state has advanced; 0 before the first advance.
        is_recovering: Whether it still folds what a former owner had folded. Until then nothing is committed, and no time passes.
        evaluator: The engine's state.
        goals: The goals that its calls choose from.
    """

    def __init__(
        self,
        outlet: Outlet,
        evaluator: PartitionEvaluator,
        limits: Limits,
        source_by_topic: Mapping[str, InputSource],
        instruments: Instruments,
        redactor: Redactor | None = None,
        misread: MisreadRecords | None = None,
        goals: ChosenGoals | None = None,
        version: str = "test",
    ) -> None:
        self.number = outlet.number
        self.outlet = outlet
        self.outbox = outlet.outbox
        self.writer_id: str | None = None
        self.is_active = False
        self.next_offsets: dict[str, int] = {}
        self.last_record_ms: dict[str, int] = {}
        self.merge = InputMerge()
        self.time_ms = 0
        self.is_recovering = False
        self.evaluator = evaluator
        self._limits = limits
        self._source_by_topic = source_by_topic
        self._topic_by_source = {source: topic for topic, source in source_by_topic.items()}
        self._instruments = instruments
        self._redactor = redactor or Redactor()
        self._misread = misread or MisreadRecords(instruments)
        self.goals = goals or ChosenGoals()
        self._own_version = self._version = version
        self._order = OrderEncoder({}, 0)
        self._written_to: tuple[dict[InputSource, int], int] = ({}, 0)
        self._replay: Replay | None = None
        self._catching_up: CatchingUp | None = None
        self._read_to: dict[str, int] = {}
        self._decoded: dict[
            tuple[str, int], Arrival | QuarantineRecord
        ] = {}  # of records that were polled and not folded
        self._polled_ms = 0
        self._replayed_counted = 0
        self._incomplete: frozenset[str] = frozenset()
        self._due: tuple[Offsets, int] | None = None

    @property
    def open_calls(self) -> Sequence[str]:
        """Ids of the calls that have not closed yet."""
        return self.evaluator.open_calls

    @property
    def has_more_to_replay(self) -> bool:
        """Whether the next steps of a replay can be taken now."""
        return self._replay is not None and self._replay.can_go_on

    def start(
        self, offsets: Mapping[str, int], replay: Replay | None = None, catching_up: CatchingUp | None = None
    ) -> None:
        """Starts folding.

        Args:
            offsets: By topic, the offset of the first record to fold.
            replay: The order of former owners, which is folded first.
            catching_up: What comes first if they wrote none.
        """
        self.next_offsets = dict(offsets)
        self._begin_order(0)
        self.evaluator.pass_time(0)  # the broker's time is not known yet; everything that depends on it waits
        self._replay = replay
        self._catching_up = catching_up
        self.is_recovering = replay is not None or catching_up is not None
        if catching_up is not None:
            self._version = UNPUBLISHED
            for conversation_id in catching_up.published.closed:
                self.evaluator.has_closed(conversation_id)
        self.is_active = True
        self._end_catching_up()

    def drop(self) -> None:
        """Stops folding and writing for good, because the partition is given up."""
        self.is_active = False
        self.outbox.clear()
        self.merge.clear()

    def read_again(self) -> None:
        """Drops waiting records, because reading starts again at `next_offsets`."""
        for topic in [topic for topic in self.last_record_ms if self.waits(topic)]:
            del self.last_record_ms[topic]
        self.merge.clear()
        self._read_to.clear()
        if self._replay is not None:
            self._replay.clear()

    def read_to(self, topic: str, position: int) -> None:
        """Notes the position of the client, while it is recovering: what is not there before it will not come."""
        self._read_to[topic] = position

    def waits(self, topic: str) -> bool:
        """Whether a record of this topic was read and not folded."""
        return self.merge.waits(topic) or (
            self._replay is not None and self._replay.waits(self._source_by_topic[topic])
        )

    def is_full(self, topic: str, *, is_paused: bool) -> bool:
        """Whether reading of this topic should pause, or stay paused."""
        if self._replay is not None:
            return self._replay.is_full(self._source_by_topic[topic], is_paused=is_paused)
        return self.merge.is_full(topic, is_paused=is_paused)

    def polled(self, runs: Sequence[Records]) -> None:
        """Notes the times of records before they are folded, and that of their poll."""
        self._polled_ms = wall_clock_ms()
        for run in runs:
            topic = run[0].topic
            # A producer's clock may step back, an offset does not.
            newest_ms = max(map(TIME_MS, run))
            self.last_record_ms[topic] = max(newest_ms, self.last_record_ms.get(topic, newest_ms))

    def decode(self, record: Any) -> None:
        """Decodes a record that is folded later: of a large one this takes longest, and others may have a turn before the next."""
        if self._replay is None:
            source = self._source_by_topic[record.topic]
            self._decoded[record.topic, record.offset] = admit(source, record, self._limits, self._redactor)

    def fold(self, runs: Sequence[Records], known_ms: int | None, until_ms: int | None = None) -> None:
        """Folds one poll's records of this partition and the waiting ones. Between them, time passes as it did at the broker.

        Args:
            runs: The partition's records of each topic, in order.
            known_ms: Broker time up to which every input is known, these records included; None if one is not known.
            until_ms: Broker time up to which records may be folded, because an input lags; None if none lags.
        """
        if self._replay is not None:
            self._go_on_replaying(self._replay, runs)
            return
        catching_up = self._catching_up
        if until_ms is None and catching_up is None and not self.merge.waiting_records:
            records = in_time_order(runs)
        else:
            self.merge.put(runs)
            records = self.merge.let_through(until_ms, None if catching_up is None else catching_up.until)
        receive, next_offsets, order = self.evaluator.receive, self.next_offsets, self._order
        limits, sources, redactor, decoded = self._limits, self._source_by_topic, self._redactor, self._decoded
        quarantined = 0
        for record in records:
            if known_ms is not None:
                self._pass_time(min(record.timestamp, known_ms))
            source = sources[record.topic]
            next_offsets[record.topic] = record.offset + 1
            if (
                catching_up is not None
                and (record.key or b"").decode("utf-8", "replace") in catching_up.published.closed
            ):
                order.fold(source, record.offset)
                self._instruments.inc("callgauge_events_total", (source, "replayed"))
                continue
            arrival = decoded.pop((record.topic, record.offset), None) or admit(source, record, limits, redactor)
            if isinstance(arrival, Arrival):
                if effects := receive(arrival):
                    self._decide(effects, arrival)
                else:
                    order.fold(source, record.offset)
            else:
                order.fold(source, record.offset)
                if catching_up is None:
                    quarantined += 1
                    self._quarantine(arrival, is_logged=quarantined <= MAX_QUARANTINE_LINES)
        if len(order) > MAX_PENDING_STEPS_BYTES:
            self._put(())
        if quarantined > MAX_QUARANTINE_LINES:
            log.warning("more_records_quarantined", partition=self.number, records=quarantined - MAX_QUARANTINE_LINES)
        if catching_up is not None:
            self._end_catching_up()

    def advance(self, now_ms: int) -> None:
        """Lets broker time pass, unless the partition is recovering."""
        if not self.is_recovering:
            self._pass_time(now_ms)

    @property
    def closing_calls(self) -> int:
        """Calls that are over and not closed yet; 0 while the partition is recovering, because they then wait."""
        return 0 if self.is_recovering else self.evaluator.closing_calls

    def close_some(self) -> None:
        """Closes calls that are over: as many as fit into a step."""
        if decided := self._carry_out(self.evaluator.close_some()):
            self._put(decided)

    def write_steps(self) -> None:
        """Has all steps written, although some decided nothing, so that a successor counts none of their events again."""
        if not self.is_recovering and len(self._order):
            self._put(())

    def records_lost(self, without_any: Iterable[str] = ()) -> None:
        """Counts and logs the calls that are incomplete because records were deleted unread, each call once.

        Args:
            without_any: Calls that may have lost every record, so that they are not open here.
        """
        unfinished = frozenset(self.evaluator.open_calls).union(without_any)
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
        watermarks = self.evaluator.low_watermarks()
        return {
            topic: min(offset, watermarks.get(self._source_by_topic[topic], offset))
            for topic, offset in self.next_offsets.items()
        }

    def due_offsets(self) -> Offsets:
        """Returns offsets to commit: those of an earlier moment whose decisions are all written by now.

        Call it again and again. A successor that starts at them, and at the place in `order` that their note names, has every
        record of every open call.
        """
        if self._due is None:
            self._due = self._offsets(), self.outbox.put_so_far
        offsets, put = self._due
        if not self.outbox.has_written(put):
            return {}
        self._due = None
        return offsets

    def _offsets(self) -> Offsets:
        if not self.is_active or self.is_recovering:
            return {}
        watermarks = self.offsets_to_commit()
        order = self.outlet.starts.offset_for({self._source_by_topic[topic]: at for topic, at in watermarks.items()})
        return {
            TopicPartition(topic, self.number): OffsetAndMetadata(
                offset, CommitNote(order, read=self.next_offsets[topic], writer=self.writer_id).text()
            )
            for topic, offset in watermarks.items()
        }

    def count_events(self) -> None:
        """Moves the engine's own counts to the metrics. What is replayed was counted by a former owner."""
        if self.is_recovering:
            return
        for count in self.evaluator.drain_counts():
            self._instruments.inc(count.metric, count.labels, count.by)
        replayed = self.evaluator.replayed_elements
        self._instruments.inc("callgauge_replayed_elements_total", (), replayed - self._replayed_counted)
        self._replayed_counted = replayed

    def _pass_time(self, now_ms: int) -> None:
        wakeup_ms = self.evaluator.next_wakeup()
        if wakeup_ms is not None and wakeup_ms <= now_ms:
            decided = self._carry_out(self.evaluator.pass_time(now_ms))
            self._order.pass_time(now_ms)
            if decided:
                self._put(decided)
        if now_ms > self.time_ms:
            self.time_ms = now_ms

    def _decide(self, effects: Sequence[Effect], arrival: Arrival) -> None:
        opening = effects[0] if type(effects[0]) is OpenCall else None
        decided = self._carry_out(effects)
        if opening is not None and opening.evicted is not None:
            self._order.evict(opening.evicted)
        self._order.fold(arrival.source, arrival.offset, None if opening is None else arrival.conversation_id)
        if decided:
            self._put(decided, Trip(arrival.broker_time_ms, self._polled_ms, wall_clock_ms()))

    def _carry_out(self, effects: Sequence[Effect]) -> Sequence[Written]:
        """Returns the records to write. Call it before the step is noted, because the goal sets that it gave come before it."""
        if self._catching_up is None:
            return carry_out(effects, self._order, self._instruments, self._misread.take)
        self._catching_up.withheld.take(effects)
        for effect in effects:
            if isinstance(effect, PublishScore) and isinstance(effect.record, GoalsFact):
                self._order.choose_goals(effect.record.conversation_id, effect.record.goal_set.id, effect.record.digest)
        return ()

    def _put(self, records: Sequence[Written], trip: Trip | None = None) -> None:
        order = self._order
        self.outbox.put(Decision(tuple(records), order.take(), self._version, *self._written_to, trip))
        self._written_to = dict(order.positions), order.time_ms

    def _quarantine(self, record: QuarantineRecord, *, is_logged: bool) -> None:
        self._put((record,))
        source = self._source_by_topic[record.topic]
        self._instruments.inc("callgauge_events_total", (source, "quarantined"))
        self._instruments.inc("callgauge_quarantined_total", (source, record.reason))
        if is_logged:
            log.warning(
                "record_quarantined", conversation_id=record.key or None, topic=record.topic, partition=record.partition,
                offset=record.offset, reason=record.reason.value, message=record.message(),
            )  # fmt: skip

    # Recovery.

    def _go_on_replaying(self, replay: Replay, runs: Sequence[Records]) -> None:
        for run in runs:
            replay.put(self._source_by_topic[run[0].topic], run)
        replay.read_to = {self._source_by_topic[topic]: position for topic, position in self._read_to.items()}
        is_done = replay.go_on()
        for source, position in replay.positions.items():
            topic = self._topic_by_source[source]
            self.next_offsets[topic] = max(position, self.next_offsets[topic])
        if is_done:
            self._replay = None
            self.goals.logged = None
            self._begin_order(replay.time_ms)
            for source, number in replay.replayed.items():
                self._instruments.inc("callgauge_events_total", (source, "replayed"), number)
            again = replay.of_other_versions()
            self._go_on_live(replay.withheld, again)
            self.merge.put([records for _, records in replay.rest()])
            log.info(
                "partition_replayed", partition=self.number, records=sum(replay.replayed.values()), lost=replay.lost,
                open_calls=len(self.open_calls), published_again=len(again),
            )  # fmt: skip
            if replay.lost:
                self.records_lost(each.conversation_id for each in again)

    def _end_catching_up(self) -> None:
        catching_up = self._catching_up
        if catching_up is not None and all(
            max(self.next_offsets[topic], self.merge.first_offset(topic)) >= offset
            or (not self.merge.waits(topic) and self._read_to.get(topic, 0) >= offset)
            for topic, offset in catching_up.until.items()
        ):
            self._catching_up = None
            published = catching_up.published
            again = dict.fromkeys([*self.open_calls, *published.open])
            has_all = not catching_up.is_cut
            self._go_on_live(catching_up.withheld, [Renumbered(each, published.generation, has_all) for each in again])

    def _go_on_live(self, withheld: Withheld, again: Sequence[Renumbered]) -> None:
        """Publishes the values of these calls once again, with these revisions. From now on every decision is published."""
        self.evaluator.drain_counts()
        self._replayed_counted = self.evaluator.replayed_elements
        if len(self._order):  # steps whose results are not published
            self._put(())
        self._version = self._own_version
        self.is_recovering = False
        for step in again:
            conversation_id, least_revision, counts = step
            self.evaluator.renumber(conversation_id, least_revision, counts=counts)
            self._order.renumber(step)
            self._put(withheld.of(conversation_id, least_revision))

    def _begin_order(self, time_ms: int) -> None:
        positions = {self._source_by_topic[topic]: offset for topic, offset in self.next_offsets.items()}
        self._order = OrderEncoder(positions, time_ms)
        self._written_to = dict(self._order.positions), time_ms

    def admitted(self, source: InputSource, record: Any) -> object:
        """Decodes a record that a former owner folded."""
        return admit(source, record, self._limits, self._redactor)
