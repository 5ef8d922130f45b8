"""Splits an answer of the broker into record batches, checks them, and reads their records one by one."""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import decode_varint

from consumers.runtime.kafka.batches.decompression import (
    CODECS,
    MAX_UNPACKED_BATCH_BYTES,
    BatchTooLargeError,
    DecompressionError,
    decompressed,
)

MAX_HEADERS: Final = 1_000
"""Headers of a record in a batch above MAX_QUICK_BYTES. Each takes two bytes there and a hundred here; events have five."""
MAX_QUICK_BYTES: Final = 2**20
"""Unpacked size up to which a batch is left to the client's own decoder, which bounds no headers: 1 MB can have no more of
them than take some 30 MB."""
FORMAT: Final = 2
"""The one message format there is since Kafka 0.11; brokers convert what older clients write."""

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_START: Final = struct.Struct(">qi")  # base offset, and the length of the rest
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_ATTRIBUTES_AT: Final = 22  # the low byte of both
_DECODER_ERRORS: Final = (ValueError, LookupError)


class UnreadableError(Exception):
    """Records cannot be read. It has the fault, the expected and the actual content, and the remedy."""

    def __init__(self, what: str, expected_and_seen: str, what_to_do: str) -> None:
        super().__init__(f"{what}: {expected_and_seen}")
        self.what = what
        self.expected_and_seen = expected_and_seen
        self.what_to_do = what_to_do


class DamagedBatchError(UnreadableError):
    """A batch is damaged, so nothing in it can be trusted, not even its length and its offsets."""

    def __init__(self, what: str, expected_and_seen: str) -> None:
        super().__init__(
            what, expected_and_seen,
            "Check the broker's disks (`kafka-dump-log.sh --deep-iteration`), and proxies between it and callgauge.",
        )  # fmt: skip


class BatchHead(NamedTuple):
    """The fields before a batch's records, in their order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def has_every_offset(self) -> bool:
        """Whether it has as many records as offsets, as brokers ensure for all batches that are not compacted."""
        return 0 < self.records == self.last_offset_delta + 1


class FoundRecord(NamedTuple):
    """A record with the attributes of aiokafka's own."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


class RecordBatches:
    """Replaces aiokafka's `MemoryRecords`: iterates over the bytes of each batch, and never raises because of them."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer or b""
        self._start = 0

    def size_in_bytes(self) -> int:
        """Size of the answer."""
        return len(self._answer)

    def has_next(self) -> bool:
        """Whether a batch follows. The first one is always complete; the last one may be cut, and is fetched again."""
        if self._start == 0:
            return bool(self._answer)
        return self._end() is not None

    def next_batch(self) -> bytes:
        """Returns the bytes of the next batch; all remaining bytes if its length does not fit them."""
        start, end = self._start, self._end()
        self._start = len(self._answer) if end is None else end
        return self._answer[start:end]

    def following_offset(self) -> int | None:
        """Returns the base offset of the batch after the last returned one; None if there is none or it is not a batch."""
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


def head_of(raw: bytes) -> BatchHead | None:
    """Returns the header fields of a batch; None if it is too short."""
    return BatchHead._make(_HEAD.unpack_from(raw)) if len(raw) >= _HEAD.size else None


def checked(raw: bytes, *, check_crc: bool) -> Any:
    """Returns aiokafka's batch of these bytes after checking them.

    Raises:
        DamagedBatchError: The bytes are damaged.
    """
    if len(raw) < _HEAD.size:
        raise DamagedBatchError("the batch is cut", f"expected at least {_HEAD.size} bytes, saw {len(raw)}")
    length: int = _START.unpack_from(raw)[1]
    if length != len(raw) - _START.size:
        seen = f"expected {length} bytes as its head says, saw {len(raw) - _START.size}"
        raise DamagedBatchError("the batch is cut", seen)
    batch = DefaultRecordBatch(raw)
    if batch.magic != FORMAT:
        seen = f"expected message format {FORMAT}, of Kafka 0.11 and later, saw {batch.magic}"
        raise DamagedBatchError("the batch has an unknown format", seen)
    if check_crc and not batch.validate_crc():
        raise DamagedBatchError("the batch's checksum is wrong", f"expected the sum of its bytes, saw {batch.crc:08x}")
    return batch


def unpacked(raw: bytes) -> bytes:
    """Returns the batch decompressed.

    Raises:
        UnreadableError: It cannot be decompressed, or would be too large.
    """
    codec = raw[_ATTRIBUTES_AT] & _CODEC_MASK
    if codec not in CODECS:
        raise UnreadableError(
            "the batch has an unknown compression codec", f"expected none, {', '.join(CODECS.values())}, saw number {codec}",
            "Set `compression.type` of the producer to one of those.",
        )  # fmt: skip
    head = bytearray(raw[: _HEAD.size])
    head[_ATTRIBUTES_AT] &= ~_CODEC_MASK & 0xFF
    try:
        with memoryview(raw) as whole, whole[_HEAD.size :] as packed:
            return decompressed(codec, packed, bytes(head))
    except BatchTooLargeError as error:
        raise UnreadableError(
            "the batch is too large when it is unpacked", f"expected at most {MAX_UNPACKED_BATCH_BYTES} bytes, saw {error}",
            "Make the producer's batches smaller, and leave audio and prompts out of events.",
        ) from error  # fmt: skip
    except DecompressionError as error:
        raise UnreadableError(
            "the batch cannot be unpacked", f"expected what {CODECS[codec]} writes, saw {error}",
            "Check the producer's compression library, or use another `compression.type`.",
        ) from error  # fmt: skip


def one_by_one(plain: bytes) -> Iterator[FoundRecord | UnreadableError]:
    """Yields the records of an uncompressed batch, or the fault of each. It is slower than aiokafka, but does not stop at a fault.

    In header names, bytes that are not UTF-8 become U+FFFD.

    Raises:
        UnreadableError: A record's length is wrong, so the start of the next one is unknown.
    """
    head = BatchHead._make(_HEAD.unpack_from(plain))
    position = _HEAD.size
    for _ in range(head.records):
        try:
            length, begin = decode_varint(plain, position)
        except _DECODER_ERRORS as error:
            raise _malformed("a record without its length") from error
        position = begin + length
        if not begin < position <= len(plain):
            raise _malformed(f"a record of {length} bytes where {len(plain) - begin} are left")
        try:
            yield _record_in(plain[begin:position], head)
        except UnreadableError as error:
            yield error
        except _DECODER_ERRORS:
            yield _malformed("fields that end behind it")


def _malformed(seen: str) -> UnreadableError:
    return UnreadableError(
        "the record is malformed", f"expected key, value and headers with their lengths, saw {seen}",
        "Use a current Kafka client in the producer.",
    )  # fmt: skip


def _record_in(field_bytes: bytes, head: BatchHead) -> FoundRecord:
    timestamp_delta, position = decode_varint(field_bytes, 1)  # the first byte is reserved
    offset_delta, position = decode_varint(field_bytes, position)
    key, position = _bytes_at(field_bytes, position)
    value, position = _bytes_at(field_bytes, position)
    count, position = decode_varint(field_bytes, position)
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
    timestamp_type = 1 if head.attributes & _LOG_APPEND_TIME else 0
    timestamp = head.max_timestamp if timestamp_type else head.first_timestamp + timestamp_delta
    return FoundRecord(head.base_offset + offset_delta, timestamp, timestamp_type, key, value, headers)


def _bytes_at(field_bytes: bytes, position: int) -> tuple[bytes | None, int]:
    length, begin = decode_varint(field_bytes, position)
    if length < 0:
        return None, begin
    end = begin + length
    if end > len(field_bytes):
        raise _malformed(f"a field of {length} bytes where {len(field_bytes) - begin} are left")
    return field_bytes[begin:end], end
