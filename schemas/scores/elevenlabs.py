"""What the record of an ElevenLabs agent's conversation shows of what was estimated while it ran."""

from schemas.scores.record import ScoreModel


class EstimateError(ScoreModel):
    """By how many ms the live estimate of a turn's voice-to-voice latency was off: estimate less record, below 0 where it was
    too short. Live events arrive when a transcript is ready, so the estimate lacks the time until then.
    """

    error_ms: float
    estimated_ms: float
    recorded_ms: float
