"""Makes our clients return records that they cannot decode as `UndecodableRecord`, instead of stopping there for good.

aiokafka raises in the middle of a poll, does not move on, and raises again in the next poll. It has no interface for another
decoder, so this module replaces two names of its fetcher, in which bytes become records.

A batch with the right checksum is trusted: its end is known, and reading goes on behind it. A damaged batch is not trusted:
reading goes on at the next trustworthy offset, so that no good record of another batch is skipped. The base offset of a batch
is not covered by Kafka's checksum, and is trusted only if it moves reading forward.
"""

from collections.abc import Iterator
from typing import Any, Final

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from consumers.runtime.kafka.batches.record_batches import (
    MAX_QUICK_BYTES,
    DamagedBatchError,
    RecordBatches,
    UnreadableError,
    checked,
    head_of,
    one_by_one,
    unpacked,
)
from schemas.undecodable import UndecodableRecord

_DECODER_ERRORS: Final = (KafkaError, ValueError, LookupError, ArithmeticError)
"""Errors of aiokafka's decoders, in Python and compiled; CorruptRecordException is a KafkaError."""


class TolerantRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # the library has no type hints
    """Replaces aiokafka's `PartitionRecords`: the records of one partition in an answer of the broker."""

    _records_iterator: Iterator[Any] | None
    _last_ms = 0  # broker time of the last record that could be decoded

    def __next__(self) -> Any:
        try:
            return next(self._records_iterator)  # type: ignore[arg-type]  # none only after the last one
        except StopIteration:
            self._records_iterator = None  # it refers to us
            raise
        except Exception as error:
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
                "the mark at the end of a transaction is malformed", f"expected commit or abort, saw {error!r}"
            ) from error

    def _records_of(self, batch: Any, raw: bytes) -> Iterator[Any]:
        if batch.compression_type:
            try:
                raw = unpacked(raw)
            except UnreadableError as error:
                yield self._undecodable(batch, batch.next_offset - 1, error)
                return
            batch = DefaultRecordBatch(raw)
        if len(raw) <= MAX_QUICK_BYTES:
            end = batch.next_offset
            try:
                for record in batch:
                    if record.offset >= self.next_fetch_offset:  # the broker gives the whole batch that we are in
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
        """Yields the records from our position on, with stand-ins for those that cannot be decoded."""
        try:
            for place, record in enumerate(one_by_one(raw)):
                if isinstance(record, UnreadableError):
                    # Where it is not known, it is the next one.
                    offset = batch.base_offset + place if _has_every_offset(raw) else self.next_fetch_offset
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
        """Returns the stand-in for the records up to `last` of a batch with a trustworthy header."""
        return self._stand_in(last, max(0, batch.max_timestamp), error, is_transactional=bool(batch.is_transactional))

    def _damaged(self, raw: bytes, error: DamagedBatchError, following_offset: int | None) -> UndecodableRecord:
        """Returns the stand-in for the records of a damaged batch, whose header is trusted only where two fields agree."""
        position, time_ms = self.next_fetch_offset, self._last_ms
        nexts = [following_offset] if following_offset is not None else []
        head = head_of(raw)
        if head is not None and head.has_every_offset and head.base_offset <= position:
            nexts.append(head.next_offset)
            # Time that has come too far closes calls; one that is behind only waits for the next record.
            time_ms = time_ms or max(0, min(head.first_timestamp, head.max_timestamp))
        # The nearest: a wrong length may have taken good batches in.
        last = min((offset for offset in nexts if offset > position), default=position + 1) - 1
        return self._stand_in(last, time_ms, error, is_transactional=None)

    def _stand_in(
        self, last: int, time_ms: int, error: UnreadableError, *, is_transactional: bool | None
    ) -> UndecodableRecord:
        first, self.next_fetch_offset = self.next_fetch_offset, last + 1
        return UndecodableRecord(
            topic=self._tp.topic,
            partition=self._tp.partition,
            first_offset=first,
            offset=last,
            timestamp=time_ms,
            is_transactional=is_transactional,
            what=error.what,
            expected_and_seen=error.expected_and_seen,
            what_to_do=error.what_to_do,
        )


def _has_every_offset(raw: bytes) -> bool:
    head = head_of(raw)
    return head is not None and head.has_every_offset


def read_tolerantly() -> None:
    """Switches all consumers of this process to tolerant reading, existing ones included; harmless when repeated."""
    fetcher.MemoryRecords = RecordBatches
    fetcher.PartitionRecords = TolerantRecords
