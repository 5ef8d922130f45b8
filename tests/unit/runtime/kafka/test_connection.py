"""Topics that fit each other, and the options of readers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from aiokafka import errors
from pydantic import ValidationError

from consumers.runtime.kafka import connection as kafka_module
from consumers.runtime.kafka.connection import (
    READ,
    UNKNOWN_RIGHTS,
    WRITE,
    KafkaRefusedError,
    KafkaSettings,
    KafkaUnreachableError,
    Needs,
    NoBrokersError,
    NoContactError,
    TokenError,
    TopicsUnfitError,
    UnreachableNamesError,
    explained,
    murmur2_place,
    partition_counts,
    require_access,
)
from consumers.runtime.kafka.security import SecuritySettings
from tests.support.fakes.embedded_broker import embedded_broker

HASHES_IN_JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"abc": 479470107,
}
"""As in the tests of Kafka's own Utils.murmur2."""


@pytest.mark.parametrize(("key", "hashed"), HASHES_IN_JAVA.items())
def test_places_are_those_of_java(key: bytes, hashed: int) -> None:
    assert murmur2_place(key, 6) == (hashed & 0x7FFFFFFF) % 6


def test_topic_names_have_the_clusters_prefix() -> None:
    assert KafkaSettings(topic_prefix="t7f3a.").topic("scores") == "t7f3a.scores"
    with pytest.raises(ValidationError):
        KafkaSettings(topic_prefix="a/b")


# The text that a person reads when a broker cannot be used: one sentence with the cause, and what
# to do about it.


NOBODY = "127.0.0.1:1"
PASSWORD = "hunter2"  # noqa: S105 - not a real one
LOGIN = SecuritySettings.model_validate(
    {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "ada", "password": PASSWORD}
)
TLS = SecuritySettings(protocol="SSL")
OPEN = SecuritySettings()


def closed(cause: BaseException) -> errors.KafkaError:
    error: errors.KafkaError = errors.KafkaConnectionError("Connection at a:1 closed")
    error.__cause__ = cause
    return error


def untrusted(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, message
    return error


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError()
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "security", "seen", "remedy"),
    [
        (
            ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"),
            OPEN,
            "nothing listens there",
            "broker runs",
        ),
        (OSError(113, "No route to host"), OPEN, "No route to host", "address"),
        (
            socket.gaierror(-2, "Name or service not known"),
            OPEN,
            "host name is not known",
            "name service",
        ),
        (TimeoutError(), OPEN, "no answer in time", "network"),
        (errors.RequestTimedOutError(), OPEN, "no answer in time", "network"),
        (errors.NodeNotReadyError("node 1"), OPEN, "node 1", "broker runs"),
        (errors.KafkaConnectionError(), OPEN, "KafkaConnectionError", "broker runs"),
    ],
)
def test_every_silence_is_told_with_its_remedy(
    error: BaseException, security: SecuritySettings, seen: str, remedy: str
) -> None:
    told = explained(error, security)
    assert (seen in told.seen, remedy in told.remedy, told.answers) == (True, True, False)


@pytest.mark.parametrize(
    ("error", "security", "seen", "remedy"),
    [
        (
            untrusted(20, "unable to get local issuer certificate"),
            TLS,
            "local issuer",
            "Set security.ca_file",
        ),
        (
            untrusted(62, "Hostname mismatch."),
            TLS,
            "not accepted: Hostname mismatch",
            "Use an address",
        ),
        (untrusted(10, "certificate has expired"), TLS, "has expired", "Renew"),
        (
            closed(alert("TLSV13_ALERT_CERTIFICATE_REQUIRED")),
            TLS,
            "certificate required",
            "Set security.cert_file",
        ),
        (closed(ConnectionResetError()), TLS, "does not answer in TLS", "without"),
        (alert("WRONG_VERSION_NUMBER"), LOGIN, "does not answer in TLS", "without"),
        (
            ConnectionResetError(),
            LOGIN,
            "does not answer in TLS at this port, and security.protocol is SASL_SSL",
            "with TLS",
        ),
        (
            closed(asyncio.IncompleteReadError(b"\x02\x02P", 0x15030300)),
            OPEN,
            "speaks TLS at this port",
            "SASL_SSL",
        ),
        (
            closed(asyncio.IncompleteReadError(b"", 4)),
            OPEN,
            "without a word, and security.protocol is PLAINTEXT",
            "login",
        ),
        (
            closed(asyncio.IncompleteReadError(b"", 4)),
            TLS,
            "without a word, and security.protocol is SSL",
            "login",
        ),
        (ConnectionResetError(), OPEN, "without a word", "login"),
        (
            errors.SaslAuthenticationFailed("no such user"),
            LOGIN,
            "login of user 'ada' with PLAIN: no such user",
            "password",
        ),
        (
            errors.UnsupportedSaslMechanismError(),
            LOGIN,
            "does not offer logins with PLAIN",
            "security.mechanism",
        ),
        (errors.IllegalSaslStateError(), LOGIN, "has no logins at this port", "without SASL_"),
        (
            TokenError("no token in /t: the file is empty"),
            LOGIN,
            "no token in /t: the file is empty",
            "fresh token",
        ),
        (NoBrokersError(), OPEN, "names no broker", "Wait"),
        (
            errors.GroupAuthorizationFailedError("g-1"),
            LOGIN,
            "does not let user 'ada' use the consumer group g-1",
            "right",
        ),
        (
            errors.TransactionalIdAuthorizationFailed("g-1-0"),
            LOGIN,
            "use the transactional id g-1-0",
            "security.md",
        ),
        (errors.TopicAuthorizationFailedError({"b", "a"}), LOGIN, "use the topics a, b", "right"),
        (errors.TopicAuthorizationFailedError("a"), LOGIN, "use the topic a", "right"),
        (
            errors.ClusterAuthorizationFailedError(),
            OPEN,
            "a client without a login (User:ANONYMOUS)",
            "right",
        ),
        (errors.TopicAuthorizationFailedError(), OPEN, "use a topic", "right"),
        (
            errors.InvalidTransactionTimeout(),
            OPEN,
            "timeout.ms is below 60000",
            "Set transaction.max.timeout.ms=60000",
        ),
        (errors.InvalidTopicError("x/y"), OPEN, "answers with x/y", "broker's log"),
    ],
)
def test_every_refusal_is_told_with_its_remedy(
    error: BaseException, security: SecuritySettings, seen: str, remedy: str
) -> None:
    told = explained(error, security)
    assert (seen in told.seen, remedy in told.remedy, told.answers) == (True, True, True), told
    assert PASSWORD not in f"{told}"


def test_a_refused_token_is_told_though_aiokafka_takes_it_for_a_success() -> None:
    security = SecuritySettings.model_construct(token_file=Path("/run/token"))
    assert "refuses the token in /run/token" in explained(NoBrokersError(), security).seen


def test_an_address_that_leads_nowhere_says_why() -> None:
    error = UnreachableNamesError("kafka:9092")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    told = explained(error, OPEN)
    assert (
        told.seen == "sends us on to kafka:9092, of which the last one: the host name is not known"
    )
    assert "advertised.listeners" in told.remedy


def test_addresses_that_fail_differently_are_told_one_by_one() -> None:
    kafka = KafkaSettings(bootstrap_servers="a:1,b:2")
    refused, unknown = ("a:1", ConnectionRefusedError(111, "x")), ("b:2", socket.gaierror(-2, "x"))
    text = str(kafka.unreachable(NoContactError([refused, unknown])))
    assert (
        "no broker answers at a:1,b:2: a:1 (nothing listens there), b:2 (the host name is not "
        "known). " in text
    )
    alike = kafka.unreachable(NoContactError([refused, ("b:2", ConnectionRefusedError(111, "x"))]))
    assert str(alike).startswith(
        "Kafka: no broker answers at a:1,b:2: nothing listens there. callgauge "
    )
    assert not isinstance(alike, KafkaRefusedError)


def test_a_broker_that_answered_is_told_before_those_that_did_not() -> None:
    causes = [
        ("a:1", ConnectionRefusedError(111, "x")),
        ("b:2", errors.SaslAuthenticationFailed("no")),
    ]
    error = KafkaSettings(bootstrap_servers="a:1,b:2", security=LOGIN).unreachable(
        NoContactError(causes)
    )
    assert isinstance(error, KafkaRefusedError)
    assert str(error).startswith(
        "Kafka: the broker at b:2 refuses the login of user 'ada' with PLAIN: no. callgauge "
    )


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    """Something on loopback that is no Kafka broker."""
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()
        ended.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        await ended.wait()


async def refusal_of(kafka: KafkaSettings) -> str:
    with pytest.raises(KafkaUnreachableError) as caught:
        await partition_counts(kafka, ["scores"])
    return str(caught.value)


async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def test_a_port_that_hangs_up_is_told() -> None:
    async with listening(hang_up) as address:
        told = await refusal_of(KafkaSettings(bootstrap_servers=address))
    assert f"the broker at {address} closes the connection without a word" in told
    assert "wants a login (SASL_)" in told


async def test_a_broker_that_has_let_us_in_and_hangs_up_was_only_cut_off() -> None:
    """So its settings fit, and nobody should look for another login."""
    security = SecuritySettings()
    with embedded_broker(["scores"]) as address:
        await partition_counts(
            KafkaSettings(bootstrap_servers=address, security=security), ["scores"]
        )
    async with listening(hang_up) as address:
        with pytest.raises(KafkaUnreachableError) as caught:
            await partition_counts(
                KafkaSettings(bootstrap_servers=address, security=security), ["scores"]
            )
    assert not isinstance(caught.value, KafkaRefusedError)
    assert str(caught.value).startswith(
        f"Kafka: no broker answers at {address}: the connection was cut off. callgauge "
    )
    assert "SASL" not in str(caught.value)


@pytest.mark.parametrize("cause", [ConnectionResetError(), asyncio.IncompleteReadError(b"", 4)])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_what_a_broker_says_counts_after_it_has_let_us_in(
    cause: Exception, protocol: Literal["PLAINTEXT", "SSL"]
) -> None:
    security = SecuritySettings(protocol=protocol)
    security.let_in()
    assert not explained(closed(cause), security).answers
    assert explained(errors.SaslAuthenticationFailed("no such user"), security).answers
    assert explained(closed(alert("TLSV13_ALERT_CERTIFICATE_EXPIRED")), security).answers


async def test_the_next_address_is_tried_and_the_login_only_once() -> None:
    """A wrong password is the same everywhere, and a second try may lock the user out."""
    with embedded_broker(["scores"]) as address:
        kafka = KafkaSettings(bootstrap_servers=f"{NOBODY},{address}")
        assert await partition_counts(kafka, ["scores"]) == {"scores": 4}
        async with kafka.administration("test") as admin:
            assert (await admin.describe_topics(["scores"]))[0]["topic"] == "scores"
    tried: list[int] = []

    async def refuse(_host: str, port: int, **_: Any) -> None:
        tried.append(port)
        raise errors.SaslAuthenticationFailed("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consumers.runtime.kafka.connection.create_conn", refuse)
        assert "login" in await refusal_of(
            KafkaSettings(bootstrap_servers="a:1,b:2", security=LOGIN)
        )
    assert tried == [1]


class Signpost:
    """A connection to a broker that says where its cluster is."""

    def __init__(self, *brokers: tuple[int, str, int, None]) -> None:
        self._brokers = brokers
        self.is_closed = False

    async def send(self, request: Any) -> Any:
        return request.prepare({3: (0, 12)}).RESPONSE_TYPE(
            0, self._brokers, "c", 1, [], UNKNOWN_RIGHTS
        )

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("port", [1, 2])
async def test_a_cluster_that_names_addresses_we_cannot_reach_is_told(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """Clients go on with the addresses that brokers advertise; one of them must work."""
    signpost = Signpost((1, "inside", 1, None), (2, "inside", port, None))

    async def connect(host: str, port: int, **_: Any) -> Signpost:
        if host == "outside" or port == 2:
            return signpost
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("consumers.runtime.kafka.connection.create_conn", connect)
    kafka = KafkaSettings(bootstrap_servers="outside:1")
    if port == 2:
        async with kafka.first_contact("test"):
            assert signpost.is_closed, "the look ahead is over"
    else:
        told = await refusal_of(kafka)
        assert (
            "outside:1 sends us on to inside:1, of which the last one: the host name is not known."
            in told
        )
    assert signpost.is_closed


async def test_an_admin_client_that_cannot_start_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KafkaUnreachableError, match="nothing listens there"):
        async with KafkaSettings(bootstrap_servers=NOBODY).administration("test"):
            pass
    assert caplog.records == [], (
        "the library logs the cause and raises something else; here it is the other way round"
    )


class RightsBroker:
    """A connection to a broker with scripted answers."""

    def __init__(
        self,
        topics: dict[str, tuple[int, int]],
        coordinators: dict[str, int],
        partitions: dict[str, int] | None = None,
    ) -> None:
        self._topics = topics
        self._coordinators = coordinators
        self._partitions = partitions or {}

    async def send(self, request: Any) -> Any:
        prepared = request.prepare({3: (0, 12), 10: (0, 1)})
        if prepared.API_KEY == 3:
            rows: list[Any] = [
                (code, name, False, self._parts(name, code), rights)
                for name, (code, rights) in self._topics.items()
            ]
            return prepared.RESPONSE_TYPE(0, [], "c", 1, rows, UNKNOWN_RIGHTS)
        return prepared.RESPONSE_TYPE(
            0, self._coordinators[prepared.coordinator_key], "", 1, "h", 1
        )

    async def close(self) -> None: ...

    def _parts(self, name: str, code: int) -> list[Any]:
        count = 0 if code else self._partitions.get(name, 4)
        return [(0, number, 1, 0, [1], [1], []) for number in range(count)]


async def missing(monkeypatch: pytest.MonkeyPatch, broker: RightsBroker, needs: Needs) -> list[str]:
    async def opens(*_: object) -> RightsBroker:
        return broker

    monkeypatch.setattr(kafka_module, "_first_that_opens", opens)
    try:
        await require_access(KafkaSettings(topic_prefix="p.", security=LOGIN), needs)
    except KafkaRefusedError as error:
        first, *lines, last = str(error).splitlines()
        assert first.startswith(
            "Kafka: user 'ada' lacks rights on 127.0.0.1:9092, so nothing was started"
        )
        assert "deploy/security.md" in last
        return [line.strip() for line in lines]
    return []


NEEDS = Needs(
    {"scores": frozenset({READ, WRITE}), "audit.events": frozenset({READ})},
    groups=("g",),
    transactional_ids=("g-0",),
)
READ_BIT, WRITE_BIT, DESCRIBE_BIT = 1 << 3, 1 << 4, 1 << 8


async def test_all_rights_that_are_missing_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = RightsBroker(
        {"p.scores": (0, DESCRIBE_BIT), "p.audit.events": (29, UNKNOWN_RIGHTS)},
        {"g": 30, "g-0": 53},
    )
    assert await missing(monkeypatch, nothing, NEEDS) == [
        "topic p.audit.events: Read",
        "topic p.scores: Read, Write",
        "group g: Read",
        "transactional id g-0: Write",
    ]
    half = RightsBroker(
        {"p.scores": (0, READ_BIT | DESCRIBE_BIT), "p.audit.events": (0, READ_BIT)},
        {"g": 0, "g-0": 0},
    )
    assert await missing(monkeypatch, half, NEEDS) == ["topic p.scores: Write"]


ENOUGH = {"p.scores": (0, READ_BIT | WRITE_BIT), "p.audit.events": (0, READ_BIT)}
COORDINATORS = {"g": 0, "g-0": 0}


async def test_what_a_broker_does_not_know_yet_is_no_missing_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old broker reports no rights; a coordinator may still have to be chosen."""
    silent = RightsBroker(dict.fromkeys(ENOUGH, (0, UNKNOWN_RIGHTS)), {"g": 15, "g-0": 15})
    assert await missing(monkeypatch, silent, NEEDS) == []
    assert await missing(monkeypatch, RightsBroker(ENOUGH, COORDINATORS), NEEDS) == []


async def test_topics_that_are_missing_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = RightsBroker({**ENOUGH, "p.scores": (3, UNKNOWN_RIGHTS)}, COORDINATORS)
    with pytest.raises(
        TopicsUnfitError, match=r"^Topics: p\.scores not found on 127\.0\.0\.1:9092"
    ):
        await missing(monkeypatch, absent, NEEDS)
