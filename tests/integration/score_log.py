"""Reads the `scores` topic from its beginning, as a consumer of its own would."""

import asyncio
import time
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer

from schemas.scores.live_view import newest_scores
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, ClosedFact
from tests.support.patience import patient

LOOK_SECONDS = 0.5
"""From one reading of the whole topic to the next."""


async def written_scores(environment: dict[str, str]) -> list[AnyScoreRecord]:
    """All records of `scores`, partition by partition."""
    consumer = AIOKafkaConsumer(
        f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores",
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        records = []
        for partition, end in ends.items():
            while await consumer.position(partition) < end:
                batch = await consumer.getmany(partition, timeout_ms=1_000)
                records += [SCORE_RECORD.validate_json(r.value) for r in batch.get(partition, ()) if r.value]
        return records
    finally:
        await consumer.stop()


async def closings(environment: dict[str, str], calls: int, seconds: float) -> dict[str, ClosedFact]:
    """By call, its closing: once so many calls are closed, or those that are after so many seconds of an idle machine."""
    begin = time.monotonic()
    while True:
        found = {
            each.conversation_id: each for each in await written_scores(environment) if isinstance(each, ClosedFact)
        }
        if len(found) >= calls or time.monotonic() - begin > patient(seconds):
            return found
        await asyncio.sleep(LOOK_SECONDS)


def newest_of(records: Iterable[AnyScoreRecord]) -> list[AnyScoreRecord]:
    """The newest revision of every subject of each call, unless it is withdrawn."""
    calls: dict[str, list[AnyScoreRecord]] = {}
    for record in records:
        calls.setdefault(record.conversation_id, []).append(record)
    return [record for of_call in calls.values() for record in newest_scores(of_call).values()]
