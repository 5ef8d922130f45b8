"""Tables for programs: what the rows of `--csv` and `--parquet` have, column by column, and what writes them.

Calls have the columns of history. A column has the same name and meaning in each table that has it; unknown is empty, never 0.
"""

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from consumers.history.rows import CALL_COLUMNS, CallOnFile, Column, Of, Value, scored
from consumers.runtime.process import OperatorError
from schemas.closed_sets import FAILED_USES
from schemas.scores.latency_stages import Stage
from schemas.scores.records import (
    AnyScoreRecord,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    ToolUseFact,
    TurnValues,
    Unscored,
)
from schemas.scores.running import ShownCall
from streamer.result_file import require_place, written_whole
from streamer.terminal import print_lines
from streamer.trials.calls import Trial

Row = Sequence[Value]
_CALL: Final = {column.name: column for column in CALL_COLUMNS}
LABELS_COLUMN: Final = Column[Any]("labels", "text", "those of people, for calls of the history", lambda _: None)
"""Behind the columns of past calls: they come from the topic `annotations`, not from the records of a call."""


def _why(result: Result | None) -> str | None:
    """Why there is no value; None where there is one, and where the thing itself is missing."""
    match result:
        case Unscored(reason=reason):
            return reason.value
        case NotApplicable(reason=reason):
            return reason
    return None


# A row of a turn.


class TurnOnFile(NamedTuple):
    """A turn, with the newest records that name it and the call that it belongs to."""

    call: CallOnFile
    values: TurnValues
    records: Sequence[AnyScoreRecord]


def _of_turn(read: Callable[[TurnValues], Any]) -> Callable[[TurnOnFile], Value]:
    return lambda turn: read(turn.values)


def _result(read: Callable[[TurnValues], Result | None]) -> Callable[[TurnOnFile], Value]:
    return lambda turn: scored(read(turn.values))


def _part(name: str) -> Callable[[TurnOnFile], Value]:
    """The result of a part of the record that may be missing."""

    def of(turn: TurnOnFile) -> Value:
        part = getattr(turn.values, name)
        return None if part is None else scored(part.result)

    return of


def _talk(side: str, read: Callable[[Any], Value]) -> Callable[[TurnOnFile], Value]:
    return lambda turn: None if turn.values.talk is None else read(getattr(turn.values.talk, side))


def _stage(stage: Stage) -> Callable[[TurnOnFile], Value]:
    return lambda turn: next((each.latency_ms for each in turn.values.stages if each.stage is stage), None)


def _interruptions(name: str) -> Callable[[TurnOnFile], Value]:
    return lambda turn: sum(isinstance(each, InterruptionFact) and each.name == name for each in turn.records)


def _uses(turn: TurnOnFile) -> list[ToolUseFact]:
    return [each for each in turn.records if isinstance(each, ToolUseFact)]


def _progress(read: Callable[[ProgressScore], Value]) -> Callable[[TurnOnFile], Value]:
    return lambda turn: next((read(each) for each in turn.records if isinstance(each, ProgressScore)), None)


def _turn_of_call(name: str) -> Column[TurnOnFile]:
    column = _CALL[name]
    return Column(column.name, column.kind, column.meaning, lambda turn: column.of(turn.call))


TURN_COLUMNS: Final[tuple[Column[TurnOnFile], ...]] = (
    *map(_turn_of_call, ("conversation_id", "agent", "tenant", "environment", "version")),
    Column("turn", "integer", "its number; 0 is the greeting", _of_turn(lambda turn: turn.turn)),
    Column(
        "outcome", "text", "answered, interrupted, unanswered, abandoned or failed",
        _of_turn(lambda turn: None if turn.outcome is None else turn.outcome.value),
    ),
    Column(
        "voice_to_voice_ms", "real", "end of the user's speech to the first sound of the answer; negative if it came before",
        _result(lambda turn: turn.voice_to_voice_ms),
    ),
    Column("voice_to_voice_unknown", "text", "why there is no such latency", _of_turn(lambda turn: _why(turn.voice_to_voice_ms))),
    Column("anchor", "text", "how the end of the user's speech is known", _of_turn(lambda turn: turn.anchor)),
    Column("source", "text", "the stream with the events of that latency", _of_turn(lambda turn: turn.source)),
    Column(
        "after_tools_ms", "real", "to the first sound after the tools, where the first one was a filler",
        _of_turn(lambda turn: turn.after_tools_ms),
    ),
    Column("user_speech_ms", "real", "time in which the user was heard", _talk("user", lambda side: scored(side.speech_ms))),
    Column("assistant_speech_ms", "real", "likewise", _talk("assistant", lambda side: scored(side.speech_ms))),
    Column("user_words", "integer", "words of the user", _talk("user", lambda side: side.words)),
    Column("assistant_words", "integer", "likewise", _talk("assistant", lambda side: side.words)),
    Column("user_interruptions", "integer", "by the caller", _interruptions("interruption_by_user")),
    Column("assistant_interruptions", "integer", "by the agent", _interruptions("interruption_by_assistant")),
    Column("dead_airs", "integer", "silences beyond the threshold", lambda turn: sum(each.name == "dead_air" for each in turn.records)),
    Column("tool_calls", "integer", "tool calls with an outcome", lambda turn: len(_uses(turn))),
    Column(
        "failed_tool_calls", "integer", "those that failed or were not answered",
        lambda turn: sum(use.outcome in FAILED_USES for use in _uses(turn)),
    ),
    Column("progress", "real", "share of subgoals that are reached after it, 0 to 1", _progress(lambda each: scored(each.result))),
    Column("reached", "integer", "subgoals that are reached after it", _progress(lambda each: each.reached)),
    Column("turn_taking", "real", "EVA's score of its timing, 0 to 1", _part("turn_taking")),
    Column("stt_wer", "real", "word error rate of the agent's transcript", _part("stt_wer")),
    Column("user_disagreement", "real", "difference between the two transcripts of the user", _part("user_disagreement")),
    Column("assistant_disagreement", "real", "likewise", _part("assistant_disagreement")),
    Column(
        "estimate_error_ms", "real", "error of the live estimate of an ElevenLabs agent's latency",
        _of_turn(lambda turn: None if turn.estimate_error is None else turn.estimate_error.error_ms),
    ),
    Column("conciseness", "real", "a judge's rating, 0 to 1", _part("conciseness")),
    Column("speakability", "real", "likewise", _part("speakability")),
    Column(
        "transcription_accuracy_key_entities", "real", "likewise, of the key entities in the agent's transcript",
        _part("transcription_accuracy_key_entities"),
    ),
    *(Column(f"stage_{stage}_ms", "real", "latency of this stage", _stage(stage)) for stage in Stage),
)  # fmt: skip


# A row of a running call.


class RunningCall(NamedTuple):
    """A call as `top` shows it at this time, in epoch ms."""

    shown: ShownCall
    at_ms: int


_IN_A_VIEW: Final = (
    "conversation_id", "agent", "tenant", "environment", "version", "pipeline_type", "started_ms", "changed_ms", "is_closed",
    "close_reason", "ended_reason", "turns", "dead_airs", "user_interruptions", "assistant_interruptions", "tool_calls",
)  # fmt: skip
"""The columns of calls that are computed from their view alone."""


def _running_of_call(name: str) -> Column[RunningCall]:
    column = _CALL[name]
    return Column(
        column.name,
        column.kind,
        column.meaning,
        lambda call: column.of(CallOnFile(call.shown.view, (), None, None, ())),
    )


def _worst(read: Callable[[Any], Value]) -> Callable[[RunningCall], Value]:
    return lambda call: read(call.shown.troubles[0]) if call.shown.troubles else None


def _newest(name: str) -> Callable[[RunningCall], Value]:
    return lambda call: None if call.shown.view.latency is None else getattr(call.shown.view.latency, name)


def _goals(name: str) -> Callable[[RunningCall], Value]:
    return lambda call: None if call.shown.view.goals is None else getattr(call.shown.view.goals, name)


RUNNING_COLUMNS: Final[tuple[Column[RunningCall], ...]] = (
    *map(_running_of_call, _IN_A_VIEW),
    Column("trouble", "text", "kind of its worst trouble", _worst(lambda worst: worst.kind.value)),
    Column("rank", "real", "the higher, the worse; empty for a healthy call", _worst(lambda worst: worst.rank)),
    Column(
        "reasons", "text", "all of its troubles in words, the worst first",
        lambda call: "; ".join(each.reason for each in call.shown.troubles) or None,
    ),
    Column("quiet_ms", "integer", "time since its last event", lambda call: max(0, call.at_ms - call.shown.view.changed_ms)),
    Column(
        "waiting_since_ms", "integer", "since when its caller waits in silence, once that is dead air, in epoch ms",
        lambda call: None if call.shown.view.wait is None else call.shown.view.wait.since_ms,
    ),
    Column("voice_to_voice_ms", "real", "its newest latency", _newest("latency_ms")),
    Column("latency_turn", "integer", "the turn of that", _newest("turn")),
    Column("anchor", "text", "how the end of the user's speech is known", _newest("anchor")),
    Column("reached", "integer", "subgoals that are reached", _goals("reached")),
    Column("subgoals", "integer", "all subgoals", _goals("subgoals")),
    Column("is_stalled", "integer", "1 while it reaches no further subgoal", lambda call: int(call.shown.view.is_stalled)),
)  # fmt: skip


# A row of a trial.


def _known(read: Callable[[Trial], bool | float | str], kind: Callable[[float], Value]) -> Callable[[Trial], Value]:
    return lambda trial: None if isinstance(value := read(trial), str) else kind(value)


def _unknown(read: Callable[[Trial], bool | float | str]) -> Callable[[Trial], Value]:
    return lambda trial: value if isinstance(value := read(trial), str) else None


def _joined(names: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(names)) or None


TRIAL_COLUMNS: Final[tuple[Column[Trial], ...]] = (
    Column("conversation_id", "text", "the call", lambda trial: trial.conversation_id),
    Column("place", "text", "its file, or the address of its page", lambda trial: trial.place or None),
    Column("goal_set", "text", "the goals of the call", lambda trial: trial.goal_set.id),
    Column("goal_version", "text", "digest of their content", lambda trial: trial.version),
    Column("success", "real", "1 when every subgoal is reached", _known(lambda trial: trial.success, float)),
    Column("success_unknown", "text", "why nobody knows", _unknown(lambda trial: trial.success)),
    Column("progress", "real", "share of subgoals that are reached, 0 to 1", _known(lambda trial: trial.progress, float)),
    Column("progress_unknown", "text", "why nobody knows", _unknown(lambda trial: trial.progress)),
    Column("reached", "integer", "subgoals that are reached", lambda trial: sum(each.finding is True for each in trial.subgoals)),
    Column("subgoals", "integer", "all subgoals", lambda trial: len(trial.subgoals)),
    Column("missed", "text", "the subgoals that were not reached, by name", lambda trial: _joined(trial.missed)),
    Column("stall_turn", "integer", "the first turn after its last progress, without success", lambda trial: trial.stall_turn),
    Column(
        "failed_tools", "text", "the tools that failed or were not answered",
        lambda trial: _joined(each.tool for each in trial.failed_tools),
    ),
    Column("closed_ms", "integer", "when it was closed, in epoch ms", lambda trial: trial.closed_at_ms or None),
)  # fmt: skip


# Rows of records.

TABLES: Final[Mapping[str, Sequence[Column[Any]]]] = {
    "calls": CALL_COLUMNS,
    "turns": TURN_COLUMNS,
    "running calls": RUNNING_COLUMNS,
    "trials": TRIAL_COLUMNS,
}
"""The columns of each table by its name."""


def row_of(columns: Sequence[Column[Of]], of: Of) -> Row:
    """The row of one thing."""
    return tuple(column.of(of) for column in columns)


def call_rows(records: Sequence[AnyScoreRecord]) -> list[Row]:
    """The row of a call, from its records in any order; at least one."""
    return [row_of(CALL_COLUMNS, CallOnFile.of(records))]


def turn_rows(records: Sequence[AnyScoreRecord]) -> list[Row]:
    """A row for each turn of a call, from its records in any order; at least one."""
    call = CallOnFile.of(records)
    turns = [each for each in call.records if isinstance(each, TurnValues)]
    return [
        row_of(TURN_COLUMNS, TurnOnFile(call, turn, [each for each in call.records if each.turn == turn.turn]))
        for turn in sorted(turns, key=lambda each: each.turn or 0)
    ]


# What writes them: CSV to standard output, Parquet to a file.

MAX_WAITING_ROWS: Final = 10_000
"""Rows that are kept until they are written to a Parquet file together: some 10 MB."""


class NoParquetError(OperatorError):
    """The package that writes Parquet is not installed."""


@contextlib.contextmanager
def table(columns: Sequence[Column[Any]], parquet: Path | None) -> Iterator[Callable[[Iterable[Row]], str]]:
    """Gives the function that takes rows and returns the text to print for them: lines of CSV, nothing for a Parquet file.

    Args:
        columns: The columns of the rows. Their names are printed, as the first line.
        parquet: The file to write; None for CSV.

    Raises:
        ResultFileError: The file cannot be written.
        NoParquetError: The package for it is missing.
    """
    if parquet is None:
        print_lines(csv_text([[column.name for column in columns]]), ends=False)
        yield csv_text
        return
    with _parquet(columns, parquet) as take:
        yield take


def print_table(columns: Sequence[Column[Any]], rows: Iterable[Row], parquet: Path | None) -> None:
    """Prints the rows as CSV, or writes them to the file."""
    with table(columns, parquet) as put:
        print_lines(put(rows), ends=False)


def csv_text(rows: Iterable[Row]) -> str:
    r"""The rows as lines of CSV.

    A text is one line, and one that a spreadsheet would take for a formula begins with an apostrophe.

    >>> csv_text([["=1+1", None, 0.5, "a\nb"]])
    "'=1+1,,0.5,a b\n"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_safe(value) for value in row] for row in rows)
    return text.getvalue()


def _safe(value: Value) -> Value:
    if isinstance(value, str):
        value = " ".join(value.split())
        return f"'{value}" if value[:1] in {"=", "+", "-", "@"} else value
    return value


def require_parquet(path: Path) -> Any:
    """Checks that the file can be written before anything is read; gives pyarrow.

    Raises:
        ResultFileError: The file cannot be written.
        NoParquetError: The package for it is missing.
    """
    require_place(path)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise NoParquetError(
            f"--parquet needs a package that is not installed ({error.name}). Nothing was read. Install callgauge with it: "
            "`pip install 'PATH_OF_THE_CHECKOUT[parquet]'`; or take --csv."
        ) from error
    return pyarrow


@contextlib.contextmanager
def _parquet(columns: Sequence[Column[Any]], path: Path) -> Iterator[Callable[[Iterable[Row]], str]]:
    arrow = require_parquet(path)
    kinds = {"text": arrow.string(), "integer": arrow.int64(), "real": arrow.float64()}
    schema = arrow.schema([(column.name, kinds[column.kind]) for column in columns])
    waiting: list[Row] = []
    with written_whole(path) as beside, arrow.parquet.ParquetWriter(beside, schema) as writer:

        def flush() -> None:
            values = zip(*waiting, strict=True) if waiting else [()] * len(columns)
            arrays = [arrow.array(each, kind) for each, kind in zip(values, schema.types, strict=True)]
            writer.write_table(arrow.table(arrays, schema=schema))
            waiting.clear()

        def take(rows: Iterable[Row]) -> str:
            for row in rows:
                waiting.append(row)
                if len(waiting) == MAX_WAITING_ROWS:
                    flush()
            return ""

        yield take
        flush()
