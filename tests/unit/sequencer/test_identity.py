"""Whether another log is in the place of the one that was read."""

import pytest

from consumers.sequencer.merge import FROM_THE_FIRST, Witness, merged
from schemas.log import Next
from tests.support.brokers.record_bytes import stand_in
from tests.unit.sequencer.input_records import NOW_MS, Record, an_input, read


def test_one_that_is_found_begins_at_its_first_record() -> None:
    each = an_input()
    assert each.handed == FROM_THE_FIRST
    each.begin(7, NOW_MS)
    assert (each.next, each.position, each.is_placed) == (Next(0, 7), 7, True)


def test_it_goes_on_behind_records_that_were_deleted_unread() -> None:
    each = an_input(place=Next(2, 5))
    each.begin(9, NOW_MS)
    assert (each.next, each.position) == (Next(2, 9), 9)


def test_reading_goes_on_with_the_record_before_if_it_is_known() -> None:
    each = an_input(place=Next(2, 5), witness=Witness.of(NOW_MS, b"call-1", b"{}"))
    each.begin(0, NOW_MS)
    assert each.position == 4
    each.told(NOW_MS, 5, each.handed)
    each.settle()
    assert each.known_ms == 0, "nothing is known before it is seen"
    assert each.put([Record(4), Record(5)], NOW_MS)
    assert [record.offset for record in each.records] == [5]


@pytest.mark.parametrize(
    "other", [Record(4, NOW_MS + 1), Record(4, key=b"call-2"), Record(4, value=b"[]")]
)
def test_another_record_in_its_place_shows_another_log(other: Record) -> None:
    each = an_input(place=Next(2, 5), witness=Witness.of(NOW_MS, b"call-1", b"{}"))
    each.begin(0, NOW_MS)
    assert not each.put([other, Record(5)], NOW_MS)
    assert not each.is_placed
    assert not each.records
    each.renew()
    assert each.next == Next(3, 0)
    each.begin(0, NOW_MS)
    assert each.put([Record(0)], NOW_MS)
    assert merged([each], None)[0][0].next == Next(3, 1)


def test_of_a_record_whose_time_alone_is_known_that_must_be_the_same() -> None:
    known = Witness(NOW_MS, None)
    assert known.may_be(Record(4))
    assert known.may_be(Record(4, key=b"call-2"))
    assert not known.may_be(Record(4, NOW_MS + 1))
    assert known.may_be(stand_in("pipecat.events", 4, 4))


def test_the_time_of_the_record_before_a_place_goes_with_it() -> None:
    each = read(NOW_MS - 3, NOW_MS - 5)
    assert (each.next, each.before_next_ms) == (Next(0, 0), 0)
    each.pop_until(NOW_MS - 3)
    assert (each.next, each.before_next_ms) == (Next(0, 2), NOW_MS - 5), "its own, not the highest"
    each.begin(0, NOW_MS)
    assert (each.next, each.before_next_ms) == (Next(0, 2), NOW_MS - 5)
    each.begin(7, NOW_MS)
    assert (each.next, each.before_next_ms) == (Next(0, 7), 0), "those in between were deleted"
    each.renew()
    assert (each.next, each.before_next_ms) == (Next(1, 0), 0)


def test_nothing_is_known_of_the_time_of_what_cannot_be_decoded() -> None:
    each = read(NOW_MS)
    each.put([stand_in("pipecat.events", 1, 4)], NOW_MS)
    each.pop_until(None)
    assert (each.next, each.before_next_ms) == (Next(0, 5), 0)


def test_a_place_whose_record_is_gone_proves_nothing_and_is_read_on() -> None:
    each = an_input(place=Next(2, 5), witness=Witness.of(NOW_MS, b"call-1", b"{}"))
    each.begin(5, NOW_MS)
    assert each.position == 5
    assert each.put([Record(5)], NOW_MS)


def test_an_end_below_what_was_read_is_another_logs() -> None:
    each = read(1, 2)
    each.told(NOW_MS, 1, each.handed)
    assert not each.is_placed


def test_what_was_read_of_a_log_that_is_gone_is_of_its_generation() -> None:
    each = read(1, 2)
    assert [record.offset for record in each.pop_until(None)[0]] == [0, 1]
    assert each.next == Next(0, 2)
    each.renew()
    assert (each.next, each.handed) == (Next(1, 0), FROM_THE_FIRST)
    each.begin(0, NOW_MS)
    assert each.position == 0, "nothing is known of a record in front of it"
