"""Roles in one process: what they say at the start, their readiness, their restarts, and a forced
end when they hang.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.limits import LimitSettings
from consumers.evaluator.service import OvertakenError
from consumers.evaluator.writer import WriteError
from consumers.exporter import service as exporter_service
from consumers.runtime.kafka.connection import KafkaRefusedError, KafkaSettings
from consumers.runtime.registry import Instruments
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import ROLE_NAMES, RoleName
from streamer.facts import installed_version
from streamer.roles import evaluator_role
from streamer.roles import running as service
from streamer.roles.running import (
    LONGEST_PAUSE_SECONDS,
    MOST_RESTARTS,
    QUIET_SECONDS,
    RoleRunner,
    Service,
    start_facts,
)
from streamer.settings.all_settings import Settings, load_settings
from tests.support.fakes.evaluator_fakes import until_idle
from tests.support.known import Logged
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


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    made = Running(monkeypatch)
    async with asyncio.timeout(patient(20)):
        while not made.service._running:
            assert not made.task.done(), made.task
            await asyncio.sleep(0)
    yield made
    made.stop.set()
    for role in (made.evaluator, made.exporter):
        role.may_end.set()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_it_is_ready_when_every_role_is(made: Running) -> None:
    assert await made.page("/readyz") == (503, "evaluator: waits\nexporter: waits\n")
    made.exporter.ready.set()
    assert await made.page("/readyz") == (503, "evaluator: waits\n")
    assert not made.service.ready.is_set()
    made.evaluator.ready.set()
    await made.service.ready.wait()
    assert await made.page("/readyz") == (200, "ok\n")


@pytest.mark.parametrize("role", ROLE_NAMES)
async def test_every_role_shows_its_process_and_its_version(
    role: RoleName, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_the_sequencer_has_its_group_and_the_bounds_of_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[SequencerSettings] = []

    def sequencer(
        _kafka: KafkaSettings, its: SequencerSettings, _instruments: Instruments
    ) -> FakeRole:
        made.append(its)
        return FakeRole("sequencer")

    monkeypatch.setattr("consumers.sequencer.service.Sequencer", sequencer)
    limits = LimitSettings(max_record_bytes=1_000)
    given = Settings(http_port=0, topic_prefix="t.", limits=limits)
    Service(given, KafkaSettings(), ["sequencer"])
    assert [(its.group_id, its.max_record_bytes) for its in made] == [
        ("t.callgauge-sequencer", 1_000)
    ]


async def test_the_budget_of_series_is_a_setting() -> None:
    made = [
        Service(Settings(http_port=0, max_series=most), KafkaSettings(), [])
        for most in (5_000, 7_000)
    ]
    budgets = [each._instruments._budget.left for each in made]
    assert budgets[1] - budgets[0] == 2_000


async def test_a_role_that_waits_does_not_ask_for_a_restart(made: Running) -> None:
    assert await made.page("/healthz") == (200, "ok\n")
    made.exporter.stall = ("exporter: no tick for 31 s",)
    assert await made.page("/healthz") == (503, "exporter: no tick for 31 s\n")


async def test_a_stop_lets_every_role_finish_and_is_told_at_once(made: Running) -> None:
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


async def test_a_role_that_fails_ends_the_others_properly(made: Running, logged: Logged) -> None:
    made.exporter.may_end.clear()
    made.exporter.fails_at_the_end = OSError("the second failure")
    made.evaluator.failing.set_exception(ZeroDivisionError("the first failure"))
    await made.service.stopping.wait()
    assert await made.page("/healthz") == (503, "evaluator: its work has ended with an error\n")
    made.exporter.may_end.set()
    with pytest.raises(ZeroDivisionError, match="the first failure"):
        await made.task
    assert made.exporter.has_stopped
    (told,) = [line for line in logged if line["event"] == "role_failed"]
    assert (told["role"], told["error"]) == ("exporter", "OSError('the second failure')")


async def test_cancelling_it_lets_every_role_finish(made: Running) -> None:
    made.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made.task
    assert made.evaluator.has_stopped
    assert made.exporter.has_stopped


# Signals are tried on a real process: their effect on a loop that hangs cannot be seen from inside
# the loop.
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
    # In short pieces: a signal just before a sleep begins waits for the end of that sleep.
    "the loop itself": ("tell()\n        while True: time.sleep(0.05)", "exporter"),
    "the end of the loop": ("pass", "process"),  # the left-over task keeps it from ending
}


class Hung:
    """A `callgauge run` whose only role hangs on a stop; `lines` is its standard error."""

    def __init__(self, hang: str, stop_seconds: float) -> None:
        program = PROGRAM.format(hang=hang, stop_seconds=stop_seconds)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("CALLGAUGE_")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

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


@pytest.mark.parametrize(
    ("hangs", "number"),
    [*zip(HANGS, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True)],
)
def test_a_second_signal_ends_at_once_whatever_hangs(hangs: str, number: signal.Signals) -> None:
    hung = Hung(HANGS[hangs][0], stop_seconds=600)
    try:
        hung.hang(number)
        hung.process.send_signal(number)
        exit_code, _ = hung.ended()
        assert exit_code == 128 + number, (
            "a stop that took too long has another code, and not before ten minutes"
        )
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


class RestartedRole:
    """Becomes ready and ends when the test says so, with or without an error."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_run = False

    async def run(self, stop: asyncio.Event) -> None:
        self.has_run = True
        stopped = asyncio.ensure_future(stop.wait())
        awaited: list[asyncio.Future[Any]] = [stopped, self.ends]
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if self.ends.done():
                self.ends.result()
        finally:
            self.ready.clear()
            stopped.cancel()

    def problems(self) -> tuple[str, ...]:
        return () if self.ready.is_set() else ("evaluator: waits",)

    def stalled(self) -> tuple[str, ...]:
        return ("evaluator: hangs",)


class Rig:
    """A runner with roles, clock and pauses that the test controls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.roles: list[RestartedRole] = []
        self.pauses: list[float] = []
        self.goes_on = asyncio.Event()
        self.now_seconds = 1_000.0
        self.refusal: Exception | None = None
        self.registry = CollectorRegistry()
        self.stop = asyncio.Event()
        monkeypatch.setattr("time.monotonic", lambda: self.now_seconds)
        monkeypatch.setattr("asyncio.sleep", self._sleep)
        instruments = Instruments(self.registry, ["evaluator"])
        self.runner = RoleRunner("evaluator", self._make, instruments, self._may_start)
        self.task = asyncio.create_task(self.runner.run(self.stop))

    def _make(self) -> RestartedRole:
        self.roles.append(RestartedRole())
        return self.roles[-1]

    async def _may_start(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def _sleep(self, seconds: float) -> None:
        if seconds == 0:  # the test's own
            return await REAL_SLEEP(0)
        self.pauses.append(seconds)
        await self.goes_on.wait()
        self.goes_on.clear()
        return None

    async def works(self) -> None:
        self.roles[-1].ready.set()
        await until_idle()

    async def fails(self, error: Exception) -> None:
        self.roles[-1].ends.set_exception(error)
        await until_idle()

    async def pause_ends(self) -> None:
        self.goes_on.set()
        for _ in range(3):
            await until_idle()

    @property
    def restarts(self) -> float | None:
        return self.registry.get_sample_value(
            "callgauge_role_restarts_total", {"role": "evaluator"}
        )


REAL_SLEEP = asyncio.sleep
ERROR = WriteError("partition 3 refused")


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    rig = Rig(monkeypatch)
    await until_idle()
    yield rig
    if not rig.task.done():
        rig.stop.set()
        await rig.task


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


async def test_a_role_that_has_worked_is_made_anew_after_a_pause(
    rig: Rig, logged: list[Any]
) -> None:
    await rig.works()
    assert rig.runner.problems() == ()
    await rig.fails(ERROR)
    assert rig.pauses == [1.0]
    assert [role.has_run for role in rig.roles] == [True, False]
    assert rig.runner.problems() == (
        "evaluator: ended with WriteError and starts again in 1 s (restart 1 of 10); the log says "
        "why: role_failed",
    )
    assert rig.runner.stalled() == ()  # a new process could do no more
    await rig.pause_ends()
    assert [role.has_run for role in rig.roles] == [True, True]
    assert "starts again now" in rig.runner.problems()[0]
    assert rig.runner.stalled() == ("evaluator: hangs",)
    await rig.works()
    assert rig.runner.problems() == ()
    assert rig.restarts == 1
    assert [(line["event"], line["role"]) for line in logged] == [
        ("role_failed", "evaluator"),
        ("role_works_again", "evaluator"),
    ]
    assert logged[0]["error"] == "WriteError: partition 3 refused"


async def test_what_never_worked_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await until_idle()
    await rig.fails(ERROR)
    with pytest.raises(WriteError):
        await rig.task
    assert (rig.pauses, rig.restarts) == ([], 0)


async def test_a_role_that_never_worked_starts_again_where_its_error_passes(rig: Rig) -> None:
    await rig.fails(
        OvertakenError("partitions 2, 3: another process claimed them at the same moment")
    )
    await rig.pause_ends()
    assert [role.has_run for role in rig.roles] == [True, True]
    await rig.works()
    assert rig.runner.problems() == ()


async def test_pauses_grow_and_the_process_ends_after_too_many(rig: Rig, logged: list[Any]) -> None:
    for number in range(MOST_RESTARTS):
        await rig.works()  # for less than a minute: that is no recovery
        await rig.fails(WriteError(f"partition {number} refused"))
        await rig.pause_ends()
    await rig.fails(WriteError("partition 11 refused"))
    with pytest.raises(WriteError, match="partition 11"):
        await rig.task
    assert rig.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert max(rig.pauses) == LONGEST_PAUSE_SECONDS
    assert rig.restarts == MOST_RESTARTS
    assert [line["event"] for line in logged if line["log_level"] == "error"] == [
        "role_failed",
        "role_given_up",
    ]


async def test_without_memory_the_process_ends_at_once(rig: Rig, logged: list[Any]) -> None:
    """What filled it is still there: a start in the same process failed again with words about the
    network.
    """
    await rig.works()
    await rig.fails(MemoryError())
    with pytest.raises(MemoryError):
        await asyncio.wait_for(rig.task, 5)
    assert (rig.pauses, rig.restarts) == ([], 0)
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ["out_of_memory"]


async def test_who_has_worked_for_a_while_begins_a_new_row(rig: Rig, logged: list[Any]) -> None:
    for _ in range(2 * MOST_RESTARTS):
        await rig.works()
        rig.now_seconds += QUIET_SECONDS
        await rig.fails(ERROR)
        await rig.pause_ends()
    assert set(rig.pauses) == {1.0}
    assert [line["event"] for line in logged].count("role_failed") == 2 * MOST_RESTARTS


async def test_another_reason_is_told(rig: Rig, logged: list[Any]) -> None:
    """The broker is also asked before each new start, because its answer is clearer about missing
    rights.
    """
    await rig.works()
    await rig.fails(ERROR)
    rig.refusal = KafkaRefusedError("lacks Write on transcripts")
    for _ in range(3):
        await rig.pause_ends()
    assert [role.has_run for role in rig.roles] == [True, *[False] * 4]
    rig.refusal = None
    await rig.pause_ends()
    await rig.works()
    await rig.fails(ERROR)
    assert [line["error"] for line in logged if line["event"] == "role_failed"] == [
        "WriteError: partition 3 refused",
        "KafkaRefusedError: lacks Write on transcripts",
        "WriteError: partition 3 refused",
    ]


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(ERROR, False), (ZeroDivisionError("bug"), True)]
)
async def test_a_fault_that_nobody_foresaw_shows_where_it_was(
    rig: Rig, logged: list[Any], error: Exception, *, has_traceback: bool
) -> None:
    await rig.works()
    await rig.fails(error)
    assert (logged[0]["exc_info"] is error) is has_traceback


@pytest.mark.parametrize("while_it", ["works", "pauses"])
async def test_a_stop_ends_it_and_nothing_starts_again(rig: Rig, while_it: str) -> None:
    await rig.works()
    if while_it == "pauses":
        await rig.fails(ERROR)
    rig.stop.set()
    await rig.task
    assert [role.has_run for role in rig.roles] == (
        [True] if while_it == "works" else [True, False]
    )


async def test_what_fails_while_it_stops_is_told_by_who_waits_for_it(rig: Rig) -> None:
    await rig.works()
    rig.roles[0].ends.set_exception(ERROR)
    rig.stop.set()
    with pytest.raises(WriteError):
        await rig.task


ALL: tuple[RoleName, ...] = ("evaluator", "exporter", "judge")
KEY = {"OPENAI_API_KEY": "key"}
GOALS = (
    "id: one\nsubgoals:\n  - id: booked\n    details: d\n    check: {kind: tool_called, tool: "
    "book}\n"
)


def facts(
    environment: dict[str, str] | None = None, roles: tuple[RoleName, ...] = ALL
) -> dict[str, str]:
    return start_facts(load_settings(None, {}, environment or {}), roles)


def test_at_its_start_it_says_what_the_doctor_says_of_goals_and_the_judge(tmp_path: Path) -> None:
    environment = {"CALLGAUGE_GOALS__FOLDER": str(tmp_path)}
    (tmp_path / "one.yaml").write_text(GOALS)
    assert facts(environment) == {
        "goals": f"1 goal set in {tmp_path}",
        "judge": "off: it has no key",
    }
    (tmp_path / "two.yaml").write_text("id: [")
    assert facts(environment)["goals"].endswith(f"See `callgauge goals check {tmp_path}`.")
    assert facts(KEY)["judge"] == "on: gpt-4.1 at https://api.openai.com/v1"


def test_redaction_that_is_switched_off_is_said() -> None:
    off = {"CALLGAUGE_REDACTION__ENABLED": "false"}
    assert facts(off, ("exporter",)) == {"redaction": "off: texts of calls are written as they are"}
    assert facts({}, ("exporter",)) == {}
