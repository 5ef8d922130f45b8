"""`/metrics` and `/healthz`, served inside our event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import uvicorn
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from consumers.runtime.registry import Instruments

STOP_SECONDS: Final = 0.4
"""How long open connections may take to finish when the server stops; then they are cut."""
MAX_CONNECTIONS: Final = 64
"""Connections at a time; Prometheus, a browser and a probe need three."""


class HttpSettings(BaseModel):
    """Where the HTTP server listens."""

    model_config = ConfigDict(frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 shows the metrics to the whole network.")
    port: int = Field(9464, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")


class AddressInUseError(Exception):
    """The address cannot be listened on; choose another port, or end what holds it."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the application."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class MetricsServer:
    """Serves the instruments to Prometheus, and says whether the roles in this process are well."""

    def __init__(
        self, settings: HttpSettings, instruments: Instruments, problems: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Keeps the settings; nothing listens before `start`.

        Args:
            settings: Address and port.
            instruments: What `/metrics` shows.
            problems: What is wrong now, a sentence each; `/healthz` answers 503 while there is one.
        """
        self._settings = settings
        self._instruments = instruments
        self._problems = problems
        self._rendering = asyncio.Lock()
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The address of `/metrics`, with the port that was taken."""
        return f"http://{self._settings.host}:{self._port}/metrics"

    async def start(self) -> None:
        """Listens and serves.

        Raises:
            AddressInUseError: Another program holds the address, or it is none of this machine's.
        """
        host, port = self._settings.host, self._settings.port
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise AddressInUseError(
                f"HTTP server: cannot listen on {host}:{port}: {error.strerror}. "
                "Metrics cannot be shown, so callgauge does not start. Choose another port, or 0 for a free one."
            ) from error
        self._port = listening.getsockname()[1]
        routes = [Route("/metrics", self._metrics), Route("/healthz", self._health)]
        config = uvicorn.Config(
            Starlette(routes=routes), lifespan="off", log_config=None, access_log=False, server_header=False,
            ws="none", limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=STOP_SECONDS,  # type: ignore[arg-type]  # asyncio waits for parts of a second too
        )  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="http")

    async def stop(self) -> None:
        """Stops listening and ends within a second."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = self._serving = None

    async def _metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        async with self._rendering:  # a page at a time: rendering shares the processor with the roles
            self._instruments.refresh()
            # 10,000 series take a tenth of a second: in a thread, so that no poll of Kafka waits for it.
            page = await asyncio.to_thread(encode, self._instruments.registry)
        return Response(page, headers={"content-type": content_type})

    async def _health(self, _request: Request) -> Response:
        problems = self._problems()
        if problems:
            return PlainTextResponse("\n".join(problems) + "\n", status_code=503)
        return PlainTextResponse("ok\n")
