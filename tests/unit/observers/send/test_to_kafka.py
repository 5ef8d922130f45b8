"""Events to a topic: what the broker or the client refuses is lost alone, and everything else arrives."""

import asyncio
import logging
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError, RecordListTooLargeError
from callgauge_send import to_kafka as module
from callgauge_send.events import Rank
from callgauge_send.outbox import Outbox
from callgauge_send.sender import Settled
from callgauge_send.to_kafka import ToKafka

LOG = logging.getLogger("callgauge")
MOST_OF_A_BATCH = 5


class Broker:
    """Stands for the client: records that are handed over without a pause are one batch, of which it says one thing."""

    def __init__(self, **_: Any) -> None:
        self.written: list[bytes] = []
        self.batches: list[list[tuple[bytes, asyncio.Future[None]]]] = []
        self.too_large_for_the_client = self.too_large = b"-"
        self.is_away = False

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def send(self, _topic: str, value: bytes, *, key: bytes, headers: list[tuple[str, bytes]]) -> Any:
        assert key == b"c"
        assert all(isinstance(each, bytes) for _, each in headers)
        if self.too_large_for_the_client in value:
            raise MessageSizeTooLargeError("the client")
        if self.is_away:
            raise KafkaConnectionError("away")
        loop = asyncio.get_running_loop()
        if not self.batches:
            loop.call_later(0, self._answer)
        answer = loop.create_future()
        self.batches = self.batches or [[]]
        if len(self.batches[-1]) == MOST_OF_A_BATCH:
            self.batches.append([])
        self.batches[-1].append((value, answer))
        return answer

    def _answer(self) -> None:
        batches, self.batches = self.batches, []
        for batch in batches:
            is_refused = any(self.too_large in value for value, _ in batch)
            for value, answer in batch:
                if is_refused:
                    answer.set_exception(RecordListTooLargeError("the broker"))
                else:
                    self.written.append(value)
                    answer.set_result(None)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(module, "AIOKafkaProducer", lambda **_: made)
    return made


async def sent(box: Outbox) -> tuple[BaseException | None, int]:
    """The failure of one round, and how many of its records are left."""
    way = ToKafka("t", {}, LOG)
    await way.open()
    settled: Settled = set()
    taken = box.take(100)
    failure = await way.send({box: taken}, settled)
    box.settle([record for record in taken if (box, record.sequence) not in settled])
    await way.close()
    return failure, len(box)


def box_of(*values: bytes) -> Outbox:
    box = Outbox("c", "s")
    for value in values:
        box.put(Rank.SPEECH, "speech_event", value)
    return box


@pytest.mark.parametrize("whose", ["too_large", "too_large_for_the_client"])
async def test_a_record_that_is_too_large_is_lost_alone_and_said_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    setattr(broker, whose, b"odd")
    box = box_of(*[b"%d" % number for number in range(8)], b"odd", b"last", b"odd too")
    assert await sent(box) == (None, 0)
    assert sorted(broker.written) == sorted([*[b"%d" % number for number in range(8)], b"last"])
    assert box.lost == {"speech": 2}
    (said,) = [record.message for record in caplog.records]
    assert "does not take an event" in said


async def test_names_that_are_no_utf_8_block_nothing(broker: Broker) -> None:
    box = Outbox("c", "half a pair \ud800")
    box.put(Rank.SPEECH, "half a pair \udfff", b"1")
    assert await sent(box) == (None, 0)
    assert broker.written == [b"1"]


async def test_records_wait_for_a_broker_that_is_away(broker: Broker) -> None:
    broker.is_away = True
    box = box_of(b"1", b"2")
    failure, left = await sent(box)
    assert (type(failure), left, box.lost) == (KafkaConnectionError, 2, {})
    broker.is_away = False
    assert await sent(box) == (None, 0)
    assert broker.written == [b"1", b"2"]
