"""Owners of one partition after each other, as the evaluator has them, but without a broker: its real state and its real replay."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.structs import ConsumerRecord
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import CloseCall, Effect, OpenCall, PublishScore, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import OrderLog, PlacedStart, Replay
from consumers.evaluator.writer import Written
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER, TYPE_HEADER
from schemas.goals.goal_set import ChoosesGoals
from schemas.judging import JudgeRequest
from schemas.order import Closed, Evicted, Fold, OrderStart, Positions, TimePassed, order_value
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import AnyScoreRecord, GoalsFact
from schemas.topics import ORDER_TOPIC, SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from schemas.transcript import Transcript
from tests.properties.evaluation import RULES, EveryCall
from tests.support.fakes.engine_feed import T0_MS, opening_of
from tests.support.fakes.evaluator_fakes import outlet_of

LIMITS = Limits(max_event_time_skew_ms=0)
"""Events of these calls have times of their own, far from those of the broker."""
_INSTRUMENTS = Instruments(CollectorRegistry(), ["evaluator"])


def record_of(arrival: Arrival) -> Any:
    """The record that the arrival was. The judge of these laws writes events alone."""
    value, envelope = arrival.value or arrival.event.model_dump_json().encode(), arrival.envelope
    named = (
        {} if envelope is None else {ID_HEADER: envelope.id, SOURCE_HEADER: envelope.source, TYPE_HEADER: envelope.type}
    )
    headers = tuple((name, text.encode()) for name, text in named.items() if text is not None)
    key = arrival.conversation_id.encode()
    return _record(TOPIC_BY_SOURCE[arrival.source], arrival.offset, arrival.broker_time_ms, key, value, headers)


def _record(topic: str, offset: int, at_ms: int, key: bytes | None, value: bytes, headers: Any) -> Any:
    return ConsumerRecord(topic, 0, offset, at_ms, 1, key, value, None, 0, len(value), headers)


class Topics:
    """A partition: its inputs by source, its order, and what was published. The judge `answers` what is asked.

    `firsts` are the offsets at which the inputs begin, and `goal_files` the versions of the goal files, one for each start.
    """

    def __init__(self, inputs: Mapping[InputSource, list[Arrival]]) -> None:
        self.inputs = inputs
        self.firsts = dict.fromkeys(InputSource, 0)
        self.answers: Callable[[JudgeRequest], None] = lambda _: None
        self.order: list[Any] = []
        self.goal_files: list[str] = []
        self.published: list[Written] = []

    @classmethod
    def of(cls, arrivals: Iterable[Arrival]) -> "Topics":
        """The arrivals of each input in their order."""
        inputs: dict[InputSource, list[Arrival]] = {source: [] for source in InputSource}
        for arrival in arrivals:
            inputs[arrival.source].append(arrival)
        return cls(inputs)

    def __repr__(self) -> str:
        arrivals = [arrival for some in self.inputs.values() for arrival in some]
        return "\n".join(
            f"{each.source.value}@{each.offset} {each.conversation_id} at {each.broker_time_ms} {each.value!r}"
            for each in arrivals
        )

    @property
    def scores(self) -> list[AnyScoreRecord]:
        """What was published to `scores`."""
        return [each for each in self.published if not isinstance(each, QuarantineRecord | Transcript | JudgeRequest)]

    def since(self, input_: InputSource, offset: int) -> list[Arrival]:
        """The arrivals of an input from an offset on."""
        arrivals = self.inputs[input_]
        return arrivals[bisect_left(arrivals, offset, key=lambda each: each.offset) :]

    def log(self, since: int = 0) -> OrderLog:
        """The order from one of its records on."""
        log = OrderLog()
        for record in self.order[since:]:
            log.take(record)
        assert log.fault is None
        return log

    def newest_start(self) -> PlacedStart | None:
        """The last start of the order that no call which is not closed opened before; None while there is none."""
        log, opened, place = self.log(), dict[str, int](), -1
        for step in log.steps():
            if isinstance(step, OrderStart):
                place += 1
            elif isinstance(step, Closed):
                del opened[step.conversation_id]
            elif isinstance(step, Fold) and step.opened is not None:
                opened[step.opened] = place
        return log.starts[min(opened.values(), default=place)] if log.starts else None


@dataclass(frozen=True)
class Settings:
    """Settings that all owners share, and one that differs: the goals in their version of the files."""

    limits: Limits = LIMITS
    rules: GoalRules = RULES
    goals_of: Callable[[str], ChoosesGoals] = lambda _: EveryCall()

    def evaluator(self, goals: ChosenGoals) -> PartitionEvaluator:
        """One that has seen nothing."""
        return PartitionEvaluator(self.limits, "test", goals, writes_transcripts=True)


Acts = Sequence[tuple[str, int, Any]]
"""What an owner does, with two numbers that say how."""


def acts(pauses_ms: Sequence[int] = (0, 0, 1, 1_000, 20_000, 10**7, -30_000)) -> st.SearchStrategy[Acts]:
    """Acts of an owner. Time passes as far as the hindmost or the foremost input is read, and such a pause."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("fold"), st.integers(0, 3), st.sampled_from([1, 2, 8])),
            st.tuples(st.just("fold in time"), st.integers(0, 3), st.sampled_from(pauses_ms)),
            st.tuples(st.just("pass"), st.integers(0, 1), st.sampled_from(pauses_ms)),
            st.tuples(st.just("close"), st.just(0), st.just(0)),
            st.tuples(st.just("write"), st.integers(0, 1), st.sampled_from([1, 2, 5, None])),
            st.tuples(st.just("note"), st.just(0), st.just(0)),
        ),
        max_size=40,
    )


class Owner:
    """The evaluator's state of a partition, from its takeover to its end. What it has not written then is lost."""

    def __init__(
        self,
        topics: Topics,
        settings: Settings,
        goal_files: str = "1",
        *,
        version: str = "test",
        since: PlacedStart | None = None,
        committed: Positions | None = None,
    ) -> None:
        """Takes the steps of the owners before it again, from a start in the order on and from committed offsets of the inputs."""
        self._topics = topics
        self._goal_files = goal_files
        self._has_written = False
        log = topics.log(since.offset if since else 0)
        goals = ChosenGoals(settings.goals_of(goal_files), settings.rules)
        self.evaluator = settings.evaluator(goals)
        self.partition = Partition(
            outlet_of(), self.evaluator, settings.limits, SOURCE_BY_TOPIC, _INSTRUMENTS,
            goals=goals, version=version,
        )  # fmt: skip
        folded = {source: log.positions.get(source, 0) for source in InputSource}
        starts = {**dict.fromkeys(InputSource, 0), **(committed or (since.positions if since else {}))}
        sets = {each.digest: each.goal_set for each in topics.scores if isinstance(each, GoalsFact)}
        replay = Replay(
            log, starts, folded, version, self.evaluator, self.partition.admitted, goals, sets, topics.firsts
        )
        self.partition.start(
            {TOPIC_BY_SOURCE[source]: max(at, topics.firsts[source]) for source, at in starts.items()}, replay
        )
        for source, end in folded.items():
            self.partition.read_to(TOPIC_BY_SOURCE[source], end)
        runs = [
            [record_of(each) for each in topics.since(source, starts[source]) if each.offset < end]
            for source, end in folded.items()
        ]
        self.partition.fold([run for run in runs if run], None)
        while self.partition.is_recovering:
            self.partition.fold([], None)
        self.lost = replay.lost

    @property
    def unread(self) -> list[Arrival]:
        """The next record of each input that has one."""
        offsets = self.partition.next_offsets
        rests = [self._topics.since(source, offsets[TOPIC_BY_SOURCE[source]]) for source in self._topics.inputs]
        return [rest[0] for rest in rests if rest]

    def fold(self, arrival: Arrival, known_ms: int | None = None) -> None:
        """Folds the next record of an input; before it, time passes as far as all inputs are known."""
        self.partition.fold([[record_of(arrival)]], known_ms)

    def write(self, most: int | None = None, *, starts: bool = True) -> None:
        """One transaction with the next decisions, None for all. The first of an owner has a start, and others may have one."""
        outbox, topics = self.partition.outbox, self._topics
        decisions = outbox.first()[:most]
        if not decisions:
            return
        outbox.written(len(decisions))
        headers: list[tuple[str, bytes]] = []
        if starts or not self._has_written:
            first = decisions[0]
            start = OrderStart(version=first.version, positions=dict(first.positions), time_ms=first.time_ms)
            headers = [start.header()]
            topics.goal_files.append(self._goal_files)
            self._has_written = True
        steps = order_value(b"".join(each.steps for each in decisions))
        topics.order.append(_record(ORDER_TOPIC, len(topics.order), T0_MS, None, steps, headers))
        for record in (record for each in decisions for record in each.records):
            topics.published.append(record)
            if isinstance(record, JudgeRequest):
                topics.answers(record)
        if most is None:
            self.write(starts=False)

    def live(self, acts: Acts) -> None:
        """Reads the inputs in any order, with time passing or not, and writes some of what it decides."""
        read_ms: dict[InputSource, int] = {}
        for what, which, number in acts:
            times_ms = read_ms.values() or [T0_MS]
            if what == "fold" or what == "fold in time":
                for _ in range(number if what == "fold" else 1):
                    if unread := self.unread:
                        arrival = unread[which % len(unread)]
                        read_ms[arrival.source] = arrival.broker_time_ms
                        self.fold(arrival, None if what == "fold" else max(read_ms.values()) + number)
            elif what == "pass":
                self.partition.advance((max(times_ms) if which else min(times_ms)) + number)
            elif what == "close":
                self.partition.close_some()
            elif what == "write":
                self.write(number, starts=bool(which))
            else:
                self.partition.write_steps()

    def committed(self) -> dict[InputSource, int]:
        """What it may commit once everything that it decided is written."""
        self.write()
        return {SOURCE_BY_TOPIC[topic]: at for topic, at in self.partition.offsets_to_commit().items()}

    def to_the_end(self) -> None:
        """Reads everything, lets every call end, and writes everything."""
        for _ in range(1_000):
            for arrival in self.unread:
                self.fold(arrival)
            if not self.unread and (wakeup_ms := self.evaluator.next_wakeup()) is not None:
                self.partition.advance(wakeup_ms)
            self.partition.close_some()
            self.write()
            if not self.unread and not self.evaluator.open_calls:
                self.partition.write_steps()
                self.write()
                return
        raise AssertionError("calls do not end")


def undisturbed(topics: Topics, settings: Settings, *, obeys: bool = False) -> list[Written]:
    """What one owner writes that takes the steps of the order. It decides by itself which calls open and give way, unless it `obeys`."""
    records = {(each.source, each.offset): record_of(each) for some in topics.inputs.values() for each in some}
    return in_order(topics.log(), records, settings, topics.goal_files, obeys=obeys)


def in_order(
    log: OrderLog,
    records: Mapping[tuple[InputSource, int], Any],
    settings: Settings,
    goal_files: Iterable[str],
    *,
    obeys: bool = False,
) -> list[Written]:
    """The same of the records of the inputs, and of the versions of the goal files, one for each start."""
    versions = iter(goal_files)
    goals = ChosenGoals(None, settings.rules)
    evaluator = settings.evaluator(goals)
    evaluator.pass_time(0)
    effects: list[Effect] = []
    evicted: str | None = None
    for step in log.steps():
        match step:
            case OrderStart():
                goals.source = settings.goals_of(next(versions))
            case TimePassed(now_ms):
                effects += evaluator.pass_time(now_ms)
            case Evicted(conversation_id):
                evicted = conversation_id
            case Closed(conversation_id):
                while conversation_id in evaluator.open_calls:
                    evaluator._go_on_closing(effects)
            case Fold(source, offset, opened):
                arrival = admit(source, records[source, offset], settings.limits)
                assert isinstance(arrival, Arrival)
                opening = None if opened is None else OpenCall(evicted)
                evicted = None
                if not obeys:
                    out = evaluator.receive(arrival)
                    assert opening_of(out) == opening, "the owners decided as one owner does"
                    effects += out
                elif opened is not None or arrival.conversation_id in evaluator.open_calls:
                    effects += evaluator.receive_again(arrival, opening)
            case _:
                pass
    return _written(effects)


def _written(effects: Iterable[Effect]) -> list[Written]:
    written: list[Written] = []
    for effect in effects:
        match effect:
            case PublishScore(record):
                written.append(record)
            case RequestVerdict(request):
                written.append(request)
            case CloseCall(conversation_id, records, transcript):
                written += [] if transcript is None else [Transcript(conversation_id, transcript)]
                written += records
            case _:
                pass
    return written


def by_call(written: Iterable[Written]) -> dict[str, list[bytes]]:
    """All that is written of each call, in order."""
    calls: dict[str, list[bytes]] = {}
    for each in written:
        assert not isinstance(each, QuarantineRecord), each
        value = each.value if isinstance(each, Transcript) else each.model_dump_json().encode()
        calls.setdefault(each.conversation_id, []).append(value)
    return calls
