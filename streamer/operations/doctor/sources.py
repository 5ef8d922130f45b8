"""The checks of `ingest` and `monitor` in `callgauge doctor`: secrets, addresses, rights on the input topics, and ElevenLabs' API."""

import asyncio
import errno
import http.client
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import httpx2
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import RIGHTS_PAGE, KafkaSettings, KafkaUnreachableError, missing_rights
from streamer.cluster.rights import needs_of
from streamer.operations.doctor.findings import Finding, Verdict, counted
from streamer.settings.all_settings import Settings
from streamer.settings.ingest import IngestSettings
from streamer.sources.monitor.live_calls import LiveCalls, LookError

LOOK_SECONDS: Final = 20.0
"""How long ElevenLabs may take for the list of calls."""
ADDRESS_SECONDS: Final = 2.0
"""How long the program may take to answer that listens on the address of `ingest`."""
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound
_EVENTS_PATH: Final = "/events"


async def source_findings(settings: Settings) -> AsyncIterator[Finding]:
    """Checks both roles without Kafka: their settings, the address of `ingest`, and whether ElevenLabs lets the monitor in."""
    for finding in secret_findings(settings):
        yield finding
    if settings.ingest.is_on:
        yield await asyncio.to_thread(address_finding, settings)
    if settings.monitor.is_on:
        yield await reach_finding(settings)


async def right_findings(settings: Settings, kafka: KafkaSettings) -> Sequence[Finding]:
    """Checks by the broker's own answer, without a record, whether this user may write the topics of the two roles."""
    switches = {"ingest": settings.ingest.is_on, "monitor": settings.monitor.is_on}
    return [await _right_finding(role, settings, kafka) for role, is_on in switches.items() if is_on]


def secret_findings(settings: Settings) -> Iterator[Finding]:
    """Yields the senders that each role accepts. The settings refuse a wrong secret earlier."""
    ingest, monitor = settings.ingest, settings.monitor
    if ingest.is_on:
        yield Finding("ingest", Verdict.OK, _receives(ingest))
    else:
        yield Finding(
            "ingest", Verdict.OK,
            "off: there is no token for POST /events, no secret of ElevenLabs' webhook and no file of tenants",
        )  # fmt: skip
    if not monitor.is_on:
        yield Finding("monitor", Verdict.OK, "off: there is no key of ElevenLabs' API")
        return
    agents = f"the calls of {counted(len(monitor.agents), 'agent')}" if monitor.agents else "the calls of all agents"
    yield Finding("monitor", Verdict.OK, f"follows {agents} at {monitor.base_url}")


def address_finding(settings: Settings) -> Finding:
    """Whether `ingest` could listen now on this machine, or listens already."""
    host, port = settings.ingest.host, settings.ingest.port
    where = f"{host}:{port}"
    if port and port == settings.http_port and _overlap(host, settings.http_host):
        return Finding(
            "ingest address", Verdict.WRONG, f"{where} is also the address of /metrics, so the later of the two cannot start",
            "Set ingest.port or http_port to another port.",
        )  # fmt: skip
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listener does
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _takes_events(host, port):
            return Finding("ingest address", Verdict.OK, f"a receiver of events listens on {where}")
        return Finding(
            "ingest address", Verdict.WRONG, f"nobody can listen on {where}: {error.strerror or error}",
            "End the program that uses the port (`ss -ltnp` names it), or set ingest.host and ingest.port.",
        )  # fmt: skip
    free = "is free on this machine" if port else "takes a free port at each start"
    return Finding("ingest address", Verdict.OK, f"{where} {free}")


async def reach_finding(settings: Settings) -> Finding:
    """Whether ElevenLabs lists calls for the key. Whether the key may also follow one shows only while a call runs."""
    check = "monitor reach"
    try:
        async with asyncio.timeout(LOOK_SECONDS), httpx2.AsyncClient() as client:
            calls = await LiveCalls(settings.monitor, client).look(time.time())
    except (LookError, TimeoutError) as error:
        seen = str(error) or f"ElevenLabs does not answer within {LOOK_SECONDS:g} s"
        return Finding(
            check, Verdict.WRONG, f"{seen}, so no call is followed",
            "Check monitor.api_key and that it may write agents, monitor.agents, monitor.base_url, and the network.",
        )  # fmt: skip
    return Finding(check, Verdict.OK, f"ElevenLabs accepts the key; {counted(len(calls), 'call')} in progress")


async def _right_finding(role: str, settings: Settings, kafka: KafkaSettings) -> Finding:
    check = f"{role} rights"
    needs = needs_of((role,), settings)
    names = ", ".join(kafka.topic(name) for name in needs.operations)
    try:
        missing = await missing_rights(kafka, needs)
    except (KafkaError, KafkaUnreachableError, TimeoutError) as error:
        return Finding(check, Verdict.UNKNOWN, f"the broker does not say what this user may do ({error})")
    if missing:
        return Finding(
            check, Verdict.WRONG, f"{kafka.security.who} lacks rights: {'; '.join(missing)}",
            f"Give it these, for example with `kafka-acls.sh --add`; {RIGHTS_PAGE}",
        )  # fmt: skip
    return Finding(check, Verdict.OK, f"{kafka.security.who} may write to {names}")


def _receives(ingest: IngestSettings) -> str:
    senders = ingest.senders()
    tokens = sum(sender.token is not None for sender in senders.values())
    secrets = sum(sender.elevenlabs_secret is not None for sender in senders.values())
    events = f"POST /events has {counted(tokens, 'token')}" if tokens else "POST /events is off, without a token"
    webhook = f"ElevenLabs' webhook has {counted(secrets, 'secret')}" if secrets else "ElevenLabs' webhook is off"
    return f"{events}; {webhook}"


def _overlap(one: str, other: str) -> bool:
    return one == other or one in _EVERY_ADDRESS or other in _EVERY_ADDRESS


def _takes_events(host: str, port: int) -> bool:
    """Whether the program there takes POST at the path of events. GET changes nothing anywhere."""
    connection = http.client.HTTPConnection(_EVERY_ADDRESS.get(host, host), port, timeout=ADDRESS_SECONDS)
    try:
        connection.request("GET", _EVENTS_PATH)
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return answer.status == http.HTTPStatus.METHOD_NOT_ALLOWED and "POST" in answer.headers.get("allow", "")
