"""The first of several works decides, and the others have ended."""

import asyncio

import pytest

from consumers.runtime.process import finish_unless, first_of, pause_unless
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
