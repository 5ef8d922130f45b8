"""Records that a client cannot decode are handed over as such, and the next record is read."""

import gzip
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

import cramjam
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record import default_records
from aiokafka.record.util import decode_varint_py, encode_varint_py
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtime.kafka import batches as decompression
from consumers.runtime.kafka import batches as record_batches
from consumers.runtime.kafka import batches as tolerant_reading
from consumers.runtime.kafka import connection as kafka
from consumers.runtime.kafka.batches import (
    MAX_HEADERS,
    MAX_QUICK_BYTES,
    MAX_UNPACKED_BATCH_BYTES,
    BatchTooLargeError,
    DecompressionError,
    OnlyBatchesWith,
    RecordBatches,
    TolerantRecords,
    UnreadableError,
    decompressed,
)
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.quarantine import UndecodableRecord
from tests.support.brokers.record_bytes import (
    ATTRIBUTES_AT,
    CRC_AT,
    GZIP,
    HEAD_BYTES,
    LZ4,
    NOW_MS,
    PACK,
    SNAPPY,
    TP,
    ZSTD,
    Log,
    Written,
    answered,
    batch,
    good,
    sealed,
    undecodable,
)

THREE = [
    Written(b"a"),
    Written(b"b", b"[]", [("ce_id", b"1"), ("none", None)]),
    Written(None, None),
]


@pytest.fixture(params=["compiled", "python"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decoders that aiokafka has."""
    if request.param == "python":
        for module in (record_batches, tolerant_reading):
            monkeypatch.setattr(module, "DefaultRecordBatch", default_records._DefaultRecordBatchPy)
        monkeypatch.setattr(record_batches, "decode_varint", decode_varint_py)
        # Its default is the compiled one, which looks at no bounds: behind a wrong length it reads
        # memory that is not there.
        reads = default_records._DefaultRecordBatchPy._read_msg
        monkeypatch.setattr(reads, "__defaults__", (decode_varint_py,))


def offsets(found: list[Any]) -> list[int]:
    return [record.offset for record in found]


def damaged(raw: bytes, at: int, bits: int = 0xFF) -> bytes:
    return raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :]


def test_every_consumer_of_ours_reads_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "AIOKafkaConsumer", lambda *_, **__: None)
    for build in (lambda: KafkaSettings().broker("x"), lambda: KafkaSettings().consumer("x")):
        monkeypatch.setattr(fetcher, "PartitionRecords", None)
        monkeypatch.setattr(fetcher, "MemoryRecords", None)
        build()
        assert fetcher.PartitionRecords is TolerantRecords
        assert fetcher.MemoryRecords is RecordBatches


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("codec", PACK)
def test_good_records_are_what_aiokafka_makes_of_them(codec: int) -> None:
    found = list(answered(batch(10, THREE, codec) + batch(13, THREE, codec), 11))
    assert offsets(found) == [11, 12, 13, 14, 15], (
        "the batch that the position is in is given whole"
    )
    expected = fetcher.ConsumerRecord(
        TP.topic,
        TP.partition,
        11,
        NOW_MS + 11,
        0,
        b"b",
        b"[]",
        None,
        1,
        2,
        (("ce_id", b"1"), ("none", None)),
    )
    assert found[0] == expected


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("codec", PACK)
def test_a_header_name_that_is_not_utf_8_costs_nothing_but_the_name(codec: int) -> None:
    records = [Written(b"a"), Written(b"b", headers=[("zz", b"v"), ("ce_id", b"1")]), Written(b"c")]
    raw = batch(0, records, codec, changed=lambda body: body.replace(b"zz", b"\xff\xfe"))
    found = list(answered(raw + batch(3, THREE)))
    assert offsets(found) == [0, 1, 2, 3, 4, 5]
    assert found[1].headers == (("\ufffd\ufffd", b"v"), ("ce_id", b"1"))
    assert [record.key for record in found] == [b"a", b"b", b"c", b"a", b"b", None]
    assert found[1].timestamp == NOW_MS + 1


def with_length(body: bytes, place: int, change: int) -> bytes:
    """The body with the length of the record at `place` raised by `change`, and nothing moved."""
    position = 0
    for _ in range(place):
        length, begin = decode_varint_py(body, position)
        position = begin + length
    length, begin = decode_varint_py(body, position)
    written = bytearray()
    encode_varint_py(length + change, written.append)
    return body[:position] + bytes(written) + body[begin:]


@pytest.mark.usefixtures("decoder")
def test_a_record_whose_fields_do_not_fit_is_left_out_alone() -> None:
    records = [Written(b"a"), Written(b"bb", b"XY"), Written(b"c")]
    # a key of 63 bytes
    raw = batch(5, records, changed=lambda body: body.replace(b"\x04bb", b"\x7ebb"))
    found = list(answered(raw, 5))
    assert offsets(found) == [5, 6, 7]
    (wrong,) = undecodable(found)
    assert (wrong.first_offset, wrong.offset, wrong.what) == (6, 6, "the record is malformed")
    assert "63 bytes" in wrong.expected_and_seen


@pytest.mark.usefixtures("decoder")
def test_behind_a_record_of_unknown_length_the_rest_of_its_batch_is_left_out() -> None:
    raw = batch(
        5,
        [Written(b"a"), Written(b"b"), Written(b"c")],
        changed=lambda body: with_length(body, 1, 50),
    )
    found = list(answered(raw + batch(8, THREE), 5))
    assert offsets(found) == [5, 7, 8, 9, 10]
    (wrong,) = undecodable(found)
    assert (wrong.first_offset, wrong.offset) == (6, 7)


def test_a_record_before_the_position_is_not_told_again() -> None:
    raw = batch(
        5,
        [Written(b"bb", b"XY"), Written(b"c")],
        changed=lambda body: body.replace(b"\x04bb", b"\x7ebb"),
    )
    assert offsets(list(answered(raw, 6))) == [6]


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 8, 20, 0x7F, 0x80, 0xFF]), max_size=40).map(bytes),
    st.booleans(),
)
def test_no_number_is_looked_for_behind_the_bytes(body: bytes, has_length: bool) -> None:
    """The compiled decoder would read on in memory that is not ours."""

    def bounded(buffer: bytes, position: int) -> tuple[int, int]:
        assert 0 <= position < len(buffer)
        number, end = decode_varint_py(bytearray(buffer + b"\0"), position)
        return number, end

    if has_length:
        body = bytes([2 * len(body)]) + body
    head = batch(0, [Written(b"a")] * 3)[:HEAD_BYTES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_batches, "decode_varint", bounded)
        with suppress(UnreadableError):
            for _ in record_batches.one_by_one(head + body):
                pass


def test_headers_without_end_are_not_unpacked() -> None:
    many = [("", b"")] * (MAX_HEADERS + 1)
    large = Written(b"large", b"x" * MAX_QUICK_BYTES)
    found = list(
        answered(
            batch(0, [Written(b"a", headers=many), large, Written(b"b", headers=many[1:])], ZSTD)
        )
    )
    assert [type(record) is UndecodableRecord for record in found] == [True, False, False]
    assert "1001 headers" in undecodable(found)[0].expected_and_seen


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_told_and_the_next_batch_read(codec: int) -> None:
    raw = sealed(batch(0, THREE)[:HEAD_BYTES], b"whatever", 0, codec)
    found = list(answered(raw + batch(3, THREE)))
    assert offsets(found) == [2, 3, 4, 5]
    (wrong,) = undecodable(found)
    assert (wrong.first_offset, wrong.timestamp) == (0, NOW_MS + 2)
    assert f"saw number {codec}" in str(wrong)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("body", [b"", b"\x00" * 50, b"\xff" * 50])
def test_a_batch_that_does_not_unpack_is_told_and_the_next_one_read(
    codec: int, body: bytes
) -> None:
    found = list(answered(sealed(batch(0, THREE)[:HEAD_BYTES], body, 0, codec) + batch(3, THREE)))
    assert offsets(found)[-3:] == [3, 4, 5]
    (wrong,) = undecodable(found)
    assert (wrong.first_offset, wrong.offset) == (0, 2)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_above_the_bound_is_told_and_the_next_one_read(codec: int) -> None:
    raw = batch(0, [Written(b"bomb", b"0" * MAX_UNPACKED_BATCH_BYTES), Written(b"behind")], codec)
    found = list(answered(raw + batch(2, THREE)))
    assert offsets(found) == [1, 2, 3, 4]
    (wrong,) = undecodable(found)
    assert "too large when it is unpacked" in wrong.what
    assert str(MAX_UNPACKED_BATCH_BYTES) in wrong.expected_and_seen


DAMAGE = {
    "cut at its length": lambda raw: damaged(raw, 11, 0x20),
    "a negative length": lambda raw: damaged(raw, 8),
    "format": lambda raw: damaged(raw, 16, 0x01),
    "an old format": lambda raw: damaged(raw, 16, 0x03),
    "checksum": lambda raw: damaged(raw, CRC_AT),
    "attributes": lambda raw: damaged(raw, ATTRIBUTES_AT),
    "last offset": lambda raw: damaged(raw, 26, 0x40),
    "time": lambda raw: damaged(raw, 27, 0x40),
    "count": lambda raw: damaged(raw, 60),
    "a record": lambda raw: damaged(raw, 70),
}


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_damaged_batch_takes_no_other_with_it(what: str, *, is_last: bool) -> None:
    raws = [(0, 3, batch(0, THREE)), (3, 6, DAMAGE[what](batch(3, THREE)))]
    if not is_last:
        raws.append((6, 9, batch(6, THREE)))
    found = Log(raws).read()
    assert offsets(good(found)) == [0, 1, 2] + ([] if is_last else [6, 7, 8])
    told = undecodable(found)
    assert told[0].first_offset == 3
    assert told[-1].offset == 5
    assert all(wrong.timestamp <= NOW_MS + 5 for wrong in told), (
        "time that comes too far would close calls"
    )


def test_a_damaged_batch_is_fetched_behind_its_last_offset_where_that_agrees_with_its_count() -> (
    None
):
    records = answered(damaged(batch(0, [Written()] * 500), 80))
    (wrong,) = list(records)
    assert (wrong.first_offset, wrong.offset, records.next_fetch_offset) == (0, 499, 500)
    assert wrong.timestamp == NOW_MS


@pytest.mark.parametrize("answer", [b"", None])
def test_no_answer_has_no_batch(answer: bytes | None) -> None:
    batches = RecordBatches(answer)
    assert not batches.has_next()
    assert batches.size_in_bytes() == 0


def test_offsets_before_the_position_do_not_take_reading_back() -> None:
    records = answered(batch(0, THREE), 40)
    assert len(undecodable(list(records))) == 1
    assert records.next_fetch_offset == 41


def ended(base: int, *, is_commit: bool) -> bytes:
    """The mark at the end of a transaction of the producer 7."""
    key = struct.pack(">hh", 0, int(is_commit))
    raw = batch(base, [Written(key, b"\x00" * 6)], is_transactional=True)
    return sealed(raw[:ATTRIBUTES_AT] + b"\x00\x30" + raw[ATTRIBUTES_AT + 2 :], b"", base)


@pytest.mark.usefixtures("decoder")
def test_aborted_transactions_and_the_marks_at_their_ends_are_left_out() -> None:
    answer = (
        batch(0, [Written(b"aborted")], is_transactional=True)
        + ended(1, is_commit=False)
        + batch(2, [Written(b"kept")], is_transactional=True)
        + ended(3, is_commit=True)
    )
    records = answered(answer, aborted=[(7, 0)])
    assert [record.key for record in records] == [b"kept"]
    assert records.next_fetch_offset == 4


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("codec", PACK)
def test_a_search_by_key_gets_whole_batches_with_the_text_and_moves_on_over_the_others(
    codec: int,
) -> None:
    """A damaged batch may have had it."""
    others, wanted = (
        [Written(b"call-1"), Written(b"call-2")],
        [Written(b"call-3"), Written(b"a-call-39")],
    )
    answer = (
        batch(0, others, codec)
        + batch(2, wanted, codec)
        + damaged(batch(4, others, codec), CRC_AT)
        + batch(6, others)
    )
    records = searched(answer)
    found = list(records)
    assert [record.key for record in good(found)] == [b"call-3", b"a-call-39"]
    (lost,) = undecodable(found)
    assert (lost.first_offset, records.next_fetch_offset) == (4, 6)


def searched(answer: bytes, aborted: list[tuple[int, int]] | None = None) -> TolerantRecords:
    only = OnlyBatchesWith(b"call-3")
    return TolerantRecords(
        TP, RecordBatches(answer), aborted, 0, only, None, True, fetcher.READ_COMMITTED
    )


@pytest.mark.usefixtures("decoder")
def test_a_search_decodes_no_record_of_a_batch_without_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [Written(b"call-1"), Written(b"call-2")]
    kept = b"".join(batch(base, others) + ended(base + 2, is_commit=True) for base in (0, 3, 6))
    wanted, cut = batch(9, [Written(b"call-3")]), batch(10, others)[:-1]
    decoded: list[int] = []
    consumer_record = TolerantRecords._consumer_record

    def noted(self: TolerantRecords, tp: TopicPartition, record: Any) -> Any:
        decoded.append(record.offset)
        return consumer_record(self, tp, record)

    monkeypatch.setattr(TolerantRecords, "_consumer_record", noted)
    records = searched(kept + wanted + cut)
    assert [record.key for record in records] == [b"call-3"]
    assert decoded == [9]
    assert records.next_fetch_offset == 10, "a batch that is cut is fetched again"


@pytest.mark.usefixtures("decoder")
def test_a_search_believes_no_aborted_transaction() -> None:
    others, wanted = [Written(b"call-1"), Written(b"call-2")], [Written(b"call-3")]
    answer = batch(0, others, is_transactional=True) + ended(2, is_commit=False)
    assert [
        record.offset
        for record in searched(answer + batch(3, wanted, is_transactional=True), [(7, 0)])
    ] == [3]
    assert not list(searched(batch(0, wanted, is_transactional=True), [(7, 0)]))


def test_a_bomb_in_an_aborted_transaction_is_not_even_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tolerant_reading, "unpacked", None)
    assert not list(answered(batch(0, THREE, GZIP, is_transactional=True), aborted=[(7, 0)]))


def test_what_nobody_thought_of_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(tolerant_reading, "checked", fail)
    with pytest.raises(ZeroDivisionError) as caught:
        list(answered(batch(4, THREE), 4))
    assert caught.value.__notes__ == ["pipecat.events[3]@4"]


# The content of a compressed batch, and never more memory for it than the bound.


HEAD = b"head"


def java_snappy(*blocks: bytes) -> bytes:
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return decompression._SNAPPY_BLOCKS + b"".join(
        struct.pack(">i", len(block)) + block for block in packed
    )


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("plain", [b"", b"x", b"hello " * 50_000, bytes(MAX_UNPACKED_BATCH_BYTES)])
def test_what_was_packed_comes_out_behind_the_head(codec: int, plain: bytes) -> None:
    assert decompressed(codec, PACK[codec](plain), HEAD) == HEAD + plain


def test_every_shape_that_producers_write() -> None:
    assert (
        decompressed(SNAPPY, java_snappy(b"a" * 100, b"", b"b" * 70_000), b"")
        == b"a" * 100 + b"b" * 70_000
    )
    assert decompressed(1, gzip.compress(b"a") + gzip.compress(b"b"), b"") == b"ab"
    linked = bytes(cramjam.lz4.compress(b"a" * 100_000))
    assert decompressed(LZ4, linked, b"") == b"a" * 100_000
    one_block = bytes(cramjam.snappy.compress_raw(b"a" * 100_000))
    assert decompressed(SNAPPY, one_block, b"") == b"a" * 100_000


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_one_byte_more_than_the_bound_is_too_large(codec: int) -> None:
    with pytest.raises(BatchTooLargeError):
        decompressed(codec, PACK[codec](bytes(MAX_UNPACKED_BATCH_BYTES + 1)), HEAD)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "spoil", [lambda packed: packed[:-3], lambda _: b"", lambda _: b"\xff" * 100]
)
def test_what_the_codec_does_not_write_is_refused(codec: int, spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(DecompressionError):
        decompressed(codec, spoil(PACK[codec](b"hello " * 1_000)), HEAD)


@pytest.mark.parametrize("length", [-1, 0, 5_000, 2**31 - 1])
def test_a_snappy_block_of_another_length_is_refused(length: int) -> None:
    whole = java_snappy(b"a" * 100)
    with pytest.raises(DecompressionError):
        decompressed(SNAPPY, whole[:16] + struct.pack(">i", length) + whole[20:], b"")


def test_blocks_count_together() -> None:
    with pytest.raises(BatchTooLargeError):
        decompressed(SNAPPY, java_snappy(*[bytes(MAX_UNPACKED_BATCH_BYTES // 4)] * 5), b"")


def test_a_block_that_says_it_is_endless_takes_no_room() -> None:
    with pytest.raises(BatchTooLargeError, match="4294967295 in one block"):
        decompressed(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20, b"")


_PEAK = """
import sys
from consumers.runtime.kafka.batches import BatchTooLargeError, decompressed
def peak_kb():  # of this program alone: getrusage counts what its parent had as well
    return int(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])
packed = sys.stdin.buffer.read()
before = peak_kb()
try:
    decompressed(int(sys.argv[1]), packed, b"")
except BatchTooLargeError:
    print((peak_kb() - before) // 1024)
"""


@pytest.mark.parametrize("codec", [1, SNAPPY, LZ4, ZSTD])
def test_zeros_without_end_take_no_more_than_the_bound(codec: int) -> None:
    packed = PACK[codec](bytes(8 * MAX_UNPACKED_BATCH_BYTES))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(codec)], input=packed, capture_output=True, check=True
    )
    assert int(done.stdout) < 1.5 * MAX_UNPACKED_BATCH_BYTES / 2**20
