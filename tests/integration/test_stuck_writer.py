"""A writer that hangs on a real broker: `/readyz` says so within half a minute, and its role ends
and writes what it had not.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from consumers.evaluator import writer
from consumers.evaluator.decisions import Decision
from consumers.evaluator.writer import Writer
from streamer.roles.running import Service
from streamer.settings.all_settings import load_settings
from tests.integration.score_log import LOOK_SECONDS
from tests.integration.test_refused_writes import closed, send_call
from tests.support.patience import patient

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long,
    pytest.mark.service(partitions=1, limits__closing_grace_ms="0"),
]
READY_SECONDS = 30.0


async def test_a_writer_that_hangs_ends_readiness_and_then_its_role(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = asyncio.Event()
    restarts: Counter[str] = Counter()
    write = Writer._write

    async def hanging(self: Writer, decided: Sequence[Decision]) -> None:
        while hangs.is_set():  # whatever cancels it
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                restarts["cancels"] += 1
        await write(self, decided)

    monkeypatch.setattr(writer.Writer, "_write", hanging)
    settings = load_settings(None, {"http_port": 0}, environment)
    service, stop = Service(settings, settings.kafka, ["sequencer", "evaluator"]), asyncio.Event()
    running = asyncio.create_task(service.run(stop))
    try:
        await asyncio.wait_for(service.ready.wait(), patient(60))
        async with httpx.AsyncClient(
            base_url=service.metrics_url.removesuffix("/metrics")
        ) as client:
            hangs.set()
            await send_call(environment, "call-1")
            sent = time.monotonic()
            await until(lambda: _answers(client, "/readyz", 503), READY_SECONDS)
            print(
                f"not ready after {time.monotonic() - sent:.1f} s: "
                f"{(await client.get('/readyz')).text}"
            )
            assert "scores have waited to be written" in (await client.get("/readyz")).text
            await until(lambda: _restarted(client), patient(60))
            print(
                f"role ended after {time.monotonic() - sent:.1f} s; it ignored "
                f"{restarts['cancels']} cancels"
            )
            hangs.clear()
            await until(lambda: _answers(client, "/readyz", 200), patient(120))
        async with asyncio.timeout(patient(120)):
            # the topic is outside
            while await closed(environment) != Counter(["call-1"]):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        stop.set()
        await asyncio.wait([running], timeout=patient(30))


async def until(holds: Callable[[], Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.2)


async def _answers(client: httpx.AsyncClient, path: str, status: int) -> bool:
    return (await client.get(path)).status_code == status


async def _restarted(client: httpx.AsyncClient) -> bool:
    return (
        'callgauge_role_restarts_total{role="evaluator"} 1' in (await client.get("/metrics")).text
    )
