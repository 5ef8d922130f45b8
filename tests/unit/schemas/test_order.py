"""The records of `order`: steps come back as they were noted, and damaged bytes are refused."""

from collections.abc import Callable, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.closed_sets import InputSource
from schemas.order import (
    SOURCES,
    START_HEADER,
    Closed,
    Evicted,
    Fold,
    GoalsChosen,
    OrderDecoder,
    OrderEncoder,
    OrderError,
    OrderStart,
    Renumbered,
    Step,
    TimePassed,
    order_value,
    start_in,
)

NOW_MS: Final = 1_790_000_000_000

_ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_positions = st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 2**63), max_size=4)
_times_ms = st.integers(-1, 2**53)
# A record by the number of offsets before it that have none, because a step has its offset only behind the ones before it.
_folds = st.tuples(st.sampled_from(SOURCES), st.one_of(st.just(0), st.integers(0, 2**40)), st.none() | _ids)
_other_steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(TimePassed, _times_ms),
    st.builds(Evicted, _ids),
    st.builds(Closed, _ids),
    st.builds(GoalsChosen, _ids, _ids, _ids),
    st.builds(Renumbered, _ids, st.integers(0, 2**40), st.booleans()),
)
_noted = st.lists(st.one_of(_folds, _other_steps), max_size=30)
Noted = Sequence[tuple[InputSource, int, str | None] | Step]


def note(encoder: OrderEncoder, noted: Noted) -> list[Step]:
    """Notes steps; returns them as they are with their offsets."""
    steps: list[Step] = []
    for each in noted:
        match each:
            case TimePassed(now_ms):
                encoder.pass_time(now_ms)
            case Evicted(conversation_id):
                encoder.evict(conversation_id)
            case Closed(conversation_id):
                encoder.close(conversation_id)
            case GoalsChosen(conversation_id, goals_id, digest):
                encoder.choose_goals(conversation_id, goals_id, digest)
            case Renumbered():
                encoder.renumber(each)
            case (InputSource() as source, passed, opened):
                each = Fold(source, encoder.positions[source] + passed, opened)
                encoder.fold(*each)
        assert isinstance(each, Step)
        steps.append(each)
    return steps


def start(encoder: OrderEncoder) -> OrderStart:
    """The state of an encoder, as a header carries it."""
    written = OrderStart(version="1", positions=dict(encoder.positions), time_ms=encoder.time_ms)
    read = start_in([("other", b"\xff"), written.header()])
    assert read == written
    return read


@given(_positions, _times_ms, _noted)
def test_every_step_comes_back_as_it_was_noted(positions: dict[InputSource, int], time_ms: int, noted: Noted) -> None:
    encoder = OrderEncoder(positions, time_ms)
    decoder = OrderDecoder(start(encoder))
    steps = note(encoder, noted)
    size = len(encoder)
    value = encoder.take()
    assert (size, len(encoder), encoder.take()) == (len(value), 0, b"")
    assert [*decoder.steps(order_value(value))] == steps
    assert (decoder.positions, decoder.time_ms) == (encoder.positions, encoder.time_ms)


@given(_positions, _times_ms, st.lists(st.tuples(_noted, st.booleans()), min_size=1, max_size=5), st.integers(0, 4))
def test_reading_may_begin_at_any_start(
    positions: dict[InputSource, int], time_ms: int, noted: Sequence[tuple[Noted, bool]], first: int
) -> None:
    encoder = OrderEncoder(positions, time_ms)
    records: list[tuple[OrderStart | None, bytes, list[Step]]] = []
    for place, (some, has_start) in enumerate(noted):
        begins = start(encoder) if has_start or place == first % len(noted) else None
        steps = note(encoder, some)
        records.append((begins, order_value(encoder.take()), steps))
    records = records[first % len(noted) :]
    assert records[0][0] is not None
    decoder = OrderDecoder(records[0][0])
    for begins, value, steps in records:
        if begins is not None:
            decoder.begin(begins)
        assert [*decoder.steps(value)] == steps


def test_another_owner_may_begin_where_the_last_record_before_it_ended_or_later() -> None:
    decoder = OrderDecoder(OrderStart(version="1", positions={InputSource.AUDIT: 3}, time_ms=NOW_MS))
    encoder = OrderEncoder({InputSource.AUDIT: 3}, NOW_MS)
    encoder.fold(InputSource.AUDIT, 5, "a")
    assert [*decoder.steps(order_value(encoder.take()))] == [Fold(InputSource.AUDIT, 5, "a")]
    later = OrderStart(version="2", positions={InputSource.AUDIT: 9}, time_ms=NOW_MS - 1)
    decoder.begin(later)
    assert (decoder.positions[InputSource.AUDIT], decoder.time_ms) == (9, NOW_MS - 1)
    for positions in ({InputSource.AUDIT: 8}, {}):
        with pytest.raises(OrderError, match="before the end of the one before it"):
            decoder.begin(OrderStart(version="3", positions=positions, time_ms=NOW_MS))


@pytest.mark.parametrize("source", SOURCES)
def test_a_record_that_follows_the_one_before_it_takes_one_byte(source: InputSource) -> None:
    encoder = OrderEncoder({source: 10**12}, NOW_MS)
    for place in range(3):
        encoder.fold(source, 10**12 + place)
        assert len(encoder) == place + 1


def test_a_few_offsets_without_a_record_cost_nothing_more() -> None:
    """A transaction of a producer leaves one."""
    encoder = OrderEncoder({}, NOW_MS)
    encoder.fold(InputSource.AUDIT, 14)
    assert len(encoder) == 1
    encoder.fold(InputSource.AUDIT, 2_000)
    assert len(encoder) == 3


def test_every_input_has_a_number_and_none_has_two() -> None:
    assert sorted(SOURCES) == sorted(InputSource)


def test_a_record_that_was_folded_is_not_noted_again() -> None:
    encoder = OrderEncoder({InputSource.AUDIT: 3}, NOW_MS)
    with pytest.raises(ValueError, match="audit@2 comes after 2"):
        encoder.fold(InputSource.AUDIT, 2)


def decoded(value: bytes) -> list[Step] | None:
    """The steps in a value; None if it is refused."""
    try:
        return [*OrderDecoder(OrderStart(version="1", positions={}, time_ms=0)).steps(value)]
    except OrderError:
        return None


@given(_noted, st.data())
def test_a_record_that_was_cut_off_is_refused_or_has_the_first_steps(noted: Noted, data: st.DataObject) -> None:
    encoder = OrderEncoder({}, 0)
    steps = note(encoder, noted)
    value = order_value(encoder.take())
    cut = data.draw(st.integers(0, len(value)))
    found = decoded(value[:cut])
    assert found is None or found == steps[: len(found)]
    assert found is not None or cut < len(value)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=200).map(order_value),
        st.lists(st.integers(0, 13) | st.sampled_from([0x7F, 0x80, 0xFF]), max_size=40).map(bytes).map(order_value),
    )
)
def test_of_damaged_bytes_nothing_but_an_order_error_comes(value: bytes) -> None:
    for step in decoded(value) or ():
        assert isinstance(step, Step)


@given(_noted, st.data())
def test_of_a_damaged_record_nothing_but_an_order_error_comes(noted: Noted, data: st.DataObject) -> None:
    encoder = OrderEncoder({}, 0)
    note(encoder, noted)
    value = bytearray(order_value(encoder.take()))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    decoded(bytes(value))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"", "its format is empty"),
        (b"\x02", "its format is 2, and this version reads 1"),
        (b"\x01\x00", "cut off"),
        (b"\x01\x80", "cut off"),
        (b"\x01\x02\x05call", "cut off"),
        (b"\x01\x02\x01\xff", "cut off"),
        (b"\x01\x04\x01c", "cut off"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(value: bytes, told: str) -> None:
    with pytest.raises(OrderError, match=told):
        list(OrderDecoder(OrderStart(version="1", positions={}, time_ms=0)).steps(value))


def _version_missing(value: bytes) -> bytes:
    return value.replace(b'"version"', b'"other"')


def _unknown_input(value: bytes) -> bytes:
    return value.replace(b'"audit"', b'"telepathy"')


def _negative_position(value: bytes) -> bytes:
    return value.replace(b":3", b":-3")


@pytest.mark.parametrize("damage", [_version_missing, _unknown_input, _negative_position, lambda value: value[:-1]])
def test_a_damaged_start_is_refused(damage: Callable[[bytes], bytes]) -> None:
    name, value = OrderStart(version="1", positions={InputSource.AUDIT: 3}, time_ms=NOW_MS).header()
    assert name == START_HEADER
    damaged = damage(value)
    assert damaged != value
    with pytest.raises(OrderError, match=START_HEADER):
        start_in([(name, damaged)])


def test_a_record_without_a_start_has_none() -> None:
    assert start_in([]) is None
    assert start_in([("traceparent", b"00-1")]) is None


def test_fields_of_a_later_version_in_a_start_are_left_out() -> None:
    value = b'{"version":"9","positions":{"audit":3},"time_ms":5,"more":[1]}'
    assert start_in([(START_HEADER, value)]) == OrderStart(version="9", positions={InputSource.AUDIT: 3}, time_ms=5)
