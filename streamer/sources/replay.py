"""Plays recorded calls again as if they were live."""

import heapq
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from schemas.events.simulator import Source, is_agent_record, is_control_event
from schemas.wire import MAX_TIME_MS, without_infinity
from streamer.recordings.files import At, Events, FiledEvent, RecordedCall, with_fields

# Turns a recorded call into the events for the topics: their bytes, their order and their times.
# Pure.
#
# A live system does not sort: each source writes in its own order, and an event is seen when it was
# produced, which is at its time or later. So events are merged by *arrival*: their time plus a
# known delay, never before the event in front of them in their own source. For recordings that is
# the merge of the three files by the times at their heads.

SOURCES: Final[tuple[Source, ...]] = ("audit", "pipecat", "elevenlabs")
"""In the order in which EVA ranks events of the same millisecond."""

AGENT_RECORD: Final = "conversation_record"
"""Name of the event that carries the record of a conversation with an ElevenLabs agent; its body
has none of its own.
"""

RECORD_TYPES: Final = frozenset(
    {
        "startup_timing",
        "transport_timing",
        "user_bot_latency",
        "first_bot_speech_latency",
        "latency_breakdown",
        "service_latency",
        "service_usage",
        "speech_event",
        "function_call_event",
        "error",
        "turn_started",
        "turn_ended",
        "user_message",
        "assistant_message",
    }
)
"""Types of pipecat's own records: their `data` is the record, and it carries times of its own."""

_RECORD_TIME_KEYS: Final = frozenset(
    {"timestamp", "started_at", "in_progress_at", "start_time", "user_turn_start_time"}
)
_RECORD_CONTENT_KEYS: Final = frozenset(
    {"arguments", "result", "error", "content", "message"}
)  # the caller's, not ours

_BEFORE_ALL, _AFTER_ALL = -1, len(SOURCES)


@dataclass(frozen=True, slots=True)
class WireEvent:
    """One event for a topic.

    Attributes:
        source: Its input topic.
        value: The record's value: the event as compact JSON, keys in their original order.
        time_ms: Epoch milliseconds of the event itself. An event without a readable time has that
            of the one before it.
        event_name: The event's type in the words of its source, for example `tts_text` or
            `audio_start`.
        sequence: Place within its source, from 1. A repeated record keeps the number of the first.
        arrival_ms: Epoch milliseconds when it is produced; never decreases within a source.
        is_agent_event: Whether it is of a real ElevenLabs agent; only the envelope distinguishes it
            from the simulated caller.
        at: Where it stands in a file of events; None for others.
    """

    source: Source
    value: bytes
    time_ms: int
    event_name: str
    sequence: int
    arrival_ms: int
    is_agent_event: bool = False
    at: At | None = None


@dataclass(frozen=True, slots=True)
class DeliveryTimes:
    """Differences between arrival and recording of a call. Keys are (source, index from 0).

    Attributes:
        delay_ms: Time from an event to its production; absent means 0.
        repeated: Events whose record is sent twice, the second time with the same bytes and
            sequence number.
    """

    delay_ms: Mapping[tuple[Source, int], int] = field(default_factory=dict)
    repeated: frozenset[tuple[Source, int]] = frozenset()


PROMPT_DELIVERY: Final = DeliveryTimes()


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """A call to be put on topics.

    Attributes:
        conversation_id: The key of its records.
        events: In the order in which they are produced.
        start_offset_ms: When it starts at the earliest, in ms of call time since the playback
            began.
    """

    conversation_id: str
    events: tuple[WireEvent, ...]
    start_offset_ms: int = 0


def event_time_ms(event: Mapping[str, Any]) -> int | None:
    """The event's `timestamp` in epoch milliseconds (integer, digits or float), or None if it has
    no readable one.
    """
    match event.get("timestamp"):
        case bool():
            return None
        case int() | float() as number if -MAX_TIME_MS <= number <= MAX_TIME_MS:
            return int(number)
        case str() as text if (
            text.isascii() and text.isdigit() and len(text) < len(str(MAX_TIME_MS))
        ):
            return int(text)
    return None


def in_time_order(
    call: RecordedCall, delivery: DeliveryTimes = PROMPT_DELIVERY
) -> Iterator[WireEvent]:
    """The call's events in the order in which a live system would produce them; order within a
    source is kept.

    At the same millisecond audit comes before pipecat before elevenlabs, `call_started` first and
    `call_ended` last.
    """
    ranked = _ranked_streams(call, delivery).values()
    return (
        event for _, event in heapq.merge(*ranked, key=lambda item: (item[1].arrival_ms, item[0]))
    )


def in_random_order(call: RecordedCall, seed: int) -> Iterator[WireEvent]:
    """The call's events with the sources interleaved at random, every interleaving equally likely.

    Order within a source is kept. The same seed gives the same order.
    """
    rng = random.Random(seed)  # noqa: S311 - an order to test with, not a secret
    streams = [
        [event for _, event in stream] for stream in _ranked_streams(call, PROMPT_DELIVERY).values()
    ]
    left = [len(stream) for stream in streams]
    while any(left):
        (chosen,) = rng.choices(range(len(streams)), weights=left)
        yield streams[chosen][len(streams[chosen]) - left[chosen]]
        left[chosen] -= 1


def shifted(call: RecordedCall, by_seconds: int) -> RecordedCall:
    """The same call at another time: every time in every event moved by whole seconds.

    Only the time fields move, never texts of people or tools. Audio times are moved as floats
    without rounding: near the present their grid is finer than a microsecond and holds whole
    seconds, so durations stay the same.
    """

    def audit_or_control(event: Mapping[str, Any]) -> Mapping[str, Any]:
        return _with_shifted_stamp(event, by_seconds)

    def pipecat(event: Mapping[str, Any]) -> Mapping[str, Any]:
        moved = _with_shifted_stamp(event, by_seconds)
        if event.get("type") in RECORD_TYPES:
            moved["data"] = _shifted_record(event.get("data"), by_seconds)
        return moved

    def elevenlabs(event: Mapping[str, Any]) -> Mapping[str, Any]:
        moved = _with_shifted_stamp(event, by_seconds)
        if "audio_timestamp" in event:
            moved["audio_timestamp"] = _shifted_seconds(event["audio_timestamp"], by_seconds)
        return moved

    def agent(event: Mapping[str, Any]) -> Mapping[str, Any]:
        return _shifted_conversation(_with_shifted_stamp(event, by_seconds), by_seconds)

    return replace(
        call,
        audit=None if call.audit is None else tuple(map(audit_or_control, call.audit)),
        pipecat=None if call.pipecat is None else tuple(map(pipecat, call.pipecat)),
        elevenlabs=None if call.elevenlabs is None else tuple(map(elevenlabs, call.elevenlabs)),
        agent=None if call.agent is None else tuple(map(agent, call.agent)),
        control=tuple(map(audit_or_control, call.control)),
    )


def seconds_to_now(call: RecordedCall, now_ms: int, speed: float | None) -> int:
    """By how many whole seconds to shift a call that starts playing now, so that no event is from
    the future when sent.

    At speed 1 (or slower) the call's first event is now. Played faster, its last event is due when
    it is sent, and the first one lies in the past. As fast as possible (None) it ends now. A call
    without times is not shifted (0).
    """
    times_ms = times_ms_of(call)
    if not times_ms:
        return 0
    duration_ms = times_ms[-1] - times_ms[0]
    played_ms = 0 if speed is None else duration_ms / speed
    first_ms = now_ms - max(0, duration_ms - played_ms)
    return int((first_ms - times_ms[0]) // 1000)


def renamed(call: RecordedCall, conversation_id: str) -> RecordedCall:
    """The same call under another conversation id, also where pipecat lines and an agent's record
    carry it.
    """

    def carried(events: Events | None) -> Events | None:
        if events is None:
            return None
        return tuple(
            {**event, "conversation_id": conversation_id} if "conversation_id" in event else event
            for event in events
        )

    return replace(
        call,
        conversation_id=conversation_id,
        pipecat=carried(call.pipecat),
        agent=carried(call.agent),
    )


def with_control_events(
    call: RecordedCall,
    *,
    agent: str | None = None,
    environment: str | None = None,
    goals: str | None = None,
    is_whole: bool = True,
) -> RecordedCall:
    """Adds `call_started` at the time of the call's first event and `call_ended` at its last, where
    it has none yet; and the goals to a `call_started` that names none.

    A call without a single readable time gets none: there is nothing to say when it was. A part of
    a call gets none either.
    """
    times_ms = times_ms_of(call) or ([] if is_whole else [0])  # a part needs none
    if not times_ms:
        return call
    present = {event.get("type") for event in call.control}
    facts = {
        "pipeline_type": call.pipeline_type,
        "agent": agent,
        "environment": environment,
        "goals": goals,
    }
    # An agent is named once: what a later start of the call says, counts.
    is_named = any(
        event.get("agent") is not None
        for event in call.control
        if event.get("type") == "call_started"
    )
    started: dict[str, Any] = {
        "type": "call_started",
        "timestamp": times_ms[0],
        **_without_nulls(facts),
    }
    ended: dict[str, Any] = {"type": "call_ended", "timestamp": times_ms[-1]}
    ended |= _without_nulls({"reason": call.conversation_ended_reason})
    first = () if "call_started" in present or not is_whole else (started,)
    last = () if "call_ended" in present or not is_whole else (ended,)
    named = _without_nulls({"goals": goals, "agent": None if is_named else agent})
    control = (
        with_fields(each, {name: value for name, value in named.items() if each.get(name) is None})
        if each.get("type") == "call_started"
        else each
        for each in call.control
    )
    return replace(call, control=(*first, *control, *last))


def event_name(source: Source, event: Mapping[str, Any]) -> str:
    """The event's type in its source's words; `unknown` when the field is missing, empty or no
    text, as EVA calls it.
    """
    keys = ("message_type",) if source == "audit" else ("type", "event_type")
    if is_control_event(event):
        keys = ("type",)
    return next(
        (name for key in keys if isinstance(name := event.get(key), str) and name), "unknown"
    )


def agent_event_name(event: Mapping[str, Any]) -> str:
    """The event type of a real ElevenLabs agent; the body of a record or of its webhook is a
    record. Empty for an event without one.
    """
    name = event.get("type")
    if is_agent_record(event):
        return AGENT_RECORD
    return name if isinstance(name, str) else ""


def compact_json(event: Mapping[str, Any]) -> bytes:
    """The event as it travels. ASCII with escapes, so that a lone surrogate in a recording cannot
    break a replay. A number that no float can hold is null.
    """
    try:
        return _json_of(event)
    except ValueError:  # 1e999 is infinity by now; to look for it in every event would cost more
        return _json_of(without_infinity(dict(event)))


def _json_of(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode("ascii")


_RankedEvent = tuple[int, WireEvent]


def _ranked_streams(
    call: RecordedCall, delivery: DeliveryTimes
) -> dict[Source, list[_RankedEvent]]:
    """Each source's events, with the rank that orders them at the same millisecond; control joins
    the audit log.
    """
    streams: dict[Source, list[_Queued]] = {}
    if call.audit is not None or call.control:
        audit = _queued("audit", call.audit or (), delivery)
        # Before delays count: an update of an entry must not overtake an entry that is held up.
        streams["audit"] = list(
            heapq.merge(audit, _queued_control(call.control), key=lambda item: item[:2])
        )
    if call.pipecat is not None:
        streams["pipecat"] = list(_queued("pipecat", call.pipecat, delivery))
    if call.elevenlabs is not None or call.agent is not None:
        caller = _queued("elevenlabs", call.elevenlabs or (), delivery)
        agent = (
            item._replace(is_agent_event=True)
            for item in _queued("elevenlabs", call.agent or (), PROMPT_DELIVERY)
        )
        streams["elevenlabs"] = list(heapq.merge(caller, agent, key=lambda item: item[:2]))
    return {source: list(_produced(source, items)) for source, items in streams.items()}


class _Queued(NamedTuple):
    """An event in the queue of its source: it leaves when it is produced and all earlier events
    have left.
    """

    turn_ms: int
    rank: int
    time_ms: int
    delay_ms: int
    copies: int
    event: Mapping[str, Any]
    is_agent_event: bool = False


def _queued(source: Source, events: Events, delivery: DeliveryTimes) -> Iterator[_Queued]:
    rank = SOURCES.index(source)
    time_ms = next((stamp_ms for stamp_ms in map(event_time_ms, events) if stamp_ms is not None), 0)
    turn_ms = time_ms
    for index, event in enumerate(events):
        stamp_ms = event_time_ms(event)
        time_ms = time_ms if stamp_ms is None else stamp_ms
        turn_ms = max(turn_ms, time_ms)
        delay_ms = delivery.delay_ms.get((source, index), 0)
        yield _Queued(
            turn_ms,
            rank,
            time_ms,
            delay_ms,
            2 if (source, index) in delivery.repeated else 1,
            event,
        )


def _queued_control(control: Events) -> Iterator[_Queued]:
    ranks = {"call_started": _BEFORE_ALL, "call_ended": _AFTER_ALL}
    for event in control:
        time_ms = event_time_ms(event) or 0
        yield _Queued(time_ms, ranks.get(event.get("type", ""), 0), time_ms, 0, 1, event)


def _produced(source: Source, items: Iterable[_Queued]) -> Iterator[_RankedEvent]:
    latest_ms: int | None = None
    for sequence, item in enumerate(items, start=1):
        arrival_ms = item.time_ms + item.delay_ms
        latest_ms = arrival_ms if latest_ms is None else max(latest_ms, arrival_ms)
        is_agent = item.is_agent_event
        name = agent_event_name(item.event) if is_agent else event_name(source, item.event)
        at = item.event.at if isinstance(item.event, FiledEvent) else None
        event = WireEvent(
            source, compact_json(item.event), item.time_ms, name, sequence, latest_ms, is_agent, at
        )
        for _ in range(item.copies):
            yield item.rank, event


def times_ms_of(call: RecordedCall) -> list[int]:
    events = [
        *(call.audit or ()),
        *(call.pipecat or ()),
        *(call.elevenlabs or ()),
        *(call.agent or ()),
    ]
    return sorted(time_ms for time_ms in map(event_time_ms, events) if time_ms is not None)


def _with_shifted_stamp(event: Mapping[str, Any], by_seconds: int) -> dict[str, Any]:
    """A copy whose `timestamp` moved and kept its type; one that cannot be read stays as it is."""
    moved = dict(event)
    if event_time_ms(event) is None:
        return moved
    stamp = event["timestamp"]
    moved["timestamp"] = (
        str(int(stamp) + by_seconds * 1000) if isinstance(stamp, str) else stamp + by_seconds * 1000
    )
    return moved


def _shifted_seconds(value: Any, by_seconds: int) -> Any:
    if isinstance(value, str):
        return _shifted_iso(value, by_seconds)
    return (
        value + by_seconds
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
    )


def _shifted_iso(text: str, by_seconds: int) -> str:
    """Messages of pipecat carry ISO times with milliseconds; another text stays as it is."""
    try:
        moment = datetime.fromisoformat(text) + timedelta(seconds=by_seconds)
    except (ValueError, OverflowError):
        return text
    return moment.isoformat(
        timespec="microseconds" if moment.microsecond % 1000 else "milliseconds"
    )


def _shifted_conversation(event: dict[str, Any], by_seconds: int) -> dict[str, Any]:
    """The times inside the record of a conversation with an agent."""
    metadata = event.get("metadata")
    if isinstance(metadata, dict):
        begins = ("start_time_unix_secs", "accepted_time_unix_secs")
        event["metadata"] = {
            name: _shifted_seconds(value, by_seconds) if name in begins else value
            for name, value in metadata.items()
        }
    entries = event.get("transcript")
    if isinstance(entries, list):
        event["transcript"] = [_shifted_entry(entry, by_seconds) for entry in entries]
    return event


def _shifted_entry(entry: Any, by_seconds: int) -> Any:
    made_ms = entry.get("created_at_unix_ms") if isinstance(entry, dict) else None
    return (
        entry if made_ms is None else {**entry, "created_at_unix_ms": made_ms + by_seconds * 1000}
    )


def _shifted_record(value: Any, by_seconds: int) -> Any:
    if isinstance(value, list):
        return [_shifted_record(item, by_seconds) for item in value]
    if not isinstance(value, dict):
        return value
    moved = dict(value)
    for key, item in value.items():
        if key in _RECORD_TIME_KEYS:
            moved[key] = _shifted_seconds(item, by_seconds)
        elif key not in _RECORD_CONTENT_KEYS:
            moved[key] = _shifted_record(item, by_seconds)
    return moved


def _without_nulls(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}
