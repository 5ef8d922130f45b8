"""A trial shows whether Kafka would still let us in, before a connection is lost: refusals are reported and counted."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import SaslAuthenticationFailed
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from structlog.testing import capture_logs

from consumers.runtime.kafka import connection as login_watch
from consumers.runtime.kafka.connection import (
    CONFIRM_SECONDS,
    TRIAL_SECONDS,
    KafkaSettings,
    LoginWatch,
    NoContactError,
    UnreachableNamesError,
)
from consumers.runtime.kafka.security import SecuritySettings
from consumers.runtime.registry import Instruments
from tests.support.patience import patient

LOGIN = SecuritySettings(protocol="SASL_SSL", mechanism="PLAIN", username="ava", password=SecretStr("7d1f-secret"))
REFUSED = SaslAuthenticationFailed("invalid credentials")
EXPIRED = ssl.SSLCertVerificationError()
EXPIRED.verify_code, EXPIRED.verify_message = 10, "certificate has expired"
NOBODY = ConnectionRefusedError(111, "Connection refused")
ELSEWHERE = UnreachableNamesError("b:1")
ADDRESS = "127.0.0.1:9092"


class Watching:
    """A watch whose trials go as scripted; `None` is a trial that is let in. It is stopped after the last."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[Exception | None], security: SecuritySettings
    ) -> None:
        self.registry = CollectorRegistry()
        self.stop = asyncio.Event()
        self.watch = LoginWatch(KafkaSettings(security=security), Instruments(self.registry, ["judge"]))
        self.trials = 0
        self.pauses: list[float] = []
        self.problems: list[Sequence[str]] = []

        async def pause(_stop: asyncio.Event, seconds: float) -> None:
            self.pauses.append(seconds)
            await asyncio.sleep(0)

        @asynccontextmanager
        async def contact(_options: Any, _client_id: str) -> AsyncIterator[None]:
            if self.trials:
                self.problems.append(self.watch.problems())
            outcome = outcomes[self.trials]
            self.trials += 1
            if self.trials == len(outcomes):
                self.stop.set()
            if outcome is not None:
                raise NoContactError([(ADDRESS, outcome)])
            yield

        monkeypatch.setattr(login_watch, "_pause", pause)
        monkeypatch.setattr(login_watch, "first_contact", contact)

    async def follow(self) -> list[str]:
        """Runs to the end; returns the names of the logged lines, in order. Keeps the problems after each trial."""
        with capture_logs() as logged:
            await asyncio.wait_for(self.watch.follow(self.stop), patient(10))
        self.problems.append(self.watch.problems())
        self.lines = logged
        return [line["event"] for line in logged]

    @property
    def refusals(self) -> float | None:
        return self.registry.get_sample_value("callgauge_kafka_logins_refused_total")


async def test_a_refusal_is_told_each_time_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watching(monkeypatch, [None, REFUSED, REFUSED, REFUSED, NOBODY, None], LOGIN)
    assert await made.follow() == ["kafka_login_refused", "kafka_login_refused", "kafka_login_works_again"]
    assert [bool(problems) for problems in made.problems] == [False, False, True, True, True, False]
    assert made.refusals == 2
    assert made.pauses == [TRIAL_SECONDS, TRIAL_SECONDS, CONFIRM_SECONDS, TRIAL_SECONDS, TRIAL_SECONDS, TRIAL_SECONDS]
    (told,) = made.problems[2]
    assert told == (
        f"kafka: new connections are refused: the broker at {ADDRESS} refuses the login of user 'ava' with PLAIN: "
        "invalid credentials"
    )
    assert "restart callgauge" in made.lines[0]["what_to_do"]
    assert "7d1f-secret" not in str(made.lines)


async def test_a_certificate_that_has_expired_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watching(monkeypatch, [EXPIRED, EXPIRED], LOGIN)
    assert await made.follow() == ["kafka_login_refused"]
    assert "certificate has expired" in made.lines[0]["problem"]


@pytest.mark.parametrize(
    "outcomes", [[REFUSED, None, REFUSED, None], [REFUSED, NOBODY], [NOBODY, NOBODY], [ELSEWHERE] * 3]
)
async def test_a_broker_that_is_away_or_just_stopping_refuses_nobody(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | None]
) -> None:
    made = Watching(monkeypatch, outcomes, LOGIN)
    assert await made.follow() == []
    assert not any(made.problems)
    assert made.refusals == 0


async def test_an_open_broker_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watching(monkeypatch, [REFUSED], SecuritySettings())
    assert await made.follow() == []
    assert made.trials == 0


async def test_stopping_waits_for_no_pause() -> None:
    stop = asyncio.Event()
    pausing = asyncio.create_task(login_watch._pause(stop, 3_600))
    stop.set()
    await asyncio.wait_for(pausing, patient(10))
