"""Which events open a call, which wait, and which are refused."""

import json

import pytest

from consumers.engine.admission import WHAT_HAPPENS_NOW, Arrival, admit
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource, RefusalReason
from schemas.events.codec import decode
from schemas.events.envelope import Envelope
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, GoalsRow
from schemas.wire import MAX_NAME_CHARS
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.engine_feed import T0_MS, Feed, closings_of, rows_of
from tests.support.known import instance_of

NOW_MS = 1_790_000_000_000
DAY_MS = 24 * 3_600_000
LIMITS = Limits(max_record_bytes=100_000, max_event_time_skew_ms=DAY_MS)


def record_of(
    value: bytes | None,
    key: bytes | None = b"call-7",
    topic: str = "audit.events",
    headers: tuple[tuple[str, bytes], ...] = (),
) -> BrokerRecord:
    return BrokerRecord(topic, 41, NOW_MS, key, value, 3, headers)


def _value(**fields: object) -> bytes:
    return json.dumps(
        {"message_type": "user", "value": "Hello", "timestamp": NOW_MS} | fields
    ).encode()


def test_a_good_record_is_an_arrival() -> None:
    record = record_of(value=_value(), headers=(("ce_id", b"e-1"),))
    admitted = instance_of(Arrival, admit(InputSource.AUDIT, record, LIMITS))
    assert (admitted.source, admitted.offset, admitted.broker_time_ms) == (
        InputSource.AUDIT,
        41,
        NOW_MS,
    )
    assert admitted.conversation_id == "call-7"
    assert admitted.event.value == "Hello"
    assert admitted.envelope == Envelope("e-1", None, None, None)


def test_the_key_wins_over_an_id_in_the_body() -> None:
    admitted = instance_of(
        Arrival,
        admit(InputSource.AUDIT, record_of(value=_value(conversation_id="another")), LIMITS),
    )
    assert admitted.conversation_id == "call-7"


@pytest.mark.parametrize("field", ["conversation_id", "type", "model"])
@pytest.mark.parametrize("value", [7, ["x"], {"a": 1}, None])
def test_a_verdict_of_wrong_fields_is_an_arrival_or_refused(field: str, value: object) -> None:
    """Its conversation id is read by no rule, and it needs one: such a record ended each evaluator
    of its partition.
    """
    verdict = {
        "type": "judge_verdict",
        "timestamp": NOW_MS,
        "request_id": "r",
        "conversation_id": "c",
        "kind": "subgoal",
        "turn": 1,
        "input_hash": "h",
        "prompt_version": "1",
        "result": {"outcome": "judged", "is_completed": True},
    }
    record = record_of(topic="judge.verdicts", value=json.dumps({**verdict, field: value}).encode())
    admitted = admit(InputSource.JUDGE, record, LIMITS)
    assert isinstance(
        admitted, QuarantineRecord if field == "conversation_id" else (Arrival, QuarantineRecord)
    )
    late = instance_of(
        QuarantineRecord,
        admit(
            InputSource.JUDGE,
            record._replace(value=json.dumps({**verdict, "timestamp": 10**4_000}).encode()),
            LIMITS,
        ),
    )
    assert len(late.message()) < 1_000


@pytest.mark.parametrize("named", ["com.example.user", "user"])
def test_a_cloudevent_in_structured_mode_is_the_event_inside_with_its_attributes(
    named: str,
) -> None:
    attributes = {
        "specversion": "1.0",
        "id": "e-1",
        "source": "bot",
        "type": named,
        "sequence": "7",
    }
    structured = json.dumps({**attributes, "data": json.loads(_value())}).encode()
    admitted = instance_of(
        Arrival,
        admit(
            InputSource.AUDIT, record_of(value=structured, headers=(("ce_id", b"other"),)), LIMITS
        ),
    )
    assert admitted.event.value == "Hello"
    assert admitted.envelope == Envelope("e-1", "bot", named, 7)
    assert admitted.value == _value().replace(b": ", b":").replace(b", ", b",")


def test_words_about_cloudevents_are_words() -> None:
    admitted = instance_of(
        Arrival, admit(InputSource.AUDIT, record_of(value=_value(value='"specversion"')), LIMITS)
    )
    assert admitted.event.value == '"specversion"'


REFUSED = [
    (record_of(value=b"{"), RefusalReason.UNDECODABLE, "JSON"),
    (record_of(value=None), RefusalReason.UNDECODABLE, "no value"),
    (record_of(value=_value(value=None)), RefusalReason.INVALID_EVENT, "value"),
    (record_of(value=_value(value="x" * 40_000)), RefusalReason.TEXT_TOO_LONG, "40000 characters"),
    (record_of(value=_value(), key=None), RefusalReason.EMPTY_KEY, "no key"),
    (record_of(value=_value(), key=b""), RefusalReason.EMPTY_KEY, "no key"),
    (
        record_of(value=_value(), key=b"k" * (MAX_NAME_CHARS + 1)),
        RefusalReason.EMPTY_KEY,
        f"{MAX_NAME_CHARS + 1} bytes",
    ),
    (record_of(value=b"x" * 100_001), RefusalReason.RECORD_TOO_LARGE, "saw 100001"),
    (
        record_of(value=_value(timestamp=NOW_MS + DAY_MS + 1)),
        RefusalReason.TIME_OUT_OF_BOUNDS,
        str(NOW_MS + DAY_MS + 1),
    ),
    (
        record_of(value=_value(timestamp=NOW_MS // 1000)),
        RefusalReason.TIME_OUT_OF_BOUNDS,
        "looks like seconds",
    ),
    (
        record_of(value=_value(timestamp=1_500_000_000)),
        RefusalReason.TIME_OUT_OF_BOUNDS,
        "here 1500000000000",
    ),
    (
        record_of(value=_value(timestamp=NOW_MS // 7)),
        RefusalReason.TIME_OUT_OF_BOUNDS,
        "clock and unit",
    ),
    (
        record_of(
            topic="elevenlabs.events",
            value=json.dumps(
                {"event_type": "audio_end", "user": "x", "audio_timestamp": 1, "timestamp": 1}
            ).encode(),
        ),
        RefusalReason.UNKNOWN_ROLE,
        "role",
    ),
]


@pytest.mark.parametrize(("record", "reason", "words"), REFUSED)
def test_a_refusal_says_what_where_why_and_what_to_do(
    record: BrokerRecord, reason: RefusalReason, words: str
) -> None:
    source = InputSource.ELEVENLABS if record.topic.startswith("eleven") else InputSource.AUDIT
    refused = instance_of(QuarantineRecord, admit(source, record, LIMITS))
    assert refused.reason is reason
    message = refused.message()
    assert f"{record.topic}[3]@41" in message
    assert words in message
    for part in (refused.what, refused.expected_and_seen, WHAT_HAPPENS_NOW, refused.what_to_do):
        assert part
        assert part in message
    assert len(message) < 1_000
    assert len(refused.key) <= MAX_NAME_CHARS
    assert refused.quarantined_at_ms == NOW_MS
    assert QuarantineRecord.model_validate_json(refused.model_dump_json()) == refused


@pytest.mark.parametrize(("last", "where"), [(41, "@41: "), (47, "@41 to @47: ")])
def test_records_that_the_client_cannot_decode_are_refused_by_their_places(
    last: int, where: str
) -> None:
    refused = instance_of(
        QuarantineRecord, admit(InputSource.AUDIT, stand_in("audit.events", 41, last), LIMITS)
    )
    assert (refused.reason, refused.offset, refused.key) == (RefusalReason.UNDECODABLE, 41, "")
    assert refused.last_offset == (None if last == 41 else last)
    assert f"audit.events[0]{where}the batch cannot be unpacked" in refused.message()
    assert QuarantineRecord.model_validate_json(refused.model_dump_json()) == refused


def test_every_reason_is_tried() -> None:
    assert {reason for _, reason, _ in REFUSED} == set(RefusalReason)


def test_the_payload_stays_where_it_is() -> None:
    refused = instance_of(
        QuarantineRecord,
        admit(
            InputSource.AUDIT, record_of(value=_value(value={"secret": "s3cret" * 10_000})), LIMITS
        ),
    )
    assert refused.model_dump_json().count("s3cret") <= 13


@pytest.mark.parametrize("offset_ms", [DAY_MS, -DAY_MS])
def test_times_within_the_bounds_pass(offset_ms: int) -> None:
    assert isinstance(
        admit(InputSource.AUDIT, record_of(value=_value(timestamp=NOW_MS + offset_ms)), LIMITS),
        Arrival,
    )


def test_zero_takes_recorded_calls_of_any_year() -> None:
    limits = LIMITS.model_copy(update={"max_event_time_skew_ms": 0})
    assert isinstance(
        admit(InputSource.AUDIT, record_of(value=_value(timestamp=1)), limits), Arrival
    )


def test_events_without_a_time_have_no_bounds() -> None:
    record = record_of(topic="elevenlabs.events", value=b'{"type": "timeout"}')
    assert isinstance(admit(InputSource.ELEVENLABS, record, LIMITS), Arrival)


def test_a_key_that_is_no_text_is_refused() -> None:
    """With replaced bytes, the calls of two such keys would become one."""
    refused = instance_of(
        QuarantineRecord,
        admit(InputSource.AUDIT, record_of(_value(), key=b"\xff\xfe"), LIMITS),
    )
    assert (refused.reason, "\\xff" in refused.expected_and_seen) == (RefusalReason.EMPTY_KEY, True)


WORD = {"message_type": "user", "value": "Hello"}
ENDED = {"type": "call_ended", "reason": "goodbye"}


def word(key: str, offset: int) -> Arrival:
    value = b'{"message_type": "user", "value": "Hello", "timestamp": "%d"}' % (T0_MS + offset)
    event = decode(InputSource.AUDIT, value)
    return Arrival(InputSource.AUDIT, offset, T0_MS + offset, key, event, value, None)


def test_a_record_of_a_call_that_is_over_or_closed_opens_none_and_is_counted() -> None:
    feed = Feed(Limits(max_events_per_call=1)).send("audit", WORD, 0)
    assert feed.evaluator.closing_calls == 1
    assert feed.send("audit", WORD, 10).latest == []
    feed.close_all()
    assert feed.evaluator.open_calls == ()
    assert feed.send("audit", WORD, 20).latest == []
    assert feed.counts("callgauge_events_total") == {
        ("audit", "folded"): 1,
        ("audit", "after_close"): 2,
    }


@pytest.mark.parametrize("evicted", ["one", "gone"])
def test_who_has_fewer_calls_open_closes_what_an_earlier_owner_closed_for_want_of_room(
    evicted: str,
) -> None:
    evaluator = PartitionEvaluator(Limits(), "test")
    evaluator.receive(word("one", 0))
    evaluator.evict(evicted, word("two", 1))
    evaluator.receive(word("two", 1))
    assert evaluator.open_calls == ("one", "two")
    assert evaluator.evicted == ({"one": 1} if evicted == "one" else {})
    closings = closings_of(evaluator.close_some())
    assert [(each.conversation_id, each.known_ms) for each in closings] == (
        [("one", T0_MS + 1)] if evicted == "one" else []
    )


def test_what_a_large_close_publishes_comes_with_its_last_step_whatever_comes_between() -> None:
    def talked() -> Feed:
        feed = Feed()
        feed.evaluator = PartitionEvaluator(
            Limits(words=False), "test", writes_transcripts=True
        )  # it redacts at the close
        for number in range(8):
            at_ms = 5_000 * number
            feed.user_audio(at_ms, at_ms + 1_000, text=f"{number} " + "1," * 8_000).assistant_audio(
                at_ms + 1_500, at_ms + 2_500
            )
        feed.send("audit", ENDED, 60_000)
        feed.evaluator.pass_time(T0_MS + 70_000)
        return feed

    at_once, slowly = talked(), talked()
    expected = rows_of(at_once.close_all().latest)
    steps: list[list[Effect]] = []
    while slowly.evaluator.closing_calls:
        slowly.send("audit", WORD, 70_000 + len(steps), key=f"between-{len(steps)}").send(
            "audit", WORD, 70_000 + len(steps)
        )
        slowly.evaluator.pass_time(T0_MS + 71_000 + len(steps))
        steps.append([*slowly.evaluator.close_some()])
    assert len(steps) > 2
    assert [effect for step in steps[:-1] for effect in step] == []
    assert rows_of(steps[-1]) == expected


def test_a_revision_is_the_place_of_the_step_that_decided_and_of_a_close_that_of_the_end() -> None:
    """Of another call's records in between nothing depends."""
    evaluator = PartitionEvaluator(Limits(), "test")
    rows = rows_of(evaluator.receive(word("one", 4)))
    rows += rows_of(evaluator.receive(word("two", 5)))
    rows += rows_of(evaluator.pass_time(T0_MS + 10**9, 7))
    rows += rows_of(evaluator.receive(word("three", 9)))
    while evaluator.closing_calls:
        rows += rows_of(evaluator.close_some())
    revisions = {
        (row.conversation_id, row.news): row.revision for row in rows if isinstance(row, CallRow)
    }
    assert revisions["one", ("started",)] == 8
    assert (revisions["one", ("closed",)], revisions["two", ("closed",)]) == (14, 14)
    assert revisions["three", ("started",)] == 18


def test_without_a_tick_time_passes_behind_the_last_record() -> None:
    evaluator = PartitionEvaluator(Limits(), "test")
    evaluator.receive(word("one", 4))
    assert [each.revision for each in closings_of(evaluator.advance(T0_MS + 10**9))] == [9]


def test_where_a_log_was_made_anew_revisions_go_on_above_those_of_the_old_one() -> None:
    evaluator = PartitionEvaluator(Limits(), "test")
    evaluator.base = 1_000
    rows = rows_of([*evaluator.receive(word("one", 4)), *evaluator.advance(T0_MS + 10**9, 7)])
    assert {row.revision for row in rows} == {1_008, 1_014}


def test_of_a_call_that_was_evicted_the_close_has_the_place_of_the_record_that_opened_another() -> (
    None
):
    evaluator = PartitionEvaluator(Limits(max_open_calls=1), "test")
    evaluator.receive(word("one", 4))
    evaluator.receive(word("two", 6))
    rows = rows_of(evaluator.close_some())
    assert {(row.conversation_id, row.revision) for row in rows} == {("one", 12)}


def test_of_a_call_that_lacks_records_nothing_counts_until_it_closes() -> None:
    """A former owner may have counted it."""
    evaluator = PartitionEvaluator(Limits(max_closed_calls_remembered=1), "test")
    evaluator.lacking = {"one"}
    rows = rows_of([*evaluator.receive(word("one", 0)), *evaluator.advance(T0_MS + 10**9)])
    assert rows
    assert {row.news for row in rows if not isinstance(row, GoalsRow)} == {()}
    evaluator.has_closed("another")
    (again,) = rows_of(evaluator.receive(word("one", 2)))
    assert isinstance(again, CallRow)
    assert again.news == ("started",), "this one is another call"
