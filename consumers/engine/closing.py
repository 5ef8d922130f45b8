"""The close of a call: its final records are made at once, its transcript in bounded steps, and both leave as one effect."""

from consumers.engine.call_redaction import CallRedactor
from consumers.engine.effects import CloseCall, Count, Effect
from consumers.engine.transcript import TranscriptWriter, transcript_bytes
from schemas.scores import AnyScoreRecord

_TOO_LARGE = Count("callgauge_limits_hit_total", ("transcript",))


class Closing:
    """A call that is over and has nothing left to do but to write down what was said."""

    def __init__(
        self, conversation_id: str, records: tuple[AnyScoreRecord, ...], transcript: TranscriptWriter | None
    ) -> None:
        """Nothing of the transcript is written yet.

        Args:
            conversation_id: The call.
            records: Its final scores and, last, the `closed` fact.
            transcript: Writes its transcript; None when it gets none.
        """
        self._conversation_id = conversation_id
        self._records = records
        self._transcript = transcript

    def go_on(self, redactor: CallRedactor, out: list[Effect]) -> bool:
        """Write as much of the transcript as one step may redact; returns whether the close is done, with its effect in `out`."""
        transcript = None
        writer = self._transcript
        if writer is not None:
            if not writer.is_too_large and not writer.go_on(lambda: redactor.has_room):
                return False
            transcript = None if writer.is_too_large else transcript_bytes(writer.turns)
            if transcript is None:
                out.append(_TOO_LARGE)
        out.append(CloseCall(self._conversation_id, self._records, transcript))
        return True
