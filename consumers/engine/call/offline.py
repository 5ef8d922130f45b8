"""Folds recorded calls through the live engine without a broker, for the `context` command and for tests of laws."""

from collections.abc import Iterable
from typing import Any

from consumers.engine.call.call import Call
from consumers.engine.effects import Effect
from consumers.engine.intake.admission import Arrival
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.call import CallStarted, PipelineType

NO_LIMITS = Limits(
    max_events_per_call=2**31,
    max_kept_bytes_per_call=2**62,
    max_replayed_elements_per_call=2**62,
    max_turns_per_call=2**31,
    max_stage_values_per_call=2**31,
    max_event_time_skew_ms=0,
)
"""A recording is complete, so no limit may cut it off."""


def folded(
    arrivals: Iterable[Arrival], pipeline_type: PipelineType | str, ended_reason: str | None, limits: Limits = NO_LIMITS
) -> Call:
    """One call, folded event by event in the given order and not closed.

    Args:
        arrivals: The call's events; each source in its own order.
        pipeline_type: Type of the agent's pipeline, as in a `call_started` event.
        ended_reason: Why the call ended, unless a `call_ended` among the events has a reason.
        limits: Bounds; by default none that a recording can reach.
    """
    started = CallStarted(type="call_started", timestamp=0, pipeline_type=PipelineType(pipeline_type))
    first = Arrival(InputSource.JUDGE, 0, 0, "", started, b"", None)
    call = Call(first, limits, "offline")
    call.history.set_pipeline_type(PipelineType(pipeline_type))
    effects: list[Effect] = []
    for arrival in arrivals:
        call.receive(arrival, effects)
        effects.clear()
    if call.ended_reason is None:
        call.ended_reason = ended_reason
    return call


def context_of(
    arrivals: Iterable[Arrival], pipeline_type: PipelineType | str, ended_reason: str | None, limits: Limits = NO_LIMITS
) -> dict[str, Any]:
    """EVA's context of one call in the conformance encoding; the arguments are those of `folded`."""
    return folded(arrivals, pipeline_type, ended_reason, limits).context().to_dict()
