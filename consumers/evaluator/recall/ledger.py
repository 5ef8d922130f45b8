"""Reads the records of `scores` that earlier owners of a partition wrote, before its inputs are folded again."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.ledger_record import (
    ClosedElsewhere,
    LedgerRecord,
    ScoredElsewhere,
    UnreadableRecordError,
    read_ledger_record,
)
from schemas.topics import SCORES_TOPIC
from schemas.undecodable import UndecodableRecord

POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 2_000
MAX_SILENT_SECONDS: Final = 30.0
"""How long reading may wait for a record that the broker says is there."""
MAX_ODD_RECORD_LINES: Final = 5
"""Log lines of one reading about records that are not like ours; the metric counts them all."""

Recall = Callable[[LedgerRecord], None]

log = structlog.get_logger()


class LedgerError(OperatorError):
    """The ledger cannot be read to its end. Without it scores would be published twice, so the process must end."""


async def read_ledger(
    kafka: KafkaSettings,
    starts: Mapping[int, int],
    at_least: Mapping[int, int],
    recalls: Mapping[int, Recall],
    instruments: Instruments,
) -> dict[int, int]:
    """Passes every committed record of some partitions of `scores` on, in order.

    Args:
        kafka: The cluster.
        starts: By partition number, the first offset to read.
        at_least: By partition number, an offset to read up to, even if the broker does not show as much yet.
        recalls: By partition number, the function that takes the records.
        instruments: Where records that this version cannot read in full are counted.

    Returns:
        By partition number, the offset after the last record.

    Raises:
        LedgerError: The end was not reached, or a record that a callgauge wrote cannot be read.
        KafkaError: The broker refused.
    """
    topic = kafka.topic(SCORES_TOPIC)
    consumer = kafka.consumer("ledger", enable_auto_commit=False, max_poll_records=MAX_POLL_RECORDS)
    odd = _OddRecords(instruments)
    try:
        await consumer.start()
        partitions = [TopicPartition(topic, number) for number in starts]
        consumer.assign(partitions)
        stable_ends = await consumer.end_offsets(partitions)
        ends = {tp: max(end, at_least[tp.partition]) for tp, end in stable_ends.items()}
        firsts = await consumer.beginning_offsets(partitions)
        for tp in partitions:
            start = starts[tp.partition]  # beyond the end, it is about a topic that was created again
            consumer.seek(tp, start if firsts[tp] <= start <= ends[tp] else firsts[tp])
        records = await _read(consumer, ends, recalls, odd)
        numbers = sorted(starts)
        log.info("ledger_read", partitions=numbers, records=records, ignored=odd.ignored, read_in_part=odd.read_in_part)
        return {tp.partition: ends[tp] for tp in partitions}
    finally:
        await consumer.stop()


async def _read(
    consumer: AIOKafkaConsumer,
    ends: Mapping[TopicPartition, int],
    recalls: Mapping[int, Recall],
    odd: "_OddRecords",
) -> int:
    loop = asyncio.get_running_loop()
    unread = dict(ends)
    heard_at = loop.time()
    records = 0
    while True:
        # By position and not by record count: the end of a transaction takes an offset and is no record.
        unread = {tp: end for tp, end in unread.items() if await consumer.position(tp) < end}
        if not unread:
            return records
        batches = await consumer.getmany(*unread, timeout_ms=POLL_MS)
        if batches:
            heard_at = loop.time()
        elif loop.time() - heard_at > MAX_SILENT_SECONDS:
            behind = ", ".join(f"{tp.topic}[{tp.partition}] before {end}" for tp, end in sorted(unread.items()))
            raise LedgerError(
                f"Ledger: nothing came for {MAX_SILENT_SECONDS:.0f} s, with records outstanding in {behind}. Without them "
                "scores would be written twice, so the evaluator ends. Check the broker and whether a transaction of "
                "another producer hangs there."
            )
        for tp, batch in batches.items():
            recall = recalls[tp.partition]
            for record in batch:
                if isinstance(record, UndecodableRecord):
                    _require_foreign(record, odd)
                    continue
                if record.value is None:
                    continue  # a change of owner
                _hand_over(record.value, f"{tp.topic}[{tp.partition}]@{record.offset}", recall, odd)
            records += len(batch)


def _require_foreign(record: UndecodableRecord, odd: "_OddRecords") -> None:
    """Lets a record be skipped if no evaluator wrote it. Any other may be the end of a call, and skipping it would score the
    call again.

    Raises:
        LedgerError: An evaluator may have written it, because it is in a transaction, as all their records are.
    """
    if record.is_transactional is not False:
        raise LedgerError(
            f"Ledger: {record}. It may say that a call has closed, and without it that call would be scored again, so the "
            f"evaluator ends. {record.what_to_do} If it cannot be repaired, `kafka-delete-records.sh` up to "
            f"@{record.offset + 1} of that partition lets evaluators start, and calls that closed before may be scored again."
        )
    odd.ignore(str(record), "A record that cannot be decoded. It is in no transaction, so no evaluator wrote it.")


def _hand_over(value: bytes, where: str, recall: Recall, odd: "_OddRecords") -> None:
    try:
        record = read_ledger_record(value)
    except UnreadableRecordError as error:
        raise LedgerError(
            f"Ledger: {where} {error}. Without it scores would be written twice, so the evaluator ends. Run the version "
            "that wrote it, or make this one start without it as deploy/upgrades.md says."
        ) from error
    if record is None:
        odd.ignore(where, "A record that no callgauge wrote: not JSON, or without record_id and code_version.")
        return
    if isinstance(record, ClosedElsewhere | ScoredElsewhere):
        odd.take_part_of(record, where)
    recall(record)


class _OddRecords:
    """Counts the unusual records of one reading, and logs the first few."""

    def __init__(self, instruments: Instruments) -> None:
        self.ignored = 0
        self.read_in_part = 0
        self._instruments = instruments

    def ignore(self, where: str, seen: str) -> None:
        self.ignored += 1
        self._instruments.inc("callgauge_ledger_records_odd_total", ("ignored",))
        if self.ignored <= MAX_ODD_RECORD_LINES:
            log.warning(
                "ledger_record_ignored",
                record=where,
                seen=seen,
                what_happens_now="It is passed over, and met again at each takeover until `scores` is read from behind it.",
                what_to_do="Find who writes there, and give the right to write `scores` to evaluators alone.",
            )

    def take_part_of(self, record: ClosedElsewhere | ScoredElsewhere, where: str) -> None:
        self.read_in_part += 1
        self._instruments.inc("callgauge_ledger_records_odd_total", ("read_in_part",))
        if self.read_in_part <= MAX_ODD_RECORD_LINES:
            is_closing = isinstance(record, ClosedElsewhere)
            log.warning(
                "ledger_record_read_in_part",
                record=where,
                conversation_id=record.conversation_id,
                seen="A record that another version wrote, with values that this one does not know.",
                what_happens_now="Its call stays closed." if is_closing else "Its score is numbered on from there.",
                what_to_do="Nothing while versions change; else run one version. See deploy/upgrades.md.",
            )
