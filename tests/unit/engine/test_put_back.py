"""A record that was put back from quarantine counts once in its call, however often it
is put back.
"""

import json
from collections.abc import Sequence

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.envelope import read_envelope
from schemas.log import REPLAY_OF_HEADER
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.engine_feed import T0_MS, Feed
from tests.support.known import instance_of

PLACE = (REPLAY_OF_HEADER, b"audit.events[0]@7")
OTHER = (REPLAY_OF_HEADER, b"audit.events[0]@8")
ENTRY = {"message_type": "user", "value": "Hello"}


@pytest.mark.parametrize(
    ("first", "second", "is_repeat"),
    [
        ([PLACE], [PLACE], True),
        ([PLACE], [OTHER], False),
        ([(REPLAY_OF_HEADER, b"no place")], [(REPLAY_OF_HEADER, b"no place")], False),
        ([PLACE], [], False),
        (
            [PLACE, ("ce_id", b"1"), ("ce_source", b"bot")],
            [PLACE, ("ce_id", b"2"), ("ce_source", b"bot")],
            True,
        ),
        (
            [("ce_id", b"1"), ("ce_source", b"bot")],
            [PLACE, ("ce_id", b"1"), ("ce_source", b"bot")],
            True,
        ),
    ],
)
def test_a_second_record_from_the_same_place_is_a_repeat(
    first: Sequence[tuple[str, bytes]], second: Sequence[tuple[str, bytes]], *, is_repeat: bool
) -> None:
    feed = (
        Feed()
        .send("audit", ENTRY, 0, envelope=read_envelope(first))
        .send("audit", ENTRY, 1, envelope=read_envelope(second))
    )
    counts = {
        count.labels[1]: count.by
        for count in feed.evaluator.drain_counts()
        if "events" in count.metric
    }
    assert counts.get("repeated", 0) == is_repeat


@pytest.mark.parametrize(("copy_of", "is_repeat"), [(7, True), (8, False)])
@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_record_that_is_taken_where_it_was_refused_and_put_back_too_counts_once(
    copy_of: int, *, is_repeat: bool, is_in_order: bool
) -> None:
    """An evaluator with the fix begins in front of both."""
    value = json.dumps({"timestamp": T0_MS, **ENTRY}).encode()
    copy = (REPLAY_OF_HEADER, f"x.audit.events[0]@{copy_of}".encode())
    records = [
        BrokerRecord("audit.events", 7, T0_MS, b"call", value),
        *(
            BrokerRecord("audit.events", offset, T0_MS, b"call", value, headers=(copy,))
            for offset in (20, 21)
        ),
    ]
    evaluator = PartitionEvaluator(Limits(), "test")
    for record in records if is_in_order else records[1:]:
        arrival = instance_of(Arrival, admit(InputSource.AUDIT, record, Limits()))
        evaluator.receive(arrival)
    counts = {
        count.labels[1]: count.by for count in evaluator.drain_counts() if "events" in count.metric
    }
    assert counts.get("folded") == (1 if is_repeat or not is_in_order else 2)


def test_the_place_is_known_of_an_event_in_structured_mode_too() -> None:
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "bot",
        "type": "t",
        "data": {"timestamp": T0_MS, **ENTRY},
    }
    headers = (("content-type", b"application/cloudevents+json"), PLACE)
    record = BrokerRecord(
        "audit.events", 0, T0_MS, b"call", json.dumps(event).encode(), headers=headers
    )
    arrival = instance_of(Arrival, admit(InputSource.AUDIT, record, Limits()))
    assert arrival.envelope is not None
    assert (arrival.envelope.id, arrival.envelope.replay_of) == ("1", "audit.events[0]@7")
