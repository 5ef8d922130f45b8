"""Reads topics from their beginning, as a consumer of its own would; mostly `scores`."""

import asyncio
import time
from collections.abc import Iterable, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRecord

from schemas.scores.live_view import newest_scores
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, ClosedFact
from tests.support.patience import patient

LOOK_SECONDS = 0.5
"""From one reading of the whole topic to the next."""


async def records_on(
    environment: Mapping[str, str], name: str, partition: int | None = None, isolation: str = "read_committed"
) -> list[ConsumerRecord]:
    """All records of a topic, partition by partition, or those of one partition."""
    topic = environment.get("CALLGAUGE_TOPIC_PREFIX", "") + name
    bootstrap = environment["CALLGAUGE_BOOTSTRAP"]
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation
    )
    records: list[ConsumerRecord] = []
    async with consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        for tp, end in ends.items():
            while partition in (None, tp.partition) and await consumer.position(tp) < end:
                records += (await consumer.getmany(tp, timeout_ms=1_000)).get(tp, ())
    return records


async def written_scores(environment: Mapping[str, str]) -> list[AnyScoreRecord]:
    """All records of `scores`, partition by partition."""
    records = await records_on(environment, "scores", isolation="read_uncommitted")
    return [SCORE_RECORD.validate_json(record.value) for record in records if record.value]


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
