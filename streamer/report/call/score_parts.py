"""The values in a row of a turn, or in the record of a call, one by one under their names. Pure."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from schemas.scores.records import (
    CallRecord,
    CallValues,
    EstimateError,
    NotApplicable,
    Result,
    Scored,
    ScoreModel,
    TranscriptDisagreement,
    TurnValues,
    Unscored,
    WordErrorRate,
)

LATENCY: Final = "voice_to_voice_latency_ms"
_OF_ANY_RECORD: Final = frozenset({*CallRecord.model_fields, "kind", "name"})
_NO_VALUES: Final = _OF_ANY_RECORD | {
    *("through_turn", "first_known", "is_withdrawn", "is_over"),
    *("voice_to_voice_ms", "anchor", "source", "eva"),
}
"""Fields without a value: those of the record itself, and those that have a shape of their own here."""


class ScorePart(NamedTuple):
    """One value.

    Attributes:
        name: Its name, as of a record of its own.
        result: Its value; None for a score of several numbers.
        fields: Its other values, by name.
        meaning: Its description in the contract; empty where the name says all.
    """

    name: str
    result: Result | None
    fields: Mapping[str, Any]
    meaning: str = ""


def parts_of(record: TurnValues | CallValues) -> Iterator[ScorePart]:
    """Every measured value, but no latency of the greeting, for which nobody waits."""
    if isinstance(record, TurnValues):
        if record.turn is not None and record.turn >= 1:
            yield ScorePart(LATENCY, record.voice_to_voice_ms, {"anchor": record.anchor, "source": record.source})
    else:
        for metric, score in record.eva.items():
            yield part_of(metric, score)
    for name in type(record).model_fields:
        value = getattr(record, name)
        if name not in _NO_VALUES and value not in (None, (), {}):
            part = part_of(name, value)
            if isinstance(record, CallValues) and isinstance(value, WordErrorRate | TranscriptDisagreement):
                part = part._replace(fields={"through_turn": record.through_turn, **part.fields})
            yield part


def part_of(name: str, value: object) -> ScorePart:
    """A value as one part; of a record, the fields that only its kind has."""
    match value:
        case Scored() | Unscored() | NotApplicable():
            return ScorePart(name, value, {})
        case EstimateError(error_ms=error_ms):
            others = {"estimated_ms": value.estimated_ms, "recorded_ms": value.recorded_ms}
            return ScorePart("estimate_error_ms", Scored(value=error_ms), others, _meaning(value))
        case ScoreModel():
            own = type(value).model_fields.keys() - (_OF_ANY_RECORD if isinstance(value, CallRecord) else set())
            fields = {field: getattr(value, field) for field in type(value).model_fields if field in own}
            return ScorePart(name, fields.pop("result", None), fields, _meaning(value))
        case _:
            return ScorePart(name, None, {name: value})


def _meaning(value: ScoreModel) -> str:
    return (inspect.getdoc(type(value)) or "").split("\n\n")[0].replace("`", "").replace("\n", " ")
