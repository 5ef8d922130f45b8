"""Goals of a running call: progress, the judge's options, and answers that are withheld."""

import itertools
from collections.abc import Sequence
from typing import Any, Self

import pytest

from consumers.engine.effects import RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.checks import CalledTool
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.goals.questions import MAX_HELD_MS, SteadyWords, in_words
from consumers.engine.goals.tool_correctness import ToolQuestion
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.measures import rows as measures
from consumers.engine.redaction.redactor import TOO_LONG, CallRedactor, Redactor
from schemas.closed_sets import JudgeKind, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.judging import PROMPT_VERSIONS, JudgeRequest, prompt_version_of
from schemas.rows import (
    Goals,
    GoalsRow,
    NotApplicable,
    SubgoalResult,
    ToolDifference,
    Value,
    encode,
)
from tests.support.calls.agent_calls import heard, said, tool_replied, tool_requested
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, plain
from tests.support.known import some

JUDGED: Json = {"id": "booked", "details": "The flight is booked.", "check": {"kind": "judge"}}
SAID: Json = {
    "id": "greeted",
    "details": "The caller says hello.",
    "check": {"kind": "says", "speaker": "user", "pattern": "hello"},
}
USED: Json = {
    "id": "found",
    "details": "The agent looks.",
    "check": {"kind": "tool_called", "tool": "find"},
}
END_MS = 600_000


def goal_set(*subgoals: Json, **more: Any) -> GoalSet:
    return GoalSet.model_validate({"id": "flights", "subgoals": list(subgoals), **more})


class OneSet:
    """Every call that names an agent has these goals."""

    def __init__(self, goals: GoalSet) -> None:
        self.goals = goals

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return self.goals if goals_id or agent else None


class GoalFeed(Feed):
    """A call with goals; `exchange` is a user's words, the assistant's answer and the start of the
    next turn.

    A judge is asked at once, unless a rule says otherwise.
    """

    def __init__(self, goals: GoalSet, **rules: Any) -> None:
        super().__init__(Limits())
        self.goals = goals
        self.rules = GoalRules(**{"steady_words_ms": 0, **rules})
        self.evaluator = PartitionEvaluator(
            Limits(), "test", ChosenGoals(OneSet(goals), self.rules)
        )
        self.send("audit", {"type": "call_started", "agent": "desk"}, 0)
        self.at_ms = 0

    def exchange(self, user: str, *, tool: str | None = None, answer: str = "Certainly.") -> Self:
        """Ten seconds."""
        at_ms = self.at_ms + 1_000
        self.user_audio(at_ms, at_ms + 1_000, text=user).heard(user, at_ms + 1_100)
        if tool is not None:
            self.tool_call(tool, at_ms + 1_200).tool_answer(tool, at_ms + 1_500)
        (
            self.assistant_audio(at_ms + 2_000, at_ms + 3_000)
            .send("audit", {"message_type": "assistant", "value": answer}, at_ms + 2_000)
            .send("user_sim", {"type": "assistant_speech", "data": {"text": answer}}, at_ms + 3_000)
        )
        self.at_ms += 10_000
        return self

    def greet(self) -> Self:
        """Turn 0."""
        return self.assistant_audio(100, 500).send(
            "user_sim", {"type": "assistant_speech", "data": {"text": "Hello"}}, 500
        )

    def end(self, now_ms: int = END_MS) -> Self:
        return self.send("audit", {"type": "call_ended", "reason": "goodbye"}, self.at_ms).advance(
            now_ms
        )

    @property
    def requests(self) -> list[JudgeRequest]:
        return [effect.request for effect in self.effects if isinstance(effect, RequestVerdict)]

    def judge(
        self, request: JudgeRequest, *, is_completed: bool | None, at_ms: int | None = None
    ) -> Self:
        """The judge's answer; None is that it gave up."""
        judged = {"outcome": "judged", "is_completed": is_completed}
        result = (
            judged if is_completed is not None else {"outcome": "unscored", "reason": "unavailable"}
        )
        return self.send(
            "judge",
            {
                "type": "judge_verdict",
                "request_id": request.request_id,
                "conversation_id": "call",
                "turn": request.turn,
                "kind": request.kind,
                "input_hash": request.input_hash,
                "prompt_version": request.prompt_version,
                "result": result,
                "votes": {"complete": 3, "incomplete": 0},
            },
            self.at_ms if at_ms is None else at_ms,
        )

    @property
    def goals_row(self) -> Goals:
        """What the newest row of the call says of its goals."""
        return some(self.call().goals)

    def progress(self) -> list[tuple[int, float | str]]:
        """The progress after a turn, whenever it is another than before."""
        newest: dict[int, float | str] = {}
        found = []
        for row in self.turn_rows():
            if row.progress is not None and newest.get(row.turn) != _value(row.progress.result):
                newest[row.turn] = _value(row.progress.result)
                found.append((row.turn, newest[row.turn]))
        return found

    def subgoals(self) -> list[tuple[int, SubgoalResult]]:
        """What has become known of subgoals, by their places, one after the other."""
        rows = [row.goals for row in self.call_rows() if row.goals is not None]
        found = []
        for before, now in itertools.pairwise(rows):
            pairs = enumerate(zip(before.subgoals, now.subgoals, strict=True))
            found += [(place, after) for place, (first, after) in pairs if after != first]
        return found


def _value(value: Value | None) -> float | str:
    assert value is not None
    return f"not applicable: {value.reason}" if isinstance(value, NotApplicable) else plain(value)


def test_the_goal_set_is_recorded_whole_when_the_call_says_who_it_is() -> None:
    feed = GoalFeed(goal_set(SAID))
    (row,) = [row for row in feed.rows() if isinstance(row, GoalsRow)]
    assert (GoalSet.model_validate(row.goal_set), row.digest) == (feed.goals, feed.goals.digest)
    assert (feed.goals_row.goal_set, feed.goals_row.digest, feed.goals_row.by_judge) == (
        "flights",
        row.digest,
        0,
    )
    feed.send("audit", {"type": "call_started", "agent": "another"}, 10)
    assert len([row for row in feed.rows() if isinstance(row, GoalsRow)]) == 1
    assert feed.news() == ["started", "goals"]


def test_a_turn_is_judged_when_it_was_left() -> None:
    feed = GoalFeed(goal_set(SAID, USED)).greet().exchange("hello")
    assert feed.progress() == []
    feed.exchange("find me a flight", tool="find")
    assert feed.progress() == [(1, 0.5)]
    feed.exchange("thanks")
    assert feed.progress() == [(1, 0.5), (2, 1.0)]
    assert [(place, subgoal.reached_turn) for place, subgoal in feed.subgoals()] == [(0, 1), (1, 2)]
    assert feed.news() == ["started", "goals", "subgoal.0", "subgoal.1"]
    feed.end()
    assert feed.progress()[2:] == [(3, 1.0)]  # known values are not published again
    assert _value(feed.goals_row.success_final_turn) == 1.0


NEVER_USED: Json = {
    "id": "alone",
    "details": "It looks nothing up.",
    "check": {"kind": "not", "check": USED["check"]},
}


def test_what_comes_after_the_last_turn_that_counts_reaches_no_subgoal() -> None:
    """Progress, success and the subgoals say the same; so does the call while it runs."""
    feed = GoalFeed(goal_set(SAID, USED, max_turns=3)).greet()
    for words in ("hello", "well", "so", "now"):
        feed.exchange(words)
    feed.exchange("find me a flight", tool="find").exchange("thanks")
    assert {place for place, _ in feed.subgoals()} == {0}
    feed.end()
    last = feed.goals_row.subgoals
    assert [(_value(each.result), each.reached_turn) for each in last] == [(1.0, 1), (0.0, None)]
    assert [turn for turn, _ in feed.progress()] == [1, 2, 3]
    assert (feed.progress()[-1][1], _value(feed.goals_row.success_final_turn)) == (0.5, 0.0)


def test_what_must_not_happen_is_decided_at_the_last_turn_that_counts() -> None:
    feed = GoalFeed(goal_set(NEVER_USED, max_turns=2)).greet()
    for words in ("hello", "well", "so"):
        feed.exchange(words)
    feed.exchange("find me a flight", tool="find").end()
    assert [(_value(each.result), each.reached_turn) for _, each in feed.subgoals()] == [(1.0, 2)]
    assert [value for _, value in feed.progress()] == [0.0, 1.0]
    assert _value(feed.goals_row.success_final_turn) == 1.0


def test_a_call_is_not_stuck_once_no_further_turn_counts() -> None:
    def stalls(max_turns: int) -> list[int]:
        feed = GoalFeed(goal_set(USED, max_turns=max_turns), stall_turns=4).greet()
        for _ in range(7):
            feed.exchange("well")
        return [stall.since_turn for stall in feed.goals_row.stalls]

    assert (stalls(2), stalls(20)) == ([], [0])


def test_without_a_judge_what_it_would_say_is_unscored_and_the_rest_works() -> None:
    feed = GoalFeed(goal_set(SAID, JUDGED)).greet().exchange("hello").exchange("good").end()
    assert feed.requests == []
    assert {value for _, value in feed.progress()} == {"judge_disabled"}
    assert [(place, _value(subgoal.result)) for place, subgoal in feed.subgoals()] == [
        (0, 1.0),
        (1, "judge_disabled"),
    ]
    goals = feed.goals_row
    assert (goals.unscored_subgoals, _value(goals.success_final_turn)) == (
        {"judge_disabled": 1},
        "judge_disabled",
    )


@pytest.fixture
def feed() -> GoalFeed:
    return GoalFeed(goal_set(JUDGED), asks_judge=True).greet()


def test_the_judge_is_asked_once_for_each_turn_until_it_says_yes(feed: GoalFeed) -> None:
    feed.exchange("book it")
    assert feed.requests == []
    feed.exchange("is it done?")
    (first,) = feed.requests
    assert (first.turn, first.subgoal, [item.kind for item in first.transcript]) == (
        1,
        "The flight is booked.",
        ["assistant", "user", "assistant"],
    )
    assert feed.progress() == []  # not known yet
    feed.judge(first, is_completed=False)
    assert feed.progress() == [(1, 0.0)]
    feed.exchange("good")
    _, second = feed.requests
    feed.judge(second, is_completed=True).exchange("bye")
    assert len(feed.requests) == 2
    assert feed.progress()[-2:] == [(2, 1.0), (3, 1.0)]


def test_a_verdict_that_does_not_come_is_not_waited_for() -> None:
    feed = (
        GoalFeed(goal_set(JUDGED), asks_judge=True, verdict_deadline_ms=30_000)
        .greet()
        .exchange("book it")
        .exchange("is it done?")
    )
    (request,) = feed.requests
    feed.advance(request.deadline_ms - T0_MS - 1)
    assert feed.progress() == []
    feed.advance(request.deadline_ms - T0_MS)
    assert feed.progress() == [(1, "deadline")]
    feed.judge(request, is_completed=True, at_ms=request.deadline_ms - T0_MS)
    assert feed.progress() == [(1, "deadline")]


def test_a_closing_call_waits_for_its_verdicts_and_for_nothing_else(feed: GoalFeed) -> None:
    (
        feed.exchange("book it")
        .send("audit", {"type": "call_ended", "reason": "goodbye"}, 10_000)
        .advance(20_000)  # the grace is over
    )
    (request,) = feed.requests
    assert feed.call().state == "over"
    feed.bot_text("Too late.", 25_000).judge(request, is_completed=True, at_ms=30_000).close_all()
    closed = feed.call()
    assert (closed.state, closed.close_reason, closed.known_ms) == (
        "closed",
        "ended",
        T0_MS + 30_000,
    )
    assert feed.counts("callgauge_events_total")["pipecat", "after_close"] == 2
    assert feed.progress() == [(1, 1.0)]


def test_a_closing_call_waits_no_longer_than_the_deadline() -> None:
    feed = (
        GoalFeed(goal_set(JUDGED), asks_judge=True, verdict_deadline_ms=30_000)
        .greet()
        .exchange("book it")
        .send("audit", {"type": "call_ended", "reason": "goodbye"}, 10_000)
        .advance(49_999)
    )
    assert feed.call().state == "over"
    feed.advance(50_000)
    assert feed.call().state == "closed"
    assert feed.progress() == [(1, "deadline")]


def test_a_call_that_waits_for_its_verdicts_says_that_it_is_over(feed: GoalFeed) -> None:
    (
        feed.exchange("book it")
        .send("audit", {"type": "call_ended", "reason": "goodbye"}, 10_000)
        .advance(19_999)
    )
    assert feed.values("state") == ["running", "ended"]
    assert feed.call().through_turn is None, "no value of the whole call yet"
    feed.advance(20_000)
    assert (feed.call().state, feed.call().through_turn) == ("over", 0)
    assert feed.goals_row.success_final_turn is None
    feed.judge(feed.requests[0], is_completed=True, at_ms=30_000).close_all()
    assert (feed.values("state"), feed.call().through_turn) == (
        ["running", "ended", "over", "closed"],
        1,
    )


def test_a_call_without_open_questions_is_closed_when_it_is_over() -> None:
    feed = (
        GoalFeed(goal_set(USED), asks_judge=True)
        .greet()
        .exchange("book it")
        .send("audit", {"type": "call_ended", "reason": "goodbye"}, 10_000)
        .advance(20_000)
    )
    assert feed.values("state") == ["running", "ended", "closed"]


def test_a_turn_whose_words_come_late_is_judged_again(feed: GoalFeed) -> None:
    feed.exchange("book it").exchange("is it done?").judge(feed.requests[0], is_completed=True)
    assert feed.progress() == [(1, 1.0)]
    feed.heard("and a seat", 2_150)  # between the caller's words and the answer of turn 1
    feed.exchange("good")
    again = feed.requests[1]
    assert again.turn == 1
    assert "and a seat" in again.transcript[1].text
    assert [subgoal.reached_turn for _, subgoal in feed.subgoals()] == [1, None]
    feed.judge(again, is_completed=True)
    assert [subgoal.reached_turn for _, subgoal in feed.subgoals()] == [1, None, 1]
    assert feed.news().count("subgoal.0") == 1


def test_a_judge_is_asked_when_the_words_have_been_the_same_for_a_while() -> None:
    feed = (
        GoalFeed(goal_set(JUDGED), asks_judge=True, steady_words_ms=1_000)
        .greet()
        .exchange("book it")
    )
    left_ms = feed.at_ms + 1_000
    feed.user_audio(left_ms, left_ms + 200).advance(left_ms + 500)
    assert feed.requests == []
    # late words of the first turn, without a turn that is left
    feed.heard("and a window seat", 3_000).advance(left_ms + 1_100)
    assert feed.requests == [], "the words changed when they were looked at again"
    feed.advance(left_ms + 2_200)
    (request,) = feed.requests
    assert "and a window seat" in request.transcript[1].text
    feed.judge(request, is_completed=False).end()
    assert [request.turn for request in feed.requests] == [1, 2], (
        "a call that is over waits for no words"
    )


def test_words_that_never_rest_hold_a_question_back_for_some_seconds() -> None:
    feed = GoalFeed(goal_set(JUDGED), asks_judge=True, steady_words_ms=1_000)
    words = SteadyWords(feed.rules)
    asked_at_ms = None
    for now_ms in range(0, 20_000, 500):
        words.changed([1], now_ms)
        if asked_at_ms is None and words.steady([1, 2], lambda about: about, now_ms):
            asked_at_ms = now_ms
    assert asked_at_ms == MAX_HELD_MS


def test_nothing_reached_for_turns_is_a_stall_and_said_once() -> None:
    feed = GoalFeed(goal_set(SAID, USED), stall_turns=2).greet()
    for words in ("hello", "what?", "what?", "what?", "what?"):
        feed.exchange(words)
    (stall,) = feed.goals_row.stalls
    assert (stall.since_turn, stall.by, feed.goals_row.is_stalled) == (1, "turns", True)
    assert feed.news().count("stall.1") == 1


def test_so_is_nothing_reached_for_long() -> None:
    feed = (
        GoalFeed(goal_set(SAID, USED), stall_ms=60_000)
        .greet()
        .exchange("hello")
        .exchange("one moment please")
    )
    moved_ms = 11_000  # when turn 1 was left
    feed.advance(moved_ms + 59_999)
    assert not feed.goals_row.stalls
    feed.advance(moved_ms + 60_000)
    stalls = feed.goals_row.stalls
    assert ([stall.by for stall in stalls], feed.call().known_ms) == (
        ["seconds"],
        T0_MS + moved_ms + 60_000,
    )


def test_expected_tool_calls_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "LONG_CALL_MS", 0)
    expected: Sequence[Json] = [{"tool": "find", "turn": 0}, {"tool": "book", "turn": 1}]
    feed = GoalFeed(goal_set(SAID, expected_tool_calls=expected)).greet()
    for words in ("hello", "good", "thanks", "bye"):
        feed.exchange(words, tool="find" if words == "hello" else None)
        feed.at_ms += 30_000  # so that each turn has a record of the call
    feed.end()
    goals: list[Goals | None] = feed.values("goals")
    seen = [
        _value(each.tool_correctness)
        for each in goals
        if each is not None and each.tool_correctness is not None
    ]
    assert [value for value, _ in itertools.groupby(seen)] == [1.0, 0.5]


def uses(feed: GoalFeed, tool: str, parameters: Json, response: object) -> None:
    """A turn in which the agent uses a tool."""
    at_ms = feed.at_ms + 2_150
    (
        feed.exchange("please")
        .send(
            "audit",
            {"message_type": "tool_call", "value": {"tool": tool, "parameters": parameters}},
            at_ms,
        )
        .send(
            "audit",
            {"message_type": "tool_response", "value": {"tool": tool, "response": response}},
            at_ms + 100,
        )
    )


def test_an_expected_tool_call_says_why_it_was_missed_and_when_it_was_made_instead() -> None:
    phone = {"name": "phone", "value": "415-555-0199"}
    expected: Sequence[Json] = [
        {"tool": "find", "turn": 0},
        {"tool": "find", "turn": 1},
        {
            "tool": "book",
            "turn": 1,
            "expected_parameters": [{"name": "seat", "value": "12A"}, phone],
        },
        {"tool": "book", "turn": 1, "expected_output": {"value": {"ok": True}}},
        {"tool": "pay"},
        {"tool": "pay", "turn": 9},
    ]
    feed = GoalFeed(goal_set(SAID, expected_tool_calls=expected)).greet()
    uses(feed, "find", {"code": "X"}, "found")
    uses(feed, "book", {"seat": "12B" * 100, "phone": 4155550123}, {"ok": False})
    feed.end()
    found = feed.goals_row.expected_tools
    assert [
        (each.index, each.tool, each.turn, _value(each.result), each.missed) for each in found
    ] == [
        (0, "find", 1, 1.0, ()),
        (1, "find", 2, 0.0, ("name",)),
        (2, "book", 2, 0.0, ("arguments",)),
        (3, "book", 2, 0.0, ("output",)),
        (4, "pay", None, "not applicable: the goal set names no turn for it", ()),
        (5, "pay", 10, "expected_turn_not_reached", ()),
    ]
    assert [each.called_in_turns for each in found] == [(), (1,), (), (), (), ()]
    seat, told_phone = found[2].differences
    assert (seat.parameter, seat.expected, len(seat.seen or "")) == ("seat", '"12A"', 200)
    assert (told_phone.parameter, told_phone.expected, told_phone.seen) == (
        "phone",
        '"[PHONE]"',
        '"[PHONE]"',
    )
    (output,) = found[3].differences
    assert (output.parameter, output.expected, output.seen) == (
        None,
        '{"ok": true}',
        '{"ok": false}',
    )


def test_an_argument_that_a_judge_found_wrong_is_told_with_its_condition() -> None:
    expected = [
        {
            "tool": "book",
            "turn": 0,
            "expected_parameters": [{"name": "seat", "check": "It is at a window."}],
        }
    ]
    feed = GoalFeed(goal_set(SAID, expected_tool_calls=expected), asks_judge=True).greet()
    uses(feed, "book", {"seat": "12B"}, "done")
    feed.exchange("thanks")
    (request,) = feed.requests
    feed.judge(request, is_completed=False).end()
    (found,) = feed.goals_row.expected_tools
    assert (found.missed, found.differences) == (
        ("arguments",),
        (ToolDifference("seat", "It is at a window.", '"12B"'),),
    )


def test_a_goal_set_without_expected_tool_calls_has_no_list_of_them() -> None:
    feed = GoalFeed(goal_set(SAID)).greet().exchange("hello").end()
    assert (feed.goals_row.expected_tools, feed.goals_row.tool_correctness) == ((), None)


def test_a_question_about_a_value_is_put_also_beyond_the_bound_of_redaction() -> None:
    redactor = CallRedactor(Redactor())
    redactor.left_chars = 0
    call = CalledTool("book", {"note": "call 415-555-0123"}, None, is_success=True)
    question = ToolQuestion(1, 0, 0, "note", "It is short.", call.arguments["note"], call)
    assert in_words(question, redactor).endswith(f"It is: {TOO_LONG}")


def test_a_judge_that_gives_up_leaves_the_turn_unscored(feed: GoalFeed) -> None:
    feed.exchange("book it").exchange("is it done?").judge(feed.requests[0], is_completed=None)
    assert feed.progress() == [(1, "unavailable")]


def test_a_verdict_for_a_call_that_nobody_knows_opens_none(feed: GoalFeed) -> None:
    (
        feed.exchange("book it")
        .exchange("is it done?")
        .send(
            "judge",
            {
                "type": "judge_verdict",
                "request_id": "x",
                "conversation_id": "other",
                "kind": "subgoal",
                "turn": 1,
                "input_hash": "x",
                "prompt_version": "x",
                "result": {"outcome": "judged", "is_completed": True},
            },
            0,
            key="other",
        )
    )
    assert feed.evaluator.open_calls == ("call",)


def test_a_call_that_is_stuck_is_judged_before_others() -> None:
    feed = GoalFeed(goal_set(SAID, JUDGED), asks_judge=True, stall_turns=2).greet()
    for words in ("hello", "what?", "what?", "what?", "hello?"):
        feed.exchange(words)
        if feed.requests:
            feed.judge(feed.requests[-1], is_completed=False)
    assert [request.priority for request in feed.requests] == [0, 0, 0, 5]


def test_what_nobody_judges_is_no_stall() -> None:
    feed = GoalFeed(goal_set(JUDGED), stall_turns=1, stall_ms=1_000).greet()
    for words in ("hello", "what?", "what?"):
        feed.exchange(words).advance(feed.at_ms)
    assert feed.goals_row.stalls == ()


def test_while_one_goal_is_not_known_nobody_knows_of_a_stall() -> None:
    """It may have been reached: that another one was not says nothing."""
    feed = GoalFeed(goal_set(SAID, USED, JUDGED), stall_turns=1, stall_ms=1_000).greet()
    known = GoalFeed(goal_set(SAID, USED), stall_turns=1, stall_ms=1_000).greet()
    for each in (feed, known):
        for words in ("hello", "what?", "what?"):
            each.exchange(words).advance(each.at_ms)
    assert feed.goals_row.stalls == ()
    assert known.goals_row.stalls


class PhoneFeed(GoalFeed):
    """A call without a simulated caller: the bot reports the speaker, the audit log or pipecat's
    messages the words.
    """

    def said(self, user: str, answer: str, *, logs: bool = True, tool: str | None = None) -> None:
        at_ms = self.at_ms + 1_000
        self.speech("user_turn_started", at_ms).speech("user_turn_stopped", at_ms + 1_000)
        if logs:
            self.heard(user, at_ms + 1_000)
        else:
            self.send("pipecat", {"type": "user_message", "data": {"content": user}}, at_ms + 1_003)
        if tool is not None:
            self.tool_call(tool, at_ms + 1_100).tool_answer(tool, at_ms + 1_400)
        if logs:
            self.send("audit", {"message_type": "assistant", "value": answer}, at_ms + 1_500)
        self.speech("bot_speech_started", at_ms + 2_000).speech("bot_speech_stopped", at_ms + 3_000)
        if not logs:
            self.send(
                "pipecat", {"type": "assistant_message", "data": {"content": answer}}, at_ms + 3_005
            )
        self.at_ms += 10_000


@pytest.mark.parametrize("logs", [True, False], ids=["audit log", "messages of pipecat"])
def test_a_phone_call_has_progress_in_its_own_turns(*, logs: bool) -> None:
    feed = PhoneFeed(goal_set(SAID, USED, JUDGED), asks_judge=True)
    feed.spoke("bot", 100, 900)
    feed.said("hello", "How can I help?", logs=logs)
    feed.said("find me a flight", "Here is one.", logs=logs, tool="find")
    feed.said("thanks", "Bye.", logs=logs)
    first, *_ = feed.requests
    assert [(item.turn, item.kind, item.text) for item in first.transcript] == [
        (1, "user", "hello"),
        (1, "assistant", "How can I help?"),
    ]
    assert [(place, subgoal.reached_turn) for place, subgoal in feed.subgoals()] == [(0, 1), (1, 2)]
    feed.judge(first, is_completed=True)
    assert feed.progress() == [(1, 0.6667), (2, 1.0)]


def test_a_text_that_replaces_a_placeholder_is_what_was_said() -> None:
    feed = PhoneFeed(goal_set(SAID))
    feed.said("[user audio]", "How can I help?")
    feed.send("audit", {"type": "user_text_updated", "text": "hello"}, feed.at_ms)
    feed.said("thanks", "Bye.")
    assert feed.progress() == [(1, 1.0)]


def test_the_first_sound_of_a_simulated_caller_changes_to_its_turns() -> None:
    feed = PhoneFeed(goal_set(SAID, USED))
    feed.said("hello", "How can I help?")
    feed.said("good", "Yes?")
    feed.said("well", "Yes?")
    assert feed.progress() == [(1, 0.5), (2, 0.5)]
    feed.greet()
    assert [feed.turn(turn).progress for turn in (1, 2)] == [None, None], "there are no such turns"
    for words in ("find", "thanks", "bye"):
        feed.exchange(words, tool="find" if words == "find" else None)
    feed.end()
    assert feed.progress()[-1] == (3, 1.0)
    assert _value(feed.goals_row.success_final_turn) == 1.0


TEMPLATE = "{call}\nIs {subgoal} done?"
CARD = "4111 1111 1111 1111"


def asked(options: Json, **rules: Any) -> JudgeRequest:
    feed = (
        GoalFeed(goal_set(JUDGED, **options), asks_judge=True, **rules)
        .greet()
        .exchange("hello")
        .exchange("good")
    )
    return feed.requests[0]


def judged(feed: GoalFeed, *trials: Json) -> None:
    """Two turns, and a verdict with these trials on the first."""
    two_turns(feed)
    answer(feed, feed.requests[0], *trials)


def two_turns(feed: GoalFeed) -> None:
    """The first turn is over, so it is judged."""
    feed.greet().exchange("hello").exchange("good")


def answer(feed: GoalFeed, request: JudgeRequest, *trials: Json) -> None:
    """A verdict with these trials."""
    verdict = {
        "type": "judge_verdict",
        "request_id": request.request_id,
        "conversation_id": "call",
        "turn": 1,
        "kind": "subgoal",
        "input_hash": request.input_hash,
        "prompt_version": request.prompt_version,
        "result": {"outcome": "judged", "is_completed": True},
        "votes": {"complete": 2, "incomplete": 1},
        "answers": list(trials),
    }
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
    assert (
        asked({"template_subgoal": TEMPLATE + "!"}, template_subgoal=TEMPLATE).template
        == TEMPLATE + "!"
    )
    assert plain.request_id != own.request_id == by_setting.request_id
    # the name in agent-inspect's documentation
    assert asked({"templates_subgoal": TEMPLATE}) == own


@pytest.mark.parametrize("by_setting", [False, True], ids=["goal set", "setting"])
def test_the_trials_of_a_verdict_are_with_its_subgoal_if_asked_for(*, by_setting: bool) -> None:
    option = {"include_judge_explanation": True}
    feed = GoalFeed(
        goal_set(JUDGED, **({} if by_setting else option)),
        asks_judge=True,
        **(option if by_setting else {}),
    )
    trials = [
        trial(1, True, "Booked in turn 1."),
        trial(2, False, f"The card {CARD} is missing.", raw=CARD),
        trial(3, True, ""),
    ]
    judged(feed, *trials)
    (subgoal,) = feed.goals_row.subgoals
    assert [(each["trial"], each["grade"]) for each in subgoal.trials] == [
        (1, True),
        (2, False),
        (3, True),
    ]
    assert subgoal.trials[0]["explanation"] == "Booked in turn 1."
    assert CARD not in encode(feed.call()).decode()
    assert (subgoal.votes_complete, subgoal.votes_incomplete) == (2, 1)


def test_without_being_asked_for_they_are_left_out() -> None:
    feed = GoalFeed(goal_set(JUDGED), asks_judge=True)
    judged(feed, trial(1, True, "Booked."))
    (subgoal,) = feed.goals_row.subgoals
    assert (subgoal.reached_turn, subgoal.trials) == (1, ())


def test_a_verdict_that_was_read_before_its_question_keeps_its_trials() -> None:
    """As after a restart, where verdicts come from their topic first."""
    options = {"include_judge_explanation": True}
    first = GoalFeed(goal_set(JUDGED, **options), asks_judge=True)
    two_turns(first)
    again = GoalFeed(goal_set(JUDGED, **options), asks_judge=True)
    answer(again, first.requests[0], trial(1, True, "Booked."))
    two_turns(again)
    assert again.requests == []
    assert [each["explanation"] for each in again.goals_row.subgoals[0].trials] == ["Booked."]


ENDED: Json = {"type": "call_ended", "reason": "goodbye"}
WITHHELD = UnscoredReason.WITHHELD.value
STATUS_ALONE: Json = {"status": "success", "withheld": True}


class AlwaysSet:
    def __init__(self, goals: GoalSet) -> None:
        self.goals = goals

    def choose(self, _goals_id: str | None, _agent: str | None) -> GoalSet:
        return self.goals


def feed_with(check: Json) -> Feed:
    """A call with this goal and one that is reached in turn 1."""
    goals = GoalSet.model_validate(
        {
            "id": "g",
            "subgoals": [
                {"id": "a", "details": "d", "check": check},
                {"id": "b", "details": "d", "check": {"kind": "tool_called", "tool": "book"}},
            ],
        }
    )
    feed = Feed()
    feed.evaluator = PartitionEvaluator(
        Limits(), "test", ChosenGoals(AlwaysSet(goals), GoalRules())
    )
    return feed.send("audit", {"type": "call_started", "agent": "desk"}, 0)


def of_pipecat(check: Json, **answer: Any) -> Feed:
    """Two turns, the tool in the first."""
    feed = feed_with(check)
    for at_ms in (1_000, 8_000):
        feed.spoke("user", at_ms, at_ms + 1_000)
        if at_ms == 1_000:
            began = {"timestamp": (T0_MS + 2_100) / 1000}
            named = {"function_name": "book", "tool_call_id": "t1"}
            given = {"arguments": answer.pop("arguments")} if "arguments" in answer else {}
            event = {"kind": "function_call_in_progress", **named, **began, **given}
            feed.send("pipecat", {"type": "function_call_event", "data": event}, 2_100)
            ended = {"timestamp": (T0_MS + 2_900) / 1000}
            event = {"kind": "function_call_completed", **named, **ended, **answer}
            feed.send("pipecat", {"type": "function_call_event", "data": event}, 2_900)
        feed.spoke("bot", at_ms + 3_000, at_ms + 4_000)
    return feed.send("pipecat", ENDED, 13_000).advance(60_000)


def goals_of(feed: Feed) -> Goals:
    return some(feed.call().goals)


def first_subgoal(feed: Feed) -> float | str:
    return plain(goals_of(feed).subgoals[0].result)


SUCCESS: Json = {"kind": "tool_result", "tool": "book", "outcome": "success"}
SEAT: Json = {"kind": "tool_result", "tool": "book", "result": {"seat": {"equals": 4}}}
NO_SEAT: Json = {"kind": "tool_result", "tool": "book", "result": {"seat": {"present": False}}}
FOR_ANN: Json = {"kind": "tool_called", "tool": "book", "arguments": {"name": {"equals": "Ann"}}}


@pytest.mark.parametrize(
    ("check", "answer", "value"),
    [
        (SUCCESS, {}, WITHHELD),
        (SUCCESS, {"result": STATUS_ALONE}, 1.0),
        (SUCCESS | {"outcome": "error"}, {"result": STATUS_ALONE}, 0.0),
        (SUCCESS, {"result": {"status": "error", "withheld": True}}, 0.0),
        (SEAT, {}, WITHHELD),
        (SEAT, {"result": STATUS_ALONE}, WITHHELD),
        (SEAT, {"result": {"seat": 4}}, 1.0),
        (SEAT, {"result": {"seat": 5}}, 0.0),
        (NO_SEAT, {"result": STATUS_ALONE}, WITHHELD),
        ({"kind": "not", "check": SEAT}, {"result": STATUS_ALONE}, WITHHELD),
        (SEAT | {"tool": "find"}, {"result": STATUS_ALONE}, 0.0),
        ({"kind": "within", "turns": 1, "check": SEAT}, {"result": STATUS_ALONE}, WITHHELD),
        (FOR_ANN, {"result": STATUS_ALONE}, WITHHELD),
        (FOR_ANN, {"arguments": {"name": "Ann"}, "result": STATUS_ALONE}, 1.0),
        (FOR_ANN, {"arguments": {"name": "Bob"}, "result": STATUS_ALONE}, 0.0),
    ],
)
def test_a_goal_on_what_is_withheld_is_unknown_and_any_other_is_known(
    check: Json, answer: Json, value: float | str
) -> None:
    feed = of_pipecat(check, **answer)
    assert first_subgoal(feed) == value
    unknown = goals_of(feed).unscored_subgoals
    assert unknown == ({WITHHELD: 1} if value == WITHHELD else {})
    success = goals_of(feed).success_final_turn
    assert success is not None
    assert plain(success) == value
    progress = some(feed.turn(1).progress)
    assert plain(progress.result) == (WITHHELD if value == WITHHELD else (1 + float(value)) / 2)


def test_a_later_answer_that_is_sent_decides() -> None:
    """The tool of turn 1 withholds, an equal one of turn 2 does not."""
    feed = feed_with(SEAT)
    for turn, answer in ((1, STATUS_ALONE), (2, {"seat": 4})):
        at_ms = turn * 5_000
        feed.spoke("user", at_ms, at_ms + 1_000)
        times = {
            "timestamp": (T0_MS + at_ms + 1_900) / 1000,
            "in_progress_at": (T0_MS + at_ms + 1_100) / 1000,
        }
        event = {
            "kind": "function_call_completed",
            "function_name": "book",
            "tool_call_id": f"t{turn}",
            **times,
            "result": answer,
        }
        feed.send("pipecat", {"type": "function_call_event", "data": event}, at_ms + 1_900).spoke(
            "bot", at_ms + 2_000, at_ms + 3_000
        )
    feed.send("pipecat", ENDED, 15_000).advance(60_000)
    assert first_subgoal(feed) == 1.0
    assert goals_of(feed).subgoals[0].reached_turn == 2


@pytest.mark.parametrize(
    ("kind", "more", "check", "value"),
    [
        ("agent_tool_response", {}, SEAT, WITHHELD),
        ("agent_tool_response", {}, SUCCESS, 1.0),
        ("agent_tool_response_full_payload", {"full_tool_result": {"seat": 4}}, SEAT, 1.0),
        ("agent_tool_response", {}, FOR_ANN, WITHHELD),
    ],
)
def test_tools_of_an_agent_whose_monitor_sends_neither(
    kind: str, more: Json, check: Json, value: float | str
) -> None:
    feed = feed_with(check)
    for event in (
        heard("A seat, please.", 2_000, 1),
        tool_requested("book", "t1", 2_100),
        tool_replied("book", "t1", 2_900, kind, **more),
        said("Booked.", 3_000, 1),
    ):
        feed.send("user_sim", event, event["timestamp"] - T0_MS)
    feed.send("audit", ENDED, 6_000).advance(600_000)
    assert first_subgoal(feed) == value
