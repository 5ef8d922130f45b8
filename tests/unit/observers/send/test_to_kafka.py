"""Events to a topic: what the broker or the client refuses is lost alone, and everything else
arrives.
"""

import asyncio
import logging
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, NotEnoughReplicasError, RecordListTooLargeError
from callgauge_send import to_kafka as module
from callgauge_send.events import Rank
from callgauge_send.outbox import EventOutbox
from callgauge_send.sender import Settled
from callgauge_send.to_kafka import ToKafka

LOG = logging.getLogger("callgauge")
MOST_OF_A_BATCH = 5
KEYS = {b"c": 0, b"d": 1}
"""The partition of each of two calls, by the rule of Java's client."""


class Batch:
    """Stands for the client's: so many records at most."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.is_closed = False

    def append(
        self, *, timestamp: None, key: bytes, value: bytes, headers: list[tuple[str, bytes]]
    ) -> object:
        assert (timestamp, self.is_closed) == (None, False)
        assert key in KEYS
        assert all(isinstance(each, bytes) for _, each in headers)
        if len(self.values) == MOST_OF_A_BATCH:
            return None
        self.values.append(value)
        return object()

    def close(self) -> None:
        self.is_closed = True

    def record_count(self) -> int:
        return len(self.values)


class Broker:
    """Stands for the client: it says one thing of a batch, and of one that is not
    closed nothing.
    """

    def __init__(self) -> None:
        self.written: dict[int, list[bytes]] = {0: [], 1: []}
        self.too_large = b"-"
        self.fails_once = b"-"
        self.is_away = False

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def partitions_for(self, _topic: str) -> set[int]:
        if self.is_away:
            raise KafkaConnectionError("away")
        return set(self.written)

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, _topic: str, *, partition: int) -> Any:
        assert batch.is_closed
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0, self._answer, batch, partition, answer)
        return answer

    def _answer(self, batch: Batch, partition: int, answer: "asyncio.Future[None]") -> None:
        if any(self.too_large in value for value in batch.values):
            answer.set_exception(RecordListTooLargeError("the broker"))
        elif self.fails_once in batch.values:
            self.fails_once = b"-"
            answer.set_exception(NotEnoughReplicasError("the broker"))
        else:
            self.written[partition] += batch.values
            answer.set_result(None)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(module, "AIOKafkaProducer", lambda **_: made)
    return made


async def sent(*boxes: EventOutbox) -> tuple[BaseException | None, int]:
    """The failure of one round, and how many of its records are left."""
    way = ToKafka("t", {}, LOG)
    await way.open()
    settled: Settled = set()
    taken = {box: box.next_records(100) for box in boxes}
    try:
        failure = await way.send(taken, settled)
    finally:
        for box, records in taken.items():
            box.settle([record for record in records if (box, record.sequence) not in settled])
        await way.close()
    return failure, sum(map(len, boxes))


def box_of(*values: bytes, call: str = "c") -> EventOutbox:
    box = EventOutbox(call, "s")
    for value in values:
        box.put(Rank.SPEECH, "speech_event", value)
    return box


NUMBERS = [b"%d" % number for number in range(12)]


async def test_records_that_are_too_large_are_lost_alone_and_in_order_and_said_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.too_large = b"odd"
    box = box_of(*NUMBERS[:8], b"odd", *NUMBERS[8:], b"odd too")
    assert await sent(box, box_of(b"other", call="d")) == (None, 0)
    assert broker.written == {KEYS[b"c"]: NUMBERS, KEYS[b"d"]: [b"other"]}
    assert box.lost == {"speech": 2}
    (said,) = [record.message for record in caplog.records]
    assert "does not take an event" in said


async def test_no_record_is_written_before_one_that_failed(broker: Broker) -> None:
    broker.fails_once = NUMBERS[1]
    boxes = box_of(*NUMBERS), box_of(b"other", call="d")
    failure, left = await sent(*boxes)
    assert (type(failure), left) == (NotEnoughReplicasError, len(NUMBERS))
    assert broker.written == {KEYS[b"c"]: [], KEYS[b"d"]: [b"other"]}
    assert await sent(*boxes) == (None, 0)
    assert broker.written[KEYS[b"c"]] == NUMBERS


async def test_names_that_are_no_utf_8_block_nothing(broker: Broker) -> None:
    box = EventOutbox("c", "half a pair \ud800")
    box.put(Rank.SPEECH, "half a pair \udfff", b"1")
    assert await sent(box) == (None, 0)
    assert broker.written[KEYS[b"c"]] == [b"1"]


async def test_records_wait_for_a_broker_that_is_away(broker: Broker) -> None:
    broker.is_away = True
    box = box_of(b"1", b"2")
    with pytest.raises(KafkaConnectionError):
        await sent(box)
    assert (len(box), box.lost) == (2, {})
    broker.is_away = False
    assert await sent(box) == (None, 0)
    assert broker.written[KEYS[b"c"]] == [b"1", b"2"]
