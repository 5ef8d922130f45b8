"""Calls with everything the engine must take: control events on any topic, the bot's speech events,
unknown types.

And the model of what steering means for the reference result: which pipeline type, reason and texts
hold after a part of the events has arrived.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.calls.strategies import PIPELINE_TYPES, START_MS, Json, arrivals, calls

Order = list[tuple[str, int]]

MOMENTS = (
    *("user_speech_started", "user_speech_stopped", "user_turn_started", "user_turn_stopped"),
    *("bot_speech_started", "bot_speech_stopped", "interruption", "of a later version"),
)


def _function_call(moment: str, **fields: Any) -> Json:
    data = {
        "kind": f"function_call_{moment}",
        "function_name": "rebook",
        "tool_call_id": "one",
        **fields,
    }
    return {"type": "function_call_event", "data": data}


STRANGE: dict[str, tuple[Json, ...]] = {
    "audit": (
        {"message_type": "note", "value": 1, "extra": True},
        {
            "message_type": "llm_call",
            "value": {"response": "Yes."},
            "latency_ms": 700,
            "model": "m",
        },
        {
            "message_type": "llm_call",
            "value": {"response": ""},
            "latency_ms": 300,
            "usage": {"total_tokens": 9},
        },
    ),
    "pipecat": (
        {"type": "of a later version", "event_type": "audio_start", "message_type": "user"},
        {"type": "user_bot_latency", "data": {"latency": 1.5}},
        {"type": "user_bot_latency", "data": {"latency_seconds": 1.5}},
        {"type": "TTFBMetricsData", "processor": "OneSTTService#0", "model": None, "value": 0.4},
        {"type": "TTFBMetricsData", "processor": "OneLLMService#0", "model": "m", "value": 0.7},
        {
            "type": "service_latency",
            "data": {"kind": "ttfb", "processor": "OneTTSService#0", "seconds": 0.2},
        },
        {
            "type": "latency_breakdown",
            "data": {"contributions": [{"key": "llm_inference", "duration_secs": 0.6}]},
        },
        *(
            _function_call(moment)
            for moment in ("started", "in_progress", "completed", "timed_out", "cancelled")
        ),
        _function_call("in_progress", arguments={"order": 4}, timestamp=START_MS / 1000),
        _function_call("failed", error="no seat", in_progress_at=(START_MS + 4000) / 1000),
    ),
    "user_sim": (
        {"type": "caller_sighed", "data": {}},
        {"event_type": "audio_muted", "user": "simulated_user"},
        {"type": "caller_sighed", "timestamp": None},
        {"type": "timeout", "mood": "odd"},
    ),
}

_times_ms = st.sampled_from([START_MS, START_MS + 4000, 0, START_MS + 60_000])
_started = st.fixed_dictionaries(
    {"type": st.just("call_started"), "timestamp": _times_ms},
    optional={
        "pipeline_type": st.sampled_from(PIPELINE_TYPES),
        "agent": st.sampled_from(["desk", "sales"]),
        "tenant": st.just("acme"),
    },
)
_ended = st.fixed_dictionaries(
    {"type": st.just("call_ended"), "timestamp": _times_ms},
    optional={"reason": st.sampled_from(["goodbye", "transfer"])},
)
_text_updated = st.fixed_dictionaries(
    {
        "type": st.just("user_text_updated"),
        "timestamp": _times_ms,
        "text": st.sampled_from(["My badge is lost.", "", "I lost my-badge."]),
    },
    optional={"turn_id": st.integers(1, 4)},
)
_topics = st.sampled_from(["audit", "pipecat", "user_sim", "judge"])
_places = st.integers(0, 300)


def _insert(events: list[Json], stream: str, place: int, event: Json, behind_ms: int) -> None:
    """Put an event behind the `place`-th, logged at the same time as it."""
    place %= len(events) + 1
    at_ms = int(events[place - 1]["timestamp"] or START_MS) if place else START_MS
    if event.get("type") == "speech_event":
        event = {**event, "data": {**event["data"], "timestamp": max(0, at_ms - behind_ms) / 1000}}
    stamped = {"timestamp": str(at_ms) if stream == "audit" else at_ms} | event
    events.insert(place, stamped)


_moments: st.SearchStrategy[list[tuple[int, str, int]]] = st.one_of(
    st.just([]),
    st.lists(
        st.tuples(_places, st.sampled_from(MOMENTS), st.sampled_from([0, 200, 700])), max_size=16
    ),
)
_strange = st.lists(
    st.tuples(
        _places,
        st.sampled_from(
            [(stream, event) for stream, events in STRANGE.items() for event in events]
        ),
    ),
    max_size=4,
)


@st.composite
def steered_calls(draw: st.DrawFn, *, updates: bool = True) -> Json:
    """A call whose facts come in control events; every third has no simulated caller, as on a real
    phone line.
    """
    call = dict(draw(calls()))
    if draw(st.sampled_from([False, False, True])):
        call["user_sim"] = None
    if updates and call["audit"] and draw(st.booleans()):
        call["audit"] = [
            {**event, "turn_id": number} if event.get("message_type") == "user" else event
            for number, event in enumerate(call["audit"], 1)
        ]
    for place, kind, behind_ms in draw(_moments):
        call["pipecat"] = list(call["pipecat"] or ())
        _insert(
            call["pipecat"],
            "pipecat",
            place,
            {"type": "speech_event", "data": {"kind": kind}},
            behind_ms,
        )
    for place, (stream, event) in draw(_strange):
        if call[stream] is not None:
            call[stream] = list(call[stream])
            _insert(call[stream], stream, place, event, 0)
    facts = {"type": "call_started", "timestamp": START_MS, "pipeline_type": call["pipeline_type"]}
    more = [_started, _ended, _text_updated] if updates else [_ended]
    control = [facts, *draw(st.lists(st.one_of(more), max_size=4))]
    call["control"] = draw(st.permutations(control)) if updates else control
    call["control_on"] = [draw(_topics) for _ in control]
    return call


@st.composite
def steered_arrivals(draw: st.DrawFn, call: Json) -> Order:
    """An order of the call's events in which control events come at any time, among themselves as
    in the call.
    """
    timed = {
        stream: [{"timestamp": event.get("timestamp") or 0} for event in call.get(stream) or ()]
        for stream in ("audit", "pipecat", "user_sim")
    }
    order: Order = draw(arrivals(timed))
    count = len(call["control"])
    places = sorted(
        place % (len(order) + 1)
        for place in draw(st.lists(_places, min_size=count, max_size=count))
    )
    for index in reversed(range(count)):
        order.insert(places[index], ("control", index))
    return order


class Prefix:
    """The part of a call that has arrived, as a call of its own, with the values of control events
    by then.
    """

    def __init__(self, call: Json) -> None:
        self._call = call
        self._seen: Counter[str] = Counter()
        self._audit: list[Json] = []
        self._waiting_texts: dict[int, str] = {}
        self.pipeline_type = "cascade"
        self.reason: str | None = None

    def add(self, stream: str, index: int) -> None:
        """One more event has arrived."""
        event = self._call[stream][index]
        if stream == "control":
            self._steer(event)
        elif stream == "audit":
            if event.get("message_type") == "user" and event.get("turn_id") in self._waiting_texts:
                event = {**event, "value": self._waiting_texts.pop(event["turn_id"])}
            self._audit.append(event)
        else:
            self._seen[stream] += 1

    def _steer(self, event: Json) -> None:
        if event["type"] == "call_started":
            self.pipeline_type = event.get("pipeline_type", self.pipeline_type)
        elif event["type"] == "call_ended":
            self.reason = event.get("reason", self.reason)
        else:
            self._put_text(event["text"], event.get("turn_id"))

    def _put_text(self, text: str, turn_id: int | None) -> None:
        """Into the newest entry of that turn id, otherwise into the next to come; without an id
        into the newest of all.
        """
        for place in reversed(range(len(self._audit))):
            entry = self._audit[place]
            if entry.get("message_type") == "user" and turn_id in (None, entry.get("turn_id")):
                self._audit[place] = {**entry, "value": text}
                return
        if turn_id is not None:
            self._waiting_texts[turn_id] = text

    def call(self) -> Json:
        """The input of the reference."""
        streams = {
            name: (self._call[name] or [])[: self._seen[name]] for name in ("pipecat", "user_sim")
        }
        facts: Json = {
            "pipeline_type": self.pipeline_type,
            "conversation_ended_reason": self.reason,
        }
        return {**facts, "audit": list(self._audit), **streams}


def arrived(call: Json, order: Sequence[tuple[str, int]]) -> Json:
    """The call as it is when everything in `order` has arrived."""
    prefix = Prefix(call)
    for stream, index in order:
        prefix.add(stream, index)
    return prefix.call()


def drawn(data: st.DataObject, **options: Any) -> tuple[Json, Order]:
    """A steered call and an order of its events."""
    call = data.draw(steered_calls(**options))
    return call, data.draw(steered_arrivals(call))
