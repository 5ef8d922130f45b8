"""Tries a new login to Kafka now and then, to notice a changed password before connections are lost.

Connections outlive their credentials: after a password has changed or a certificate has expired, everything works until a
connection is lost. Then aiokafka tries for ever, and neither its clients nor its polls raise an error.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import structlog
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.first_contact import NoContactError, first_contact
from consumers.runtime.kafka.refusals import Explanation, UnreachableNamesError, explained
from consumers.runtime.registry import Instruments

TRIAL_SECONDS: Final = 10.0
"""Time between two trials, and so the longest delay of noticing a refusal. Each is one connection; a process has dozens."""
CONFIRM_SECONDS: Final = 2.0
"""Time until the second trial, which confirms a refusal, because a stopping broker also closes connections."""

log = structlog.get_logger()


class LoginWatch:
    """Finds out whether Kafka refuses new connections of this process."""

    def __init__(self, kafka: KafkaSettings, instruments: Instruments) -> None:
        """Stores its settings; `follow` starts the trials.

        Args:
            kafka: The cluster, and the credentials of every client.
            instruments: Count refusals.
        """
        self._kafka = kafka
        self._instruments = instruments
        self._refusal = ""

    def problems(self) -> Sequence[str]:
        """Reasons why Kafka refuses new connections, for `/readyz`; none while it accepts them or does not answer."""
        return (self._refusal,) if self._refusal else ()

    async def follow(self, stop: asyncio.Event) -> None:
        """Tries until `stop` is set. Without TLS and login nothing can be refused, so nothing is tried."""
        if self._kafka.security.protocol == "PLAINTEXT":
            return
        while not stop.is_set():
            await _pause(stop, TRIAL_SECONDS)
            if await self._is_refused() and not self._refusal:
                await _pause(stop, CONFIRM_SECONDS)
                await self._is_refused(confirms=True)

    async def _is_refused(self, *, confirms: bool = False) -> bool:
        try:
            async with first_contact(self._kafka.client_options(), f"{self._kafka.client_id}-login-watch"):
                self._let_in()
                return False
        except (NoContactError, KafkaError, TimeoutError) as error:
            refused = _refused_by(error, self._kafka)
        if refused is not None and (confirms or self._refusal):
            self._tell(*refused)
        return refused is not None

    def _tell(self, address: str, refused: Explanation) -> None:
        self._instruments.inc("callgauge_kafka_logins_refused_total")
        self._refusal = f"kafka: new connections are refused: the broker at {address} {refused.seen}"
        log.error(
            "kafka_login_refused",
            problem=f"The broker at {address} {refused.seen}.",
            what_happens_now="Connections that are open go on; once one is lost, what needs it waits. It is tried again every "
            f"{TRIAL_SECONDS:.0f} s.",
            what_to_do=f"{refused.remedy} Passwords, keys and certificates are read at the start: restart callgauge when one "
            "of its own has changed.",
        )

    def _let_in(self) -> None:
        if self._refusal:
            log.info("kafka_login_works_again")
        self._refusal = ""


def _refused_by(error: BaseException, kafka: KafkaSettings) -> tuple[str, Explanation] | None:
    """Returns the broker that refused us and the reason; None if none did, for example because none answers."""
    causes = error.causes if isinstance(error, NoContactError) else ((kafka.bootstrap_servers, error),)
    for address, cause in causes:
        if not isinstance(cause, UnreachableNamesError):  # a login went well, and other brokers do not answer
            explanation = explained(cause, kafka.security)
            if explanation.answers:
                return address, explanation
    return None


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
