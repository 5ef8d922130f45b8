"""No step of one call inside its limits holds the others up: its work is counted, and priced as it was measured."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jiwer
import pytest

from consumers.engine.effects import CloseCall, Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.measures import words as word_errors
from consumers.engine.records import Revisions
from consumers.engine.redaction import redactor as redaction
from schemas import judging
from schemas.closed_sets import JudgeKind
from schemas.goals.goal_set import GoalSet
from tests.support.fakes.engine_feed import T0_MS, Feed, Json
from tests.unit.engine.goals.test_goal_progress import OneSet

MOST_WORK_US = 1_000_000
PRICES_US = {
    "redacted characters": 8.0,
    "compared characters": 6.0,
    "folded elements": 12.0,
    "records": 60.0,
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
            monkeypatch, word_errors, "normalised", "compared characters", lambda text, _: min(len(text), 5_000)
        )
        self._count(monkeypatch, jiwer, "process_words", "compared characters", lambda one, two: len(one) + len(two))
        self._count_records(monkeypatch)

    def _count(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, unit: str, size: Callable[..., int]
    ) -> None:
        counted = getattr(owner, name, None)

        def counting(*arguments: Any, **more: Any) -> Any:
            self.work[unit] += size(*arguments)
            return counted(*arguments, **more) if counted is not None else None

        monkeypatch.setattr(owner, name, counting, raising=False)

    def _count_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make = Revisions.make

        def counting(*arguments: Any, **more: Any) -> Any:
            record = make(*arguments, **more)
            self.work["records"] += record is not None
            return record

        monkeypatch.setattr(Revisions, "make", counting)

    def take(self, what: str, evaluator: PartitionEvaluator, step: Callable[[], Sequence[Effect]]) -> Sequence[Effect]:
        """One step."""
        self.work.clear()
        replayed, began = evaluator.replayed_elements, time.thread_time()
        effects = step()
        self.longest_ms = max(self.longest_ms, 1_000 * (time.thread_time() - began))
        self.work["folded elements"] = 1 + evaluator.replayed_elements - replayed
        for effect in effects:
            if isinstance(effect, RequestVerdict):
                self.work["entries in questions"] += len(effect.request.transcript)
                self.work["characters in questions"] += judging.transcript_chars(effect.request.transcript)
        price_us = sum(PRICES_US.get(unit, 0) * number for unit, number in self.work.items())
        self.longest = sorted([*self.longest, (price_us, what, dict(self.work))], key=lambda each: -each[0])[:5]
        return effects


class MeteredFeed(Feed):
    """A call whose steps are counted until it has closed."""

    def __init__(self, steps: Steps, goals: ChosenGoals | None = None) -> None:
        super().__init__()
        self.evaluator = PartitionEvaluator(LIMITS, "test", goals, writes_transcripts=True)
        self.events = 0
        self.closed: CloseCall | None = None
        self._steps = steps

    def send(self, stream: str, event: Json, at_ms: int, **more: Any) -> Sequence[Effect]:
        if self.closed is not None:
            return ()
        self.events += 1
        what = str(event.get("type") or event.get("event_type") or event.get("message_type"))
        effects = self._steps.take(
            what, self.evaluator, lambda: super(MeteredFeed, self).send(stream, event, at_ms, **more)
        )
        self.effects.clear()
        self._look(effects)
        return effects

    def end(self, at_ms: int) -> None:
        """The call ends, and time passes until it has closed."""
        self.send("audit", {"message_type": "call_ended", "type": "call_ended", "reason": "goodbye"}, at_ms)
        for _ in range(2_000):
            if self.closed is not None:
                return
            at_ms += 70_000
            self._look(self._steps.take("time", self.evaluator, partial(self.evaluator.pass_time, T0_MS + at_ms)))
            self._look(self._steps.take("closing", self.evaluator, self.evaluator.close_some))
        raise AssertionError("the call does not close")

    def _look(self, effects: Sequence[Effect]) -> None:
        self.closed = next((each for each in effects if isinstance(each, CloseCall)), self.closed)


def _turn(feed: Feed, at_ms: int, texts: Iterator[str]) -> None:
    feed.user_audio(at_ms, at_ms + 1_000, text=next(texts))
    feed.heard(next(texts), at_ms + 1_100)
    feed.send("audit", {"message_type": "assistant", "value": next(texts)}, at_ms + 1_200)
    feed.send("pipecat", {"type": "turn_start", "data": {"frame": "turn_start"}}, at_ms + 1_300)
    feed.send("pipecat", {"type": "tts_text", "data": {"frame": next(texts)}}, at_ms + 1_300)
    feed.assistant_audio(at_ms + 1_500, at_ms + 3_000)


def _texts(chars: int) -> Iterator[str]:
    number = 0
    while True:
        unit = HOSTILE[number % len(HOSTILE)]
        number += 1
        yield f"{number} {unit * (chars // len(unit))}"


def _hostile_call(
    feed: MeteredFeed, turns: int, *, tools: int, idle_events: int, is_late: bool, chars: int | None = None
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
                {"key": "asr", "duration_secs": 0.1 + place / 1e6 + each / 1e3} for each in range(per_event)
            ]
            event = {"type": "latency_breakdown", "data": {"contributions": contributions}}
            feed.send("pipecat", event, at_ms + 1_400)
        for use in range(tools * turn // turns, tools * (turn + 1) // turns):
            feed.tool_call("find", at_ms + 1_250)
            feed.tool_answer("find", at_ms + 1_260, {"phone": use, "text": "12 "})
        for _ in range(idle_events // turns):
            feed.send("audit", {"message_type": "llm_call", "value": {"prompt": "x"}}, at_ms + 1_450)
    ends_ms = began_ms + 4_000 * turns
    if is_late:
        feed.heard("something that was said at the very first", 10_000)
        feed.user_audio(11_000, 12_000, text="and heard late")
        _turn(feed, ends_ms, texts)
        _turn(feed, ends_ms + 4_000, texts)
    feed.end(ends_ms + 20_000)


def _report(steps: Steps, feed: MeteredFeed) -> str:
    lines = [f"{price_us / 1_000:.0f} ms by count: {what} {work}" for price_us, what, work in steps.longest]
    reason = feed.closed and getattr(feed.closed.records[-1], "reason", None)
    return f"{feed.events} events, {reason}, longest step {steps.longest_ms:.0f} ms of processor time\n" + "\n".join(
        lines
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


def test_no_step_of_a_judged_call_does_more_than_a_second_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    subgoals = [{"id": f"j{place}", "details": "d", "check": {"kind": "judge"}} for place in range(10)]
    goals = GoalSet.model_validate({"id": "many", "subgoals": subgoals, "max_turns": 50})
    judges = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY, JudgeKind.FAITHFULNESS, JudgeKind.CONVERSATION_PROGRESSION)
    steps = Steps(monkeypatch)
    feed = MeteredFeed(steps, ChosenGoals(OneSet(goals), GoalRules(asks_judge=True, text_judges=judges)))
    _hostile_call(feed, 200, tools=100, idle_events=0, is_late=True, chars=500)
    print(_report(steps, feed))
    assert feed.closed is not None
    assert steps.longest[0][0] < MOST_WORK_US, _report(steps, feed)
