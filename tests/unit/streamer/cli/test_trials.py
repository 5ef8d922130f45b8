"""`callgauge trials` compares repeated calls by goal set, and a bad one does not stop
the others.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from consumers.history.sqlite import Batch, SqliteHistory
from schemas.goals.goal_set import GoalSet
from schemas.rows import CallRow, decode
from tests.support.fakes.scripted_openai import Asked, Does, grades, scripted_openai
from tests.unit.streamer.cli.test_score import (
    BOOKS,
    JUDGED,
    SAYS_YES,
    call,
    goals,
    write_calls,
    write_goals,
)
from tests.unit.streamer.command_line import Command, Json


def failing(name: str, *turns: str) -> Json:
    """A call whose tool fails at every use."""
    made = call(name, *turns)
    for entry in made["audit"]:
        if entry["message_type"] == "tool_response":
            entry["value"]["response"] = {"status": "error"}
    return made


@pytest.fixture
def given(tmp_path: Path) -> tuple[object, ...]:
    """Five calls with goals: two succeed, one stalls in its first turn, two in their second, where
    a tool fails.
    """
    path = write_calls(
        tmp_path / "calls.jsonl",
        call("good", "yes", "book it"),
        call("better", "yes and book it"),
        call("silent", "hello", "hello again"),
        failing("failed", "yes", "book it", "hello"),
        failing("failed-twice", "yes", "book it, book it", "book it"),
    )
    return path, "--goals", write_goals(tmp_path / "goals.json", goals("any", SAYS_YES, BOOKS))


def test_trials_of_one_goal_set_are_compared(callgauge: Command, given: tuple[object, ...]) -> None:
    ended = callgauge("trials", *given, "--k", 1, "--k", 2, "--k", 5, "--json")
    assert (ended.code, ended.err) == (0, "")
    (group,) = ended.sets
    assert (group["goal_set"], group["trials"], group["successes"], group["unscored"]) == (
        "any",
        5,
        2,
        {},
    )
    assert (group["success_rate"], group["mean_progress"]) == (
        pytest.approx(0.4),
        pytest.approx((1 + 1 + 0 + 0.5 + 0.5) / 5),
    )
    assert group["success_interval"] == pytest.approx([0.1176, 0.7693], abs=1e-4), (
        "Wilson's, as published tables have it"
    )
    # Two of five succeed: of the ten pairs three have no success, and one has two.
    assert [tuple(each.values()) for each in group["pass"]] == [
        (1, pytest.approx(0.4), pytest.approx(0.4)),
        (2, pytest.approx(0.7), pytest.approx(0.1)),
        (5, 1.0, 0.0),
    ]
    assert group["judge"] == {
        "agreement": None,
        "votes": 0,
        "verdicts": 0,
        "unanimous": 0,
        "unscored": {},
    }


def test_errors_lead_to_the_calls(callgauge: Command, given: tuple[object, ...]) -> None:
    (group,) = callgauge("trials", *given, "--json").sets
    path = given[0]
    assert [(each["id"], each["reached"], each["missed"]) for each in group["subgoals"]] == [
        ("booked", 2, 3),
        ("agreed", 4, 1),
    ]
    assert group["subgoals"][1]["calls"] == [f"{path}:3"]
    assert group["stalls"] == [
        {"turn": 2, "calls": [f"{path}:4", f"{path}:5"]},
        {"turn": 1, "calls": [f"{path}:3"]},
    ]
    # The tool of the third turn fails after the stall.
    assert group["failed_tools"] == [
        {"tool": "book", "failures": 2, "calls": [f"{path}:4", f"{path}:5"]}
    ]
    text = callgauge("trials", *given)
    lines = [line.strip() for line in text.out.splitlines()]
    heads = ["Goal", "set", "Trials", "Success", "Progress"]
    assert lines[0].split() == [*heads, "pass@3", "pass^3", "pass@5", "pass^5", "Judges", "agree"]
    assert f"missed in 3 of 5: booked: {path}:3, {path}:4, {path}:5" in lines
    assert f"stalled in turn 2: 2 calls: {path}:4, {path}:5" in lines


def test_missed_tool_calls_are_counted_with_what_was_missed(
    callgauge: Command, given: tuple[object, ...], tmp_path: Path
) -> None:
    expected = [
        {"tool": "book", "turn": 1},
        {"tool": "book", "turn": 0, "expected_output": {"value": {"status": "error"}}},
        {"tool": "book", "turn": 2},
        {"tool": "book"},
    ]
    sets = write_goals(
        tmp_path / "tools.json", {**goals("any", SAYS_YES, BOOKS), "expected_tool_calls": expected}
    )
    path = given[0]
    (group,) = callgauge("trials", path, "--goals", sets, "--json").sets
    assert [
        (each["index"], each["turn"], each["made"], each["missed"], each["why"], each["unknown"])
        for each in group["expected_tool_calls"]
    ] == [
        (1, 1, 0, 5, {"name": 4, "output": 1}, {}),
        (0, 2, 3, 1, {"name": 1}, {"expected_turn_not_reached": 1}),
        (2, 3, 1, 1, {"name": 1}, {"expected_turn_not_reached": 3}),
        (3, None, 0, 0, {}, {"the goal set names no turn for it": 5}),
    ]
    assert group["expected_tool_calls"][1]["calls"] == [f"{path}:3"]
    lines = [line.strip() for line in callgauge("trials", path, "--goals", sets).out.splitlines()]
    assert [line for line in lines if "tool call" in line] == [
        "expected tool call missed in 5 of 5: book in turn 1 (not called 4, another output 1): "
        f"{path}:1, {path}:2, {path}:3 and 2 more",
        f"expected tool call missed in 1 of 5: book in turn 2 (not called 1): {path}:3",
        f"expected tool call missed in 1 of 5: book in turn 3 (not called 1): {path}:4",
    ]


def test_the_result_is_the_same_on_several_cores_and_from_rows(
    callgauge: Command, given: tuple[object, ...], tmp_path: Path
) -> None:
    expected = callgauge("trials", *given, "--json", "--processes", 1)
    assert callgauge("trials", *given, "--json", "--processes", 2) == expected
    for name, more in (("final.jsonl", ()), ("all.jsonl", ("--all",))):
        scores = tmp_path / name
        scores.write_text(callgauge("score", *given, *more).out)
        (group,) = callgauge("trials", scores, "--json").sets
        (recorded,) = expected.sets
        same = ("digest", "trials", "successes", "mean_progress", "pass", "judge")
        assert {key: group[key] for key in same} == {key: recorded[key] for key in same}
        assert [(each["conversation_id"], each["stall_turn"]) for each in group["calls"]] == [
            (each["conversation_id"], each["stall_turn"]) for each in recorded["calls"]
        ]
        assert group["calls"][2]["place"] == f"{scores} (silent)"


def test_recordings_with_the_same_id_are_trials_of_their_own(
    callgauge: Command, tmp_path: Path
) -> None:
    """Two runs of one dataset share ids, and their files of rows may be joined."""
    paths = [
        write_calls(tmp_path / f"{name}.jsonl", call("1.1", said))
        for name, said in (("a", "yes"), ("b", "no"))
    ]
    sets = write_goals(tmp_path / "goals.json", goals("any", SAYS_YES))
    (group,) = callgauge("trials", *paths, "--goals", sets, "--json").sets
    assert (group["trials"], group["successes"]) == (2, 1)
    joined = tmp_path / "joined.jsonl"
    joined.write_text("".join(callgauge("score", path, "--goals", sets).out for path in paths))
    (group,) = callgauge("trials", joined, "--json").sets
    assert (group["trials"], group["successes"]) == (2, 1)


def test_judges_that_disagree_and_fail_are_shown(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five votes each: all for the first call, three to two for the second, and no valid one for
    the third.
    """
    votes = {"one": "CCCCC", "two": "CICIC", "three": "XXXXX"}
    asked_about: dict[str, int] = dict.fromkeys(votes, 0)

    def scripted(asked: Asked) -> Does:
        name = next(name for name in votes if f"call {name}" in asked.user)
        letter = votes[name][asked_about[name] % 5]
        asked_about[name] += 1
        return Does(text="no grade at all") if letter == "X" else grades(letter)

    path = write_calls(tmp_path / "calls.jsonl", *(call(name, f"call {name}") for name in votes))
    asks_all = {"optimize_judge_trials": False, "max_retry_judge_trials": 0}
    sets = write_goals(tmp_path / "goals.json", goals("any", JUDGED) | asks_all)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with scripted_openai(scripted) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = callgauge("trials", path, "--goals", sets, "--judge", "on", "--json")
    (group,) = ended.sets
    assert ended.code == 0
    assert (group["trials"], group["successes"], group["unscored"]) == (
        3,
        2,
        {"invalid_answers": 1},
    )
    assert group["judge"] == {
        "agreement": pytest.approx(8 / 10),
        "votes": 10,
        "verdicts": 2,
        "unanimous": 1,
        "unscored": {"invalid_answers": 1},
    }
    assert group["success_rate"] == 1.0, "unknown is not zero"
    assert [each["unscored"] for each in group["calls"]] == [None, None, "invalid_answers"]


def test_a_k_above_the_number_of_trials_is_told_and_other_goal_sets_go_on(
    callgauge: Command, tmp_path: Path
) -> None:
    sets = write_goals(tmp_path / "goals.json", goals("few", SAYS_YES), goals("many", SAYS_YES))
    calls = [
        call(f"c{number}", "yes", goals="few" if number < 2 else "many") for number in range(5)
    ]
    ended = callgauge(
        "trials", write_calls(tmp_path / "c.jsonl", *calls), "--goals", sets, "--k", 3, "--json"
    )
    assert ended.code == 1
    few, many = ended.sets
    assert few["pass"] == [{"k": 3, "pass_at_k": None, "pass_hat_k": None}]
    assert many["pass"] == [{"k": 3, "pass_at_k": 1.0, "pass_hat_k": 1.0}]
    (told,) = ended.err.splitlines()
    assert told.startswith("Goal set few ")
    assert "known success, 2 of 2; seen --k 3" in told
    # No option asks for the default values of k.
    usual = callgauge("trials", tmp_path / "c.jsonl", "--goals", sets)
    assert (usual.code, usual.err) == (0, "")


def test_a_goal_set_that_changed_is_compared_by_its_digest(
    callgauge: Command, tmp_path: Path
) -> None:
    files = []
    for number, subgoals in enumerate([(SAYS_YES,), (SAYS_YES, BOOKS)]):
        calls = write_calls(
            tmp_path / f"calls{number}.jsonl", call(f"a{number}", "yes"), call(f"b{number}", "yes")
        )
        sets = write_goals(tmp_path / f"goals{number}.json", goals("any", *subgoals))
        files.append(tmp_path / f"scores{number}.jsonl")
        files[-1].write_text(callgauge("score", calls, "--goals", sets).out)
    ended = callgauge("trials", *files, "--json")
    assert ended.code == 0, "every call is compared"
    first, second = ended.sets
    digests = [
        GoalSet.model_validate(goals("any", *each)).digest
        for each in ((SAYS_YES,), (SAYS_YES, BOOKS))
    ]
    assert [first["digest"], second["digest"]] == digests
    assert (first["success_rate"], second["success_rate"]) == (1.0, 0.0)
    (told,) = ended.err.splitlines()
    assert told.startswith(
        "Goal set any changed between its trials: expected one content, seen 2 ("
    )
    assert "subgoals new: booked" in told


def test_what_cannot_be_read_is_named_and_the_others_go_on(
    callgauge: Command, tmp_path: Path
) -> None:
    sets = write_goals(tmp_path / "goals.json", goals("any", SAYS_YES))
    path = write_calls(tmp_path / "calls.jsonl", call("a", "yes"), call("b", "no"))
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{{\n{second}\n")
    ended = callgauge("trials", path, "--goals", sets, "--json")
    assert (ended.code, ended.sets[0]["trials"]) == (1, 2)
    assert f"{path}:2: this is not JSON" in ended.err

    scores = tmp_path / "scores.jsonl"
    lines = callgauge(
        "score", write_calls(path, call("a", "yes"), call("b", "no")), "--goals", sets
    ).out.splitlines()
    at = next(
        place for place, line in enumerate(lines) if '"row":"turn"' in line and '"reached":' in line
    )
    for broken in ("{", lines[at].replace('"turn":', '"turm":'), '{"row": []}'):
        scores.write_text("".join(f"{line}\n" for line in [*lines[:at], broken, *lines[at + 1 :]]))
        ended = callgauge("trials", scores, "--json")
        assert ended.code == 1
        assert [each["conversation_id"] for each in ended.sets[0]["calls"]] == ["b"]
        assert f"{scores}:{at + 1}: this line cannot be read" in ended.err
        assert "Left out: 1 call with rows that cannot be read." in ended.err


def test_nothing_to_compare_is_an_error(callgauge: Command, tmp_path: Path) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("a", "yes"))
    ended = callgauge("trials", path)
    assert (ended.code, ended.out) == (1, "")
    assert "There is nothing to compare" in ended.err
    assert "1 call without goals" in ended.err


def test_an_open_call_is_no_trial(callgauge: Command, tmp_path: Path) -> None:
    sets = write_goals(tmp_path / "goals.json", goals("any", SAYS_YES))
    calls = write_calls(tmp_path / "calls.jsonl", call("a", "yes"), call("b", "yes"))
    lines = callgauge("score", calls, "--goals", sets).out.splitlines()
    scores = tmp_path / "scores.jsonl"
    scores.write_text("".join(f"{line}\n" for line in lines[:-1]))
    ended = callgauge("trials", scores, "--json")
    assert (ended.code, ended.sets[0]["trials"]) == (0, 1)
    assert json.loads(ended.out)["left_out"] == {"not over": 1}


def test_a_webhook_without_a_call_is_no_trial(callgauge: Command, tmp_path: Path) -> None:
    """Among calls it is named and left out, and the command does not fail."""
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"type": "post_call_audio", "data": {}}))
    sets = write_goals(tmp_path / "goals.json", goals("any", SAYS_YES))
    calls = write_calls(tmp_path / "calls.jsonl", call("a", "yes"))
    ended = callgauge("trials", folder, calls, "--goals", sets, "--json")
    assert (ended.code, ended.sets[0]["trials"], json.loads(ended.out)["left_out"]) == (0, 1, {})
    assert "holds no call" in ended.err


def test_two_lots_are_compared_call_by_call(callgauge: Command, tmp_path: Path) -> None:
    """By hand: of four calls one reaches `agreed` only before, one `booked` only after, one both
    times; one has no partner.
    """
    sets = write_goals(tmp_path / "goals.json", goals("any", SAYS_YES, BOOKS))
    before = [
        call("a", "yes"),
        call("b", "yes", "book it"),
        call("c", "no"),
        call("d", "yes and book it"),
    ]
    after = [
        call("a", "no"),
        call("b", "yes", "book it"),
        call("c", "no", "book it"),
        call("e", "no"),
    ]
    lots = [tmp_path / "before.jsonl", tmp_path / "after.jsonl"]
    for path, calls in zip(lots, (before, after), strict=True):
        calls_of = write_calls(tmp_path / "calls.jsonl", *calls)
        path.write_text(callgauge("score", calls_of, "--goals", sets).out)
    ended = callgauge("trials", "--compare", *lots, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["calls_in_both"] == 3
    assert found["subgoals"] == [
        {"id": "agreed", "won": 0, "lost": 1},
        {"id": "booked", "won": 1, "lost": 0},
    ]
    assert found["flipped"] == [
        {
            "conversation_id": "a",
            "success": [False, False],
            "subgoals": [{"subgoal_id": "agreed", "is_won": False, "turn": 1, "quote": None}],
        },
        {
            "conversation_id": "c",
            "success": [False, False],
            "subgoals": [{"subgoal_id": "booked", "is_won": True, "turn": 2, "quote": None}],
        },
    ]
    progress = found["measures"]["progress"]
    assert (progress["before"], progress["after"], progress["is_paired"]) == (
        (0.5 + 1 + 0 + 1) / 4,
        (0 + 1 + 0.5 + 0) / 4,
        False,
    )
    assert (progress["low"], progress["high"]) == (None, None), "of four calls nobody can say"
    assert (progress["change"], progress["is_more_than_chance"]) == (
        progress["after"] - progress["before"],
        None,
    )
    success = found["measures"]["success"]
    assert success["low"] < success["change"] < success["high"]
    turns = found["measures"]["turns"]
    assert (turns["calls_before"], turns["calls_after"]) == (4, 4), (
        "a measure of the row of each call"
    )
    assert callgauge("trials", "--compare", *lots, "--json") == ended, "the intervals are seeded"
    text = callgauge("trials", "--compare", *lots).out
    assert "3 calls in both, 2 with another result." in text
    assert "  a: agreed lost (turn 1)" in text
    assert "  c: booked won (turn 2)" in text
    same = json.loads(callgauge("trials", "--compare", lots[0], lots[0], "--json").out)
    assert (same["flipped"], same["measures"]["success"]["is_paired"]) == ([], True)
    assert (same["measures"]["success"]["low"], same["measures"]["success"]["high"]) == (0.0, 0.0)


def test_recordings_that_are_compared_are_quoted(callgauge: Command, tmp_path: Path) -> None:
    lots = [
        write_calls(tmp_path / f"{name}.jsonl", call("a", said, "book it for jo@example.com"))
        for name, said in (("x", "no"), ("y", "yes, now"))
    ]
    sets = write_goals(tmp_path / "goals.json", goals("any", SAYS_YES, BOOKS))
    found = json.loads(callgauge("trials", "--compare", *lots, "--goals", sets, "--json").out)
    assert found["flipped"][0]["subgoals"] == [
        {
            "subgoal_id": "agreed",
            "is_won": True,
            "turn": 1,
            "quote": 'user: "yes, now"; assistant: "You said yes, now"',
        }
    ]
    lines = callgauge("trials", "--compare", *lots, "--goals", sets).out.splitlines()
    assert lines[-2:] == [
        "  a: success no to yes, agreed won (turn 1)",
        '    turn 1: user: "yes, now"; assistant: "You said yes, now"',
    ]
    assert "jo@example.com" not in str(found)


def test_two_goal_sets_of_one_name_are_compared_by_the_beginnings_of_their_digests(
    callgauge: Command, tmp_path: Path
) -> None:
    calls = write_calls(tmp_path / "calls.jsonl", call("a", "yes"), call("b", "no"))
    files, digests = [], []
    for number, subgoals in enumerate([(SAYS_YES,), (SAYS_YES, BOOKS)]):
        sets = write_goals(tmp_path / f"goals{number}.json", goals("any", *subgoals))
        files.append(tmp_path / f"scores{number}.jsonl")
        files[-1].write_text(callgauge("score", calls, "--goals", sets).out)
        digests.append(GoalSet.model_validate(goals("any", *subgoals)).digest[:8])
    found = json.loads(callgauge("trials", *files, "--compare", *digests, "--json").out)
    assert [each["success"] for each in found["flipped"]] == [[True, False]], (
        "a new subgoal is no flip of its own"
    )
    assert found["measures"]["success"] == {
        "before": 0.5,
        "after": 0.0,
        "calls_before": 2,
        "calls_after": 2,
        "change": -0.5,
        "low": -1.0,
        "high": 0.0,
        "is_paired": True,
        "is_more_than_chance": False,
    }
    ended = callgauge("trials", *files, "--compare", digests[0], "none")
    assert (ended.code, ended.out) == (1, "")
    assert f"seen no such trial among any {digests[0]}, any {digests[1]}" in ended.err
    assert "no such trial" in callgauge("trials", *files, "--compare", digests[0], "").err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--compare", "a", "b", "--k", "1"),
        ("calls.jsonl", "--from-topics"),
        ("calls.jsonl", "--since", "2h"),
        ("calls.jsonl", "--folder", "calls"),
        ("--from-topics", "--judge", "on"),
        ("--from-topics", "--since", "noon"),
        ("calls.jsonl", "--k", "0"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    callgauge: Command, arguments: tuple[Any, ...]
) -> None:
    ended = callgauge("trials", *arguments)
    assert (ended.code, ended.out) == (2, "")


def test_calls_of_the_history_are_compared_as_their_rows_are(
    callgauge: Command, given: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = tmp_path / "scores.jsonl"
    scores.write_text(callgauge("score", *given).out)
    rows = [decode(line) for line in scores.read_bytes().splitlines()]
    closed = next(row for row in rows if isinstance(row, CallRow))
    running = structs.replace(closed, conversation_id="running", state="running")
    store = SqliteHistory(tmp_path / "history", writes=True)
    store.write(Batch([*rows, running], [], {}))
    store.close()
    assert "there is no folder" in callgauge("trials", "--history").err
    monkeypatch.setenv("CALLGAUGE_HISTORY__FOLDER", str(tmp_path / "history"))
    past, filed = (
        json.loads(callgauge("trials", *those, "--json").out)
        for those in (["--history", "--since", "2000-01-01"], [scores])
    )
    assert past["left_out"] == {"not over": 1}
    monkeypatch.delenv("CALLGAUGE_HISTORY__FOLDER")
    there = ("--folder", tmp_path / "history", "--since", "2000-01-01", "--json")
    assert json.loads(callgauge("trials", "--history", *there).out) == past
    for found in (past, filed):
        for each in found["goal_sets"][0]["calls"]:
            del each["place"]
    assert sorted(map(str, past["goal_sets"][0].pop("calls"))) == sorted(
        map(str, filed["goal_sets"][0].pop("calls"))
    )
    assert past["goal_sets"][0]["pass"] == filed["goal_sets"][0]["pass"]
    assert callgauge("trials", "--history", "--from-topics").code == 2


def test_a_judge_that_never_answers_as_asked_is_shown_by_one_answer_and_fails(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("a", "yes"), call("b", "no"))
    sets = write_goals(tmp_path / "goals.json", goals("any", JUDGED))
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with scripted_openai(
        lambda _: Does(text="I think that jo@example.com is satisfied.")
    ) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = callgauge("score", path, "--goals", sets, "--judge", "on")
    assert (ended.code, "invalid_answers" in ended.out) == (1, True), "what is known is printed"
    assert "seen, for example: 'I think that [EMAIL] is satisfied.'" in ended.err
    assert "Expected one JSON object by the schema" in ended.err
