"""The load goes on when partitions are added at any moment: nothing is lost, and no call goes where
no broker takes it.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.chaos.load import load as loads
from tests.chaos.load.load import Load, partition_of

FEW, MANY = 2, 6
SOURCES = ("pipecat", "elevenlabs", "audit", "judge")
UNKNOWN = KafkaError(KafkaError._UNKNOWN_PARTITION)


class Broker:
    """A client whose brokers get more partitions, and which hears of it late.

    Attributes:
        known: Partitions that the client knows.
        sent: Topic, key and partition of the records that were taken.
        is_away: Whether no broker answers.
        unacknowledged: Records that were sent and are not acknowledged.
        clients: Clients that were made.
    """

    def __init__(self) -> None:
        self.known = FEW
        self.sent: list[tuple[str, bytes, int]] = []
        self.is_away = False
        self.forgets = 0
        self.unacknowledged = 0
        self.clients = 0
        self._unsent: list[Any] = []

    def client(self) -> Any:
        self.clients += 1
        return self

    def __len__(self) -> int:
        return self.unacknowledged

    def list_topics(self, _topic: str | None = None, timeout: float = -1) -> Any:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        partitions = dict.fromkeys(range(self.known))
        names = ("pipecat.events", "elevenlabs.events", "audit.events", "judge.verdicts", "scores")
        return SimpleNamespace(
            topics={name: SimpleNamespace(partitions=partitions) for name in names}
        )

    def produce(
        self, topic: str, value: bytes, key: bytes, partition: int, *, on_delivery: Any
    ) -> None:
        if partition >= self.known:
            self.known += 1  # it asks meanwhile
            raise KafkaException(UNKNOWN)
        if self.forgets:
            self.forgets -= 1
            message = SimpleNamespace(
                topic=lambda: topic,
                value=lambda: value,
                key=lambda: key,
                partition=lambda: partition,
            )
            self._unsent.append(lambda: on_delivery(UNKNOWN, message))
            return
        self.sent.append((topic, key, partition))

    def poll(self, _seconds: float) -> None:
        unsent, self._unsent = self._unsent, []
        for each in unsent:
            each()

    def flush(self, _seconds: float) -> int:
        self.poll(0)
        return 0


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def load(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setattr(loads, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(loads, "POOL_CALLS", 3)
    load = Load(
        broker.client,
        "nobody:1",
        "",
        partitions=dict.fromkeys((*SOURCES, "scores"), FEW),
        lines=20,
        ramp_seconds=0,
        seed=1,
        rate=1,
        poison=(),
        has_silences=False,
    )
    for _ in range(3):
        load.step()
    assert load.report.calls
    return load


def partitions_in_use(load: Load) -> set[int]:
    return {
        line.partitions[source]
        for line in load._lines
        if line.call is not None
        for source in SOURCES
    }


def test_calls_go_on_where_they_are_until_the_client_knows_the_new_partitions(
    load: Load, broker: Broker
) -> None:
    for source in SOURCES:
        load.use_partitions(source, MANY)
    broker.is_away = True
    load.step()
    broker.is_away = False
    load.step()
    assert partitions_in_use(load) <= set(range(FEW))
    broker.known = MANY
    load.step()
    assert max(partitions_in_use(load)) >= FEW
    for line in load._lines:
        if line.call is not None:
            assert all(
                line.partitions[source] == partition_of(source, line.name, MANY)
                for source in SOURCES
            )
            assert line.partitions["scores"] < FEW, "outputs have as many as before"


def test_one_input_has_another_hash() -> None:
    places = [
        [partition_of(source, b"call-%d" % n, MANY) for n in range(50)]
        for source in ("pipecat", "audit")
    ]
    assert places[0] != places[1]


def test_what_is_for_an_input_that_pauses_comes_when_it_goes_on(load: Load, broker: Broker) -> None:
    broker.unacknowledged = 1
    load.pause("audit")
    load.step()
    assert load.report.paused == []
    broker.unacknowledged = 0
    load._by_hand.submit(lambda: None).result()  # what is sent by hand has its turn
    load.step()
    assert load.report.paused == ["audit"]
    load._send("audit", b"{}", b"held", 0)
    load._send("pipecat", b"{}", b"not held", 0)
    assert ("pipecat.events", b"not held", 0) in broker.sent
    assert not [each for each in broker.sent if each[1] == b"held"]
    for source in ("audit", "pipecat"):
        load.use_partitions(source, MANY)
    broker.known = MANY
    load.step()
    load.resume("audit")
    assert load.report.paused == []
    assert ("audit.events", b"held", partition_of("audit", b"held", MANY)) in broker.sent


def test_an_input_that_paused_has_a_new_client(load: Load, broker: Broker) -> None:
    load.pause("audit")
    load._by_hand.submit(lambda: None).result()
    load.step()
    before = broker.clients
    load.resume("audit")
    assert broker.clients == before + 1, "its topic may be another one now"


def test_an_input_of_which_something_is_on_its_way_keeps_its_client(
    load: Load, broker: Broker
) -> None:
    broker.unacknowledged = 1
    load.pause("audit")
    load.step()
    before = broker.clients
    load.resume("audit")
    assert broker.clients == before


def test_other_inputs_go_on_while_one_cannot_pause(load: Load, broker: Broker) -> None:
    broker.unacknowledged = 1
    load.pause("audit")
    events = load.report.events
    load._send("pipecat", b"{}", b"other", 0)
    load.step()
    assert ("pipecat.events", b"other", 0) in broker.sent
    assert load.report.events > events


def test_a_record_for_a_partition_that_the_client_does_not_know_is_sent_when_it_does(
    load: Load, broker: Broker
) -> None:
    load._send("audit", b"{}", b"late", MANY - 1)
    assert broker.sent[-1] == ("audit.events", b"late", MANY - 1)


def test_a_record_that_was_taken_and_then_refused_for_that_is_sent_again(
    load: Load, broker: Broker
) -> None:
    broker.forgets = 1
    load._send("audit", b"{}", b"late", 1)
    assert ("audit.events", b"late", 1) not in broker.sent
    load.step()
    load.step()
    assert ("audit.events", b"late", 1) in broker.sent
    broker.forgets = 1
    load._send("audit", b"{}", b"last", 1)
    load.end()
    assert ("audit.events", b"last", 1) in broker.sent
    assert load.report.failed == 0


def test_another_error_is_not_hidden(load: Load) -> None:
    message: Any = SimpleNamespace()
    load._failed(KafkaError(KafkaError._MSG_TIMED_OUT), message)
    assert load.report.failed == 1
