"""User turns: after the caller has spoken, a turn waits for an answer. It is counted once, whether an answer comes or not."""

from typing import NamedTuple

from schemas.scores.all_records import AnyScoreRecord, DeadAirFact, Scored, VoiceToVoiceLatency


class UserTurns(NamedTuple):
    """Waits for an answer in the newest turn of a call.

    An answer and a dead air of the same turn are mostly one wait, whichever record comes first. But while nobody answers, a caller
    speaks again and again within one turn: each dead air beyond the first is a wait of its own. An exporter that starts between
    the two records of one wait counts it twice.

    Attributes:
        turn: Number of the turn; None before the first wait.
        answers: 1 once it was answered.
        dead_airs: How many of its silences became dead air.
    """

    turn: int | None = None
    answers: int = 0
    dead_airs: int = 0

    @property
    def waits(self) -> int:
        """How often a caller waited in this turn."""
        return max(self.answers, self.dead_airs)

    def after(self, record: AnyScoreRecord) -> "UserTurns":
        """Returns the newest turn after one more record. A record of an earlier turn, which can come late, changes nothing."""
        answers = isinstance(record, VoiceToVoiceLatency) and record.is_first and isinstance(record.result, Scored)
        is_silent = isinstance(record, DeadAirFact) and record.is_first
        if record.turn is None or not (answers or is_silent) or record.turn < (self.turn or 0):
            return self
        before = self if record.turn == self.turn else UserTurns(record.turn)
        return UserTurns(record.turn, before.answers + answers, before.dead_airs + is_silent)

    def new_waits(self, record: AnyScoreRecord) -> int:
        """Returns how many waits this record shows that no record before it did: 0 or 1."""
        after = self.after(record)
        return after.waits - (self.waits if after.turn == self.turn else 0)
