"""EVA's `stt_wer` of recorded calls against EVA's own results: of the whole call, and as the live
engine's last word on it.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from consumers.engine.evaluator import NO_LIMITS
from consumers.engine.limits import Limits
from consumers.engine.measures.results import MetricResult
from consumers.engine.measures.words import CallWordErrors, stt_wer
from consumers.engine.turns.normal_text import normalised
from schemas.rows import CallRow, NotApplicable, TurnRow, Value, number
from schemas.rows import WordErrors as WordErrorRate
from tests.support.calls.metric_contexts import context
from tests.support.calls.wire_calls import (
    STREAMS,
    arrivals_of,
    in_random_order,
    in_time_order,
    record_call,
    wire_calls,
)
from tests.support.conformance_data import RECORD, conformance
from tests.support.fakes.engine_feed import T0_MS, Feed
from tests.support.known import some

Json = dict[str, Any]

LONG_MS = 24 * 3_600_000


def _reference() -> dict[str, Json]:
    """By call, EVA's own result; results older than its sub-metrics have none."""
    return {
        call["id"]: call["metrics"]["stt_wer"]
        for call in wire_calls(conformance("call_metrics.jsonl.gz"))
    }


def _result(call: Json) -> MetricResult:
    """The metric's result on EVA's own context of the call."""
    errors = CallWordErrors()
    meant, understood = (
        call["expected"]["intended_user_turns"],
        call["expected"]["transcribed_user_turns"],
    )
    errors.put_all(
        {int(turn): text for turn, text in meant.items()},
        {int(t): text for t, text in understood.items()},
    )
    return errors.result()


def _live(call: Json, order: Sequence[tuple[str, int]], limits: Limits = NO_LIMITS) -> Feed:
    """Everything the engine says of a call, first that it has begun, then its events in
    this order.
    """
    times = [
        event["timestamp"]
        for stream in STREAMS
        for event in call.get(stream) or ()
        if event.get("timestamp")
    ]
    begun = {
        "type": "call_started",
        "timestamp": min(map(float, times)),
        "pipeline_type": call["pipeline_type"],
    }
    arrivals = arrivals_of(
        call | {"control": [begun], "control_on": ["audit"]}, [("control", 0), *order]
    )
    feed = Feed(limits)
    for arrival in arrivals:
        feed._keep(feed.evaluator.receive(arrival))
    feed.advance(max(arrival.broker_time_ms for arrival in arrivals) + LONG_MS - T0_MS)
    return feed


def _of_turns(rows: Sequence[TurnRow]) -> dict[int, WordErrorRate]:
    """By turn, its rate as last published."""
    newest = {row.turn: row for row in rows}
    turns = {turn: row.stt_wer for turn, row in newest.items() if row.status != "withdrawn"}
    return {turn: rate for turn, rate in turns.items() if rate is not None}


def _value(result: Value) -> float:
    return some(number(result))


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


LANGUAGES = ("en", "de", "es", "fr", "fr-CA", "hi", "ja", "zh", "ko")


@pytest.mark.parametrize("language", [*LANGUAGES, "it", "en-US", "de-AT", "zh-TW"])
def test_every_text_is_spelled_as_by_the_reference(language: str) -> None:
    texts = [
        each
        for each in wire_calls(conformance("eva_spellings.jsonl.gz"))
        if each["language"] == language
    ]
    actual = {each["text"]: normalised(each["text"], language, as_eva=True) for each in texts}
    assert actual == {each["text"]: each["spelling"] for each in texts}
    assert len(texts) >= 15


@pytest.mark.parametrize("language", LANGUAGES)
def test_word_errors_of_every_language_are_those_of_the_reference(language: str) -> None:
    calls = [
        each
        for each in wire_calls(conformance("eva_word_errors.jsonl.gz"))
        if each["language"] == language
    ]
    for call in calls:
        meant, understood = (
            {int(turn): text for turn, text in call[name].items()}
            for name in ("intended_user_turns", "transcribed_user_turns")
        )
        of_call = context(intended_user_turns=meant, transcribed_user_turns=understood)
        found = json.loads(json.dumps(stt_wer(of_call, language).to_dict()))
        expected = call["expected"]
        assert {
            name: found[name] for name in ("score", "normalized_score", "error", "details")
        } == {name: expected[name] for name in ("score", "normalized_score", "error", "details")}
        assert found["sub_metrics"] == expected["sub"]
    assert len(calls) == 13


@pytest.mark.parametrize("seed", [None, 1, pytest.param(2, marks=pytest.mark.long)])
def test_the_last_word_of_the_live_engine_is_the_batch_value(seed: int | None) -> None:
    reference = _reference()
    scored = 0
    for call in wire_calls(conformance("calls.jsonl.gz")):
        order = in_time_order(call) if seed is None else in_random_order(call, seed)
        if not order:
            continue
        feed, name = _live(call, order), str(call["id"])
        of_call, turns = feed.call(name), _of_turns(feed.turn_rows(key=name))
        final = some(of_call.stt_wer)
        assert (of_call.state, feed.rows(name)[-1]) == ("closed", of_call), (
            "nothing more is said of the call"
        )
        expected = reference[call["id"]]
        if call["pipeline_type"] != "cascade":
            assert isinstance(final.result, NotApplicable)
        elif expected["error"] is not None:
            assert number(final.result) is None
        else:
            scored += 1
            details = expected["details"]
            assert final.result == expected["score"], name
            assert (final.reference_words, final.turns) == (
                details["reference_words"],
                details["num_turns"],
            )
            assert {str(turn): _value(rate.result) for turn, rate in turns.items()} == details[
                "per_turn_wer"
            ]
    assert scored > 150


def test_a_real_call_turn_by_turn() -> None:
    call = record_call(conformance(RECORD.name))
    result = _result(call)
    assert (result.score, result.normalized_score) == (0.089, 0.911)
    feed = _live(
        call, in_time_order(call), NO_LIMITS.model_copy(update={"call_values_every_ms": 1})
    )
    name = str(call["id"])
    # A turn is measured when the call leaves it: errors by words of all rows so far are the rate of
    # the call at that time.
    so_far: dict[int, WordErrorRate] = {}
    values: dict[int, float] = {}
    for row in feed.turn_rows(key=name):
        if row.stt_wer is None:
            continue
        so_far[row.turn] = row.stt_wer
        errors = sum(
            rate.substitutions + rate.deletions + rate.insertions for rate in so_far.values()
        )
        values[max(so_far)] = round(
            errors / sum(rate.reference_words for rate in so_far.values()), 3
        )
    assert values == dict(
        enumerate([0.0, 0.043, 0.156, 0.1, 0.085, 0.062, 0.074, 0.107, 0.097, 0.089], 1)
    )
    # The call is long, so its own row says the same while it runs.
    running: dict[int | None, float] = {
        row.through_turn: _value(row.stt_wer.result)
        for row in feed.call_rows(name)
        if row.stt_wer is not None
    }
    assert len(running) > 4
    assert running == {turn: values[turn] for turn in running if turn is not None}
    final: CallRow = feed.call(name)
    assert final.user_disagreement is not None
    assert final.assistant_disagreement is not None
    assert (final.user_disagreement.result, final.assistant_disagreement.result) == (0.089, 0.019)
