"""The demo's goals fit its calls: they are valid, every one can be reached, and they progress soon."""

from collections import Counter

import pytest
from pydantic import SecretStr

from consumers.engine.limits import GoalRules, Limits
from consumers.judge.settings import JudgeSettings
from schemas.goals.goal_set import GoalSet
from schemas.scores.records import ClosedFact, DeadAirFact, InterruptionFact, SubgoalScore, VoiceToVoiceLatency
from streamer.cli.demo import DEMO_SEED
from streamer.goals.files import goal_files_of, read_goal_file
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.reader import read_recorded_goals
from streamer.roles.demo import GOALS_FOLDER, HEAD_START_MS, IN_TROUBLE, _with_goals
from streamer.roles.demo_view import VERY_SLOW_MS
from streamer.settings.all_settings import GoalSettings, Settings
from streamer.sources.simulator.plan import SIMULATED_KINDS
from streamer.sources.simulator.profile import DOMAINS, HEALTHY, Incident, with_incidents
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call, simulated_traffic

T0_MS = 1_790_000_000_000
AGENTS = {domain.agent for domain in DOMAINS}
CALLS_LOOKED_AT = 200


def sets_in(folder: str) -> dict[str, GoalSet]:
    files = [read_goal_file(path) for path in goal_files_of(GOALS_FOLDER / folder)]
    assert [str(mistake) for file in files for mistake in file.mistakes] == []
    return {placed.goals.id: placed.goals for file in files for placed in file.sets}


def scored(simulated: SimulatedCall, seed: int | None = None) -> RecordedScoring:
    plan = ScoringPlan(Limits(), GoalRules(), "test", seed)
    scoring = RecordedScoring(simulated.call, plan, read_recorded_goals(GOALS_FOLDER).of(simulated.call))
    assert list(scoring.run(lambda: None)) == [], "code checks all of it"
    return scoring


def test_there_are_goals_for_every_agent_and_code_checks_them() -> None:
    sets = sets_in("")
    assert {agent for goals in sets.values() for agent in goals.agents} == AGENTS
    assert not any(subgoal.is_judged for goals in sets.values() for subgoal in goals.subgoals)


def test_with_a_judge_there_is_one_subgoal_more() -> None:
    plain, judged = sets_in(""), sets_in("judged")
    assert plain.keys() == judged.keys()
    for name, goals in judged.items():
        *checked, last = goals.subgoals
        assert tuple(checked) == plain[name].subgoals
        assert last.is_judged
        assert goals.agents == plain[name].agents


def test_every_subgoal_is_reached_by_some_calls_and_not_by_others() -> None:
    reached: Counter[tuple[str, str]] = Counter()
    looked_at: Counter[str] = Counter()
    for seed in range(CALLS_LOOKED_AT):
        scoring = scored(simulate_call(seed, start_ms=T0_MS, kind=SIMULATED_KINDS[seed % 3]))
        assert scoring.goal_set is not None
        looked_at[scoring.goal_set.id] += 1
        for record in scoring.final_records():
            if isinstance(record, SubgoalScore) and record.reached_turn is not None:
                reached[scoring.goal_set.id, record.subgoal_id] += 1
    assert looked_at.keys() == AGENTS
    for name, goals in sets_in("").items():
        for subgoal in goals.subgoals:
            assert 0 < reached[name, subgoal.id] <= looked_at[name], (name, subgoal.id)
        assert reached[name, goals.subgoals[-1].id] < looked_at[name], "not every call gets everything"


def test_the_head_start_of_the_demo_has_something_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[SimulatedCall] = []

    def remembered(*arguments: int, **options: int) -> SimulatedCall:
        first.append(simulate_call(*arguments, **options))  # type: ignore[arg-type]  # passed on as they came
        return first[-1]

    monkeypatch.setattr("streamer.sources.simulator.traffic.simulate_call", remembered)
    trouble = with_incidents(HEALTHY, [Incident("llm_slow", IN_TROUBLE)])
    list(simulated_traffic(DEMO_SEED, concurrent_calls=6, start_ms=T0_MS, limit=8, profile_of=trouble))
    assert {call.call.control[0]["agent"] for call in first} == set(AGENTS)
    seen: Counter[type] = Counter()
    slow = set()
    for call in first:
        for record in scored(call).records:
            if record.caused_at_ms < T0_MS + HEAD_START_MS and record.revision == 1:
                seen[type(record)] += not isinstance(record, SubgoalScore) or record.reached_turn is not None
                if isinstance(record, VoiceToVoiceLatency) and getattr(record.result, "value", 0) > VERY_SLOW_MS:
                    slow.add(record.labels.agent)
    assert seen[VoiceToVoiceLatency] >= 10
    assert seen[SubgoalScore] >= 5
    assert min(seen[kind] for kind in (InterruptionFact, DeadAirFact, ClosedFact)) >= 1
    assert slow == {IN_TROUBLE}


@pytest.mark.parametrize(
    ("api_key", "enabled", "folder"), [(None, True, ""), ("key", True, "judged"), ("key", False, "")]
)
def test_the_judge_is_switched_on_by_a_key(api_key: str | None, enabled: bool, folder: str) -> None:
    judge = JudgeSettings(api_key=None if api_key is None else SecretStr(api_key), enabled=enabled)
    given = Settings(judge=judge, goals=GoalSettings(reads_topic=True, trials=3))
    goals = _with_goals(given).goals
    assert (goals.folder, goals.reads_topic, goals.trials) == (GOALS_FOLDER / folder, False, 3)
    assert _with_goals(given).goal_rules(["evaluator", "judge"]).asks_judge is (folder == "judged")
