"""The context of a recorded call has the facts of EVA's runner that are in the record's folder, and
no others.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.measures.eva import state_hash
from streamer.offline.contexts import context_of, eva_metrics_of
from streamer.recordings.files import RecordingError
from streamer.recordings.reader import read_recordings

AGENT = """\
id: agent_desk
name: Desk
role: You answer for the desk.
instructions: |
  Ask for the badge first.
tools:
- id: find_badge
  name: find_badge
  tool_type: auth
  required_parameters:
  - name: badge
    type: str
    enum: [one, two]
  - floor
  optional_parameters:
  - {name: doors, type: array}
- id: close_door
  name: close_door
"""
SAID = {"value": "hello", "timestamp": "1790000000100", "message_type": "user"}


def tool(name: str, kind: str, **value: Any) -> dict[str, Any]:
    return {"value": {"tool": name, **value}, "timestamp": "1790000000200", "message_type": kind}


def used(name: str) -> list[dict[str, Any]]:
    return [
        tool(name, "tool_call", parameters={}),
        tool(name, "tool_response", response={"status": "success"}),
    ]


def record(
    tmp_path: Path, *entries: Any, agent: str | None = AGENT, trial: str = "", **files: Any
) -> Path:
    """Writes the folder of a record below EVA's own folder, as EVA does."""
    run = tmp_path / "output" / "run-1"
    directory = run / "records" / "7.1" / trial
    directory.mkdir(parents=True)
    if agent is not None:
        path = tmp_path / "configs" / "agents" / "desk_agent.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(agent)
    (run / "config.json").write_text(
        json.dumps({"agent_config_path": "configs/agents/desk_agent.yaml"})
    )
    (directory / "audit_log.json").write_text(json.dumps({"transcript": [SAID, *entries]}))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def context(directory: Path) -> dict[str, Any]:
    (call,) = read_recordings(directory)
    found: dict[str, Any] = json.loads(json.dumps(context_of(call).values))
    return found


ALL_FACTS = (
    *(
        "record_id",
        "user_goal",
        "user_persona",
        "initial_scenario_db",
        "initial_scenario_db_hash",
        "final_scenario_db",
    ),
    *(
        "final_scenario_db_hash",
        "expected_scenario_db",
        "agent_id",
        "agent_role",
        "agent_instructions",
        "agent_tools",
    ),
    *(
        "current_date_time",
        "language",
        "num_turns",
        "tools_called",
        "conversation_finished",
        "duration_seconds",
    ),
    *("output_dir", "audio_assistant_path", "audio_user_path", "audio_mixed_path"),
)


def test_a_record_without_these_files_has_every_fact_and_does_not_invent_one(
    tmp_path: Path,
) -> None:
    directory = record(tmp_path, agent=None)
    found = context(directory)
    known = {name: found[name] for name in ALL_FACTS if found[name] is not None}
    of_events = {"num_turns": 1, "tools_called": []}
    assert known == {"record_id": "7.1", "output_dir": str(directory.resolve()), **of_events}


def test_events_show_what_no_file_says(tmp_path: Path) -> None:
    entries = [
        *used("Find_badge"),
        *used("close_door"),
        *used("Find_badge"),
        {**SAID, "timestamp": "1790000012600"},
    ]
    directory = record(tmp_path, *entries, agent=None)
    found = context(directory)
    assert [
        found[name]
        for name in ("num_turns", "tools_called", "duration_seconds", "conversation_finished")
    ] == [2, ["Find_badge", "close_door"], 12.5, None]
    end = {"type": "connection_state", "timestamp": 1790000020100}
    for details, is_finished in (
        ({"reason": "goodbye"}, True),
        ({"reason": "timeout"}, False),
        ({}, None),
    ):
        ended = {**end, "data": {"state": "session_ended", "details": details}}
        (directory / "elevenlabs_events.jsonl").write_text(json.dumps(ended) + "\n")
        found = context(directory)
        assert (found["conversation_finished"], found["duration_seconds"]) == (is_finished, 20.0)


def test_the_facts_of_the_run_are_in_the_context(tmp_path: Path) -> None:
    result = {
        "record_id": "7.1",
        "num_turns": 3,
        "duration_seconds": 12.5,
        "conversation_ended_reason": "goodbye",
        "audio_user_path": "/elsewhere/records/7.1/user.wav",
        "audio_mixed_path": "/elsewhere/records/7.1/mixed.wav",
        "initial_scenario_db_hash": "abc",
    }
    states: dict[str, Any] = {
        "initial_scenario_db": {"doors": 1},
        "final_scenario_db": {"doors": 2.0, "session": {}},
    }
    directory = record(tmp_path, trial="trial_0", result=result, **states)
    (directory / "user.wav").touch()  # the mixed sound was not copied
    found = context(directory)
    assert {name: found[name] for name in (*states, *result)} == {
        **states,
        **result,
        "audio_user_path": str(directory.resolve() / "user.wav"),
        "audio_mixed_path": None,
    }
    assert found["final_scenario_db_hash"] == state_hash({"doors": 2})
    assert found["conversation_finished"] is True


def test_the_tools_that_were_called_are_those_of_the_audit_log(tmp_path: Path) -> None:
    directory = record(
        tmp_path, *used("find_badge"), *used("find_badge"), result={"tools_called": ["close_door"]}
    )
    assert context(directory)["tools_called"] == ["find_badge"]


@pytest.mark.parametrize(
    ("result", "finished"),
    [({"conversation_ended_reason": "time_limit_exceeded"}, False), ({}, None)],
)
def test_a_call_is_finished_by_a_goodbye_alone(
    tmp_path: Path, result: Any, finished: bool | None
) -> None:
    assert context(record(tmp_path, result=result))["conversation_finished"] is finished


def test_values_of_another_type_count_as_unknown(tmp_path: Path) -> None:
    found = context(
        record(
            tmp_path, result={"num_turns": True, "tools_called": "one", "duration_seconds": "12"}
        )
    )
    # The events say both numbers; a single one shows no duration.
    assert [found[name] for name in ("num_turns", "tools_called", "duration_seconds")] == [
        1,
        [],
        None,
    ]


def test_the_agent_of_the_run_is_in_the_context(tmp_path: Path) -> None:
    found = context(record(tmp_path, trial="trial_0"))
    assert [found["agent_id"], found["agent_role"]] == ["agent_desk", "You answer for the desk."]
    assert found["agent_instructions"] == "Ask for the badge first.\n"
    assert [(tool["name"], tool.get("tool_type")) for tool in found["agent_tools"]] == [
        ("find_badge", "auth"),
        ("close_door", None),
    ]


def test_the_data_set_s_record_is_in_the_context_in_the_language_of_the_run(tmp_path: Path) -> None:
    data = {
        "current_date_time": "2026-03-17 10:45",
        "user_goal": {
            "high_level_user_goal": (
                "<FIRST_NAME> and <COMPANION_FIRST_NAME> meet in <LOC:the lobby>."
            )
        },
        "user_config": {"user_persona": "You are <LAST_NAME>."},
        "starting_utterances": {"en": "I am <FIRST_NAME>: <FIRST_NAME_ROMANIZED>@x", "ko": "?"},
        "culture_overrides": {
            "en": {"first_name": "Ada", "last_name": "Ott", "companion": {"first_name": "Bo"}}
        },
        "agent_override": {"instructions": "Say no."},
    }
    found = context(record(tmp_path, dataset_record=data))
    assert found["user_goal"] == {
        "high_level_user_goal": "Ada and Bo meet in the lobby.",
        "starting_utterance": "I am Ada: ada@x",
    }
    assert (found["user_persona"], found["current_date_time"]) == (
        "You are Ott.",
        "2026-03-17 10:45",
    )
    assert (found["agent_role"], found["agent_instructions"]) == (
        "You answer for the desk.",
        "Say no.",
    )


def test_a_goal_in_another_language_keeps_the_places_that_only_eva_can_name(tmp_path: Path) -> None:
    data = {
        "user_goal": "Go to <LOC:the lobby>, <FIRST_NAME>.",
        "culture_overrides": {"en": {"first_name": "Ada"}},
    }
    directory = record(tmp_path, dataset_record=data)
    (tmp_path / "output" / "run-1" / "config.json").write_text(json.dumps({"language": "ko"}))
    found = context(directory)
    assert (found["user_goal"], found["language"]) == ("Go to <LOC:the lobby>, <FIRST_NAME>.", "ko")


def test_a_call_without_a_folder_has_the_facts_of_its_events_and_no_others(tmp_path: Path) -> None:
    control = [
        {
            "type": "call_started",
            "timestamp": 1790000000000,
            "expected_state": {"doors": 1},
            "tools": [{"name": "t"}],
        },
        {
            "type": "call_ended",
            "timestamp": 1790000009000,
            "final_state": {"doors": 2},
            "final_state_hash": "abc",
        },
    ]
    path = tmp_path / "calls.jsonl"
    path.write_text(json.dumps({"id": "c-1", "audit": [SAID], "control": control}))
    found = context(path)
    assert found.keys() & set(ALL_FACTS) == {
        *("expected_scenario_db", "final_scenario_db", "final_scenario_db_hash", "agent_tools"),
        *("num_turns", "tools_called", "duration_seconds"),
    }
    assert found["duration_seconds"] == 9.0
    assert (found["final_scenario_db"], found["final_scenario_db_hash"]) == ({"doors": 2}, "abc")


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("tools: [\n", "a YAML document"),
        ("- desk\n", "an agent with id, role, instructions and tools"),
        ("tools: none\n", '"tools" as a list'),
        ("tools:\n- tool_type: auth\n", '"name" as a short text'),
        (f"tools: []\n# {'x' * 2_000_000}\n", "at most 2,000,000 bytes"),
    ],
)
def test_an_agent_that_cannot_be_read_is_named_with_a_remedy(
    tmp_path: Path, agent: str, expected: str
) -> None:
    directory = record(tmp_path, agent=agent)
    with pytest.raises(RecordingError, match="take it away") as raised:
        context(directory)
    assert expected in raised.value.expected
    assert raised.value.where == str(
        (tmp_path / "configs" / "agents" / "desk_agent.yaml").resolve()
    )


@pytest.mark.parametrize(
    ("name", "badge", "parts"),
    [
        (
            "find_badge",
            "7",
            {"auth_first_try_success", "num_auth_calls", "authentication_success_rate"},
        ),
        ("find_badge", "8", {"num_auth_calls_on_failure"}),
        ("close_door", "7", set()),
    ],
)
def test_eva_s_metrics_know_which_tools_identify_the_user(
    tmp_path: Path, name: str, badge: str, parts: set[str]
) -> None:
    data = {"ground_truth": {"expected_scenario_db": {"session": {"badge": "7"}}}}
    directory = record(
        tmp_path, *used(name), dataset_record=data, final_scenario_db={"session": {"badge": badge}}
    )
    (call,) = read_recordings(directory)
    authentication = eva_metrics_of(call).values["authentication_success"]
    assert set(authentication["sub_metrics"] or ()) == parts
