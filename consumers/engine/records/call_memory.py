"""The records of an open call that an earlier evaluator published: its successor must not publish them again."""

from typing import NamedTuple

from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.ledger_record import ScoredElsewhere
from schemas.scores.all_records import AnyScoreRecord, DeadAirFact, GoalsFact, TurnValues
from schemas.scores.newest_scores import Subject, is_withdrawn
from schemas.topics import SOURCE_BY_TOPIC


class Recalled(NamedTuple):
    """The newest record of a subject in the log."""

    revision: int
    input_hash: str
    had_value: bool
    is_withdrawn: bool


class CallMemory:
    """The records of one call, in the order in which they were written.

    Attributes:
        published: Newest record of each subject.
        offsets: Last offset folded of each input, as of the newest record.
        silences_ms: Start of each declared dead air. Waiting revealed them, so they are final, whatever a replay finds.
        goal_set: The call's goals, even if their source has changed since.
        counted: By turn, names of the values ever published and so counted, as in `first_known`.
    """

    __slots__ = ("counted", "goal_set", "offsets", "published", "silences_ms")

    def __init__(self) -> None:
        self.published: dict[Subject, Recalled] = {}
        self.offsets: dict[InputSource, int] = {}
        self.silences_ms: set[int] = set()
        self.goal_set: GoalSet | None = None
        self.counted: dict[int, set[str]] = {}

    def fold(self, record: AnyScoreRecord | ScoredElsewhere) -> None:
        """Reads one more record of the call."""
        subject = (record.name, record.turn, record.index)
        last = self.published.get(subject)
        self.published[subject] = Recalled(
            record.revision,
            record.input_hash,
            record.is_first or (last is not None and last.had_value),
            record.is_withdrawn if isinstance(record, ScoredElsewhere) else is_withdrawn(record),
        )
        for source, offset in sources(record.offsets).items():
            if offset > self.offsets.get(source, -1):
                self.offsets[source] = offset
        if isinstance(record, DeadAirFact):
            self.silences_ms.add(record.silent_since_ms)
        elif isinstance(record, GoalsFact):
            self.goal_set = record.goal_set
        elif isinstance(record, TurnValues) and record.turn is not None and record.first_known:
            self.counted.setdefault(record.turn, set()).update(record.first_known)


def sources(offsets: dict[str, int]) -> dict[InputSource, int]:
    """Offsets by input instead of by topic, without topics that are no input."""
    return {SOURCE_BY_TOPIC[topic]: offset for topic, offset in offsets.items() if topic in SOURCE_BY_TOPIC}
