"""Simulated calls are the same for the same seed, have the shapes of real ones, and reach the demo's goals."""

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
from schemas.scores.records import ClosedFact, DeadAirFact, InterruptionFact, SubgoalScore, VoiceToVoiceLatency
from streamer.cli.demo import DEMO_SEED
from streamer.goals.files import goal_files_of, read_goal_file
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.reader import read_recorded_goals
from streamer.roles.demo import GOALS_FOLDER, HEAD_START_MS, IN_TROUBLE, _with_goals
from streamer.roles.demo_view import VERY_SLOW_MS
from streamer.settings.all_settings import GoalSettings, Settings
from streamer.sources.replay import RECORD_TYPES, WireEvent
from streamer.sources.simulator.plan import SIMULATED_KINDS, CallKind
from streamer.sources.simulator.profile import DOMAINS, HEALTHY, Incident, with_incidents
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call, simulated_traffic

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # pipecat imports audioop, which leaves Python in 3.13
    from pipecat.observers import user_bot_latency_observer
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


def sounds(simulated: SimulatedCall) -> list[tuple[str, str, float]]:
    roles = {
        "elevenlabs_user": "user",
        "simulated_user": "user",
        "framework_agent": "assistant",
        "assistant": "assistant",
    }
    audio = [event for event in simulated.call.elevenlabs or () if "event_type" in event]
    return [(roles[event["user"]], event["event_type"], event["audio_timestamp"]) for event in audio]


def test_the_seed_decides_every_byte() -> None:
    first, again = (list(simulate_call(7, start_ms=START_MS).wire_events()) for _ in range(2))
    assert first == again
    assert first != list(simulate_call(8, start_ms=START_MS).wire_events())
    later = simulate_call(7, start_ms=START_MS + 5000)
    assert [event.arrival_ms - 5000 for event in later.wire_events()] == [event.arrival_ms for event in first]


def test_the_awkward_calls_are_the_same_in_every_version() -> None:
    """Benchmarks, chaos runs and many tests depend on them. Change them only for a reason, with the digest."""
    digest = hashlib.sha256()
    for seed in range(20):
        for event in simulate_call(seed, start_ms=START_MS).wire_events():
            digest.update(event.value)
    assert digest.hexdigest() == "4eb02c5a8ddd0e8f4e6eb487e09054a1d624347ee0c97ddbb896a63a11784c1c"


@pytest.mark.parametrize("kind", ["phone", "cascade", "audio_llm", "s2s"])
def test_a_kind_can_be_asked_for(kind: CallKind) -> None:
    assert {kind_of(simulate_call(seed, start_ms=START_MS, kind=kind)) for seed in range(20)} == {kind}


def test_about_half_are_phone_calls_and_every_awkward_thing_happens(calls: list[SimulatedCall]) -> None:
    kinds = Counter(map(kind_of, calls))
    assert 0.4 < kinds["phone"] / len(calls) < 0.6
    assert set(kinds) == {"phone", "cascade", "audio_llm", "s2s"}
    assert set().union(*(call.features for call in calls)) == {
        "user_barge_in", "assistant_interruption", "empty_session", "missing_audio_end", "late_audio_end", "slow_tool",
        "tool_error", "dead_air", "slow_answer", "user_silence", "unanswered", "late_events", "repeated_record",
        "announced_phrases", "old_role_names", "no_voice_detector", "no_audit",
    }  # fmt: skip
    assert any(not call.features for call in calls)


def test_the_wire_is_opened_first_and_closed_last(calls: list[SimulatedCall]) -> None:
    for simulated in calls:
        events = list(simulated.wire_events())
        assert (events[0].event_name, events[-1].event_name) == ("call_started", "call_ended")
        assert json.loads(events[-1].value)["reason"] == simulated.call.conversation_ended_reason
        arrivals = [event.arrival_ms for event in events]
        assert arrivals == sorted(arrivals)
        assert arrivals[0] == START_MS


def test_there_are_as_many_events_as_in_real_calls(calls: list[SimulatedCall]) -> None:
    cascades = [list(call.wire_events()) for call in calls if kind_of(call) == "cascade"]
    minutes = sum(events[-1].arrival_ms - events[0].arrival_ms for events in cascades) / 60_000
    assert 120 < sum(map(len, cascades)) / minutes < 180


def test_events_have_the_shapes_of_their_sources(calls: list[SimulatedCall]) -> None:
    for simulated in calls:
        call = simulated.call
        assert all(entry["timestamp"].isdigit() and "message_type" in entry for entry in call.audit or ())
        assert all(isinstance(event["timestamp"], int) for event in (*(call.pipecat or ()), *(call.elevenlabs or ())))
        if call.elevenlabs is not None:
            assert [event["sequence"] for event in call.elevenlabs] == list(range(1, len(call.elevenlabs) + 1))
            assert all(isinstance(at, float) for _, _, at in sounds(simulated))
            for event in call.elevenlabs:
                if "event_type" in event:  # dated back to the sound; the log cuts its own time to ms
                    assert event["audio_timestamp"] * 1000 < event["timestamp"] + 1
        if kind_of(simulated) in ("cascade", "audio_llm"):
            lines = Counter((line["type"], line["timestamp"]) for line in call.pipecat or ())
            spoken = [count for (name, _), count in lines.items() if name.endswith("ed_speaking")]
            assert spoken
            assert all(count % 2 == 0 for count in spoken)  # once per destination


def test_assistant_speech_is_transcribed_after_it_ended(calls: list[SimulatedCall]) -> None:
    for simulated in calls:
        events = simulated.call.elevenlabs or ()
        ends = [
            event["audio_timestamp"]
            for event in events
            if event.get("event_type") == "audio_end" and event["user"] in ("assistant", "framework_agent")
        ]
        texts = [event["timestamp"] / 1000 for event in events if event.get("type") == "assistant_speech"]
        assert len(ends) == len(texts)
        assert all(0.6 < at - end < 4 for end, at in zip(sorted(ends), sorted(texts), strict=True))


def with_feature(calls: list[SimulatedCall], feature: str, *, phone: bool) -> list[SimulatedCall]:
    found = [call for call in calls if feature in call.features and is_phone(call) == phone]
    assert found
    return found


def overlaps(simulated: SimulatedCall) -> set[str]:
    """The speakers that started while the other one was audible."""
    speaking: dict[str, bool] = {}
    by: set[str] = set()
    for role, kind, _ in sorted(sounds(simulated), key=lambda sound: sound[2]):
        other = "assistant" if role == "user" else "user"
        if kind == "audio_start" and speaking.get(other):
            by.add(role)
        speaking[role] = kind == "audio_start"
    return by


def test_interruptions_both_ways_are_heard(calls: list[SimulatedCall]) -> None:
    unclear = {"missing_audio_end", "late_audio_end"}
    for simulated in calls:
        if not is_phone(simulated) and not unclear & simulated.features:
            expected = {
                role
                for role, feature in (("user", "user_barge_in"), ("assistant", "assistant_interruption"))
                if feature in simulated.features
            }
            assert overlaps(simulated) == expected


def test_missing_and_late_ends(calls: list[SimulatedCall]) -> None:
    for simulated in calls:
        starts, ends = (
            sum(1 for role, kind, _ in sounds(simulated) if (role, kind) == ("user", name))
            for name in ("audio_start", "audio_end")
        )
        assert starts - ends == ("missing_audio_end" in simulated.features)


def test_silences_and_slow_tools_last_as_long_as_they_say(calls: list[SimulatedCall]) -> None:
    for simulated in with_feature(calls, "slow_tool", phone=True):
        settled = [record for record in records(simulated, "function_call_event") if "in_progress_at" in record]
        assert any(4 <= record["timestamp"] - record["in_progress_at"] <= 9 for record in settled)
    for simulated in with_feature(calls, "tool_error", phone=True):
        failed = [record for record in records(simulated, "function_call_event") if "error" in record]
        assert [record["kind"] for record in failed] == ["function_call_failed"]
    for simulated in calls:
        latencies = [record["latency_seconds"] for record in records(simulated, "user_bot_latency")]
        quiet = {"slow_tool", "dead_air", "tool_error"} & simulated.features
        assert bool(quiet) or max(latencies, default=0) <= 3
        if "dead_air" in simulated.features - {"unanswered"} and latencies and "unanswered" not in simulated.features:
            assert max(latencies) > 3
    for simulated in with_feature(calls, "empty_session", phone=False):
        texts = [
            event["data"]["text"] for event in simulated.call.elevenlabs or () if event.get("type") == "user_speech"
        ]
        assert {"...", ".", "?"} & set(texts)


def test_late_and_repeated_records_are_seen_on_the_wire(calls: list[SimulatedCall]) -> None:
    for simulated in calls:
        events = list(simulated.wire_events())
        copies = len(events) - len(set(events))
        assert copies == ("repeated_record" in simulated.features)
        if kind_of(simulated) != "s2s":  # speech to speech dates its audit entries back by design
            late = max(event.arrival_ms - event.time_ms for event in events)
            assert (late >= 1500) == ("late_events" in simulated.features)


def test_audio_llm_placeholders_are_all_replaced_later() -> None:
    for seed in range(30):
        call = simulate_call(seed, start_ms=START_MS, kind="audio_llm").call
        placeholders = {
            entry["turn_id"]: int(entry["timestamp"]) for entry in call.audit or () if entry["message_type"] == "user"
        }
        updates = {event["turn_id"]: event for event in call.control if event["type"] == "user_text_updated"}
        assert placeholders.keys() == updates.keys() != set()
        assert all(updates[turn]["timestamp"] > at_ms for turn, at_ms in placeholders.items())
        assert all(event["text"] != "[user audio]" for event in updates.values())


def test_speech_to_speech_writes_its_audit_log_late_and_dates_it_back() -> None:
    events = list(simulate_call(1, start_ms=START_MS, kind="s2s").wire_events())
    users = [event for event in events if event.source == "audit" and event.event_name == "user"]
    assert users
    assert all(event.arrival_ms - event.time_ms > 500 for event in users)


RECORD_CLASSES: dict[str, type[Any]] = {
    "speech_event": SpeechEvent,
    "function_call_event": FunctionCallEvent,
    "service_latency": ServiceLatencyRecord,
    "service_usage": ServiceUsageRecord,
    "latency_breakdown": LatencyBreakdown,
}


def test_phone_calls_carry_records_that_pipecat_itself_would_write(calls: list[SimulatedCall]) -> None:
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
                if isinstance(data.get(key), float):  # epoch seconds, at or before the moment it was seen
                    assert 0 <= event["timestamp"] - data[key] * 1000 < 60_000
    assert seen.keys() == RECORD_CLASSES.keys() | {
        "turn_started", "turn_ended", "user_message", "assistant_message", "user_bot_latency",
    }  # fmt: skip
    assert seen.keys() <= RECORD_TYPES
    kinds = {record["kind"] for call in calls for record in records(call, "speech_event")}
    assert kinds == set(SpeechEventKind)
    kinds = {record["kind"] for call in calls for record in records(call, "function_call_event")}
    assert kinds == set(FunctionCallEventKind) - {"function_call_timed_out", "function_call_cancelled"}


def test_phone_messages_have_the_fields_of_pipecats_own(calls: list[SimulatedCall]) -> None:
    for name, real in (("user_message", UserTurnStoppedMessage), ("assistant_message", AssistantTurnStoppedMessage)):
        fields = {field.name for field in dataclasses.fields(real)} - {"user_id"}
        found = [record for call in calls for record in records(call, name)]
        assert found
        assert all(set(record) == fields for record in found)
    interrupted = [
        call for call in calls if any(record["interrupted"] for record in records(call, "assistant_message"))
    ]
    assert interrupted == with_feature(calls, "user_barge_in", phone=True)


def test_latency_breakdowns_account_for_the_whole_wait(calls: list[SimulatedCall]) -> None:
    keys = {span.key for span in user_bot_latency_observer._SPANS}
    for breakdown in (record for call in calls for record in records(call, "latency_breakdown")):
        parts = breakdown["contributions"]
        assert {part["key"] for part in parts} <= keys
        assert all(part["duration_secs"] >= 0 for part in parts)
        assert sum(part["duration_secs"] for part in parts) == pytest.approx(breakdown["total_secs"])


def test_without_a_voice_detector_pipecat_measures_nothing(calls: list[SimulatedCall]) -> None:
    for simulated in with_feature(calls, "no_voice_detector", phone=True):
        kinds = {record["kind"] for record in records(simulated, "speech_event")}
        assert "user_turn_stopped" in kinds
        assert not any(kind.startswith("user_speech") for kind in kinds)
        assert not list(records(simulated, "user_bot_latency"))


def test_pipecats_turn_counter_opens_and_closes_every_turn(calls: list[SimulatedCall]) -> None:
    for simulated in filter(is_phone, calls):
        marks = [
            (event["type"], event["data"]["turn_number"])
            for event in simulated.call.pipecat or ()
            if event["type"] in ("turn_started", "turn_ended")
        ]
        turns = range(1, len(marks) // 2 + 1)
        assert marks == [(kind, number) for number in turns for kind in ("turn_started", "turn_ended")]


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
