"""Where the logs of replicated inputs truly end, asked of their leaders.

A leader shows a record to readers once the replicas in sync have it too. When one of those dies, that takes seconds, and
a new leader begins with hiding the last records of the old one. Meanwhile readers are told that there is nothing more,
though records were taken and have their times. Silence must not be read from that, so the leaders are asked for the end
that replicas see.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import TopicPartition, errors
from aiokafka.conn import AIOKafkaConnection

from consumers.evaluator.clock import BrokerClock
from consumers.evaluator.partition_clock import LogEnd
from consumers.runtime.first_contact import TopicsRequest
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.log_end_request import LogEndRequest

ASK_EVERY_SECONDS: Final = 0.1
"""As often as the broker tells a reader that there is nothing more."""
ANSWER_MS: Final = 5_000
"""How long connecting, each step of logging in and each answer may take before a broker counts as silent."""
RETRY_SECONDS: Final = 0.5
"""How long a broker that did not answer is left alone; then it is also asked anew who leads."""
LEADERS_SECONDS: Final = 60.0
"""How often it is asked anew in any case: an input may have been given replicas."""
CLOSE_SECONDS: Final = 1.0
"""How long disconnecting may take."""

_REFUSALS: Final = {
    error.errno: error
    for error in (
        errors.TopicAuthorizationFailedError,
        errors.ClusterAuthorizationFailedError,
        errors.UnsupportedVersionError,
        errors.InvalidRequestError,
    )
}
_NO_ANSWER: Final = (OSError, errors.KafkaError, TimeoutError, ValueError)  # ValueError: no host name, or a false proof

log = structlog.get_logger()


class _Leader(NamedTuple):
    node: int
    epoch: int


class _Broker:
    """One broker, and the connection to it as long as it answers. It is asked one question at a time."""

    def __init__(self, kafka: KafkaSettings, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._kafka = kafka
        self._connection: AIOKafkaConnection | None = None

    async def send(self, request: Any) -> Any:
        """Its answer. Raises one of `_NO_ANSWER`; the next question gets a new connection then."""
        try:
            if self._connection is None or not self._connection.connected():
                self._connection = await self._kafka.connection("evaluator", self.host, self.port, ANSWER_MS)
            return await self._connection.send(request)
        except _NO_ANSWER:
            self.close()
            raise

    def close(self) -> "asyncio.Future[None] | None":
        """Disconnects; what is returned is done when that has come to its end, which may take a dead broker long."""
        connection, self._connection = self._connection, None
        return None if connection is None else connection.close()


class LogEnds:
    """Asks the leaders of replicated inputs about ten times a second where their logs end.

    Attributes:
        ends: By input with more than one replica, what its leader last said; None until it has. Of an input that is not
            in it, what readers see is all there is, or a broker refuses to say more.
    """

    def __init__(self, kafka: KafkaSettings, topics: Collection[str], clock: BrokerClock) -> None:
        """Keeps what it needs; nothing is asked before `start`.

        Args:
            kafka: Where the broker is.
            topics: The inputs, by their names on this cluster.
            clock: By whose steady clock it counts when a leader was asked.
        """
        self._clock = clock
        self.ends: dict[TopicPartition, LogEnd | None] = {}
        self._kafka = kafka
        self._topics = tuple(topics)
        self._brokers: dict[int, _Broker] = {}
        self._leaders: dict[TopicPartition, _Leader] = {}
        self._busy: set[int] = set()  # brokers that are asked something, or left alone for a moment
        self._silent: set[int] = set()
        self._is_refused = False
        self._find_leaders_at = math.inf  # on the monotonic clock

    async def start(self) -> None:
        """Learns which inputs have replicas, and who leads them; those of the embedded broker have none.

        Raises:
            KafkaUnreachableError: No broker answers.
        """
        if not self._kafka.is_embedded:
            async with self._kafka.first_contact("evaluator") as connection:
                self._learn(await connection.send(TopicsRequest(self._topics)))

    async def stop(self) -> None:
        """Disconnects, after `ask_for_ever` has been cancelled; bounded, and harmless when repeated."""
        closing = [closed for broker in self._brokers.values() if (closed := broker.close()) is not None]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)

    async def ask_for_ever(self, inputs: Callable[[], Collection[TopicPartition]]) -> bool:
        """Keeps `ends` up to date; it does not return.

        Args:
            inputs: Those that are ours at the moment; no others are asked about.
        """
        async with asyncio.TaskGroup() as questions:
            while True:
                await asyncio.sleep(ASK_EVERY_SECONDS)
                if time.monotonic() >= self._find_leaders_at:
                    await self._find_leaders()
                for node, epochs in self._epochs_by_node(inputs()).items():
                    if node not in self._busy:
                        self._busy.add(node)
                        questions.create_task(self._ask(node, epochs), name=f"log-ends-{node}")

    def _epochs_by_node(self, inputs: Collection[TopicPartition]) -> dict[int, dict[TopicPartition, int]]:
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for tp in inputs:
            if (leader := self._leaders.get(tp)) is not None:
                by_node.setdefault(leader.node, {})[tp] = leader.epoch
        return by_node

    async def _ask(self, node: int, epochs: Mapping[TopicPartition, int]) -> None:
        asked_at_ms = self._clock.steady_ms()
        try:
            answer = await self._brokers[node].send(LogEndRequest(epochs))
        except (errors.IncompatibleBrokerVersion, NotImplementedError) as error:
            self._give_up(error)
        except _NO_ANSWER as error:
            self._not_answered(node, error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self._silent.discard(node)
            self._note(answer, asked_at_ms)
        finally:
            self._busy.discard(node)

    def _note(self, answer: Any, asked_at_ms: int) -> None:
        for topic in answer.to_object()["topics"]:
            for found in topic["partitions"]:
                tp = TopicPartition(topic["topic"], found["partition"])
                if found["error_code"] in _REFUSALS:
                    self._give_up(_REFUSALS[found["error_code"]](tp))
                elif found["error_code"]:
                    self._find_leaders_soon()
                elif tp in self.ends:
                    self.ends[tp] = LogEnd(found["offset"], asked_at_ms)

    async def _find_leaders(self) -> None:
        """Asks one broker after the other, those that answered last first, until one says who leads."""
        self._find_leaders_at = time.monotonic() + RETRY_SECONDS
        free = [node for node in self._brokers if node not in self._busy]
        for node in sorted(free, key=self._silent.__contains__):
            try:
                answer = await self._brokers[node].send(TopicsRequest(self._topics))
            except _NO_ANSWER as error:
                self._not_answered(node, error)
            else:
                self._learn(answer)
                return

    def _learn(self, answer: Any) -> None:
        self._find_leaders_at = time.monotonic() + LEADERS_SECONDS
        found = answer.to_object()
        self._know_brokers({each["node_id"]: (each["host"], each["port"]) for each in found["brokers"]})
        for topic in found["topics"]:
            for partition in topic["partitions"]:
                tp = TopicPartition(topic["topic"], partition["partition"])
                if len(partition["replicas"]) < 2 or self._is_refused:
                    self.ends.pop(tp, None)
                    self._leaders.pop(tp, None)
                elif "leader_epoch" not in partition:
                    self._give_up(errors.IncompatibleBrokerVersion("the broker does not tell the epoch of a leader"))
                else:
                    self.ends.setdefault(tp, None)
                    self._leaders[tp] = _Leader(partition["leader"], partition["leader_epoch"])
        self._leaders = {tp: leader for tp, leader in self._leaders.items() if leader.node in self._brokers}
        if len(self._leaders) < len(self.ends):
            self._find_leaders_soon()

    def _know_brokers(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        for node, broker in list(self._brokers.items()):
            if addresses.get(node) != (broker.host, broker.port) and node not in self._busy:  # else the next time
                del self._brokers[node]
                self._silent.discard(node)
                broker.close()
        for node, (host, port) in addresses.items():
            self._brokers.setdefault(node, _Broker(self._kafka, host, port))

    def _find_leaders_soon(self) -> None:
        self._find_leaders_at = min(self._find_leaders_at, time.monotonic() + RETRY_SECONDS)

    def _not_answered(self, node: int, error: Exception) -> None:
        self._find_leaders_soon()
        if node not in self._silent:
            self._silent.add(node)
            broker = self._brokers[node]
            log.warning(
                "log_ends_not_told",
                broker=f"{broker.host}:{broker.port}",
                error=str(error) or type(error).__name__,
                what_happens_now="It is asked again. Silence is not judged where it leads an input, until it answers or "
                "another leads.",
            )

    def _give_up(self, error: Exception) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "log_ends_refused",
                error=str(error) or type(error).__name__,
                what_happens_now="The end that readers see is taken for the end of the log: while replicas are not in sync, "
                "a silence can be judged too early.",
                what_to_do="Give this user the right to Describe the inputs, and run brokers from Kafka 2.3 on; then start "
                "the evaluator again.",
            )
        self.ends.clear()
        self._leaders.clear()
