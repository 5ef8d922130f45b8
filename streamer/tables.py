"""Tables for programs: what the rows of `--csv` and `--parquet` have, column by column, and what
writes them.

Calls and turns have the columns of `schemas/columns.py`, as history has them. Unknown is empty,
never 0.
"""

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from consumers.runtime.process import OperatorError
from schemas.columns import CALL_COLUMNS, OWN_COLUMNS, TURN_COLUMNS, Column, Flat, Kind, flat
from schemas.rows import CallRow, OwnRow, TurnRow
from schemas.scores.running import ShownCall
from streamer.result_file import require_place, written_whole
from streamer.terminal import print_lines
from streamer.trials.calls import Trial, finding_of

Row = Sequence[Flat]
Of = TypeVar("Of")


class Computed(NamedTuple, Generic[Of]):
    """A column of something that is no row of a turn or a call.

    Attributes:
        name: Its name, with the unit at the end.
        kind: What its values are.
        meaning: One phrase for people.
        of: Computes it; None if it is unknown.
    """

    name: str
    kind: Kind
    meaning: str
    of: Callable[[Of], Flat]


AnyColumn = Column | Computed[Any]
LABELS_COLUMN: Final = Computed[Any](
    "annotations", "text", "labels of people, for calls of the history", lambda _: None
)
"""Behind the columns of past calls: they come from the topic `annotations`, not from the row of a
call.
"""


# A row of a running call.


class RunningCall(NamedTuple):
    """A call as `top` shows it at this time, in epoch ms."""

    shown: ShownCall
    at_ms: int


def _worst(read: Callable[[Any], Flat]) -> Callable[[RunningCall], Flat]:
    return lambda call: read(call.shown.troubles[0]) if call.shown.troubles else None


def _of_call(column: Column) -> Computed[RunningCall]:
    return Computed(
        column.name, column.kind, column.meaning, lambda call: column.of(call.shown.call)
    )


TROUBLE_COLUMNS: Final[tuple[Computed[RunningCall], ...]] = (
    Computed(
        "trouble", "text", "kind of its worst trouble", _worst(lambda worst: worst.kind.value)
    ),
    Computed(
        "rank",
        "real",
        "the higher, the worse; empty for a healthy call",
        _worst(lambda worst: worst.rank),
    ),
    Computed(
        "reasons",
        "text",
        "all of its troubles in words, the worst first",
        lambda call: "; ".join(each.reason for each in call.shown.troubles) or None,
    ),
    Computed(
        "quiet_ms",
        "integer",
        "time since its newest row",
        lambda call: max(0, call.at_ms - call.shown.call.known_ms),
    ),
)
RUNNING_COLUMNS: Final = (*map(_of_call, CALL_COLUMNS), *TROUBLE_COLUMNS)


# A row of a trial.


def _known(
    read: Callable[[Trial], bool | float | str], kind: Callable[[float], Flat]
) -> Callable[[Trial], Flat]:
    return lambda trial: None if isinstance(value := read(trial), str) else kind(value)


def _unknown(read: Callable[[Trial], bool | float | str]) -> Callable[[Trial], Flat]:
    return lambda trial: value if isinstance(value := read(trial), str) else None


def _joined(names: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(names)) or None


TRIAL_COLUMNS: Final[tuple[Computed[Trial], ...]] = (
    Computed("conversation_id", "text", "the call", lambda trial: trial.conversation_id),
    Computed(
        "place", "text", "its file, or the address of its page", lambda trial: trial.place or None
    ),
    Computed("goal_set", "text", "the goals of the call", lambda trial: trial.goal_set.id),
    Computed("goal_digest", "text", "digest of their content", lambda trial: trial.digest),
    Computed(
        "success",
        "real",
        "1 when every subgoal is reached",
        _known(lambda trial: trial.success, float),
    ),
    Computed("success_unknown", "text", "why it is unknown", _unknown(lambda trial: trial.success)),
    Computed(
        "progress",
        "real",
        "share of subgoals that are reached, 0 to 1",
        _known(lambda trial: trial.progress, float),
    ),
    Computed(
        "progress_unknown", "text", "why it is unknown", _unknown(lambda trial: trial.progress)
    ),
    Computed(
        "reached",
        "integer",
        "subgoals that are reached",
        lambda trial: sum(finding_of(each.result) is True for each in trial.subgoals.values()),
    ),
    Computed("subgoals", "integer", "all subgoals", lambda trial: len(trial.subgoals)),
    Computed(
        "missed",
        "text",
        "the subgoals that were not reached, by name",
        lambda trial: _joined(trial.missed),
    ),
    Computed(
        "stall_turn",
        "integer",
        "the first turn after its last progress, without success",
        lambda trial: trial.stall_turn,
    ),
    Computed(
        "failed_tools",
        "text",
        "the tools that failed or were not answered",
        lambda trial: _joined(each.what for each in trial.failed_tools),
    ),
    Computed(
        "closed_ms",
        "integer",
        "when it was closed, in epoch ms",
        lambda trial: trial.closed_at_ms or None,
    ),
)


# Rows.


def row_of(columns: Sequence[Computed[Of]], of: Of) -> Row:
    """The row of one thing."""
    return tuple(column.of(of) for column in columns)


def call_rows(rows: Iterable[object]) -> list[Row]:
    """A line for each row of a call among these."""
    return [flat(CALL_COLUMNS, row) for row in rows if isinstance(row, CallRow)]


def turn_rows(rows: Iterable[object]) -> list[Row]:
    """A line for each row of a turn among these, without withdrawn ones."""
    return [
        flat(TURN_COLUMNS, row)
        for row in rows
        if isinstance(row, TurnRow) and row.status != "withdrawn"
    ]


def own_rows(rows: Iterable[object]) -> list[Row]:
    """A line for each value of a measure of one's own among these."""
    return [flat(OWN_COLUMNS, row) for row in rows if isinstance(row, OwnRow)]


# What writes them: CSV to standard output, Parquet to a file.

MAX_WAITING_ROWS: Final = 10_000
"""Rows that are kept until they are written to a Parquet file together: some 10 MB."""


@contextlib.contextmanager
def table(
    columns: Sequence[AnyColumn], parquet: Path | None
) -> Iterator[Callable[[Iterable[Row]], str]]:
    """Gives the function that takes rows and returns the text to print for them: lines of CSV,
    nothing for a Parquet file.

    Args:
        columns: The columns of the rows. Their names are printed, as the first line.
        parquet: The file to write; None for CSV.

    Raises:
        ResultFileError: The file cannot be written.
        OperatorError: The package for it is missing.
    """
    if parquet is None:
        print_lines(csv_text([[column.name for column in columns]]), ends=False)
        yield csv_text
        return
    with _parquet(columns, parquet) as write:
        yield write


def print_table(columns: Sequence[AnyColumn], rows: Iterable[Row], parquet: Path | None) -> None:
    """Prints the rows as CSV, or writes them to the file."""
    with table(columns, parquet) as put:
        print_lines(put(rows), ends=False)


def csv_text(rows: Iterable[Row]) -> str:
    r"""The rows as lines of CSV.

    A text is one line, and one that a spreadsheet would take for a formula begins with an
    apostrophe.

    >>> csv_text([["=1+1", None, 0.5, "a\nb"]])
    "'=1+1,,0.5,a b\n"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_safe(value) for value in row] for row in rows)
    return text.getvalue()


def _safe(value: Flat) -> Flat:
    if isinstance(value, str):
        value = " ".join(value.split())
        return f"'{value}" if value[:1] in {"=", "+", "-", "@"} else value
    return value


def require_parquet(path: Path) -> Any:
    """Checks that the file can be written before anything is read; gives pyarrow.

    Raises:
        ResultFileError: The file cannot be written.
        OperatorError: The package for it is missing.
    """
    require_place(path)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise OperatorError(
            f"--parquet needs a package that is not installed ({error.name}). Nothing was read. "
            "Install callgauge with it: `pip install 'PATH_OF_THE_CHECKOUT[parquet]'`; or take "
            "--csv."
        ) from error
    return pyarrow


@contextlib.contextmanager
def _parquet(columns: Sequence[AnyColumn], path: Path) -> Iterator[Callable[[Iterable[Row]], str]]:
    arrow = require_parquet(path)
    kinds = {"text": arrow.string(), "integer": arrow.int64(), "real": arrow.float64()}
    schema = arrow.schema([(column.name, kinds[column.kind]) for column in columns])
    waiting: list[Row] = []
    with written_whole(path) as beside, arrow.parquet.ParquetWriter(beside, schema) as writer:

        def flush() -> None:
            values = zip(*waiting, strict=True) if waiting else [()] * len(columns)
            arrays = [
                arrow.array(each, kind) for each, kind in zip(values, schema.types, strict=True)
            ]
            writer.write_table(arrow.table(arrays, schema=schema))
            waiting.clear()

        def write(rows: Iterable[Row]) -> str:
            for row in rows:
                waiting.append(row)
                if len(waiting) == MAX_WAITING_ROWS:
                    flush()
            return ""

        yield write
        flush()
