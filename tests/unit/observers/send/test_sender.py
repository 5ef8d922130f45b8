"""The sender: shared by the calls of a loop, in full rounds, bounded, and again after every
failure.
"""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from callgauge_send import sender as module
from callgauge_send.events import Rank, Record
from callgauge_send.outbox import EventOutbox
from callgauge_send.sender import LaterError, Sender, Settled, Taken
from callgauge_send.to_kafka import ToKafka

from tests.support.patience import patient
from tests.unit.observers.nobody import stop

LOG = logging.getLogger("callgauge")


class Rounds:
    """A way on which everything arrives at once, after so many failures; `sizes` are the records of
    each round.
    """

    key = "rounds"
    place = "nowhere"
    remedy = "Check nothing."

    def __init__(self, *failures: Exception) -> None:
        self.sizes: list[int] = []
        self.records: list[Record] = []
        self.closed = 0
        self._failures = list(failures)

    async def open(self) -> None:
        pass

    async def send(self, taken: Taken, settled: Settled) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.sizes.append(sum(map(len, taken.values())))
        for outbox, records in taken.items():
            self.records += records
            settled.update((outbox, record.sequence) for record in records)

    async def close(self) -> None:
        self.closed += 1


def filled(sender: Sender, calls: int, events: int) -> list[EventOutbox]:
    boxes = [EventOutbox(f"c{number}", "s") for number in range(calls)]
    for box in boxes:
        sender.begin(box)
    for _ in range(events):
        for box in boxes:
            box.put(Rank.SPEECH, "speech_event", b"{}")
    sender.wake()
    return boxes


async def emptied(boxes: Sequence[EventOutbox]) -> None:
    await asyncio.wait_for(asyncio.gather(*(box.is_empty.wait() for box in boxes)), patient(5))


async def test_calls_of_a_loop_share_one_sender_and_each_loop_has_its_own(nobody: str) -> None:
    def way(topic: str) -> ToKafka:
        return ToKafka(topic, {"bootstrap_servers": nobody}, LOG)

    ours = Sender.shared(way("t"), LOG)
    assert Sender.shared(way("t"), LOG) is ours
    assert Sender.shared(way("another"), LOG) is not ours

    async def elsewhere() -> Sender:
        return Sender.shared(way("t"), LOG)

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) is not ours


async def test_ended_calls_keep_a_bounded_number_of_events(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ENDED_EVENTS", 5)
    sender = Sender(ToKafka("t", {"bootstrap_servers": nobody}, LOG), LOG)
    boxes = [EventOutbox(f"c{number}", "s") for number in range(3)]
    for box in boxes:
        sender.begin(box)
        for _ in range(3):
            box.put(Rank.SPEECH, "speech_event", b"{}")
        await sender.end(box, 0.01)
    sender._has_work()
    # the oldest calls gave way, with the count of their events
    assert [len(box) for box in boxes] == [0, 0, 3]
    assert [box.lost["speech"] for box in boxes] == [3, 3, 0]
    await stop(sender)


async def test_events_of_many_calls_gather_for_one_round() -> None:
    way = Rounds()
    sender = Sender(way, LOG)
    boxes = [EventOutbox(f"c{number}", "s") for number in range(20)]
    for box in boxes:
        sender.begin(box)
    for _ in range(3):
        for box in boxes:
            box.put(Rank.SPEECH, "speech_event", b"{}")
            sender.wake()
        await asyncio.sleep(0)
    await emptied(boxes)
    assert way.sizes == [60]
    await stop(sender)


async def test_where_a_round_is_full_nothing_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 3_600.0)
    way = Rounds()
    sender = Sender(way, LOG)
    await emptied(filled(sender, calls=10, events=module.MAX_SENT_TOGETHER // 10))
    assert way.sizes == [module.MAX_SENT_TOGETHER]
    await stop(sender)


async def test_a_backlog_goes_in_larger_rounds_to_which_one_call_contributes_a_part() -> None:
    way = Rounds()
    sender = Sender(way, LOG)
    boxes = filled(sender, calls=40, events=100)
    await emptied(boxes)
    assert way.sizes == [module.MAX_SENT_WHEN_BEHIND] * 2
    assert [record.sequence for record in way.records[: 2 * module.MAX_OF_ONE_CALL]] == [
        *range(1, 51)
    ] * 2
    await stop(sender)


async def test_failures_are_said_once_and_the_same_events_go_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "callgauge")
    way = Rounds(ConnectionError("gone"), ConnectionError("gone"))
    sender = Sender(way, LOG)
    await emptied(filled(sender, calls=1, events=3))
    assert [record.sequence for record in way.records] == [1, 2, 3]
    first, last = [record.message for record in caplog.records]
    assert "cannot be sent to nowhere (ConnectionError: gone)" in first
    assert "Check nothing." in first
    assert "are sent to nowhere again" in last
    await stop(sender)


async def test_a_pause_that_the_other_side_asks_for_is_kept_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    way = Rounds(LaterError("busy", 3.0), LaterError("busy", 1e9), LaterError("busy", 0.0))
    sender = Sender(way, LOG)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await emptied(filled(sender, calls=1, events=1))
    monkeypatch.undo()
    assert [pause for pause in pauses if pause != module.GATHER_SECONDS] == [
        3.0,
        module.LONGEST_WISH_SECONDS,
        0.8,
    ]
    await stop(sender)


async def test_a_bounded_number_of_ended_calls_waits(
    nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_ENDED_CALLS", 3)
    sender = Sender(ToKafka("t", {"bootstrap_servers": nobody}, LOG), LOG)
    boxes = filled(sender, calls=5, events=1)
    for box in boxes:
        await sender.end(box, 0.01)
    sender._has_work()
    assert list(sender._ended) == boxes[2:]
    assert [record.message for record in caplog.records if "ended calls wait" in record.message]
    await stop(sender)
