"""Events of a LiveKit session in the shapes of its versions: which events of a call they become,
and with which times.

tests/integration/test_livekit_observer.py has the same with real sessions.
"""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace as Shape
from typing import Any, Self

import pytest
from callgauge_livekit import Attached, attach, attaching
from callgauge_livekit.reading import HOLD_SECONDS, SessionReader
from callgauge_send.events import MAX_TEXT_CHARS

from schemas.closed_sets import InputSource
from schemas.events.codec import UnrecognizedEvent, decode
from schemas.scores.latency_stages import ServiceKind, service_kind


class Session:
    """The part of an `AgentSession` that the observer uses: listeners, the agent and the output."""

    def __init__(self) -> None:
        self.listeners: dict[str, list[Callable[[Any], None]]] = {}
        self.current_agent: Any = None
        self.output = Shape(audio=None)

    def on(self, name: str, listener: Callable[[Any], None]) -> None:
        self.listeners.setdefault(name, []).append(listener)

    def emit(self, name: str, **fields: Any) -> None:
        for listener in self.listeners.get(name, []):
            listener(Shape(**fields))


class Observed:
    """A session whose events are kept; `now_s` is the time of its reader."""

    def __init__(self, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.session = Session()
        self.now_s = 1_790_000_000.0
        self.attached: Attached = attach(
            self.session, conversation_id="c", sink=self.events.append, **options
        )
        self.attached._reader._clock = lambda: self.now_s

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]

    @property
    def moments(self) -> list[tuple[str, float]]:
        return [
            (moment["kind"], round(moment["timestamp"] - self.now_s, 3))
            for moment in self.of("speech_event")
        ]

    def user(self, new: str, at: float = 0.0, old: str | None = None) -> Self:
        before = old or ("speaking" if new == "listening" else "listening")
        self.session.emit(
            "user_state_changed", old_state=before, new_state=new, created_at=self.now_s + at
        )
        return self

    def agent(self, new: str, at: float = 0.0, old: str = "listening") -> Self:
        self.session.emit(
            "agent_state_changed", old_state=old, new_state=new, created_at=self.now_s + at
        )
        return self

    def says(self, role: str, text: str, *, interrupted: bool = False, **metrics: Any) -> Self:
        item = Shape(
            type="message",
            role=role,
            text_content=text,
            interrupted=interrupted,
            metrics=metrics,
            created_at=self.now_s,
        )
        self.session.emit("conversation_item_added", item=item, created_at=self.now_s)
        return self


@pytest.fixture(autouse=True)
def _newest(monkeypatch: pytest.MonkeyPatch) -> None:
    # LiveKit is not installed here
    monkeypatch.setattr(attaching, "_known_events", lambda: ("session_usage_updated",))


@pytest.fixture
async def seen() -> Observed:
    return Observed(agent="desk")


async def test_every_event_of_the_observer_is_one_that_callgauge_knows(seen: Observed) -> None:
    seen.session.current_agent = Shape(
        id="desk", instructions="You are a desk.", tools=[Shape(info=Shape(name="find"))]
    )
    (
        seen.agent("listening", old="initializing")
        .user("speaking")
        .user("listening", -0.3)
        .says(
            "user",
            "Hello",
            stopped_speaking_at=seen.now_s - 0.3,
            end_of_turn_delay=0.5,
            transcription_delay=0.2,
        )
        .agent("speaking", old="thinking")
        .says(
            "assistant",
            "Hi",
            llm_node_ttft=0.2,
            tts_node_ttfb=0.1,
            e2e_latency=0.8,
            started_speaking_at=seen.now_s,
        )
        .agent("listening", old="speaking")
    )
    call = Shape(call_id="1", name="find", arguments='{"a": 1}')
    seen.session.emit(
        "tool_execution_updated",
        update=Shape(type="tool_call_started", function_call=call),
        created_at=1.0,
    )
    ended = Shape(type="tool_call_ended", call_id="1", status="done", message="ok")
    seen.session.emit("tool_execution_updated", update=ended, created_at=2.0)
    seen.session.emit("agent_false_interruption", resumed=True, created_at=1.0)
    seen.session.current_agent = Shape(id="guard", instructions="You guard.", tools=[])
    seen.session.emit("conversation_item_added", item=Shape(type="agent_handoff"), created_at=1.0)
    seen.session.emit(
        "error",
        error=Shape(type="llm_error", label="x.LLM", error=OSError("down")),
        source=None,
        created_at=1.0,
    )
    usage = Shape(type="llm_usage", provider="openai", model="gpt", input_tokens=5, output_tokens=3)
    seen.session.emit("session_usage_updated", usage=Shape(model_usage=[usage]))
    seen.session.emit("close", reason=Shape(value="user_initiated"), created_at=1.0)
    assert await seen.attached.ended()
    assert seen.attached.lost == {}
    kinds = [event["type"] for event in seen.events]
    assert (kinds[0], kinds[-1], seen.events[-1]["reason"]) == (
        "call_started",
        "call_ended",
        "user_initiated",
    )
    assert {
        "agent_handoff",
        "false_interruption",
        "error",
        "service_usage",
        "user_bot_latency",
    } <= set(kinds)

    for event in seen.events:
        assert not isinstance(
            decode(InputSource.PIPECAT, json.dumps(event).encode()), UnrecognizedEvent
        ), event
    assert [event["instructions"] for event in seen.events if "instructions" in event] == [
        "You are a desk.",
        "You guard.",
    ]
    assert seen.of("agent_handoff") == [{"old_agent": "desk", "new_agent": "guard"}]


async def test_a_latency_is_of_the_first_sound_of_the_answer_however_late_its_message_comes(
    seen: Observed,
) -> None:
    began_s = seen.now_s
    seen.now_s += 4.0
    seen.says("assistant", "Hi", e2e_latency=0.8, started_speaking_at=began_s)
    assert seen.of("user_bot_latency") == [{"latency_seconds": 0.8, "timestamp": began_s}]


async def test_a_time_that_livekit_sets_back_counts_at_once(seen: Observed) -> None:
    seen.user("speaking", -0.1).user("listening", -0.3)
    assert seen.moments == [("user_speech_started", -0.1), ("user_speech_stopped", -0.3)]


async def test_before_1_5_the_end_of_speech_waits_for_the_message_that_has_its_time(
    seen: Observed,
) -> None:
    seen.user("speaking", -2.0).user("listening")
    assert [kind for kind, _ in seen.moments] == ["user_speech_started"]
    seen.says("user", "Hello", stopped_speaking_at=seen.now_s - 0.5)
    assert [kind for kind, _ in seen.moments] == ["user_speech_started", "user_speech_stopped"]
    assert seen.moments[1][1] == -0.5
    assert seen.of("speech_event")[1]["started_at"] == seen.now_s - 2.0


async def test_in_1_2_the_metrics_of_the_turn_have_it(seen: Observed) -> None:
    seen.user("speaking", -2.0).user("listening")
    listen = seen.attached._reads("metrics_collected", SessionReader.measured)
    listen(
        Shape(
            metrics=Shape(
                type="eou_metrics",
                last_speaking_time=seen.now_s - 0.4,
                timestamp=seen.now_s,
                end_of_utterance_delay=0.5,
                transcription_delay=0.1,
                on_user_turn_completed_delay=0.0,
            )
        )
    )
    assert seen.moments[1] == ("user_speech_stopped", -0.4)


@pytest.mark.parametrize("stopped_at", [-9.0, 5.0])
async def test_a_time_outside_of_the_stretch_is_that_of_another_one(
    seen: Observed, stopped_at: float
) -> None:
    (
        seen.user("speaking", -2.0)
        .user("listening")
        .says("user", "Hello", stopped_speaking_at=seen.now_s + stopped_at)
    )
    assert seen.moments[1] == ("user_speech_stopped", 0.0)


async def test_an_end_that_waits_goes_before_the_answer_and_before_the_end_of_the_call(
    seen: Observed,
) -> None:
    seen.user("speaking", -2.0).user("listening").agent("speaking", 0.4)
    assert [kind for kind, _ in seen.moments] == [
        "user_speech_started",
        "user_speech_stopped",
        "bot_speech_started",
    ]
    seen.user("speaking", 2.0)
    seen.now_s += 3.0
    seen.user("listening")
    await seen.attached.ended()
    assert [kind for kind, _ in seen.moments][-2:] == ["user_speech_started", "user_speech_stopped"]
    assert seen.events[-1]["type"] == "call_ended"


async def test_an_end_that_waits_for_nothing_goes_by_itself(
    seen: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(seconds: float, then: Callable[..., None], *arguments: Any) -> Any:
        waits.append((seconds, then, arguments))
        return Shape(cancel=lambda: None)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    seen.user("speaking", -2.0).user("listening")
    ((seconds, then, arguments),) = waits
    assert seconds == HOLD_SECONDS
    then(*arguments)
    assert seen.moments[-1] == ("user_speech_stopped", 0.0)


async def test_the_first_sound_is_that_of_the_output(seen: Observed) -> None:
    output = Session()
    seen.session.output.audio = output
    seen.agent("listening", old="initializing").agent("thinking")
    output.emit("playback_started", created_at=seen.now_s - 0.02)
    (
        seen.agent("speaking", old="thinking")
        .agent("listening", 1.0, old="speaking")
        .agent("speaking", 2.0)  # without a sound of its own: the state's time
    )
    assert [at for kind, at in seen.moments if kind == "bot_speech_started"] == [-0.02, 2.0]
    assert len(output.listeners["playback_started"]) == 1


@pytest.mark.parametrize(
    ("source", "is_speaking", "cause"),
    [
        ("audio_activity", False, "user_speech"),
        ("user_turn", True, "user_turn"),
        ("programmatic", True, "program"),
        (None, True, "user_speech"),
        (None, False, "program"),
        ("of_tomorrow", False, "program"),
    ],
)
async def test_an_interruption_has_its_cause(
    seen: Observed, source: str | None, is_speaking: bool, cause: str
) -> None:
    speech = Shape(id="s", interrupted=False, done=lambda: False, _interrupt_source=source)
    seen.session.emit("speech_created", speech_handle=speech)
    seen.agent("speaking").agent("listening", old="speaking")
    assert "interruption" not in [kind for kind, _ in seen.moments]
    if is_speaking:
        seen.user("speaking")
    speech.interrupted = True
    seen.agent("speaking").agent("listening", old="speaking")
    told = [moment for moment in seen.of("speech_event") if moment["kind"] == "interruption"]
    assert [moment["cause"] for moment in told] == [cause]
    seen.agent("speaking").agent("listening", old="speaking")
    assert [kind for kind, _ in seen.moments].count("interruption") == 1


async def test_tools_before_1_6_have_the_times_of_their_call_and_output(seen: Observed) -> None:
    call = Shape(call_id="1", name="find", arguments="{}", created_at=10.0)
    broken = Shape(call_id="2", name="open", arguments="not json", created_at=10.5)
    outputs = [
        Shape(created_at=10.3, is_error=False, output='{"status": "error"}'),
        Shape(is_error=True, output="stuck"),
    ]
    seen.session.emit(
        "function_tools_executed",
        function_calls=[call, broken],
        function_call_outputs=outputs,
        created_at=11.0,
    )
    told = seen.of("function_call_event")
    assert [(each["kind"], each["timestamp"], each.get("in_progress_at")) for each in told] == [
        ("function_call_in_progress", 10.0, None),
        ("function_call_completed", 10.3, 10.0),
        ("function_call_in_progress", 10.5, None),
        ("function_call_failed", 11.0, 10.5),
    ]
    assert told[1]["result"] == {"status": "error", "withheld": True}
    assert told[2]["arguments"] == "not json"
    assert told[3]["error"] == "stuck"


@pytest.mark.parametrize(
    "arguments", ['{"a":' * 300_000, '{"n":' + "9" * 5_000 + "}", "[" + "1," * 5_000_000 + "1]"]
)
async def test_arguments_that_nobody_can_read_are_their_beginning(
    seen: Observed, arguments: str
) -> None:
    call = Shape(call_id="1", name="find", arguments=arguments, created_at=10.0)
    output = Shape(created_at=10.3, is_error=False, output=arguments)
    seen.session.emit(
        "function_tools_executed",
        function_calls=[call],
        function_call_outputs=[output],
        created_at=11.0,
    )
    begun, ended = seen.of("function_call_event")
    assert begun["arguments"] == arguments[:MAX_TEXT_CHARS]
    assert ended["result"]["status"] == "success"


async def test_tools_that_livekit_tells_one_by_one_are_not_told_again(seen: Observed) -> None:
    call = Shape(call_id="1", name="find", arguments="{}", created_at=10.0)
    seen.session.emit(
        "tool_execution_updated",
        update=Shape(type="tool_call_started", function_call=call),
        created_at=10.0,
    )
    ended = Shape(type="tool_call_ended", call_id="1", status="cancelled", message=None)
    seen.session.emit("tool_execution_updated", update=ended, created_at=10.5)
    seen.session.emit(
        "function_tools_executed",
        function_calls=[call],
        function_call_outputs=[None],
        created_at=11.0,
    )
    assert [each["kind"] for each in seen.of("function_call_event")] == [
        "function_call_in_progress",
        "function_call_cancelled",
    ]


async def test_words_arguments_and_results_leave_only_if_they_may() -> None:
    for may in (False, True):
        seen = Observed(words=may, tool_arguments=may, tool_results=may)
        seen.session.current_agent = Shape(instructions="planted", tools=[])
        seen.agent("listening").says("user", "planted").says("assistant", "planted")
        call = Shape(call_id="1", name="find", arguments='{"a": "planted"}', created_at=10.0)
        output = Shape(output="planted", is_error=False, created_at=11.0)
        seen.session.emit(
            "function_tools_executed",
            function_calls=[call],
            function_call_outputs=[output],
            created_at=11.0,
        )
        assert str(seen.events).count("planted") == (5 if may else 0)


async def test_use_is_told_as_it_grows(seen: Observed) -> None:
    for tokens in (5, 5, 9):
        usage = Shape(
            type="llm_usage", provider="openai", model="gpt", input_tokens=tokens, output_tokens=0
        )
        other = Shape(type="eot_usage", provider="livekit", model="turns")
        seen.session.emit("session_usage_updated", usage=Shape(model_usage=[usage, other]))
    assert [each["prompt_tokens"] for each in seen.of("service_usage")] == [5, 4]


async def test_services_have_the_kind_by_which_stages_are_found(seen: Observed) -> None:
    seen.says(
        "user",
        "x",
        stopped_speaking_at=seen.now_s,
        end_of_turn_delay=0.5,
        transcription_delay=0.2,
    ).says("assistant", "x", llm_node_ttft=0.2, tts_node_ttfb=0.1)
    kinds = [service_kind(each["processor"]) for each in seen.of("service_latency")]
    assert kinds == [ServiceKind.STT, ServiceKind.TTS, ServiceKind.LLM]
    for name in ("llm", "stt", "tts", "realtime_model"):
        seen.session.emit(
            "error",
            error=Shape(type=f"{name}_error", label="mine", error="x"),
            source=None,
            created_at=1.0,
        )
    kinds = [service_kind(each["processor"]) for each in seen.of("error")]
    assert kinds == [ServiceKind.LLM, ServiceKind.STT, ServiceKind.TTS, ServiceKind.LLM]
    seen.session.emit("error", error=OSError("x"), source=object(), created_at=1.0)
    assert seen.of("error")[-1]["processor"] == "object"


async def test_an_event_of_another_shape_is_counted_and_ends_nothing(seen: Observed) -> None:
    for _ in range(2):
        seen.session.emit(
            "conversation_item_added", item=Shape(type="message", role="user"), created_at=1.0
        )
        seen.session.emit("user_state_changed", state="speaking")
    seen.user("speaking")
    assert seen.attached.lost == {"unread": 4}
    assert seen.moments == [("user_speech_started", 0.0)]


async def test_an_event_of_which_livekit_warns_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attaching, "_known_events", lambda: ("session_usage_updated",))
    assert "metrics_collected" not in Observed().session.listeners
    monkeypatch.setattr(attaching, "_known_events", lambda: ("metrics_collected",))
    listeners = Observed().session.listeners
    assert "metrics_collected" in listeners
    assert "session_usage_updated" not in listeners


async def test_in_a_job_its_id_is_that_of_the_call_and_its_end_that_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(
        attaching, "_job", lambda: Shape(job=Shape(id="AJ_1"), add_shutdown_callback=ends.append)
    )
    events: list[dict[str, Any]] = []
    attached = attach(Session(), sink=events.append)
    assert attached.conversation_id == "AJ_1"
    (end,) = ends
    assert await end()
    assert events[-1]["type"] == "call_ended"


async def test_a_sink_that_raises_is_no_fault_of_the_agent() -> None:
    def sink(_: dict[str, Any]) -> None:
        raise ConnectionError("the disk is full")

    session = Session()
    attached = attach(session, sink=sink)
    session.emit("user_state_changed", old_state="listening", new_state="speaking", created_at=1.0)
    await attached.ended()
    assert attached.lost == {"unread": 3}


def test_without_an_event_loop_attach_says_so() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        attach(Session())
