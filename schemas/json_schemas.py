"""The JSON Schema of each record type, by the name that the topic table gives it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter

from schemas.annotations import AnyAnnotation
from schemas.events.audit import AuditEvent
from schemas.events.codec import ControlEvent
from schemas.events.elevenlabs import ConversationRecord, TypedAgentEvent
from schemas.events.examples import with_examples
from schemas.events.pipecat import PipecatEvent
from schemas.events.simulator import AudioEvent, TypedSimulatorEvent
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest, JudgeVerdict
from schemas.log import Tick
from schemas.metric_context import MetricContext
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, GoalsRow, OwnRow, TurnRow, WordsRow
from schemas.transcript import TranscriptTurn

TYPES: Final[Mapping[str, Any]] = {
    "pipecat-event": PipecatEvent,
    "simulator-event": TypedSimulatorEvent | AudioEvent,
    "agent-event": TypedAgentEvent,
    "agent-record": ConversationRecord,
    "audit-event": AuditEvent,
    "control-event": ControlEvent,
    "judge-request": JudgeRequest,
    "judge-verdict": JudgeVerdict,
    "goals": GoalSet,
    "turn-row": TurnRow,
    "call-row": CallRow,
    "goals-row": GoalsRow,
    "words-row": WordsRow,
    "own-row": OwnRow,
    "quarantine": QuarantineRecord,
    "transcript": tuple[TranscriptTurn, ...],
    "annotation": AnyAnnotation,
    "tick": Tick,
    "metric-context": MetricContext,
}
"""The type of each kind of record, by its name."""
ROWS: Final = frozenset({"turn-row", "call-row", "goals-row", "words-row", "own-row"})
"""Those that are structs of msgspec, which pydantic cannot show."""
SCHEMA_NAMES = tuple(sorted(TYPES))


def json_schema(name: str) -> dict[str, Any]:
    """Returns the JSON Schema of the record type `name`.

    Raises:
        KeyError: No record type has that name; `SCHEMA_NAMES` lists them.
    """
    if name in ROWS:
        return msgspec.json.schema(TYPES[name])
    is_written_by_us = name in {"quarantine", "transcript", "metric-context", "tick"}
    return with_examples(
        TypeAdapter(TYPES[name]).json_schema(
            mode="serialization" if is_written_by_us else "validation"
        )
    )
