"""The cost of one call: events in order cost their own work only, and a call that keeps the engine busy is closed."""

import random

from consumers.engine.limits import Limits
from consumers.engine.turns.timeline import ToolEntry, ToolUse, ToolUses
from tests.support.fakes.engine_feed import Feed

LOOP_EVENTS = 2_000


def _close_reasons(feed: Feed) -> list[str]:
    return [record.reason.value for record in feed.records("closed")]


def test_one_more_tool_event_of_a_turn_changes_one_use() -> None:
    uses = ToolUses()
    last: ToolEntry | None = None
    for place in range(LOOP_EVENTS):
        last = ToolEntry(last, 1, ToolUse("look", {}), place, is_response=place % 2 == 1)
        changed = uses.follow(last)
        assert list(changed) == [(1, place // 2)]
    assert len(list(uses)) == LOOP_EVENTS // 2


def test_another_past_takes_back_what_is_not_in_it() -> None:
    first = ToolEntry(None, 1, ToolUse("look", {}), 0, is_response=False)
    answered = ToolEntry(first, 1, ToolUse("look", {}), 10, is_response=True)
    again = ToolEntry(answered, 1, ToolUse("look", {}), 20, is_response=False)
    uses = ToolUses()
    uses.follow(again)
    later = ToolEntry(first, 2, ToolUse("book", {}), 30, is_response=True)
    changed = uses.follow(later)
    assert {key: use and use.outcome for key, use in changed.items()} == {(1, 0): None, (1, 1): None, (2, 0): "success"}
    assert [(use.turn, use.index, use.tool) for use in uses] == [(1, 0, "look"), (2, 0, "book")]
    uses.follow(None)
    assert list(uses) == []


def test_tool_events_in_order_replay_nothing() -> None:
    feed = Feed()
    for place in range(LOOP_EVENTS):
        (feed.tool_answer if place % 2 else feed.tool_call)("look", place)
    assert feed.evaluator.replayed_elements == 0
    assert len(feed.records("tool_call")) == LOOP_EVENTS // 2


def test_sound_that_runs_backwards_closes_the_call_at_the_replay_limit() -> None:
    feed = Feed(Limits(max_replayed_elements_per_call=10_000))
    for place in range(LOOP_EVENTS):
        feed.user_audio(10_000_000 - 100 * place, text=None)
    feed.close_all()
    assert _close_reasons(feed) == ["limit_replays"]
    assert feed.counts("callgauge_limits_hit_total") == {("replays",): 1}
    assert 10_000 < feed.evaluator.replayed_elements < 10_200, "it stops at the first event over the limit"


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
        feed.send("pipecat", {"type": "call_started", "pipeline_type": ("s2s", "cascade")[place % 2]}, 300)
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
