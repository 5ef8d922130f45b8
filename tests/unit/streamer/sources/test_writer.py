"""Records for the input topics are handed to the client in turns with everything else."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import InputSource
from schemas.log import OutgoingRecord
from streamer.sources.writer import RECORDS_A_TURN, AcknowledgedWriter
from tests.support.fakes.evaluator_fakes import until_idle


class Client:
    """A producer with room for everything: it never makes the writer wait."""

    def __init__(self) -> None:
        self.sent = 0

    async def start(self) -> None: ...

    async def send(self, *_: Any, **__: Any) -> "asyncio.Future[None]":
        self.sent += 1
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged


async def test_a_large_batch_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(KafkaSettings, "producer", lambda *_: client)
    writer = AcknowledgedWriter(KafkaSettings(), "ingest")
    await writer.start()
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(client.sent)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await until_idle()
    record = OutgoingRecord(InputSource.AUDIT, b"c", b"{}", ())
    await writer.write([record] * 10 * RECORDS_A_TURN)
    watching.cancel()
    assert client.sent == 10 * RECORDS_A_TURN
    assert max(after - before for before, after in pairwise(seen)) <= RECORDS_A_TURN
