"""One call and its events, from the first to the last: labels, a bounded outbox, and the way to
callgauge.
"""

import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import urlsplit

from callgauge_send.events import Event, Rank, encoded, name_of, of_others
from callgauge_send.outbox import UNREAD, EventOutbox
from callgauge_send.sender import FLUSH_SECONDS, Log, Sender, Way

TOPIC: Final = "pipecat.events"
"""The topic that callgauge reads, after the prefix. Events of every framework go there; it has the
name of the first.
"""
EVENTS_PATH: Final = "/events"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
PIPELINE_TYPES: Final = ("cascade", "audio_llm", "s2s")
MAX_ID_BYTES: Final = 256
MAX_SHOWN_CHARS: Final = 400
"""How much of an error of others a warning shows."""
RANKS: Final = {
    "call_started": Rank.CALL,
    "call_ended": Rank.CALL,
    "function_call_event": Rank.TOOLS,
    "speech_event": Rank.SPEECH,
    "tts_text": Rank.WORDS,
    "user_message": Rank.WORDS,
    "assistant_message": Rank.WORDS,
}
"""What is dropped last; every other type goes first."""


class Call:
    """Sends the events of one call. `send` neither waits nor raises for whatever fails behind it.

    Example:
        async def conversation() -> None:
            call = Call(agent="desk", bootstrap_servers="kafka:9092") call.send("speech_event",
            data={"kind": "user_speech_started", "timestamp": time.time()}) ... await
            call.end("goodbye")
    """

    def __init__(
        self,
        *,
        conversation_id: str | Callable[[], str] | None = None,
        agent: str | None = None,
        tenant: str | None = None,
        environment: str | None = None,
        goals: str | None = None,
        pipeline_type: str | None = None,
        bootstrap_servers: str | None = None,
        topic_prefix: str | None = None,
        kafka: Mapping[str, Any] | None = None,
        url: str | None = None,
        token: str | None = None,
        sink: Callable[[Event], None] | None = None,
        producer: str = "callgauge-send",
        log: Log | None = None,
    ) -> None:
        """Keeps the settings; nothing is connected before the first event.

        Args:
            conversation_id: Id of the call, the same as in other sources of events; a function is
                asked once. By default it is a new UUID.
            agent: Name of the agent, by which scores are grouped. By default `CALLGAUGE_AGENT`.
            tenant: Customer or team. By default `CALLGAUGE_TENANT`.
            environment: For example `production`. By default `CALLGAUGE_ENVIRONMENT`.
            goals: Id of the goal set of this call; without it callgauge chooses by the agent.
            pipeline_type: `cascade`, which is the default in callgauge, `audio_llm` or `s2s`.
            bootstrap_servers: Brokers, `host:port` with commas. By default `CALLGAUGE_BOOTSTRAP`.
            topic_prefix: Text before the name of the topic. By default `CALLGAUGE_TOPIC_PREFIX`.
            kafka: Further arguments of `aiokafka.AIOKafkaProducer`, for TLS and logins.
            url: Address of callgauge, in the place of Kafka; with a path, that of `POST /events`
                itself. By default `CALLGAUGE_URL`.
            token: The bearer token for it. By default `CALLGAUGE_TOKEN`.
            sink: Takes the events in the place of both.
            producer: Name of the program that sends, with which its records are marked.
            log: Takes warnings. By default the logger `callgauge`.

        Raises:
            ValueError: The id is empty or too long, the type of the pipeline is none of the three,
                the address is none of HTTP, or Kafka and an address are both given.
        """
        given = conversation_id() if callable(conversation_id) else conversation_id
        self._conversation_id = str(uuid.uuid4()) if given is None else _checked_id(given)
        if pipeline_type is not None and pipeline_type not in PIPELINE_TYPES:
            raise ValueError(
                f"pipeline_type is {pipeline_type!r}, expected one of {', '.join(PIPELINE_TYPES)}"
            )
        if url is not None and (bootstrap_servers is not None or kafka is not None):
            raise ValueError(
                "url is given and bootstrap_servers or kafka too: expected one way, over HTTP or "
                "to Kafka"
            )
        self._labels = {
            "agent": agent or os.environ.get("CALLGAUGE_AGENT"),
            "tenant": tenant or os.environ.get("CALLGAUGE_TENANT"),
            "environment": environment or os.environ.get("CALLGAUGE_ENVIRONMENT"),
            "goals": goals,
            "pipeline_type": pipeline_type,
        }
        self._log = logging.getLogger("callgauge") if log is None else log
        is_to_kafka = bootstrap_servers is not None or kafka is not None
        address = url or (None if is_to_kafka else os.environ.get("CALLGAUGE_URL"))
        url = None if not address else _checked_url(address)
        token = os.environ.get("CALLGAUGE_TOKEN", "") if token is None else token
        prefix = (
            os.environ.get("CALLGAUGE_TOPIC_PREFIX", "") if topic_prefix is None else topic_prefix
        )
        servers = bootstrap_servers or os.environ.get("CALLGAUGE_BOOTSTRAP", DEFAULT_BOOTSTRAP)
        options = {"bootstrap_servers": servers, "client_id": producer, **(kafka or {})}
        # Now, and not with the first event: the import of a client takes longer than a bot may
        # pause.
        self._way = (
            None if sink is not None else _way(url, token, prefix + TOPIC, options, self._log)
        )
        self._sink = sink
        self.outbox = EventOutbox(
            self._conversation_id, f"{producer}/{_version_of(producer)}/{uuid.uuid4().hex[:12]}"
        )
        self.sender: Sender | None = None
        self._marked_values = 0
        self._has_begun = self._has_ended = False

    @property
    def conversation_id(self) -> str:
        """The id of the call, which is the key of its records."""
        return self._conversation_id

    @property
    def lost(self) -> Mapping[str, int]:
        """Dropped events so far, by what they contained; the same numbers are in records of the
        call.
        """
        return self.outbox.lost

    @property
    def marked_values(self) -> int:
        """Values so far that JSON cannot hold, or that are too large or too deep: events have a
        mark `unreadable` in their places.
        """
        return self._marked_values

    @property
    def waiting(self) -> int:
        """Events that are not acknowledged yet."""
        return len(self.outbox)

    def begin(self, **more: Any) -> None:
        """Sends the labels of the call, before all its other events; the second time it does
        nothing.

        Args:
            more: Further fields of `call_started`.
        """
        if self._has_begun:
            return
        self._has_begun = True
        labels = {name: name_of(value) for name, value in self._labels.items() if value}
        self.emit(Rank.CALL, "call_started", **{**labels, **_span_of_now(), **more})

    def send(self, kind: str, **fields: Any) -> None:
        """Sends an event with the time of now. It neither waits nor raises; without room an event
        is dropped and counted, and so is one after the end of the call.

        Args:
            kind: The event's `type`; docs/events.md lists them.
            fields: Its other fields. `timestamp` (ms since 1970) in the place of now.

        Raises:
            RuntimeError: No event loop runs here, so nothing could send it.
        """
        if self._has_ended:
            self.missed(name_of(kind), ValueError("the call has ended"))
            return
        try:
            self.begin()
            self.emit(RANKS.get(name_of(kind), Rank.METRICS), kind, **fields)
        except Exception as error:
            if self._sink is None:
                raise
            self.missed(name_of(kind), error)

    def emit(self, rank: Rank, kind: str, **fields: Any) -> None:
        """Sends an event of this rank; a sink may raise."""
        kind = name_of(kind)
        event = {"type": kind, "timestamp": int(time.time() * 1000), **fields}
        if self._sink is not None:
            self._sink({"conversation_id": self._conversation_id, **event})
        elif self._way is not None:
            if self.sender is None:
                self.sender = Sender.shared(self._way, self._log)
                self.sender.begin(self.outbox)
            self.outbox.put(rank, kind, encoded(event, self._mark))
            self.sender.wake()

    def missed(self, what: str, error: Exception) -> None:
        """Counts something of the call that could not be read or handed over, and warns of the
        first.
        """
        self.outbox.lose(UNREAD)
        if self.outbox.lost[UNREAD] == 1:
            said = of_others(lambda: repr(error), type(error).__name__)[:MAX_SHOWN_CHARS]
            self._log.warning(
                f"callgauge: {what} of call {self._conversation_id} could not be read: {said}. The "
                "call goes on."
            )

    def _mark(self) -> None:
        self._marked_values += 1

    async def end(self, reason: str = "ended") -> bool:
        """Ends the call, and waits until all of it is acknowledged, for `FLUSH_SECONDS` at most.
        The second time it does nothing.

        Returns:
            Whether all of it was. If not, the log says how many events are left, and sending goes
            on while the process lives.
        """
        if not self._has_begun or self._has_ended:
            return not self.waiting
        self._has_ended = True
        try:
            self.emit(Rank.CALL, "call_ended", reason=name_of(reason))
        except Exception as error:  # noqa: BLE001 - the end of a bot must not fail with what its sink does
            self.missed("the end of the call", error)
        if self.sender is None or await self.sender.end(self.outbox):
            return True
        self._log.warning(
            f"callgauge: {self.waiting} events of call {self._conversation_id} were not "
            f"acknowledged within {FLUSH_SECONDS:g} s of its end. They are sent for as long as "
            "this process runs."
        )
        return False


def _way(url: str | None, token: str, topic: str, options: Mapping[str, Any], log: Log) -> Way:
    """The client of one way is imported with it: the other one need not be loaded."""
    if url is not None:
        from callgauge_send.to_http import ToHttp

        return ToHttp(url, token, log)
    from callgauge_send.to_kafka import ToKafka

    return ToKafka(topic, options, log)


def _span_of_now() -> dict[str, str]:
    """The span of OpenTelemetry in which the call begins, as `traceparent`; empty without one, or
    without OpenTelemetry.
    """
    tracing = sys.modules.get("opentelemetry.trace")
    span = None if tracing is None else tracing.get_current_span().get_span_context()
    if span is None or not span.is_valid:
        return {}
    return {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}


def _checked_id(given: str) -> str:
    text = str(given)
    if not text or len(text.encode("utf-8", "replace")) > MAX_ID_BYTES:
        raise ValueError(
            f"conversation_id is {text[:40]!r}, expected a text of 1 to {MAX_ID_BYTES} bytes"
        )
    return text


def _checked_url(given: str) -> str:
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"url is {given[:80]!r}, expected http:// or https:// and a host, such as "
            "http://127.0.0.1:8070"
        )
    return given if parts.path.strip("/") else f"{given.rstrip('/')}{EVENTS_PATH}"


def _version_of(producer: str) -> str:
    try:
        return version(producer)
    except PackageNotFoundError:  # run from its sources
        return "0"
