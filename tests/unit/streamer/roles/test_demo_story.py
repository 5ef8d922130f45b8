"""The story of the demo: its steps come in time, its calls are those of the version that is
deployed, and the calls of the last two days say which version is worse.
"""

import dataclasses
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.limits import GoalRules, Limits
from consumers.history.sqlite import SqliteHistory
from schemas.rows import GoalsRow, number
from schemas.scores.trouble import bad_end
from schemas.units import DAY_MS, HOUR_MS
from streamer.cli.demo import DEMO_SEED
from streamer.goals.files import SIMULATED_GOALS
from streamer.history.comparison import lots_compared, lots_in, newest_pairs
from streamer.history.importing import imported
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.offline.scoring import scored as scored_by
from streamer.recordings.reader import read_recorded_goals
from streamer.roles.demo import HEAD_START_MS, keep
from streamer.roles.demo_story import (
    BAD,
    GOOD,
    IN_TROUBLE,
    LAST_DAYS,
    LINES,
    PRICES,
    STORY,
    TRIED,
    TRIED_BY,
    USUAL_VERSION,
    Step,
    _as_deployed,
    last_days,
    live_calls,
    tell,
)
from streamer.sources.simulator.profile import DOMAINS
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call
from tests.support.calls.rows_of_calls import call_of, turns_of

STORY_MS = 1_790_000_000_000
SETS = read_recorded_goals(SIMULATED_GOALS)
PLAN = ScoringPlan(Limits(prices=PRICES), GoalRules(), "test", sets=SETS)


def scored(simulated: SimulatedCall) -> RecordedScoring:
    return scored_by(simulated.call, PLAN)


def at(step_seconds: float) -> int:
    return STORY_MS + round(step_seconds * 1_000)


# Its steps.


def test_the_story_begins_well_goes_wrong_and_ends_well() -> None:
    times = [step.at_seconds for step in STORY]
    assert times == sorted(set(times))
    assert (times[0], times[1]) == (0, 25)
    assert STORY[0].sentence.endswith(f"comes in {times[1]} s.")
    assert times[-1] <= 5 * 60, "a visitor stays for three to five minutes"
    assert [step.version for step in STORY] == [GOOD, BAD, BAD, GOOD, GOOD]
    assert STORY[0].trouble is STORY[-1].trouble is None
    assert all(step.view.startswith(("?", "versions")) or not step.view for step in STORY)


class Watch:
    """A clock that goes only while somebody sleeps."""

    def __init__(self, now_seconds: float) -> None:
        self.now_seconds = now_seconds

    def __call__(self) -> float:
        return self.now_seconds

    async def sleep(self, seconds: float) -> None:
        self.now_seconds += seconds


@pytest.mark.parametrize("late_seconds", [0.0, 3.5, 100.0])
async def test_each_step_is_said_when_it_is_due_and_a_late_one_at_once(
    late_seconds: float,
) -> None:
    watch = Watch(1_000.0 + late_seconds)
    said: list[tuple[float, Step]] = []
    await tell(
        lambda step: said.append((watch() - 1_000, step)), 1_000.0, clock=watch, sleep=watch.sleep
    )
    assert said == [(max(late_seconds, step.at_seconds), step) for step in STORY]


# Its calls.


@pytest.mark.parametrize("lines", [1, 6, 12, 20])
def test_calls_get_the_version_that_is_deployed_when_they_begin(lines: int) -> None:
    calls = list(islice(live_calls(7, lines, at(-60), STORY_MS), 8 * lines))
    offsets_ms = [call.start_offset_ms for call in calls]
    assert offsets_ms == sorted(offsets_ms)
    seen = set()
    for call in calls:
        started = json.loads(call.events[0].value)
        assert call.events[0].arrival_ms == at(-60) + call.start_offset_ms
        since_seconds = call.start_offset_ms / 1_000 - 60
        is_bad = STORY[1].at_seconds <= since_seconds < STORY[3].at_seconds
        if started["agent"] == IN_TROUBLE:
            assert started["version"] == (BAD if is_bad else GOOD), since_seconds
        seen.add((started["agent"], started["tenant"], started["version"]))
    others = {tuple(line) for line in LINES[:lines] if line.version is not None}
    assert {each for each in seen if each[0] != IN_TROUBLE} == others
    assert {version for agent, _, version in seen if agent == IN_TROUBLE} == {GOOD, BAD}


def deployed(start_seconds: float, seed: int) -> SimulatedCall:
    """A call of the agent in trouble that begins then."""
    facts = _as_deployed(LINES[0], STORY_MS, at(start_seconds))
    return simulate_call(
        seed, start_ms=at(start_seconds), agents=(IN_TROUBLE,), kind="phone", **facts
    )


def waits_ms(simulated: SimulatedCall) -> list[float]:
    rows = turns_of(scored(simulated).rows).values()
    return [wait for row in rows if (wait := number(row.wait_ms)) is not None]


def test_the_bad_version_is_slow_then_mute_and_the_good_one_well_beside_it() -> None:
    seeds = range(8)
    slow = [wait for seed in seeds for wait in waits_ms(deployed(26, seed))[:2]]
    assert min(slow) > 4_000
    for seed in seeds:
        mute = call_of(scored(deployed(100, seed)).rows)
        assert bad_end(mute) is not None
        assert mute.unanswered >= 1
        begun_mute = call_of(scored(deployed(70, seed)).rows)
        assert bad_end(begun_mute) is not None, "it meets calls that have begun"
    for start_seconds in (-30, 20, 151, 270):
        well = [wait for seed in seeds for wait in waits_ms(deployed(start_seconds, seed))]
        assert sorted(well)[len(well) * 9 // 10] < 1_500, start_seconds


def test_the_head_start_of_the_demo_is_well_and_has_something_of_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head: list[SimulatedCall] = []

    def remembered(*arguments: Any, **options: Any) -> SimulatedCall:
        head.append(simulate_call(*arguments, **options))
        return head[-1]

    monkeypatch.setattr("streamer.sources.simulator.traffic.simulate_call", remembered)
    list(islice(live_calls(DEMO_SEED, 12, STORY_MS - HEAD_START_MS, STORY_MS), 12))
    rows = [row for call in head[:12] for row in scored(call).rows if not isinstance(row, GoalsRow)]
    shown = [row for row in rows if row.known_ms < STORY_MS]
    seen = Counter(name.partition(".")[0] for row in shown for name in row.news)
    assert {row.labels.agent for row in shown} == {line.agent for line in LINES}
    assert seen["wait"] >= 10
    assert seen["subgoal"] >= 5
    assert seen["interruption"] >= 1
    assert seen["dead_air"] == 0


# The last two days.


def test_past_calls_are_of_the_last_day_and_named() -> None:
    calls = list(last_days(DEMO_SEED, STORY_MS))
    began_ms = [each.call.control[0]["timestamp"] for each in calls]
    assert began_ms == sorted(began_ms)
    assert STORY_MS - 50 * HOUR_MS < began_ms[0] < STORY_MS - 2 * DAY_MS + HOUR_MS
    assert began_ms[-1] < STORY_MS
    found = Counter(
        tuple(each.call.control[0][name] for name in ("agent", "tenant", "version"))
        for each in calls
    )
    wanted: Counter[tuple[str, ...]] = Counter()
    for lot in LAST_DAYS:
        wanted[lot.agent, lot.tenant, lot.version] += lot.calls
    assert found == wanted
    assert found.total() == 200
    assert not any((agent, version) == (IN_TROUBLE, BAD) for agent, _, version in found), (
        "it is deployed later"
    )


def test_an_agent_greets_with_the_name_of_its_tenant() -> None:
    greetings = {domain.agent: domain.greeting.casefold() for domain in DOMAINS}
    tenants = {(line.agent, line.tenant) for line in LINES}
    tenants |= {(lot.agent, lot.tenant) for lot in LAST_DAYS}
    several = [each for each in sorted(tenants) if each[0] in {IN_TROUBLE, TRIED_BY}]
    assert len(several) == 4
    for agent, tenant in several:
        assert tenant.partition("-")[0] in greetings[agent]


def test_the_bad_version_was_slower_and_reached_its_goals_less_often(tmp_path: Path) -> None:
    of_agent = [
        (each.call.control[0]["version"], each)
        for each in last_days(DEMO_SEED, STORY_MS)
        if each.call.control[0]["agent"] == TRIED_BY
    ]
    some = [each for version, each in of_agent if version == TRIED]
    some += [each for version, each in of_agent if version == USUAL_VERSION][::3]
    scorings = [scored(each) for each in some]
    store = SqliteHistory(tmp_path / "history", writes=True)
    keep(store, [imported(each) for each in scorings])
    ((a, b),) = newest_pairs(lots_in(store, 0, STORY_MS))
    compared = lots_compared(store, (a, b), STORY_MS)
    store.close()
    assert (a.version, b.version) == (USUAL_VERSION, TRIED)
    verdict = compared.verdict()
    assert "slower by 1." in verdict
    assert "ends badly more often" in verdict
    assert "goals worse by" in verdict
    assert verdict.count("[") >= 2, "with intervals"


def test_every_kind_of_call_has_a_cost() -> None:
    costs = [
        call_of(scored(simulate_call(seed, start_ms=STORY_MS, kind=kind)).rows).cost_dollars
        for seed in range(4)
        for kind in ("phone", "cascade", "audio_llm", "s2s")
    ]
    assert all(isinstance(cost, float) and cost > 0 for cost in costs), costs
    without = dataclasses.replace(PLAN, limits=Limits())
    call = simulate_call(0, start_ms=STORY_MS, kind="phone").call
    assert not isinstance(call_of(scored_by(call, without).rows).cost_dollars, float)
