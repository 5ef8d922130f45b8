"""The first of several works decides, and the others have ended."""

import asyncio
import time

import pytest

from consumers.runtime import process
from consumers.runtime.process import (
    StuckTaskError,
    end_tasks,
    finish_unless,
    first_of,
    in_time,
    pause_unless,
    watch_loop,
)
from tests.support.patience import patient


async def give(result: str) -> str:
    return result


async def wait_for_ever(ended: list[str]) -> str:
    try:
        return str(await asyncio.Event().wait())
    finally:
        ended.append("cancelled")


async def fail() -> str:
    raise ZeroDivisionError


async def test_the_first_work_decides_and_the_others_have_ended() -> None:
    ended: list[str] = []
    assert await first_of(wait_for_ever(ended), give("done")) == "done"
    assert ended == ["cancelled"]


async def test_a_failure_is_never_lost_behind_a_success() -> None:
    ended: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await first_of(give("done"), fail(), wait_for_ever(ended))
    assert ended == ["cancelled"]


async def test_cancelling_the_whole_ends_every_work() -> None:
    ended: list[str] = []
    whole = asyncio.create_task(first_of(wait_for_ever(ended), wait_for_ever(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert ended == ["cancelled", "cancelled"]


async def test_work_ends_when_stopping_is_asked_for() -> None:
    ended: list[str] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    assert await finish_unless(stop, wait_for_ever(ended)) is None
    assert ended == ["cancelled"]
    assert await finish_unless(asyncio.Event(), give("done")) == "done"


async def test_stopping_waits_for_no_pause() -> None:
    stop = asyncio.Event()
    pausing = asyncio.create_task(pause_unless(stop, 3_600))
    stop.set()
    await asyncio.wait_for(pausing, patient(10))
    await pause_unless(asyncio.Event(), 0.001)


# Tasks that are cancelled, and waits with a bound.


async def test_tasks_that_are_ended_have_ended_and_keep_their_errors() -> None:
    ended: list[str] = []
    tasks = [asyncio.create_task(each) for each in (wait_for_ever(ended), fail(), give("done"))]
    await asyncio.sleep(0)
    await end_tasks(tasks)
    assert ended == ["cancelled"]
    assert isinstance(tasks[1].exception(), ZeroDivisionError)
    assert tasks[2].result() == "done"


async def lose_cancels(most: int, may_end: asyncio.Event) -> None:
    """Goes on after so many cancels, as a task does whose library loses one."""
    lost = 0
    while not may_end.is_set():
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            lost += 1
            if lost > most:
                raise


async def test_a_task_that_loses_one_cancel_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CANCEL_EVERY_SECONDS", 0.0)
    task = asyncio.create_task(lose_cancels(3, asyncio.Event()))
    await asyncio.sleep(0)
    await end_tasks([task], patient(30))
    assert task.cancelled()


async def test_a_task_that_never_ends_is_named_after_the_bound() -> None:
    may_end = asyncio.Event()
    task = asyncio.create_task(lose_cancels(10**9, may_end), name="writer")
    await asyncio.sleep(0)
    with pytest.raises(StuckTaskError, match="cancelled 0 s ago and still going on: writer"):
        await end_tasks([task], 0.01)
    may_end.set()
    await task


async def test_the_first_of_several_works_does_not_wait_for_one_that_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 0.01)
    may_end = asyncio.Event()
    with pytest.raises(StuckTaskError):
        await first_of(asyncio.sleep(0), lose_cancels(10**9, may_end))
    may_end.set()


async def test_work_in_time_has_its_result_or_its_error() -> None:
    assert await in_time(patient(30), give("done")) == "done"
    with pytest.raises(ZeroDivisionError):
        await in_time(patient(30), fail())


async def test_nobody_waits_for_work_that_is_late_even_if_it_ignores_its_cancellation() -> None:
    may_end = asyncio.Event()
    with pytest.raises(TimeoutError, match=r"no end after 0\.0 s"):
        await in_time(0.0, lose_cancels(10**9, may_end))
    assert len(process._left_behind) == 1
    may_end.set()
    while process._left_behind:  # noqa: ASYNC110  # tasks end in a turn of the loop or two
        await asyncio.sleep(0)


async def test_the_loop_is_as_late_as_a_step_holds_it() -> None:
    late: list[float] = []
    watching = asyncio.create_task(watch_loop(late.append))
    while not late:  # noqa: ASYNC110  # until it has looked once
        await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251  # holds the loop, on purpose
    seen = len(late)
    while len(late) == seen:  # noqa: ASYNC110  # until it has looked again
        await asyncio.sleep(0)
    assert late[seen] >= 0.1
    assert min(late) >= 0
    await end_tasks([watching])
