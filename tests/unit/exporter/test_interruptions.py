"""An interruption counts once, when the call leaves its turn, unless it was withdrawn before."""

from itertools import accumulate
from typing import Any

import pytest

from consumers.exporter.projection import CallSoFar, Counted, Interruptions, project
from schemas.closed_sets import CloseReason, Speaker
from schemas.scores.records import WITHDRAWN, AnyScoreRecord, ClosedFact, InterruptionFact, TurnStatus, TurnValues


def fields(turn: int | None, revision: int) -> dict[str, Any]:
    return {
        "conversation_id": "c-1", "turn": turn, "index": 0, "revision": revision, "status": TurnStatus.OPEN,
        "is_first": revision == 1, "input_hash": "0", "offsets": {}, "event_time_ms": 0, "caused_at_ms": 0,
        "labels": {"agent": "ava", "environment": "live"}, "code_version": "1",
    }  # fmt: skip


def seen(turn: int = 1, revision: int = 1, by: Speaker = Speaker.ASSISTANT) -> InterruptionFact:
    return InterruptionFact(**fields(turn, revision), name=f"interruption_by_{by.value}")


def withdrawn(turn: int = 1, revision: int = 2) -> InterruptionFact:
    return InterruptionFact(**fields(turn, revision), name="interruption_by_assistant", is_withdrawn=True)


def left(turn: int = 1, revision: int = 1) -> TurnValues:
    return TurnValues(**fields(turn, revision), voice_to_voice_ms=WITHDRAWN)


CLOSED = ClosedFact(**fields(None, 1), reason=CloseReason.ENDED, turns=2, through={}, ended_reason=None, events=9)


def counted(*records: AnyScoreRecord) -> list[Speaker]:
    states = accumulate(records, Interruptions.after, initial=Interruptions())
    return [by for state, record in zip(states, records, strict=False) for by in state.counted(record)]


ASSISTANT, USER = Speaker.ASSISTANT, Speaker.USER


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([seen()], []),
        ([seen(), left()], [ASSISTANT]),
        ([seen(), seen(by=USER), left()], [ASSISTANT, USER]),
        ([seen(), left(), left(revision=2), CLOSED], [ASSISTANT]),
        ([seen(), withdrawn(), left(), CLOSED], []),
        ([seen(), withdrawn(), seen(revision=3), left()], [ASSISTANT]),
        ([seen(), withdrawn(), left(), seen(revision=3), CLOSED], []),  # it comes back too late to be known as new
        ([seen(), left(), withdrawn(), seen(revision=3), CLOSED], [ASSISTANT]),
        ([left(), seen(), left(revision=2)], [ASSISTANT]),
        ([seen(turn=2), left(turn=1)], []),
        ([seen(turn=1), left(turn=2)], [ASSISTANT]),
        ([seen(), CLOSED], [ASSISTANT]),
        ([withdrawn(), left()], []),
        ([seen(revision=3), left()], []),  # the exporter has not read its beginning
    ],
)
def test_an_interruption_counts_once_when_its_turn_is_left(
    records: list[AnyScoreRecord], expected: list[Speaker]
) -> None:
    assert counted(*records) == expected


def test_nothing_is_kept_of_turns_that_the_call_has_left() -> None:
    records: list[AnyScoreRecord] = [seen(), seen(turn=2), withdrawn(turn=2), left(turn=2)]
    *_, state = accumulate(records, Interruptions.after, initial=Interruptions())
    assert state == Interruptions()


def test_the_counter_gets_it_with_the_row_of_the_turn() -> None:
    before = CallSoFar().after(seen())
    samples = [each for each in project(left(), 0, before) if each.metric == "callgauge_interruptions_total"]
    assert samples == [Counted("callgauge_interruptions_total", ("ava", "live", "assistant"))]
