"""A role that fails is started again, with longer and longer pauses, and the log says once why."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.evaluator.writer import WriteError
from consumers.runtime.kafka.connection import KafkaRefusedError
from consumers.runtime.registry import Instruments
from streamer.roles.running import LONGEST_PAUSE_SECONDS, MOST_RESTARTS, QUIET_SECONDS, RoleRunner
from tests.support.fakes.evaluator_fakes import until_idle


class FakeRole:
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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool = True) -> None:
        self.roles: list[FakeRole] = []
        self.pauses: list[float] = []
        self.goes_on = asyncio.Event()
        self.now_seconds = 1_000.0
        self.refusal: Exception | None = None
        self.registry = CollectorRegistry()
        self.stop = asyncio.Event()
        monkeypatch.setattr("time.monotonic", lambda: self.now_seconds)
        monkeypatch.setattr("asyncio.sleep", self._sleep)
        instruments = Instruments(self.registry, ["evaluator"])
        self.runner = RoleRunner("evaluator", self._make, instruments, self._may_start, is_restarted=is_restarted)
        self.task = asyncio.create_task(self.runner.run(self.stop))

    def _make(self) -> FakeRole:
        self.roles.append(FakeRole())
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
        return self.registry.get_sample_value("callgauge_role_restarts_total", {"role": "evaluator"})


REAL_SLEEP = asyncio.sleep
ERROR = WriteError("partition 3 refused")


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    return lambda **options: Rig(monkeypatch, **options)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


async def test_a_role_that_has_worked_is_made_anew_after_a_pause(make: Callable[..., Rig], logged: list[Any]) -> None:
    rig = make()
    await until_idle()
    await rig.works()
    assert rig.runner.problems() == ()
    await rig.fails(ERROR)
    assert rig.pauses == [1.0]
    assert [role.has_run for role in rig.roles] == [True, False]
    assert rig.runner.problems() == (
        "evaluator: ended with WriteError and starts again in 1 s (restart 1 of 10); the log says why: role_failed",
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
    rig.stop.set()
    await rig.task


@pytest.mark.parametrize("options", [{}, {"is_restarted": False}])
async def test_what_never_worked_or_cannot_go_on_ends_at_once(
    make: Callable[..., Rig], options: dict[str, bool]
) -> None:
    rig = make(**options)
    await until_idle()
    if options:
        await rig.works()
    await rig.fails(ERROR)
    with pytest.raises(WriteError):
        await rig.task
    assert rig.pauses == []
    assert rig.restarts == 0


async def test_pauses_grow_and_the_process_ends_after_too_many(make: Callable[..., Rig], logged: list[Any]) -> None:
    rig = make()
    await until_idle()
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
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ["role_failed", "role_given_up"]


async def test_who_has_worked_for_a_while_begins_a_new_row(make: Callable[..., Rig], logged: list[Any]) -> None:
    rig = make()
    await until_idle()
    for _ in range(2 * MOST_RESTARTS):
        await rig.works()
        rig.now_seconds += QUIET_SECONDS
        await rig.fails(ERROR)
        await rig.pause_ends()
    assert set(rig.pauses) == {1.0}
    assert [line["event"] for line in logged].count("role_failed") == 2 * MOST_RESTARTS
    rig.stop.set()
    await rig.task


async def test_another_reason_is_told(make: Callable[..., Rig], logged: list[Any]) -> None:
    """The broker is also asked before each new start, because its answer is clearer about missing rights."""
    rig = make()
    await until_idle()
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
        "WriteError: partition 3 refused", "KafkaRefusedError: lacks Write on transcripts", "WriteError: partition 3 refused",
    ]  # fmt: skip
    rig.stop.set()
    await rig.task


@pytest.mark.parametrize(("error", "has_traceback"), [(ERROR, False), (ZeroDivisionError("bug"), True)])
async def test_a_fault_that_nobody_foresaw_shows_where_it_was(
    make: Callable[..., Rig], logged: list[Any], error: Exception, *, has_traceback: bool
) -> None:
    rig = make()
    await until_idle()
    await rig.works()
    await rig.fails(error)
    assert (logged[0]["exc_info"] is error) is has_traceback
    rig.stop.set()
    await rig.task


@pytest.mark.parametrize("while_it", ["works", "pauses"])
async def test_a_stop_ends_it_and_nothing_starts_again(make: Callable[..., Rig], while_it: str) -> None:
    rig = make()
    await until_idle()
    await rig.works()
    if while_it == "pauses":
        await rig.fails(ERROR)
    rig.stop.set()
    await rig.task
    assert [role.has_run for role in rig.roles] == ([True] if while_it == "works" else [True, False])


async def test_what_fails_while_it_stops_is_told_by_who_waits_for_it(make: Callable[..., Rig]) -> None:
    rig = make()
    await until_idle()
    await rig.works()
    rig.roles[0].ends.set_exception(ERROR)
    rig.stop.set()
    with pytest.raises(WriteError):
        await rig.task
