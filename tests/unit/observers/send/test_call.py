"""A call that a person sends by hand: labels first, one way, and the end says what is left."""

import asyncio
import logging
from typing import Any, get_args

import pytest
from callgauge_send import Call
from callgauge_send.call import RANKS
from callgauge_send.events import Rank
from callgauge_send.to_http import ToHttp
from callgauge_send.to_kafka import ToKafka
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from schemas.events.pipecat import PipecatEvent
from tests.unit.observers.nobody import stop


def test_the_labels_go_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGAUGE_ENVIRONMENT", "test")
    events: list[dict[str, Any]] = []
    call = Call(agent="desk", sink=events.append)
    call.send("speech_event", data={"kind": "user_speech_started", "timestamp": 1.0})
    call.send("speech_event", timestamp=5, data={"kind": "user_speech_stopped", "timestamp": 2.0})
    assert [event["type"] for event in events] == ["call_started", "speech_event", "speech_event"]
    assert (events[0]["agent"], events[0]["environment"]) == ("desk", "test")
    assert events[2]["timestamp"] == 5


def test_the_call_names_the_span_in_which_it_begins() -> None:
    events: list[dict[str, Any]] = []
    span = SpanContext(0xA1, 0xB2, is_remote=False, trace_flags=TraceFlags(1))
    with use_span(NonRecordingSpan(span)):
        Call(sink=events.append).begin()
    Call(sink=events.append).begin()
    assert events[0]["traceparent"] == f"00-{0xA1:032x}-{0xB2:016x}-01"
    assert "traceparent" not in events[1]


async def test_the_end_says_how_many_events_are_left(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call(agent="desk", bootstrap_servers=nobody)
    call.send("tts_text", data={"frame": "Hello"})
    assert not await call.end("goodbye")
    assert call.waiting == 3
    assert "3 events of call" in caplog.records[-1].message
    await stop(call.sender)


async def test_an_end_without_a_beginning_and_a_second_end_do_nothing() -> None:
    events: list[dict[str, Any]] = []
    call = Call(sink=events.append)
    assert await call.end()
    assert events == []
    call.begin()
    assert await call.end("goodbye")
    assert await call.end("again")
    assert [event.get("reason") for event in events] == [None, "goodbye"]


async def test_an_event_after_the_end_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    events: list[dict[str, Any]] = []
    call = Call(sink=events.append)
    call.begin()
    await call.end()
    call.send("tts_text", data={"frame": "late"})
    assert [event["type"] for event in events] == ["call_started", "call_ended"]
    assert call.lost == {"unread": 1}
    assert "the call has ended" in caplog.text


def test_a_sink_that_raises_does_not_reach_the_bot() -> None:
    def sink(_: dict[str, Any]) -> None:
        raise ConnectionError("the disk is full")

    call = Call(sink=sink)
    call.send("tts_text", data={"frame": "a"})
    call.send("tts_text", data={"frame": "b"})
    assert call.lost == {"unread": 2}


def test_the_way_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(Call()._way, ToKafka)
    assert isinstance(Call(url="https://calls.example/events")._way, ToHttp)
    monkeypatch.setenv("CALLGAUGE_URL", "http://127.0.0.1:8070/")
    way = Call()._way
    assert isinstance(way, ToHttp)
    assert way.place == "http://127.0.0.1:8070/events"
    assert isinstance(Call(bootstrap_servers="kafka:9092")._way, ToKafka)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"conversation_id": ""}, "conversation_id"),
        ({"conversation_id": "x" * 257}, "conversation_id"),
        ({"pipeline_type": "other"}, "cascade"),
        ({"url": "kafka:9092"}, "http://"),
        ({"url": "http://x/events", "bootstrap_servers": "kafka:9092"}, "one way"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Call(**options)


async def test_without_an_event_loop_the_error_is_said_at_the_first_event(nobody: str) -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        await asyncio.to_thread(Call(bootstrap_servers=nobody).send, "call_started")


def test_what_costs_most_is_dropped_last() -> None:
    assert sorted(RANKS, key=lambda kind: RANKS[kind])[-2:] == ["call_started", "call_ended"]
    assert RANKS.get("service_latency", Rank.METRICS) is Rank.METRICS
    models = get_args(get_args(PipecatEvent)[0])
    assert RANKS.keys() <= {
        kind for model in models for kind in get_args(model.model_fields["type"].annotation)
    }


def test_each_call_counts_its_own_events() -> None:
    assert len({Call(conversation_id="same").outbox.source for _ in range(3)}) == 3


def test_warnings_go_to_the_logger_of_the_name() -> None:
    assert Call()._log is logging.getLogger("callgauge")


async def test_nothing_that_a_bot_hands_over_reaches_it_and_marks_are_counted(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        def __repr__(self) -> str:
            raise RuntimeError("no text")

        def model_dump(self, **_: object) -> object:
            raise self

    hostile: Any = HostileError()
    call = Call(agent=hostile, bootstrap_servers=nobody)
    call.send(hostile, data={"arguments": [hostile, float("nan")], hostile: 1})
    call.missed("a frame", hostile)
    assert (call.marked_values, call.waiting) == (3, 2)
    assert "could not be read: HostileError" in caplog.text
    await call.end(hostile)
    assert call.waiting == 3
    await stop(call.sender)
