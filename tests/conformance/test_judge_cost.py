"""Topics that arrive mixed cost hardly more questions to the judge than topics in order, and give
the same progress.
"""

from itertools import islice
from typing import Final

import pytest

from consumers.engine.limits import GoalRules, Limits
from schemas.goals.goal_set import GoalSet
from schemas.judging import Judged, JudgeRequest, JudgeVerdict
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.files import RecordedCall
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import with_control_events
from tests.support.calls.rows_of_calls import call_of, turns_of
from tests.support.conformance_data import needs_conformance, place_of

FILE: Final = place_of("calls.jsonl.gz")
CALLS: Final = 30
MOST: Final = 1.2
"""Questions of mixed topics by those in order, over all calls."""
GOALS: Final = GoalSet.model_validate(
    {
        "id": "g",
        "subgoals": [
            {"id": str(n), "details": f"goal {n}", "check": {"kind": "judge"}} for n in range(4)
        ],
    }
)

pytestmark = needs_conformance(FILE.name)


def judged(call: RecordedCall, seed: int | None, steady_words_ms: int) -> tuple[int, list[str]]:
    """The number of questions, and the results of the goals at the end; subgoal n is complete from
    turn 2n + 1 on.
    """
    rules = GoalRules(asks_judge=True, steady_words_ms=steady_words_ms)
    scoring = RecordedScoring(call, ScoringPlan(Limits(), rules, "test", seed), GOALS)
    asking = scoring.run()
    asked: list[JudgeRequest] = []
    requests = next(asking, None)
    while requests is not None:
        asked += requests
        try:
            requests = asking.send([verdict_on(request) for request in requests])
        except StopIteration:
            requests = None
    progress = [f"turn {number} {row.progress}" for number, row in turns_of(scoring.rows).items()]
    goals = call_of(scoring.rows).goals
    assert goals is not None
    return len(asked), [
        *progress,
        *(f"{each.result} by {each.reached_turn}" for each in goals.subgoals),
    ]


def verdict_on(request: JudgeRequest) -> JudgeVerdict:
    return JudgeVerdict(
        timestamp=0,
        request_id=request.request_id,
        conversation_id=request.conversation_id,
        kind=request.kind,
        turn=request.turn,
        goal_set=request.goal_set,
        subgoal_id=request.subgoal_id,
        input_hash=request.input_hash,
        prompt_version=request.prompt_version,
        result=Judged(is_completed=request.turn > 2 * int(request.subgoal_id or 0)),
    )


@pytest.mark.parametrize("seed", [3, 9])
def test_mixed_topics_cost_hardly_more_questions(seed: int) -> None:
    default_ms = GoalRules().steady_words_ms
    mixed = ordered = at_once = 0
    for recorded in islice(read_recordings(FILE), CALLS):
        call = with_control_events(recorded, agent="desk")
        questions, expected = judged(call, None, default_ms)
        more, found = judged(call, seed, default_ms)
        assert found == expected, call.conversation_id
        ordered += questions
        mixed += more
        at_once += judged(call, seed, 0)[0]
    assert mixed <= MOST * ordered, (mixed, ordered)
    assert mixed < at_once, "it is the waiting that saves"
