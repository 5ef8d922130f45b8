"""The healthy agent meets its objectives, and each incident troubles one agent, in its own way,
while it lasts.
"""

import dataclasses
import random
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import get_args

import pytest

from streamer.sources.simulator.plan import CallPlan, PlannedTurn, plan_call
from streamer.sources.simulator.profile import (
    AGENTS,
    AWKWARD,
    DOMAINS,
    HEALTHY,
    Incident,
    IncidentName,
    ProfileOf,
    always,
    with_incidents,
)
from streamer.sources.simulator.traffic import simulate_call

START_MS = 1_795_000_000_000
CALLS = 400
TROUBLED = "airline-rebooking"


def plans(profile_of: ProfileOf, calls: int = CALLS) -> list[CallPlan]:
    return [
        plan_call(
            random.Random(seed),  # noqa: S311 - play, not secrets
            conversation_id=f"c-{seed}",
            start_ms=START_MS,
            kind="phone",
            profile_of=profile_of,
        )
        for seed in range(calls)
    ]


@cache
def troubled(name: IncidentName) -> tuple[CallPlan, ...]:
    """Calls of the troubled agent."""
    made = plans(with_incidents(HEALTHY, [Incident(name, TROUBLED)]))
    return tuple(plan for plan in made if plan.agent == TROUBLED)


def asked(plans_made: Iterable[CallPlan]) -> list[PlannedTurn]:
    return [turn for plan in plans_made for turn in plan.turns if turn.user is not None]


def wait_ms(turn: PlannedTurn) -> int | None:
    spoken = next((step.speech for step in turn.steps if step.speech), None)
    return None if spoken is None or turn.user is None else spoken.start_ms - turn.user.end_ms


def waits_ms(plans_made: Iterable[CallPlan]) -> list[int]:
    return sorted(wait for turn in asked(plans_made) if (wait := wait_ms(turn)) is not None)


def share(turns: list[PlannedTurn], awkward: str) -> float:
    return sum(turn.awkward == awkward for turn in turns) / len(turns)


def test_the_healthy_agent_meets_its_objectives() -> None:
    made = plans(always(HEALTHY))
    waits = waits_ms(made)
    assert waits[int(0.95 * len(waits))] < 1_400  # the objective is 1.5 s
    assert waits[len(waits) // 2] < 1_100
    assert min(wait for wait in waits if wait > 0) > 660  # see the profile
    assert share(asked(made), "dead_air") < 0.005
    assert sum(wait_ms(turn) is None for turn in asked(made)) / len(asked(made)) < 0.005
    assert any(plan.features for plan in made)  # not flawless either


def test_the_awkward_one_does_not() -> None:
    waits = waits_ms(plans(always(AWKWARD)))
    assert waits[len(waits) // 2] > 1_500


@pytest.mark.parametrize("name", get_args(IncidentName))
def test_an_incident_leaves_other_agents_and_other_times_alone(name: IncidentName) -> None:
    ended = Incident(name, TROUBLED, ends_ms=START_MS)
    later = Incident(name, TROUBLED, begins_ms=START_MS + 3_600_000)
    usual = plans(always(HEALTHY), 60)
    assert plans(with_incidents(HEALTHY, [ended, later]), 60) == usual
    now = plans(with_incidents(HEALTHY, [Incident(name, TROUBLED)]), 60)
    for plan, before in zip(now, usual, strict=True):
        assert (plan == before) == (plan.agent != TROUBLED or name == "source_silent")


def test_an_incident_meets_calls_that_have_begun() -> None:
    begins_ms = START_MS + 30_000
    (plan,) = plans(with_incidents(HEALTHY, [Incident("llm_slow", begins_ms=begins_ms)]), 1)
    by_onset: dict[bool, list[int]] = {False: [], True: []}
    for turn in asked([plan]):
        if (wait := wait_ms(turn)) is not None and turn.user is not None:
            by_onset[turn.user.start_ms > begins_ms].append(wait)
    assert max(by_onset[False]) < 3_000
    assert min(by_onset[True]) > 5_000


def test_slow_services_add_their_time() -> None:
    usual = mean(waits_ms(plans(always(HEALTHY))))
    assert mean(waits_ms(troubled("llm_slow"))) > usual + 4_500
    for name in ("tts_slow", "stt_slow"):
        assert usual + 1_300 < mean(waits_ms(troubled(name))) < usual + 1_800
    tts, stt = asked(troubled("tts_slow")), asked(troubled("stt_slow"))
    assert (
        mean(
            turn.heard_ms - turn.user.end_ms
            for turn in tts
            if turn.user and turn.heard_ms > turn.user.end_ms
        )
        < 400
    )
    assert (
        mean(
            turn.heard_ms - turn.user.end_ms
            for turn in stt
            if turn.user and turn.heard_ms > turn.user.end_ms
        )
        > 1_500
    )


def test_dead_air_is_in_a_fifth_of_the_turns() -> None:
    assert 0.15 < share(asked(troubled("dead_air")), "dead_air") < 0.4


def test_a_mute_agent_answers_nobody_and_callers_ask_and_hang_up() -> None:
    for plan in troubled("agent_mute"):
        assert [len(turn.steps) for turn in plan.turns] == [1, 0, 0, 0]  # a greeting, then silence
        assert plan.ended_reason == "user_hung_up"
        spoken = [turn.user for turn in plan.turns if turn.user]
        assert all(
            4_000 < after.start_ms - before.end_ms < 10_000 for before, after in pairwise(spoken)
        )


def test_an_agent_talks_over_its_callers() -> None:
    assert share(asked(troubled("talks_over")), "assistant_interruption") > 0.25


def test_no_tool_works() -> None:
    runs = [
        step.tool
        for turn in asked(troubled("tool_backend_fails"))
        for step in turn.steps
        if step.tool
    ]
    assert runs
    assert all(run.failed for run in runs)


def test_callers_hang_up_after_one_or_two_turns() -> None:
    assert {len(asked([plan])) for plan in troubled("callers_hang_up")} == {1, 2}


def test_callers_may_want_all_that_there_is() -> None:
    usual = dataclasses.replace(HEALTHY, features={}, endings=(1, 0, 0, 0), fewest_exchanges=9)
    said = {(plan.agent, len(asked([plan]))) for plan in plans(always(usual), 60)}
    assert said == {(domain.agent, len(domain.exchanges) + 1) for domain in DOMAINS}


def test_a_confused_agent_uses_no_tool_and_lets_callers_repeat() -> None:
    for plan in troubled("stall_after_deploy"):
        first, again = asked([plan])[:2]
        assert first.user is not None
        assert again.user is not None
        assert first.user.text == again.user.text
        assert not any(step.tool for turn in plan.turns[:-1] for step in turn.steps)


def test_a_silent_source_sends_nothing() -> None:
    silent = with_incidents(HEALTHY, [Incident("source_silent")])
    for seed in range(20):
        call = simulate_call(seed, start_ms=START_MS, profile_of=silent).call
        assert call.audit is None
        assert call.pipecat


def test_agents_are_those_of_the_calls() -> None:
    assert {plan.agent for plan in plans(always(HEALTHY), 60)} == set(AGENTS)
