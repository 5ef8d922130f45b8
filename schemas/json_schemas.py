"""The JSON Schema of each record type, by the name that the topic table gives it."""

from typing import Any

from pydantic import TypeAdapter

from schemas.events.audit import AuditEvent
from schemas.events.codec import ControlEvent
from schemas.events.elevenlabs import ConversationRecord, TypedAgentEvent
from schemas.events.examples import with_examples
from schemas.events.pipecat import PipecatEvent
from schemas.events.simulator import AudioEvent, TypedSimulatorEvent
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest, JudgeVerdict
from schemas.metric_context import MetricContext
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import ScoreRecord
from schemas.transcript import TRANSCRIPT

_SCHEMAS: dict[str, TypeAdapter[Any]] = {
    "pipecat-event": TypeAdapter(PipecatEvent),
    "simulator-event": TypeAdapter(TypedSimulatorEvent | AudioEvent),
    "agent-event": TypeAdapter(TypedAgentEvent),
    "agent-record": TypeAdapter(ConversationRecord),
    "audit-event": TypeAdapter(AuditEvent),
    "control-event": TypeAdapter(ControlEvent),
    "judge-request": TypeAdapter(JudgeRequest),
    "judge-verdict": TypeAdapter(JudgeVerdict),
    "goals": TypeAdapter(GoalSet),
    "score": TypeAdapter(ScoreRecord),
    "quarantine": TypeAdapter(QuarantineRecord),
    "transcript": TRANSCRIPT,
    "metric-context": TypeAdapter(MetricContext),
}
SCHEMA_NAMES = tuple(sorted(_SCHEMAS))


def json_schema(name: str) -> dict[str, Any]:
    """Returns the JSON Schema of the record type `name`.

    Raises:
        KeyError: No record type has that name; `SCHEMA_NAMES` lists them.
    """
    is_written_by_us = name in {"score", "quarantine", "transcript", "metric-context"}
    return with_examples(_SCHEMAS[name].json_schema(mode="serialization" if is_written_by_us else "validation"))
