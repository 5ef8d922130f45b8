"""The result of one EVA metric for a call in EVA's encoding: zeros for values it cannot compute,
errors, skips.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class MetricResult:
    """One metric of one call.

    Attributes:
        score: On the metric's own scale; None when skipped. With an `error` it is EVA's 0.0.
        normalized_score: From 0 (worst) to 1 (best); None for a metric without such a scale, or
            skipped.
        details: Grounds of the score under EVA's keys. JSON values; turn ids are texts.
        error: Why EVA could not compute it, in EVA's words.
        skipped: Whether the call has nothing that this metric measures.
        sub_metrics: Parts of the score by name; a part without values to average is absent, None is
            a value that EVA leaves open.
    """

    score: float | None
    normalized_score: float | None
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    skipped: bool = False
    sub_metrics: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values under the keys of EVA's result files."""
        return {
            "details": dict(self.details),
            "error": self.error,
            "normalized_score": self.normalized_score,
            "score": self.score,
            "skipped": self.skipped,
            "sub_metrics": dict(self.sub_metrics),
        }


def scored(
    score: float, details: Mapping[str, Any], sub_metrics: Mapping[str, float | None] | None = None
) -> MetricResult:
    """A score from 0 to 1, which is its own normalised score."""
    return MetricResult(score, score, details, sub_metrics=sub_metrics or {})


def skipped(details: Mapping[str, Any] | None = None) -> MetricResult:
    """The result of a call without anything that the metric measures."""
    return MetricResult(None, None, details or {}, skipped=True)


def failed(error: str) -> MetricResult:
    """The result of a metric that EVA cannot compute: an error, and its zero."""
    return MetricResult(0.0, 0.0, error=error)
