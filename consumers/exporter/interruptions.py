"""Interruptions that may still be withdrawn: they count when the call leaves their turn."""

from typing import NamedTuple

from schemas.scores.all_records import AnyScoreRecord, ClosedFact, InterruptionFact, Speaker, TurnValues

_Interruption = tuple[int, Speaker]


class Interruptions(NamedTuple):
    """Interruptions in turns that the call has not left, as the records so far show them.

    A simulated caller reports the end of its own speech 0.6 s later, so a quick answer looks like an interruption until then.
    Alerts count interruptions, and a counter cannot go back: so one counts with the row of its turn or of a later one, or when the
    call closes. An exporter that starts in the middle of a turn leaves out the part that it did not read.

    Attributes:
        open: Those of now.
        withdrawn: Those that were withdrawn and may come back.
    """

    open: frozenset[_Interruption] = frozenset()
    withdrawn: frozenset[_Interruption] = frozenset()

    def after(self, record: AnyScoreRecord) -> "Interruptions":
        """Returns the interruptions after one more record."""
        match record:
            case InterruptionFact(turn=int(turn), by=by):
                one = frozenset({(turn, by)})
                if record.is_withdrawn:
                    return Interruptions(self.open - one, self.withdrawn | (self.open & one))
                # One that is neither new nor withdrawn has counted already.
                return Interruptions(
                    self.open | (one if record.is_first else one & self.withdrawn), self.withdrawn - one
                )
            case TurnValues() | ClosedFact() if self.open or self.withdrawn:
                left = self._left(record)
                return Interruptions(self.open - left, self.withdrawn - left)
        return self

    def counted(self, record: AnyScoreRecord) -> list[Speaker]:
        """Returns who began each interruption that counts with this record."""
        return sorted(by for _, by in self.open & self._left(record))

    def _left(self, record: AnyScoreRecord) -> frozenset[_Interruption]:
        """Returns those in turns that the call has left, as this record shows."""
        match record:
            case ClosedFact():
                return self.open | self.withdrawn
            case TurnValues(turn=int(number)):
                return frozenset(each for each in self.open | self.withdrawn if each[0] <= number)
        return frozenset()
