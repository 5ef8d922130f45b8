"""Connections to Kafka: the settings, the clients made from them, and what refusals of the broker
mean.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.conn import AIOKafkaConnection, collect_hosts, create_conn
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String
from pydantic import BaseModel, ConfigDict, Field

from consumers.runtime.kafka.batches import read_tolerantly
from consumers.runtime.kafka.security import Mistake, SecuritySettings
from consumers.runtime.process import OperatorError, pause_unless
from consumers.runtime.registry import Instruments
from consumers.runtime.settings import UnusableSecretError, token_in
from schemas.topics import MAX_BATCH_BYTES, MAX_TRANSACTION_MS

if TYPE_CHECKING:
    from faststream.kafka import KafkaBroker

# Gives the client the token of a file, for each connection again.


# the library has no type hints; it must be its error, see TokenFile
class TokenError(KafkaError):  # type: ignore[misc]
    """There is no valid token for a login. A new one must be written."""


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # the library has no type hints
    """Gives aiokafka the token of a file, read for each connection, so that the file can be
    renewed.

    Its errors are errors of aiokafka, because the clients go on after those, and the next try may
    find a new token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """Reads the token.

        Raises:
            TokenError: There is none, or it has expired.
        """
        try:
            return await asyncio.to_thread(token_in, self._path)
        except UnusableSecretError as error:
            raise TokenError(f"no token in {self._path}: {error}") from None


# Explains to a person why a broker cannot be used: the symptom and the remedy.
#
# aiokafka's errors name a symptom. Most causes are in the error they were raised from, or follow
# from the step that failed.

RIGHTS_PAGE: Final = "deploy/security.md lists what each role needs."

# OpenSSL's numbers for a certificate of another host name, of another address
_NAME_MISMATCHES: Final = {62, 64}
_EXPIRED: Final = 10
# a TLS alert, read as the size of an answer, begins with these two bytes
_TLS_ALERT_AS_SIZE: Final = 0x1503


_REFUSED: Final[Mapping[type, str]] = {
    errors.TopicAuthorizationFailedError: "topic",
    errors.GroupAuthorizationFailedError: "consumer group",
    errors.TransactionalIdAuthorizationFailed: "transactional id",
}


class NoBrokersError(errors.KafkaError):  # type: ignore[misc]  # the library has no type hints
    """A broker answered without naming any broker of the cluster."""


# the library has no type hints
class UnreachableNamesError(errors.KafkaError):  # type: ignore[misc]
    """A broker answered, and none of the addresses it names for the cluster can be reached."""


class Explanation(NamedTuple):
    """Explanation of an error for a person.

    Attributes:
        seen: The broker's reaction, as the end of a sentence that begins with the broker; or the
            symptom without an answer.
        remedy: The next steps, as sentences.
        answers: Whether a broker answered at all.
    """

    seen: str
    remedy: str
    answers: bool = True


def explained(error: BaseException, security: SecuritySettings) -> Explanation:
    """Explains the cause of a client's error.

    Args:
        error: An error of aiokafka, of TLS or of the network.
        security: The client's credentials.
    """
    match error:
        case TimeoutError() | errors.RequestTimedOutError():
            remedy = (
                "Check the address, the network, and that the broker runs and is not overloaded."
            )
            return Explanation("no answer in time", remedy, answers=False)
        case ssl.SSLCertVerificationError():
            return _untrusted(error, security)
        case ssl.SSLError() | ConnectionResetError():
            return _closed(error, security)
        case errors.KafkaConnectionError() if error.__cause__ is not None:
            return _closed(error.__cause__, security)
        case TokenError():
            return Explanation(
                f"asks for a token, and there is {_text(error)}",
                "Write a fresh token into the file.",
            )
        case errors.SaslAuthenticationFailed():
            return Explanation(
                f"refuses the login of {security.who} with {security.mechanism}: {_text(error)}",
                "Check security.username and the password, and that this user exists there for "
                "this mechanism.",
            )
        case errors.UnsupportedSaslMechanismError():
            return Explanation(
                f"does not offer logins with {security.mechanism}",
                "Choose another security.mechanism, or port.",
            )
        case errors.IllegalSaslStateError():
            return Explanation(
                f"has no logins at this port, and security.protocol is {security.protocol}",
                "Set security.protocol without SASL_, or use the port that has logins.",
            )
        case NoBrokersError() if security.token_file is not None:
            return Explanation(
                f"refuses the token in {security.token_file}",
                "Check its issuer, audience and expiry against what the broker accepts.",
            )
        case NoBrokersError():
            return Explanation(
                "names no broker of its cluster", "Wait until the cluster is up, and start again."
            )
        case UnreachableNamesError():
            cause = error.__cause__ or KafkaError("unreachable")
            return Explanation(
                f"sends us on to {_text(error)}, of which the last one: "
                f"{explained(cause, security).seen}",
                "Set the broker's advertised.listeners to addresses that can be, for this "
                "listener.",
            )
        case errors.BrokerResponseError():
            return _refused(error, security)
        case socket.gaierror():
            remedy = "Check the address, and the name service of this machine."
            return Explanation("the host name is not known", remedy, answers=False)
        case ConnectionRefusedError():
            seen = "nothing listens there"  # asyncio's own text names the address once more
        case OSError():
            seen = error.strerror or _text(error)
        case _:
            seen = _text(error)
    return Explanation(seen, "Check the address, and that the broker runs.", answers=False)


def _untrusted(error: ssl.SSLCertVerificationError, security: SecuritySettings) -> Explanation:
    seen = f"shows a certificate that is not accepted: {error.verify_message.rstrip('.')}"
    if error.verify_code in _NAME_MISMATCHES:
        remedy = (
            "Use an address that its certificate names, or have one made that names this address."
        )
    elif error.verify_code == _EXPIRED:
        remedy = "Renew the broker's certificate; if it is good, check the clock here."
    elif security.ca_file is not None:
        remedy = f"Check that {security.ca_file} holds the CA that signed it."
    else:
        remedy = (
            "Set security.ca_file to the CA that signed it; without it the system's CAs are "
            "trusted."
        )
    return Explanation(seen, remedy)


def _closed(cause: BaseException, security: SecuritySettings) -> Explanation:
    """Explains a connection that closed before an answer. The cause is unknown, so the likeliest
    ones are named.
    """
    if security.fits and isinstance(cause, EOFError | ConnectionResetError):
        return Explanation(
            "the connection was cut off",
            "Check the network, and that the broker runs.",
            answers=False,
        )
    protocol = security.protocol
    has_tls = protocol.endswith("SSL")
    if (
        isinstance(cause, asyncio.IncompleteReadError)
        and (cause.expected or 0) >> 16 == _TLS_ALERT_AS_SIZE
    ):
        return Explanation(
            f"speaks TLS at this port, and security.protocol is {protocol}",
            "Set security.protocol to SSL or SASL_SSL, or use the port without TLS.",
        )
    if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
        alert = (cause.reason or "").lower().replace("_", " ")
        remedy = (
            f"Check that the brokers trust the CA that signed {security.cert_file}, and that it "
            "has not expired."
        )
        if security.cert_file is None:
            remedy = (
                "Set security.cert_file and security.key_file: this port probably wants a client "
                "certificate."
            )
        return Explanation(f"ends the TLS handshake: {alert}", remedy)
    if has_tls and isinstance(cause, ssl.SSLError | ConnectionResetError):
        return Explanation(
            f"does not answer in TLS at this port, and security.protocol is {protocol}",
            "Use the port with TLS, or set security.protocol to one without.",
        )
    return Explanation(
        f"closes the connection without a word, and security.protocol is {protocol}",
        "This port probably wants a login (SASL_), or TLS, or none of it: check security.protocol "
        "and the port. Or the broker was just stopping.",
    )


def _refused(error: BaseException, security: SecuritySettings) -> Explanation:
    """Explains a refusal by the broker."""
    what = _REFUSED.get(type(error))
    if what is not None:
        names = sorted(str(name) for arg in error.args for name in _names_in(arg))
        named = f"a {what}"
        if names:
            plural = "s" if len(names) > 1 else ""
            named = f"the {what}{plural} {', '.join(names)}"
    elif isinstance(error, errors.ClusterAuthorizationFailedError):
        named = "the cluster as a whole in this way"
    elif isinstance(error, errors.InvalidTransactionTimeout):
        return Explanation(
            "does not let a transaction take as long as ours: its transaction.max.timeout.ms is "
            f"below {MAX_TRANSACTION_MS}",
            f"Set transaction.max.timeout.ms={MAX_TRANSACTION_MS} on every broker, or more; "
            "Kafka's default is 900000.",
        )
    else:
        return Explanation(f"answers with {_text(error)}", "Look into the broker's log for more.")
    return Explanation(
        f"does not let {security.who} use {named}", f"Give it the right; {RIGHTS_PAGE}"
    )


def _names_in(arg: object) -> tuple[object, ...]:
    return tuple(arg) if isinstance(arg, set | frozenset | list | tuple) else (arg,)


def _text(error: BaseException) -> str:
    shown = str(error)
    if isinstance(error, KafkaError):  # its own text begins with its class
        shown = "; ".join(map(str, error.args))
    return shown or type(error).__name__


# Makes the first connection to a cluster without aiokafka's clients, so that a failure has its
# cause.
#
# Those clients only log why an address failed, and then raise that no address is left. Here the
# cause is raised.

ANSWER_MS: Final = 10_000
"""How long one connection and each answer on it may take."""
UNKNOWN_RIGHTS: Final = -(2**31)
"""The value that a broker sends for unknown rights."""


class NoContactError(Exception):
    """None of the addresses could be used.

    Attributes:
        causes: The error of each tried address, in order.
    """

    def __init__(self, causes: Sequence[tuple[str, Exception]]) -> None:
        self.causes = tuple(causes)
        super().__init__("; ".join(f"{address}: {cause}" for address, cause in self.causes))


class _TopicsResponse(Response):  # type: ignore[misc]  # the library has no type hints
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(
                ("node_id", Int32),
                ("host", String("utf-8")),
                ("port", Int32),
                ("rack", String("utf-8")),
            ),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _TopicsRequest(RequestStruct):  # type: ignore[misc]  # as above
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _TopicsResponse
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class TopicsRequest(Request[MetadataRequest_v5 | _TopicsRequest]):  # type: ignore[misc]  # as above
    """Kafka's Metadata request including our rights on each topic; aiokafka only has versions
    without them.

    For brokers before Kafka 2.3, the request is sent without them.
    """

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[RequestStruct]) -> Any:
        """Builds the request in a version that the broker knows."""
        if request_struct_class is _TopicsRequest:
            makes_missing = asks_for_cluster = False
            return _TopicsRequest(self._topics, makes_missing, asks_for_cluster, bool(self._topics))
        return MetadataRequest_v5(self._topics, allow_auto_topic_creation=False)


async def _first_that_opens(
    addresses: Iterable[tuple[str, int]],
    opening: Callable[[str, int], Awaitable[AIOKafkaConnection]],
) -> AIOKafkaConnection:
    """Opens a connection to one address after the other until one works; raises `NoContactError` if
    none does.
    """
    causes: list[tuple[str, Exception]] = []
    for host, port in addresses:
        try:
            return await opening(host, port)
        # ValueError: no host name, or a false proof
        except (OSError, KafkaError, TimeoutError, ValueError) as error:
            causes.append((f"{host}:{port}", error))
            if isinstance(error, errors.SaslAuthenticationFailed):
                break  # the others would say the same, and may lock the user out
    raise NoContactError(causes)


async def _opened(connecting: Mapping[str, Any], host: str, port: int) -> AIOKafkaConnection:
    """Opens a connection and tests it; closes it if the test fails."""
    connection = await create_conn(host, port, **connecting)
    try:
        await _require_cluster(connecting, connection, (host, port))
    except BaseException:
        await connection.close()
        raise
    return connection


async def _require_cluster(
    connecting: Mapping[str, Any], connection: AIOKafkaConnection, address: tuple[str, int]
) -> None:
    """Checks that one of the cluster's own addresses can be reached, because clients go on with
    those.
    """
    answer = await connection.send(TopicsRequest([]))
    known = sorted({(broker[1], broker[2]) for broker in answer.brokers})
    if not known:
        raise NoBrokersError
    if address in known:
        return
    try:
        onward = await _first_that_opens(known, partial(create_conn, **connecting))
    except NoContactError as error:
        raise UnreachableNamesError(
            ", ".join(f"{host}:{port}" for host, port in known)
        ) from error.causes[-1][1]
    await onward.close()


# Connects this process to Kafka: one set of settings, from which every client is built.

CONNECT_SECONDS: Final = 10.0
"""How long the first connection and the first answer may take before a start counts as failed."""
REQUEST_TIMEOUT_MS: Final = 10_000
"""How long an administrative request may take."""
LINGER_MS: Final = 5
"""How long a producer without transactions waits for more records of a batch: a fiftieth of the
promised delay.
"""
BATCH_BYTES: Final = 128 * 1_024
"""Most bytes of one batch, unless one record has more. A batch waits for the answer to the one
before it, so with the client's 16 kB a thousand scores would wait forty times. Each partition in
use may hold as much in memory.
"""
METADATA_AGE_MS: Final = 20_000
"""How often a reader asks for the partitions of its topics. Calls on added partitions wait for up
to this time.
"""
HANDLER_STOP_SECONDS: Final = 0.5
"""How long stopping waits for the current batch."""


log = structlog.get_logger()


class KafkaSettings(BaseModel):
    """Address of the cluster, prefix of topic names, and credentials."""

    model_config = ConfigDict(frozen=True)

    bootstrap_servers: str = Field(
        "127.0.0.1:9092", min_length=1, description="`host:port`, several with commas."
    )
    client_id: str = Field(
        "callgauge", min_length=1, description="Start of the names our clients give to the broker."
    )
    topic_prefix: str = Field(
        "",
        max_length=100,
        pattern=r"^[A-Za-z0-9._-]*$",
        description=(
            "Put before every topic's name as it is, where several installations share a cluster."
        ),
    )

    security: SecuritySettings = Field(
        default_factory=SecuritySettings, description="TLS, and how to log in."
    )

    def topic(self, name: str) -> str:
        """Returns the name on this cluster of a topic of the topic table."""
        return self.topic_prefix + name

    def reader_options(self) -> dict[str, Any]:
        """Options of every consumer: only committed records."""
        return {"isolation_level": "read_committed"}

    def client_options(self) -> dict[str, Any]:
        """Options of every client of aiokafka: addresses and credentials."""
        return {"bootstrap_servers": self.bootstrap_servers, **self.security.client_options()}

    def admin(self, role: str) -> AIOKafkaAdminClient:
        """Returns a client for topics and their settings; its `start` connects, and says nothing if
        it cannot.
        """
        return AIOKafkaAdminClient(
            **self.client_options(),
            client_id=self._client_name(role),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )

    @asynccontextmanager
    async def administration(self, role: str) -> AsyncIterator[AIOKafkaAdminClient]:
        """A client for topics and their settings that is connected.

        Raises:
            KafkaUnreachableError: No broker answers, at the start or later, or it refuses.
        """
        # for the cause: the client logs it, and raises another error
        async with self.first_contact(role):
            admin = self.admin(role)
        try:
            await admin.start()
            yield admin
        except (KafkaError, TimeoutError) as error:
            raise self.unreachable(error) from error
        finally:
            await admin.close()

    def consumer(self, role: str, *topics: str, **options: Any) -> AIOKafkaConsumer:
        """Returns a consumer of committed records; its `start` connects.

        It passes records that it cannot decode on as `UndecodableRecord`.

        Args:
            role: Last part of the client's name.
            topics: Full names, from `topic`.
            options: Further arguments of aiokafka's consumer; without a `group_id` it is in no
                group.
        """
        read_tolerantly()
        return AIOKafkaConsumer(
            *topics,
            **self.client_options(),
            client_id=self._client_name(role),
            **self.reader_options(),
            **options,
        )

    def producer(
        self,
        role: str,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = MAX_TRANSACTION_MS,
    ) -> AIOKafkaProducer:
        """Returns a producer whose retries neither double nor reorder records; its `start`
        connects.

        Args:
            role: Last part of the client's name.
            transactional_id: Id of its transactions, whose last user is fenced off; None for no
                transactions.
            transaction_timeout_ms: How long a transaction may stay open before the broker aborts
                it.
        """
        return AIOKafkaProducer(
            **self.client_options(),
            client_id=self._client_name(role),
            enable_idempotence=True,
            # a transaction is sent whole: nothing more comes
            linger_ms=LINGER_MS if transactional_id is None else 0,
            max_batch_size=BATCH_BYTES,
            max_request_size=MAX_BATCH_BYTES,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )

    def broker(
        self, role: str, logger: Any = None, middlewares: Sequence[Any] = ()
    ) -> "KafkaBroker":
        """Returns a FastStream broker that only reads: without producer and administration, and
        without creating topics.

        Args:
            role: Last part of the client's name.
            logger: Gets FastStream's lines.
            middlewares: FastStream's middlewares of its subscribers.
        """
        # only roles need it, and commands without one start sooner
        from faststream.kafka import KafkaBroker

        read_tolerantly()
        # By itself it logs an error of a poll once an hour and polls again immediately. A role that
        # began again would not hear of it.
        os.environ["FASTSTREAM_SUPERVISOR_CACHE_TTL"] = "0"
        return KafkaBroker(
            self.bootstrap_servers.split(","),
            client_id=self._client_name(role),
            consumer_only=True,
            allow_auto_create_topics=False,
            graceful_timeout=HANDLER_STOP_SECONDS,
            metadata_max_age_ms=METADATA_AGE_MS,
            apply_types=False,  # a decoder of ours makes the messages
            middlewares=middlewares,
            logger=logger,
            **self.security.faststream_options(),
        )

    def _client_name(self, role: str) -> str:
        return f"{self.client_id}-{role}"

    @asynccontextmanager
    async def first_contact(self, role: str) -> AsyncIterator[AIOKafkaConnection]:
        """Connects to the first address that answers and logs in without a client of aiokafka, so
        that a failure has its cause. One of the cluster's own addresses can be reached, too.

        Raises:
            KafkaUnreachableError: No broker can be used. The text has the cause.
        """
        connecting = {"client_id": self._client_name(role), "request_timeout_ms": ANSWER_MS}
        connecting |= self.security.client_options()
        hosts = collect_hosts(self.bootstrap_servers, randomize=False)
        addresses = [(host, port) for host, port, _ in hosts]
        try:
            connection = await _first_that_opens(addresses, partial(_opened, connecting))
            try:
                self.security.let_in()
                yield connection
            finally:
                await connection.close()
        except (NoContactError, KafkaError, TimeoutError) as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: BaseException) -> "KafkaUnreachableError":
        """Returns the error to show when a client could not connect, or was refused something.

        Args:
            error: The error of aiokafka, or `NoContactError`.

        Returns:
            A `KafkaRefusedError` if a broker answered with a refusal.
        """
        causes: Sequence[tuple[str, BaseException]] = ((self.bootstrap_servers, error),)
        if isinstance(error, NoContactError):
            causes = error.causes
        told = [(address, cause, explained(cause, self.security)) for address, cause in causes]
        for address, cause, each in told:
            if each.answers:
                text = f"Kafka: the broker at {address} {each.seen}. {_ENDS} {each.remedy}"
                # it let us in, and other brokers do not answer
                if isinstance(cause, UnreachableNamesError):
                    return KafkaUnreachableError(text)
                return KafkaRefusedError(text, address, each)
        _, _, first = told[0]
        seen = first.seen
        if any(each.seen != seen for _, _, each in told):
            seen = ", ".join(f"{address} ({each.seen})" for address, _, each in told)
        return KafkaUnreachableError(
            f"Kafka: no broker answers at {self.bootstrap_servers}: {seen}. {_ENDS} {first.remedy}"
        )


_ENDS: Final = "callgauge cannot work like this, so it ends."


class KafkaUnreachableError(OperatorError):
    """No broker could be reached at the start. The caller ends the process and shows the text."""

    is_away = True


class KafkaRefusedError(KafkaUnreachableError):
    """A broker refused our login or an operation. A person must change settings or rights.

    Attributes:
        address: The broker.
        why: Its refusal; None if it is in the text alone.
    """

    def __init__(self, text: str, address: str = "", why: Explanation | None = None) -> None:
        super().__init__(text)
        self.address = address
        self.why = why


class TopicsUnfitError(OperatorError):
    """Topics are missing or have partition counts that do not fit. A person must fix them before a
    start.
    """

    is_away = True


async def partition_counts(kafka: KafkaSettings, names: Iterable[str]) -> Mapping[str, int]:
    """Returns the partition counts of topics of the topic table.

    Raises:
        KafkaUnreachableError: No broker answers, or it refuses to describe a topic.
        TopicsUnfitError: A topic does not exist. The text names all missing topics.
    """
    wanted = tuple(names)
    request = TopicsRequest([kafka.topic(name) for name in wanted])
    async with kafka.first_contact("topics") as connection:
        answer = await connection.send(request)
    topics = answer.to_object()["topics"]
    refusal = errors.TopicAuthorizationFailedError
    if hidden := [topic["topic"] for topic in topics if topic["error_code"] == refusal.errno]:
        raise kafka.unreachable(refusal(hidden))
    return counts_in(topics, kafka, wanted)


def counts_in(
    topics: Iterable[Mapping[str, Any]], kafka: KafkaSettings, names: Iterable[str]
) -> Mapping[str, int]:
    """Returns the partition counts in a broker's answer to a `TopicsRequest`; errors as in
    `partition_counts`.
    """
    wanted = {name: kafka.topic(name) for name in names}
    counts = {
        topic["topic"]: 0 if topic["error_code"] else len(topic["partitions"]) for topic in topics
    }
    missing = [topic for topic in wanted.values() if not counts.get(topic)]
    if missing:
        raise TopicsUnfitError(
            f"Topics: {', '.join(missing)} not found on {kafka.bootstrap_servers}. callgauge does "
            "not make topics, so it does not start. `callgauge topics create` makes them; or check "
            "the topic prefix."
        )
    return {name: counts[topic] for name, topic in wanted.items()}


MAX_KEYS_REMEMBERED: Final = 32_768
"""Most keys whose partition is cached, some 6 MB. Hashing a key takes as long as twenty
look-ups.
"""


@lru_cache(maxsize=MAX_KEYS_REMEMBERED)
def murmur2_place(key: bytes, partitions: int) -> int:
    """Returns the partition number that the default partitioner of Java and aiokafka
    gives a key.
    """
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


# Tries a new login to Kafka now and then, to notice a changed password before connections are lost.
#
# Connections outlive their credentials: after a password has changed or a certificate has expired,
# everything works until a connection is lost. Then aiokafka tries for ever, and neither its clients
# nor its polls raise an error.

TRIAL_SECONDS: Final = 10.0
"""Time between two trials, and so the longest delay of noticing a refusal. Each is one connection;
a process has dozens.
"""
CONFIRM_SECONDS: Final = 2.0
"""Time until the second trial, which confirms a refusal, because a stopping broker also closes
connections.
"""


class LoginWatch:
    """Finds out whether Kafka refuses new connections of this process, and takes certificates that
    were written meanwhile.
    """

    def __init__(self, kafka: KafkaSettings, instruments: Instruments) -> None:
        self._kafka = kafka
        self._instruments = instruments
        self._refusal = ""
        self._mistakes: Sequence[Mistake] = ()

    def problems(self) -> Sequence[str]:
        """Reasons why Kafka refuses new connections, for `/readyz`; none while it accepts them or
        does not answer.
        """
        return (self._refusal,) if self._refusal else ()

    async def follow(self, stop: asyncio.Event) -> None:
        """Tries until `stop` is set. Without TLS and login nothing can be refused, so nothing is
        tried.
        """
        if self._kafka.security.protocol == "PLAINTEXT":
            return
        while not stop.is_set():
            await pause_unless(stop, TRIAL_SECONDS)
            self._read_certificates()
            if await self._is_refused() and not self._refusal:
                await pause_unless(stop, CONFIRM_SECONDS)
                await self._is_refused(confirms=True)

    def _read_certificates(self) -> None:
        before, self._mistakes = self._mistakes, self._kafka.security.read_certificates_anew()
        if self._mistakes and self._mistakes != before:
            log.error(
                "certificates_not_usable",
                problem="; ".join(f"security.{each.field}: {each.text}" for each in self._mistakes),
                what_happens_now=(
                    "Those from before are used. The files are read again every "
                    f"{TRIAL_SECONDS:.0f} s."
                ),
                what_to_do="Write certificate, key and CA that belong together.",
            )

    async def _is_refused(self, *, confirms: bool = False) -> bool:
        try:
            async with self._kafka.first_contact("login-watch"):
                self._let_in()
        except KafkaRefusedError as error:
            if error.why is not None and (confirms or self._refusal):
                self._tell(error.address, error.why)
            return True
        except KafkaUnreachableError:  # which says nothing about logins
            pass
        return False

    def _tell(self, address: str, refused: Explanation) -> None:
        self._instruments.inc("callgauge_kafka_logins_refused_total")
        self._refusal = (
            f"kafka: new connections are refused: the broker at {address} {refused.seen}"
        )
        log.error(
            "kafka_login_refused",
            problem=f"The broker at {address} {refused.seen}.",
            what_happens_now="Connections that are open go on; once one is lost, what needs it "
            f"waits. It is tried again every {TRIAL_SECONDS:.0f} s.",
            what_to_do=f"{refused.remedy} A password is read at the start: restart callgauge when "
            "its own has changed. Certificates and keys are read again before each try.",
        )

    def _let_in(self) -> None:
        if self._refusal:
            log.info("kafka_login_works_again")
        self._refusal = ""


# Asks the broker for the settings of topics.


async def topic_settings(
    kafka: KafkaSettings, names: Iterable[str]
) -> Mapping[str, Mapping[str, str]]:
    """Returns the settings of topics at the broker, including its defaults.

    Args:
        kafka: The cluster.
        names: Names in the topic table.

    Returns:
        Settings by name in the topic table, without topics that do not exist, that this user may
        not describe, or that the broker cannot describe.

    Raises:
        KafkaUnreachableError: No broker answers.
    """
    async with kafka.administration("topics") as admin, asyncio.timeout(CONNECT_SECONDS):
        return await settings_of(admin, {kafka.topic(name): name for name in names})


async def settings_of(
    admin: AIOKafkaAdminClient, names: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Does the same as `topic_settings`, with a connected client.

    Args:
        admin: A started client.
        names: Names in the result, by names on the cluster.
    """
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in names]
    try:
        answers: list[Any] = await admin.describe_configs(asked)
    except errors.IncompatibleBrokerVersion:  # a broker older than the question
        return {}
    # What an entry is, after its name and value, depends on the broker's version.
    return {
        names[topic]: {entry[0]: entry[1] for entry in entries if entry[1] is not None}
        for answer in answers
        for code, _, _, topic, entries in answer.resources
        if not code
    }


# Checks the rights of this process on the cluster before it does anything.

READ: Final = "Read"
WRITE: Final = "Write"

_BITS: Final[Mapping[str, int]] = {READ: 1 << 3, WRITE: 1 << 4}  # Kafka's AclOperation numbers
_COORDINATION: Final = {
    CoordinationType.GROUP: (errors.GroupAuthorizationFailedError, READ),
    CoordinationType.TRANSACTION: (errors.TransactionalIdAuthorizationFailed, WRITE),
}


class Needs(NamedTuple):
    """Operations of a process on the cluster.

    Attributes:
        operations: By topic of the topic table, its operations: `READ`, `WRITE` or both.
        groups: Consumer groups that it joins.
        transactional_ids: Transactional ids of its producers.
    """

    operations: Mapping[str, frozenset[str]]
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()


async def require_access(kafka: KafkaSettings, needs: Needs) -> None:
    """Asks the broker whether the topics exist and this user has the needed rights.

    A broker that does not report rights (before Kafka 2.3) counts as granting them; a refusal then
    comes with the operation.

    Args:
        kafka: The cluster, and our login.
        needs: The needed operations.

    Raises:
        KafkaUnreachableError: No broker answers, or it does not let us in.
        KafkaRefusedError: Rights are missing; the text names all of them.
        TopicsUnfitError: A topic is missing.
    """
    needed = {kafka.topic(name): operations for name, operations in needs.operations.items()}
    async with kafka.first_contact("access") as connection:
        answer = await connection.send(TopicsRequest(list(needed)))
        topics = answer.to_object()["topics"]
        missing = [
            *_missing_on_topics(topics, needed),
            *await _missing_on(connection, "group", CoordinationType.GROUP, needs.groups),
            *await _missing_on(
                connection,
                "transactional id",
                CoordinationType.TRANSACTION,
                needs.transactional_ids,
            ),
        ]
    if missing:
        raise KafkaRefusedError(
            "\n".join(
                [
                    f"Kafka: {kafka.security.who} lacks rights on {kafka.bootstrap_servers}, so "
                    "nothing was started:",
                    *(f"  {line}" for line in missing),
                    f"  Give it these, for example with `kafka-acls.sh --add`; {RIGHTS_PAGE}",
                ]
            )
        )
    counts_in(topics, kafka, needs.operations)


def _missing_on_topics(
    topics: Iterable[Mapping[str, Any]], needed: Mapping[str, frozenset[str]]
) -> list[str]:
    lines = []
    for topic in sorted(topics, key=lambda topic: topic["topic"]):
        name, rights = topic["topic"], topic.get("authorized_operations", UNKNOWN_RIGHTS)
        if topic["error_code"] == errors.TopicAuthorizationFailedError.errno:
            rights = 0
        elif topic["error_code"] or rights == UNKNOWN_RIGHTS:
            continue
        lacking = [each for each in sorted(needed[name]) if not rights & _BITS[each]]
        if lacking:
            lines.append(f"topic {name}: {', '.join(lacking)}")
    return lines


async def _missing_on(
    connection: AIOKafkaConnection, kind: str, coordination: CoordinationType, names: Iterable[str]
) -> list[str]:
    """Returns the missing rights: a client without the right to ask for the coordinator of a name
    has no right to the name.
    """
    refusal, operation = _COORDINATION[coordination]
    answers = {
        name: await connection.send(FindCoordinatorRequest(name, coordination)) for name in names
    }
    return [
        f"{kind} {name}: {operation}"
        for name, answer in answers.items()
        if answer.error_code == refusal.errno
    ]
