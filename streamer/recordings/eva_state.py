"""Reads the files beside the events of an EVA record: the states before and after, the expected state, and the latencies.

The files are `result.json`, `initial_scenario_db.json`, `final_scenario_db.json`, `agent_perf_stats.csv`,
`response_latencies.json` and, if somebody put it there, the record of the data set as `dataset_record.json`. Each may be
missing. The agent is the one of the run.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

from consumers.engine.measures.eva import DEFAULT_LANGUAGE, STAGES
from schemas.scores.latency_stages import MAX_STAGE_SECONDS
from schemas.units import MS_PER_SECOND
from streamer.recordings.eva_agent import RunAgent, agent_of_run
from streamer.recordings.eva_dataset import DataRecord, data_record
from streamer.recordings.files.json_files import RecordingError, kind_of, read_document
from streamer.recordings.files.places import LATENCIES_FILE, RESULT_FILE
from streamer.recordings.reader import run_configs
from streamer.recordings.recorded_call import RecordedCall

_TOKEN_COLUMNS: Final = {"mean_output_tokens": "output_tokens", "mean_reasoning_tokens": "reasoning_tokens"}
_TOKEN_DIGITS: Final = 3
_MS_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The facts of a record.

    Attributes:
        language: Language of the call; None if no file has it.
        result: EVA's result of the whole call; empty without one.
        initial: State before the call; None when it is not known.
        final: State after the call; None when it is not known.
        final_hash: Hash of the final state as the run computed it.
        data: The record of the data set.
        agent: The agent of the run.
        stage_mean_ms: Mean latency by stage.
        mean_tokens: Mean number of tokens of the model's steps, by EVA's names.
    """

    language: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    initial: Mapping[str, Any] | None = None
    final: Mapping[str, Any] | None = None
    final_hash: str | None = None
    data: DataRecord = field(default_factory=DataRecord)
    agent: RunAgent = field(default_factory=RunAgent)
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
    result = _document(directory / RESULT_FILE) or {}
    final_hash = result.get("final_scenario_db_hash")
    language = next(
        (text for config in run_configs(directory) if isinstance(text := config.get("language"), str)), None
    )
    return RecordedState(
        language=language,
        result=result,
        initial=_document(directory / "initial_scenario_db.json"),
        final=_document(directory / "final_scenario_db.json"),
        final_hash=final_hash if isinstance(final_hash, str) else None,
        data=data_record(directory / "dataset_record.json", language or DEFAULT_LANGUAGE),
        agent=agent_of_run(directory),
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
            remedy="Repair it, or remove it: then there are no mean numbers of tokens.",
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


def _latencies_ms(path: Path) -> list[float] | None:
    """The waits for the assistant that EVA measured itself. EVA's metrics do not read them, so only `with_state` does."""
    if not path.is_file():
        return None
    latencies_s = read_document(path).get("latencies")
    seen = kind_of(latencies_s)
    if isinstance(latencies_s, list):
        others = [each for each in latencies_s if not _is_length_s(each)]
        if not others:
            return [round(each * MS_PER_SECOND, _MS_DIGITS) for each in latencies_s]
        seen = f"{kind_of(others[0])} in it that is no length of a wait"
    raise RecordingError(
        what="the latencies that EVA measured cannot be read",
        where=str(path),
        expected='"latencies" as a list of seconds',
        seen=seen,
        remedy="Repair it, or remove it: then only the times of speech have latencies.",
    )


def _is_length_s(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_STAGE_SECONDS


def with_state(call: RecordedCall) -> RecordedCall:
    """The call with its known states, and EVA's own latencies, added to the control events that can carry them.

    Raises:
        RecordingError: A file has another shape.
    """
    state = state_of_record(call.directory)
    supplied: Mapping[str, Mapping[str, Any]] = {
        "call_started": {"expected_state": state.data.expected_state, "tools": state.agent.event_tools},
        "call_ended": {
            "final_state": state.final,
            "response_latencies_ms": None if call.directory is None else _latencies_ms(call.directory / LATENCIES_FILE),
        },
    }
    control = []
    for event in call.control:
        facts = supplied.get(str(event.get("type")), {})
        news = {name: value for name, value in facts.items() if value is not None and name not in event}
        if "final_state" in news and state.final_hash is not None:
            event = {"final_state_hash": state.final_hash, **event}
        control.append({**event, **news})
    return replace(call, control=tuple(control))
