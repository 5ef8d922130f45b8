"""Records of a predecessor that an evaluator recalls before it reads: closings above all."""

import json
from collections import Counter
from typing import Any

import pytest

from consumers.engine.limits import Limits
from schemas.ledger_record import ClosedElsewhere, LedgerRecord, ScoredElsewhere, read_ledger_record
from schemas.scores.all_records import AnyScoreRecord, CallLabels, CallStartedFact, ClosedFact, CloseReason, TurnStatus
from tests.support.fakes.engine_feed import Feed

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


def read(record: AnyScoreRecord, **changes: Any) -> LedgerRecord:
    """A record as another version may have written it, read back."""
    found = read_ledger_record(json.dumps(record.model_dump(mode="json") | changes).encode())
    assert found is not None
    return found


def test_a_call_that_another_version_closed_stays_closed() -> None:
    feed = Feed()
    closing = read(closed("call", through=0), reason="of a later version")
    assert isinstance(closing, ClosedElsewhere)
    feed.evaluator.recall(closing)
    feed.send("audit", WORD, 0, offset=0)
    feed.send("audit", WORD, 10, offset=1)
    assert (feed.evaluator.open_calls, feed.records()) == (0, [])
    assert feed.counts("callgauge_events_total") == Counter({("audit", "replayed"): 1, ("audit", "after_close"): 1})


def test_scores_that_another_version_wrote_are_numbered_on_and_never_doubled() -> None:
    """The first evaluator's records are of another version to the second, except for the fields that steer a replay."""
    first = Feed()
    first.user_audio(0, 1_000)
    first.assistant_audio(1_500, 2_500)
    written = first.records()
    second = Feed()
    for record in written:
        second.evaluator.recall(read(record, labels="of another shape"))
    unknown = read(written[-1], name="of_a_later_version", labels="of another shape")
    assert isinstance(unknown, ScoredElsewhere)
    second.evaluator.recall(unknown)
    second.user_audio(0, 1_000)
    second.assistant_audio(1_500, 2_500)
    assert second.records() == []
    second.user_audio(4_000, 5_000)
    second.assistant_audio(5_500, 6_500)
    second.send("audit", {"type": "call_ended"}, 7_000)
    second.advance(600_000)
    assert [record.name for record in second.records()][-1] == "closed"
    ids = Counter(record.record_id for record in [*written, *second.records()])
    assert max(ids.values()) == 1
