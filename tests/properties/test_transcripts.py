"""Any call, in any order of arrival, with any events in between, has one transcript of the right
format at its close.
"""

import json
from typing import Any

from elevenlabs.types import ConversationHistoryTranscriptResponseModel as SdkTurn
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.limits import Limits
from schemas.transcript import TRANSCRIPT, request_id
from tests.properties.evaluation import LIMITS, end_of, fold, fresh, taken_over
from tests.properties.steered_calls import drawn, steered_arrivals
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Json, transcripts_of
from tests.unit.schemas.test_transcript import KEYS


def transcript_of(call: Json, order: Any, limits: Limits = LIMITS) -> bytes:
    """The transcript at the close of the call."""
    evaluator = fresh(limits)
    arrivals = arrivals_of(call, order)
    effects = [*fold(evaluator, arrivals), *evaluator.advance(end_of(arrivals))]
    (transcript,) = transcripts_of(effects)
    return transcript


@given(st.data())
def test_any_call_has_a_transcript_that_the_sdk_takes(data: st.DataObject) -> None:
    call, order = drawn(data)
    value = transcript_of(call, order)
    turns = json.loads(value)
    assert TRANSCRIPT.dump_json(TRANSCRIPT.validate_json(value)) == value
    seconds = [turn["time_in_call_secs"] for turn in turns]
    assert seconds == sorted(seconds)
    assert all(each >= 0 for each in seconds)
    for turn in turns:
        assert list(turn) == KEYS
        assert SdkTurn.model_validate(turn).model_extra == {}
        assert not (turn["tool_calls"] and turn["tool_results"])
        assert turn["message"] != ""
        assert (turn["agent_metadata"] is None, turn["source_medium"]) == (
            (True, "audio") if turn["role"] == "user" else (False, None)
        )
        assert turn["original_message"] is None or (turn["interrupted"] and turn["message"])
    calls = [use for turn in turns for use in turn["tool_calls"]]
    results = [use for turn in turns for use in turn["tool_results"]]
    for use in calls:
        json.loads(use["params_as_json"])
    for uses in (calls, results):
        assert len({use["request_id"] for use in uses}) == len(uses)
    called = {use["request_id"] for use in calls}
    assert all(isinstance(use["tool_latency_secs"], float) for use in results)
    assert called >= {use["request_id"] for use in results if use["tool_latency_secs"] > 0}
    ran = {use["request_id"] for use in calls if use["tool_has_been_called"]}
    assert ran == called & {use["request_id"] for use in results}
    possible = {
        request_id(str(call["id"]), turn, index)
        for turn in range(-1, 100)
        for index in range(len(calls) + 9)
    }
    assert {use["request_id"] for use in (*calls, *results)} <= possible


@given(st.data())
def test_the_order_of_the_topics_changes_no_transcript(data: st.DataObject) -> None:
    """Control events contradict each other in some calls, and then the last to come counts: these
    have one only.
    """
    call, order = drawn(data, updates=False)
    other = data.draw(steered_arrivals(call))
    assert transcript_of(call, order) == transcript_of(call, other)


@given(st.data())
def test_a_successor_in_between_changes_no_transcript(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    place = data.draw(st.integers(0, len(arrivals)))
    successor = taken_over(arrivals[:place])
    effects = [*fold(successor, arrivals[place:]), *successor.advance(end_of(arrivals))]
    assert transcripts_of(effects) == [transcript_of(call, order)]


@given(st.data(), st.sampled_from([1, 2, 5]))
def test_a_call_that_is_cut_off_at_a_limit_has_the_transcript_of_what_there_was(
    data: st.DataObject, limit: int
) -> None:
    call, order = drawn(data)
    value = transcript_of(call, order, LIMITS.model_copy(update={"max_events_per_call": limit}))
    TRANSCRIPT.validate_json(value)
