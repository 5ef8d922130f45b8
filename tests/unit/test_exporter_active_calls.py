"""Which calls the exporter takes for running, and when it stops doing so."""

from typing import Any

import pytest

from consumers.exporter import active_calls
from consumers.exporter.active_calls import ActiveCalls
from schemas.scores import CallLabels, CallStartedFact, ClosedFact, CloseReason, TurnStatus

AVA = ("ava", "unknown", "unknown")
BOB = ("bob", "unknown", "unknown")


def record(conversation_id: str, agent: str = "ava", *, closes: bool = False) -> CallStartedFact | ClosedFact:
    fields: dict[str, Any] = {
        "conversation_id": conversation_id,
        "revision": 1,
        "status": TurnStatus.OPEN,
        "input_hash": "0",
        "offsets": {},
        "event_time_ms": 0,
        "caused_at_ms": 0,
        "labels": CallLabels(agent=agent),
        "code_version": "1",
    }
    if closes:
        return ClosedFact(**fields, reason=CloseReason.ENDED, ended_reason=None, turns=0, events=0, through={})
    return CallStartedFact(**fields)


def test_a_call_runs_from_its_first_record_to_its_closing_one() -> None:
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
    active.take(record("c-1"), 0, 0)
    active.take(record("c-1"), 0, 1)
    active.take(record("c-2", "bob"), 0, 1)
    assert active.by_who() == {AVA: 1, BOB: 1}
    active.take(record("c-1", closes=True), 0, 2)
    assert active.by_who() == {AVA: 0, BOB: 1}  # 0, so that the line goes on
    assert len(active) == 1


def test_labels_that_become_known_move_the_call() -> None:
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
    active.take(record("c-1", "unknown"), 0, 0)
    active.take(record("c-1", "ava"), 0, 1)
    assert active.by_who() == {("unknown", "unknown", "unknown"): 0, AVA: 1}


def test_a_call_that_was_never_seen_may_close() -> None:
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
    assert active.take(record("c-1", closes=True), 0, 0) == 0
    assert active.by_who() == {}


def test_beyond_the_bound_the_quietest_call_is_forgotten() -> None:
    active = ActiveCalls(max_calls=2, forget_after_ms=1000)
    assert [active.take(record(name), 0, now_ms) for now_ms, name in enumerate(["c-1", "c-2", "c-1", "c-3"])] == [
        0,
        0,
        0,
        1,
    ]
    active.take(record("c-2", closes=True), 0, 5)
    assert len(active) == 2  # c-2 was the one
    assert active.by_who() == {AVA: 2}


def test_silent_calls_are_forgotten() -> None:
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
    active.take(record("c-1"), 0, 0)
    active.take(record("c-2"), 0, 500)
    assert active.forget_silent(1000) == 0
    assert active.forget_silent(1001) == 1
    assert active.by_who() == {AVA: 1}
    assert active.forget_silent(10_000) == 1


def test_calls_of_partitions_taken_away_are_dropped() -> None:
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
    active.take(record("c-1"), 0, 0)
    active.take(record("c-2", "bob"), 1, 0)
    active.keep_only({1, 2})
    assert active.by_who() == {AVA: 0, BOB: 1}


def test_lines_at_zero_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_calls, "MAX_KNOWN_GROUPS", 2)
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
    for number in range(3):
        active.take(record(f"c-{number}", f"agent-{number}"), 0, 0)
    active.take(record("c-0", closes=True), 0, 1)
    assert set(active.by_who()) == {("agent-1", "unknown", "unknown"), ("agent-2", "unknown", "unknown")}
