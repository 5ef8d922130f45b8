"""Reports the parts of an event that the contract does not know. They are rare, so other events do not pay for this."""

from typing import Any

from consumers.engine.effects import Count, Effect, NotUnderstood
from schemas.closed_sets import InputSource
from schemas.events.misread import misread_of


def reports_of(source: InputSource, event: Any, outcome: str, conversation_id: str) -> list[Effect]:
    """The effects that report unknown fields of an event, or that it is not understood."""
    reports: list[Effect] = []
    extra = event.__pydantic_extra__
    if extra and outcome != "unknown":
        reports.append(Count("callgauge_unknown_fields_total", (source.value,), len(extra)))
    misread = misread_of(event)
    if misread is not None:
        reports.append(NotUnderstood(source, conversation_id, misread))
    return reports
