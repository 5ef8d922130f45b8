"""The evaluator runs and ends: its ticks, its health reports, and the things it leaves behind."""

import asyncio
import time

import pytest

from consumers.evaluator import recovery as replay
from consumers.evaluator import service
from schemas.closed_sets import InputSource
from schemas.order import TimePassed
from schemas.topics import INPUT_TOPICS
from tests.support.fakes.evaluator_fakes import AUDIT, NOW_MS, PIPECAT, START, Record, Shell, WrittenOrder, until_idle
from tests.support.patience import patient


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


# Ticks.


async def test_a_tick_lets_time_pass_and_writes_what_silence_means(shell: Shell) -> None:
    await shell.assigned(0)
    await shell.broker_answers()
    shell.evaluators[0].wakeup_ms = NOW_MS
    ticking = asyncio.create_task(shell.role._tick_for_ever())
    async with asyncio.timeout(patient(5)):
        while not shell.journal:  # noqa: ASYNC110  # the journal is a list
            await asyncio.sleep(0)
    ticking.cancel()
    assert shell.evaluators[0].advanced_to_ms[0] == NOW_MS
    assert shell.journal[0] == "write c-1 to 0"
    assert shell.role.stalled() == ()


async def test_time_passes_between_records_as_far_as_the_inputs_are_known(shell: Shell) -> None:
    await shell.assigned(0)
    await shell.broker_answers()
    shell.evaluators[0].wakeup_ms = 0
    records = [Record(PIPECAT, 4, NOW_MS - 5), Record(AUDIT, 4, NOW_MS + 900)]
    await shell.role._take(records)
    assert shell.evaluators[0].advanced_to_ms == [NOW_MS - 5, NOW_MS, NOW_MS]  # the last one is the poll's own


async def test_where_a_poll_brings_nothing_time_passes_by_ticks(shell: Shell) -> None:
    await shell.assigned(0, 1)
    await shell.broker_answers()
    for evaluator in shell.evaluators:
        evaluator.wakeup_ms = 0
    await shell.folds(START, number=1)
    assert [bool(evaluator.advanced_to_ms) for evaluator in shell.evaluators] == [False, True]
    ticking = asyncio.create_task(shell.role._tick_for_ever())
    async with asyncio.timeout(patient(5)):
        while not shell.evaluators[0].advanced_to_ms:  # noqa: ASYNC110  # it is a list
            await asyncio.sleep(0)
    ticking.cancel()


async def test_a_replay_goes_on_without_a_wait_between_its_steps(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_STEPS_AT_A_TIME", 2)
    await shell.assigned(0)
    order = WrittenOrder()
    order.owner(version="1")
    order.write(*(TimePassed(NOW_MS + step) for step in range(5)))
    positions = dict.fromkeys(InputSource, START)
    shell.evaluators[0].open_calls = ()
    partition = shell.role._assignment.owned[0].partition
    taken = replay.Replay(order.read(), positions, positions, "1", shell.evaluators[0], partition.admitted)
    partition.start(dict.fromkeys(INPUT_TOPICS, START), replay=taken)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await shell.role._tick_for_ever()
    assert [seconds > 0 for seconds in waits] == [False] * 4 + [True]
    assert shell.evaluators[0].advanced_to_ms == [NOW_MS + step for step in range(5)]
    assert not partition.is_recovering


async def test_it_is_well_while_it_ticks(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    role = shell.role
    assert role.problems() == ("evaluator: not reading the inputs",)
    assert role.stalled() == ()
    role.ready.set()
    assert role.problems() == ()
    role.ready.clear()
    role._is_leaving = True
    assert role.problems() == ("evaluator: leaving",)
    now_seconds = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_seconds)
    role._ticked_at = now_seconds - 30
    assert role.stalled() == ()
    role._ticked_at = now_seconds - 31
    assert role.stalled() == ("evaluator: no tick for 31 s",)


async def test_polls_that_fail_make_it_stall(shell: Shell) -> None:
    shell.role._ticked_at = time.monotonic()
    shell.subscription.stalls = ("evaluator: its polls fail",)
    assert shell.role.stalled() == ("evaluator: its polls fail",)


# The end.


async def run(shell: Shell, monkeypatch: pytest.MonkeyPatch, stop: asyncio.Event) -> None:
    """Runs the role on fakes that read nothing by themselves."""

    async def read() -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(shell.role, "_read", read)
    await shell.role.run(stop)


async def test_the_end_waits_for_nobody(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.01)
    await shell.assigned(0)
    shell.may_write.clear()
    waiting = shell.polled(*range(4, 9))
    await until_idle()
    stop = asyncio.Event()
    stop.set()
    await run(shell, monkeypatch, stop)
    await waiting
    assert shell.journal == []


async def test_at_the_end_all_is_written_and_committed_and_everyone_disconnects(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shell.assigned(0)
    shell.takeover.gate.clear()
    await shell.rebalanced(0, 1)  # so that leaving takes a moment longer
    shell.may_write.clear()
    await shell.folds(4)
    stop = asyncio.Event()
    running = asyncio.create_task(run(shell, monkeypatch, stop))
    await until_idle()
    assert shell.role.ready.is_set()
    stop.set()
    await until_idle()
    assert not shell.role.ready.is_set()
    late = shell.polled(5)  # the successor's
    shell.may_write.set()
    await asyncio.gather(running, late)
    assert shell.folded == [[4], []]
    assert shell.commits[-1] == f"commit {PIPECAT}[0]@5"
    assert "write c-1 to 0" in shell.journal
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [(False, True), (False, True)]
    assert shell.subscription.stopped
    assert shell.takeover.stopped


async def test_a_failure_ends_the_role_without_a_commit(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    await shell.assigned(0)
    await shell.folds(4)
    shell.subscription.fail(ZeroDivisionError("boom"))
    with pytest.raises(ZeroDivisionError, match="boom"):
        await run(shell, monkeypatch, asyncio.Event())
    assert shell.commits == []
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [(False, True)]
    assert shell.subscription.stopped
    assert shell.takeover.stopped
    assert not shell.role.ready.is_set()


async def test_an_end_in_the_middle_of_a_takeover_leaves_nothing_behind(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.takeover.gate.clear()
    await shell.assigned(0)
    stop = asyncio.Event()
    stop.set()
    await run(shell, monkeypatch, stop)
    shell.takeover.gate.set()
    await until_idle()
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [(False, True)]
    assert not shell.role._assignment.owned
    assert not shell.subscription.failures
    assert shell.commits == []
