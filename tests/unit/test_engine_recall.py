"""What an evaluator is told of its predecessor before it reads: closings above all."""

from collections import Counter

import pytest

from consumers.engine.limits import Limits
from schemas.scores import CallLabels, CallStartedFact, ClosedFact, CloseReason, TurnStatus
from tests.engine_feed import Feed

WORD = {"message_type": "user", "value": "Hello"}


def closed(conversation_id: str, through: int) -> ClosedFact:
    return ClosedFact(
        conversation_id=conversation_id, revision=1, status=TurnStatus.FINAL, input_hash="0",
        offsets={"audit.events": through}, event_time_ms=None, caused_at_ms=0, labels=CallLabels(), code_version="1",
        reason=CloseReason.ENDED, ended_reason=None, turns=0, events=1, through={"audit.events": through},
    )  # fmt: skip


def started(conversation_id: str, offset: int) -> CallStartedFact:
    return CallStartedFact(
        conversation_id=conversation_id, revision=1, status=TurnStatus.OPEN, input_hash="0",
        offsets={"audit.events": offset}, event_time_ms=None, caused_at_ms=0, labels=CallLabels(), code_version="1",
    )  # fmt: skip


@pytest.mark.parametrize("calls", [2, 3, 10])
def test_every_closing_is_known_until_its_records_are_read_again(calls: int) -> None:
    """One long call pins where reading begins, and more calls have closed since than are remembered."""
    feed = Feed(Limits(max_closed_calls_remembered=2))
    for number in range(calls):
        feed.evaluator.recall(closed(f"c-{number}", through=number))
    for number in range(calls):
        feed.send("audit", WORD, 0, key=f"c-{number}", offset=number)
    assert (feed.evaluator.open_calls, feed.records()) == (0, [])
    assert feed.counts("callgauge_events_total") == Counter({("audit", "replayed"): calls})


def test_a_call_is_unfinished_until_its_closing_is_known() -> None:
    feed = Feed(Limits())
    for number, conversation_id in enumerate(("c-1", "c-2")):
        feed.evaluator.recall(started(conversation_id, offset=number))
    feed.evaluator.recall(closed("c-2", through=1))
    feed.send("audit", WORD, 0, key="c-3", offset=5)
    assert sorted(feed.evaluator.unfinished_calls()) == ["c-1", "c-3"]
    feed.send("audit", WORD, 0, key="c-1", offset=6)
    assert sorted(feed.evaluator.unfinished_calls()) == ["c-1", "c-3"]
