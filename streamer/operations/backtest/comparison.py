"""Compares the final scores of calls between two evaluations. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, CallValues, ClosedFact, DeadAirFact, TurnValues
from streamer.report.call.score_parts import parts_of

MAX_EXAMPLES: Final = 20
_HOW_IT_WAS_SAID: Final = frozenset(
    {
        *("schema_version", "conversation_id", "turn", "index", "revision", "status", "is_first"),
        *("input_hash", "offsets", "through", "event_time_ms", "caused_at_ms", "code_version", "record_id"),
        *("kind", "name", "is_withdrawn", "threshold_ms", "first_known"),
    }
)

Said = Mapping[str, Any]
"""The content of a record as JSON, without its time, its cause and its revision."""


class Subject(NamedTuple):
    """The subject of a score. `place` distinguishes several in one turn: the index of a tool call, the start of a silence."""

    name: str
    turn: int | None
    place: int


LastWords = Mapping[Subject, Said]
"""The newest scores of a call that has ended."""


def last_words(records: Iterable[AnyScoreRecord]) -> LastWords:
    """The newest scores after these ordered records of one call; withdrawn scores are left out.

    Each value of a turn's row and of the call counts by itself, under the name of its own. A latency is in two records, which say
    the same of it; where it is not known, only the row says so.
    """
    words: dict[Subject, Said] = {}
    for (name, turn, index), record in newest_scores(records).items():
        match record:
            case TurnValues() | CallValues():
                words[Subject(name, turn, index)] = {}
                for part in parts_of(record):
                    result = {} if part.result is None else {"result": part.result}
                    words[Subject(part.name, turn, 0)] = to_jsonable_python({**result, **part.fields})
            case _:
                # Silences are numbered through the call: one new silence must not change the identity of all later ones.
                place = record.silent_since_ms if isinstance(record, DeadAirFact) else index
                left_out = _HOW_IT_WAS_SAID
                if not isinstance(record, ClosedFact):
                    left_out |= {"labels"}  # as known when it was written; the closing record has them once
                words[Subject(name, turn, place)] = record.model_dump(mode="json", exclude=set(left_out))
    return words


@dataclass(slots=True)
class Tally:
    """Counts of the compared scores of one name.

    Attributes:
        equal: Equal in both.
        changed: Different.
        only_then: In the log and not in the new evaluation.
        only_now: The other way round.
    """

    equal: int = 0
    changed: int = 0
    only_then: int = 0
    only_now: int = 0
    _difference: float = 0.0
    _differences: int = 0

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not (self.changed or self.only_then or self.only_now)

    @property
    def mean_difference(self) -> float | None:
        """Mean distance between the numbers of changed scores; None when no changed score is a number on both sides."""
        return self._difference / self._differences if self._differences else None

    def changed_by(self, then: Said, now: Said) -> None:
        """One changed score."""
        self.changed += 1
        before, after = number_in(then), number_in(now)
        if before is not None and after is not None:
            self._difference += abs(after - before)
            self._differences += 1


class Difference(NamedTuple):
    """One score that differs; `then` and `now` hold the fields that do, None where there is no such score."""

    conversation_id: str
    subject: Subject
    then: Said | None
    now: Said | None


@dataclass(slots=True)
class Comparison:
    """All calls compared so far.

    Attributes:
        equal_calls: Calls of which every score is equal.
        changed_calls: Calls on both sides with at least one different score.
        only_then: Calls with scores in the log and none in the new evaluation.
        only_now: The other way round.
        tallies: By name of score.
        examples: The first differences, at most `MAX_EXAMPLES`.
    """

    equal_calls: int = 0
    changed_calls: int = 0
    only_then: int = 0
    only_now: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    examples: list[Difference] = field(default_factory=list)

    def add(self, conversation_id: str, then: LastWords | None, now: LastWords | None) -> None:
        """One more call; None where it does not exist."""
        before, after = then or {}, now or {}
        is_equal = True
        for subject in _in_order({**before, **after}):
            is_equal &= self._compare(conversation_id, subject, before.get(subject), after.get(subject))
        if then is None:
            self.only_now += now is not None
        elif now is None:
            self.only_then += 1
        elif is_equal:
            self.equal_calls += 1
        else:
            self.changed_calls += 1

    def total(self) -> Tally:
        """The sum over all names, without a mean: milliseconds and counts do not add up."""
        tallies = self.tallies.values()
        return Tally(
            sum(tally.equal for tally in tallies),
            sum(tally.changed for tally in tallies),
            sum(tally.only_then for tally in tallies),
            sum(tally.only_now for tally in tallies),
        )

    def _compare(self, conversation_id: str, subject: Subject, then: Said | None, now: Said | None) -> bool:
        tally = self.tallies.get(subject.name)
        if tally is None:
            tally = self.tallies[subject.name] = Tally()
        if then == now:
            tally.equal += 1
            return True
        if then is None:
            tally.only_now += 1
        elif now is None:
            tally.only_then += 1
        else:
            tally.changed_by(then, now)
            differing = {name for name in {**then, **now} if then.get(name) != now.get(name)}
            then, now = _only(then, differing), _only(now, differing)
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(Difference(conversation_id, subject, then, now))
        return False


def number_in(said: Said) -> float | None:
    """The number that a score is, if it is one: its value, or how long something took."""
    result = said.get("result")
    number = result.get("value") if isinstance(result, Mapping) else said.get("duration_ms")
    return float(number) if isinstance(number, int | float) else None


def _only(said: Said, names: set[str]) -> Said:
    return {name: value for name, value in said.items() if name in names}


def _in_order(words: LastWords) -> Iterator[Subject]:
    """The call's own records last, as they are written."""
    return iter(
        sorted(words, key=lambda subject: (subject.turn is None, subject.turn or 0, subject.name, subject.place))
    )
