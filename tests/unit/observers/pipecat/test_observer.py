"""The observer and its way to callgauge: never waited for longer than two seconds, and no fault of
it reaches the bot.
"""

import asyncio
from typing import Any

import pytest
from callgauge_send.outbox import UNREAD
from callgauge_send.sender import FLUSH_SECONDS, Sender
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    UserStartedSpeakingFrame,
)
from pipecat_callgauge import CallgaugeObserver

from tests.support.jumping_loop import JumpingLoop
from tests.support.patience import patient
from tests.unit.observers.nobody import stop
from tests.unit.observers.pipecat.frames_in import Observed


def observed(bootstrap: str) -> Observed:
    seen = Observed()
    seen.observer = CallgaugeObserver(conversation_id="c", bootstrap_servers=bootstrap)
    return seen


def test_the_end_of_a_call_waits_two_seconds_for_a_broker_that_is_away(nobody: str) -> None:
    loop = JumpingLoop()

    async def ended() -> None:
        seen = observed(nobody)
        await seen.push(EndFrame())
        assert loop.time() < 0.01, "a frame waits for nothing"
        await seen.observer.cleanup()
        assert loop.time() == pytest.approx(FLUSH_SECONDS, abs=0.1)
        # the start and the end, which would still be sent
        assert len(seen.observer._call.outbox) == 2
        await stop(seen.observer._call.sender)

    loop.finish(ended())


async def test_arguments_that_the_client_refuses_end_nothing(nobody: str) -> None:
    seen = Observed()
    seen.observer = CallgaugeObserver(bootstrap_servers=nobody, kafka={"acks": "some"})
    await seen.push(EndFrame())
    await asyncio.sleep(0)
    sender = seen.observer._call.sender
    assert sender is not None
    await asyncio.wait_for(_failed(sender), patient(2))
    assert sender._task is not None
    await stop(sender)


async def _failed(sender: Sender) -> None:
    while not sender._failures:  # noqa: ASYNC110 - a count, which signals nothing
        await asyncio.sleep(0.01)


async def test_a_sink_that_raises_ends_nothing_and_is_counted() -> None:
    taken: list[str] = []

    def sink(event: dict[str, Any]) -> None:
        if event["data" if "data" in event else "type"] and len(taken) in (1, 2):
            taken.append("refused")
            raise ConnectionError("the disk is full")
        taken.append(event["type"])

    seen = Observed()
    seen.observer._call._sink = sink
    for _ in range(3):
        await seen.push(BotStartedSpeakingFrame(), BotStoppedSpeakingFrame())
    await seen.observer.cleanup()
    assert (taken[-1], taken.count("refused")) == ("call_ended", 2)
    assert seen.observer.lost == {UNREAD: 2}


async def test_a_frame_that_cannot_be_read_does_not_hide_the_next() -> None:
    class Broken(BotStartedSpeakingFrame):
        pass

    seen = Observed()
    # the table keeps the method
    seen.observer._reader.bot_stopped = None  # type: ignore[assignment,method-assign]
    frame: Any = UserStartedSpeakingFrame()
    del seen.observer._reader._began_s
    await seen.push(Broken(), frame)
    seen.observer._reader._began_s = {}
    await seen.push(UserStartedSpeakingFrame())
    assert seen.moments == ["user_turn_started"]
    assert seen.observer.lost == {UNREAD: 2}


def test_one_observer_is_one_call() -> None:
    sources = {CallgaugeObserver(conversation_id="same")._call.outbox.source for _ in range(3)}
    # a bot that begins again counts its events from 1: they are no repeats
    assert len(sources) == 3
