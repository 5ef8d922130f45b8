"""The error of live estimates of an ElevenLabs agent's call, known from the record of the conversation."""

from schemas.scores.record import ScoreModel


class EstimateError(ScoreModel):
    """Error of the live estimate of a turn's voice-to-voice latency, in ms: estimate minus record, negative when too short.

    Live events arrive when a transcript is ready, so the estimate lacks the time until then.
    """

    error_ms: float
    estimated_ms: float
    recorded_ms: float
