"""EVA's `stt_wer` of recorded calls against EVA's own results: of the whole call, and as the live engine's last word on it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from consumers.engine.effects import Effect
from consumers.engine.eva_metrics.result import MetricResult
from consumers.engine.eva_metrics.word_errors import WordErrors
from consumers.engine.offline import NO_LIMITS
from consumers.engine.partition import PartitionEvaluator
from schemas.scores import NotApplicable, Scored, TranscriptDisagreement, TurnStatus, WordErrorRate
from tests.conformance_data import RECORD, conformance
from tests.engine_feed import records_of
from tests.wire_calls import STREAMS, arrivals_of, in_random_order, in_time_order, record_call, wire_calls

Json = dict[str, Any]

LONG_MS = 24 * 3_600_000


def _reference() -> dict[str, Json]:
    """By call, EVA's own result; what is older than its sub-metrics has none."""
    return {call["id"]: call["metrics"]["stt_wer"] for call in wire_calls(conformance("call_metrics.jsonl.gz"))}


def _result(call: Json) -> MetricResult:
    """What the metric says of EVA's own context of the call."""
    errors = WordErrors()
    meant, understood = call["expected"]["intended_user_turns"], call["expected"]["transcribed_user_turns"]
    errors.put_all({int(turn): text for turn, text in meant.items()}, {int(t): text for t, text in understood.items()})
    return errors.result()


def _live(call: Json, order: Sequence[tuple[str, int]]) -> list[Effect]:
    """Everything the engine says of a call, first that it has begun, then its events in this order."""
    times = [event["timestamp"] for stream in STREAMS for event in call.get(stream) or () if event.get("timestamp")]
    begun = {"type": "call_started", "timestamp": min(map(float, times)), "pipeline_type": call["pipeline_type"]}
    arrivals = arrivals_of(call | {"control": [begun], "control_on": ["audit"]}, [("control", 0), *order])
    evaluator = PartitionEvaluator(NO_LIMITS, "test")
    effects = [effect for arrival in arrivals for effect in evaluator.receive(arrival)]
    return [*effects, *evaluator.advance(max(arrival.broker_time_ms for arrival in arrivals) + LONG_MS)]


def test_every_field_equals_the_reference() -> None:
    reference = _reference()
    calls = {call["id"]: call for call in wire_calls(conformance("calls.jsonl.gz"))}
    assert calls.keys() == reference.keys()
    different = [
        name
        for name, expected in reference.items()
        if json.loads(json.dumps(_result(calls[name]).to_dict())) != expected
    ]
    assert different == []
    assert sum(expected["error"] is None for expected in reference.values()) == 293


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_last_word_of_the_live_engine_is_the_batch_value(seed: int | None) -> None:
    reference = _reference()
    scored = 0
    for call in wire_calls(conformance("calls.jsonl.gz")):
        order = in_time_order(call) if seed is None else in_random_order(call, seed)
        if not order:
            continue
        said = [each for each in records_of(_live(call, order)) if isinstance(each, WordErrorRate)]
        (final,) = [each for each in said if each.status is TurnStatus.FINAL]
        assert final is said[-1]
        expected = reference[call["id"]]
        if call["pipeline_type"] != "cascade":
            assert isinstance(final.result, NotApplicable)
        elif expected["error"] is not None:
            assert not isinstance(final.result, Scored)
        else:
            scored += 1
            details = expected["details"]
            assert final.result == Scored(value=expected["score"]), call["id"]
            assert (final.reference_words, final.turns) == (details["reference_words"], details["num_turns"])
            by_turn = {str(turn): rate for turn, rate in final.by_turn.items()}
            assert by_turn == details["per_turn_wer"]
    assert scored > 150


def test_a_real_call_turn_by_turn() -> None:
    call = record_call(conformance(RECORD.name))
    result = _result(call)
    assert (result.score, result.normalized_score) == (0.089, 0.911)
    effects = _live(call, in_time_order(call))
    rates = [each for each in records_of(effects) if isinstance(each, WordErrorRate)]
    values = [each.result.value for each in rates if isinstance(each.result, Scored)]
    assert values == [0.0, 0.043, 0.156, 0.1, 0.085, 0.062, 0.074, 0.107, 0.097, 0.089]
    assert [each.through_turn for each in rates] == list(range(1, 11))
    (final,) = [
        each
        for each in records_of(effects)
        if isinstance(each, TranscriptDisagreement) and each.status is TurnStatus.FINAL
    ]
    assert (final.user.result, final.assistant.result) == (Scored(value=0.089), Scored(value=0.019))
