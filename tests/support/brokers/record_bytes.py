"""Record batches as bytes: built by aiokafka, then changed as a test wants them; and a broker's log
of such batches.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aiokafka import TopicPartition, codec
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from consumers.runtime.kafka.batches import RecordBatches, TolerantRecords
from schemas.quarantine import UndecodableRecord

TP = TopicPartition("pipecat.events", 3)
NOW_MS = 1_790_000_000_000
HEAD_BYTES = 61
CRC_AT, ATTRIBUTES_AT = 17, 21
PACK: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: codec.gzip_encode,
    2: codec.snappy_encode,
    3: codec.lz4_encode,
    4: codec.zstd_encode,
}
"""By the codec's number."""
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


class Written(NamedTuple):
    """A record as it was written."""

    key: bytes | None = b"call-1"
    value: bytes | None = b"{}"
    headers: Sequence[tuple[str, bytes | None]] = ()


def batch(
    base: int,
    records: Sequence[Written],
    codec_number: int = 0,
    *,
    is_transactional: bool = False,
    changed: Any = None,
    now_ms: int = NOW_MS,
) -> bytes:
    """One batch as a broker keeps it.

    Args:
        base: Offset of its first record.
        records: Its records.
        codec_number: Of the compression.
        is_transactional: Whether it is part of a transaction, of the producer 7.
        changed: From the plain records' bytes to others, before they are packed; the checksum is
            right all the same.
        now_ms: Time of the offset 0; each record is a millisecond after the one before.
    """
    producer = 7 if is_transactional else -1
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(is_transactional),
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=2**30,
    )
    for offset, record in enumerate(records):
        builder.append(
            offset,
            timestamp=now_ms + base + offset,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    plain = bytes(builder.build())
    body = plain[HEAD_BYTES:]
    return sealed(
        plain[:HEAD_BYTES],
        PACK[codec_number](body if changed is None else changed(body)),
        base,
        codec_number,
    )


def sealed(head: bytes, body: bytes, base: int, codec_number: int = 0) -> bytes:
    """A head and a body, with the length, codec and checksum that fit."""
    raw = bytearray(head + body)
    struct.pack_into(">qi", raw, 0, base, len(raw) - 12)
    raw[ATTRIBUTES_AT + 1] = raw[ATTRIBUTES_AT + 1] & 0xF8 | codec_number
    struct.pack_into(">I", raw, CRC_AT, calc_crc32c(bytes(raw[ATTRIBUTES_AT:])))
    return bytes(raw)


def answered(
    answer: bytes, position: int = 0, aborted: Any = None, *, check_crcs: bool = True
) -> TolerantRecords:
    """The records that a consumer at `position` reads from an answer of the broker."""
    return TolerantRecords(
        TP, RecordBatches(answer), aborted, position, None, None, check_crcs, READ_COMMITTED
    )


class Log(NamedTuple):
    """A partition's log: of each batch its first offset, the one after its last, and its bytes,
    which may be damaged.
    """

    batches: Sequence[tuple[int, int, bytes]]
    answer_bytes: int = 2**20

    def answer(self, position: int) -> bytes:
        """From the batch on that has the position, cut where the answer is full; the first batch is
        whole.
        """
        raws = [raw for _, end, raw in self.batches if end > position]
        return b"".join(raws)[: max(self.answer_bytes, len(raws[0]) if raws else 0)]

    def read(self) -> list[Any]:
        """All that a consumer is handed over, from the log's beginning to its end."""
        found: list[Any] = []
        position, end = 0, self.batches[-1][1]
        while position < end:
            records = answered(self.answer(position), position)
            found += records
            assert records.next_fetch_offset > position, "reading moves on"
            position = records.next_fetch_offset
        return found


def stand_in(topic: str, first: int, last: int) -> UndecodableRecord:
    """The stand-in for the records from `first` to `last` of partition 0."""
    return UndecodableRecord(
        topic=topic,
        partition=0,
        first_offset=first,
        offset=last,
        timestamp=NOW_MS,
        what="the batch cannot be unpacked",
        expected_and_seen="expected what zstd writes, saw less",
        what_to_do="Look.",
    )


def good(found: Sequence[Any]) -> list[Any]:
    """Those that could be decoded."""
    return [record for record in found if not isinstance(record, UndecodableRecord)]


def undecodable(found: Sequence[Any]) -> list[UndecodableRecord]:
    """The stand-ins for those that could not."""
    return [record for record in found if isinstance(record, UndecodableRecord)]
