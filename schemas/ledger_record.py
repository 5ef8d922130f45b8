"""Reads records of `scores` for the evaluator that takes over their calls, including records of other versions.

The successor publishes a score again if it skips the record of it. So a record that does not validate is read in part: the
fields that all versions have give the next revision and whether the call is closed. If even that fails, reading ends with an
error. Only records that no callgauge wrote are skipped.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from pydantic import Field, ValidationError
from pydantic_core import from_json

from schemas.scores.all_records import SCORE_RECORD, AnyScoreRecord
from schemas.scores.record import SCHEMA_VERSION, ScoreModel, TurnStatus

_NAMES: Final = frozenset(
    name for record in get_args(AnyScoreRecord) for name in get_args(record.model_fields["name"].annotation)
)
_OBEYED_SINCE: Final[Mapping[str, int]] = {"dead_air": 1, "goals": 1, "turn": 2}
"""Records of which a replay needs all fields, with the schema version since which it does: a silence, the goal set, and the
counted values of a turn. A `turn` of schema 1 was a fact without values."""
_OUR_FIELDS: Final = frozenset({"record_id", "code_version"})
"""Fields that every record of callgauge has."""


class ClosedElsewhere(ScoreModel):
    """A `closed` fact of another version: the call is over, and `through` is how far its records counted."""

    kind: Literal["closed"]
    conversation_id: str = Field(min_length=1)
    through: dict[str, int]


class ScoredElsewhere(ScoreModel):
    """A record of an open call by another version: its subject and its revision. See `CallRecord`."""

    conversation_id: str = Field(min_length=1)
    name: str
    turn: int | None
    index: int
    revision: int
    status: TurnStatus
    is_first: bool
    input_hash: str
    offsets: dict[str, int]
    is_withdrawn: bool = False


LedgerRecord = AnyScoreRecord | ClosedElsewhere | ScoredElsewhere


class UnreadableRecordError(ValueError):
    """A record of another callgauge cannot be read here. The text names its version and the fault."""


def read_ledger_record(value: bytes) -> LedgerRecord | None:
    """Reads one value of `scores`, in full or as much as a successor needs.

    Returns:
        The record; None when no callgauge wrote it.

    Raises:
        UnreadableRecordError: A callgauge wrote it and it cannot be read. Skipping it would publish scores twice.
    """
    try:
        record = SCORE_RECORD.validate_json(value)
    except ValidationError as error:
        return _read_in_part(value, error)
    _require_our_schema({"schema_version": record.schema_version, "code_version": record.code_version})
    return record


def _read_in_part(value: bytes, error: ValidationError) -> LedgerRecord | None:
    try:
        fields = from_json(value)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    if not fields.keys() >= _OUR_FIELDS:
        return None
    is_closing = fields.get("kind") == "closed"
    version = _require_our_schema(fields)
    name = str(fields.get("name"))
    if not is_closing and name in _OBEYED_SINCE and version >= _OBEYED_SINCE[name]:
        raise UnreadableRecordError(_unreadable(fields, error)) from error
    try:
        if is_closing:
            return ClosedElsewhere.model_validate(fields)
        # This version cannot withdraw a score whose name it does not have, so such a score counts as withdrawn already.
        is_gone = name not in _NAMES or fields.get("is_withdrawn") is True
        return ScoredElsewhere.model_validate(fields | {"is_withdrawn": is_gone})
    except ValidationError as worse:
        raise UnreadableRecordError(_unreadable(fields, worse)) from worse


def _require_our_schema(fields: dict[str, Any]) -> int:
    """Returns the schema version of the record; ours if the record has none."""
    version = fields.get("schema_version")
    if not isinstance(version, int):
        return SCHEMA_VERSION
    if version > SCHEMA_VERSION:
        raise UnreadableRecordError(
            f"has schema version {version}, written by callgauge {_version_in(fields)}, and this callgauge reads up to {SCHEMA_VERSION}"
        )
    return version


def _unreadable(fields: dict[str, Any], error: ValidationError) -> str:
    mistake = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in mistake["loc"]) or "the record"
    return f"was written by callgauge {_version_in(fields)} and cannot be read here ({where}: {mistake['msg']})"


def _version_in(fields: dict[str, Any]) -> str:
    return ascii(fields.get("code_version", "unknown"))[:40]
