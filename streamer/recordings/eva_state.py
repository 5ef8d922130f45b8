"""Reads the files beside the events of an EVA record: the final state, the expected state, and the latencies.

The files are `result.json`, `final_scenario_db.json`, `agent_perf_stats.csv` and, if somebody put it there, the record of the
data set as `dataset_record.json`. Each may be missing.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

from consumers.engine.measures.eva.call_metrics import DEFAULT_LANGUAGE, STAGES
from streamer.recordings.reader import RecordedCall, RecordingError, read_document, run_configs

_TOKEN_COLUMNS: Final = {"mean_output_tokens": "output_tokens", "mean_reasoning_tokens": "reasoning_tokens"}
_TOKEN_DIGITS: Final = 3
_PLACEHOLDER: Final = re.compile(r"<([A-Z_]+?)(_ROMANIZED)?>")


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The facts of a record.

    Attributes:
        language: Language of the call; None if no file has it.
        expected: Expected state after the call; None when it is not known.
        final: State after the call; None when it is not known.
        final_hash: Hash of the final state as the run computed it.
        stage_mean_ms: Mean latency by stage.
        mean_tokens: Mean number of tokens of the model's steps, by EVA's names.
    """

    language: str | None = None
    expected: Mapping[str, Any] | None = None
    final: Mapping[str, Any] | None = None
    final_hash: str | None = None
    stage_mean_ms: Mapping[str, float] = field(default_factory=dict)
    mean_tokens: Mapping[str, float] = field(default_factory=dict)


def state_of_record(directory: Path | None) -> RecordedState:
    """Reads the files of a record.

    Args:
        directory: Directory of the record; None for a call without one, whose facts are all unknown.

    Raises:
        RecordingError: A file has another shape.
    """
    if directory is None:
        return RecordedState()
    result = _document(directory / "result.json") or {}
    final_hash = result.get("final_scenario_db_hash")
    language = next(
        (text for config in run_configs(directory) if isinstance(text := config.get("language"), str)), None
    )
    dataset_record = directory / "dataset_record.json"
    data = _document(dataset_record)
    return RecordedState(
        language=language,
        expected=None if data is None else _expected_state(data, language or DEFAULT_LANGUAGE, dataset_record),
        final=_document(directory / "final_scenario_db.json"),
        final_hash=final_hash if isinstance(final_hash, str) else None,
        stage_mean_ms={stage: mean_ms for stage in STAGES if (mean_ms := _mean_ms(result.get(stage))) is not None},
        mean_tokens=_mean_tokens(directory / "agent_perf_stats.csv"),
    )


def _document(path: Path) -> dict[str, Any] | None:
    return read_document(path) if path.is_file() else None


def _mean_tokens(path: Path) -> dict[str, float]:
    """Mean tokens of output and reasoning of a step; a missing or empty column has no mean."""
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordingError(
            what="the table of the model's steps cannot be read",
            where=str(path),
            expected="comma-separated values with a line of names",
            seen=str(error),
            remedy="Repair it or take it away: then the mean numbers of tokens are not told.",
        ) from error
    means = {}
    for name, column in _TOKEN_COLUMNS.items():
        counts = [int(text) for row in rows if (text := (row.get(column) or "").strip()).isdecimal()]
        if counts:
            means[name] = round(mean(counts), _TOKEN_DIGITS)
    return means


def _mean_ms(stage: object) -> float | None:
    mean_ms = stage.get("mean_ms") if isinstance(stage, dict) else None
    return float(mean_ms) if isinstance(mean_ms, int | float) and not isinstance(mean_ms, bool) else None


def _expected_state(data: Mapping[str, Any], language: str, path: Path) -> Mapping[str, Any] | None:
    truth = data.get("ground_truth")
    expected = truth.get("expected_scenario_db") if isinstance(truth, dict) else None
    if expected is None:
        return None
    if not isinstance(expected, dict):
        raise RecordingError(
            what="the record of the data set has another shape",
            where=str(path),
            expected='"ground_truth" with "expected_scenario_db" as an object',
            seen=type(expected).__name__,
            remedy="Compare with EVA's data sets, or take the file away: then the final state is not judged.",
        )
    filled: Mapping[str, Any] = _filled(expected, _names(data, language))
    return filled


def _names(data: Mapping[str, Any], language: str) -> dict[tuple[str, bool], str]:
    """The values of the data set's placeholders in this language: name, whether in Latin letters, and the text."""
    names = {}
    for key, is_romanized in (("culture_overrides", False), ("romanized_culture_overrides", True)):
        by_language = data.get(key)
        texts = by_language.get(language) if isinstance(by_language, dict) else None
        for name, text in (texts if isinstance(texts, dict) else {}).items():
            if isinstance(text, str):
                names[name.upper(), is_romanized] = text
    return names


def _filled(value: Any, names: Mapping[tuple[str, bool], str]) -> Any:
    if isinstance(value, dict):
        return {_filled(key, names): _filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: names.get((found[1], found[2] is not None), found[0]), value)
    return value


def with_state(call: RecordedCall) -> RecordedCall:
    """The call with its known states added to the control events that can carry them.

    Raises:
        RecordingError: A file has another shape.
    """
    state = state_of_record(call.directory)
    supplied = {
        "call_started": ("expected_state", state.expected),
        "call_ended": ("final_state", state.final),
    }
    control = []
    for event in call.control:
        name, value = supplied.get(str(event.get("type")), ("", None))
        if value is not None and name not in event:
            event = {**event, name: value}
            if name == "final_state" and state.final_hash is not None:
                event = {"final_state_hash": state.final_hash, **event}
        control.append(event)
    return replace(call, control=tuple(control))
