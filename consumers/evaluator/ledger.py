"""Reads back what earlier owners of partitions wrote to `scores`, before anything of theirs is folded again."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka import KafkaSettings
from schemas.scores import SCHEMA_VERSION, SCORE_RECORD, AnyScoreRecord
from schemas.topics import SCORES_TOPIC
from schemas.undecodable import UndecodableRecord

POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 2_000
MAX_SILENT_SECONDS: Final = 30.0
"""How long the broker may leave us without a record of those that it says are there."""

Recall = Callable[[AnyScoreRecord], None]

log = structlog.get_logger()


class LedgerError(Exception):
    """The ledger cannot be read to its end: without it scores would be doubled, so the process must end."""


async def read_ledger(
    kafka: KafkaSettings, starts: Mapping[int, int], at_least: Mapping[int, int], recalls: Mapping[int, Recall]
) -> dict[int, int]:
    """Hands every committed record of some partitions of `scores` over, in order.

    Args:
        kafka: Where.
        starts: By partition number, the first offset that matters.
        at_least: By partition number, an offset to read up to even if the broker does not show as much yet.
        recalls: By partition number, who takes the records.

    Returns:
        By partition number, the offset after the last record.

    Raises:
        LedgerError: The end was not reached, or a record is of a version this one cannot read.
        KafkaError: The broker refused.
    """
    topic = kafka.topic(SCORES_TOPIC)
    consumer = kafka.consumer("ledger", enable_auto_commit=False, max_poll_records=MAX_POLL_RECORDS)
    try:
        await consumer.start()
        partitions = [TopicPartition(topic, number) for number in starts]
        consumer.assign(partitions)
        stable_ends = await consumer.end_offsets(partitions)
        ends = {tp: max(end, at_least[tp.partition]) for tp, end in stable_ends.items()}
        firsts = await consumer.beginning_offsets(partitions)
        for tp in partitions:
            start = starts[tp.partition]  # beyond the end, it speaks of a topic that was made anew
            consumer.seek(tp, start if firsts[tp] <= start <= ends[tp] else firsts[tp])
        await _read(consumer, ends, recalls)
        return {tp.partition: ends[tp] for tp in partitions}
    finally:
        await consumer.stop()


async def _read(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], recalls: Mapping[int, Recall]) -> None:
    loop = asyncio.get_running_loop()
    unread = dict(ends)
    heard_at = loop.time()
    records = ignored = 0
    while True:
        # By position and not by record count: the end of a transaction takes an offset and is no record.
        unread = {tp: end for tp, end in unread.items() if await consumer.position(tp) < end}
        if not unread:
            numbers = sorted(tp.partition for tp in ends)
            log.info("ledger_read", partitions=numbers, records=records, ignored=ignored)
            return
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
                    _require_foreign(record)
                    ignored += 1
                    continue
                if record.value is None:
                    continue  # a change of owner
                where = f"{tp.topic}[{tp.partition}]@{record.offset}"
                ignored += not _recalled(recall, record.value, where)
            records += len(batch)


def _require_foreign(record: UndecodableRecord) -> None:
    """Lets one pass that no evaluator wrote; it may be the end of a call, which would be scored again without it.

    Raises:
        LedgerError: An evaluator may have written it: all that they write there is in transactions.
    """
    if record.is_transactional is not False:
        raise LedgerError(
            f"Ledger: {record}. It may say that a call has closed, and without it that call would be scored again, so the "
            f"evaluator ends. {record.what_to_do} If it cannot be repaired, `kafka-delete-records.sh` up to "
            f"@{record.offset + 1} of that partition lets evaluators start, and calls that closed before may be scored again."
        )
    log.warning(
        "ledger_record_undecodable", record=str(record),
        what_happens_now="It is left out: it was not written in a transaction, so no evaluator wrote it.",
        what_to_do="Find out who else writes to this topic, and take the right away.",
    )  # fmt: skip


def _recalled(recall: Recall, value: bytes, where: str) -> bool:
    """Hand one record over; false when it is none of ours."""
    try:
        record = SCORE_RECORD.validate_json(value)
    except ValidationError as error:
        _require_our_version(_version_in(value), where)
        log.debug("ledger_record_ignored", record=where, reason=str(error).partition("\n")[0])
        return False
    _require_our_version(record.schema_version, where)
    recall(record)
    return True


def _version_in(value: bytes) -> int:
    try:
        record = json.loads(value)
    except ValueError:
        return 0
    version = record.get("schema_version") if isinstance(record, dict) else None
    return version if isinstance(version, int) else 0


def _require_our_version(version: int, where: str) -> None:
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"Ledger: {where} has schema version {version}, and this callgauge reads up to {SCHEMA_VERSION}. A newer "
            "version has written scores here, so the evaluator ends. Run that version, or another group and topics."
        )
