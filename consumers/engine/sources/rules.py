"""How each type of event is read: the rules of every source together, and what no source knows."""

from collections.abc import Mapping
from typing import Any, Final

from consumers.engine.effects import Count, Effect, NotUnderstood
from consumers.engine.sources import audit, elevenlabs, pipecat, simulator
from consumers.engine.sources.facts import EventRule, Verdict, nothing
from schemas.closed_sets import InputSource, MisreadReason
from schemas.events.codec import misread_of


def _as_it_is(verdict: Verdict) -> tuple[Verdict]:
    return (verdict,)


VERDICT: Final = EventRule(_as_it_is, is_kept=False, is_of_a_stream=False)
"""A judge's answer is no event of the call."""

RULES: Final[Mapping[type, EventRule]] = {
    **pipecat.RULES,
    **audit.RULES,
    **simulator.RULES,
    **elevenlabs.RULES,
    Verdict: VERDICT,
}
"""The rule of each type of event that this version knows."""

UNKNOWN: Final[Mapping[InputSource, EventRule]] = {
    source: EventRule(facts, is_kept=False, outcome="unknown")
    for source, facts in (
        (InputSource.AUDIT, lambda _event: audit.UNREAD_ENTRY),
        (InputSource.PIPECAT, nothing),
        (InputSource.ELEVENLABS, lambda _event: simulator.UNREAD_ENTRY),
        (InputSource.JUDGE, nothing),
    )
}
"""The rule of any other event, by its input: EVA counts it as an entry of the log."""


_TOLD_BY_A_FACT: Final = frozenset(
    {MisreadReason.TOOL_WITHOUT_ID, MisreadReason.WORDS_WITHOUT_CONTENT}
)


def reports_of(source: InputSource, event: Any, outcome: str, conversation_id: str) -> list[Effect]:
    """The effects that report unknown fields of an event, or that it is not understood. Such events
    are rare.
    """
    reports: list[Effect] = []
    extra = event.__pydantic_extra__
    if extra and outcome != "unknown":
        reports.append(Count("callgauge_unknown_fields_total", (source.value,), len(extra)))
    misread = misread_of(event)
    if misread is not None and misread.reason not in _TOLD_BY_A_FACT:
        reports.append(NotUnderstood(source, conversation_id, misread))
    return reports
