"""Nothing that fails in the observer ends it, or reaches the bot."""

from typing import Any

from pipecat.frames.frames import BotStartedSpeakingFrame, BotStoppedSpeakingFrame, UserStartedSpeakingFrame
from pipecat_callgauge import CallgaugeObserver
from pipecat_callgauge.outbox import UNREAD

from tests.unit.pipecat_observer.frames_in import Observed


async def test_a_sink_that_raises_ends_nothing_and_is_counted() -> None:
    taken: list[str] = []

    def sink(event: dict[str, Any]) -> None:
        if event["data" if "data" in event else "type"] and len(taken) in (1, 2):
            taken.append("refused")
            raise ConnectionError("the disk is full")
        taken.append(event["type"])

    seen = Observed()
    seen.observer._sink = sink
    for _ in range(3):
        await seen.push(BotStartedSpeakingFrame(), BotStoppedSpeakingFrame())
    await seen.observer.cleanup()
    assert taken[-1] == "call_ended"
    assert taken.count("refused") == 2
    assert seen.observer.lost == {UNREAD: 2}


async def test_a_frame_that_cannot_be_read_does_not_hide_the_next() -> None:
    class Broken(BotStartedSpeakingFrame):
        pass

    seen = Observed()
    seen.observer._reader.bot_stopped = None  # type: ignore[assignment,method-assign]  # the table keeps the method
    frame: Any = UserStartedSpeakingFrame()
    del seen.observer._reader._began_s
    await seen.push(Broken(), frame)
    seen.observer._reader._began_s = {}
    await seen.push(UserStartedSpeakingFrame())
    assert seen.moments == ["user_turn_started"]
    assert seen.observer.lost == {UNREAD: 2}


def test_one_observer_is_one_call() -> None:
    sources = {CallgaugeObserver(conversation_id="same")._outbox.source for _ in range(3)}
    assert len(sources) == 3  # a bot that begins again counts its events from 1: they are no repeats
