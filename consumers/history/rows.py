"""The columns of a past call: one row with its figures, made from the newest of its records of `scores`.

The table `CALL_COLUMNS` is the one place where a column is declared, for both stores: SQLite gets what Python computes, ClickHouse
computes it in SQL. The stores make their tables from it, `history find` takes its names in conditions, and tables for programs have
them in this order. Unknown is None, never 0.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args

from schemas.closed_sets import FAILED_USES
from schemas.scores.live_view import CallFold, CallView, newest_scores
from schemas.scores.records import (
    AnyScoreRecord,
    CallValues,
    EvaMetricName,
    GoalsFact,
    ProgressScore,
    Result,
    Scored,
    StallFact,
    ToolUseFact,
    TurnValues,
)

Value = str | int | float | None
Of = TypeVar("Of")


class CallOnFile(NamedTuple):
    """The newest records of a call, as its columns are computed from them.

    Attributes:
        view: The call as `top` shows it.
        records: The newest record of each subject, withdrawn ones left out.
        values: The values of the whole call; None before it published them.
        progress: Progress after its last judged turn; None without goals.
        waits_ms: The voice-to-voice latencies of its turns that are not negative, ascending.
    """

    view: CallView
    records: Sequence[AnyScoreRecord]
    values: CallValues | None
    progress: ProgressScore | None
    waits_ms: Sequence[float]

    @classmethod
    def of(cls, records: Sequence[AnyScoreRecord]) -> "CallOnFile":
        """Gathers what the columns need from the records of one call, at least one, in any order."""
        fold = CallFold(records[0])
        for record in records[1:]:
            fold.fold(record)
        newest = tuple(newest_scores(records).values())
        waits = [scored(each.voice_to_voice_ms) for each in newest if isinstance(each, TurnValues)]
        judged = [each for each in newest if isinstance(each, ProgressScore)]
        return cls(
            fold.view(),
            newest,
            next((each for each in newest if isinstance(each, CallValues)), None),
            max(judged, key=lambda each: each.turn or 0, default=None),
            sorted(wait for wait in waits if wait is not None and wait >= 0),
        )


class Column(NamedTuple, Generic[Of]):
    """A column of a table, for example of calls.

    Attributes:
        name: Its name, with the unit at the end.
        kind: What its values are.
        meaning: One phrase for people.
        of: Computes it; None if it is unknown.
        sql: The same in ClickHouse, of what `deploy/clickhouse/generate_tables.py` gathers of a call.
    """

    name: str
    kind: Literal["text", "integer", "real"]
    meaning: str
    of: Callable[[Of], Value]
    sql: str = ""


def scored(result: Result | None) -> float | None:
    """Returns the value of a result; None if it is unknown or not applicable."""
    return result.value if isinstance(result, Scored) else None


def percentile_ms(ascending: Sequence[float], share: float) -> float | None:
    """Returns the smallest latency that at least this share of the latencies does not exceed; None without latencies.

    >>> percentile_ms([100.0, 200.0, 300.0, 4_000.0], 0.5), percentile_ms([100.0, 200.0, 300.0, 4_000.0], 0.95)
    (200.0, 4000.0)
    """
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


# What a column is in Python and in SQL.

_Computed = tuple[Callable[[CallOnFile], Value], str]


def _json(record: str, path: str, kind: str) -> str:
    """A part of a record in SQL; NULL if the record has no such part, or there is no such record."""
    return f"JSONExtract({record}, {', '.join(repr(name) for name in path.split('.'))}, 'Nullable({kind})')"


def _value(record: Literal["values", "progress"], path: str) -> _Computed:
    """Reads a result inside a record, None where a part on the way is missing."""

    def of(call: CallOnFile) -> Value:
        found: Any = getattr(call, record)
        for name in path.split("."):
            found = None if found is None else found.get(name) if isinstance(found, dict) else getattr(found, name)
        return scored(found)

    return of, _json(f"{record}_record", f"{path}.value", "Float64")


_of_values = partial(_value, "values")
_of_progress = partial(_value, "progress")


def _closed(path: str) -> _Computed:
    def of(call: CallOnFile) -> Value:
        return None if call.view.closed is None else getattr(call.view.closed, path)

    return of, _json("closed_record", path, "String")


def _wait(share: float) -> _Computed:
    place = f"greatest(1, toUInt32(ceil({share} * length(waits))))"
    return lambda call: percentile_ms(call.waits_ms, share), f"if(empty(waits), NULL, waits[{place}])"


def _label(name: str) -> _Computed:
    return lambda call: getattr(call.view.labels, name), f"tupleElement(labels, '{name}')"


def _seen(name: str, sql: str | None = None) -> _Computed:
    return lambda call: getattr(call.view, name), sql or name


def _failed_tools(call: CallOnFile) -> list[str]:
    """The tools of the uses without success; what a producer withholds is not known to have failed."""
    return [each.tool for each in call.records if isinstance(each, ToolUseFact) and each.outcome in FAILED_USES]


def _goal_set(call: CallOnFile) -> Value:
    return next((each.goal_set.id for each in call.records if isinstance(each, GoalsFact)), None)


def _stalls(call: CallOnFile) -> Value:
    return sum(isinstance(each, StallFact) for each in call.records)


def _code_version(call: CallOnFile) -> Value:
    return max((each.caused_at_ms, each.code_version) for each in call.records)[1]


def _names(names: Iterable[str]) -> str | None:
    """Names for a condition such as `failed_tools ~ payment`, each once."""
    return ", ".join(dict.fromkeys(sorted(names))) or None


CALL_COLUMNS: Final[tuple[Column[CallOnFile], ...]] = (
    Column("conversation_id", "text", "the call", *_seen("conversation_id")),
    Column("agent", "text", "the voice agent", *_label("agent")),
    Column("tenant", "text", "whose call it is", *_label("tenant")),
    Column("environment", "text", "production, staging and so on", *_label("environment")),
    Column("version", "text", "the agent's version", *_seen("version", _json("started_record", "version", "String"))),
    Column("pipeline_type", "text", "kind of the agent's pipeline", *_label("pipeline_type")),
    Column("code_version", "text", "version of the evaluator", _code_version, "code_version"),
    Column("started_ms", "integer", "when its first event came, in epoch ms", *_seen("first_seen_ms")),
    Column("changed_ms", "integer", "when its last event came, in epoch ms", *_seen("changed_ms")),
    Column(
        "is_closed",
        "integer",
        "1 when it is over and evaluated",
        lambda call: int(call.view.closed is not None),
        "toInt64(closed_record != '')",
    ),
    Column("close_reason", "text", "why it was closed", *_closed("reason")),
    Column("ended_reason", "text", "why it ended, in the agent's words", *_closed("ended_reason")),
    Column("turns", "integer", "number of its last turn", *_seen("turn", "newest_turn")),
    Column("p50_ms", "real", "median voice-to-voice latency", *_wait(0.5)),
    Column("p95_ms", "real", "95th percentile of these", *_wait(0.95)),
    Column("longest_wait_ms", "real", "the longest of these", *_wait(1)),
    Column("dead_airs", "integer", "silences beyond the threshold", *_seen("dead_airs")),
    Column("dead_air_ms", "real", "time of these silences", *_of_values("speech.dead_air_ms")),
    Column("first_word_ms", "real", "time to the agent's first sound", *_of_values("speech.first_word_ms")),
    Column("talk_share", "real", "the agent's share of speech, 0 to 1", *_of_values("speech.result")),
    Column("user_interruptions", "integer", "by the caller", *_seen("user_interruptions")),
    Column("assistant_interruptions", "integer", "by the agent", *_seen("assistant_interruptions")),
    Column("tool_calls", "integer", "tool calls with an outcome", *_seen("tool_calls")),
    Column(
        "failed_tool_calls",
        "integer",
        "those that failed or were not answered",
        lambda call: len(_failed_tools(call)),
        "length(failed)",
    ),
    Column(
        "failed_tools",
        "text",
        "the tools of these, by name",
        lambda call: _names(_failed_tools(call)),
        "nullIf(arrayStringConcat(arraySort(arrayDistinct(failed)), ', '), '')",
    ),
    Column("cost_dollars", "real", "what the agent's models cost, in US dollars", *_of_values("cost")),
    Column("goal_set", "text", "the goals of the call", _goal_set, _json("goals_record", "goal_set.id", "String")),
    Column("progress", "real", "share of subgoals that are reached, 0 to 1", *_of_progress("result")),
    Column("auc", "real", "area under the progress curve, 0 to 1", *_of_progress("auc")),
    Column("ppt", "real", "progress per turn, 0 to 1", *_of_progress("ppt")),
    Column("success", "real", "1 when every subgoal is reached", *_of_progress("success")),
    Column("stalls", "integer", "how often it made no progress", _stalls, "stalls"),
    Column("tool_correctness", "real", "share of expected tool calls, 0 to 1", *_of_values("tool_correctness")),
    Column("stt_wer", "real", "word error rate of the agent's transcript", *_of_values("stt_wer.result")),
    Column("transcript_disagreement", "real", "of both sides", *_of_values("transcript_disagreement.result")),
    Column("faithfulness", "real", "a judge's rating, 0 to 1", *_of_values("faithfulness.result")),
    Column("conversation_progression", "real", "likewise", *_of_values("conversation_progression.result")),
    *(
        Column(name, "real", "EVA's metric of that name", *_of_values(f"eva.{name}.result"))
        for name in get_args(EvaMetricName)
    ),
)
COLUMN_NAMES: Final = tuple(column.name for column in CALL_COLUMNS)


def call_row(records: Sequence[AnyScoreRecord]) -> dict[str, Value]:
    """Returns the row of a call by column, from its records in any order; at least one."""
    call = CallOnFile.of(records)
    return {column.name: column.of(call) for column in CALL_COLUMNS}
