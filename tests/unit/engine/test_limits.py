"""The limits of a call bound its events, its numbers and the work of one step."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import jiwer
import pytest

from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.measures import eva as eva_scores
from consumers.engine.measures import words as word_errors
from consumers.engine.measures.eva_timing import MAX_LIVE_SOUNDS, heard_times
from consumers.engine.redaction import redactor as redaction
from consumers.engine.sources.elevenlabs import MAX_REPLIES_OF_AN_ID
from consumers.engine.turns.bot import BotTurnMachine
from consumers.engine.turns.timeline import ToolEntry, ToolPayload, ToolUses
from schemas import judging
from schemas.closed_sets import JudgeKind
from schemas.goals.goal_set import GoalSet
from schemas.rows import CallRow
from schemas.wire import MAX_NAME_CHARS
from tests.support.calls.agent_calls import corrected, envelope_of, said
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, closings_of, rows_of
from tests.support.known import instance_of, some
from tests.unit.engine.goals.test_progress import OneSet

LOOP_EVENTS = 2_000


def _close_reasons(feed: Feed) -> list[str]:
    return [str(row.close_reason) for row in closings_of(feed.effects)]


def test_one_more_tool_event_of_a_turn_changes_one_use() -> None:
    uses = ToolUses()
    last: ToolEntry | None = None
    for place in range(LOOP_EVENTS):
        last = ToolEntry(last, 1, ToolPayload("look", {}), place, is_response=place % 2 == 1)
        changed = uses.follow(last)
        assert list(changed) == [(1, place // 2)]
    assert len(list(uses)) == LOOP_EVENTS // 2


def test_another_past_takes_back_what_is_not_in_it() -> None:
    first = ToolEntry(None, 1, ToolPayload("look", {}), 0, is_response=False)
    answered = ToolEntry(first, 1, ToolPayload("look", {}), 10, is_response=True)
    again = ToolEntry(answered, 1, ToolPayload("look", {}), 20, is_response=False)
    uses = ToolUses()
    uses.follow(again)
    later = ToolEntry(first, 2, ToolPayload("book", {}), 30, is_response=True)
    changed = uses.follow(later)
    assert {key: use and use.outcome for key, use in changed.items()} == {
        (1, 0): None,
        (1, 1): None,
        (2, 0): "success",
    }
    assert [(use.turn, use.index, use.tool) for use in uses] == [(1, 0, "look"), (2, 0, "book")]
    uses.follow(None)
    assert list(uses) == []


def test_tool_events_in_order_replay_nothing() -> None:
    feed = Feed()
    for place in range(LOOP_EVENTS):
        (feed.tool_answer if place % 2 else feed.tool_call)("look", place)
    assert feed.evaluator.replayed_elements == 0
    assert feed.call().tool_calls == LOOP_EVENTS // 2


def test_sound_that_runs_backwards_closes_the_call_at_the_replay_limit() -> None:
    feed = Feed(Limits(max_replayed_elements_per_call=10_000))
    for place in range(LOOP_EVENTS):
        feed.user_audio(10_000_000 - 100 * place, text=None)
    feed.close_all()
    assert _close_reasons(feed) == ["limit_replays"]
    assert feed.counts("callgauge_limits_hit_total") == {("replays",): 1}
    assert 10_000 < feed.evaluator.replayed_elements < 10_200, (
        "it stops at the first event over the limit"
    )


def test_phrases_taken_back_again_and_again_count_as_replay() -> None:
    feed = Feed()
    for place in range(LOOP_EVENTS):
        feed.send("pipecat", {"type": "tts_text", "data": {"frame": "so I say"}}, place // 2)
    assert feed.evaluator.replayed_elements >= LOOP_EVENTS // 2, (
        "each second one shares its stamp and takes back the first"
    )


def test_pipeline_types_that_flip_close_the_call_at_the_replay_limit() -> None:
    feed = Feed(Limits(max_replayed_elements_per_call=10_000))
    for place in range(200):
        feed.tool_call("look", place)
    for place in range(LOOP_EVENTS):
        feed.send(
            "pipecat", {"type": "call_started", "pipeline_type": ("s2s", "cascade")[place % 2]}, 300
        )
    feed.close_all()
    assert _close_reasons(feed) == ["limit_replays"]


def test_a_normal_call_that_arrives_shuffled_is_far_from_the_limit() -> None:
    feed = Feed()
    at_ms = list(range(0, 300_000, 1_000))
    for place in range(0, len(at_ms), 5):
        few = at_ms[place : place + 5]
        random.Random(place).shuffle(few)  # noqa: S311  # an order, not a secret
        for time_ms in few:
            feed.heard("Hello", time_ms)
    feed.close_all()
    assert _close_reasons(feed) == []
    assert 0 < feed.evaluator.replayed_elements < 0.01 * Limits().max_replayed_elements_per_call


def test_texts_without_end_close_the_call_at_the_bytes_limit() -> None:
    feed = Feed(Limits(max_kept_bytes_per_call=100_000))
    for place in range(20):
        feed.user_audio(1_000 * place, text="hello you " * 1_000)
    feed.close_all()
    assert _close_reasons(feed) == ["limit_kept_bytes"]
    assert feed.counts("callgauge_limits_hit_total") == {("kept_bytes",): 1}


def test_prompts_of_the_agent_are_not_kept_and_do_not_count() -> None:
    feed = Feed(Limits(max_kept_bytes_per_call=100_000))
    for place in range(20):
        feed.send("audit", {"message_type": "llm_call", "value": {"prompt": "x" * 20_000}}, place)
    feed.close_all()
    assert _close_reasons(feed) == []


BREAKDOWN: Json = {
    "type": "latency_breakdown",
    "data": {"contributions": [{"key": "k" * 100_000, "duration_secs": 1.0}]},
}


def test_a_name_without_a_stage_is_kept_short() -> None:
    feed = (
        Feed()
        .send("pipecat", BREAKDOWN, 1_000)
        .send("pipecat", {**BREAKDOWN, "data": {"contributions": [{"key": ["x"] * 1_000}]}}, 2_000)
    )
    (call,) = feed.evaluator._calls.values()
    kept = call._measures.stages.unknown_keys
    assert {len(key) for key in kept} == {MAX_NAME_CHARS, len("contribution list")}


def test_answers_with_one_id_are_kept_up_to_a_number() -> None:
    feed = Feed()
    for number in range(MAX_REPLIES_OF_AN_ID + 10):
        event = said(f"Answer {number}.", number, 7)
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    event = corrected("Answer 3.", "Answer", 10_000, 7)
    feed.send("user_sim", event, 10_000, envelope=envelope_of(event))
    (call,) = feed.evaluator._calls.values()
    assert call._agent._live is not None
    assert len(call._agent._live._replies[7]) == MAX_REPLIES_OF_AN_ID
    machine = instance_of(BotTurnMachine, call.live.machine)
    refs = {each.ref for each in machine.words[0]}
    assert {"Answer", "Answer 4."} <= refs


def test_a_turn_with_sounds_without_end_is_scored_again_at_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return heard_times(*args, **more)

    monkeypatch.setattr(eva_scores, "heard_times", counted)
    feed = Feed().assistant_audio(0, 500).user_audio(1_000, 2_000)
    for place in range(2 * MAX_LIVE_SOUNDS):
        feed.assistant_audio(4_000 + 10 * place, 4_005 + 10 * place)
    feed.user_audio(30_000, 31_000)
    assert looks == 0, (
        "the greeting has no score, and turn 1 too many sounds to have one while the call runs"
    )
    assert feed.turn(1).turn_taking is None
    feed.advance(10_000_000)
    assert looks == 3
    timing = some(feed.turn(1).turn_taking)
    assert isinstance(timing.result, float)


def test_a_call_has_two_wake_ups_however_long_it_is() -> None:
    """Each silence sets a deadline before the idle time; when it is over, the idle time counts
    again.
    """
    feed = Feed()
    for turn in range(50):
        at_ms = 10_000 * turn
        (
            feed.user_audio(at_ms, at_ms + 1_000)
            .advance(at_ms + 5_500)
            .assistant_audio(at_ms + 6_000, at_ms + 7_000)
            .advance(at_ms + 9_000)
        )
        assert len(feed.evaluator._wakeups._heap) <= 2
    assert feed.silences() != []
    feed.advance(3_600_000)
    assert _close_reasons(feed) == ["idle"]
    assert feed.evaluator.next_wakeup() is None


MOST_WORK_US = 1_000_000
PRICES_US = {
    "redacted characters": 8.0,
    "compared characters": 6.0,
    "folded elements": 12.0,
    "rows": 60.0,
    "entries in questions": 5.0,
    "characters in questions": 0.03,
}
"""The highest cost of each on a quiet machine of this kind."""
LIMITS = Limits()
HOSTILE = ("1,", "+1(", "0044 20 ", "one two at dot may ", "GB82 ")
CHARS_OF_A_TURN = 2_400
STAGE_EVENTS = 1_024
"""Each with as many values as make `max_stage_values_per_call` together."""


class Steps:
    """The work of the step under way, and the steps so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: Counter[str] = Counter()
        self.longest: list[tuple[float, str, dict[str, int]]] = []
        self.longest_ms = 0.0
        self._count(monkeypatch, redaction, "Words", "redacted characters", len)
        self._count(
            monkeypatch,
            word_errors,
            "normalised",
            "compared characters",
            lambda text, _: min(len(text), 5_000),
        )
        self._count(
            monkeypatch,
            jiwer,
            "process_words",
            "compared characters",
            lambda one, two: len(one) + len(two),
        )

    def _count(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        unit: str,
        size: Callable[..., int],
    ) -> None:
        counted = getattr(owner, name, None)

        def counting(*arguments: Any, **more: Any) -> Any:
            self.work[unit] += size(*arguments)
            return counted(*arguments, **more) if counted is not None else None

        monkeypatch.setattr(owner, name, counting, raising=False)

    def take(
        self, what: str, evaluator: PartitionEvaluator, step: Callable[[], Sequence[Effect]]
    ) -> Sequence[Effect]:
        """One step."""
        self.work.clear()
        replayed, began = evaluator.replayed_elements, time.thread_time()
        effects = step()
        self.longest_ms = max(self.longest_ms, 1_000 * (time.thread_time() - began))
        self.work["rows"] = len(rows_of(effects))
        self.work["folded elements"] = 1 + evaluator.replayed_elements - replayed
        for effect in effects:
            if isinstance(effect, RequestVerdict):
                self.work["entries in questions"] += len(effect.request.transcript)
                self.work["characters in questions"] += judging.transcript_chars(
                    effect.request.transcript
                )
        price_us = sum(PRICES_US.get(unit, 0) * number for unit, number in self.work.items())
        self.longest = sorted(
            [*self.longest, (price_us, what, dict(self.work))], key=lambda each: -each[0]
        )[:5]
        return effects


class MeteredFeed(Feed):
    """A call whose steps are counted until it has closed."""

    def __init__(self, steps: Steps, goals: ChosenGoals | None = None) -> None:
        super().__init__()
        self.evaluator = PartitionEvaluator(LIMITS, "test", goals, writes_transcripts=True)
        self.events = 0
        self.closed: CallRow | None = None
        self._steps = steps

    def send(self, stream: str, event: Json, at_ms: int, **more: Any) -> Self:
        if self.closed is not None:
            return self
        self.events += 1
        what = str(event.get("type") or event.get("event_type") or event.get("message_type"))
        effects = self._steps.take(
            what,
            self.evaluator,
            lambda: super(MeteredFeed, self).send(stream, event, at_ms, **more).latest,
        )
        self.effects.clear()
        self._look(effects)
        return self

    def end(self, at_ms: int) -> None:
        """The call ends, and time passes until it has closed."""
        self.send(
            "audit",
            {"message_type": "call_ended", "type": "call_ended", "reason": "goodbye"},
            at_ms,
        )
        for _ in range(2_000):
            if self.closed is not None:
                return
            at_ms += 70_000
            self._look(
                self._steps.take(
                    "time", self.evaluator, partial(self.evaluator.pass_time, T0_MS + at_ms)
                )
            )
            self._look(self._steps.take("closing", self.evaluator, self.evaluator.close_some))
        raise AssertionError("the call does not close")

    def _look(self, effects: Sequence[Effect]) -> None:
        self.closed = next(iter(closings_of(effects)), self.closed)


def _turn(feed: Feed, at_ms: int, texts: Iterator[str]) -> None:
    (
        feed.user_audio(at_ms, at_ms + 1_000, text=next(texts))
        .heard(next(texts), at_ms + 1_100)
        .send("audit", {"message_type": "assistant", "value": next(texts)}, at_ms + 1_200)
        .send("pipecat", {"type": "turn_start", "data": {"frame": "turn_start"}}, at_ms + 1_300)
        .send("pipecat", {"type": "tts_text", "data": {"frame": next(texts)}}, at_ms + 1_300)
        .assistant_audio(at_ms + 1_500, at_ms + 3_000)
    )


def _texts(chars: int) -> Iterator[str]:
    number = 0
    while True:
        unit = HOSTILE[number % len(HOSTILE)]
        number += 1
        yield f"{number} {unit * (chars // len(unit))}"


def _hostile_call(
    feed: MeteredFeed,
    turns: int,
    *,
    tools: int,
    idle_events: int,
    is_late: bool,
    chars: int | None = None,
) -> None:
    feed.send("pipecat", {"type": "call_started", "agent": "desk"}, 0)
    texts = _texts(chars or min(30_000, CHARS_OF_A_TURN * 990 // turns // 4))
    per_event = LIMITS.max_stage_values_per_call // STAGE_EVENTS
    began_ms = 20_000
    for turn in range(turns):
        at_ms = began_ms + 4_000 * turn
        _turn(feed, at_ms, texts)
        for place in range(STAGE_EVENTS * turn // turns, STAGE_EVENTS * (turn + 1) // turns):
            contributions = [
                {"key": "asr", "duration_secs": 0.1 + place / 1e6 + each / 1e3}
                for each in range(per_event)
            ]
            event = {"type": "latency_breakdown", "data": {"contributions": contributions}}
            feed.send("pipecat", event, at_ms + 1_400)
        for use in range(tools * turn // turns, tools * (turn + 1) // turns):
            feed.tool_call("find", at_ms + 1_250).tool_answer(
                "find", at_ms + 1_260, {"phone": use, "text": "12 "}
            )
        for _ in range(idle_events // turns):
            feed.send(
                "audit", {"message_type": "llm_call", "value": {"prompt": "x"}}, at_ms + 1_450
            )
    ends_ms = began_ms + 4_000 * turns
    if is_late:
        feed.heard("something that was said at the very first", 10_000).user_audio(
            11_000, 12_000, text="and heard late"
        )
        _turn(feed, ends_ms, texts)
        _turn(feed, ends_ms + 4_000, texts)
    feed.end(ends_ms + 20_000)


def _report(steps: Steps, feed: MeteredFeed) -> str:
    lines = [
        f"{price_us / 1_000:.0f} ms by count: {what} {work}"
        for price_us, what, work in steps.longest
    ]
    reason = feed.closed and feed.closed.close_reason
    return (
        f"{feed.events} events, {reason}, longest step {steps.longest_ms:.0f} ms of processor "
        "time\n" + "\n".join(lines)
    )


@pytest.mark.parametrize(
    ("turns", "tools", "idle_events", "is_late"),
    [(980, 3_000, 25_000, True), (27, 100, 0, True), (3, 1_000, 0, False)],
    ids=["every-limit", "long-turns", "few-turns"],
)
def test_no_step_of_a_call_at_its_limits_does_more_than_a_second_of_work(
    monkeypatch: pytest.MonkeyPatch, turns: int, tools: int, idle_events: int, is_late: bool
) -> None:
    steps = Steps(monkeypatch)
    feed = MeteredFeed(steps)
    _hostile_call(feed, turns, tools=tools, idle_events=idle_events, is_late=is_late)
    print(_report(steps, feed))
    assert feed.closed is not None
    assert steps.longest[0][0] < MOST_WORK_US, _report(steps, feed)


def test_no_step_of_a_judged_call_does_more_than_a_second_of_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subgoals = [
        {"id": f"j{place}", "details": "d", "check": {"kind": "judge"}} for place in range(10)
    ]
    goals = GoalSet.model_validate({"id": "many", "subgoals": subgoals, "max_turns": 50})
    judges = (
        JudgeKind.CONCISENESS,
        JudgeKind.SPEAKABILITY,
        JudgeKind.FAITHFULNESS,
        JudgeKind.CONVERSATION_PROGRESSION,
    )
    steps = Steps(monkeypatch)
    feed = MeteredFeed(
        steps, ChosenGoals(OneSet(goals), GoalRules(asks_judge=True, text_judges=judges))
    )
    _hostile_call(feed, 200, tools=100, idle_events=0, is_late=True, chars=500)
    print(_report(steps, feed))
    assert feed.closed is not None
    assert steps.longest[0][0] < MOST_WORK_US, _report(steps, feed)
