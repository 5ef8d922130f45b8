"""A wire-level call as the engine receives it: its events decoded from JSON bytes, in some order,
as arrivals.

A call may carry control events in `control`; `control_on` names the stream on whose topic each of
them comes.
"""

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from consumers.engine.admission import Arrival
from schemas.closed_sets import InputSource
from schemas.events.codec import decode

Json = dict[str, Any]
Order = Sequence[tuple[str, int]]

STREAMS = ("audit", "pipecat", "user_sim")
SOURCE_OF = {
    "audit": InputSource.AUDIT,
    "pipecat": InputSource.PIPECAT,
    "user_sim": InputSource.ELEVENLABS,
    "judge": InputSource.JUDGE,  # only control events come there
}


def wire_calls(path: Path) -> Iterator[Json]:
    """The calls of a wire-level file, one per line."""
    with gzip.open(path, "rt") as lines:
        yield from (json.loads(line) for line in lines)


def record_call(directory: Path) -> Json:
    """An EVA record directory as a wire-level call; `expected` is the content of its
    expected file.
    """

    def lines(name: str) -> list[Json]:
        return [json.loads(line) for line in (directory / name).read_text().splitlines()]

    return {
        "id": directory.name,
        "pipeline_type": "cascade",
        "conversation_ended_reason": json.loads((directory / "result.json").read_text())[
            "conversation_ended_reason"
        ],
        "audit": json.loads((directory / "audit_log.json").read_text())["transcript"],
        "pipecat": lines("pipecat_logs.jsonl"),
        "user_sim": lines("elevenlabs_events.jsonl"),
        "expected": json.loads((directory / "expected_processor_context.json").read_text()),
    }


def in_time_order(call: Json) -> list[tuple[str, int]]:
    """The call's events as (stream, index), by the time each stream has reached: every stream keeps
    its own order.
    """
    keyed = []
    for rank, stream in enumerate(STREAMS):
        reached_ms = -(2**62)
        for index, event in enumerate(call.get(stream) or ()):
            reached_ms = max(reached_ms, int(float(event.get("timestamp") or 0)))
            keyed.append((reached_ms, rank, index, stream))
    return [(stream, index) for _, _, index, stream in sorted(keyed)]


def in_random_order(call: Json, seed: int) -> list[tuple[str, int]]:
    """Some interleaving of the call's streams, every stream in its own order."""
    order = [stream for stream in STREAMS for _ in call.get(stream) or ()]
    random.Random(seed).shuffle(order)  # noqa: S311  # a reproducible order, nothing secret
    seen: Counter[str] = Counter()
    numbered = []
    for stream in order:
        numbered.append((stream, seen[stream]))
        seen[stream] += 1
    return numbered


def decoded(call: Json) -> dict[str, list[tuple[InputSource, bytes, Any]]]:
    """By stream, and for `control`: every event's source, bytes and typed event."""
    result = {}
    for stream in (*STREAMS, "control"):
        events = call.get(stream) or []
        topics = call["control_on"] if stream == "control" and events else [stream] * len(events)
        typed = []
        for topic, event in zip(topics, events, strict=True):
            source, value = SOURCE_OF[topic], json.dumps(event).encode()
            typed.append((source, value, decode(source, value)))
        result[stream] = typed
    return result


def arrivals_of(call: Json, order: Iterable[tuple[str, int]], *, lag_ms: int = 20) -> list[Arrival]:
    """The call's events in this order, as the reader of one partition of the log gets them.

    The broker takes an event `lag_ms` after it was logged, or after the latest event before it: its
    clock does not run backwards.
    """
    events = decoded(call)
    broker_ms: int | None = None
    result = []
    for offset, (stream, index) in enumerate(order):
        source, value, event = events[stream][index]
        if event.timestamp is not None:
            taken_ms = int(event.timestamp) + lag_ms
            broker_ms = taken_ms if broker_ms is None else max(broker_ms, taken_ms)
        result.append(Arrival(source, offset, broker_ms or 0, str(call["id"]), event, value, None))
    return result
