"""Logs with the records of any calls, a judge that answers some questions, goal files that change,
and settings of their owners.
"""

import random
from dataclasses import replace

from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource, JudgeKind
from schemas.goals.goal_set import GoalSet
from schemas.judging import Judged, JudgeRequest, JudgeVerdict, Rated, VerdictResult, Votes
from tests.properties.evaluation import GOALS
from tests.properties.owners import Log, Settings, Step
from tests.properties.steered_calls import Order, drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, Json

JUDGED = (
    JudgeKind.CONCISENESS,
    JudgeKind.SPEAKABILITY,
    JudgeKind.CONVERSATION_PROGRESSION,
    JudgeKind.FAITHFULNESS,
)


class AgentsGoals:
    """A version of the goal files: one agent's calls have goals, in another order in each version,
    from when they name it.
    """

    def __init__(self, version: str) -> None:
        place = len(version) if not version.isdigit() else int(version) % len(GOALS.subgoals)
        subgoals = [*GOALS.subgoals[place:], *GOALS.subgoals[:place]]
        changes = {"subgoals": subgoals, "user_instruction": f"as of {version}"}
        self._goals = GoalSet.model_validate(GOALS.model_dump() | changes)

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return self._goals if agent == "desk" else None


def verdict_on(
    request: JudgeRequest, result: VerdictResult, broker_ms: int, offset: int
) -> Arrival:
    """The judge's answer to a question, as a record of its topic."""
    verdict = JudgeVerdict(
        timestamp=broker_ms,
        request_id=request.request_id,
        conversation_id=request.conversation_id,
        kind=request.kind,
        turn=request.turn,
        subgoal_id=request.subgoal_id,
        input_hash=request.input_hash,
        prompt_version=request.prompt_version,
        result=result,
        votes=Votes(complete=3),
    )
    value = verdict.model_dump_json().encode()
    return Arrival(
        InputSource.JUDGE, offset, broker_ms, request.conversation_id, verdict, value, None
    )


def opinion(request: JudgeRequest, mind: float) -> VerdictResult:
    """The answer of a judge to a question; `mind`, from 0 to 1, decides it."""
    if request.kind is JudgeKind.SUBGOAL:
        return Judged(is_completed=mind > 0.6)
    return Rated(rating=3, normalised=1.0) if mind > 0.6 else Rated(rating=2, normalised=0.5)


class Judge:
    """Answers some questions, at the end of the log by then, and equal questions equally."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def answer(self, request: JudgeRequest) -> None:
        mind = random.Random(request.request_id).random()  # noqa: S311  # nothing secret
        if mind >= 0.3:
            self._log.add(verdict_on(request, opinion(request, mind), self._log.now_ms, 0))


_few = st.sampled_from([1_000, 1, 2, 3])
times = st.fixed_dictionaries(
    {
        "max_event_time_skew_ms": st.just(0),
        "idle_ms": st.sampled_from([600_000, 30_000, 2_000]),
        "closing_grace_ms": st.sampled_from([10_000, 1_000, 0]),
        "dead_air_ms": st.sampled_from([3_000, 400, 1]),
        "delivery_allowance_ms": st.sampled_from([500, 0]),
        "max_call_duration_ms": st.sampled_from([10**9, 10**9, 10_000]),
    }
)
_counts = st.fixed_dictionaries(
    {
        "max_open_calls": _few,
        "max_events_per_call": st.sampled_from([10_000, 10_000, 30, 10, 3]),
        "max_turns_per_call": st.sampled_from([10_000, 10_000, 2]),
    }
)
rules = st.builds(
    GoalRules,
    asks_judge=st.sampled_from([True, True, False]),
    text_judges=st.sampled_from([JUDGED, JUDGED, ()]),
    steady_words_ms=st.sampled_from([0, 0, 1_000]),
    verdict_deadline_ms=st.sampled_from([10**9, 3_000]),
    stall_turns=st.sampled_from([10**6, 1]),
    stall_ms=st.sampled_from([10**12, 2_000]),
)
settings = st.builds(
    Settings,
    limits=st.builds(lambda times, counts: Limits(**times, **counts), times, _counts),
    rules=rules,
    goals_of=st.just(AgentsGoals),
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """The records of some calls as one partition has them: with ties, broker times that step back,
    one id of two calls, late records of closed calls, long times without a tick, and sequencers
    that follow each other.
    """
    arrivals: list[Arrival] = []
    for _ in range(draw(st.integers(1, 5))):
        call, order = draw(_calls)
        call["control"] = [draw(_with_agent(each)) for each in call["control"]]
        after_ms = draw(st.sampled_from([0, 0, 3_000, 40_000, 400_000]))
        key = draw(st.sampled_from(["one", "two", "three", "four", "five"]))
        of_call = [
            replace(
                each, conversation_id=key, broker_time_ms=max(T0_MS, each.broker_time_ms) + after_ms
            )
            for each in arrivals_of(call, order)
        ]
        late_ms = draw(st.sampled_from([0, 30_000, 600_000, 840_000]))
        late = [
            replace(each, broker_time_ms=each.broker_time_ms + late_ms)
            for each in of_call
            if late_ms
        ]
        arrivals += of_call + late[:: draw(st.sampled_from([3, 20]))]
    arrivals.sort(key=lambda each: each.broker_time_ms)
    ties_ms = draw(st.sampled_from([1, 50, 2_000]))
    back_ms = draw(st.lists(st.sampled_from([0, 0, 0, 700, 60_000]), min_size=1, max_size=5))
    ticks_ms = draw(st.lists(st.sampled_from([1, 500, 500, 2_000, 60_000]), min_size=1, max_size=6))
    others = draw(
        st.lists(
            st.sampled_from([None] * 12 + ["succeed", "again", "void", "bad"]),
            min_size=1,
            max_size=40,
        )
    )
    steps: list[Step] = []
    tick_ms, ticks = 0, 0
    for place, each in enumerate(arrivals):
        broker_ms = each.broker_time_ms // ties_ms * ties_ms
        if broker_ms > tick_ms:
            steps.append(Step("tick", number=broker_ms - 1))
            tick_ms = broker_ms + ticks_ms[ticks % len(ticks_ms)]
            ticks += 1
        steps.append(
            Step("event", replace(each, broker_time_ms=broker_ms - back_ms[place % len(back_ms)]))
        )
        other = others[place % len(others)]
        if other == "bad":
            steps.append(Step("event", replace(each, value=b"{")))
        elif other is not None:
            steps.append(Step(other, number=1 + place % 9))
    log = Log(steps)
    log.answers = Judge(log).answer
    return log


def _with_agent(event: Json) -> st.SearchStrategy[Json]:
    """The event; one that a call has started may name the agent, and another of the same call may
    not.
    """
    named = {"agent": "desk"} if event["type"] == "call_started" else {}
    return st.sampled_from([event | named, event])


@st.composite
def _drawn(draw: st.DrawFn) -> tuple[Json, Order]:
    return drawn(draw(st.data()))


_calls = _drawn()
