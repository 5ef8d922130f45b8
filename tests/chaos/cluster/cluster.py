"""A Kafka cluster of this run's own on loopback, one node or three, that can be stopped, killed and
started again.

The nodes keep their folders and ports, as machines do. `tests.support.brokers.kafka_broker` brings
the jars and most settings; what is added here is what a node needs to come back quickly, what
several need to know of each other, and the doors of the proxy through which evaluators come.
"""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.chaos.cluster import network
from tests.chaos.cluster.network import Network
from tests.chaos.cluster.proxy import DOORS, Listener, ProxyProcess
from tests.support import required_tools
from tests.support.brokers import kafka_broker
from tests.support.patience import patient

START_SECONDS: Final = 90.0
"""After kill -9 under load a node reads its newest segments again before it answers."""
STOP_SECONDS: Final = 30.0
"""How long a node may take to end after SIGTERM before it is killed."""
TIED: Final = ("setpriv", "--pdeathsig", "KILL")
"""On Linux the kernel ends a child with its parent, should that be killed with -9."""

_REMEMBERS_DELETIONS = {"log.flush.start.offset.checkpoint.interval.ms": "500"}
"""Deleted records stay deleted when a node is killed soon after; a minute is usual."""
_LEADERS_GO_HOME = {
    "leader.imbalance.check.interval.seconds": "10",
    "leader.imbalance.per.broker.percentage": "0",
}
"""A node that is back leads its former partitions again: a move without any crash."""
_COMES_BACK_SOON = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_JAVA_ALONE = (*kafka_broker.QUICK_JAVA, "-Xmx768m")
_JAVA_AMONG_OTHERS = (*kafka_broker.QUICK_JAVA, "-Xmx400m")


def tied_to_us(command: list[str]) -> list[str]:
    """The command, ended by the kernel when this process is. It must be started by the
    main thread.
    """
    return [*_tie(), *command]


def _tie() -> Sequence[str]:
    return TIED if shutil.which(TIED[0]) else ()


class Node:
    """One broker and controller: a folder, its ports, and a process now and then."""

    def __init__(
        self, number: int, folder: Path, host: str, ports: Mapping[str, int], command: list[str]
    ) -> None:
        self.number = number
        self.host = host
        self.ports = ports
        self.address = f"{host}:{ports['PLAINTEXT']}"
        self._log = folder / "broker.log"
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None

    @property
    def is_down(self) -> bool:
        """Whether it was taken down and has not been started again."""
        return self._kill_at is not None

    def start(self) -> None:
        """Starts the process; `Cluster.wait_until_it_answers` says when it is there."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                tied_to_us(self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        self._kill_at = None

    def take_down(self, number: signal.Signals) -> None:
        """Sends a signal; once the process has ended, `attend` starts another."""
        if self._process is not None:
            self._process.send_signal(number)
            self._kill_at = time.monotonic() + STOP_SECONDS

    def freeze(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def attend(self) -> bool:
        """Starts the process again when it was taken down and has ended. True when it did. To be
        called often.
        """
        if self._process is None or self._kill_at is None:
            return False
        if self._process.poll() is None:
            if time.monotonic() >= self._kill_at:
                self._process.kill()
            return False
        self.start()
        return True

    def stop(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def must_run(self) -> None:
        """Raises `BrokerStartError` with the end of its log when the process has ended
        by itself.
        """
        if self._process is not None and self._process.poll() is not None and not self.is_down:
            raise kafka_broker.BrokerStartError(
                f"Kafka ended by itself; its log:\n{kafka_broker._tail(self._log)}"
            )


class Cluster:
    """All nodes.

    Attributes:
        nodes: In the order of their numbers, which begin at 1.
        bootstrap: Their addresses for a client.
        admin: Asks and orders; there for the whole run.
        network: Theirs alone, if there are several and it can be made here.
    """

    def __init__(self, folder: Path, brokers: int, *, loses_sight: bool = False) -> None:
        """Formats the folders; nothing runs before `start`.

        Args:
            folder: For the nodes' folders.
            brokers: How many nodes.
            loses_sight: Whether they get a network of their own, where that can be made.
        """
        missing = required_tools.provide(required_tools.JAVA, required_tools.MAVEN)
        if missing:
            raise kafka_broker.NoBrokerError(
                f"no Kafka can be restarted at will here: install {required_tools.names(missing)}"
            )
        self.network = Network(brokers) if loses_sight and network.is_possible() else None
        self.nodes = _formatted(folder, brokers, self.network)
        self._proxy: ProxyProcess | None = None
        self.bootstrap = ",".join(node.address for node in self.nodes)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def start(self) -> None:
        """Starts every node and the proxy, and returns when the cluster answers."""
        for node in self.nodes:
            node.start()
        listeners = [
            Listener(door, node.ports[f"{door} proxy"], node.host, node.ports[door])
            for node in self.nodes
            for door in DOORS
        ]
        self._proxy = ProxyProcess(listeners, _tie())
        self.wait_until_it_answers()

    @property
    def proxy(self) -> ProxyProcess:
        """Between evaluators and brokers; there from `start` on."""
        assert self._proxy is not None
        return self._proxy

    def bootstrap_through(self, door: str) -> str:
        """Settings of an evaluator that connects through this door of the proxy."""
        return ",".join(f"127.0.0.1:{node.ports[f'{door} proxy']}" for node in self.nodes)

    def wait_until_it_answers(self) -> None:
        """Returns once every node is known to the others."""
        deadline = time.monotonic() + patient(START_SECONDS)
        while time.monotonic() < deadline:
            for node in self.nodes:
                node.must_run()
            if self.answers():
                return
        raise kafka_broker.BrokerStartError("Kafka did not come up in time")

    def answers(self) -> bool:
        """Whether a broker answers within a second, and knows of every node."""
        try:
            return len(self.admin.list_topics(timeout=1).brokers) == len(self.nodes)
        except KafkaException:
            return False

    def leaders(self) -> dict[tuple[str, int], int]:
        """The number of the node that leads each partition, by topic and partition."""
        return {
            (name, number): partition.leader
            for name, topic in self.admin.list_topics(timeout=10).topics.items()
            for number, partition in topic.partitions.items()
        }

    @property
    def is_whole(self) -> bool:
        """Whether every node runs and every replica is in sync, as far as the cluster says."""
        try:
            return not any(node.is_down for node in self.nodes) and not self.unreplicated()
        except KafkaException:
            return False

    def unreplicated(self) -> int:
        """How many partitions have a replica that is not in sync: none may, before the next node is
        killed.
        """
        return sum(
            len(partition.isrs) < len(partition.replicas)
            for topic in self.admin.list_topics(timeout=10).topics.values()
            for partition in topic.partitions.values()
        )

    def stop(self) -> None:
        """Kills every node: its folders are not read again."""
        for node in self.nodes:
            node.stop()
        if self._proxy is not None:
            self._proxy.stop()
        if self.network is not None:
            self.network.close()


@contextlib.contextmanager
def running(folder: Path, brokers: int, *, loses_sight: bool = False) -> Iterator[Cluster]:
    """A cluster for the length of the block; arguments as those of `Cluster`."""
    cluster = Cluster(folder, brokers, loses_sight=loses_sight)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _formatted(folder: Path, brokers: int, own_network: Network | None) -> list[Node]:
    numbers = range(1, brokers + 1)
    wanted = ("PLAINTEXT", "CONTROLLER", *DOORS, *(f"{door} proxy" for door in DOORS))
    doors = {number: kafka_broker._free_ports(None, wanted) for number in numbers}
    hosts = {
        number: "127.0.0.1" if own_network is None else own_network.address(number)
        for number in numbers
    }
    voters = ",".join(
        f"{number}@{hosts[number]}:{ports['CONTROLLER']}" for number, ports in doors.items()
    )
    replicas = str(brokers)
    in_sync = str(max(1, brokers - 1))
    nodes = []
    for number, ports in doors.items():
        own = folder / f"kafka-{number}"
        own.mkdir(parents=True)
        properties = {
            **kafka_broker.SETTINGS,
            **_listeners(hosts[number], ports),
            **_COMES_BACK_SOON,
            **_LEADERS_GO_HOME,
            **_REMEMBERS_DELETIONS,
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "log.dirs": str(own / "data"),
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
        }
        file = own / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        logging = own / "log4j2.properties"
        logging.write_text(kafka_broker._LOGGING)
        memory = _JAVA_ALONE if brokers == 1 else _JAVA_AMONG_OTHERS
        java = [
            "java",
            *memory,
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            "-cp",
            f"{kafka_broker.kafka_jars()}/*",
        ]
        form = [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "callgauge-test-cluster",
            "-c",
            str(file),
        ]
        formatted = subprocess.run(form, capture_output=True, text=True)
        if formatted.returncode != 0:
            raise kafka_broker.BrokerStartError(
                f"Kafka could not format its folder:\n{formatted.stdout}{formatted.stderr}"
            )
        start = [*java, "kafka.Kafka", str(file)]
        start = start if own_network is None else own_network.command(number, start)
        nodes.append(Node(number, own, hosts[number], ports, start))
    return nodes


def _listeners(host: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Properties of the listeners: brokers and the load come as they are, evaluators through a door
    of the proxy.
    """
    names = ("PLAINTEXT", *(door.upper() for door in DOORS))
    open_doors = ",".join(
        f"{name}://{host}:{ports[name if name in ports else name.lower()]}" for name in names
    )
    through = ",".join(f"{door.upper()}://127.0.0.1:{ports[f'{door} proxy']}" for door in DOORS)
    return {
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in ("CONTROLLER", *names)
        ),
        "listeners": f"{open_doors},CONTROLLER://{host}:{ports['CONTROLLER']}",
        "advertised.listeners": f"PLAINTEXT://{host}:{ports['PLAINTEXT']},{through}",
        "inter.broker.listener.name": "PLAINTEXT",
    }
