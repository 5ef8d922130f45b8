"""Questions to history: conditions on the columns of calls, from a closed list of names and comparisons. People write no SQL."""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from consumers.history.rows import CALL_COLUMNS, Value
from consumers.runtime.process import OperatorError
from schemas.annotations import Annotation
from schemas.scores.records import AnyScoreRecord

Comparison = Literal[">=", "<=", "!=", "=", ">", "<", "~"]
COMPARISONS: Final[tuple[Comparison, ...]] = get_args(Comparison)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_KINDS: Final = {column.name: column.kind for column in CALL_COLUMNS}
_CONDITION: Final = re.compile(rf"\s*([A-Za-z_0-9]+)\s*({'|'.join(map(re.escape, COMPARISONS))})\s*(.*?)\s*", re.DOTALL)

MAX_ROWS: Final = 10_000
"""Most calls of one answer: what a person or a table can hold."""
MAX_TEXT_CHARS: Final = 200
"""Longest text of a condition or of a search for words."""


class QuestionError(OperatorError):
    """A condition cannot be understood: its column, comparison or value is not known."""

    exit_code = 2


class Condition(NamedTuple):
    """One comparison of a column with a value; a call whose value is unknown never meets it."""

    column: str
    comparison: Comparison
    value: Value

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Reads a condition as a person writes it.

        >>> Condition.parse("p95_ms > 3000")
        Condition(column='p95_ms', comparison='>', value=3000.0)
        >>> Condition.parse("failed_tools ~ payment")
        Condition(column='failed_tools', comparison='~', value='payment')

        Raises:
            QuestionError: It is no condition.
        """
        found = _CONDITION.fullmatch(text[: MAX_TEXT_CHARS + 1]) if len(text) <= MAX_TEXT_CHARS else None
        if found is None:
            raise QuestionError(
                f"Condition {text[:MAX_TEXT_CHARS]!r}: expected a column, one of {' '.join(COMPARISONS)}, and a value of at most "
                f"{MAX_TEXT_CHARS} characters, as in 'p95_ms > 3000'. Nothing was searched."
            )
        column, comparison, value = found.group(1), found.group(2), found.group(3).strip("\"'")
        kind = _KINDS.get(column)
        if kind is None:
            raise QuestionError(
                f"Condition {text!r}: there is no column {column!r}. Nothing was searched. The columns are "
                f"{', '.join(sorted(_KINDS))}."
            )
        if kind == "text":
            if comparison not in {"=", "!=", "~"}:
                raise QuestionError(
                    f"Condition {text!r}: {column} is a text, so it can be compared with = (equal), != (not equal) and ~ (contains)."
                )
            return cls(column, comparison, value)  # type: ignore[arg-type]  # the pattern has these only
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if comparison == "~" or number != number:  # no number
            raise QuestionError(
                f"Condition {text!r}: {column} is a number, so it can be compared with a number by {' '.join(COMPARISONS[:-1])}."
            )
        return cls(column, comparison, number)  # type: ignore[arg-type]

    def holds(self, value: Value) -> bool | None:
        """Whether a value meets the condition; None for one that is unknown.

        >>> Condition("success", "=", 1.0).holds(0.0), Condition("success", "=", 1.0).holds(None)
        (False, None)
        """
        if value is None:
            return None
        if self.comparison == "~":
            return str(self.value) in str(value)
        return bool(_COMPARE[self.comparison](value, self.value))


class Question(NamedTuple):
    """The calls to find.

    Attributes:
        since_ms: Calls that began then or later, in epoch ms.
        until_ms: Calls that began before that.
        conditions: All of them must hold.
        words: Words that the transcript must have, all of them; empty for any.
        order_by: Column by which the calls come, highest first; calls whose value is unknown come last.
        most: Most calls to return; None for all of them, in no order.
        ids: Only calls with these ids, at most `MAX_ROWS`; None for any.
    """

    since_ms: int
    until_ms: int
    conditions: Sequence[Condition] = ()
    words: Sequence[str] = ()
    order_by: str = "longest_wait_ms"
    most: int | None = 50
    ids: Collection[str] | None = None


def ranked(rows: Iterable[dict[str, Value]], question: Question) -> list[dict[str, Value]]:
    """The rows that a question asks for, highest first by its column; those with the same value by their ids."""
    found = sorted(rows, key=lambda row: str(row["conversation_id"]))
    found.sort(key=lambda row: _rank(row[question.order_by]), reverse=True)
    return found[: question.most]


def _rank(value: Value) -> tuple[bool, Any]:
    return value is not None, value if value is not None else 0


class HistoryStore(Protocol):
    """Past calls, as every store of them answers.

    Attributes:
        place: Where they are, for people.
    """

    @property
    def place(self) -> str: ...

    def close(self) -> None:
        """Lets go of files and connections."""

    def find(self, question: Question) -> list[dict[str, Value]]:
        """The rows of the calls that are asked for, highest first by their column."""

    def values(self, question: Question, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        """These columns of the calls that are asked for; without a number of calls, all of them in no order."""

    def call_records(self, conversation_id: str) -> tuple[Sequence[AnyScoreRecord], bytes | None]:
        """The newest records of a call and its transcript; no record and None if it is not here."""

    def is_forgotten(self, conversation_id: str) -> bool:
        """Whether a call was deleted on request."""

    def labelled(self, label: str) -> Sequence[str]:
        """The calls that people gave a label, the newest label first; at most `MAX_ROWS`."""

    def annotations_of(self, conversation_ids: Collection[str]) -> Mapping[str, list[Annotation]]:
        """What people said of these calls, by conversation; calls of which nobody said anything are left out."""
