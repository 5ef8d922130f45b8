"""The facts beside the events of an EVA record: its final state, its expected state, and its
latencies.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from streamer.recordings.eva import RecordedState, state_of_record, with_state
from streamer.recordings.files import RecordedCall, RecordingError
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import with_control_events

ENTRY = {"value": "hello", "timestamp": "1790000000100", "message_type": "user"}


def record(tmp_path: Path, **files: Any) -> Path:
    directory = tmp_path / "7.1"
    directory.mkdir()
    (directory / "audit_log.json").write_text(json.dumps({"transcript": [ENTRY]}))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def data(expected: Any, **others: Any) -> dict[str, Any]:
    return {"id": "7.1", "ground_truth": {"expected_scenario_db": expected}, **others}


def test_a_call_without_a_directory_and_a_record_without_these_files_have_none(
    tmp_path: Path,
) -> None:
    assert state_of_record(None) == state_of_record(record(tmp_path)) == RecordedState()


def test_everything_that_is_there_is_read(tmp_path: Path) -> None:
    result = {
        "final_scenario_db_hash": "abc",
        "llm_latency": {"mean_ms": 900},
        "stt_latency": {"mean_ms": None},
    }
    directory = record(
        tmp_path,
        result=result,
        final_scenario_db={"fees": {}},
        dataset_record=data({"fees": {"f": 1}}),
    )
    state = state_of_record(directory)
    assert state.facts == {
        "expected_scenario_db": {"fees": {"f": 1}},
        "final_scenario_db": {"fees": {}},
    }
    assert (state.final_hash, state.stage_mean_ms) == ("abc", {"llm_latency": 900.0})


def test_the_tokens_of_the_model_s_steps_are_averaged(tmp_path: Path) -> None:
    directory = record(tmp_path)
    table = 'prompt,output_tokens,reasoning_tokens\nhi,10,\n"a, b",15,\n,,\n'
    (directory / "agent_perf_stats.csv").write_text(table)
    assert state_of_record(directory).mean_tokens == {"mean_output_tokens": 12.5}
    (directory / "agent_perf_stats.csv").write_bytes(b"output_tokens\n\xff\n")
    with pytest.raises(RecordingError, match="the model's steps"):
        state_of_record(directory)


@pytest.mark.parametrize(
    ("cells", "mean"),
    [
        (["12.0", "20", "-4"], 9.333),
        (["3.5", "1e1"], 6.75),
        ([" 7 ", "1_000", "n/a", ""], 503.5),
        (["nan", "inf", "8"], 8.0),
        (["nan"], None),
        (["", "twelve"], None),
    ],
)
def test_tokens_are_numbers_as_other_programs_write_them(
    tmp_path: Path, cells: list[str], mean: float | None
) -> None:
    directory = record(tmp_path)
    (directory / "agent_perf_stats.csv").write_text(
        "\n".join(["prompt,output_tokens", *(f"hi,{cell}" for cell in cells)])
    )
    assert state_of_record(directory).mean_tokens.get("mean_output_tokens") == mean


@pytest.mark.parametrize(("config", "name"), [({}, "Ada/ada"), ({"language": "ko"}, "에이다/eida")])
def test_placeholders_stand_for_the_names_of_the_run_s_language(
    tmp_path: Path, config: Any, name: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = {"culture_overrides": {"en": {"first_name": "Ada"}, "ko": {"first_name": "에이다"}}}
    latin = {
        "romanized_culture_overrides": {"en": {"first_name": "Ada"}, "ko": {"first_name": "Eida"}}
    }
    expected = {"<FIRST_NAME>": ["<FIRST_NAME>/<FIRST_NAME_ROMANIZED>", "<PHONE>", 1]}
    state = state_of_record(record(tmp_path, dataset_record=data(expected, **names, **latin)))
    assert state.facts["expected_scenario_db"] == {name.split("/")[0]: [name, "<PHONE>", 1]}


def test_a_data_set_without_an_expectation_has_none_and_one_of_another_shape_is_told(
    tmp_path: Path,
) -> None:
    directory = record(tmp_path, dataset_record={"id": "7.1"})
    assert "expected_scenario_db" not in state_of_record(directory).facts
    (directory / "dataset_record.json").write_text(json.dumps(data(["fees"])))
    with pytest.raises(RecordingError, match="expected_scenario_db") as raised:
        state_of_record(directory)
    assert raised.value.where == str(directory / "dataset_record.json")


def test_the_states_travel_in_the_control_events(tmp_path: Path) -> None:
    (call,) = read_recordings(
        record(tmp_path, final_scenario_db={"fees": {}}, dataset_record=data({"fees": {"f": 1}}))
    )
    started, ended = with_state(with_control_events(call)).control
    assert (started["expected_state"], ended["final_state"]) == ({"fees": {"f": 1}}, {"fees": {}})
    told = {"type": "call_ended", "timestamp": 1, "final_state": {}}
    assert with_state(_with(call, told)).control == (told,)  # the recording's own value wins


def test_the_hash_of_the_run_travels_with_its_state_only(tmp_path: Path) -> None:
    result = {"final_scenario_db_hash": "abc"}
    (call,) = read_recordings(record(tmp_path, result=result, final_scenario_db={"fees": {}}))
    _, ended = with_state(with_control_events(call)).control
    assert (ended["final_state"], ended["final_state_hash"]) == ({"fees": {}}, "abc")
    told = {"type": "call_ended", "timestamp": 1, "final_state": {"fees": 1}}
    assert with_state(_with(call, told)).control == (told,)


def test_the_latencies_that_eva_measured_travel_with_the_end(tmp_path: Path) -> None:
    directory = record(
        tmp_path,
        response_latencies={"latencies": [2.7009661, 3], "mean": 2.85, "max": 3, "count": 2},
    )
    (call,) = read_recordings(directory)
    _, ended = with_state(with_control_events(call)).control
    assert ended["response_latencies_ms"] == [2700.966, 3000]
    told = {"type": "call_ended", "timestamp": 1, "response_latencies_ms": [1.0]}
    assert with_state(_with(call, told)).control == (told,)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ({}, "nothing"),
        ({"latencies": 2}, "a number"),
        ({"latencies": [1, "2"]}, "a text"),
        ({"latencies": [1e300]}, "a number"),
    ],
)
def test_latencies_of_another_shape_are_named_and_eva_s_metrics_do_without(
    tmp_path: Path, content: Any, seen: str
) -> None:
    directory = record(tmp_path, response_latencies=content)
    (call,) = read_recordings(directory)
    with pytest.raises(RecordingError, match=f"seen {seen}") as raised:
        with_state(with_control_events(call))
    assert raised.value.where == str(directory / "response_latencies.json")
    assert state_of_record(directory) == RecordedState()


def _with(call: RecordedCall, event: dict[str, Any]) -> RecordedCall:
    return RecordedCall(
        "7.1", "cascade", None, call.audit, None, None, control=(event,), directory=call.directory
    )


def test_what_the_run_s_agent_was_told_travels_with_the_start(tmp_path: Path) -> None:
    directory = record(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"agent_config_path": "agent.yaml"}))
    (tmp_path / "agent.yaml").write_text(
        "role: clerk\ninstructions: Never refund.\n"
        "tools:\n- name: find\n  tool_type: auth\n  required_parameters: [{name: n, type: int, "
        "enum: [1]}, floor]\n"
        "  optional_parameters: [{name: doors, type: array, items: {type: string}}]\n"
    )
    (call,) = read_recordings(directory)
    started, _ = with_state(with_control_events(call)).control
    properties = {
        "n": {"type": "integer", "enum": [1]},
        "floor": {"type": "string"},
        "doors": {"type": "array", "items": {"type": "string"}},
    }
    schema = {"type": "object", "properties": properties, "required": ["n", "floor"]}
    assert started["tools"] == [{"name": "find", "parameters": schema, "tool_type": "auth"}]
    assert (started["role"], started["instructions"]) == ("clerk", "Never refund.")
