"""Leaders of replicated inputs are asked where their logs end; their answers, or the lack of one, are kept unchanged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, TopicAuthorizationFailedError
from structlog.testing import capture_logs

from consumers.runtime.kafka import log_ends
from consumers.runtime.kafka.connection import KafkaSettings, TopicsRequest
from consumers.runtime.kafka.log_ends import SILENT_REPLICA_MS, LogEnd, LogEnds
from tests.support.fakes.evaluator_fakes import NOW_MS, until_idle
from tests.support.patience import patient

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LIST_OFFSETS = 2  # the number of that request
FENCED_LEADER_EPOCH = 74  # aiokafka does not know this error
UNKNOWN_LEADER_EPOCH = 75  # nor this one


class Answer:
    """An answer as the library decodes it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def to_object(self) -> dict[str, Any]:
        return self._content


class Connection:
    """A connection to one broker of the cluster."""

    def __init__(self, cluster: "Cluster", node: int) -> None:
        self._cluster = cluster
        self._node = node
        self.is_open = True

    def connected(self) -> bool:
        return self.is_open

    async def send(self, request: Any) -> Answer:
        assert self.is_open
        if isinstance(request, TopicsRequest):
            if self._node in self._cluster.down:
                raise KafkaConnectionError
            return self._cluster.metadata(self._node)
        question = request.prepare({LIST_OFFSETS: self._cluster.list_offsets}).to_object()
        return await self._cluster.log_ends(self._node, question)

    def close(self) -> "asyncio.Future[None]":
        self.is_open = False
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        closed.set_result(None)
        return closed


class Cluster:
    """Brokers 1 to 3, which lead inputs `a` and `b` of one partition number; their clock shows how often they were asked."""

    def __init__(self) -> None:
        self.leaders = {A: (1, 5), B: (2, 7)}  # with their epochs
        self.replicas = {A: 3, B: 3}
        self.in_sync = {A: {1, 2, 3}, B: {1, 2, 3}}
        self.views: dict[int, dict[TopicPartition, tuple[int, int]]] = {}  # of brokers that are cut off from the others
        self.ends = {A: 10, B: 20}
        self.errors: dict[TopicPartition, int] = {}
        self.down: set[int] = set()
        self.ports = {node: 9000 + node for node in (1, 2, 3)}
        self.list_offsets = (1, 11)
        self.tells_epochs = True
        self.connections: list[tuple[int, Connection]] = []
        self.lookups = 0
        self.asked: list[tuple[int, dict[TopicPartition, int]]] = []
        self.asked_at_ms: list[tuple[int, int]] = []
        self.may_answer = {node: asyncio.Event() for node in self.ports}
        for gate in self.may_answer.values():
            gate.set()
        self.clock_ms = NOW_MS

    async def connection(self, role: str, host: str, port: int, answer_ms: int) -> Connection:
        (node,) = [node for node, known in self.ports.items() if known == port]
        assert (role, host) == ("evaluator", f"host{node}")
        assert answer_ms <= 10_000, "a dead leader must be noticed"
        if node in self.down:
            raise ConnectionRefusedError("nobody there")
        self.connections.append((node, Connection(self, node)))
        return self.connections[-1][1]

    @asynccontextmanager
    async def first_contact(self, _: str) -> AsyncIterator[Connection]:
        yield Connection(self, 3)

    def metadata(self, node: int) -> Answer:
        self.lookups += 1
        topics = []
        for tp, (leader, epoch) in self.views.get(node, self.leaders).items():
            in_sync = [1, 2, 3] if node in self.views else sorted(self.in_sync[tp])
            replicas = [1, 2, 3][: self.replicas[tp]]
            partition: dict[str, Any] = {"partition": 0, "leader": leader, "replicas": replicas, "isr": in_sync}
            if self.tells_epochs:
                partition["leader_epoch"] = epoch
            topics.append({"topic": tp.topic, "partitions": [partition]})
        brokers = [{"node_id": node, "host": f"host{node}", "port": port} for node, port in self.ports.items()]
        return Answer({"brokers": brokers, "topics": topics})

    async def log_ends(self, node: int, question: dict[str, Any]) -> Answer:
        assert question["replica_id"] == -2
        epochs: dict[TopicPartition, int] = {}
        answers = []
        for topic in question["topics"]:
            (of_topic,) = topic["partitions"]
            tp = TopicPartition(topic["topic"], of_topic["partition"])
            assert of_topic["timestamp"] == -1
            epochs[tp] = of_topic["current_leader_epoch"]
            leader, epoch = self.views.get(node, self.leaders).get(tp, (-1, -1))
            code = self.errors.get(tp, 0)
            if epochs[tp] != epoch:
                code = FENCED_LEADER_EPOCH if epochs[tp] < epoch else UNKNOWN_LEADER_EPOCH
            end = self.ends[tp] if node == leader else self.ends[tp] - 1  # a follower is behind
            of_partition = {"partition": 0, "error_code": code, "offset": -1 if code else end}
            answers.append({"topic": tp.topic, "partitions": [of_partition]})
        self.asked.append((node, epochs))
        self.asked_at_ms.append((node, self.clock_ms))
        self.clock_ms += 1
        await self.may_answer[node].wait()
        if node in self.down:
            raise KafkaConnectionError("the connection broke")
        return Answer({"topics": answers})

    @asynccontextmanager
    async def asking(
        self, *inputs: TopicPartition, read_from: list[Mapping[TopicPartition, int]] | None = None
    ) -> AsyncIterator[LogEnds]:
        """Knows the leaders, and asks them about these inputs; notes where it wants them read from."""
        asks = LogEnds(
            KafkaSettings(), ["a", "b"], lambda: self.clock_ms, ([] if read_from is None else read_from).append
        )
        await asks.start()
        task = asyncio.create_task(asks.ask_for_ever(lambda: inputs))
        try:
            yield asks
        finally:
            task.cancel()
            await asyncio.wait([task])
            await asks.stop()
            assert task.cancelled(), task


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(KafkaSettings, "connection", lambda _, *args: cluster.connection(*args))
    monkeypatch.setattr(KafkaSettings, "first_contact", lambda _, role: cluster.first_contact(role))
    monkeypatch.setattr(log_ends, "ASK_EVERY_SECONDS", 0)
    monkeypatch.setattr(log_ends, "RETRY_SECONDS", 0)
    return cluster


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(5)):
        while not condition():  # noqa: ASYNC110  # conditions of several kinds
            await asyncio.sleep(0)


@contextmanager
def told(event: str) -> Iterator[list[Any]]:
    """The lines of this event, when the block is over."""
    lines: list[Any] = []
    with capture_logs() as seen:
        yield lines
    lines += [line for line in seen if line["event"] == event]


async def test_the_end_is_what_the_leader_said_and_counts_from_when_the_last_was_asked_who_agrees(
    cluster: Cluster,
) -> None:
    async with cluster.asking(A) as asks:
        assert asks.ends == {A: None, B: None}, "before the first answer nothing is known"
        cluster.may_answer[1].clear()
        await until(lambda: len(cluster.asked) > 20)
        assert asks.ends[A] is None, "followers have no end"
        cluster.may_answer[1].set()
        await until(lambda: asks.ends[A] is not None)
        (first,) = (at_ms for node, at_ms in cluster.asked_at_ms if node == 1)
        assert asks.ends == {A: LogEnd(10, first), B: None}, "the other one is not ours"
        cluster.ends[A] = 11
        await until(lambda: (end := asks.ends[A]) is not None and end.offset == 11)
        assert {epochs[A] for _, epochs in cluster.asked} == {5}
        assert {len(epochs) for _, epochs in cluster.asked} == {1}
        assert sorted(node for node, _ in cluster.connections) == [1, 2, 3]
    assert not any(connection.is_open for _, connection in cluster.connections)


async def test_an_input_without_replicas_is_not_asked_about(cluster: Cluster) -> None:
    cluster.replicas = {A: 1, B: 1}
    async with cluster.asking(A, B) as asks:
        await until_idle()
        assert asks.ends == {}
        assert cluster.connections == []
        assert cluster.lookups == 1


async def test_the_embedded_broker_is_not_asked_at_all(cluster: Cluster) -> None:
    asks = LogEnds(KafkaSettings(is_embedded=True), ["a"], lambda: NOW_MS)
    await asks.start()
    task = asyncio.create_task(asks.ask_for_ever(lambda: [A]))
    await until_idle()
    assert not task.done()
    task.cancel()
    await asks.stop()
    assert cluster.lookups == 0
    assert asks.ends == {}


async def test_an_input_that_is_given_replicas_is_asked_about(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "LEADERS_SECONDS", 0)
    cluster.replicas = {A: 1, B: 1}
    async with cluster.asking(A) as asks:
        cluster.replicas[A] = 3
        await until(lambda: asks.ends.get(A) is not None)
        cluster.replicas[A] = 1
        await until(lambda: A not in asks.ends)


async def test_a_leader_that_dies_says_nothing_more_until_another_leads(cluster: Cluster) -> None:
    with told("log_ends_not_told") as lines:
        async with cluster.asking(A, B) as asks:
            await until(lambda: asks.ends[A] is not None and asks.ends[B] is not None)
            cluster.down = {1}
            lookups = cluster.lookups
            await until(lambda: cluster.lookups > lookups + 3)
            before, of_other = asks.ends[A], asks.ends[B]
            await until(lambda: asks.ends[B] != of_other)
            assert asks.ends[A] == before
            cluster.leaders[A] = (3, 6)
            cluster.in_sync = {A: {2, 3}, B: {2, 3}}
            cluster.ends[A] = 12
            await until(lambda: (3, {A: 6, B: 7}) in cluster.asked)
            cluster.clock_ms += SILENT_REPLICA_MS
            await until(lambda: (end := asks.ends[A]) is not None and end.offset == 12)
            assert [connection.is_open for node, connection in cluster.connections if node == 1] == [False]
    assert [line["broker"] for line in lines] == ["host1:9001"], "once, however often it was tried"


async def test_one_broker_that_hangs_is_asked_once_and_the_others_are_enough_where_it_does_not_lead(
    cluster: Cluster,
) -> None:
    async with cluster.asking(A, B) as asks:
        cluster.may_answer[1].clear()
        await until(lambda: len(cluster.asked) > 20)
        assert asks.ends == {A: None, B: None}
        cluster.clock_ms += SILENT_REPLICA_MS
        await until(lambda: asks.ends[B] is not None)
        assert asks.ends[A] is None
        assert [node for node, _ in cluster.asked].count(1) == 1


async def test_who_does_not_lead_any_more_is_not_believed(cluster: Cluster) -> None:
    async with cluster.asking(A) as asks:
        await until(lambda: asks.ends[A] is not None)
        cluster.leaders[A] = (1, 6)  # the same broker after another had led
        cluster.ends[A] = 30
        await until(lambda: (end := asks.ends[A]) is not None and end.offset == 30)
        assert (1, {A: 6}) in cluster.asked


async def test_a_leader_that_is_cut_off_from_the_others_is_not_believed_however_long_it_answers(
    cluster: Cluster,
) -> None:
    read_from: list[Mapping[TopicPartition, int]] = []
    async with cluster.asking(A, read_from=read_from) as asks:
        await until(lambda: asks.ends[A] is not None)
        cluster.views = {1: {A: (1, 5), B: (2, 7)}}
        cluster.leaders[A] = (2, 6)
        cluster.in_sync[A] = {2, 3}
        cut_off_ms = cluster.clock_ms
        cluster.may_answer[2].clear()
        cluster.may_answer[3].clear()
        await until(lambda: [node for node, at_ms in cluster.asked_at_ms if at_ms > cut_off_ms].count(1) > 20)
        assert (end := asks.ends[A]) is not None
        assert end.asked_at_ms <= cut_off_ms, "it alone does not know what is true now"
        cluster.ends[A] = 40
        cluster.may_answer[2].set()
        cluster.may_answer[3].set()
        await until(lambda: (2, {A: 6}) in cluster.asked)
        cluster.clock_ms += SILENT_REPLICA_MS
        await until(lambda: (end := asks.ends[A]) is not None and end.asked_at_ms > cut_off_ms)
        assert (end := asks.ends[A]) is not None
        assert end.offset == 40
        await until(lambda: read_from[-1][A] == 2)
        for _ in range(20):  # later answers of the one that is cut off change nothing
            await until_idle()
            assert read_from[-1][A] == 2


async def test_brokers_that_are_starting_and_know_of_nothing_take_nothing_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "LEADERS_SECONDS", 0)
    async with cluster.asking(A, B) as asks:
        await until(lambda: asks.ends[A] is not None)
        before = asks.ends[A]
        cluster.views = {1: {}, 2: {}, 3: {}}
        cluster.ports, ports = {}, cluster.ports
        lookups = cluster.lookups
        await until(lambda: cluster.lookups > lookups + 20)
        assert asks.ends.keys() == {A, B}, "else what readers see would be taken for all there is"
        cluster.ports = ports
        cluster.views = {}
        await until(lambda: asks.ends[A] != before)


async def test_who_is_met_first_may_be_cut_off(cluster: Cluster) -> None:
    cluster.views = {3: {A: (3, 4), B: (2, 7)}}
    async with cluster.asking(A) as asks:
        assert asks._agreements[A].leadership.leader == 3
        await until(lambda: asks.ends[A] is not None)
        assert asks._agreements[A].leadership.leader == 1


async def test_while_nobody_leads_it_is_asked_again_who_does(cluster: Cluster) -> None:
    cluster.leaders[A] = (-1, 5)
    async with cluster.asking(A) as asks:
        await until(lambda: cluster.lookups > 3)
        assert asks.ends[A] is None
        assert cluster.asked == []
        cluster.leaders[A] = (2, 6)
        await until(lambda: asks.ends[A] is not None)


async def test_a_broker_that_has_moved_is_found(cluster: Cluster) -> None:
    async with cluster.asking(A) as asks:
        await until(lambda: asks.ends[A] is not None)
        del cluster.ports[1]
        cluster.leaders[A] = (-1, 5)
        cluster.errors[A] = FENCED_LEADER_EPOCH
        await until(lambda: not cluster.connections[0][1].is_open)
        cluster.ports[1] = 9101
        cluster.leaders[A] = (1, 6)
        cluster.errors.clear()
        cluster.ends[A] = 30
        await until(lambda: (end := asks.ends[A]) is not None and end.offset == 30)


@pytest.mark.parametrize("how", ["an error", "a version", "an older version", "no epochs"])
async def test_a_cluster_that_refuses_is_believed_as_readers_believe_it(
    cluster: Cluster, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "an error":
        cluster.errors[A] = TopicAuthorizationFailedError.errno
    elif how == "a version":
        cluster.list_offsets = (5, 11)
    elif how == "an older version":

        async def refuse(*_: Any) -> None:
            raise IncompatibleBrokerVersion("not known")

        monkeypatch.setattr(cluster, "log_ends", refuse)
    with told("log_ends_refused") as lines:
        if how == "no epochs":
            cluster.tells_epochs = False
        async with cluster.asking(A, B) as asks:
            await until(lambda: asks.ends == {})
            await until_idle()
            asked = len(cluster.asked)
            monkeypatch.setattr(log_ends, "LEADERS_SECONDS", 0)
            await until_idle()
            assert asks.ends == {}
            assert len(cluster.asked) == asked
    assert len(lines) == 1
