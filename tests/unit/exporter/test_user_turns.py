"""A caller who waits for an answer counts once, with every outcome and in any order of the records."""

from itertools import accumulate, pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.exporter.projection import UserTurns
from schemas.closed_sets import Anchor
from schemas.scores.records import WITHDRAWN, AnyScoreRecord, DeadAirFact, Scored, TurnStatus, VoiceToVoiceLatency


def fields(turn: int, index: int, *, is_first: bool) -> dict[str, Any]:
    return {
        "conversation_id": "c-1", "turn": turn, "index": index, "revision": 1 if is_first else 2, "status": TurnStatus.OPEN,
        "is_first": is_first, "input_hash": "0", "offsets": {}, "event_time_ms": 0, "caused_at_ms": 0, "labels": {},
        "code_version": "1",
    }  # fmt: skip


def answer(turn: int = 1, *, is_first: bool = True) -> VoiceToVoiceLatency:
    given_fields = fields(turn, 0, is_first=is_first)
    return VoiceToVoiceLatency(**given_fields, result=Scored(value=900.0), anchor=Anchor.VAD, source="pipecat")


def silence(turn: int = 1, index: int = 1, *, is_first: bool = True) -> DeadAirFact:
    return DeadAirFact(**fields(turn, index, is_first=is_first), silent_since_ms=index, threshold_ms=3000)


def waits(*records: AnyScoreRecord) -> int:
    """The waits that these records of a call show, one after the other."""
    states = accumulate(records, UserTurns.after, initial=UserTurns())
    return sum(state.new_waits(record) for state, record in zip(states, records, strict=False))


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([answer()], 1),
        ([silence()], 1),
        ([silence(), answer()], 1),
        ([answer(), silence()], 1),  # the silence before the answer, which waited for broker time
        ([silence(1, 1), silence(1, 2), silence(1, 3)], 3),  # a mute agent: the caller asks again and again
        ([silence(1, 1), silence(1, 2), answer()], 2),
        ([answer(1), answer(2), silence(3), answer(3), answer(4)], 4),
        ([answer(), answer(is_first=False)], 1),
        ([silence(), silence(is_first=False)], 1),
        ([answer().model_copy(update={"result": WITHDRAWN})], 0),
        ([silence(0)], 1),  # not even a greeting
    ],
)
def test_each_wait_counts_once(records: list[AnyScoreRecord], expected: int) -> None:
    assert waits(*records) == expected


def test_the_order_of_the_records_of_a_turn_changes_nothing() -> None:
    records: list[AnyScoreRecord] = [answer(), silence(1, 1), silence(1, 2)]
    assert {waits(*order) for order in permutations(records)} == {2}


@given(
    st.lists(
        st.builds(
            lambda turn, dead, index: silence(turn, index) if dead else answer(turn),
            st.integers(1, 4),
            st.booleans(),
            st.integers(1, 3),
        )
    )
)
def test_one_record_shows_one_wait_at_most(records: list[AnyScoreRecord]) -> None:
    states = list(accumulate(records, UserTurns.after, initial=UserTurns()))
    for (before, after), record in zip(pairwise(states), records, strict=True):
        assert before.new_waits(record) in (0, 1)
        assert after.turn is not None
        assert after.turn >= (before.turn or 0)
