"""The security settings for Kafka reach every client as they were set, and no secret is
ever shown.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, SaslAuthenticationFailed
from prometheus_client import CollectorRegistry
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs

from consumers.runtime.kafka import connection as kafka_module
from consumers.runtime.kafka import connection as login_watch
from consumers.runtime.kafka.connection import (
    CONFIRM_SECONDS,
    TRIAL_SECONDS,
    KafkaSettings,
    LoginWatch,
    NoContactError,
    TokenError,
    TokenFile,
    UnreachableNamesError,
)
from consumers.runtime.kafka.security import SecuritySettings
from consumers.runtime.registry import Instruments
from consumers.runtime.settings import UnusableSecretError, secret_in
from tests.support.brokers.secured_broker import KEY_PASSWORD, unsigned_token, write_certificates
from tests.support.patience import patient

SECRET = "hunter2"  # noqa: S105 - not a real one
LOGIN = {"protocol": "SASL_SSL", "username": "ada", "password": SECRET}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


class TokenOnDisk:
    """A token file, and its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def holds(self, text: str) -> None:
        self.path.write_text(text)

    def vanishes(self) -> None:
        self.path.unlink()


@pytest.fixture
def token(tmp_path: Path) -> TokenOnDisk:
    return TokenOnDisk(tmp_path / "token")


def mistakes(**settings: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        SecuritySettings(**settings)
    assert SECRET not in str(caught.value)
    (error,) = caught.value.errors()
    return {each.field: each.text for each in error["ctx"]["mistakes"]}


def reaching_the_consumer(security: SecuritySettings) -> dict[str, Any]:
    """The options that FastStream will hand to aiokafka's consumer."""
    builder: Any = KafkaSettings(security=security).broker("role").config.broker_config.builder
    return dict(builder.keywords)


async def test_without_security_clients_speak_plaintext() -> None:
    settings = KafkaSettings()
    assert settings.client_options() == {
        "bootstrap_servers": "127.0.0.1:9092",
        "security_protocol": "PLAINTEXT",
    }
    options = reaching_the_consumer(settings.security)
    assert (options["security_protocol"], options.get("ssl_context")) == ("PLAINTEXT", None)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
async def test_a_login_reaches_clients_and_the_subscriber_alike(
    protocol: str, mechanism: str
) -> None:
    security = SecuritySettings.model_validate(
        {**LOGIN, "protocol": protocol, "mechanism": mechanism}
    )
    options = security.client_options()
    tls = options.pop("ssl_context", None)
    assert options == {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ada",
        "sasl_plain_password": SECRET,
    }
    assert isinstance(tls, ssl.SSLContext) == (protocol == "SASL_SSL")
    reaching = reaching_the_consumer(security)
    assert {name: reaching[name] for name in options} == options
    assert reaching["ssl_context"] is tls


async def test_a_token_reaches_clients_and_the_subscriber_alike(token: TokenOnDisk) -> None:
    token.holds("opaque-token\n")
    security = SecuritySettings(protocol="SASL_SSL", mechanism="OAUTHBEARER", token_file=token.path)
    for options in (security.client_options(), reaching_the_consumer(security)):
        assert (options["security_protocol"], options["sasl_mechanism"]) == (
            "SASL_SSL",
            "OAUTHBEARER",
        )
        assert isinstance(options["ssl_context"], ssl.SSLContext)
        provider = options["sasl_oauth_token_provider"]
        assert isinstance(provider, AbstractTokenProvider)
        assert await provider.token() == "opaque-token"


async def test_tls_reaches_clients_and_the_subscriber_alike(certificates: Path) -> None:
    security = SecuritySettings(protocol="SSL", ca_file=certificates / "ca.pem")
    tls = security.client_options()["ssl_context"]
    reaching = reaching_the_consumer(security)
    assert (reaching["security_protocol"], reaching["ssl_context"]) == ("SSL", tls)
    assert (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert len(tls.get_ca_certs()) == 1, "the file's CA, and not the system's beside it"


async def test_every_kind_of_client_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    for name in ("AIOKafkaProducer", "AIOKafkaConsumer"):
        monkeypatch.setattr(kafka_module, name, lambda *_, **options: made.append(options))
    monkeypatch.setattr(AIOKafkaAdminClient, "__init__", lambda _, **options: made.append(options))
    security = SecuritySettings.model_validate({**LOGIN, "mechanism": "PLAIN"})
    kafka = KafkaSettings(bootstrap_servers="a:1", client_id="cg", security=security)
    kafka.producer("p", transactional_id="g-0", transaction_timeout_ms=7)
    kafka.consumer("c", "scores", group_id="g")
    kafka.admin("a")
    expected = kafka.client_options()
    for options, role in zip(made, "pca", strict=True):
        assert options.items() >= {**expected, "client_id": f"cg-{role}"}.items()
    producer, consumer, _ = made
    assert (producer["transactional_id"], producer["transaction_timeout_ms"]) == ("g-0", 7)
    assert producer["linger_ms"] == 0, (
        "what is in a transaction is known when it begins, so nothing waits for more"
    )
    assert producer["max_batch_size"] < producer["max_request_size"], (
        "a batch of small records is one request"
    )
    assert (consumer["isolation_level"], consumer["group_id"]) == ("read_committed", "g")


def test_secrets_are_not_shown_by_anything_that_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(SECRET)
    for given in ({"password": SECRET}, {"password": f"file:{path}"}):
        security = SecuritySettings.model_validate(
            {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "ada", **given}
        )
        assert security.client_options()["sasl_plain_password"] == SECRET
        for shown in (repr(security), str(security), security.model_dump_json(), security.who):
            assert SECRET not in shown
        assert SECRET not in repr(KafkaSettings(security=security))


def test_a_login_that_does_not_fit_together_is_refused_with_all_its_mistakes(
    tmp_path: Path,
) -> None:
    assert mistakes(protocol="SASL_SSL").keys() == {"mechanism"}
    assert "SASL_SSL" in mistakes(protocol="SSL", mechanism="PLAIN")["mechanism"]
    assert mistakes(**{**LOGIN, "protocol": "SSL"}).keys() == {"username", "password"}
    assert mistakes(protocol="SASL_SSL", mechanism="PLAIN").keys() == {"username", "password"}
    assert mistakes(protocol="SASL_SSL", mechanism="PLAIN", password=SECRET).keys() == {"username"}
    assert mistakes(protocol="SASL_SSL", mechanism="PLAIN", username="ada").keys() == {"password"}
    assert mistakes(**LOGIN, mechanism="OAUTHBEARER").keys() == {
        "username",
        "password",
        "token_file",
    }
    assert mistakes(**LOGIN, mechanism="PLAIN", token_file=tmp_path).keys() == {"token_file"}


def test_tls_that_does_not_fit_together_is_refused_with_all_its_mistakes(
    certificates: Path,
) -> None:
    pem, key = certificates / "client.pem", certificates / "client.key"
    files = {"ca_file": pem, "cert_file": pem, "key_file": key, "key_password": "x"}
    assert mistakes(**files).keys() == files.keys()
    assert mistakes(protocol="SSL", cert_file=pem).keys() == {"key_file"}
    assert mistakes(protocol="SSL", key_file=key).keys() == {"cert_file"}
    assert mistakes(protocol="SSL", key_password=SECRET).keys() == {"key_file"}
    other = mistakes(protocol="SSL", cert_file=pem, key_file=certificates / "other-client.key")
    assert "not the key of the certificate" in other["key_file"]
    swapped = mistakes(protocol="SSL", cert_file=key, key_file=pem, ca_file=key)
    assert swapped == dict.fromkeys(("ca_file", "cert_file"), "expected certificates in PEM form")
    assert "PEM" in mistakes(protocol="SSL", cert_file=pem, key_file=pem)["key_file"]
    everything = mistakes(
        protocol="SASL_SSL", mechanism="PLAIN", ca_file="missing.pem", cert_file=pem
    )
    assert everything.keys() == {"username", "password", "ca_file", "key_file"}


def test_an_encrypted_key_needs_its_password(certificates: Path, tmp_path: Path) -> None:
    encrypted = {
        "protocol": "SSL",
        "cert_file": certificates / "client.pem",
        "key_file": certificates / "client-encrypted.key",
    }
    assert mistakes(**encrypted) == {"key_password": "security.key_file is encrypted"}
    assert "does not open it" in mistakes(**encrypted, key_password=SECRET)["key_password"]
    path = tmp_path / "password"
    path.write_text(KEY_PASSWORD + "\n")
    opened = SecuritySettings.model_validate({**encrypted, "key_password": f"file:{path}"})
    assert opened.client_options().keys() == {"security_protocol", "ssl_context"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (SECRET.encode() + b"\xff", "no text in UTF-8"),
        (SECRET.encode() * 20_000, "more than 65536 bytes"),
    ],
)
def test_a_file_that_holds_no_secret_is_told(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnusableSecretError) as caught:
        secret_in(path)
    assert reason in str(caught.value)
    assert caught.value.__cause__ is None or SECRET not in repr(caught.value.__cause__)
    with pytest.raises(ValidationError, match=re.escape(f"{path}: {caught.value}")) as refused:
        SecuritySettings.model_validate({"password": f"file:{path}"})
    assert SECRET not in str(refused.value)


def test_only_the_line_break_at_its_end_is_no_part_of_a_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(" pass wörd \r\n".encode())
    assert secret_in(path) == SecretStr(" pass wörd ")


async def test_a_token_is_read_anew_each_time(token: TokenOnDisk) -> None:
    provider = TokenFile(token.path)
    for text in ("first-token", unsigned_token("ada")):
        token.holds(text)
        assert await provider.token() == text
    token.vanishes()
    with pytest.raises(KafkaError, match=f"no token in {token.path}: the file cannot be read"):
        await provider.token()


@pytest.mark.parametrize("text", ["two words", "two\nlines", "tökén", "  \n"])
async def test_what_is_no_token_is_not_sent(token: TokenOnDisk, text: str) -> None:
    token.holds(text)
    with pytest.raises(TokenError, match="no token in") as caught:
        await TokenFile(token.path).token()
    assert not text.strip() or text not in str(caught.value)


async def test_a_token_that_has_expired_is_not_sent(
    token: TokenOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka would take the broker's refusal for a success and wait for ever."""
    token.holds(unsigned_token("ada", seconds=100))
    now = time.time()
    provider = TokenFile(token.path)
    monkeypatch.setattr(time, "time", lambda: now + 150)
    assert await provider.token(), "within the margin the broker decides"
    monkeypatch.setattr(time, "time", lambda: now + 161)
    with pytest.raises(TokenError, match=r"the token expired at \d{4}-"):
        await provider.token()
    assert (
        "expired"
        in mistakes(protocol="SASL_SSL", mechanism="OAUTHBEARER", token_file=token.path)[
            "token_file"
        ]
    )


@pytest.mark.parametrize(
    "claims", ["bm90IGpzb24", "WzFd", "eyJleHAiOiJzb29uIn0", "eyJleHAiOjFlNDAwfQ", "_"]
)
async def test_a_token_that_only_looks_like_a_jwt_is_left_to_the_broker(
    token: TokenOnDisk, claims: str
) -> None:
    """No JSON, a list, a time in words, an endless time, no base64."""
    token.holds(f"a.{claims}.c")
    assert await TokenFile(token.path).token() == f"a.{claims}.c"


# A trial shows whether Kafka would still let us in, before a connection is lost: refusals are
# reported and counted.


PLAIN_LOGIN = SecuritySettings(
    protocol="SASL_SSL", mechanism="PLAIN", username="ava", password=SecretStr("7d1f-secret")
)
REFUSED = SaslAuthenticationFailed("invalid credentials")
EXPIRED = ssl.SSLCertVerificationError()
EXPIRED.verify_code, EXPIRED.verify_message = 10, "certificate has expired"
NOBODY = ConnectionRefusedError(111, "Connection refused")
ELSEWHERE = UnreachableNamesError("b:1")
ADDRESS = "127.0.0.1:9092"


class Watching:
    """A watch whose trials go as scripted; `None` is a trial that is let in. It is stopped after
    the last.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        outcomes: Sequence[Exception | None],
        security: SecuritySettings,
    ) -> None:
        self.registry = CollectorRegistry()
        self.stop = asyncio.Event()
        self.watch = LoginWatch(
            KafkaSettings(security=security), Instruments(self.registry, ["judge"])
        )
        self.trials = 0
        self.pauses: list[float] = []
        self.problems: list[Sequence[str]] = []

        async def pause(_stop: asyncio.Event, seconds: float) -> None:
            self.pauses.append(seconds)
            await asyncio.sleep(0)

        async def opens(*_: object) -> SimpleNamespace:
            if self.trials:
                self.problems.append(self.watch.problems())
            outcome = outcomes[self.trials]
            self.trials += 1
            if self.trials == len(outcomes):
                self.stop.set()
            if outcome is not None:
                raise NoContactError([(ADDRESS, outcome)])
            return SimpleNamespace(close=partial(asyncio.sleep, 0))

        monkeypatch.setattr(login_watch, "pause_unless", pause)
        monkeypatch.setattr(login_watch, "_first_that_opens", opens)

    async def follow(self) -> list[str]:
        """Runs to the end; returns the names of the logged lines, in order. Keeps the problems
        after each trial.
        """
        with capture_logs() as logged:
            await asyncio.wait_for(self.watch.follow(self.stop), patient(10))
        self.problems.append(self.watch.problems())
        self.lines = logged
        return [line["event"] for line in logged]

    @property
    def refusals(self) -> float | None:
        return self.registry.get_sample_value("callgauge_kafka_logins_refused_total")


async def test_a_refusal_is_told_each_time_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watching(monkeypatch, [None, REFUSED, REFUSED, REFUSED, NOBODY, None], PLAIN_LOGIN)
    assert await made.follow() == [
        "kafka_login_refused",
        "kafka_login_refused",
        "kafka_login_works_again",
    ]
    assert [bool(problems) for problems in made.problems] == [False, False, True, True, True, False]
    assert made.refusals == 2
    assert made.pauses == [
        TRIAL_SECONDS,
        TRIAL_SECONDS,
        CONFIRM_SECONDS,
        TRIAL_SECONDS,
        TRIAL_SECONDS,
        TRIAL_SECONDS,
    ]
    (told,) = made.problems[2]
    assert told == (
        f"kafka: new connections are refused: the broker at {ADDRESS} refuses the login of user "
        "'ava' with PLAIN: "
        "invalid credentials"
    )
    assert "restart callgauge" in made.lines[0]["what_to_do"]
    assert "7d1f-secret" not in str(made.lines)


async def test_certificates_that_were_written_meanwhile_are_used_for_new_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_certificates(tmp_path)
    names = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key"}
    files = {name: tmp_path / file for name, file in names.items()}
    security = SecuritySettings.model_validate({"protocol": "SSL", **files})
    before = shown_to_a_broker(security, tmp_path)
    files["key_file"].write_bytes((tmp_path / "other-client.key").read_bytes())
    made = Watching(monkeypatch, [None, None, None], security)
    assert await made.follow() == ["certificates_not_usable"], "once for the same fault"
    assert "security.key_file: it is not the key of the certificate" in made.lines[0]["problem"]
    assert shown_to_a_broker(security, tmp_path) == before
    write_certificates(tmp_path)
    made = Watching(monkeypatch, [None], security)
    assert await made.follow() == []
    assert shown_to_a_broker(security, tmp_path) not in (before, None)


def shown_to_a_broker(security: SecuritySettings, folder: Path) -> bytes | None:
    """The certificate that a client shows to a broker which asks for one and has the certificates
    of now.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_OPTIONAL
    server.load_verify_locations(folder / "ca.pem")
    server.load_cert_chain(folder / "broker.pem")
    ways = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    client = security.client_options()["ssl_context"]
    ends = [
        client.wrap_bio(ways[0], ways[1], server_hostname="127.0.0.1"),
        server.wrap_bio(ways[1], ways[0], server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    shown: bytes | None = ends[1].getpeercert(binary_form=True)
    return shown


async def test_a_certificate_that_has_expired_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watching(monkeypatch, [EXPIRED, EXPIRED], PLAIN_LOGIN)
    assert await made.follow() == ["kafka_login_refused"]
    assert "certificate has expired" in made.lines[0]["problem"]


@pytest.mark.parametrize(
    "outcomes",
    [[REFUSED, None, REFUSED, None], [REFUSED, NOBODY], [NOBODY, NOBODY], [ELSEWHERE] * 3],
)
async def test_a_broker_that_is_away_or_just_stopping_refuses_nobody(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | None]
) -> None:
    made = Watching(monkeypatch, outcomes, PLAIN_LOGIN)
    assert await made.follow() == []
    assert not any(made.problems)
    assert made.refusals == 0


async def test_an_open_broker_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watching(monkeypatch, [REFUSED], SecuritySettings())
    assert await made.follow() == []
    assert made.trials == 0
