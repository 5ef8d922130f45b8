"""The share of tool groups that the assistant announced (`pretoolspeech_rate`)."""

from collections.abc import Iterable

from consumers.engine.measures.eva.timing.turn_scores import SCORE_DIGITS
from consumers.engine.turns.timeline.elements import ElementKind

_TOOLS = frozenset({ElementKind.TOOL_CALL, ElementKind.TOOL_RESPONSE})


def pre_tool_speech_rate(history: Iterable[tuple[int, int, object]]) -> float | None:
    """Share of tool groups that began after the assistant had answered the user's last words.

    A group is a run of tool calls and answers with no words of either side between them.

    Args:
        history: The merged history, (key, kind, payload) in its order; only entries of the audit log are read.

    Returns:
        The share, from 0 to 1; None without tools.
    """
    groups = announced = 0
    has_spoken = is_in_group = False
    for _, kind, payload in history:
        if kind in _TOOLS:
            groups += not is_in_group
            announced += has_spoken and not is_in_group
            is_in_group = True
        elif kind == ElementKind.AUDIT_USER:
            has_spoken = is_in_group = False
        elif kind == ElementKind.AUDIT_ASSISTANT:
            is_in_group = False
            has_spoken = has_spoken or (isinstance(payload, str) and bool(payload.strip()))
    return round(announced / groups, SCORE_DIGITS) if groups else None
