"""Writes the columns of the tables into tables.md: meaning, unit, source, and an example of the
sample call, as the engine scores it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from msgspec import Struct

from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import TEXT_JUDGES
from schemas.columns import CALL_COLUMNS, TURN_COLUMNS, Column, Flat, flat, meanings_of
from schemas.rows import CallRow, GoalsRow, OwnRow, Row, ToolWords, TurnRow, WordsRow
from streamer.offline.scoring import ScoringPlan, scored
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.roles.past_calls import PAST_CALL_COLUMNS
from streamer.tables import TRIAL_COLUMNS, TROUBLE_COLUMNS, Computed

MAX_EXAMPLE_CHARS: Final = 40
"""Longest example that is shown; of a longer one the beginning."""
_SHARED: Final = (
    (re.compile(r"^(eva)\.\w+"), r"\1.NAME"),
    (re.compile(r"^(stages)\.\w+"), r"\1.STAGE"),
    (re.compile(r"^(waits)\.\w+"), r"\1.ANCHOR"),
    (re.compile(r"^(speech|talk)\.(?:user|assistant)\."), r"\1.SIDE."),
    (re.compile(r"^(?:user|assistant)_disagreement"), "SIDE_disagreement"),
    (re.compile(rf"^(?:{'|'.join(TEXT_JUDGES)})\."), "RATING."),
)
"""Parts of a row with the same columns: the page has these once, under a word in capitals."""
_BOTH: Final = re.compile(r"labels|stt_wer|SIDE_disagreement|RATING|news|left_out")
"""What is the same of a call and of a turn."""

SOURCES: Final = {
    "events": (
        "labels began_ms ended_ms traceparent recording_url recording_starts_ms events "
        "close_reason ended_reason in_vain_ms errors notes uses"
    ),
    "speech": "user_sounds assistant_sounds wait_ms anchor wait_source after_tools_ms interruptions "
    "dead_air answer waiting "
    "p50_ms p95_ms longest_wait_ms unanswered user_interruptions assistant_interruptions "
    "interrupted_turns dead_airs dead_air_turns "
    "talk speech turn_taking outcome waits",
    "services": "stages",
    "tools": (
        "tools tools_left_out tool_calls used_tools failed_tool_calls failed_tools failing_tools"
    ),
    "transcripts": "stt_wer user_disagreement assistant_disagreement transcript_disagreement",
    "record": "estimate_error",
    "judge": "conciseness speakability transcription_accuracy_key_entities faithfulness "
    "conversation_progression "
    "user_behavioral_fidelity",
    "goals": "progress goals",
    "EVA": "eva",
    "prices": "cost_dollars",
    "callgauge": "conversation_id turn turns revision known_ms status state "
    "news code_version partition "
    "first_place last_place "
    "first_known_ms last_known_ms through_turn unscored_turns left_out",
}
"""Where the columns of a field come from, by the source."""
_SOURCE_OF: Final = {name: source for source, names in SOURCES.items() for name in names.split()}


@cache
def example_rows() -> tuple[Row, ...]:
    """The rows of the sample call with its goals."""
    (sample,) = read_recordings(SAMPLE)
    plan = ScoringPlan(Limits(), GoalRules(asks_judge=False), "0.1.0")
    return tuple(scored(sample, replace(plan, sets=goals_for([SAMPLE], None))).rows)


_HEAD: Final = ("| column | kind | from | example | meaning |", "|---|---|---|---|---|")


def call_lines() -> Iterator[str]:
    """The columns that only a call has."""
    yield from (*_HEAD, *(line for name, line in _of_calls().items() if name not in _of_both()))


def turn_lines() -> Iterator[str]:
    """The columns that only a turn has."""
    yield from (*_HEAD, *(line for name, line in _of_turns().items() if name not in _of_both()))


def both_lines() -> Iterator[str]:
    """The columns that calls and turns have."""
    yield from (*_HEAD, *(_of_calls()[name] for name in _of_both()))


def _of_both() -> list[str]:
    turns = _of_turns()
    return [name for name in _of_calls() if _BOTH.match(name) and name in turns]


def _of_calls() -> dict[str, str]:
    closed = [row for row in example_rows() if isinstance(row, CallRow)][-1:]
    return _lines(CALL_COLUMNS, closed)


def _of_turns() -> dict[str, str]:
    newest = {row.turn: row for row in example_rows() if isinstance(row, TurnRow)}
    return _lines(
        TURN_COLUMNS, [newest[turn] for turn in sorted(newest, key=lambda turn: (turn == 0, turn))]
    )


def _lines(columns: Sequence[Column], rows: Sequence[object]) -> dict[str, str]:
    values = [flat(columns, row) for row in rows]
    shown: dict[str, str] = {}
    for place, column in enumerate(columns):
        if column.shape == "reason":
            continue
        name = column.name
        for pattern, shared in _SHARED:
            name = pattern.sub(shared, name)
        example = next((_shown(row[place]) for row in values if row[place] is not None), "")
        if name not in shown or not shown[name].split(" | ")[3]:
            source = _SOURCE_OF[column.path[0]]
            kind = ", ".join(filter(None, (column.kind, column.unit)))
            if column.shape == "value":
                kind += "?"
            meaning = column.meaning.removesuffix("; see below")
            shown[name] = f"| `{name}` | {kind} | {source} | {example} | {meaning} |"
    return shown


def _shown(value: Flat) -> str:
    text = str(value).replace("|", "\\|")
    return f"`{text}`" if len(text) <= MAX_EXAMPLE_CHARS else f"`{text[:MAX_EXAMPLE_CHARS]}…`"


def goals_lines() -> Iterator[str]:
    """The fields of a row of a goal set."""
    yield from _fields(GoalsRow)


def words_lines() -> Iterator[str]:
    """The fields of a row of words, and of a tool in it."""
    yield from _fields(WordsRow)
    for name, meaning in meanings_of(ToolWords).items():
        yield f"| `tools[].{name}` | {meaning} |"


def own_lines() -> Iterator[str]:
    """The fields of a row of a measure of one's own."""
    yield from _fields(OwnRow)


def _fields(of: type[Struct]) -> Iterator[str]:
    yield "| field | meaning |"
    yield "|---|---|"
    for name, meaning in meanings_of(of).items():
        yield f"| `{name}` | {meaning} |"


def trouble_lines() -> Iterator[str]:
    """The columns of a running call behind those of a call."""
    yield from _computed(TROUBLE_COLUMNS)


def past_lines() -> Iterator[str]:
    """The columns of the CSV of past calls."""
    yield from _computed(PAST_CALL_COLUMNS)


def trial_lines() -> Iterator[str]:
    """The columns of a trial."""
    yield from _computed(TRIAL_COLUMNS)


def _computed(columns: Sequence[Computed[object]] | Sequence[object]) -> Iterator[str]:
    yield "| column | kind | meaning |"
    yield "|---|---|---|"
    for column in columns:
        if isinstance(column, Computed):
            yield f"| `{column.name}` | {column.kind} | {column.meaning} |"
