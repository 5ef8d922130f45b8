"""Reads topics from their beginning, as a consumer of its own would; mostly `scores`."""

import asyncio
import time
from collections.abc import Iterable, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRecord

from schemas.rows import CallRow, Row, TurnRow, decode
from tests.support.patience import patient

LOOK_SECONDS = 0.5
"""From one reading of the whole topic to the next."""


async def records_on(
    environment: Mapping[str, str],
    name: str,
    partition: int | None = None,
    isolation: str = "read_committed",
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


def rows_in(values: Iterable[bytes | None]) -> list[Row]:
    """The rows among values of `scores`."""
    return [decode(value) for value in values if value]


async def written_rows(environment: Mapping[str, str]) -> list[Row]:
    """All rows of `scores`, partition by partition."""
    records = await records_on(environment, "scores", isolation="read_uncommitted")
    return rows_in(record.value for record in records)


def closings_of(rows: Iterable[Row]) -> list[CallRow]:
    """The last row of each call that is closed."""
    return [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]


async def closed_rows(
    environment: Mapping[str, str], calls: int, seconds: float
) -> dict[str, CallRow]:
    """By call, its closed row: once so many calls are closed, or those that are after so many
    seconds of an idle machine.
    """
    begin = time.monotonic()
    while True:
        rows = await written_rows(environment)
        found = {row.conversation_id: row for row in closings_of(rows)}
        if len(found) >= calls or time.monotonic() - begin > patient(seconds):
            return found
        await asyncio.sleep(LOOK_SECONDS)


def newest_rows(rows: Iterable[Row]) -> list[Row]:
    """The newest row of each turn and of each call, without turns that were withdrawn."""
    newest: dict[tuple[str, str, int | None], Row] = {}
    for row in rows:
        newest[
            row.conversation_id, type(row).__name__, row.turn if isinstance(row, TurnRow) else None
        ] = row
    return [
        row
        for row in newest.values()
        if not (isinstance(row, TurnRow) and row.status == "withdrawn")
    ]
