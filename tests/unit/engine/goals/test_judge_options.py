"""Options of judging under agent-inspect's names: of a goal set before those of the settings."""

from typing import Any

import pytest

from schemas.closed_sets import JudgeKind
from schemas.judging import PROMPT_VERSIONS, JudgeRequest, prompt_version_of
from tests.support.fakes.engine_feed import Json
from tests.unit.engine.goals.test_goal_progress import JUDGED, GoalFeed, goal_set

TEMPLATE = "{call}\nIs {subgoal} done?"
CARD = "4111 1111 1111 1111"


def asked(options: Json, **rules: Any) -> JudgeRequest:
    feed = GoalFeed(goal_set(JUDGED, **options), asks_judge=True, **rules)
    feed.greet()
    feed.turn("hello")
    feed.turn("good")
    return feed.requests[0]


def judged(feed: GoalFeed, *trials: Json) -> None:
    """Two turns, and a verdict with these trials on the first."""
    two_turns(feed)
    answer(feed, feed.requests[0], *trials)


def two_turns(feed: GoalFeed) -> None:
    """The first turn is over, so it is judged."""
    feed.greet()
    feed.turn("hello")
    feed.turn("good")


def answer(feed: GoalFeed, request: JudgeRequest, *trials: Json) -> None:
    """A verdict with these trials."""
    verdict = {
        "type": "judge_verdict", "request_id": request.request_id, "conversation_id": "call", "turn": 1, "kind": "subgoal",
        "input_hash": request.input_hash, "prompt_version": request.prompt_version,
        "result": {"outcome": "judged", "is_completed": True}, "votes": {"complete": 2, "incomplete": 1}, "answers": list(trials),
    }  # fmt: skip
    feed.send("judge", verdict, feed.at_ms)


def trial(number: int, grade: bool, explanation: str, raw: str | None = None) -> Json:
    return {
        "trial": number,
        "outcome": "answered",
        "grade": grade,
        "explanation": explanation,
        "raw": raw,
        "latency_ms": 7,
    }


def test_options_of_a_goal_set_come_before_the_settings() -> None:
    options = {"num_judge_trials": 7, "optimize_judge_trials": False, "max_retry_judge_trials": 2}
    request = asked(options, trials=3, stops_early=True, retry_waves=4)
    assert (request.trials, request.stops_early, request.retry_waves) == (7, False, 2)
    request = asked({}, trials=3, stops_early=False, retry_waves=4)
    assert (request.trials, request.stops_early, request.retry_waves) == (3, False, 4)


def test_a_template_goes_with_the_question_and_names_its_prompt() -> None:
    plain, own = asked({}), asked({"template_subgoal": TEMPLATE})
    assert (plain.template, plain.prompt_version) == (None, PROMPT_VERSIONS[JudgeKind.SUBGOAL])
    assert (own.template, own.prompt_version) == (TEMPLATE, prompt_version_of(TEMPLATE))
    by_setting = asked({}, template_subgoal=TEMPLATE)
    assert by_setting.template == TEMPLATE
    assert asked({"template_subgoal": TEMPLATE + "!"}, template_subgoal=TEMPLATE).template == TEMPLATE + "!"
    assert plain.request_id != own.request_id == by_setting.request_id


@pytest.mark.parametrize("by_setting", [False, True], ids=["goal set", "setting"])
def test_the_trials_of_a_verdict_are_in_the_record_of_its_subgoal_if_asked_for(*, by_setting: bool) -> None:
    option = {"include_judge_explanation": True}
    feed = GoalFeed(
        goal_set(JUDGED, **({} if by_setting else option)), asks_judge=True, **(option if by_setting else {})
    )
    trials = [
        trial(1, True, "Booked in turn 1."),
        trial(2, False, f"The card {CARD} is missing.", raw=CARD),
        trial(3, True, ""),
    ]
    judged(feed, *trials)
    record = feed.records("subgoal")[-1]
    assert [(each.trial, each.grade) for each in record.trials] == [(1, True), (2, False), (3, True)]
    assert record.trials[0].explanation == "Booked in turn 1."
    assert CARD not in record.model_dump_json()
    assert (record.votes_complete, record.votes_incomplete) == (2, 1)


def test_without_being_asked_for_they_are_left_out() -> None:
    feed = GoalFeed(goal_set(JUDGED), asks_judge=True)
    judged(feed, trial(1, True, "Booked."))
    record = feed.records("subgoal")[-1]
    assert record.trials is None
    assert '"trials"' not in record.model_dump_json()


def test_a_verdict_that_was_read_before_its_question_keeps_its_trials() -> None:
    """As after a restart, where verdicts come from their topic first."""
    options = {"include_judge_explanation": True}
    first = GoalFeed(goal_set(JUDGED, **options), asks_judge=True)
    two_turns(first)
    again = GoalFeed(goal_set(JUDGED, **options), asks_judge=True)
    answer(again, first.requests[0], trial(1, True, "Booked."))
    two_turns(again)
    assert again.requests == []
    record = again.records("subgoal")[-1]
    assert [each.explanation for each in record.trials] == ["Booked."]
