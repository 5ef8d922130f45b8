"""The role `ingest`: receives events over HTTP within bounds, by tenant."""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import structlog

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import HttpLimit, HttpListener
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import SetupError, first_of, tune_python
from consumers.runtime.registry import Instruments
from streamer.settings.all_settings import IngestSettings
from streamer.sources.http.receiver import BOUNDS, Receiver
from streamer.sources.outgoing import ACKNOWLEDGE_SECONDS
from streamer.sources.writer import AcknowledgedWriter

STOP_SECONDS: Final = ACKNOWLEDGE_SECONDS
"""How long requests in progress may take when the role stops: they wait for Kafka for as long."""

log = structlog.get_logger()


class IngestRole:
    """Receives events over HTTP until it is stopped.

    Attributes:
        ready: Set while it listens.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: IngestSettings,
        limits: Limits,
        instruments: Instruments,
        redactor: Redactor,
        *,
        names: Collection[str] = (),
    ) -> None:
        """Creates the role; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            kafka: Where Kafka is.
            settings: The address, and the rights of senders.
            limits: Of the evaluator, whose checks each event passes.
            instruments: Gets the metrics of the role.
            redactor: Redacts the parts of events that refusals repeat.
            names: Names by which a proxy or a tunnel on this machine asks.

        Raises:
            SetupError: There is neither a token nor a secret.
        """
        if not settings.is_on:
            raise SetupError(
                "Ingest: no sender is allowed, so it does not start: there is neither a token for "
                "POST /events nor a secret of ElevenLabs' webhook. Set CALLGAUGE_INGEST__TOKEN, "
                "CALLGAUGE_INGEST__ELEVENLABS_SECRET, or both."
            )
        self.ready = asyncio.Event()
        self._writer = AcknowledgedWriter(kafka, "ingest")
        self._receiver = Receiver(settings, limits, self._writer, instruments, redactor)
        self._listener = HttpListener(
            settings.host,
            settings.port,
            self._receiver.routes,
            partial(_count, instruments),
            bounds=BOUNDS,
            without_it="Events cannot be received",
            names=names,
            stop_seconds=STOP_SECONDS,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Listens until `stop` is set; then finishes the requests in progress.

        Raises:
            AddressInUseError: The address is taken.
            KafkaUnreachableError: No broker answers.
            ProducerBrokenError: Records cannot be written any more.
        """
        # a large batch is a hundred thousand objects, and a search among them keeps everybody
        # waiting
        tune_python()
        await self._writer.start()
        try:
            await self._listener.start()
            self.ready.set()
            log.info(
                "ingest_listens", address=self._listener.address, tenants=self._receiver.tenants
            )
            await first_of(stop.wait(), self._writer.broken.wait())
            if self._writer.broken.is_set():
                raise self._writer.failure()
        finally:
            self.ready.clear()
            await self._listener.stop()
            await self._writer.close()
            self._receiver.close()

    def problems(self) -> Sequence[str]:
        """The reason why it receives nothing now, for `/readyz`. Requests are tried nevertheless,
        and end it.
        """
        away = "ingest: Kafka did not acknowledge the last records; senders get 503"
        return (away,) if self.ready.is_set() and self._writer.is_away else ()

    def stalled(self) -> Sequence[str]:
        """No fault of this role needs a new process: a broken producer is replaced
        with the role.
        """
        return ()


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))
