"""Verdicts and restarts: after a crash at any step of asking, answering or writing, the final
scores are the same.

The judge of these tests always says the same about the same question, so that only the engine can
make a difference.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules
from schemas.closed_sets import JudgeKind, UnjudgedReason
from schemas.judging import JudgeRequest, Unjudged
from tests.properties.evaluation import (
    LIMITS,
    RULES,
    EveryCall,
    assert_counted,
    end_of,
    final_state,
    final_values,
)
from tests.properties.owners import Log, Owner, Settings, acts, by_call, undisturbed
from tests.properties.partitions import opinion, verdict_on
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS

STEP_MS = 25
# Not faithfulness: the lowest rating of all versions of a call that were judged depends on which
# were.
KINDS = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY, JudgeKind.CONVERSATION_PROGRESSION)
JUDGED_RULES = GoalRules(
    **{**RULES.model_dump(), "asks_judge": True, "verdict_deadline_ms": 10**9, "text_judges": KINDS}
)


SETTINGS = Settings(rules=JUDGED_RULES)


class Judge:
    """Says always the same about the same question. The answer goes where `put` puts it, once."""

    def __init__(self, put: Callable[[Arrival], None]) -> None:
        self._put = put
        self._answered: set[str] = set()

    def answer(self, request: JudgeRequest, broker_ms: int) -> None:
        """Answers, if the question is new."""
        if request.request_id not in self._answered:
            self._answered.add(request.request_id)
            mind = random.Random(request.request_id).random()  # noqa: S311  # nothing secret
            result = (
                Unjudged(reason=UnjudgedReason.UNAVAILABLE)
                if mind < 0.2
                else opinion(request, mind)
            )
            self._put(verdict_on(request, result, broker_ms, 0))


def _in_peace(arrivals: Sequence[Arrival]) -> list[Effect]:
    """One evaluator, and a judge that answers at once."""
    evaluator = PartitionEvaluator(LIMITS, "test", ChosenGoals(EveryCall(), JUDGED_RULES))
    waiting: deque[Arrival] = deque()
    judge = Judge(waiting.append)
    effects: list[Effect] = []

    def read_on(out: Sequence[Effect], broker_ms: int) -> None:
        effects.extend(out)
        for request in [each.request for each in out if isinstance(each, RequestVerdict)]:
            judge.answer(request, broker_ms)
        if waiting:
            read_on(evaluator.receive(waiting.popleft()), broker_ms)

    for arrival in arrivals:
        read_on(evaluator.receive(arrival), arrival.broker_time_ms)
    while evaluator.open_calls:
        wakeup_ms = evaluator.next_wakeup()
        assert wakeup_ms is not None, "an open call has no end"
        assert wakeup_ms <= end_of(arrivals), "a question is not answered"
        read_on(evaluator.advance(wakeup_ms), wakeup_ms)
    return effects


@given(st.data())
def test_a_crash_between_question_and_answer_changes_no_final_score(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    call["control"] = [
        each | ({"reason": "goodbye"} if "reason" in each else {}) for each in call["control"]
    ]
    arrivals = [
        replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
        for place, arrival in enumerate(arrivals_of(call, order))
    ]
    expected = _in_peace(arrivals)
    event(
        f"{min(3, sum(isinstance(effect, RequestVerdict) for effect in expected))} questions or "
        "more"
    )
    log = Log.of(arrivals)
    judge = Judge(log.add)
    log.answers = lambda request: judge.answer(request, arrivals[-1].broker_time_ms)
    for each in data.draw(st.lists(acts(), min_size=1, max_size=3)):
        Owner(log, SETTINGS).live(each)
    Owner(log, SETTINGS).to_the_end()

    assert_counted(log.rows)
    assert final_values(log.rows) == final_state(expected)
    assert by_call(log.published) == by_call(undisturbed(log, SETTINGS))
