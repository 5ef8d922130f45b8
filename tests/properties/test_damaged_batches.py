"""With any damage to one batch in the log, every record of the others is read, once and
in order.
"""

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.support.brokers.record_bytes import (
    HEAD_BYTES,
    PACK,
    Log,
    Written,
    answered,
    batch,
    good,
    sealed,
    undecodable,
)

RECORDS = st.lists(
    st.builds(
        Written,
        key=st.none() | st.binary(max_size=4),
        value=st.none() | st.binary(max_size=30),
        headers=st.lists(
            st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2
        ),
    ),
    min_size=1,
    max_size=5,
)
BATCHES = st.lists(st.tuples(RECORDS, st.sampled_from(list(PACK))), min_size=1, max_size=5)
Shapes = list[tuple[list[Written], int]]


def log_of(shapes: Shapes) -> list[tuple[int, int, bytes]]:
    log: list[tuple[int, int, bytes]] = []
    for records, codec in shapes:
        base = log[-1][1] if log else 0
        log.append((base, base + len(records), batch(base, records, codec)))
    return log


@given(BATCHES, st.integers(HEAD_BYTES, 400))
def test_a_log_is_read_as_it_was_written_however_answers_are_cut(
    shapes: Shapes, answer_bytes: int
) -> None:
    found = Log(log_of(shapes), answer_bytes).read()
    written = [record for records, _ in shapes for record in records]
    assert [(record.key, record.value, list(record.headers)) for record in found] == [
        (record.key, record.value, list(record.headers)) for record in written
    ]
    assert [record.offset for record in found] == list(range(len(written)))


@given(BATCHES, st.data())
def test_one_damaged_batch_takes_no_record_of_another(shapes: Shapes, data: st.DataObject) -> None:
    log = log_of(shapes)
    whole = Log(log).read()
    place = data.draw(st.integers(0, len(log) - 1))
    first, end, raw = log[place]
    damaged = bytearray(raw)
    # Its base offset is the broker's own and in no checksum.
    for at in data.draw(
        st.lists(st.integers(8, len(raw) - 1), min_size=1, max_size=3, unique=True)
    ):
        damaged[at] ^= data.draw(st.integers(1, 255))
    log[place] = first, end, bytes(damaged)
    found = Log(log, data.draw(st.integers(HEAD_BYTES, 2_000))).read()
    others = [record for record in whole if not first <= record.offset < end]
    assert [record for record in good(found) if not first <= record.offset < end] == others
    assert all(record in whole for record in good(found))
    covered = [
        offset
        for record in found
        for offset in range(getattr(record, "first_offset", record.offset), record.offset + 1)
    ]
    assert covered == list(range(log[-1][1])), "each offset is told of, once and in order"
    assert all(first <= wrong.first_offset and wrong.offset < end for wrong in undecodable(found))


@given(RECORDS, st.sampled_from(list(PACK)), st.data())
def test_a_batch_written_wrong_takes_no_record_of_the_next(
    records: list[Written], codec: int, data: st.DataObject
) -> None:
    """Its checksum is right: so it came from the producer."""
    raw = bytearray(batch(0, records, codec))
    for at in data.draw(
        st.lists(st.integers(HEAD_BYTES, len(raw) - 1), min_size=1, max_size=3, unique=True)
    ):
        raw[at] ^= data.draw(st.integers(1, 255))
    wrong = sealed(bytes(raw[:HEAD_BYTES]), bytes(raw[HEAD_BYTES:]), 0, codec)
    end = len(records)
    found = list(answered(wrong + batch(end, records, codec)))
    assert [record.offset for record in good(found)][-end:] == list(range(end, 2 * end))
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))


@given(st.binary(max_size=300), st.integers(0, 2**40), st.booleans())
def test_any_bytes_are_read_without_an_error_and_reading_moves_on(
    answer: bytes, position: int, check: bool
) -> None:
    records = answered(answer, position, check_crcs=check)
    list(records)
    assert records.next_fetch_offset > position or not answer


@given(BATCHES, st.binary(min_size=8, max_size=8), st.booleans(), st.data())
def test_a_wrong_base_offset_stops_nothing(
    shapes: Shapes, base: bytes, check: bool, data: st.DataObject
) -> None:
    log = log_of(shapes)
    place = data.draw(st.integers(0, len(log) - 1))
    raws = [raw for *_, raw in log]
    raws[place] = base + raws[place][8:]
    records = answered(b"".join(raws), check_crcs=check)
    found = list(records)
    assert records.next_fetch_offset > 0
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), f"never back, from {struct.unpack('>q', base)}"
