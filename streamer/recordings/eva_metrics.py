"""Moves the measurements that EVA stores beside the events of a call to the places where a running bot would send them. Pure.

The metrics of `pipecat_metrics.jsonl` are events of the pipecat stream: the log keeps its order, and each metric goes in behind
everything of its time or earlier. Latencies of the model are in the audit log's `llm_prompts`: each goes to the `llm_call`
entry of the same step, in fields that no rule of EVA's reads.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

Events = tuple[Mapping[str, Any], ...]

_SINCE_START_BELOW: Final = 10**8
"""Old recordings have seconds since the pipeline started, new ones epoch milliseconds; a call of three years is neither."""

_SAME_STEP_MS: Final = 1_000
"""An entry is written as soon as the model has answered; two steps of one call are further apart than that."""


class UnplacedMetricsError(ValueError):
    """The metrics count from a start that the log of the call does not have; the text names the missing part."""


class _Placed(NamedTuple):
    time_ms: float
    is_metric: bool
    place: int
    event: Mapping[str, Any]


def with_metrics(log: Events | None, metrics: Events) -> Events:
    """The pipecat stream: the log's lines and the metrics.

    Args:
        log: Lines of the pipecat or framework log; None when the call has none.
        metrics: Lines of the file of metrics, in its order.

    Raises:
        UnplacedMetricsError: Metrics have times since the start of the pipeline, and no line of the log has a time: its first
            one is the start.
    """
    lines = list(_placed(log or (), is_metric=False))
    start_ms = next((line.time_ms for line in lines if line.time_ms > 0), None)
    events = tuple(dated(event, start_ms) for event in metrics)
    return tuple(
        placed.event for placed in heapq.merge(lines, _placed(events, is_metric=True), key=lambda each: each[:3])
    )


def _placed(events: Events, *, is_metric: bool) -> Iterator[_Placed]:
    """Places a line by its position in the file: at the latest time so far."""
    latest_ms = 0.0
    for place, event in enumerate(events):
        stamp = event.get("timestamp")
        if isinstance(stamp, int | float) and not isinstance(stamp, bool):
            latest_ms = max(latest_ms, stamp)
        yield _Placed(latest_ms, is_metric, place, event)


def dated(event: Mapping[str, Any], start_ms: float | None) -> Mapping[str, Any]:
    """A metric with its time in epoch milliseconds.

    Args:
        event: A line of the file of metrics.
        start_ms: Start of the pipeline, which is the first time in the log of the call; None when it is not known.

    Raises:
        UnplacedMetricsError: Its time counts from the start, which is not known.
    """
    stamp = event.get("timestamp")
    if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < _SINCE_START_BELOW:
        return event
    if start_ms is None:
        raise UnplacedMetricsError("a pipecat or framework log whose first line says when the pipeline started")
    return {**event, "timestamp": int(start_ms + stamp * 1000)}


def with_llm_latencies(entries: Events, prompts: object) -> Events:
    """The entries of the audit log; entries of model steps get `latency_ms` and `model` if `llm_prompts` has the step.

    Steps are in the same order in both. A failed step, or a step without an entry, is skipped.
    """
    steps = [each for each in prompts if isinstance(each, Mapping)] if isinstance(prompts, list) else []
    completed = []
    at = 0
    for entry in entries:
        written_ms = _digits(entry.get("timestamp"))
        if entry.get("message_type") == "llm_call" and "latency_ms" not in entry and written_ms is not None:
            while at < len(steps) and (_digits(steps[at].get("end_time")) or 0) < written_ms - _SAME_STEP_MS:
                at += 1
            ended_ms = _digits(steps[at].get("end_time")) if at < len(steps) else None
            if ended_ms is not None and ended_ms <= written_ms + _SAME_STEP_MS:
                of_step = {key: steps[at][key] for key in ("latency_ms", "model") if steps[at].get(key) is not None}
                entry = {**entry, **of_step}
                at += 1
        completed.append(entry)
    return tuple(completed)


def _digits(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18 else None
