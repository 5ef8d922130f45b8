"""EVA's text judges, live: what is asked when, one at a time where it is the call so far, and what is said of it."""

from typing import Any

from consumers.engine.chosen_goals import ChosenGoals
from consumers.engine.effects import RequestVerdict
from consumers.engine.goal_rules import GoalRules
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from schemas.judging import JudgeRequest
from tests.engine_feed import Feed
from tests.unit.test_engine_goals import END_MS, GoalFeed, _value, goal_set

RATED = {3: 1.0, 2: 0.5, 1: 0.0}


class JudgedFeed(GoalFeed):
    """A call without goals, judged by some of EVA's metrics."""

    def __init__(self, *kinds: str, **rules: Any) -> None:
        super().__init__(goal_set({"id": "s", "details": "d", "check": {"kind": "judge"}}))
        self.rules = GoalRules(**{"asks_judge": True, "text_judges": kinds, **rules})
        self.evaluator = PartitionEvaluator(Limits(), "test", ChosenGoals(None, self.rules))
        self.effects.clear()
        self.greet()

    def rate(self, request: JudgeRequest, rating: int) -> None:
        result = {"outcome": "rated", "rating": rating, "normalised": RATED[rating]}
        self.send(
            "judge",
            {
                "type": "judge_verdict", "request_id": request.request_id, "conversation_id": "call",
                "kind": request.kind, "turn": request.turn, "input_hash": request.input_hash,
                "prompt_version": request.prompt_version, "result": result,
            },
            self.at_ms,
        )  # fmt: skip

    def asked(self) -> list[tuple[str, int]]:
        return [
            (effect.request.kind, effect.request.turn) for effect in self.effects if isinstance(effect, RequestVerdict)
        ]


def said(feed: Feed, name: str) -> list[tuple[int | None, int, str, float | str]]:
    return [(each.turn, each.through_turn, each.status.value, _value(each.result)) for each in feed.records(name)]


def test_a_turn_is_rated_when_it_was_left_the_greeting_too() -> None:
    feed = JudgedFeed("conciseness")
    feed.turn("book it")
    feed.turn("is it done?")
    assert feed.asked() == [("conciseness", 0), ("conciseness", 1)]
    feed.rate(feed.requests[1], 2)
    assert said(feed, "conciseness") == [(1, 1, "provisional", 0.5)]
    feed.turn("good")
    assert feed.asked()[2:] == [("conciseness", 2)]


def test_speakability_is_asked_of_the_turn_s_own_words() -> None:
    feed = JudgedFeed("speakability")
    feed.turn("book it", answer="**Done**")
    feed.turn("thanks")
    request = feed.requests[-1]
    assert [(item.kind, item.turn) for item in request.transcript] == [("assistant", 1)]


def test_in_a_speech_to_speech_call_there_is_none() -> None:
    feed = JudgedFeed("speakability")
    feed.send("audit", {"type": "call_started", "pipeline_type": "s2s"}, 0)
    feed.turn("book it")
    feed.turn("thanks")
    feed.end()
    assert feed.asked() == []
    expected = "not applicable: the agent speaks without a text of its own"
    assert {value for *_, value in said(feed, "speakability")} == {expected}


def test_of_the_call_so_far_one_question_is_under_way_and_the_next_is_about_the_newest_turn() -> None:
    feed = JudgedFeed("conversation_progression")
    for words in ("book it", "and?", "and?"):
        feed.turn(words)
    assert feed.asked() == [("conversation_progression", 0)]
    feed.rate(feed.requests[0], 3)
    assert feed.asked()[1:] == [("conversation_progression", 2)]
    feed.rate(feed.requests[1], 1)
    assert said(feed, "conversation_progression") == [(None, 0, "provisional", 1.0), (None, 2, "provisional", 0.0)]


def test_faithfulness_is_the_lowest_rating_so_far() -> None:
    feed = JudgedFeed("faithfulness")
    for words, rating in (("book it", 3), ("and?", 1), ("and?", 3)):
        feed.turn(words)
        feed.rate(feed.requests[-1], rating)
    assert [value for _, _, _, value in said(feed, "faithfulness")] == [1.0, 0.0, 0.0]


def test_the_call_as_a_whole_is_judged_before_it_closes() -> None:
    feed = JudgedFeed("conversation_progression")
    feed.turn("book it")
    feed.rate(feed.requests[0], 3)
    feed.send("audit", {"type": "call_ended"}, feed.at_ms)
    feed.advance(feed.at_ms + 10_000)
    assert feed.records("closed") == []
    assert feed.asked()[1:] == [("conversation_progression", 1)]
    feed.rate(feed.requests[1], 2)
    assert len(feed.records("closed")) == 1
    assert said(feed, "conversation_progression")[-1] == (None, 1, "final", 0.5)


def test_what_nobody_answers_is_unscored() -> None:
    feed = JudgedFeed("conciseness", verdict_deadline_ms=20_000)
    feed.turn("book it")
    feed.end(END_MS)
    assert [value for _, _, status, value in said(feed, "conciseness") if status == "final"] == ["deadline", "deadline"]


def test_without_a_judge_everything_is_unscored_and_nothing_is_asked() -> None:
    feed = JudgedFeed("conciseness", "faithfulness", asks_judge=False)
    feed.turn("book it")
    feed.end()
    assert feed.asked() == []
    assert {value for name in ("conciseness", "faithfulness") for *_, value in said(feed, name)} == {"judge_disabled"}


def test_a_turn_without_an_answer_is_not_rated() -> None:
    feed = JudgedFeed("conciseness")
    feed.user_audio(1_000, 2_000, text="book it")
    feed.heard("book it", 2_100)
    feed.end()
    assert [each for each in said(feed, "conciseness") if each[0] == 1][-1] == (
        1, 1, "final", "not applicable: the assistant said nothing",
    )  # fmt: skip
