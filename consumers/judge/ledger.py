"""Reads earlier verdicts before any question is put: `judge.verdicts` is the judges' ledger.

Reading starts somewhat before the oldest open question. So it finds verdicts whose questions were not committed yet, and
verdicts on questions that the engine asks a second time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.logs import about_record
from schemas.judging import REQUEST_PARTITION_HEADER, JudgeVerdict
from schemas.topics import JUDGE_VERDICTS_TOPIC
from schemas.undecodable import UndecodableRecord

POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 2_000
MAX_SILENT_SECONDS: Final = 30.0
"""How long reading may wait for a record that the broker says is there."""
MAX_PARTITION_DIGITS: Final = 10
"""Kafka numbers partitions with 32 bits; Python refuses to read numbers of more than 4,300 digits."""
MAX_UNREADABLE_LINES: Final = 10
"""Most log lines about unreadable records of one reading. Its last line has the number of all."""

Recall = Callable[[JudgeVerdict], None]

log = structlog.get_logger()


class VerdictLedgerError(OperatorError):
    """The ledger cannot be read to its end. Without it, answered questions would be paid for again, so the process ends."""


class Answered:
    """Ids of requests with a written verdict. The oldest are forgotten when there are too many."""

    def __init__(self, max_remembered: int) -> None:
        """Starts empty.

        Args:
            max_remembered: Most ids to remember.
        """
        self._max_remembered = max_remembered
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._ids

    def add(self, request_id: str) -> None:
        """Adds the id of an answered request."""
        self._ids[request_id] = None
        if len(self._ids) > self._max_remembered:
            self._ids.popitem(last=False)


def partition_number_in(record: Any, header: str) -> int | None:
    """Returns the partition number in a header of a record; None without such a header, or if it is not a number.

    Args:
        record: A consumer's record, which anyone may have written.
        header: The header's name.
    """
    for name, value in record.headers:
        if name == header:
            is_number = value is not None and value.isdigit() and len(value) <= MAX_PARTITION_DIGITS
            return int(value) if is_number else None
    return None


async def read_verdicts(
    kafka: KafkaSettings,
    questions: Mapping[TopicPartition, int],
    at_least_from_ms: int,
    overlap_ms: int,
    recall: Recall,
) -> None:
    """Passes on the verdicts on questions of some partitions, from somewhat before the oldest open question.

    Args:
        kafka: The cluster.
        questions: By partition of `judge.requests`, the first offset that is not committed.
        at_least_from_ms: Broker time from which verdicts are read even if no question is open.
        overlap_ms: How far before the oldest open question reading starts.
        recall: Called with each verdict.

    Raises:
        VerdictLedgerError: The end was not reached.
        TopicsUnfitError: There is no topic `judge.verdicts`.
        KafkaError: The broker refused.
    """
    counts = await partition_counts(kafka, [JUDGE_VERDICTS_TOPIC])
    topic = kafka.topic(JUDGE_VERDICTS_TOPIC)
    partitions = [TopicPartition(topic, number) for number in range(counts[JUDGE_VERDICTS_TOPIC])]
    consumer = kafka.consumer("judge-ledger", enable_auto_commit=False, max_poll_records=MAX_POLL_RECORDS)
    try:
        await consumer.start()
        oldest_ms = await _oldest_ms(consumer, questions)
        from_ms = at_least_from_ms if oldest_ms is None else min(at_least_from_ms, oldest_ms - overlap_ms)
        starts = await consumer.offsets_for_times(dict.fromkeys(partitions, max(0, from_ms)))
        ends = await consumer.end_offsets(partitions)
        wanted = {tp: at.offset for tp, at in starts.items() if at is not None and at.offset < ends[tp]}
        consumer.assign(list(wanted))
        for tp, offset in wanted.items():
            consumer.seek(tp, offset)
        numbers = {tp.partition for tp in questions}
        await _read(consumer, {tp: ends[tp] for tp in wanted}, numbers, recall)
    finally:
        await consumer.stop()


async def _oldest_ms(consumer: AIOKafkaConsumer, questions: Mapping[TopicPartition, int]) -> int | None:
    """Returns the broker time of the oldest question that is not committed; None when all are."""
    ends = await consumer.end_offsets(list(questions))
    firsts = await consumer.beginning_offsets(list(questions))
    unread = {tp: max(start, firsts[tp]) for tp, start in questions.items() if max(start, firsts[tp]) < ends[tp]}
    consumer.assign(list(unread))
    for tp, offset in unread.items():
        consumer.seek(tp, offset)
    times_ms: list[int] = []
    heard_at = asyncio.get_running_loop().time()
    while unread:
        # The end of a transaction takes an offset and is no record, so a partition may have none after all.
        done = [tp for tp in unread if await consumer.position(tp) >= ends[tp]]
        for tp in done:
            del unread[tp]
        batches = await consumer.getmany(*unread, timeout_ms=POLL_MS, max_records=1) if unread else {}
        for tp, records in batches.items():
            if records:
                times_ms.append(records[0].timestamp)
                del unread[tp]
        heard_at = _require_news(heard_at, is_news=bool(batches or done), unread=unread)
    return min(times_ms, default=None)


async def _read(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], numbers: Collection[int], recall: Recall
) -> None:
    unread = dict(ends)
    heard_at = asyncio.get_running_loop().time()
    records = unreadable = 0
    while True:
        unread = {tp: end for tp, end in unread.items() if await consumer.position(tp) < end}
        if not unread:
            log.info("verdicts_read", requests_partitions=sorted(numbers), verdicts=records, unreadable=unreadable)
            return
        batches = await consumer.getmany(*unread, timeout_ms=POLL_MS)
        heard_at = _require_news(heard_at, is_news=bool(batches), unread=unread)
        for batch in batches.values():
            for record in batch:
                if isinstance(record, UndecodableRecord):
                    _log_unreadable(record, str(record))
                    continue
                if partition_number_in(record, REQUEST_PARTITION_HEADER) not in numbers:
                    continue
                try:
                    verdict = JudgeVerdict.model_validate_json(record.value or b"")
                except ValidationError as error:  # another event, or one of another version
                    unreadable += 1
                    if unreadable <= MAX_UNREADABLE_LINES:
                        _log_unreadable(record, str(error).partition("\n")[0])
                    continue
                recall(verdict)
                records += 1


def _require_news(heard_at: float, *, is_news: bool, unread: Mapping[TopicPartition, int]) -> float:
    """Checks that the broker has sent a record lately, and returns when.

    Raises:
        VerdictLedgerError: The last record came too long ago.
    """
    now = asyncio.get_running_loop().time()
    if is_news:
        return now
    if now - heard_at > MAX_SILENT_SECONDS:
        behind = ", ".join(f"{tp.topic}[{tp.partition}]" for tp in sorted(unread))
        raise VerdictLedgerError(
            f"Judge: nothing came for {MAX_SILENT_SECONDS:.0f} s, with records outstanding in {behind}. Without them "
            "answered questions would be asked and paid for again, so the judge ends. Check the broker and whether a "
            "transaction of a producer hangs there."
        )
    return heard_at


def _log_unreadable(record: Any, reason: str) -> None:
    log.warning(
        "verdict_unreadable", **about_record(record), reason=reason,
        what_happens_now="It is left out; if it answers a question of ours, that is asked and paid for again.",
        what_to_do="See who else writes judge.verdicts, and whether judges of several versions run.",
    )  # fmt: skip
