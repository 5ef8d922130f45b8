"""Recorded calls become wire events in the order of a live system, at the right times."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.recordings.files import RecordedCall
from streamer.sources.replay import (
    DeliveryTimes,
    WireEvent,
    event_time_ms,
    in_random_order,
    in_time_order,
    renamed,
    seconds_to_now,
    shifted,
    with_control_events,
)

NOW_MS = 1_790_000_000_000


def entry(time_ms: int, value: str = "x") -> dict[str, Any]:
    return {"value": value, "timestamp": str(time_ms), "message_type": "user"}


def word(time_ms: int, frame: str = "x") -> dict[str, Any]:
    return {
        "type": "tts_text",
        "data": {"frame": frame},
        "timestamp": time_ms,
        "conversation_id": "old",
    }


def sound(time_ms: int, audio_seconds: float = 0.0) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "event_type": "audio_start",
        "user": "assistant",
        "audio_timestamp": audio_seconds,
    }


def a_call(
    audit: list[Any] | None = None,
    pipecat: list[Any] | None = None,
    elevenlabs: list[Any] | None = None,
    **more: Any,
) -> RecordedCall:
    first, second, third = (
        None if stream is None else tuple(stream) for stream in (audit, pipecat, elevenlabs)
    )
    return RecordedCall("call-1", "cascade", "goodbye", first, second, third, **more)


def summary(events: Iterator[WireEvent]) -> list[tuple[str, int, int]]:
    return [(event.source, event.sequence, event.time_ms) for event in events]


def test_sources_are_merged_by_time_and_ties_by_rank() -> None:
    call = a_call([entry(5), entry(9)], [word(5), word(7)], [sound(4), sound(5)])
    assert summary(in_time_order(call)) == [
        ("elevenlabs", 1, 4),
        ("audit", 1, 5),
        ("pipecat", 1, 5),
        ("elevenlabs", 2, 5),
        ("pipecat", 2, 7),
        ("audit", 2, 9),
    ]


def test_a_stream_that_is_not_sorted_keeps_its_order() -> None:
    events = list(
        in_time_order(a_call([entry(5), entry(3), entry(10)], None, [sound(4), sound(6)]))
    )
    assert summary(iter(events)) == [
        ("elevenlabs", 1, 4),
        ("audit", 1, 5),
        ("audit", 2, 3),
        ("elevenlabs", 2, 6),
        ("audit", 3, 10),
    ]
    assert [event.arrival_ms for event in events] == [4, 5, 5, 6, 10]


def test_an_event_without_a_time_goes_with_the_one_before_it() -> None:
    events = in_time_order(
        a_call([], [{"type": "turn_start"}, word(7), {"timestamp": "soon"}, word(9)])
    )
    assert [(event.time_ms, event.event_name) for event in events] == [
        (7, "turn_start"),
        (7, "tts_text"),
        (7, "unknown"),
        (9, "tts_text"),
    ]


def test_names_and_bytes() -> None:
    call = a_call(
        [entry(1, "é\ud83d")],
        [word(2)],
        [sound(3)],
        control=({"type": "call_started", "timestamp": 0},),
    )
    events = list(in_time_order(call))
    assert [event.event_name for event in events] == [
        "call_started",
        "user",
        "tts_text",
        "audio_start",
    ]
    assert events[1].value == b'{"value":"\\u00e9\\ud83d","timestamp":"1","message_type":"user"}'


@pytest.mark.parametrize(
    ("stamp", "time_ms"),
    [
        (5, 5),
        ("5", 5),
        (5.9, 5),
        (None, None),
        ("1.5", None),
        ("²", None),
        (True, None),
        ([], None),
        ("9" * 5_000, None),
        (10**400, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_times_as_sources_write_them(stamp: object, time_ms: int | None) -> None:
    assert event_time_ms({"timestamp": stamp}) == time_ms


streams = st.none() | st.lists(st.integers(0, 30), max_size=12)
wild_calls = st.builds(
    lambda audit, pipecat, elevenlabs: a_call(
        None if audit is None else [entry(at) for at in audit],
        None if pipecat is None else [word(at) for at in pipecat],
        None if elevenlabs is None else [sound(at) for at in elevenlabs],
    ),
    streams,
    streams,
    streams,
)


def by_source(events: Iterator[WireEvent]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"audit": [], "pipecat": [], "elevenlabs": []}
    for event in events:
        found[event.source].append(json.loads(event.value))
        assert event.sequence == len(found[event.source])
    return found


@given(wild_calls, st.integers())
def test_every_order_has_every_event_once_and_keeps_each_source(
    call: RecordedCall, seed: int
) -> None:
    recorded = {
        name: list(getattr(call, name) or ()) for name in ("audit", "pipecat", "elevenlabs")
    }
    ordered = list(in_time_order(call))
    assert by_source(iter(ordered)) == by_source(in_random_order(call, seed)) == recorded
    arrivals = [event.arrival_ms for event in ordered]
    assert arrivals == sorted(arrivals)
    assert all(event.arrival_ms >= event.time_ms for event in ordered)


def test_random_order_depends_on_the_seed_only() -> None:
    call = a_call(
        [entry(at) for at in range(9)],
        [word(at) for at in range(9)],
        [sound(at) for at in range(9)],
    )
    orders = {tuple(summary(in_random_order(call, seed))) for seed in (1, 1, 2, 3)}
    assert len(orders) == 3


def test_every_interleaving_is_equally_likely() -> None:
    call = a_call([entry(0)], [word(0)] * 9)
    first = sum(next(in_random_order(call, seed)).source == "audit" for seed in range(500))
    assert 25 < first < 80  # one in ten


def test_late_events_hold_up_their_source_only_and_repeats_are_the_same_record() -> None:
    call = a_call([entry(1), entry(2)], None, [sound(3), sound(9)])
    delivery = DeliveryTimes({("audit", 0): 5}, frozenset({("audit", 1)}))
    events = list(in_time_order(call, delivery))
    assert summary(iter(events)) == [
        ("elevenlabs", 1, 3),
        ("audit", 1, 1),
        ("audit", 2, 2),
        ("audit", 2, 2),
        ("elevenlabs", 2, 9),
    ]
    assert [event.arrival_ms for event in events] == [3, 6, 6, 6, 9]
    assert events[2] == events[3]


def test_an_update_does_not_overtake_the_entry_it_replaces() -> None:
    update = {"type": "user_text_updated", "timestamp": 4, "text": "hi"}
    events = in_time_order(a_call([entry(3)], control=(update,)), DeliveryTimes({("audit", 0): 10}))
    assert [(event.event_name, event.arrival_ms) for event in events] == [
        ("user", 13),
        ("user_text_updated", 13),
    ]


def test_shifting_moves_every_clock_and_nothing_else() -> None:
    function_call = {
        "type": "function_call_event",
        "timestamp": 1000,
        "data": {
            "timestamp": 1.0,
            "in_progress_at": 0.5,
            "arguments": {"timestamp": 5},
            "result": {"started_at": 6},
        },
    }
    breakdown = {
        "type": "latency_breakdown",
        "timestamp": 1500,
        "data": {
            "user_turn_start_time": 1.0,
            "total_secs": 2.0,
            "contributions": [{"start_time": 1.25, "key": "x"}],
        },
    }
    message = {
        "type": "user_message",
        "timestamp": 9,
        "data": {"content": "x", "timestamp": "2026-03-01T00:00:00.250Z"},
    }
    call = a_call(
        [
            {**entry(1000), "value": {"tool": "t", "parameters": {"timestamp": "7"}}},
            {"timestamp": "never"},
        ],
        [function_call, breakdown, message, {**word(3), "data": {"timestamp": 5}}],
        [sound(4, 0.004)],
        control=({"type": "call_started", "timestamp": 1},),
    )
    moved = shifted(call, 60)
    assert moved.audit == (
        {
            "value": {"tool": "t", "parameters": {"timestamp": "7"}},
            "timestamp": "61000",
            "message_type": "user",
        },
        {"timestamp": "never"},
    )
    assert moved.pipecat == (
        {
            "type": "function_call_event",
            "timestamp": 61000,
            "data": {
                "timestamp": 61.0,
                "in_progress_at": 60.5,
                "arguments": {"timestamp": 5},
                "result": {"started_at": 6},
            },
        },
        {
            "type": "latency_breakdown",
            "timestamp": 61500,
            "data": {
                "user_turn_start_time": 61.0,
                "total_secs": 2.0,
                "contributions": [{"start_time": 61.25, "key": "x"}],
            },
        },
        {
            "type": "user_message",
            "timestamp": 60009,
            "data": {"content": "x", "timestamp": "2026-03-01T00:01:00.250+00:00"},
        },
        {**word(60003), "data": {"timestamp": 5}},
    )
    assert moved.elevenlabs == (sound(60004, 60.004),)
    assert moved.control == ({"type": "call_started", "timestamp": 60001},)
    assert shifted(moved, -60).audit == call.audit


@given(
    st.integers(1_600_000_000_000_000, 1_900_000_000_000_000),
    st.integers(0, 60_000_000),
    st.integers(-200_000_000, 200_000_000),
)
def test_shifting_keeps_latencies_to_six_decimals(
    start_us: int, latency_us: int, by_seconds: int
) -> None:
    call = a_call(None, None, [sound(1, start_us / 1e6), sound(2, (start_us + latency_us) / 1e6)])

    def latency(of: RecordedCall) -> float:
        first, second = of.elevenlabs or ()
        return float(round(second["audio_timestamp"] - first["audio_timestamp"], 6))

    assert latency(shifted(call, by_seconds)) == latency(call) == latency_us / 1e6


@pytest.mark.parametrize(
    ("speed", "first_second", "last_second"),
    [(1, 0, 300), (0.5, 0, 300), (20, -285, 15), (None, -300, 0)],
)
def test_a_call_that_starts_playing_now_is_never_from_the_future(
    speed: float | None, first_second: int, last_second: int
) -> None:
    call = a_call([entry(1_000_400), entry(1_300_400)])
    moved = shifted(call, seconds_to_now(call, NOW_MS, speed))
    first, last = (int(event["timestamp"]) for event in moved.audit or ())
    assert NOW_MS + first_second * 1000 - 1000 < first <= NOW_MS + first_second * 1000
    assert NOW_MS + last_second * 1000 - 1000 < last <= NOW_MS + last_second * 1000
    assert seconds_to_now(a_call([]), NOW_MS, speed) == 0


def test_renaming_reaches_the_lines_that_carry_the_id() -> None:
    call = renamed(a_call([entry(1)], [word(1), {"timestamp": 2}]), "new")
    assert call.conversation_id == "new"
    assert call.pipecat == ({**word(1), "conversation_id": "new"}, {"timestamp": 2})


def test_control_events_open_and_close_the_call() -> None:
    call = with_control_events(a_call([entry(7)], [word(9)], [sound(5), sound(9)]), agent="desk")
    names = [event.event_name for event in in_time_order(call)]
    assert names == ["call_started", "audio_start", "user", "tts_text", "audio_start", "call_ended"]
    assert call.control == (
        {"type": "call_started", "timestamp": 5, "pipeline_type": "cascade", "agent": "desk"},
        {"type": "call_ended", "timestamp": 9, "reason": "goodbye"},
    )
    assert with_control_events(call, agent="other") == call
    named = with_control_events(call, goals="rebooking")
    assert [event.get("goals") for event in named.control] == ["rebooking", None]
    assert with_control_events(named, goals="other") == named
    assert with_control_events(a_call([])).control == ()
