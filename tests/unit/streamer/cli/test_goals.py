"""`callgauge goals check` prints the content of files in plain words, and every mistake with its
line.
"""

import json
from pathlib import Path

import pytest

from schemas.goals.goal_set import GoalSet
from streamer.goals.check import set_in_words
from tests.support.conformance_data import RECORD, conformance
from tests.unit.streamer.command_line import Command, command

GOOD = """
id: rebooking
agents: [desk]
max_turns: 12
subgoals:
  - id: found
    details: The reservation is found.
    check:
      kind: tool_result
      tool: get_reservation
      arguments: {confirmation_number: ZK3FFW, people: {at_least: 1, at_most: 9}, note: {present: false}}
      outcome: success
      result: {status: {one_of: [confirmed, changed]}}
  - id: quick
    details: Nobody says sorry at first.
    check:
      kind: all_of
      checks:
        - {kind: within, seconds: 60, check: {kind: not, check: {kind: says, speaker: assistant, pattern: sorry}}}
        - {kind: within, turns: 3, check: {kind: tool_called, tool: greet, arguments: {name: {matches: "^rod"}}}}
  - id: friendly
    details: The assistant is friendly.
    check: {kind: judge}
expected_tool_calls:
  - {tool: rebook, expected_parameters: [{name: fee, value: 0}, {name: why, check: a reason}], turn: 2}
"""


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "goals", "check")


def test_what_a_file_holds_is_said_in_plain_words(check: Command, tmp_path: Path) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text(GOOD)
    code, out, err = check(path)
    assert (code, err) == (0, "")
    first, second, *rest = out.splitlines()
    assert first == f"{path}: 1 goal set"
    assert second.startswith("  rebooking: for calls of desk, up to 12 turns, digest ")
    assert rest == [
        '    found     by code: get_reservation with confirmation_number = "ZK3FFW", people from 1 '
        "to 9, note absent answers "
        'success with status one of "confirmed", "changed"',
        "    quick     by code: all of (within 60 s: not (the assistant says /sorry/); within 3 "
        "turns: greet is called with "
        "name like /^rod/)",
        "    friendly  by a judge: The assistant is friendly.",
        "    expected tool call: rebook(fee=0, why as a judge sees it: a reason), in turn 3 (index "
        "2)",
    ]


def test_the_turn_of_a_sample_is_said_to_be_for_traces(check: Command, tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    path.write_text(
        json.dumps(
            {"id": "s", "sub_goals": [{"details": "d", "turn": 1}, {"details": "e", "turn": "all"}]}
        )
    )
    code, out, _ = check(path)
    assert code == 0
    assert out.splitlines()[2:] == [
        "    1  by a judge: d",
        "       turn 1 is for scores of traces; a call may reach it in any turn",
        "    2  by a judge: e",
    ]


def test_the_digest_that_is_printed_is_the_sets_own(check: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    goals = GoalSet.model_validate(
        {"id": "a", "subgoals": [{"id": "1", "details": "d", "check": {"kind": "judge"}}]}
    )
    path.write_text(goals.model_dump_json())
    assert f"digest {goals.digest}\n" in check(path).out


def test_every_mistake_of_every_file_is_told_with_its_line(check: Command, tmp_path: Path) -> None:
    good, bad, worse = (tmp_path / name for name in ("a.yaml", "b.yaml", "c.json"))
    good.write_text(GOOD)
    bad.write_text("id: x\nsubgoals:\n  - id: one\n    detials: d\n    check: judge\n")
    worse.write_text('{"id": "a",')
    code, out, err = check(tmp_path)
    assert code == 1
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        f"{good}: 1 goal set"
    ]
    assert err.splitlines() == [
        f"{bad}:3: subgoals[0]: details is missing; say in plain words what must be so.",
        f"{bad}:4: subgoals[0].detials: there is no field 'detials' here; probably 'details' is "
        "meant.",
        f'{bad}:5: subgoals[0].check: expected a mapping, for example `kind: judge`; seen "judge".',
        f"{worse}:1: not JSON: Expecting property name enclosed in double quotes at column 12.",
        "4 mistakes in 3 files. A file with a mistake in it is not used at all.",
    ]


def test_a_program_reads_sets_mistakes_and_turns(check: Command, tmp_path: Path) -> None:
    good, bad = tmp_path / "a.yaml", tmp_path / "b.yaml"
    good.write_text(GOOD)
    code, out, err = check(good, "--json", "--call", "sample")
    assert (code, err) == (0, "")
    document = json.loads(out)
    (file,) = document["files"]
    assert (file["path"], file["goal_sets"][0]["id"], document["mistakes"]) == (
        str(good),
        "rebooking",
        [],
    )
    (call,) = document["calls"]
    assert [subgoal["id"] for subgoal in call["subgoals"]] == ["found", "quick", "friendly"]
    assert call["subgoals"][2]["state"] == "not known (judge_disabled)"

    bad.write_text("id: x")
    code, out, err = check(bad, "--json", "--call", "sample")
    assert (code, err) == (1, "")
    assert json.loads(out)["mistakes"] == [
        {
            "path": str(bad),
            "line": 1,
            "text": "subgoals is missing; give at least one, each with id, details and check",
        }
    ]


EXPECTED_TOOLS = """
id: page
subgoals:
  - {id: found, details: d, check: {kind: tool_result, tool: find_booking, outcome: success}}
expected_tool_calls:
  - {tool: find_booking, turn: 1}
  - {tool: search_flights, turn: 1}
  - {tool: rebook, turn: 4, expected_parameters: [{name: flight, value: LW1}, {name: seat, value: 9D}], expected_output: {value: ok}}
  - {tool: rebook, turn: 4, expected_output: {check: It is free.}}
  - {tool: pay, turn: -1}
  - {tool: pay, turn: 30}
"""


def test_an_expected_tool_call_has_the_turn_that_people_count_and_the_reason(
    check: Command, tmp_path: Path
) -> None:
    path = tmp_path / "goals.yaml"
    path.write_text(EXPECTED_TOOLS)
    code, out, err = check(path, "--call", "sample")
    assert (code, err) == (0, "")
    told = [line.strip() for line in out.splitlines() if "expected tool call" in line]
    assert told[2:6] == [
        'expected tool call: rebook(flight="LW1", seat="9D"), output="ok", in turn 5 (index 4)',
        "expected tool call: rebook(), output as a judge sees it: It is free., in turn 5 (index 4)",
        "expected tool call: pay(), left out, because it names no turn",
        "expected tool call: pay(), in turn 31 (index 30)",
    ]
    assert told[6:] == [
        "expected tool call find_booking in turn 2: made as expected",
        "expected tool call search_flights in turn 2: not called in that turn, but in turn 3",
        'expected tool call rebook in turn 5: flight is "LW 2217", expected "LW1"; seat is '
        'missing, expected "9D"; the output is '
        '{"status": "success", "seat": "9D", "charge": 0}, expected "ok"',
        "expected tool call rebook in turn 5: not known (judge_disabled)",
        "expected tool call pay: left out, because the goal set names no turn for it",
        "expected tool call pay in turn 31: not known (expected_turn_not_reached)",
    ]
    (call,) = json.loads(check(path, "--json", "--call", "sample").out)["calls"]
    assert [
        (each["turn"], each["missed"], each["called_in_turns"])
        for each in call["expected_tool_calls"]
    ] == [
        (2, [], []),
        (2, ["name"], [3]),
        (5, ["arguments", "output"], []),
        (5, [], []),
        (None, [], []),
        (31, [], []),
    ]


def test_two_files_with_one_id_are_a_mistake(check: Command, tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    code, _, err = check(tmp_path)
    assert code == 1
    told = err.splitlines()
    assert told[0].startswith(
        f"{tmp_path / 'b.yaml'}:2: goal set 'rebooking' is in {tmp_path / 'a.yaml'} too"
    )
    assert told[-1] == "2 mistakes in 2 files."


def test_what_is_not_there_is_told(check: Command, tmp_path: Path) -> None:
    code, out, err = check(tmp_path / "nothing.yaml")
    assert (code, out) == (1, "")
    assert err.startswith(
        f"{tmp_path / 'nothing.yaml'}: the file cannot be read (No such file or directory).\n"
    )
    code, out, err = check(tmp_path)
    assert (code, out) == (1, "")
    assert (
        err == "There is no goal file: expected one that ends with .yaml, .yml, .json or .jsonl.\n"
    )


def test_texts_of_a_file_cannot_steer_the_terminal(check: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '{"id": "a\\u001b[31m", "subgoals": [{"id": "1", "details": "x\\ny", "check": {"kind": '
        '"judge"}}]}'
    )
    out = check(path).out
    assert "\x1b" not in out
    assert "by a judge: x\\ny" in out


def test_the_recorded_call_s_record_is_checked_as_it_is(check: Command) -> None:
    record = conformance(RECORD.name) / "dataset_record.json"
    code, out, _ = check(record)
    assert code == 0
    assert (out.count("by a judge: "), out.count("expected tool call: ")) == (4, 4)


def test_a_set_for_no_agent_says_so() -> None:
    goals = GoalSet.model_validate(
        {"id": "a", "subgoals": [{"id": "1", "details": "d", "check": {"kind": "judge"}}]}
    )
    assert next(set_in_words(goals)).startswith("a: for calls that name it, up to 20 turns")


def test_a_recorded_call_says_which_subgoals_it_reaches(
    check: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tried.yaml"
    path.write_text(
        "id: tried\nsubgoals:\n"
        "  - {id: booked, details: d, check: {kind: tool_called, tool: rebook}}\n"
        "  - {id: sung, details: d, check: {kind: says, speaker: assistant, pattern: la la la}}\n"
        "  - {id: friendly, details: d, check: {kind: judge}}\n"
    )
    ended = check(path, "--call", "sample")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-4:] == [
        "call sample-call, goals tried:",
        "  booked: reached in turn 5",
        "  sung: not reached",
        "  friendly: not known (judge_disabled)",
    ]


def test_goals_of_another_agent_are_tried_on_no_call(
    check: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            f"id: {name}\nagents: [{name}]\nsubgoals:\n  - {{id: a, details: d, check: {{kind: "
            f"judge}}}}\n"
        )
    ended = check(tmp_path, "--call", "sample")
    assert ended.code == 0
    assert "no goal set is for it" in ended.err
    assert "call sample-call" not in ended.out
