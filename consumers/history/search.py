"""Questions to history: conditions on the columns of calls, from a closed list of names and comparisons. People write no SQL."""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from consumers.runtime.process import SetupError
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.columns import CALL_COLUMNS, Column, Flat

Comparison = Literal[">=", "<=", "!=", "=", ">", "<", "~"]
COMPARISONS: Final[tuple[Comparison, ...]] = get_args(Comparison)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
COLUMNS: Final[Mapping[str, Column]] = {column.name: column for column in CALL_COLUMNS}
"""The columns of past calls by their names, in their order."""
_CONDITION: Final = re.compile(
    rf"\s*([A-Za-z_0-9.]+)\s*({'|'.join(map(re.escape, COMPARISONS))})\s*(.*?)\s*", re.DOTALL
)

MAX_ROWS: Final = 10_000
"""Most calls of one answer: what a person or a table can hold."""
MAX_TEXT_CHARS: Final = 200
"""Longest text of a condition or of a search for words."""


MOST_MEANT: Final = 5
"""Most columns that are named in place of one that is not there."""


class Condition(NamedTuple):
    """One comparison of a column with a value; a call whose value is unknown never meets it."""

    column: str
    comparison: Comparison
    value: Flat

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Reads a condition as a person writes it.

        >>> Condition.parse("p95_ms > 3000")
        Condition(column='p95_ms', comparison='>', value=3000.0)
        >>> Condition.parse("failed_tools ~ payment")
        Condition(column='failed_tools', comparison='~', value='payment')
        >>> Condition.parse("labels.agent = desk").column
        'labels.agent'

        Raises:
            SetupError: It is no condition.
        """
        found = _CONDITION.fullmatch(text[: MAX_TEXT_CHARS + 1]) if len(text) <= MAX_TEXT_CHARS else None
        if found is None:
            raise SetupError(
                f"Condition {text[:MAX_TEXT_CHARS]!r}: expected a column, one of {' '.join(COMPARISONS)}, and a value of at most "
                f"{MAX_TEXT_CHARS} characters, as in 'p95_ms > 3000'. Nothing was searched."
            )
        column, comparison, value = found.group(1), found.group(2), found.group(3).strip("\"'")
        require_column(column, f"Condition {text!r}")
        if COLUMNS[column].kind == "text":
            if comparison not in {"=", "!=", "~"}:
                raise SetupError(
                    f"Condition {text!r}: {column} is a text, so it can be compared with = (equal), != (not equal) and ~ (contains)."
                )
            return cls(column, comparison, value)  # type: ignore[arg-type]  # the pattern has these only
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if comparison == "~" or number != number:  # no number
            raise SetupError(
                f"Condition {text!r}: {column} is a number, so it can be compared with a number by {' '.join(COMPARISONS[:-1])}."
            )
        return cls(column, comparison, number)  # type: ignore[arg-type]

    def holds(self, value: Flat) -> bool | None:
        """Whether a value meets the condition; None for one that is unknown.

        >>> Condition("turns", "=", 1.0).holds(0.0), Condition("turns", "=", 1.0).holds(None)
        (False, None)
        """
        if value is None:
            return None
        if self.comparison == "~":
            return str(self.value) in str(value)
        return bool(_COMPARE[self.comparison](value, self.value))


def require_column(name: str, asked: str) -> None:
    """Refuses a name that is none of a column.

    Raises:
        SetupError: There is no such column. It names those that may be meant, or all.
    """
    if name not in COLUMNS:
        similar = [each for each in COLUMNS if name.split(".")[-1] in each.split(".")]
        meant = f"Is it {' or '.join(similar[:MOST_MEANT])}?" if similar else f"The columns are {', '.join(COLUMNS)}."
        raise SetupError(f"{asked}: there is no column {name!r}. Nothing was searched. {meant}")


def quoted(name: str) -> str:
    """A column in SQL, because most names have dots."""
    return f'"{name}"'


class Question(NamedTuple):
    """The calls to find.

    Attributes:
        since_ms: Calls that were known first then or later, by the broker's time in epoch ms.
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


def ranked(rows: Iterable[dict[str, Flat]], question: Question) -> list[dict[str, Flat]]:
    """The rows that a question asks for, highest first by its column; those with the same value by their ids."""
    found = sorted(rows, key=lambda row: str(row["conversation_id"]))
    found.sort(key=lambda row: _rank(row[question.order_by]), reverse=True)
    return found[: question.most]


def _rank(value: Flat) -> tuple[bool, Any]:
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

    def find(self, question: Question) -> list[dict[str, Flat]]:
        """The rows of the calls that are asked for, highest first by their column."""

    def values(self, question: Question, columns: Sequence[str]) -> Iterator[tuple[Flat, ...]]:
        """These columns of the calls that are asked for; without a number of calls, all of them in no order."""

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """A call as it was known at a moment; None if it is not here."""

    def transcript(self, conversation_id: str) -> bytes | None:
        """The transcript of a call; None without one."""

    def is_forgotten(self, conversation_id: str) -> bool:
        """Whether a call was deleted on request."""

    def labelled(self, label: str) -> Sequence[str]:
        """The calls that people gave a label, the newest label first; at most `MAX_ROWS`."""

    def annotations_of(self, conversation_ids: Collection[str]) -> Mapping[str, list[Annotation]]:
        """What people said of these calls, by conversation; calls of which nobody said anything are left out."""
