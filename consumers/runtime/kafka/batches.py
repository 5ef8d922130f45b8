"""Record batches that the client cannot decode stop no reader, and compressed ones cannot fill the
memory.
"""

import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import cramjam
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, KafkaError
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.util import decode_varint

from schemas.quarantine import UndecodableRecord

# Decompresses batches up to a bound, because their unpacked size is up to the producer.

MAX_UNPACKED_BATCH_BYTES: Final = 16 * 2**20
"""Records of one compressed batch, unpacked. Producers make batches of up to 1 MB before
compression unless set otherwise, and one record may have `max_record_bytes` (1 MB); this is sixteen
times as much. One such batch of each input partition can be in memory, and a copy of it while it is
unpacked.
"""
CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
"""The codecs of Kafka's message format 2, by their number in a batch's attributes."""

_SNAPPY_BLOCKS: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
"""Header of Java's snappy format, with blocks that have lengths. Other producers write a single
block without a header.
"""
_LENGTH: Final = struct.Struct(">i")
_IS_FULL: Final = "failed to write whole buffer"
"""Error text of cramjam when the output does not fit."""


class DecompressionError(Exception):
    """The bytes cannot be decompressed. The text is the reason, as a phrase that follows "saw"."""


class BatchTooLargeError(DecompressionError):
    """The decompressed bytes would exceed MAX_UNPACKED_BATCH_BYTES."""


def decompressed(codec: int, packed: bytes | memoryview, head: bytes) -> bytes:
    """Returns `head` and the decompressed bytes behind it.

    The buffer exists only during the call, and uses real memory only as far as it is filled.

    Args:
        codec: A key of `CODECS`.
        packed: The compressed bytes.
        head: Start of the result.

    Raises:
        BatchTooLargeError: The result would exceed MAX_UNPACKED_BATCH_BYTES.
        DecompressionError: The bytes are not in the codec's format.
    """
    with mmap.mmap(-1, len(head) + MAX_UNPACKED_BATCH_BYTES) as scratch:
        scratch[: len(head)] = head
        with memoryview(scratch) as whole, whole[len(head) :] as room:
            try:
                size = _UNPACK[codec](packed, room)
            except cramjam.DecompressionError as error:
                if str(error) == _IS_FULL:
                    raise BatchTooLargeError("more") from None
                raise DecompressionError(str(error)) from None
        return scratch[: len(head) + size]


def _unpack_snappy(packed: bytes | memoryview, room: memoryview) -> int:
    if bytes(packed[: len(_SNAPPY_BLOCKS)]) != _SNAPPY_BLOCKS:
        return _unpack_snappy_block(packed, room)
    size, position = 0, len(_SNAPPY_BLOCKS)
    while position < len(packed):
        if position + _LENGTH.size > len(packed):
            raise DecompressionError("a block without its length")
        begin = position + _LENGTH.size
        position = begin + _LENGTH.unpack_from(packed, position)[0]
        if not begin < position <= len(packed):
            raise DecompressionError("a block whose length is wrong")
        with room[size:] as rest:
            size += _unpack_snappy_block(packed[begin:position], rest)
    return size


def _unpack_snappy_block(packed: bytes | memoryview, room: memoryview) -> int:
    if (declared := cramjam.snappy.decompress_raw_len(packed)) > len(room):
        raise BatchTooLargeError(f"{declared} in one block")
    return cramjam.snappy.decompress_raw_into(packed, room)


_UNPACK: Final[dict[int, Callable[[Any, memoryview], int]]] = {
    1: cramjam.gzip.decompress_into,
    2: _unpack_snappy,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}


# Splits an answer of the broker into record batches, checks them, and reads their records one by
# one.

MAX_HEADERS: Final = 1_000
"""Headers of a record in a batch above MAX_QUICK_BYTES. Each takes two bytes there and a hundred
here; events have five.
"""
MAX_QUICK_BYTES: Final = 2**20
"""Unpacked size up to which a batch is left to the client's own decoder, which bounds no headers: 1
MB can have no more of them than take some 30 MB.
"""
HEAD_BYTES: Final = 61
"""Size of the fields in front of the records of a batch."""
FORMAT: Final = 2
"""The one message format there is since Kafka 0.11; brokers convert what older clients write."""

_START: Final = struct.Struct(">qi")  # base offset, and the length of the rest
_CODEC_MASK: Final = 0x07
_ATTRIBUTES_AT: Final = 22  # the low byte of them
_COUNT_AT: Final = 57
_BATCH_ERRORS: Final = (ValueError, LookupError)


class UnreadableError(Exception):
    """Records cannot be read. It has the fault, the expected and the actual content, and the
    remedy.
    """

    def __init__(self, what: str, expected_and_seen: str, what_to_do: str) -> None:
        super().__init__(f"{what}: {expected_and_seen}")
        self.what = what
        self.expected_and_seen = expected_and_seen
        self.what_to_do = what_to_do


class DamagedBatchError(UnreadableError):
    """A batch is damaged, so nothing in it can be trusted, not even its length and its offsets."""

    def __init__(self, what: str, expected_and_seen: str) -> None:
        super().__init__(
            what,
            expected_and_seen,
            "Check the broker's disks (`kafka-dump-log.sh --deep-iteration`), and proxies between "
            "it and callgauge.",
        )


class RecordBatches:
    """Replaces aiokafka's `MemoryRecords`: iterates over the bytes of each batch, and never raises
    because of them.
    """

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer or b""
        self._start = 0

    def size_in_bytes(self) -> int:
        """Size of the answer."""
        return len(self._answer)

    def has_next(self) -> bool:
        """Whether a batch follows. The first one is always complete; the last one may be cut, and
        is fetched again.
        """
        if self._start == 0:
            return bool(self._answer)
        return self._end() is not None

    def next_batch(self) -> bytes:
        """Returns the bytes of the next batch; all remaining bytes if its length does
        not fit them.
        """
        start, end = self._start, self._end()
        self._start = len(self._answer) if end is None else end
        return self._answer[start:end]

    def following_offset(self) -> int | None:
        """Returns the base offset of the batch after the last returned one; None if there is none
        or it is not a batch.
        """
        if (end := self._end()) is None:
            return None
        try:
            return int(checked(self._answer[self._start : end], check_crc=True).base_offset)
        except DamagedBatchError:
            return None

    def _end(self) -> int | None:
        if self._start + _START.size > len(self._answer):
            return None
        length: int = _START.unpack_from(self._answer, self._start)[1]
        end = self._start + _START.size + length
        return end if length > 0 and end <= len(self._answer) else None


def checked(raw: bytes, *, check_crc: bool) -> Any:
    """Returns aiokafka's batch of these bytes after checking them.

    Raises:
        DamagedBatchError: The bytes are damaged.
    """
    if len(raw) < HEAD_BYTES:
        raise DamagedBatchError(
            "the batch is cut", f"expected at least {HEAD_BYTES} bytes, saw {len(raw)}"
        )
    length: int = _START.unpack_from(raw)[1]
    if length != len(raw) - _START.size:
        seen = f"expected {length} bytes as its head says, saw {len(raw) - _START.size}"
        raise DamagedBatchError("the batch is cut", seen)
    batch = DefaultRecordBatch(raw)
    if batch.magic != FORMAT:
        seen = f"expected message format {FORMAT}, of Kafka 0.11 and later, saw {batch.magic}"
        raise DamagedBatchError("the batch has an unknown format", seen)
    if check_crc and not batch.validate_crc():
        raise DamagedBatchError(
            "the batch's checksum is wrong", f"expected the sum of its bytes, saw {batch.crc:08x}"
        )
    return batch


def unpacked(raw: bytes) -> bytes:
    """Returns the batch decompressed.

    Raises:
        UnreadableError: It cannot be decompressed, or would be too large.
    """
    codec = raw[_ATTRIBUTES_AT] & _CODEC_MASK
    if codec not in CODECS:
        raise UnreadableError(
            "the batch has an unknown compression codec",
            f"expected none, {', '.join(CODECS.values())}, saw number {codec}",
            "Set `compression.type` of the producer to one of those.",
        )
    head = bytearray(raw[:HEAD_BYTES])
    head[_ATTRIBUTES_AT] &= ~_CODEC_MASK & 0xFF
    try:
        with memoryview(raw) as whole, whole[HEAD_BYTES:] as packed:
            return decompressed(codec, packed, bytes(head))
    except BatchTooLargeError as error:
        raise UnreadableError(
            "the batch is too large when it is unpacked",
            f"expected at most {MAX_UNPACKED_BATCH_BYTES} bytes, saw {error}",
            "Make the producer's batches smaller, and leave audio and prompts out of events.",
        ) from error
    except DecompressionError as error:
        raise UnreadableError(
            "the batch cannot be unpacked",
            f"expected what {CODECS[codec]} writes, saw {error}",
            "Check the producer's compression library, or use another `compression.type`.",
        ) from error


def has_every_offset(batch: Any, raw: bytes) -> bool:
    """Whether a batch has as many records as offsets, as brokers ensure for all batches that are
    not compacted.
    """
    return bool(0 < _LENGTH.unpack_from(raw, _COUNT_AT)[0] == batch.last_offset_delta + 1)


def one_by_one(plain: bytes) -> Iterator[Any]:
    """Yields the records of an uncompressed batch, or the fault of each. It is slower than
    aiokafka, but does not stop at a fault.

    In header names, bytes that are not UTF-8 become U+FFFD.

    Raises:
        UnreadableError: A record's length is wrong, so the start of the next one is unknown.
    """
    batch, position = DefaultRecordBatch(plain), HEAD_BYTES
    for _ in range(_LENGTH.unpack_from(plain, _COUNT_AT)[0]):
        try:
            length, begin = _number_at(plain, position)
        except _BATCH_ERRORS as error:
            raise _malformed("a record without its length") from error
        position = begin + length
        if not begin < position <= len(plain):
            raise _malformed(f"a record of {length} bytes where {len(plain) - begin} are left")
        try:
            yield _record_in(plain[begin:position], batch)
        except UnreadableError as error:
            yield error
        except _BATCH_ERRORS:
            yield _malformed("fields that end behind it")


def _malformed(seen: str) -> UnreadableError:
    return UnreadableError(
        "the record is malformed",
        f"expected key, value and headers with their lengths, saw {seen}",
        "Use a current Kafka client in the producer.",
    )


def _record_in(field_bytes: bytes, batch: Any) -> Any:
    timestamp_delta, position = _number_at(field_bytes, 1)  # the first byte is reserved
    offset_delta, position = _number_at(field_bytes, position)
    key, position = _bytes_at(field_bytes, position)
    value, position = _bytes_at(field_bytes, position)
    count, position = _number_at(field_bytes, position)
    if not 0 <= count <= MAX_HEADERS:
        raise _malformed(f"{count} headers; {MAX_HEADERS} are read")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes_at(field_bytes, position)
        header, position = _bytes_at(field_bytes, position)
        if name is None:
            raise _malformed("a header without a name")
        headers.append((name.decode("utf-8", "replace"), header))
    if position != len(field_bytes):
        raise _malformed(f"{len(field_bytes) - position} bytes behind its fields")
    timestamp = (
        batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + timestamp_delta
    )
    return DefaultRecord(
        batch.base_offset + offset_delta, timestamp, batch.timestamp_type, key, value, headers
    )


def _number_at(field_bytes: bytes, position: int) -> tuple[int, int]:
    """The number that begins here, and where it ends: one byte behind the bytes if they end within
    it.

    The compiled decoder knows no end. It stops at a byte below 128, and bytes have a zero behind
    them.

    Raises:
        IndexError: Nothing is left.
        ValueError: It is too long.
    """
    if position >= len(field_bytes):
        raise IndexError(position)
    number, end = decode_varint(field_bytes, position)
    return number, end


def _bytes_at(field_bytes: bytes, position: int) -> tuple[bytes | None, int]:
    length, begin = _number_at(field_bytes, position)
    if length < 0:
        return None, begin
    end = begin + length
    if end > len(field_bytes):
        raise _malformed(f"a field of {length} bytes where {len(field_bytes) - begin} are left")
    return field_bytes[begin:end], end


# Makes our clients return records that they cannot decode as `UndecodableRecord`, instead of
# stopping there for good.
#
# aiokafka raises in the middle of a poll, does not move on, and raises again in the next poll. It
# has no interface for another decoder, so this module replaces two names of its fetcher, in which
# bytes become records.
#
# A batch with the right checksum is trusted: its end is known, and reading goes on behind it. A
# damaged batch is not trusted: reading goes on at the next trustworthy offset, so that no good
# record of another batch is skipped. The base offset of a batch is not covered by Kafka's checksum,
# and is trusted only if it moves reading forward.

_DECODER_ERRORS: Final = (KafkaError, ValueError, LookupError, ArithmeticError)
"""Errors of aiokafka's decoders, in Python and compiled; CorruptRecordException is a KafkaError."""


class OnlyBatchesWith:
    """Passes batches over whose bytes have none of some texts, before one of their records is
    decoded: a search by key is six times quicker.

    It is given to a consumer as its `key_deserializer`, which is the one thing of a consumer's that
    its fetcher hands on to where the batches are read. A batch with a text comes whole, with the
    records of others, and keys stay bytes.
    """

    def __init__(self, *texts: bytes) -> None:
        self.texts = texts

    def __call__(self, key: bytes | None) -> bytes | None:
        return key


# the library has no type hints
class TolerantRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """Replaces aiokafka's `PartitionRecords`: the records of one partition in an answer of the
    broker.
    """

    _last_ms = 0  # broker time of the last record that could be decoded

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except Exception as error:  # a fault of ours names its record; the end needs no name
            error.add_note(f"{self._tp.topic}[{self._tp.partition}]@{self.next_fetch_offset}")
            raise

    def _unpack_records(self) -> Iterator[Any]:
        batches: RecordBatches = self._records
        while batches.has_next():
            raw = batches.next_batch()
            try:
                batch = self._believed(raw)
                is_left_out = self._is_left_out(batch)
            except DamagedBatchError as error:
                yield self._damaged(raw, error, batches.following_offset())
                return
            if not is_left_out:
                yield from self._records_of(batch, raw)
            self.next_fetch_offset = batch.next_offset

    def _believed(self, raw: bytes) -> Any:
        batch = checked(raw, check_crc=self._check_crcs)
        if batch.next_offset <= self.next_fetch_offset:
            raise DamagedBatchError(
                "the batch's offsets are wrong",
                f"expected @{self.next_fetch_offset}, saw @{batch.base_offset} and later",
            )
        return batch

    def _is_left_out(self, batch: Any) -> bool:
        """Whether the batch is of an aborted transaction, or the mark at the end of one."""
        if self._isolation_level == fetcher.READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._is_abort(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)

    def _is_abort(self, batch: Any) -> bool:
        try:
            return bool(self._contains_abort_marker(batch))
        except _DECODER_ERRORS as error:
            raise DamagedBatchError(
                "the mark at the end of a transaction is malformed",
                f"expected commit or abort, saw {error!r}",
            ) from error

    def _records_of(self, batch: Any, raw: bytes) -> Iterator[Any]:
        if batch.compression_type:
            try:
                raw = unpacked(raw)
            except UnreadableError as error:
                yield self._undecodable(batch, batch.next_offset - 1, error)
                return
            batch = DefaultRecordBatch(raw)
        only = self._key_deserializer
        if isinstance(only, OnlyBatchesWith) and not any(text in raw for text in only.texts):
            return
        if len(raw) <= MAX_QUICK_BYTES:
            end = batch.next_offset
            try:
                for record in batch:
                    # the broker gives the whole batch that we are in
                    if record.offset >= self.next_fetch_offset:
                        if record.offset >= end:
                            raise CorruptRecordException("an offset behind the batch's last one")
                        self.next_fetch_offset = record.offset + 1
                        self._last_ms = record.timestamp
                        yield self._consumer_record(self._tp, record)
            except _DECODER_ERRORS:
                pass
            else:
                return
        yield from self._carefully(batch, raw)

    def _carefully(self, batch: Any, raw: bytes) -> Iterator[Any]:
        """Yields the records from our position on, with stand-ins for those that cannot
        be decoded.
        """
        try:
            for place, record in enumerate(one_by_one(raw)):
                if isinstance(record, UnreadableError):
                    offset = self.next_fetch_offset  # where it is not known, it is the next one
                    if has_every_offset(batch, raw):
                        offset = batch.base_offset + place
                    if self.next_fetch_offset <= offset < batch.next_offset:
                        yield self._undecodable(batch, offset, record)
                elif self.next_fetch_offset <= record.offset < batch.next_offset:
                    self.next_fetch_offset = record.offset + 1
                    self._last_ms = record.timestamp
                    yield self._consumer_record(self._tp, record)
        except UnreadableError as error:
            if self.next_fetch_offset < batch.next_offset:
                yield self._undecodable(batch, batch.next_offset - 1, error)

    def _undecodable(self, batch: Any, last: int, error: UnreadableError) -> UndecodableRecord:
        """Returns the stand-in for the records up to `last` of a batch with a
        trustworthy header.
        """
        return self._stand_in(last, max(0, batch.max_timestamp), error)

    def _damaged(
        self, raw: bytes, error: DamagedBatchError, following_offset: int | None
    ) -> UndecodableRecord:
        """Returns the stand-in for the records of a damaged batch, whose header is trusted only
        where two fields agree.
        """
        position, time_ms = self.next_fetch_offset, self._last_ms
        nexts = [following_offset] if following_offset is not None else []
        head = DefaultRecordBatch(raw) if len(raw) >= HEAD_BYTES else None
        if head is not None and has_every_offset(head, raw) and head.base_offset <= position:
            nexts.append(head.next_offset)
            # Time that has come too far closes calls; one that is behind only waits for the next
            # record.
            time_ms = time_ms or max(0, min(head.first_timestamp, head.max_timestamp))
        # The nearest: a wrong length may have taken good batches in.
        last = min((offset for offset in nexts if offset > position), default=position + 1) - 1
        return self._stand_in(last, time_ms, error)

    def _stand_in(self, last: int, time_ms: int, error: UnreadableError) -> UndecodableRecord:
        first, self.next_fetch_offset = self.next_fetch_offset, last + 1
        return UndecodableRecord(
            topic=self._tp.topic,
            partition=self._tp.partition,
            first_offset=first,
            offset=last,
            timestamp=time_ms,
            what=error.what,
            expected_and_seen=error.expected_and_seen,
            what_to_do=error.what_to_do,
        )


def read_tolerantly() -> None:
    """Switches all consumers of this process to tolerant reading, existing ones included; harmless
    when repeated.
    """
    fetcher.MemoryRecords = RecordBatches
    fetcher.PartitionRecords = TolerantRecords
