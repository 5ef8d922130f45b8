"""EVA's composites of a call's experience (EVA-X): the mean of its known parts, and whether all are good enough."""

from collections.abc import Mapping
from statistics import fmean
from typing import Final

EXPERIENCE_THRESHOLDS: Final[Mapping[str, float]] = {
    "conversation_progression": 0.5,
    "turn_taking": 0.8,
    "conciseness": 0.5,
}
"""Least normalised score that is good enough, by part of EVA-X."""
TOLERANCE: Final = 1e-9


def eva_x_mean(normalized: Mapping[str, float | None]) -> float | None:
    """The mean of the known parts of EVA-X; None when none is known."""
    known = [value for name in EXPERIENCE_THRESHOLDS if (value := normalized.get(name)) is not None]
    return fmean(known) if known else None


def eva_x_pass(normalized: Mapping[str, float | None]) -> bool | None:
    """Whether every part of EVA-X is good enough; None while one of them is unknown."""
    values = [(normalized.get(name), least) for name, least in EXPERIENCE_THRESHOLDS.items()]
    if any(value is None for value, _ in values):
        return None
    return all(value is not None and value >= least - TOLERANCE for value, least in values)
