"""A speech event that is lost or comes twice makes at most a turn unmeasured: never an interruption
or a dead air, and never a wrong number, not even one that is corrected later.

Exhaustive: each speech event of each recorded call of a real pipecat bot, and of producers that
name no starts.
"""

from collections.abc import Sequence
from functools import cache

import pytest

from tests.support.calls.pipecat_calls import (
    HALF_A_BROADCAST_MS,
    Outcome,
    other_half,
    outcome_of,
    recorded_calls,
    speech_places,
    without_starts,
)
from tests.support.fakes.engine_feed import Json

CALLS = sorted(recorded_calls())
SAME_MS = HALF_A_BROADCAST_MS + 0.01
BOTH_ENDS_MS = 2 * HALF_A_BROADCAST_MS + 1


@cache
def whole(name: str) -> Outcome:
    """The call as it was."""
    return outcome_of(recorded_calls()[name].events)


def is_known(value_ms: float, known_ms: Sequence[float]) -> bool:
    """Whether it is one of these values."""
    return any(abs(value_ms - each) <= SAME_MS for each in known_ms)


def assert_nothing_false(found: Outcome, name: str) -> None:
    """Every number is the one of the whole call, or missing."""
    true = whole(name)
    assert found.interruptions <= true.interruptions
    assert {
        turn: ms
        for turn, ms in found.latencies_ms.items()
        if not is_known(ms, [true.latencies_ms.get(turn, -1)])
    } == {}
    wrong = {
        key: ms
        for key, ms in found.stages_ms.items()
        if not is_known(ms, [true.stages_ms.get(key, -1)])
    }
    assert wrong == {}
    spoken = found.speech_ms.items()
    assert {
        key: ms for key, ms in spoken if abs(ms - true.speech_ms.get(key, -9)) > BOTH_ENDS_MS
    } == {}
    assert len(found.turns) == len(true.turns)
    assert_nothing_false_at_any_time(found, name)


def assert_nothing_false_at_any_time(found: Outcome, name: str) -> None:
    """Every interruption, dead air and latency that was ever published is one of the whole call."""
    true = whole(name)
    assert found.interruptions <= true.interruptions
    assert [each for each in found.ever_ms if not is_known(each, list(true.ever_ms))] == []
    known = {
        turn: [since_ms for each, since_ms in true.dead_airs if each == turn]
        for turn, _ in found.dead_airs
    }
    assert [
        (turn, since_ms)
        for turn, since_ms in found.dead_airs
        if not is_known(since_ms, known[turn])
    ] == []


@pytest.mark.parametrize("name", CALLS)
def test_each_speech_event_left_out(name: str) -> None:
    events = recorded_calls()[name].events
    for place in speech_places(events):
        assert_nothing_false(outcome_of([*events[:place], *events[place + 1 :]]), name)


@pytest.mark.parametrize("name", CALLS)
def test_each_speech_event_left_out_where_ends_name_no_starts(name: str) -> None:
    events = without_starts(recorded_calls()[name].events)
    for place in speech_places(events):
        assert_nothing_false_at_any_time(outcome_of([*events[:place], *events[place + 1 :]]), name)


@pytest.mark.parametrize("name", CALLS)
def test_each_speech_event_twice(name: str) -> None:
    events = recorded_calls()[name].events
    for place in speech_places(events):
        again = events[place]
        for twice in ([again], [other_half(again)]):
            found = outcome_of([*events[: place + 1], *twice, *events[place + 1 :]])
            assert_nothing_false(found, name)
            assert set(found.latencies_ms) == set(whole(name).latencies_ms)
            assert_nothing_false_at_any_time(
                outcome_of(without_starts([*events[: place + 1], *twice, *events[place + 1 :]])),
                name,
            )
        found = outcome_of([*events, again])  # by a producer that tries again much later
        assert_nothing_false(found, name)


@pytest.mark.parametrize("name", CALLS)
def test_both_halves_of_every_broadcast(name: str) -> None:
    both: list[Json] = []
    for event in recorded_calls()[name].events:
        both += [event, other_half(event)] if event["type"] == "speech_event" else [event]
    found = outcome_of(both)
    assert_nothing_false(found, name)
    assert set(found.latencies_ms) == set(whole(name).latencies_ms)
    assert found.transcript == whole(name).transcript
