"""Records of the log: headers, ticks, and what a reader of one partition returns of them."""

import struct
from collections.abc import Sequence

import pytest

from schemas.closed_sets import InputSource
from schemas.log import (
    OUR_HEADERS,
    PLACED_HEADER,
    SOURCES,
    TICK_HEADER,
    Begin,
    Event,
    LogError,
    LogReader,
    Next,
    Origin,
    Placed,
    Tick,
    placed_in,
    tick_term,
)
from tests.support.fakes.broker_records import BrokerRecord

AUDIT, PIPECAT = (InputSource.AUDIT, 0), (InputSource.PIPECAT, 2)


class Log:
    """One partition of the log, written by hand and read at once."""

    def __init__(self) -> None:
        self.records: list[BrokerRecord] = []
        self.reader = LogReader()

    def event(
        self,
        offset: int,
        *,
        term: int = 1,
        generation: int = 0,
        at: tuple[InputSource, int] = AUDIT,
        key: str = "call",
    ) -> Event | Tick | None:
        placed = Placed(term, Origin(at[0], generation, at[1], offset, 1_000 + offset))
        return self._put(
            key.encode(), f"{at[0]} {offset}".encode(), [("ce_id", b"e"), placed.header()]
        )

    def tick(
        self, known_ms: int, positions: dict[tuple[InputSource, int], Next], *, term: int = 1
    ) -> object:
        tick = Tick.of(term, known_ms, positions)
        return self._put(None, tick.value(), [tick.header()])

    def _put(
        self, key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes]]
    ) -> Event | Tick | None:
        self.records.append(
            BrokerRecord(offset=10 * len(self.records), key=key, value=value, headers=headers)
        )
        return self.reader.read(self.records[-1])

    def read_from(self, place: int) -> tuple[LogReader, list[object]]:
        """Another reader, and what it returns from a record on."""
        reader = LogReader()
        return reader, [reader.read(each) for each in self.records if each.offset >= place]


def test_an_origin_takes_the_largest_numbers_that_kafka_has() -> None:
    for source in InputSource:
        origin = Origin(source, 2**32 - 1, 2**31 - 1, 2**63 - 1, -1)
        assert placed_in([("other", b"x"), Placed(2**31 - 1, origin).header()]) == Placed(
            2**31 - 1, origin
        )


def test_every_input_has_its_number_for_ever() -> None:
    assert SOURCES == (
        InputSource.PIPECAT,
        InputSource.ELEVENLABS,
        InputSource.AUDIT,
        InputSource.JUDGE,
    )
    assert set(SOURCES) == set(InputSource)


def test_the_header_of_an_event_is_small_and_does_not_change() -> None:
    placed = Placed(3, Origin(InputSource.AUDIT, 4, 5, 6, 7))
    expected = "010200000003000000040000000500000000000000060000000000000007"
    assert placed.header() == (PLACED_HEADER, bytes.fromhex(expected))
    assert Tick.of(3, 0, {}).header() == (TICK_HEADER, bytes.fromhex("0100000003"))
    assert OUR_HEADERS == (PLACED_HEADER, TICK_HEADER)


GOOD = Placed(1, Origin(InputSource.AUDIT, 0, 0, 0, 0)).header()[1]


@pytest.mark.parametrize(
    ("packed", "seen"),
    [
        (GOOD[:-1], "in 30 bytes"),
        (GOOD + b"\0", "in 30 bytes"),
        (b"", "in 30 bytes"),
        (None, "saw b''"),
        (b"\x02" + GOOD[1:], "expected format 1"),
        (GOOD[:1] + b"\x04" + GOOD[2:], "expected an input below 4, saw 4"),
    ],
)
def test_a_damaged_origin_is_an_error_that_says_what_was_expected(packed: bytes, seen: str) -> None:
    record = BrokerRecord(offset=7, headers=[(PLACED_HEADER, packed)])
    with pytest.raises(LogError, match=seen):
        placed_in(record.headers)
    with pytest.raises(LogError, match=seen):
        LogReader().read(record)


@pytest.mark.parametrize("packed", [b"", b"\x01\0\0\0", b"\x02\0\0\0\0", None])
def test_a_damaged_term_of_a_tick_is_an_error(packed: bytes) -> None:
    with pytest.raises(LogError, match="expected format 1 in 5 bytes"):
        tick_term([(TICK_HEADER, packed)])


def test_a_tick_says_what_it_was_made_of() -> None:
    positions = {AUDIT: Next(1, 7), PIPECAT: Next(0, 2**62), (InputSource.PIPECAT, 0): Next(0, 0)}
    tick = Tick.of(9, -1, positions, ["judge.verdicts 3"])
    assert Tick.parse(tick.value()) == tick
    assert (tick.term, tick.known_ms, tick.positions, tick.left_out) == (
        9,
        -1,
        positions,
        ("judge.verdicts 3",),
    )
    assert tick_term([("x", b"y"), tick.header()]) == 9


def test_a_tick_with_more_in_it_is_read_by_those_who_do_not_know_that() -> None:
    assert Tick.parse(
        b'{"term":1,"known_ms":2,"inputs":{"audit":{"3":[0,4,null]}},"more":1}'
    ).positions == {(InputSource.AUDIT, 3): Next(0, 4)}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{}",
        b'{"term":-1,"known_ms":2,"inputs":{}}',
        b'{"term":1,"known_ms":2,"inputs":{"audit":{"0":[0]}}}',
        b'{"term":1,"known_ms":2,"inputs":{"other":{}}}',
        b'{"term":1,"known_ms":2,"inputs":{"audit":{"0":[0,-1]}}}',
    ],
)
def test_a_value_that_is_no_tick_is_an_error(value: bytes | None) -> None:
    with pytest.raises(LogError, match="expected a tick"):
        LogReader().read(
            BrokerRecord(key=None, value=value, headers=[(TICK_HEADER, struct.pack(">BI", 1, 1))])
        )


def test_a_record_without_a_header_of_ours_is_an_error() -> None:
    with pytest.raises(LogError, match="neither header"):
        LogReader().read(BrokerRecord(headers=[("ce_id", b"e")]))


def test_an_event_is_as_its_input_had_it() -> None:
    log = Log()
    log.tick(0, {})
    assert log.event(7, term=2, generation=3, at=PIPECAT) == Event(
        "pipecat.events",
        2,
        7,
        1_007,
        b"call",
        b"pipecat 7",
        [("ce_id", b"e")],
        InputSource.PIPECAT,
        3,
        2,
        10,
    )


def test_an_offset_that_was_there_is_a_repeat_on_its_partition_alone() -> None:
    log = Log()
    assert log.event(4) is not None
    assert log.event(4) is None
    assert log.event(3) is None
    assert log.event(3, at=PIPECAT) is not None
    assert log.event(3, at=(InputSource.AUDIT, 1)) is not None
    assert log.event(5) is not None
    assert log.reader.repeats == 2


def test_an_input_made_anew_begins_at_its_first_offset_and_the_old_one_is_over() -> None:
    log = Log()
    log.event(4)
    assert log.event(0, generation=1) is not None
    assert log.event(0, generation=1) is None
    assert log.event(1, generation=1) is not None
    assert log.reader.repeats == 1


def test_an_event_of_an_input_as_it_was_before_is_no_repeat_and_is_told() -> None:
    """Its sequencer would go on like that, and nobody would see it."""
    log = Log()
    log.event(4)
    log.tick(0, {AUDIT: Next(1, 0)})
    with pytest.raises(LogError, match=r"generation 1 of audit\[0\] or a later one, saw 0"):
        log.event(5)
    assert log.event(0, generation=1) is not None
    assert not log.reader.repeats


def test_what_a_tick_says_is_in_the_log_is_a_repeat_behind_it() -> None:
    log = Log()
    log.tick(0, {AUDIT: Next(0, 5), PIPECAT: Next(1, 0)})
    assert log.event(4) is None
    assert log.event(5) is not None
    assert log.event(0, generation=1, at=PIPECAT) is not None
    log.tick(0, {AUDIT: Next(0, 9)})  # some in between were refused
    assert log.event(7) is None


def test_a_tick_that_says_less_than_the_log_has_does_not_bring_it_back() -> None:
    log = Log()
    log.event(4)
    log.tick(0, {AUDIT: Next(0, 2)})
    assert log.event(4) is None
    assert log.event(5) is not None


def test_a_lower_term_is_void_from_the_first_record_of_a_higher_one_on() -> None:
    log = Log()
    log.tick(100, {}, term=5)
    assert log.event(0, term=5) is not None
    log.tick(100, {AUDIT: Next(0, 1)}, term=6)
    assert log.event(1, term=5) is None
    assert log.tick(900, {AUDIT: Next(0, 2)}, term=5) is None
    assert log.event(1, term=6) is not None
    assert (log.reader.void, log.reader.repeats, log.reader.known_ms, log.reader.term) == (
        2,
        0,
        100,
        6,
    )


def test_a_repeat_of_a_higher_term_makes_the_lower_one_void() -> None:
    log = Log()
    log.event(4, term=5)
    assert log.event(4, term=6) is None
    assert log.event(5, term=5) is None
    assert (log.reader.void, log.reader.repeats) == (1, 1)


def test_time_never_goes_back() -> None:
    log = Log()
    assert log.reader.known_ms == 0
    log.tick(100, {})
    log.tick(90, {}, term=2)
    assert log.reader.known_ms == 100


def test_reading_may_begin_at_a_tick_that_says_all_and_gives_the_same() -> None:
    log = Log()
    log.event(4)
    log.tick(100, {AUDIT: Next(0, 5)})
    assert log.reader.begin == Begin(10, 100)
    log.event(5)
    log.event(5, term=2)
    log.event(6, term=1)
    log.event(0, term=2, at=PIPECAT)
    reader, read = log.read_from(10)
    assert read == log.read_from(0)[1][1:]
    assert vars(reader) | {"repeats": 1, "void": 1} == vars(log.reader)


@pytest.mark.parametrize(
    ("known_ms", "positions"),
    [
        (200, {AUDIT: Next(0, 5)}),  # pipecat has a record
        (200, {AUDIT: Next(0, 4), PIPECAT: Next(0, 1)}),
        (200, {AUDIT: Next(0, 5), PIPECAT: Next(0, 0)}),
        (99, {AUDIT: Next(0, 5), PIPECAT: Next(0, 1)}),
    ],
)
def test_reading_may_not_begin_at_a_tick_that_says_less_than_is_in_front_of_it(
    known_ms: int, positions: dict[tuple[InputSource, int], Next]
) -> None:
    log = Log()
    log.tick(100, {})
    log.event(4)
    log.event(0, at=PIPECAT)
    assert isinstance(log.tick(known_ms, positions, term=2), Tick)
    assert log.reader.begin == Begin(0, 100)
    log.tick(200, {AUDIT: Next(0, 5), PIPECAT: Next(0, 1)}, term=2)
    assert log.reader.begin == Begin(40, 200)


def test_reading_may_not_begin_at_a_void_tick() -> None:
    log = Log()
    log.tick(100, {}, term=2)
    log.tick(200, {}, term=1)
    assert log.reader.begin == Begin(0, 100)
