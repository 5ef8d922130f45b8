"""Simulated calls are the same for the same seed, have the shapes of real ones, and reach the
demo's goals.
"""

import dataclasses
import hashlib
import itertools
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from consumers.engine.limits import GoalRules, Limits
from consumers.judge.settings import JudgeSettings
from schemas.goals.goal_set import GoalSet
from streamer.goals.files import SIMULATED_GOALS, goal_files_of, read_goal_file
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.reader import read_recorded_goals
from streamer.roles.demo import own_settings
from streamer.settings.all_settings import GoalSettings, Settings
from streamer.sources.replay import RECORD_TYPES, WireEvent
from streamer.sources.simulator.plan import SIMULATED_KINDS, CallKind
from streamer.sources.simulator.profile import DOMAINS
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call, simulated_traffic
from tests.support.calls.rows_of_calls import call_of

with warnings.catch_warnings():
    # pipecat imports audioop, which leaves Python in 3.13
    warnings.simplefilter("ignore", DeprecationWarning)
    from pipecat.observers.function_call_observer import FunctionCallEvent, FunctionCallEventKind
    from pipecat.observers.service_metrics_observer import ServiceLatencyRecord, ServiceUsageRecord
    from pipecat.observers.speaking_observer import SpeechEvent, SpeechEventKind
    from pipecat.observers.user_bot_latency_observer import LatencyBreakdown
    from pipecat.processors.aggregators.llm_response_universal import (
        AssistantTurnStoppedMessage,
        UserTurnStoppedMessage,
    )

START_MS = 1_795_000_000_000
SEEDS = range(400)


@pytest.fixture(scope="module")
def calls() -> list[SimulatedCall]:
    return [simulate_call(seed, start_ms=START_MS) for seed in SEEDS]


def is_phone(simulated: SimulatedCall) -> bool:
    return simulated.call.elevenlabs is None


def kind_of(simulated: SimulatedCall) -> str:
    return "phone" if is_phone(simulated) else simulated.call.pipeline_type


def records(simulated: SimulatedCall, kind: str) -> Iterator[dict[str, Any]]:
    return (event["data"] for event in simulated.call.pipecat or () if event["type"] == kind)


def test_the_seed_decides_every_byte() -> None:
    first, again = (list(simulate_call(7, start_ms=START_MS).wire_events()) for _ in range(2))
    assert first == again
    assert first != list(simulate_call(8, start_ms=START_MS).wire_events())
    later = simulate_call(7, start_ms=START_MS + 5000)
    assert [event.arrival_ms - 5000 for event in later.wire_events()] == [
        event.arrival_ms for event in first
    ]


def test_the_awkward_calls_are_the_same_in_every_version(calls: list[SimulatedCall]) -> None:
    """Benchmarks, chaos runs and many tests depend on them. Change them only for a reason, with the
    digest.

    They are all difficulties as real calls have them: late, repeated and missing events,
    interruptions both ways, slow tools, texts that come seconds after the sound. Whoever changes
    the simulator looks at these calls before and after.
    """
    digest = hashlib.sha256()
    for event in itertools.chain.from_iterable(call.wire_events() for call in calls):
        digest.update(f"{event.source} {event.sequence} {event.arrival_ms} ".encode() + event.value)
    assert digest.hexdigest() == "02b8065a2d4d704949a59d433b5ea7d923d052ffd08c1a501c1df7ea85a0c24e"


@pytest.mark.parametrize("kind", ["phone", "cascade", "audio_llm", "s2s"])
def test_a_kind_can_be_asked_for(kind: CallKind) -> None:
    assert {kind_of(simulate_call(seed, start_ms=START_MS, kind=kind)) for seed in range(20)} == {
        kind
    }


def test_about_half_are_phone_calls_and_every_awkward_thing_happens(
    calls: list[SimulatedCall],
) -> None:
    kinds = Counter(map(kind_of, calls))
    assert 0.4 < kinds["phone"] / len(calls) < 0.6
    assert set(kinds) == {"phone", "cascade", "audio_llm", "s2s"}
    assert set().union(*(call.features for call in calls)) == {
        "user_barge_in",
        "assistant_interruption",
        "empty_session",
        "missing_audio_end",
        "late_audio_end",
        "slow_tool",
        "tool_error",
        "dead_air",
        "slow_answer",
        "user_silence",
        "unanswered",
        "late_events",
        "repeated_record",
        "announced_phrases",
        "old_role_names",
        "no_voice_detector",
        "no_audit",
    }
    assert any(not call.features for call in calls)


def test_there_are_as_many_events_as_in_real_calls(calls: list[SimulatedCall]) -> None:
    cascades = [list(call.wire_events()) for call in calls if kind_of(call) == "cascade"]
    minutes = sum(events[-1].arrival_ms - events[0].arrival_ms for events in cascades) / 60_000
    assert 120 < sum(map(len, cascades)) / minutes < 180


RECORD_CLASSES: dict[str, type[Any]] = {
    "speech_event": SpeechEvent,
    "function_call_event": FunctionCallEvent,
    "service_latency": ServiceLatencyRecord,
    "service_usage": ServiceUsageRecord,
    "latency_breakdown": LatencyBreakdown,
}


def test_phone_calls_carry_records_that_pipecat_itself_would_write(
    calls: list[SimulatedCall],
) -> None:
    seen: Counter[str] = Counter()
    for simulated in filter(is_phone, calls):
        for event in simulated.call.pipecat or ():
            assert set(event) == {"type", "timestamp", "data"}
            assert isinstance(event["timestamp"], int)
            data, name = event["data"], event["type"]
            seen[name] += 1
            if name in RECORD_CLASSES:
                record = RECORD_CLASSES[name].model_validate(data)
                assert record.model_dump(mode="json", exclude_none=True) == data
            for key in ("timestamp", "started_at", "in_progress_at"):
                # epoch seconds, at or before the moment it was seen
                if isinstance(data.get(key), float):
                    assert 0 <= event["timestamp"] - data[key] * 1000 < 60_000
    assert seen.keys() == RECORD_CLASSES.keys() | {
        "turn_started",
        "turn_ended",
        "user_message",
        "assistant_message",
        "user_bot_latency",
    }
    assert seen.keys() <= RECORD_TYPES
    kinds = {record["kind"] for call in calls for record in records(call, "speech_event")}
    assert kinds == set(SpeechEventKind)
    kinds = {record["kind"] for call in calls for record in records(call, "function_call_event")}
    assert kinds == set(FunctionCallEventKind) - {
        "function_call_timed_out",
        "function_call_cancelled",
    }


def test_phone_messages_have_the_fields_of_pipecats_own(calls: list[SimulatedCall]) -> None:
    for name, real in (
        ("user_message", UserTurnStoppedMessage),
        ("assistant_message", AssistantTurnStoppedMessage),
    ):
        fields = {field.name for field in dataclasses.fields(real)} - {"user_id"}
        found = [record for call in calls for record in records(call, name)]
        assert found
        assert all(set(record) == fields for record in found)


def busy_lines(calls: list[tuple[int, int]], at_ms: int) -> int:
    return sum(start_ms <= at_ms <= end_ms for start_ms, end_ms in calls)


def test_traffic_keeps_the_lines_busy_and_starts_at_once() -> None:
    traffic = list(simulated_traffic(3, concurrent_calls=20, start_ms=START_MS, limit=120))
    spans = [(call.events[0].arrival_ms, call.events[-1].arrival_ms) for call in traffic]
    starts = [start_ms for start_ms, _ in spans]
    assert starts == sorted(starts)
    assert starts == [START_MS + call.start_offset_ms for call in traffic]
    assert starts[0] == START_MS
    for second in range(25, 150, 5):
        assert 15 <= busy_lines(spans, START_MS + second * 1000) <= 20
    assert len({call.conversation_id for call in traffic}) == 120


def test_traffic_is_endless_lazy_and_repeatable() -> None:
    def first_events(seed: int) -> list[tuple[WireEvent, ...]]:
        endless = simulated_traffic(seed, concurrent_calls=2, start_ms=START_MS, kind="phone")
        return [call.events for call in itertools.islice(endless, 5)]

    assert first_events(1) == first_events(1) != first_events(2)
    with pytest.raises(ValueError, match="at least 1"):
        next(simulated_traffic(1, concurrent_calls=0, start_ms=START_MS))


def test_what_a_call_says_of_itself_may_follow_from_its_start() -> None:
    traffic = simulated_traffic(
        1,
        concurrent_calls=2,
        start_ms=START_MS,
        limit=9,
        of_start=lambda start_ms: {"version": f"of {start_ms - START_MS}"},
        kind="phone",
    )
    said = [(call.start_offset_ms, json.loads(call.events[0].value)["version"]) for call in traffic]
    assert said == [(ms, f"of {ms}") for ms, _ in said]
    assert len(said) == 9


T0_MS = 1_790_000_000_000
AGENTS = {domain.agent for domain in DOMAINS}
CALLS_LOOKED_AT = 200


def sets_in(folder: str) -> dict[str, GoalSet]:
    files = [read_goal_file(path) for path in goal_files_of(SIMULATED_GOALS / folder)]
    assert [str(mistake) for file in files for mistake in file.mistakes] == []
    return {placed.goals.id: placed.goals for file in files for placed in file.sets}


def scored(simulated: SimulatedCall, seed: int | None = None) -> RecordedScoring:
    plan = ScoringPlan(Limits(), GoalRules(), "test", seed)
    scoring = RecordedScoring(
        simulated.call, plan, read_recorded_goals(SIMULATED_GOALS).of(simulated.call)
    )
    assert list(scoring.run()) == [], "code checks all of it"
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
        goals = call_of(scoring.rows).goals
        assert goals is not None
        for subgoal, row in zip(scoring.goal_set.subgoals, goals.subgoals, strict=True):
            reached[scoring.goal_set.id, subgoal.id] += row.reached_turn is not None
    assert looked_at.keys() == AGENTS
    for name, goal_set in sets_in("").items():
        for subgoal in goal_set.subgoals:
            assert 0 < reached[name, subgoal.id] <= looked_at[name], (name, subgoal.id)
        assert reached[name, goal_set.subgoals[-1].id] < looked_at[name], (
            "not every call gets everything"
        )


@pytest.mark.parametrize(
    ("api_key", "enabled", "folder"),
    [(None, True, ""), ("key", True, "judged"), ("key", False, "")],
)
def test_the_judge_is_switched_on_by_a_key(api_key: str | None, enabled: bool, folder: str) -> None:
    judge = JudgeSettings(api_key=None if api_key is None else SecretStr(api_key), enabled=enabled)
    given = Settings(judge=judge, goals=GoalSettings(reads_topic=True, trials=3))
    goals = own_settings(given).goals
    assert (goals.folder, goals.reads_topic, goals.trials) == (SIMULATED_GOALS / folder, False, 3)
    assert own_settings(given).goal_rules(["evaluator", "judge"]).asks_judge is (folder == "judged")
