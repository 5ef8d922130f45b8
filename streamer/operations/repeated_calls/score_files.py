"""Reads the trials in files of score records, as `callgauge score` prints them or a reader of `scores` keeps them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import from_json

from schemas.scores.records import SCORE_RECORD
from streamer.recordings.files.json_files import RecordingError, raw_lines_of
from streamer.trials.call_folds import CallFolds, Trials
from streamer.trials.trial import READ_NAMES

_SUFFIXES: Final = (".jsonl", ".jsonl.gz")
_MARKS: Final = frozenset({"conversation_id", "name", "revision", "status"})
"""Fields that every score record has, and no recorded call."""
MOST_MISTAKES: Final = 5
"""Lines of one file that are named; the others are counted."""


def holds_scores(path: Path) -> bool:
    """Whether the first line of a file is a score record. A file that cannot be read is left to the reader of recordings."""
    if not (path.is_file() and path.name.endswith(_SUFFIXES)):
        return False
    try:
        first = next((text for _, text in raw_lines_of(path) if text.strip()), b"")
        fields = from_json(first)
    except (RecordingError, ValueError):
        return False
    return isinstance(fields, dict) and fields.keys() >= _MARKS


def read_score_file(path: Path, trials: Trials) -> Iterator[str]:
    """Adds the calls of a file. A call with a line that cannot be read is left out; the others are not concerned.

    Yields:
        A sentence for each of the first lines that cannot be read, and one for the others together.
    """
    folds = CallFolds(trials, lambda call: f"{path} ({call})")
    mistakes = 0
    try:
        for number, text in raw_lines_of(path):
            if (seen := _problem(text, folds)) is None:
                continue
            mistakes += 1
            if mistakes <= MOST_MISTAKES:
                yield (
                    f"{path}:{number}: this line cannot be read: expected a score record of this version; seen {seen}. Its "
                    "call is left out; the others are not concerned. Write the file again with `callgauge score`."
                )
    except RecordingError as error:
        error.consequence = "The calls before it are compared; the rest of the file is left out."
        yield str(error)
    folds.end()
    if mistakes > MOST_MISTAKES:
        yield f"{path}: {mistakes - MOST_MISTAKES} further lines cannot be read."


def _problem(text: bytes, folds: CallFolds) -> str | None:
    """Folds a line; returns the fault if that cannot be done."""
    try:
        fields = from_json(text)
    except ValueError:
        folds.damage_open_calls()  # it is a line of one of them
        return "no JSON"
    call, name = (fields.get(key) if isinstance(fields, dict) else None for key in ("conversation_id", "name"))
    if not isinstance(call, str) or not isinstance(name, str):
        folds.damage_open_calls()
        return "JSON without conversation_id and name"
    if name not in READ_NAMES:
        return None
    try:
        record = SCORE_RECORD.validate_json(text)
    except ValidationError as error:
        folds.damage(call)
        first = error.errors(include_url=False, include_input=False)[0]
        return f"a record {name} in which {'.'.join(map(str, first['loc'][1:])) or 'a field'} is wrong"
    folds.take(call, record)
    return None
