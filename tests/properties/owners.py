"""Owners of one partition after each other, with its inputs and its order between them, as the evaluator's shell is without a broker."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Effect, OpenCall, PublishScore, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import ChoosesGoals, GoalSet
from schemas.judging import JudgeRequest
from schemas.order import (
    Closed,
    Evicted,
    Fold,
    GoalsChosen,
    OrderDecoder,
    OrderEncoder,
    OrderStart,
    Step,
    TimePassed,
    order_value,
    start_in,
)
from schemas.scores.records import GoalsFact
from tests.properties.evaluation import LIMITS, RULES, EveryCall
from tests.support.fakes.engine_feed import opening_of, records_of


class Taken(NamedTuple):
    """A step as the order has it: the number of its record in the order, and the record that it folded, if it did."""

    place: int
    step: OrderStart | Step
    arrival: Arrival | None


class Topics:
    """A partition: its inputs by source, its order, and what was published. The judge `answers` what is asked."""

    def __init__(self, inputs: Mapping[InputSource, list[Arrival]]) -> None:
        self.inputs = inputs
        self.answers: Callable[[JudgeRequest], None] = lambda _: None
        self.order: list[tuple[list[tuple[str, bytes]], bytes]] = []
        self.published: list[Effect] = []

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

    def taken(self, since: int = 0) -> list[Taken]:
        """The order from one of its records on, which has a start."""
        at = {(arrival.source, arrival.offset): arrival for some in self.inputs.values() for arrival in some}
        decoder: OrderDecoder | None = None
        taken: list[Taken] = []
        for place, (headers, value) in enumerate(self.order[since:], since):
            start = start_in(headers)
            if start is not None:
                decoder = decoder or OrderDecoder(start)
                decoder.begin(start)
                taken.append(Taken(place, start, None))
            assert decoder is not None, "reading begins at a start"
            taken += [
                Taken(place, step, at[step.source, step.offset] if isinstance(step, Fold) else None)
                for step in decoder.steps(value)
            ]
        return taken

    def newest_start(self) -> int:
        """The last record of the order with a start that no call which is not closed opened before; 0 while there is none."""
        opened: dict[str, int] = {}
        starts = [0]
        for place, step, _ in self.taken():
            if isinstance(step, OrderStart):
                starts.append(place)
            elif isinstance(step, Closed):
                del opened[step.conversation_id]
            elif isinstance(step, Fold) and step.opened is not None:
                opened[step.opened] = place
        return max(place for place in starts if place <= min(opened.values(), default=len(self.order)))


@dataclass(frozen=True)
class Settings:
    """Settings that all owners share, and one that differs: the goals in their version of the files."""

    limits: Limits = LIMITS
    rules: GoalRules = RULES
    goals_of: Callable[[str], ChoosesGoals] = lambda _: EveryCall()

    def evaluator(self, goals: ChosenGoals) -> PartitionEvaluator:
        """One that has seen nothing; how far time has come is not known to it, so that all that depends on it waits."""
        evaluator = PartitionEvaluator(self.limits, "test", goals, writes_transcripts=True)
        evaluator.pass_time(0)
        return evaluator


class _Reached(NamedTuple):
    """By input the offset after the last folded record, and the broker time that has passed."""

    positions: Mapping[InputSource, int]
    time_ms: int


class _Decision(NamedTuple):
    """Decision of one step, all steps since the decision before it, and the progress of the owner before and after them."""

    effects: Sequence[Effect]
    steps: bytes
    before: _Reached
    after: _Reached


class Owner:
    """One owner of the partition, from its takeover to its end. It writes its decisions whole, in order, and with their steps."""

    def __init__(self, topics: Topics, settings: Settings, version: str = "1", since: int = 0) -> None:
        """Takes the steps of the owners before it again, from a record of the order on that has a start."""
        self._topics = topics
        self._version = version
        self._goals = ChosenGoals(settings.goals_of(version), settings.rules)
        self.evaluator = settings.evaluator(self._goals)
        time_ms = self._take_again(topics.taken(since))
        self._goals.logged = None
        self._order = OrderEncoder(_positions(topics.taken()), time_ms)
        self._decisions: list[_Decision] = []
        self._before = self._reached()
        self._has_written = False

    @property
    def unread(self) -> list[Arrival]:
        """The next record of each input that has one."""
        positions = self._order.positions
        rests = [
            [arrival for arrival in some if arrival.offset >= positions[source]]
            for source, some in self._topics.inputs.items()
        ]
        return [rest[0] for rest in rests if rest]

    def fold(self, arrival: Arrival) -> None:
        """Folds the next record of an input."""
        effects = self.evaluator.receive(arrival)
        opening = opening_of(effects)
        if opening is not None and opening.evicted is not None:
            self._order.evict(opening.evicted)
        self._note_goals(effects)
        self._order.fold(arrival.source, arrival.offset, None if opening is None else arrival.conversation_id)
        self._decide(effects)

    def pass_time(self, now_ms: int) -> None:
        """Lets broker time pass."""
        effects = self.evaluator.pass_time(now_ms)
        self._note_goals(effects)
        self._order.pass_time(now_ms)
        self._decide(effects)

    def close_some(self) -> None:
        """Takes a closing step."""
        self._decide(self.evaluator.close_some())

    def write(self, decisions: int | None = None, *, starts: bool = False) -> None:
        """One transaction with the next decisions; None for all. The first of an owner has a start, and others may have one."""
        ready, self._decisions = self._decisions[:decisions], self._decisions[len(self._decisions[:decisions]) :]
        if not ready:
            return
        headers = []
        if starts or not self._has_written:
            positions, time_ms = ready[0].before
            headers.append(OrderStart(version=self._version, positions=dict(positions), time_ms=time_ms).header())
        self._has_written = True
        self._topics.order.append((headers, order_value(b"".join(each.steps for each in ready))))
        for effect in [effect for each in ready for effect in each.effects]:
            self._topics.published.append(effect)
            if isinstance(effect, RequestVerdict):
                self._topics.answers(effect.request)

    def write_steps(self) -> None:
        """Lets steps that decided nothing be written too."""
        self._put([])

    def to_the_end(self) -> None:
        """Reads everything, lets every call end, and writes everything."""
        for _ in range(1_000):
            for arrival in self.unread:
                self.fold(arrival)
            if not self.unread and (wakeup_ms := self.evaluator.next_wakeup()) is not None:
                self.pass_time(wakeup_ms)
            self.close_some()
            self.write()
            if not self.unread and not self.evaluator.open_calls:
                return
        raise AssertionError("calls do not end")

    def _note_goals(self, effects: Sequence[Effect]) -> None:
        for record in records_of(effects):
            if isinstance(record, GoalsFact):
                self._order.choose_goals(record.conversation_id, record.goal_set.id, record.digest)

    def _decide(self, effects: Sequence[Effect]) -> None:
        published = [effect for effect in effects if isinstance(effect, PublishScore | RequestVerdict | CloseCall)]
        for effect in published:
            if isinstance(effect, CloseCall):
                self._order.close(effect.conversation_id)
        if published:
            self._put(published)

    def _put(self, effects: Sequence[Effect]) -> None:
        after = self._reached()
        self._decisions.append(_Decision(effects, self._order.take(), self._before, after))
        self._before = after

    def _reached(self) -> _Reached:
        return _Reached(dict(self._order.positions), self._order.time_ms)

    def _take_again(self, taken: Sequence[Taken]) -> int:
        """Folds the records of the calls that the order does not close. Returns the latest broker time that has passed."""
        closings = Counter(each.step.conversation_id for each in taken if isinstance(each.step, Closed))
        facts = [record for record in records_of(self._topics.published) if isinstance(record, GoalsFact)]
        goal_sets = {fact.digest: fact.goal_set for fact in facts}
        lives: set[str] = set()
        evicted: str | None = None
        time_ms = 0
        chosen: dict[str, GoalSet] = {}
        for place, (_, step, arrival) in enumerate(taken):
            if isinstance(step, Fold | TimePassed):
                self._goals.logged, chosen = chosen, {}
            match step:
                case OrderStart() if place == 0:
                    time_ms = step.time_ms
                    self.evaluator.pass_time(time_ms)
                case TimePassed(now_ms):
                    time_ms = max(time_ms, now_ms)
                    self.evaluator.pass_time(now_ms)
                case Evicted(conversation_id):
                    evicted = conversation_id
                case GoalsChosen(conversation_id, _, digest):
                    chosen[conversation_id] = goal_sets[digest]
                case Closed(conversation_id):
                    closings[conversation_id] -= 1
                    self.evaluator.has_closed(conversation_id)
                case Fold(_, _, opened) if arrival is not None:
                    if opened is not None and not closings[opened]:
                        lives.add(opened)
                    if arrival.conversation_id in lives:
                        self.evaluator.receive_again(arrival, None if opened is None else OpenCall(evicted))
                    evicted = None
                case _:
                    pass
        return time_ms


def undisturbed(topics: Topics, settings: Settings, *, obeys: bool = False) -> list[Effect]:
    """Effects of one owner that takes the steps of the order. It decides by itself which calls open and give way, unless it `obeys`."""
    goals = ChosenGoals(None, settings.rules)
    evaluator = settings.evaluator(goals)
    effects: list[Effect] = []
    evicted: str | None = None
    for _, step, arrival in topics.taken():
        match step:
            case OrderStart():
                goals.source = settings.goals_of(step.version)
            case TimePassed(now_ms):
                effects += evaluator.pass_time(now_ms)
            case Evicted(conversation_id):
                evicted = conversation_id
            case Closed(conversation_id):
                while conversation_id in evaluator.open_calls:
                    evaluator._go_on_closing(effects)
            case Fold(_, _, opened) if arrival is not None:
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
    return effects


def written_by_call(effects: Iterable[Effect]) -> dict[str, list[bytes]]:
    """By call: all that effects write, in order."""
    written: dict[str, list[bytes]] = {}
    for effect in effects:
        match effect:
            case PublishScore(record):
                written.setdefault(record.conversation_id, []).append(record.model_dump_json().encode())
            case RequestVerdict(request):
                written.setdefault(request.conversation_id, []).append(request.model_dump_json().encode())
            case CloseCall(conversation_id, records, transcript):
                closing = written.setdefault(conversation_id, [])
                closing += [transcript or b"", *(record.model_dump_json().encode() for record in records)]
            case _:
                pass
    return written


def _positions(taken: Iterable[Taken]) -> dict[InputSource, int]:
    return {each.step.source: each.step.offset + 1 for each in taken if isinstance(each.step, Fold)}
