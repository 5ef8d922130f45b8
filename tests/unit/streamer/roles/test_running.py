"""Roles together in one process: their readiness, their end, and a forced end when they hang."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from consumers.exporter import service as exporter_service
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import ROLE_NAMES, RoleName
from streamer.facts import installed_version
from streamer.roles import evaluator_role
from streamer.roles import running as service
from streamer.roles.running import Service
from streamer.settings.all_settings import Settings
from tests.support.patience import patient

ROOT = Path(__file__).parents[4]
START_SECONDS = 60  # a bound, not a goal: the machine may be busy


class FakeRole:
    """Becomes ready, fails and stops when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fails_at_the_end: Exception | None = None
        self.has_stopped = False
        self.stall: Sequence[str] = ()

    async def run(self, stop: asyncio.Event) -> None:
        stopped = asyncio.ensure_future(stop.wait())
        awaited: list[asyncio.Future[Any]] = [stopped, self.failing]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self.failing.done():
            self.failing.result()
        await self.may_end.wait()
        self.has_stopped = True
        if self.fails_at_the_end is not None:
            raise self.fails_at_the_end

    def problems(self) -> Sequence[str]:
        return () if self.ready.is_set() else (f"{self.name}: waits",)

    def stalled(self) -> Sequence[str]:
        return self.stall


class Running:
    """A service of two made-up roles, and its HTTP pages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.evaluator, self.exporter = FakeRole("evaluator"), FakeRole("exporter")
        monkeypatch.setattr(evaluator_role, "EvaluatorRole", lambda *_: self.evaluator)
        monkeypatch.setattr(exporter_service, "Exporter", lambda *_: self.exporter)
        self.access = asyncio.Event()
        self.access.set()
        monkeypatch.setattr(service, "require_access", lambda *_: self.access.wait())
        self.stop = asyncio.Event()
        self.service = Service(Settings(http_port=0), KafkaSettings(), ["evaluator", "exporter"])
        self.task = asyncio.create_task(self.service.run(self.stop))

    async def page(self, path: str) -> tuple[int, str]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(self.service.metrics_url.removesuffix("/metrics") + path)
        return answer.status_code, answer.text


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    made = Running(monkeypatch)
    try:
        async with asyncio.timeout(patient(20)):
            while not made.service._running:
                assert not made.task.done(), made.task
                await asyncio.sleep(0)
            yield made
    finally:
        made.stop.set()
        for role in (made.evaluator, made.exporter):
            role.may_end.set()
        await asyncio.gather(made.task, return_exceptions=True)


async def test_it_is_ready_when_every_role_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as made:
        assert await made.page("/readyz") == (503, "evaluator: waits\nexporter: waits\n")
        made.exporter.ready.set()
        assert await made.page("/readyz") == (503, "evaluator: waits\n")
        assert not made.service.ready.is_set()
        made.evaluator.ready.set()
        await made.service.ready.wait()
        assert await made.page("/readyz") == (200, "ok\n")


@pytest.mark.parametrize("role", ROLE_NAMES)
async def test_every_role_shows_its_process_and_its_version(role: RoleName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_maker", lambda *_: lambda: FakeRole(role))
    made = Service(Settings(http_port=0), KafkaSettings(), [role])
    await made._server.start()
    async with httpx.AsyncClient() as client:
        page = (await client.get(made.metrics_url)).text
    await made._server.stop()
    assert f'callgauge_build_info{{version="{installed_version()}"}} 1.0' in page
    assert "\nprocess_resident_memory_bytes " in page
    assert "\nprocess_start_time_seconds " in page
    assert "\ncallgauge_series_folded_total 0.0" in page


async def test_the_budget_of_series_is_a_setting() -> None:
    made = [Service(Settings(http_port=0, max_series=most), KafkaSettings(), []) for most in (5_000, 7_000)]
    budgets = [each._instruments._budget.left for each in made]
    assert budgets[1] - budgets[0] == 2_000


async def test_a_role_that_waits_does_not_ask_for_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as made:
        assert await made.page("/healthz") == (200, "ok\n")
        made.exporter.stall = ("exporter: no tick for 31 s",)
        assert await made.page("/healthz") == (503, "exporter: no tick for 31 s\n")


async def test_a_stop_lets_every_role_finish_and_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as made:
        for role in (made.evaluator, made.exporter):
            role.ready.set()
        made.evaluator.may_end.clear()
        made.evaluator.stall = ("evaluator: no tick for 31 s",)  # a role that stops is quiet
        made.stop.set()
        assert await made.page("/readyz") == (503, "evaluator: stopping\nexporter: stopping\n")
        assert await made.page("/healthz") == (200, "ok\n")
        assert made.service.unfinished() == ["evaluator"]
        made.evaluator.may_end.set()
        await made.task
        assert made.evaluator.has_stopped
        assert made.exporter.has_stopped
        assert made.service.unfinished() == ["process"]


async def test_a_role_that_fails_ends_the_others_properly(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as made:
        made.exporter.may_end.clear()
        made.exporter.fails_at_the_end = OSError("the second failure")
        made.evaluator.failing.set_exception(ZeroDivisionError("the first failure"))
        await made.service.stopping.wait()
        assert await made.page("/healthz") == (503, "evaluator: its work has ended with an error\n")
        with capture_logs() as lines:
            made.exporter.may_end.set()
            with pytest.raises(ZeroDivisionError, match="the first failure"):
                await made.task
        assert made.exporter.has_stopped
        (told,) = [line for line in lines if line["event"] == "role_failed"]
        assert (told["role"], told["error"]) == ("exporter", "OSError('the second failure')")


async def test_cancelling_it_lets_every_role_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as made:
        made.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made.task
        assert made.evaluator.has_stopped
        assert made.exporter.has_stopped


# Signals are tried on a real process: their effect on a loop that hangs cannot be seen from inside the loop.
PROGRAM = """
import asyncio, time
from consumers.exporter import service as exporter_service
from streamer.roles import running as run_command
from streamer.roles import running as service
from streamer.settings.all_settings import Settings
from consumers.runtime.logs import configure_logging

def tell():
    print("hanging", flush=True)

async def deaf():
    while True:
        try:
            tell()
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def deaf_at_the_end():
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        await deaf()

class Hanging:
    def __init__(self, *_):
        self.ready = asyncio.Event()
        self.problems = self.stalled = tuple
    async def run(self, stop):
        self.ready.set()
        left_over = asyncio.create_task(deaf_at_the_end())
        await stop.wait()
        {hang}

async def granted(*_): pass

service.require_access = granted
exporter_service.Exporter = Hanging
run_command.STOP_SECONDS = {stop_seconds}
configure_logging("json")
asyncio.run(run_command._run(Settings(http_port=0, log_format="json"), ("exporter",)))
"""
HANGS = {
    "a role": ("await deaf()", "exporter"),
    "the loop itself": ("tell(); time.sleep(600)", "exporter"),
    "the end of the loop": ("pass", "process"),  # the left-over task keeps it from ending
}


class Hung:
    """A `callgauge run` whose only role hangs on a stop; `lines` is its standard error."""

    def __init__(self, hang: str, stop_seconds: float) -> None:
        program = PROGRAM.format(hang=hang, stop_seconds=stop_seconds)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CALLGAUGE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def hang(self, number: signal.Signals) -> None:
        """Sends the first signal, once the role runs, and returns when it hangs."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        assert "service_ready" in self.process.stderr.readline()
        self.process.send_signal(number)
        assert self.process.stdout.readline() == "hanging\n"

    def ended(self) -> tuple[int, list[str]]:
        _, errors = self.process.communicate(timeout=patient(START_SECONDS))
        return self.process.returncode, errors.splitlines()


@pytest.mark.parametrize("hangs", HANGS)
@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)])
def test_a_second_signal_ends_at_once_whatever_hangs(hangs: str, first: signal.Signals, second: signal.Signals) -> None:
    hung = Hung(HANGS[hangs][0], stop_seconds=600)
    try:
        hung.hang(first)
        began_seconds = time.monotonic()
        hung.process.send_signal(second)
        exit_code, _ = hung.ended()
        assert exit_code == 128 + second
        assert time.monotonic() - began_seconds < patient(1)
    finally:
        hung.process.kill()
        hung.process.communicate()


@pytest.mark.parametrize("hangs", HANGS)
def test_a_stop_that_takes_too_long_ends_with_a_line_that_says_what_hung(hangs: str) -> None:
    hang, unfinished = HANGS[hangs]
    hung = Hung(hang, stop_seconds=2)
    try:
        hung.hang(signal.SIGTERM)
        exit_code, lines = hung.ended()
        assert exit_code == 1
        (told,) = [line for line in lines if '"event": "stop_overdue"' in line]
        assert f'"unfinished": ["{unfinished}"]' in told
        assert told == lines[-1]
    finally:
        hung.process.kill()
        hung.process.communicate()
