"""How far a recorded real call gets, as a user would see it: goals in a folder, `run` here,
`replay` there, and `score`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.closed_sets import UnscoredReason
from schemas.rows import Goals, GoalsRow, Progress, Row, TurnRow, Unscored, Value, decode
from tests.integration.metrics_page import total
from tests.integration.processes import ran, started, wait_for
from tests.integration.score_log import written_rows
from tests.support.calls.rows_of_calls import call_of, newest, turns_of
from tests.support.conformance_data import RECORD, needs_conformance
from tests.support.fakes.scripted_openai import Asked, Does, grades, scripted_openai

DATASET_RECORD = RECORD / "dataset_record.json"
CHECKED_BY_CODE = """
id: desk
agents: [desk]
subgoals:
  - id: authenticated
    details: The reservation is found.
    check: {kind: tool_result, tool: get_reservation, outcome: success}
  - id: searched
    details: Flights on the new day are looked up.
    check: {kind: tool_called, tool: search_rebooking_options, arguments: {date: "2026-03-25"}}
  - id: cost-told
    details: The assistant names a total below the caller's limit.
    check: {kind: says, speaker: assistant, pattern: "one hundred fifteen dollars"}
  - id: rebooked-at-the-window
    details: The flight is changed, and a seat at the window is theirs.
    check:
      kind: all_of
      checks:
        - {kind: tool_result, tool: rebook_flight, arguments: {new_journey_id: FL_SK703_20260325}, outcome: success}
        - {kind: tool_result, tool: assign_seat, result: {seat_assigned: {matches: "[AF]$"}}}
"""
REACHED = [0, 0, 1, 2, 2, 3, 3, 4, 4, 4]
"""Subgoals of that set that are reached after each turn of the call."""
BOOKED = 8
"""The turn in which all that the dataset record asks for is done."""
ASKED = 4 * BOOKED * 3
"""Each of its subgoals, in each turn up to that one, by the three trials that make a majority of
five.
"""

pytestmark = [
    needs_conformance(RECORD.name),
    pytest.mark.service(limits__closing_grace_ms="1500", judge__enabled="false"),
]


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """With both goal sets in a folder, and without a key for a judge."""
    folder = tmp_path / "goals"
    folder.mkdir()
    (folder / "desk.yaml").write_text(CHECKED_BY_CODE)
    (folder / "1.1.2.json").write_bytes(DATASET_RECORD.read_bytes())
    return {**environment, "CALLGAUGE_GOALS__FOLDER": str(folder)}


@pytest.fixture
def service(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of the metrics of a `callgauge run`."""
    with started(tmp_path / "run.log", "run", **environment) as process:
        yield process.metrics()


def wait_for_the_end(address: str) -> None:
    wait_for(
        "the call to be closed", lambda: total(address, "callgauge_calls_ended_total") == 1, 40
    )


def finals(rows: list[Row]) -> tuple[dict[int, Progress | None], Goals | None, GoalsRow | None]:
    """The results of goals when the call is over."""
    call, turns, goals = newest(rows)
    # Rows of the topic have another id, and come from a later revision: they hold the same set.
    the_set = None if goals is None else replace(goals, revision=0, conversation_id="")
    # Whether a call stalls is a matter of the time in which it came.
    of_call = None if call.goals is None else replace(call.goals, stalls=())
    return {row.turn: row.progress for row in turns}, of_call, the_set


def scored_offline(*arguments: str, environment: Mapping[str, str]) -> list[Row]:
    printed = ran("score", str(RECORD), *arguments, **environment)
    return [decode(line.encode()) for line in printed.splitlines() if line.startswith("{")]


def progress_by_turn(rows: list[Row]) -> dict[int, Value]:
    return {
        number: turn.progress.result
        for number, turn in turns_of(rows).items()
        if turn.progress is not None
    }


async def test_progress_checked_by_code_is_seen_while_the_call_runs(
    service: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with started(
        tmp_path / "replay.log",
        "replay",
        str(RECORD),
        "--speed",
        "20",
        "--agent",
        "desk",
        **environment,
    ):
        wait_for(
            "the call to be on its way",
            lambda: 0 < total(service, "callgauge_progress_active") < 1,
            40,
        )
        wait_for("all to be reached", lambda: total(service, "callgauge_progress_active") == 1, 40)
        assert (
            total(service, "callgauge_calls_with_goals_active", agent="desk", progress="known") == 1
        )
        assert total(service, "callgauge_calls_ended_total") == 0, "the call still runs"
        wait_for_the_end(service)
    assert total(service, "callgauge_subgoals_total", agent="desk", checked_by="code") == 4
    assert total(service, "callgauge_subgoals_reached_total", agent="desk", checked_by="code") == 4
    assert total(service, "callgauge_call_progress_ratio_count", agent="desk") == 1
    assert total(service, "callgauge_call_progress_ratio_sum", agent="desk") == 1

    written = await written_rows(environment)
    last = max(
        (turn for turn in turns_of(written).values() if turn.progress is not None),
        key=lambda turn: turn.turn,
    )
    assert last.progress is not None
    for name, result in (("auc", last.progress.auc), ("ppt", last.progress.ppt)):
        assert isinstance(result, float)
        assert total(service, f"callgauge_call_{name}_ratio_sum", agent="desk") == result
    assert progress_by_turn(written) == {turn: count / 4 for turn, count in enumerate(REACHED, 1)}
    live: dict[int, int] = {}
    for row in written:
        if isinstance(row, TurnRow) and row.progress is not None and row.status == "provisional":
            live.setdefault(row.turn, row.progress.reached)
    assert [*live.values()][:3] == [0, 0, 1], "each turn was scored when it was left"
    (fact,) = [row for row in written if isinstance(row, GoalsRow)]
    goals = call_of(written).goals
    assert goals is not None
    assert (fact.goal_set["id"], fact.digest) == ("desk", goals.digest)

    options = ("--goals", f"{environment['CALLGAUGE_GOALS__FOLDER']}/desk.yaml", "--agent", "desk")
    assert finals(scored_offline(*options, environment=environment)) == finals(written)
    shuffled = scored_offline(*options, "--arrival", "5", environment=environment)
    assert finals(shuffled) == finals(written)


async def test_without_a_judge_the_dataset_record_s_goals_are_unscored(
    service: str, environment: dict[str, str]
) -> None:
    ran("replay", str(RECORD), "--speed", "max", "--goals", "{id}", **environment)
    wait_for_the_end(service)
    written = await written_rows(environment)
    unscored = Unscored(UnscoredReason.JUDGE_DISABLED)
    assert progress_by_turn(written) == dict.fromkeys(range(1, 11), unscored)
    assert total(service, "callgauge_subgoals_unscored_total", reason="judge_disabled") == 4
    assert total(service, "callgauge_call_progress_ratio_count") == 0
    goals = ("--goals", str(DATASET_RECORD))
    assert finals(scored_offline(*goals, environment=environment)) == finals(written)


def strict(asked: Asked) -> Does:
    """Grades by the facts of the call about the new flight: its booking, its arrival, the price,
    and the seat.
    """
    call, _, subgoal = asked.user.partition("\nSubgoal: ")
    needed = {
        "New travel date": "new_journey_id",
        "Arrival time": "arrives at nine twenty-five",
        "Total out-of-pocket": "I charged a total",
        "After rebooking": "seat_assigned",
    }
    proof = next(
        proof for beginning, proof in needed.items() if subgoal.startswith(f'"{beginning}')
    )
    return grades("C" if proof in call else "I", delay_seconds=0.01)


async def test_a_judge_scores_the_dataset_record_s_goals_turn_by_turn(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with scripted_openai(strict) as server:
        judged = {
            **environment,
            "CALLGAUGE_JUDGE__ENABLED": "true",
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": server.url,
            # The tools of this call answer at length: the judge reads more than the usual limits
            # allow at once.
            "CALLGAUGE_JUDGE__MAX_TOKENS_PER_MINUTE": "100000000",
            "CALLGAUGE_JUDGE__BUDGET_PER_CALL": "1000",
            "CALLGAUGE_JUDGE__BUDGET_PER_AGENT_HOUR": "1000",
            "CALLGAUGE_JUDGE__BUDGET_PER_HOUR": "1000",
        }
        with started(tmp_path / "run.log", "run", **judged) as process:
            address = process.metrics()
            ran("replay", str(RECORD), "--speed", "max", "--goals", "{id}", **judged)
            wait_for_the_end(address)
            requests = len(server.asked)
            assert total(address, "callgauge_judge_requests_total", outcome="answered") == requests
            assert total(address, "callgauge_subgoals_reached_total", checked_by="judge") == 4
        written = await written_rows(environment)
        assert progress_by_turn(written) == {turn: float(turn >= BOOKED) for turn in range(1, 11)}
        goals = ("--goals", str(DATASET_RECORD), "--judge", "on")
        assert finals(scored_offline(*goals, environment=judged)) == finals(written)
        assert len(server.asked) - requests == ASKED <= requests, (
            "live, a turn is judged again when words of it come late"
        )
