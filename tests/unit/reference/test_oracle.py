"""The oracle equals the batch processor's recorded results, and the generated calls reach
everything that the rules mention.
"""

import gzip
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.reference import oracle
from tests.reference.oracle import batch_context
from tests.support.calls.strategies import (
    SOURCES,
    arrivals,
    calls,
    structured_calls,
    unstructured_calls,
    with_repeats,
)
from tests.support.conformance_data import RECORD, conformance

Json = dict[str, Any]

same_every_time = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],  # the machine that runs this may be busy
)


def differences(actual: Json, expected: Json) -> Json:
    keys = sorted(actual.keys() | expected.keys())
    return {
        key: (actual.get(key), expected.get(key))
        for key in keys
        if actual.get(key) != expected.get(key)
    }


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("name", "count"),
    [("calls.jsonl.gz", 300), ("cut_calls.jsonl.gz", 150), ("eva_histories.jsonl.gz", 8)],
)
def test_every_field_of_every_conformance_call(name: str, count: int) -> None:
    with gzip.open(conformance(name), "rt", encoding="utf-8") as lines:
        rows = [json.loads(text) for text in lines]
    wrong = {}
    for row in rows:
        context = batch_context(row)
        # derived, not in these files
        assert context.pop("is_audio_native") == (row["pipeline_type"] != "cascade")
        assert len(context) == 19
        assert through_json(context) == context
        if context != row["expected"]:
            wrong[row["id"]] = differences(context, row["expected"])
    assert wrong == {}
    assert len(rows) == count


def test_recorded_call() -> None:
    record = conformance(RECORD.name)

    def read(name: str) -> Any:
        return json.loads((record / name).read_text(encoding="utf-8"))

    def read_lines(name: str) -> list[Json]:
        return [
            json.loads(text) for text in (record / name).read_text(encoding="utf-8").splitlines()
        ]

    context = batch_context(
        {
            "pipeline_type": "cascade",
            "conversation_ended_reason": read("result.json")["conversation_ended_reason"],
            "audit": read("audit_log.json")["transcript"],
            "pipecat": read_lines("pipecat_logs.jsonl"),
            "user_sim": read_lines("elevenlabs_events.jsonl"),
        }
    )
    expected = read("expected_processor_context.json")
    for entry in context["conversation_trace"]:
        entry.pop("timestamp", None)
    assert {key: context[key] for key in expected} == expected


def features(call: Json) -> set[str]:
    """The steps of the rules on the way through this call, taken from outside the oracle's result
    where it hides them.
    """
    context = batch_context(call)
    seen = {label for label in oracle.LABELS if label in json.dumps(context)}
    trace = context["conversation_trace"]
    users = [entry["content"] for entry in trace if entry.get("role") == "user"]
    doubled = f"{oracle.USER_INTERRUPTS} {oracle.USER_INTERRUPTS}"
    checks = {
        "negative turn": any(
            "-1" in turns for turns in context.values() if isinstance(turns, dict)
        ),
        "fallback turn": bool(context["fallback_turn_ids"]),
        "double prefix": any(doubled in content for content in users),
        "negative latency": any(
            latency < 0 for latency in context["latency_assistant_turns"].values()
        ),
        "error sentence in trace": any(
            entry.get("content") == oracle.GENERIC_ERROR for entry in trace
        ),
        "absent source": any(call[source] is None for source in SOURCES),
        "old role": any(
            event.get("user") in ("elevenlabs_user", "pipecat_agent")
            for event in call["user_sim"] or []
        ),
    }
    lines = [] if call["pipeline_type"] == "s2s" else call["pipecat"] or []
    tts = [line for line in lines if line["type"] == "tts_text"]
    replies = [line for line in lines if line["type"] == "llm_response"]
    stamps = Counter(line["timestamp"] for line in tts)
    dropped = [line for line in tts if oracle.is_phrase(line) and stamps[line["timestamp"]] > 1]
    spoken = [line for line in oracle.spoken_lines(lines) if line["type"] == "tts_text"]
    checks["P2 flip"] = bool(tts and replies)
    checks["only replies"] = bool(replies and not tts)
    checks["P3 drop"] = bool(dropped)
    checks["P4 preview"] = len(spoken) < len(tts) - len(dropped)
    machine = oracle.Machine(call["pipeline_type"])
    rollbacks, audit_owed, waited = 0, False, False
    for event in oracle.merged_history(call["audit"] or [], lines, call["user_sim"] or []):
        turn = machine.turn
        machine.step(event)
        rollbacks += machine.turn < turn
        audit_owed |= machine.padv_used
        waited |= bool(machine.buf)
    checks["rollback"] = rollbacks > 0
    checks["second rollback"] = rollbacks > 1
    checks["owed advance used by audit"] = audit_owed
    checks["buffered speech"] = waited
    entries = [entry for entry in machine.trace if entry.get("audit_source")]
    cuts = [
        oracle.truncated(entry["content"], machine.segments.get(entry["turn_id"], []))
        for entry in entries
    ]
    checks["unspoken reply dropped"] = None in cuts
    checks["reply cut to what was spoken"] = any(
        cut is not None and cut != entry["content"]
        for cut, entry in zip(cuts, entries, strict=True)
    )
    return seen | {name for name, happened in checks.items() if happened}


FEATURES = {
    *oracle.LABELS,
    *(
        "negative turn",
        "fallback turn",
        "double prefix",
        "negative latency",
        "error sentence in trace",
    ),
    *(
        "absent source",
        "old role",
        "P2 flip",
        "only replies",
        "P3 drop",
        "P4 preview",
        "rollback",
        "second rollback",
    ),
    *(
        "owed advance used by audit",
        "buffered speech",
        "unspoken reply dropped",
        "reply cut to what was spoken",
    ),
}


@pytest.mark.parametrize(
    "strategy", [structured_calls(), unstructured_calls()], ids=["structured", "unstructured"]
)
def test_generated_calls_reach_every_rule(strategy: st.SearchStrategy[Json]) -> None:
    times_seen: Counter[str] = Counter()

    @settings(same_every_time, max_examples=400)
    @given(strategy)
    def collect(call: Json) -> None:
        times_seen.update(features(call))

    collect()
    assert times_seen.keys() >= FEATURES, (
        f"never reached: {FEATURES - times_seen.keys()} (reached: {times_seen})"
    )


REQUIRED = {
    "audit": [{"timestamp", "message_type", "value"}],
    "pipecat": [{"type", "timestamp", "data"}],
    "user_sim": [
        {"timestamp", "event_type", "user", "audio_timestamp"},
        {"timestamp", "type", "data"},
    ],
}


@settings(same_every_time, max_examples=200)
@given(calls())
def test_generated_events_are_valid_and_survive_json(call: Json) -> None:
    assert through_json(call) == call
    for source in SOURCES:
        for event in call[source] or []:
            assert any(required <= event.keys() for required in REQUIRED[source]), event
            assert isinstance(event["timestamp"], str if source == "audit" else int)
            assert int(event["timestamp"]) >= 0
            assert source != "pipecat" or isinstance(event["data"]["frame"], str)
            assert event.get("audio_timestamp", 0.0) >= 0
    context = batch_context(call)
    assert through_json(context) == context


@settings(same_every_time, max_examples=200)
@given(st.data())
def test_arrivals_keep_the_order_of_each_source(data: st.DataObject) -> None:
    call = data.draw(calls())
    arrival = data.draw(arrivals(call))
    repeated = data.draw(with_repeats(arrival))
    for source in SOURCES:
        indices = [index for name, index in arrival if name == source]
        assert indices == list(range(len(call[source] or [])))
    assert list(dict.fromkeys(repeated)) == arrival


@settings(same_every_time, max_examples=100)
@given(st.data())
def test_any_prefix_of_the_streams_has_a_context(data: st.DataObject) -> None:
    call = data.draw(calls())
    arrival = data.draw(arrivals(call))
    counts = Counter(source for source, _ in arrival[: data.draw(st.integers(0, len(arrival)))])
    prefix = {**call, **{source: (call[source] or [])[: counts[source]] for source in SOURCES}}
    before = through_json(prefix)
    assert batch_context(prefix) == batch_context(through_json(prefix))
    assert prefix == before, "the oracle changed its input"
