"""Asks the brokers where the logs of replicated topics end, including records that readers do not see yet.

A leader shows a record to readers once the replicas in sync have it. If one of these dies, that takes seconds, and a new
leader first hides the last records of the old one. Meanwhile readers see no further record, although the broker has accepted
some and dated them. That must not count as silence. So the leaders are asked for the end that replicas see.

A leader that is cut off from the other brokers does not learn that another was elected. It goes on to answer that nothing is
outstanding, while records arrive at the new leader. But a new leader is one of the replicas in sync, and accepts no record
before it knows that it leads. So the other replicas are asked whether they still follow that leader, and the reported end of a
log is valid until the moment at which all of them did.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import TopicPartition, errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Int64, Schema, String

from consumers.runtime.kafka.connection import KafkaSettings, TopicsRequest

SILENT_REPLICA_MS: Final = 2_000
"""Silence after which a replica is ignored, as long as more than half of them answer, and all that do agree. A broker that hangs
must not stop time on all its inputs until the cluster removes it."""
ASK_EVERY_SECONDS: Final = 0.1
"""How often the brokers are asked: as often as silence is checked."""
ANSWER_MS: Final = 5_000
"""How long connecting, each step of logging in and each answer may take before a broker counts as silent."""
RETRY_SECONDS: Final = 0.5
"""Pause before a broker that did not answer is asked again, and before all are asked again while the leader is not clear."""
LEADERS_SECONDS: Final = 60.0
"""How often the leaders are asked for without a cause: an input may have new replicas, or a replica may be in sync again."""
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
_FENCED_LEADER_EPOCH: Final = 74
"""Error code of a broker that knows of a later leader; aiokafka has no name for it."""
_FIRST_CONTACT: Final = -1
"""Stands for the first broker that answered, before the numbers of the brokers are known."""
_NO_ANSWER: Final = (OSError, errors.KafkaError, TimeoutError, ValueError)  # ValueError: no host name, or a false proof


log = structlog.get_logger()


class LogEnd(NamedTuple):
    """End of the log of an input with replicas, including records that readers do not see yet.

    Attributes:
        offset: Offset after the leader's last record.
        asked_at_ms: Until when that is true, on the steady clock: when the leader was asked, before another replaced it.
    """

    offset: int
    asked_at_ms: int


class Leadership(NamedTuple):
    """Leadership of one input, as one broker knows it.

    Attributes:
        leader: The broker that leads the input; -1 for none.
        epoch: Number of its reign, higher for each new leader.
        in_sync: Brokers that may become the next leader, itself included.
        replicas: All brokers with a copy. Any of them may be in sync soon.
    """

    leader: int
    epoch: int
    in_sync: frozenset[int]
    replicas: frozenset[int]


def newest(views: Iterable[Leadership]) -> Leadership:
    """Returns the newest leadership of views that may differ: the latest reign, with every replica that any view names.

    Args:
        views: One or more.
    """
    views = list(views)
    epoch = max(view.epoch for view in views)
    latest = [view for view in views if view.epoch == epoch]
    in_sync, replicas = (frozenset().union(*each) for each in zip(*(view[2:] for view in latest), strict=True))
    return latest[0]._replace(in_sync=in_sync, replicas=replicas)


class Agreement:
    """Answers of the replicas of one input in one reign.

    Attributes:
        leadership: The leader that they follow.
    """

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self._asked_at_ms: dict[int, int] = {}
        self._since_ms = 0
        self._offset = 0
        self._is_over = False

    def end_reign(self) -> None:
        """Stops trusting this leader, because a replica follows a later one. Replicas that do not know it yet change nothing."""
        self._is_over = True

    def answered(self, node: int, offset: int, asked_at_ms: int) -> LogEnd | None:
        """Notes that a replica is this leader or follows it.

        Args:
            node: The replica.
            offset: Offset after its last record. For a follower, this is not the end of the log.
            asked_at_ms: When it was asked, on the steady clock.

        Returns:
            The end of the log; None while too few have answered, or another replica leads.
        """
        asked = self._asked_at_ms
        if not asked or asked_at_ms > max(asked.values()) + SILENT_REPLICA_MS:  # nobody was asked for a while
            asked.clear()
            self._since_ms = asked_at_ms
        asked[node] = asked_at_ms
        leader = self.leadership.leader
        if node == leader:
            self._offset = offset
        in_sync, replicas = self.leadership.in_sync | {leader}, self.leadership.replicas
        silent_ms = max(asked.values()) - SILENT_REPLICA_MS
        times_ms = sorted((asked[each] for each in in_sync & asked.keys()), reverse=True)
        most = len(in_sync) // 2 + 1
        # A replica that has not answered yet may follow a later leader.
        is_too_early = not replicas <= asked.keys() and self._since_ms >= silent_ms
        if self._is_over or is_too_early or leader not in asked or len(times_ms) < most:
            return None
        heard_ms = [time_ms for time_ms in asked.values() if time_ms >= silent_ms]
        return LogEnd(self._offset, min(asked[leader], times_ms[most - 1], *heard_ms))


class _Broker:
    """A connection to one broker, kept while the broker answers. It carries one request at a time."""

    def __init__(self, kafka: KafkaSettings, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._kafka = kafka
        self._connection: AIOKafkaConnection | None = None

    async def send(self, request: Any) -> Any:
        """Returns the broker's answer. Raises one of `_NO_ANSWER`; then the next request gets a new connection."""
        try:
            if self._connection is None or not self._connection.connected():
                self._connection = await self._kafka.connection("evaluator", self.host, self.port, ANSWER_MS)
            return await self._connection.send(request)
        except _NO_ANSWER:
            self.close()
            raise

    def close(self) -> "asyncio.Future[None] | None":
        """Starts to disconnect. Returns a future that is done at the end of it, which can take long if the broker is dead."""
        connection, self._connection = self._connection, None
        return None if connection is None else connection.close()


class LogEnds:
    """Asks the replicas of inputs about ten times a second where the logs end and which leader they follow.

    Attributes:
        ends: By input with more than one replica, the last end that its leader reported and the others agreed to; None
            before the first. For an input that is not in it, the end that readers see is the end, or a broker refuses to
            report more.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Collection[str],
        steady_ms: Callable[[], int],
        read_from: Callable[[Mapping[TopicPartition, int]], None] = lambda _: None,
    ) -> None:
        self._read_from = (
            read_from  # called again and again with the leaders: a reader of a broker that is cut off notices nothing
        )
        self._leaders_passed_on_at = -math.inf  # on the monotonic clock
        self._steady_ms = steady_ms
        self.ends: dict[TopicPartition, LogEnd | None] = {}
        self._kafka = kafka
        self._topics = tuple(topics)
        self._brokers: dict[int, _Broker] = {}
        self._views: dict[int, dict[TopicPartition, Leadership]] = {}  # of each broker that answers
        self._looked_at: dict[int, float] = {}  # when each was last asked who leads, on the monotonic clock
        self._doubted_at = -math.inf  # when a broker last disagreed with that, on the same clock
        self._agreements: dict[TopicPartition, Agreement] = {}
        self._busy: set[int] = set()  # brokers that are asked something, or left alone for a moment
        self._silent: set[int] = set()
        self._is_refused = False

    async def start(self) -> None:
        """Asks which inputs have replicas and who leads them. Inputs of the embedded broker have none.

        Raises:
            KafkaUnreachableError: No broker answers.
        """
        if not self._kafka.is_embedded:
            async with self._kafka.first_contact("evaluator") as connection:
                self._learn(_FIRST_CONTACT, await connection.send(TopicsRequest(self._topics)))
            if (
                not self.ends
            ):  # otherwise all brokers are asked at once: the one that answered may be cut off from the others
                self._looked_at = dict.fromkeys(self._brokers, time.monotonic())

    async def stop(self) -> None:
        """Disconnects, after `ask_for_ever` has been cancelled; bounded, and harmless when repeated."""
        closing = [closed for broker in self._brokers.values() if (closed := broker.close()) is not None]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)

    async def ask_for_ever(self, inputs: Callable[[], Collection[TopicPartition]]) -> bool:
        """Keeps `ends` up to date, and does not return.

        Args:
            inputs: Gives the inputs that are ours at the moment. Only these are asked about.
        """
        async with asyncio.TaskGroup() as questions:
            while True:
                await asyncio.sleep(ASK_EVERY_SECONDS)
                by_node = self._epochs_by_node(inputs())
                lookers = {node for node in self._who_knows(by_node) if self._is_look_due(node)}
                for node in (by_node.keys() | lookers) - self._busy:
                    self._busy.add(node)
                    asking = self._ask(node, by_node.get(node, {}), looks=node in lookers)
                    questions.create_task(asking, name=f"log-ends-{node}")
                if time.monotonic() >= self._leaders_passed_on_at + RETRY_SECONDS:
                    self._leaders_passed_on_at = time.monotonic()
                    self._read_from({tp: each.leadership.leader for tp, each in self._agreements.items()})

    def _epochs_by_node(self, inputs: Collection[TopicPartition]) -> dict[int, dict[TopicPartition, int]]:
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for tp in inputs:
            if (agreement := self._agreements.get(tp)) is not None:
                leader, epoch, _, replicas = agreement.leadership
                for node in replicas & self._brokers.keys() if leader in self._brokers else ():
                    by_node.setdefault(node, {})[tp] = epoch
        return by_node

    def _who_knows(self, asked: Collection[int]) -> Collection[int]:
        """Brokers to ask for the leaders: those with copies of our inputs, or all if none of these answers."""
        if self._is_refused:
            return ()
        answering = [node for node in asked if node not in self._silent]
        return asked if answering else list(self._brokers)

    def _is_look_due(self, node: int) -> bool:
        now, looked_at = time.monotonic(), self._looked_at.get(node, -math.inf)
        return now >= looked_at + (RETRY_SECONDS if self._doubted_at >= looked_at else LEADERS_SECONDS)

    async def _ask(self, node: int, epochs: Mapping[TopicPartition, int], *, looks: bool) -> None:
        broker = self._brokers[node]
        try:
            if looks:
                self._looked_at[node] = time.monotonic()
                self._learn(node, await broker.send(TopicsRequest(self._topics)))
            if epochs:
                asked_at_ms = self._steady_ms()
                answer = await broker.send(LogEndRequest(epochs))
                self._note(node, epochs, answer, asked_at_ms)
        except (errors.IncompatibleBrokerVersion, NotImplementedError) as error:
            self._give_up(error)
        except _NO_ANSWER as error:
            self._not_answered(node, error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self._silent.discard(node)
        finally:
            self._busy.discard(node)

    def _note(self, node: int, epochs: Mapping[TopicPartition, int], answer: Any, asked_at_ms: int) -> None:
        for topic in answer.to_object()["topics"]:
            for found in topic["partitions"]:
                tp = TopicPartition(topic["topic"], found["partition"])
                agreement = self._agreements.get(tp)
                if found["error_code"] in _REFUSALS:
                    self._give_up(_REFUSALS[found["error_code"]](tp))
                    continue
                if found["error_code"]:
                    self._doubt()
                if agreement is None or agreement.leadership.epoch != epochs.get(tp):
                    continue
                if found["error_code"] == _FENCED_LEADER_EPOCH:
                    agreement.end_reign()
                elif not found["error_code"]:
                    self.ends[tp] = agreement.answered(node, found["offset"], asked_at_ms) or self.ends[tp]

    def _learn(self, node: int, answer: Any) -> None:
        """Notes the leaders that a broker reports. A broker that is cut off reports old ones, so the latest reign counts."""
        found = answer.to_object()
        if found["brokers"]:
            self._know_brokers({each["node_id"]: (each["host"], each["port"]) for each in found["brokers"]})
        self._views.pop(_FIRST_CONTACT, None)
        view = self._views[node] = {}
        for topic in found["topics"]:
            for partition in topic["partitions"]:
                tp = TopicPartition(topic["topic"], partition["partition"])
                in_sync, replicas = frozenset(partition["isr"]), frozenset(partition["replicas"])
                if len(replicas) > 1 and "leader_epoch" not in partition:
                    self._give_up(errors.IncompatibleBrokerVersion("the broker does not tell the epoch of a leader"))
                view[tp] = Leadership(partition["leader"], partition.get("leader_epoch", 0), in_sync, replicas)
        self._compare_views()

    def _compare_views(self) -> None:
        """Updates the leaders from all views. An input that is in no view stays as it was: a starting broker knows none."""
        for tp in frozenset[TopicPartition]().union(*self._views.values()):
            leadership = newest(view[tp] for view in self._views.values() if tp in view)
            known = self._agreements.get(tp)
            if len(leadership.replicas) < 2 or self._is_refused:
                self.ends.pop(tp, None)
                self._agreements.pop(tp, None)
                continue
            if known is not None and known.leadership[:2] == leadership[:2]:
                known.leadership = leadership
            else:
                self._agreements[tp] = Agreement(leadership)
            self.ends.setdefault(tp, None)
            if leadership.leader not in self._brokers:
                self._doubt()

    def _know_brokers(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        for node, broker in list(self._brokers.items()):
            # A busy one is removed in a later round.
            if addresses.get(node) != (broker.host, broker.port) and node not in self._busy:
                del self._brokers[node]
                self._silent.discard(node)
                self._views.pop(node, None)
                broker.close()
        for node, (host, port) in addresses.items():
            self._brokers.setdefault(node, _Broker(self._kafka, host, port))

    def _doubt(self) -> None:
        """Notes that the leader may be unknown to us, so that all brokers are asked soon."""
        self._doubted_at = time.monotonic()

    def _not_answered(self, node: int, error: Exception) -> None:
        self._doubt()
        if self._views.pop(node, None) is not None:
            self._compare_views()
        if node not in self._silent:
            self._silent.add(node)
            broker = self._brokers[node]
            log.warning(
                "log_ends_not_told",
                broker=f"{broker.host}:{broker.port}",
                error=str(error) or type(error).__name__,
                what_happens_now="It is asked again. Until it answers, or another broker leads its partitions, no dead air and "
                "no idle call is found in them.",
                what_to_do="Nothing while the broker starts or is loaded for a moment. If it lasts, check that it runs and that "
                "this machine reaches it.",
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
        self._agreements.clear()
        self._views.clear()


# Kafka's ListOffsets request in the form for replicas. aiokafka only has versions without the leader's epoch.

_DEBUGGING_REPLICA: Final = -2
"""Kafka's replica id for tools, which needs only the right Describe. Followers answer it too, with an end that is not the log's. So
the request names the leader's epoch, and a replica that follows another leader refuses it."""
_UNCOMMITTED: Final = 0
_LATEST: Final = -1


class _Response(Response):  # type: ignore[misc]  # the library has no type hints
    API_KEY = 2
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("timestamp", Int64),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class _Request(RequestStruct):  # type: ignore[misc]  # as above
    API_KEY = 2
    API_VERSION = 4
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64))),
            ),
        ),
    )


class LogEndRequest(Request[_Request]):  # type: ignore[misc]  # as above
    """Request for the ends of the logs of some partitions, to their leader, with the epochs of a `TopicsRequest`'s answer."""

    API_KEY = 2

    def __init__(self, epochs: Mapping[TopicPartition, int]) -> None:
        self._topics: dict[str, list[tuple[int, int, int]]] = {}
        for tp, epoch in epochs.items():
            self._topics.setdefault(tp.topic, []).append((tp.partition, epoch, _LATEST))

    def build(self, request_struct_class: type[_Request]) -> _Request:
        """Builds the request, of which this module has one version."""
        return request_struct_class(_DEBUGGING_REPLICA, _UNCOMMITTED, list(self._topics.items()))
