"""What the record of an ElevenLabs agent's conversation shows of what was estimated while it ran."""

from typing import Literal

from schemas.score_record import CallRecord, Result


class EstimateError(CallRecord):
    """By how many ms the live estimate of a turn's voice-to-voice latency was off: estimate less record, below 0 where it was
    too short. Live events arrive when a transcript is ready, so the estimate lacks the time until then.
    """

    kind: Literal["score"] = "score"
    name: Literal["estimate_error_ms"] = "estimate_error_ms"
    result: Result
    estimated_ms: float | None = None
    recorded_ms: float | None = None
    is_withdrawn: bool = False
