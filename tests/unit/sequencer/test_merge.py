"""In which order records are appended, and up to which time all inputs are read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.sequencer.merge import (
    MAX_AHEAD_BYTES,
    MAX_AHEAD_RECORDS,
    PATIENCE_MS,
    SILENT_MS,
    STALE_MS,
    STAMP_MS,
    InputPartition,
    in_order_until_ms,
    known_ms,
    merged,
)
from schemas.closed_sets import InputSource
from schemas.log import Next
from tests.support.brokers.record_bytes import stand_in
from tests.unit.sequencer.input_records import NOW_MS, Record, an_input, read

AUDIT, PIPECAT = InputSource.AUDIT, InputSource.PIPECAT


def offsets(found: list[tuple[InputPartition, Any]]) -> list[tuple[InputSource, int]]:
    return [(each.source, record.offset) for each, record in found]


# The order.


def test_records_of_all_inputs_are_merged_by_time() -> None:
    inputs = [read(1, 4, 6), read(2, 3, 7, source=AUDIT)]
    assert offsets(merged(inputs, None)) == [
        (PIPECAT, 0),
        (AUDIT, 0),
        (AUDIT, 1),
        (PIPECAT, 1),
        (PIPECAT, 2),
        (AUDIT, 2),
    ]
    assert not inputs[0].records
    assert inputs[0].next == Next(0, 3)


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4), st.integers(0, 60)
)
def test_an_input_keeps_its_order_whatever_the_clocks_of_its_producers_say(
    times: list[list[int]], until_ms: int
) -> None:
    inputs = [read(*each, partition=number) for number, each in enumerate(times) if each]
    found = merged(inputs, until_ms) + merged(inputs, None)
    for each in inputs:
        assert [record.offset for owner, record in found if owner is each] == list(
            range(each.handed)
        )


def test_records_wait_for_an_input_that_lags() -> None:
    ahead, lagging = read(1, 5, 9), read(2, 4, source=AUDIT, end=3)
    until_ms = in_order_until_ms([ahead, lagging], NOW_MS)
    assert until_ms == 4, "its next record may have this time too"
    assert offsets(merged([ahead, lagging], until_ms)) == [(PIPECAT, 0), (AUDIT, 0), (AUDIT, 1)]
    lagging.put([Record(2, 6, topic="audit.events")], NOW_MS)
    assert in_order_until_ms([ahead, lagging], NOW_MS) is None
    assert offsets(merged([ahead, lagging], None)) == [(PIPECAT, 1), (AUDIT, 2), (PIPECAT, 2)]


def test_what_is_older_than_all_that_an_input_may_still_have_need_not_wait_for_it() -> None:
    quiet = read(2)
    merged([quiet], None)
    quiet.told(NOW_MS - 10, 1, quiet.handed)
    quiet.settle()
    quiet.told(NOW_MS - 1, 2, quiet.handed)
    assert in_order_until_ms([quiet], NOW_MS) == NOW_MS - 10 - STAMP_MS


def test_nobody_waits_for_ever_for_one_that_does_not_move() -> None:
    lagging = read(2, end=3)
    assert in_order_until_ms([lagging], NOW_MS + PATIENCE_MS) == 2
    assert in_order_until_ms([lagging], NOW_MS + PATIENCE_MS + 1) is None
    lagging.put([Record(1, 3)], NOW_MS + PATIENCE_MS)
    assert in_order_until_ms([lagging], NOW_MS + PATIENCE_MS + 1) == 3, (
        "one that moves may take as long as it needs"
    )


def test_an_input_of_which_the_broker_is_silent_may_have_records() -> None:
    silent = read(2)
    assert in_order_until_ms([silent], NOW_MS + SILENT_MS) is None
    assert in_order_until_ms([silent], NOW_MS + SILENT_MS + 1) == NOW_MS + SILENT_MS
    assert in_order_until_ms([silent], NOW_MS + PATIENCE_MS + 1) is None


def test_before_the_first_answer_nothing_is_appended() -> None:
    unknown = an_input()
    assert in_order_until_ms([read(2), unknown], NOW_MS) == 0
    assert unknown.bound_ms(NOW_MS + PATIENCE_MS + 1) is None
    unknown.begin(0, NOW_MS + PATIENCE_MS)
    unknown.told(NOW_MS + PATIENCE_MS, 1, unknown.handed)
    assert unknown.bound_ms(NOW_MS + PATIENCE_MS + 1) == 0, "it is only read from now on"
    unknown.lose(NOW_MS + PATIENCE_MS)
    assert unknown.bound_ms(NOW_MS + 2 * PATIENCE_MS) == 0, "another leader takes its time"
    assert unknown.bound_ms(NOW_MS + 2 * PATIENCE_MS + 1) is None


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([Record(n, n) for n in range(MAX_AHEAD_RECORDS + 1)], id="records"),
        pytest.param([Record(0, 0, value=bytes(MAX_AHEAD_BYTES + 1))], id="bytes"),
    ],
)
def test_an_input_far_ahead_is_not_read_on_and_the_others_wait_for_what_it_has_not_read(
    records: list[Record],
) -> None:
    full = an_input()
    full.begin(0, NOW_MS)
    full.put(records, NOW_MS)
    full.told(NOW_MS, len(records), full.handed)
    assert full.is_full
    late_ms = NOW_MS + 10 * PATIENCE_MS
    assert full.bound_ms(late_ms) == records[-1].timestamp, "however long that takes"
    merged([full], in_order_until_ms([full], late_ms))
    assert not full.is_full, "which never holds itself up"


def test_an_input_that_can_never_be_decoded_has_its_place_in_the_order() -> None:
    inputs = [read(1, 5), an_input(AUDIT)]
    inputs[1].begin(0, NOW_MS)
    bad = stand_in("audit.events", 0, 4)
    assert inputs[1].put([bad], NOW_MS)
    assert [record for _, record in merged(inputs, None)][-1] is bad
    assert inputs[1].next == Next(0, 5)


# The time.


def test_all_is_known_up_to_the_moment_before_the_question_once_the_end_told_then_is_appended() -> (
    None
):
    each = read(1, 2)
    each.told(NOW_MS, 3, each.handed)
    merged([each], None)
    each.settle()
    assert each.known_ms == 2, "the third record may have any time from here on"
    each.put([Record(2, 7)], NOW_MS)
    each.settle()
    assert each.known_ms == 7, "it is read and not appended, and none before it comes"
    merged([each], None)
    each.settle()
    assert each.known_ms == NOW_MS - STAMP_MS


def test_a_record_whose_broker_had_no_processor_between_stamp_and_log_is_not_below_what_is_known() -> (
    None
):
    each = read()
    stalled_ms = 120  # with 25 threads on two processors
    each.told(NOW_MS + stalled_ms, 0, each.handed)
    each.settle()
    each.put([Record(0, NOW_MS)], NOW_MS)
    assert each.known_ms <= NOW_MS


def test_a_record_that_came_after_the_question_does_not_hold_it_up() -> None:
    each = read(1, NOW_MS + 5)
    each.told(NOW_MS, 1, handed=1)
    merged([each], 1)
    each.settle()
    assert (each.settled_ms, each.known_ms, len(each.records)) == (NOW_MS, NOW_MS + 5, 1)


def test_what_is_no_record_counts_by_the_clients_position() -> None:
    each = read(1)
    merged([each], None)
    each.told(NOW_MS, 2, each.handed)
    each.settle()
    assert each.known_ms == 1
    each.position = 2  # the end of a transaction
    each.settle()
    assert each.known_ms == NOW_MS - STAMP_MS


def test_known_time_is_that_of_the_hindmost_and_of_none_that_is_left_out() -> None:
    one, other = read(), read(source=AUDIT)
    one.told(NOW_MS + PATIENCE_MS + 1, 0, one.handed)
    one.settle()
    assert known_ms([one, other], NOW_MS + PATIENCE_MS) == 0
    assert known_ms([one, other], NOW_MS + PATIENCE_MS + 1) == NOW_MS + PATIENCE_MS + 1 - STAMP_MS
    assert [each.is_left_out(NOW_MS + PATIENCE_MS + 1) for each in (one, other)] == [False, True]
    assert known_ms([], NOW_MS) == 0


@given(st.data())
def test_known_time_is_never_above_a_record_that_is_not_appended(data: st.DataObject) -> None:
    """Inputs get records, answers and questions in any order; each is read as far as it happens to
    be.
    """
    logs: dict[int, list[int]] = {0: [], 1: [], 2: []}
    inputs = [an_input(partition=number, now_ms=0) for number in logs]
    for each in inputs:
        each.begin(0, 0)
    now_ms, appended, told = 1, dict.fromkeys(logs, 0), 0
    for _ in range(data.draw(st.integers(1, 60))):
        now_ms += data.draw(st.integers(0, 3))
        number = data.draw(st.sampled_from(sorted(logs)))
        each, log = inputs[number], logs[number]
        match data.draw(st.sampled_from(["written", "read", "asked", "step"])):
            case "written":
                log.append(now_ms)
            case "read" if len(log) > each.handed:
                until = data.draw(st.integers(each.handed + 1, len(log)))
                each.put(
                    [Record(at, log[at], partition=number) for at in range(each.handed, until)],
                    now_ms,
                )
            case "asked":
                each.told(now_ms, len(log), each.handed)
            case "step":
                for owner, _ in merged(inputs, in_order_until_ms(inputs, now_ms)):
                    appended[owner.tp.partition] += 1
        for one in inputs:
            one.settle()
        told = max(told, known_ms(inputs, now_ms))
        unread = [ms for at in logs for ms in logs[at][appended[at] :]]
        assert told <= min(unread, default=now_ms)


def test_lag_is_counted_from_the_last_moment_at_which_all_was_in_the_log() -> None:
    found = an_input()
    found.told(NOW_MS, 5, found.handed)
    assert (found.lag_messages, found.lag_ms(NOW_MS)) == (5, 0), "found just now"
    each = read(1, 2)
    each.told(NOW_MS, 5, each.handed)
    assert (each.lag_messages, each.lag_ms(NOW_MS)) == (5, NOW_MS - 1)
    merged([each], None)
    assert (each.lag_messages, each.lag_ms(NOW_MS)) == (3, NOW_MS - 2)
    each.put([Record(at, 9) for at in (2, 3, 4)], NOW_MS)
    merged([each], None)
    assert (each.lag_messages, each.lag_ms(NOW_MS + STALE_MS)) == (0, 0)
    assert each.lag_ms(NOW_MS + STALE_MS + 1) > 0, "the broker tells nothing"
