"""Verdicts and restarts: after a crash at any step of asking, answering or writing, the final scores are the same.

The judge of these tests always says the same about the same question, so that only the engine can make a difference.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules
from schemas.closed_sets import InputSource, JudgeKind, UnjudgedReason
from schemas.judging import JudgeRequest, Unjudged
from tests.properties.evaluation import LIMITS, RULES, EveryCall, assert_counted, end_of, final_state, final_values
from tests.properties.owners import Owner, Settings, Topics, by_call, undisturbed
from tests.properties.partitions import opinion, verdict_on
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS

STEP_MS = 25
# Not faithfulness: the lowest rating of all versions of a call that were judged depends on which were.
KINDS = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY, JudgeKind.CONVERSATION_PROGRESSION)
JUDGED_RULES = GoalRules(
    **{**RULES.model_dump(), "asks_judge": True, "verdict_deadline_ms": 10**9, "text_judges": KINDS}
)


SETTINGS = Settings(rules=JUDGED_RULES)


class Log:
    """A call's records, and the verdicts on the questions asked while they were read."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = list(arrivals)
        self._answered: dict[str, Arrival] = {}
        self._next_offset = 0

    def answer(self, request: JudgeRequest, broker_ms: int) -> Arrival:
        """The judge's answer, on its topic; the earlier one, if the question was asked before."""
        known = self._answered.get(request.request_id)
        if known is not None:
            return known
        mind = random.Random(request.request_id).random()  # noqa: S311  # nothing secret
        result = Unjudged(reason=UnjudgedReason.UNAVAILABLE) if mind < 0.2 else opinion(request, mind)
        self._answered[request.request_id] = self.append(verdict_on(request, result, broker_ms, 0))
        return self.arrivals[-1]

    def append(self, arrival: Arrival) -> Arrival:
        """One more record; offsets on the judge's topic are those of the log as it becomes."""
        if arrival.source is InputSource.JUDGE:
            arrival = replace(arrival, offset=self._next_offset)
            self._next_offset += 1
        self.arrivals.append(arrival)
        return arrival

    def read_on(self, evaluator: PartitionEvaluator, effects: list[Effect], broker_ms: int) -> None:
        """Answers all questions among the effects, and the questions that follow from the answers."""
        place = 0
        while place < len(effects):
            effect = effects[place]
            place += 1
            if isinstance(effect, RequestVerdict):
                effects += evaluator.receive(self.answer(effect.request, broker_ms))


def _in_peace(log: Log) -> list[Effect]:
    """One evaluator, and a judge that answers at once; the answers get their places in the log."""
    evaluator = PartitionEvaluator(LIMITS, "test", ChosenGoals(EveryCall(), JUDGED_RULES))
    effects: list[Effect] = []
    unjudged, log.arrivals = log.arrivals, []
    for arrival in unjudged:
        out = [*evaluator.receive(log.append(arrival))]
        log.read_on(evaluator, out, arrival.broker_time_ms)
        effects += out
    return effects + _to_the_end(log, evaluator)


def _to_the_end(log: Log, evaluator: PartitionEvaluator) -> list[Effect]:
    end_ms = end_of(log.arrivals)
    effects: list[Effect] = []
    while evaluator.open_calls:
        wakeup_ms = evaluator.next_wakeup()
        assert wakeup_ms is not None, "an open call has no end"
        assert wakeup_ms <= end_ms, "a question is not answered"
        out = [*evaluator.advance(min(wakeup_ms, end_ms))]
        log.read_on(evaluator, out, wakeup_ms)
        effects += out
    return effects


def _topics(log: Log) -> Topics:
    """The log as a partition. Questions that it does not answer get their answers behind its records."""
    topics = Topics.of(log.arrivals)
    verdicts, last_ms = topics.inputs[InputSource.JUDGE], log.arrivals[-1].broker_time_ms

    def answers(request: JudgeRequest) -> None:
        known = len(log.arrivals)
        log.answer(request, last_ms)
        verdicts.extend(log.arrivals[known:])

    topics.answers = answers
    return topics


@given(st.data())
def test_a_crash_between_question_and_answer_changes_no_final_score(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    call["control"] = [each | ({"reason": "goodbye"} if "reason" in each else {}) for each in call["control"]]
    log = Log(
        [
            replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
            for place, arrival in enumerate(arrivals_of(call, order))
        ]
    )
    expected = _in_peace(log)
    event(f"{min(3, sum(isinstance(effect, RequestVerdict) for effect in expected))} questions or more")
    first = log.arrivals[0]
    topics = _topics(log)
    for number in range(data.draw(st.integers(1, 3))):
        owner = Owner(topics, SETTINGS, str(number))
        if first in owner.unread:
            owner.fold(first)  # inputs are not read so far apart that a verdict comes before the call that asked for it
        for _ in range(data.draw(st.integers(0, len(log.arrivals)))):
            if owner.unread:
                owner.fold(data.draw(st.sampled_from(owner.unread)))
            if data.draw(st.integers(0, 3)) == 0:
                owner.write(data.draw(st.sampled_from([1, 2, None])))
    owner = Owner(topics, SETTINGS, "last")
    if first in owner.unread:
        owner.fold(first)
    owner.to_the_end()

    assert_counted(topics.scores)
    assert final_values(topics.scores) == final_state(expected)
    assert by_call(topics.published) == by_call(undisturbed(topics, SETTINGS))
