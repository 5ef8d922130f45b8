"""EVA's text judges, live: questions and their times, one at a time about the call so far, and the
ratings in rows.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals import text_judges
from consumers.engine.goals.checks import TurnFacts
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.goals.text_judges import Ratings, TextJudges
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.measures import rows as measures
from consumers.engine.rows import CallRows
from consumers.engine.turns.live import NO_CHANGES
from schemas.closed_sets import JudgeKind, PipelineType
from schemas.judging import JudgeRequest, JudgeVerdict, Rated, Votes
from schemas.rows import CallRow, Rating
from tests.support.fakes.engine_feed import Feed
from tests.support.known import instance_of, some
from tests.unit.engine.goals.test_progress import END_MS, GoalFeed, OneSet, _value, goal_set

RATED = {3: 1.0, 2: 0.5, 1: 0.0}


class JudgedFeed(GoalFeed):
    """A call without goals, judged by some of EVA's metrics."""

    def __init__(self, *kinds: str, goals: OneSet | None = None, **rules: Any) -> None:
        super().__init__(goal_set({"id": "s", "details": "d", "check": {"kind": "judge"}}))
        self.rules = GoalRules(**{"asks_judge": True, "text_judges": kinds, **rules})
        self.evaluator = PartitionEvaluator(
            Limits(call_values_every_ms=1), "test", ChosenGoals(goals, self.rules)
        )
        self.effects.clear()
        self.greet()

    def rate(self, request: JudgeRequest, rating: int) -> None:
        result = {"outcome": "rated", "rating": rating, "normalised": RATED[rating]}
        self.send(
            "judge",
            {
                "type": "judge_verdict",
                "request_id": request.request_id,
                "conversation_id": "call",
                "kind": request.kind,
                "turn": request.turn,
                "input_hash": request.input_hash,
                "prompt_version": request.prompt_version,
                "result": result,
            },
            self.at_ms,
        )

    def asked(self) -> list[tuple[str, int]]:
        return [
            (effect.request.kind, effect.request.turn)
            for effect in self.effects
            if isinstance(effect, RequestVerdict)
        ]


def _plain(rating: Rating | None) -> tuple[int, float | str] | None:
    return None if rating is None else (rating.through_turn, _value(rating.result))


def of_turn(feed: Feed, turn: int, kind: str) -> list[tuple[int, float | str] | None]:
    """What the rows of a turn have, one after the other: the turn again, and its rating; None
    without one so far.
    """
    return [_plain(rating) for rating in feed.values(kind, turn)]


def of_call(feed: Feed, kind: str) -> list[tuple[int, float | str]]:
    """What the rows of the call have, one after the other: up to which turn it is rated, and its
    rating.
    """
    return [found for rating in feed.values(kind) if (found := _plain(rating)) is not None]


@pytest.fixture
def every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are long from the start: their values are published whenever a turn is left."""
    monkeypatch.setattr(measures, "LONG_CALL_MS", 0)


def test_a_turn_is_rated_when_it_was_left_the_greeting_too() -> None:
    feed = JudgedFeed("conciseness")
    feed.exchange("book it").exchange("is it done?")
    assert feed.asked() == [("conciseness", 0), ("conciseness", 1)]
    feed.rate(feed.requests[1], 2)
    assert of_turn(feed, 1, "conciseness") == [None]
    feed.exchange("good")
    assert of_turn(feed, 1, "conciseness") == [None, (1, 0.5)]
    assert [name for name in feed.news(1) if name in ("turn_taking", "conciseness")] == [
        "turn_taking",
        "conciseness",
    ]
    assert feed.asked()[2:] == [("conciseness", 2)]
    feed.rate(feed.requests[0], 3)
    feed.end()
    assert of_turn(feed, 0, "conciseness")[-1] == (0, 1.0)
    assert of_turn(feed, 1, "conciseness") == [None, (1, 0.5)]


def test_faithfulness_is_asked_with_what_the_agent_was_told() -> None:
    feed = JudgedFeed("faithfulness", "conciseness")
    tools = [{"name": "refund", "parameters": {"type": "object"}}]
    told = {
        "instructions": "Never refund. Ask jane@example.com.",
        "current_date_time": "2026-11-21 10:00",
    }
    (
        feed.send("audit", {"type": "call_started", "role": "clerk", "tools": tools, **told}, 0)
        .exchange("refund me")
        .exchange("thanks")
    )
    briefs = {request.kind: request.agent_brief for request in feed.requests}
    assert briefs[JudgeKind.CONCISENESS] is None
    brief = some(briefs[JudgeKind.FAITHFULNESS])
    assert (brief.role, brief.current_date_time) == ("clerk", "2026-11-21 10:00")
    assert brief.tools == '[{"name":"refund","parameters":{"type":"object"}}]'
    assert brief.instructions is not None
    assert brief.instructions.startswith("Never refund. Ask ")
    assert "jane" not in brief.instructions


def test_other_instructions_ask_for_faithfulness_again_and_for_nothing_else() -> None:
    feed = JudgedFeed("faithfulness", "conciseness")
    feed.exchange("refund me")
    before = feed.requests[-1]
    feed.rate(
        next(request for request in feed.requests if request.kind is JudgeKind.FAITHFULNESS), 3
    )
    feed.send("audit", {"type": "call_started", "instructions": "Never refund."}, 0).exchange(
        "thanks"
    )
    kinds = [request.kind for request in feed.requests[feed.requests.index(before) + 1 :]]
    assert kinds.count(JudgeKind.FAITHFULNESS) == kinds.count(JudgeKind.CONCISENESS) == 1
    hashes = [
        request.input_hash for request in feed.requests if request.kind is JudgeKind.FAITHFULNESS
    ]
    assert len(set(hashes)) == len(hashes)


def test_a_dimension_that_cannot_be_judged_is_named_with_its_reason() -> None:
    reason = {"violating_policies": "the agent's instructions are not known"}
    rated = Rated(rating=3, normalised=1.0, dimensions={"hallucination": 3}, not_applicable=reason)
    rating = text_judges.rating_of(rated, 1)
    assert (rating.result, rating.dimensions, rating.not_applicable) == (
        1.0,
        {"hallucination": 3},
        reason,
    )


def test_speakability_is_asked_of_the_turn_s_own_words() -> None:
    feed = JudgedFeed("speakability")
    feed.exchange("book it", answer="**Done**").exchange("thanks")
    request = feed.requests[-1]
    assert [(item.kind, item.turn) for item in request.transcript] == [("assistant", 1)]


def test_in_a_speech_to_speech_call_there_is_none() -> None:
    feed = JudgedFeed("speakability")
    (
        feed.send("audit", {"type": "call_started", "pipeline_type": "s2s"}, 0)
        .exchange("book it")
        .exchange("thanks")
        .end()
    )
    assert feed.asked() == []
    expected = "not applicable: the agent speaks without a text of its own"
    assert [of_turn(feed, turn, "speakability")[-1] for turn in (0, 1, 2)] == [
        (turn, expected) for turn in (0, 1, 2)
    ]
    assert not [row for row in feed.turn_rows() if "speakability" in row.news]


@pytest.mark.usefixtures("every_turn")
def test_of_the_call_so_far_one_question_is_under_way_and_the_next_is_about_the_newest_turn() -> (
    None
):
    feed = JudgedFeed("conversation_progression")
    for words in ("book it", "and?", "and?"):
        feed.exchange(words)
    assert feed.asked() == [("conversation_progression", 0)]
    feed.rate(feed.requests[0], 3)
    assert feed.asked()[1:] == [("conversation_progression", 2)]
    feed.exchange("and?")
    feed.rate(feed.requests[1], 1)
    feed.exchange("and?")
    assert of_call(feed, "conversation_progression")[-2:] == [(0, 1.0), (2, 0.0)]


@pytest.mark.usefixtures("every_turn")
def test_faithfulness_is_the_lowest_rating_so_far() -> None:
    feed = JudgedFeed("faithfulness")
    for words, rating in (("book it", 3), ("and?", 1), ("and?", 3)):
        feed.exchange(words)
        feed.rate(feed.requests[-1], rating)
    feed.exchange("bye")
    assert of_call(feed, "faithfulness")[-3:] == [(0, 1.0), (1, 0.0), (2, 0.0)]


def test_a_rating_of_faithfulness_is_a_part_of_accuracy() -> None:
    feed = JudgedFeed("faithfulness")
    feed.exchange("book it")
    feed.rate(feed.requests[-1], 2)
    feed.end()
    accuracy = feed.call().eva["eva_a_mean"]
    assert (_value(accuracy.result), accuracy.sub_metrics) == (0.5, {"faithfulness": 0.5})


def test_a_late_verdict_on_a_turn_that_does_not_exist_any_more_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The law of recovery found it: the call goes back behind a turn twice, whose second question
    is still open.
    """
    said = "Hello"
    history = SimpleNamespace(
        replays=SimpleNamespace(elements=0), pipeline_type=PipelineType.CASCADE
    )
    live: Any = SimpleNamespace(turn=0, is_simulated=False, history=history)
    monkeypatch.setattr(
        text_judges, "facts_of", lambda _, turns: {turn: TurnFacts(said, "Yes.") for turn in turns}
    )
    rules = GoalRules(asks_judge=True, text_judges=(JudgeKind.FAITHFULNESS,))
    judges = TextJudges("call", rules, CallRows(CallRow(conversation_id="call")), Ratings())
    out: list[Effect] = []

    def goes_to(turn: int) -> None:
        live.turn = turn
        history.replays.elements += 1  # a late event, so all turns are looked at again
        judges.follow(live, NO_CHANGES, 0, out)

    def answered() -> None:
        effect = instance_of(RequestVerdict, out.pop(0))
        request = effect.request
        verdict = JudgeVerdict(
            timestamp=0,
            request_id=request.request_id,
            conversation_id="call",
            kind=request.kind,
            turn=request.turn,
            input_hash=request.input_hash,
            prompt_version=request.prompt_version,
            votes=Votes(complete=1),
            result=Rated(rating=3, normalised=1.0),
        )
        judges.fold(verdict, live, 0, out)

    goes_to(4)
    answered()
    goes_to(5)
    said = "Hi"
    goes_to(4)
    answered()  # on turn 4; now turn 3 is asked about again
    goes_to(2)
    answered()  # on turn 3, which is forgotten
    goes_to(3)
    assert [effect.request.turn for effect in out if isinstance(effect, RequestVerdict)] == [1]
    answered()
    assert [effect.request.turn for effect in out if isinstance(effect, RequestVerdict)] == [2]


def test_the_call_as_a_whole_is_judged_before_it_closes() -> None:
    feed = JudgedFeed("conversation_progression")
    feed.exchange("book it")
    feed.rate(feed.requests[0], 3)
    feed.send("audit", {"type": "call_ended"}, feed.at_ms).advance(feed.at_ms + 10_000)
    assert feed.call().state == "over"
    assert feed.asked()[1:] == [("conversation_progression", 1)]
    feed.rate(feed.requests[1], 2)
    feed.close_all()
    assert feed.call().state == "closed"
    # while it waits, and at its close
    assert of_call(feed, "conversation_progression") == [(0, 1.0), (1, 0.5)]


def test_what_nobody_answers_is_unscored() -> None:
    feed = JudgedFeed("conciseness", verdict_deadline_ms=20_000)
    feed.exchange("book it").end(END_MS)
    assert [of_turn(feed, turn, "conciseness")[-1] for turn in (0, 1)] == [
        (0, "deadline"),
        (1, "deadline"),
    ]
    assert feed.call().unscored_turns["conciseness"] == {"deadline": 2}


def test_without_a_judge_everything_is_unscored_and_nothing_is_asked() -> None:
    feed = JudgedFeed("conciseness", "faithfulness", asks_judge=False)
    feed.exchange("book it").end()
    assert feed.asked() == []
    assert [of_turn(feed, turn, "conciseness")[-1] for turn in (0, 1)] == [
        (0, "judge_disabled"),
        (1, "judge_disabled"),
    ]
    assert of_call(feed, "faithfulness") == [(1, "judge_disabled")]


def test_a_turn_without_an_answer_is_not_rated() -> None:
    feed = JudgedFeed("conciseness")
    feed.user_audio(1_000, 2_000, text="book it").heard("book it", 2_100).end()
    assert of_turn(feed, 1, "conciseness") == [(1, "not applicable: the assistant said nothing")]
    assert "conciseness" not in feed.news(1)


def with_entities(meant: str, understood: str) -> JudgedFeed:
    """A turn in which the caller names something, and the turn after it."""
    feed = JudgedFeed("transcription_accuracy_key_entities")
    feed.user_audio(1_000, 2_000, text=meant).heard(understood, 2_100).assistant_audio(3_000, 4_000)
    feed.at_ms = 10_000
    return feed.exchange("thanks")


def test_key_entities_are_asked_with_what_the_caller_meant_and_what_the_agent_wrote_down() -> None:
    feed = with_entities("Flight SK 123 for jane@example.com", "Flight SK 124")
    request = feed.requests[0]
    assert (request.turn, [item.kind for item in request.transcript]) == (1, ["user", "heard"])
    meant, heard = (item.text for item in request.transcript)
    assert meant.startswith("Flight SK 123 for [")
    assert heard == "Flight SK 124"
    feed.rate(request, 2)
    feed.end()
    ratings = [of_turn(feed, turn, "transcription_accuracy_key_entities")[-1] for turn in (0, 1)]
    unknown = "not applicable: what the user meant or what the agent understood is not known"
    assert ratings == [(0, unknown), (1, 0.5)]


def test_a_late_transcript_asks_for_its_key_entities_again() -> None:
    feed = with_entities("Flight SK 123", "Flight SK")
    first = feed.requests[0]
    feed.heard("123", 2_200).exchange("bye")
    again = [request for request in feed.requests if request.turn == 1 and request is not first]
    assert [request.transcript[-1].text for request in again] == ["Flight SK 123"]
    feed.rate(first, 1)  # on words that are not the turn's any more
    feed.end(END_MS)
    assert of_turn(feed, 1, "transcription_accuracy_key_entities")[-1] == (1, "deadline")


def test_the_caller_s_fidelity_is_asked_once_and_with_its_instruction() -> None:
    told = goal_set({"id": "s", "details": "d", "check": {"kind": "tool_called", "tool": "book"}})
    told = told.model_copy(update={"user_instruction": "Book SK 123."})
    feed = JudgedFeed("user_behavioral_fidelity", goals=OneSet(told))
    (
        feed.send("audit", {"type": "call_started", "agent": "desk"}, 0)
        .exchange("book it")
        .exchange("thanks")
    )
    assert feed.asked() == []
    feed.send("audit", {"type": "call_ended"}, feed.at_ms).advance(feed.at_ms + 10_000)
    (request,) = feed.requests
    assert (request.turn, request.user_instruction) == (2, "Book SK 123.")
    assert [item.text for item in request.transcript if item.kind == "user"] == [
        "book it",
        "thanks",
    ]
    feed.rate(request, 3)
    feed.close_all()
    assert of_call(feed, "user_behavioral_fidelity")[-1] == (2, 1.0)


def test_without_an_instruction_the_caller_s_fidelity_does_not_apply() -> None:
    feed = JudgedFeed("user_behavioral_fidelity")
    feed.exchange("book it").end()
    assert feed.asked() == []
    expected = "not applicable: no goal set says what the caller was told to do"
    assert of_call(feed, "user_behavioral_fidelity") == [(1, expected)]


def test_of_people_nobody_knows_what_they_meant() -> None:
    feed = JudgedFeed("transcription_accuracy_key_entities", "user_behavioral_fidelity")
    feed.evaluator = PartitionEvaluator(
        Limits(call_values_every_ms=1), "test", ChosenGoals(None, feed.rules)
    )
    for who, at_ms in (("bot", 0), ("user", 1_000), ("bot", 3_000)):
        feed.spoke(who, at_ms, at_ms + 900)
    feed.end()
    expected = "not applicable: no simulated caller says what was meant"
    assert of_turn(feed, 1, "transcription_accuracy_key_entities")[-1] == (1, expected)
    assert of_call(feed, "user_behavioral_fidelity")[-1] == (1, expected)
