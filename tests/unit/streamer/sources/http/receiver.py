"""The routes of the ingest role without Kafka: a writer keeps its records, or does not answer."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import httpx
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import Route

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.log import OutgoingRecord
from streamer.settings.all_settings import IngestSettings, SenderSettings
from streamer.sources.http.elevenlabs import WebhookRoute
from streamer.sources.http.posted import Batches, EventsRoute
from streamer.sources.http.receiving import Bodies, Senders
from streamer.sources.http.traces import posted_spans
from streamer.sources.outgoing import NotAcknowledgedError
from streamer.sources.writer import AcknowledgedWriter
from tests.support.webhooks import SECRET

TOKEN = "token-of-everybody"  # noqa: S105 - a secret of tests


class FakeWriter:
    """Keeps records; while `is_away`, acknowledges none. `hold` makes it wait until `release`."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []
        self.is_away = False
        self.writes = 0
        self.asked = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        self.writes += 1
        self.asked.set()
        await self._free.wait()
        if self.is_away:
            raise NotAcknowledgedError
        self.records += records


class Receiver:
    """Both routes, as a client reaches them."""

    def __init__(
        self,
        settings: IngestSettings | None = None,
        tenants: dict[str, SenderSettings] | None = None,
    ) -> None:
        self.writer = FakeWriter()
        self.registry = CollectorRegistry()
        self.bodies = Bodies()
        instruments = Instruments(self.registry, ["ingest"])
        settings = settings or IngestSettings.model_validate(
            {"token": TOKEN, "elevenlabs_secret": SECRET}
        )
        senders = Senders({**settings.senders(), **(tenants or {})})
        batches = Batches(senders, Limits(), Redactor(), wall_clock_ms)
        writer = cast("AcknowledgedWriter", self.writer)
        events = EventsRoute(senders, batches, self.bodies, writer, instruments)
        traces = EventsRoute(senders, batches, self.bodies, writer, instruments, posted_spans)
        webhook = WebhookRoute(senders, self.bodies, writer, instruments, Limits(), wall_clock_ms)
        self.app = Starlette(
            routes=[
                Route("/events", events.answer, methods=["POST"]),
                Route("/v1/traces", traces.answer, methods=["POST"]),
                Route("/webhooks/elevenlabs", webhook.answer, methods=["POST"]),
                Route("/webhooks/elevenlabs/{tenant}", webhook.answer, methods=["POST"]),
            ]
        )
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://ingest"
        )

    async def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        """Posts a body; underscores in names of headers become dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._client.post(path, content=body, headers=named)

    async def events(self, events: Any, token: str = TOKEN, **headers: str) -> httpx.Response:
        """Posts events as a JSON array."""
        body = events if isinstance(events, bytes) else json.dumps(events).encode()
        return await self.post("/events", body, authorization=f"Bearer {token}", **headers)

    def count(self, name: str, **labels: str) -> float:
        """The value of a counter, 0 if nothing was counted."""
        return self.registry.get_sample_value(name, labels) or 0.0

    @property
    def written(self) -> list[tuple[str, Any]]:
        """The topics and events of the records."""
        return [(each.source.value, json.loads(each.value)) for each in self.writer.records]
