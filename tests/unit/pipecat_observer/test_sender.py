"""The way to Kafka: shared by the calls of a loop, never waited for longer than two seconds, and no fault of it reaches the bot."""

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pipecat.frames.frames import BotStartedSpeakingFrame, BotStoppedSpeakingFrame, EndFrame, UserStartedSpeakingFrame
from pipecat_callgauge import CallgaugeObserver
from pipecat_callgauge import sender as module
from pipecat_callgauge.events import Rank
from pipecat_callgauge.outbox import UNREAD, Outbox
from pipecat_callgauge.sender import FLUSH_SECONDS, Sender

from tests.support.patience import patient
from tests.unit.pipecat_observer.frames_in import Observed


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which no server answers."""
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def observed(bootstrap: str) -> Observed:
    seen = Observed()
    seen.observer = CallgaugeObserver(conversation_id="c", bootstrap_servers=bootstrap)
    return seen


async def stop(sender: Sender) -> None:
    """Ends the task, as the end of the process would."""
    assert sender._task is not None
    sender._task.cancel()
    await asyncio.wait({sender._task})


async def test_the_end_of_a_call_waits_two_seconds_for_a_broker_that_is_away(nobody: str) -> None:
    seen = observed(nobody)
    begin = time.monotonic()
    await seen.push(EndFrame())
    assert time.monotonic() - begin < patient(0.5)
    await seen.observer.cleanup()
    assert FLUSH_SECONDS - 0.1 < time.monotonic() - begin < FLUSH_SECONDS + patient(1.0)
    assert len(seen.observer._outbox) == 2  # the start and the end, which would still be sent
    assert seen.observer._sender is not None
    await stop(seen.observer._sender)


async def test_calls_of_a_loop_share_one_sender_and_each_loop_has_its_own(nobody: str) -> None:
    options = {"bootstrap_servers": nobody}
    ours = Sender.shared("t", options)
    assert Sender.shared("t", dict(options)) is ours
    assert Sender.shared("another", options) is not ours

    async def elsewhere() -> Sender:
        return Sender.shared("t", options)

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) is not ours


async def test_ended_calls_keep_a_bounded_number_of_events(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED_EVENTS", 5)
    sender = Sender("t", {"bootstrap_servers": nobody})
    boxes = [Outbox(f"c{number}", "s") for number in range(3)]
    for box in boxes:
        sender.begin(box)
        for _ in range(3):
            box.put(Rank.SPEECH, "speech_event", b"{}")
        await sender.end(box, 0.01)
    sender._has_work()
    assert [len(box) for box in boxes] == [0, 0, 3]  # the oldest calls gave way, with the count of their events
    assert [box.lost["speech"] for box in boxes] == [3, 3, 0]
    await stop(sender)


async def test_arguments_that_the_client_refuses_end_nothing(nobody: str) -> None:
    seen = Observed()
    seen.observer = CallgaugeObserver(bootstrap_servers=nobody, kafka={"acks": "some"})
    await seen.push(EndFrame())
    await asyncio.sleep(0)
    sender = seen.observer._sender
    assert sender is not None
    await asyncio.wait_for(_failed(sender), patient(2))
    assert sender._task is not None
    await stop(sender)


async def _failed(sender: Sender) -> None:
    while not sender._failures:  # noqa: ASYNC110 - a count, which signals nothing
        await asyncio.sleep(0.01)


class Rounds(Sender):
    """A sender whose broker takes everything at once; `sizes` are the records of each round."""

    def __init__(self) -> None:
        super().__init__("t", {})
        self.sizes: list[int] = []

    async def _send_some(self) -> None:
        boxes = list(self._open)
        self.sizes.append(sum(len(box.take(1_000)) for box in boxes))
        for box in boxes:
            box.settle([])


async def test_events_of_many_calls_gather_for_one_round() -> None:
    sender, boxes = Rounds(), [Outbox(f"c{number}", "s") for number in range(20)]
    for box in boxes:
        sender.begin(box)
    for _ in range(3):
        for box in boxes:
            box.put(Rank.SPEECH, "speech_event", b"{}")
            sender.wake()
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*(box.is_empty.wait() for box in boxes)), patient(5))
    assert sender.sizes == [60]
    await stop(sender)


async def test_where_a_round_is_full_nothing_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 3_600.0)
    sender, box = Rounds(), Outbox("c", "s")
    sender.begin(box)
    for _ in range(module.MAX_SENT_TOGETHER):
        box.put(Rank.SPEECH, "speech_event", b"{}")
    sender.wake()
    await asyncio.wait_for(box.is_empty.wait(), patient(5))
    assert sender.sizes == [module.MAX_SENT_TOGETHER]
    await stop(sender)


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
