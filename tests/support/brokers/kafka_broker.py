"""One real Apache Kafka broker (KRaft, one node, loopback) for tests and for `make kafka`.

In order of preference: the broker named in CALLGAUGE_TEST_BOOTSTRAP; Kafka's own jars on Java 17,
fetched by Maven into the user's cache; the official image on a Docker engine. Run as a module it is
the keeper of one broker: it prints the bootstrap address on a line of its own, and ends the
broker's process group and removes its folder on every exit. The tests start it with
--until-stdin-closes, so the broker ends with its owner even if that is killed. With --secured it
keeps a broker with TLS, logins and an authorizer (see secured_broker), and the line is that
module's; this needs Java.
"""

import argparse
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support import required_tools
from tests.support.brokers import secured_broker
from tests.support.patience import patient

KAFKA = "4.3.1"
# the binding for slf4j 1.7, which Kafka 4 uses; without it the broker's log is lost
LOG4J = "2.24.3"
JARS = required_tools.CACHE / f"kafka-{KAFKA}-log4j-{LOG4J}"
START_SECONDS = 60
STOP_SECONDS = 15
FETCH_SECONDS = 600
LOG_LINES = 40
NOTHING_TO_RUN = 3  # exit code: no broker is possible here, standard error says what to install

# One node, so nothing is replicated; few internal partitions and no waiting for more members, so
# that tests are quick.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}

QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A broker of tests lives for minutes: to optimise its code and to collect on several threads costs
it more than it saves.
"""

_POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>callgauge</groupId><artifactId>broker</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
<version>{LOG4J}</version></dependency>
</dependencies></project>
"""

_LOGGING = """appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = OUT
"""


class NoBrokerError(Exception):
    """No broker is possible on this machine; the message is one sentence that says what
    to install.
    """


class BrokerStartError(Exception):
    """A broker was there but did not come up; the message ends with its log."""


@contextlib.contextmanager
def running(*, secured: bool = False) -> Iterator[str]:
    """A broker for the length of the block, as "host:port"; a secured one as
    `secured_broker.SecuredBroker.read` takes it.
    """
    named = os.environ.get("CALLGAUGE_TEST_BOOTSTRAP")
    if named and not secured:
        yield named
        return
    command = [
        sys.executable,
        "-m",
        "tests.support.brokers.kafka_broker",
        "--until-stdin-closes",
        *(["--secured"] if secured else []),
    ]
    root = Path(__file__).parents[3]
    with tempfile.TemporaryFile("w+") as errors:
        # A session of its own: Ctrl-C is for the owner. Whatever ends the owner closes the pipe.
        with subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as keeper:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            with keeper.stdin:  # leaving this closes the pipe, leaving Popen waits for the keeper
                address = keeper.stdout.readline().strip()
                if address:
                    yield address
                    return
        errors.seek(0)
        message = errors.read().strip()
        if keeper.returncode == NOTHING_TO_RUN:
            raise NoBrokerError(message.splitlines()[-1])  # apt may have said something before
        raise BrokerStartError(message)


@contextlib.contextmanager
def shared(folder: Path, *, secured: bool = False) -> Iterator[str]:
    """One broker for all processes that name the same folder, as `running` gives it; a secured one
    is another broker.

    Who comes first starts it, and ends it when no process uses it any more; who comes later than
    that starts another.
    """
    kind = "secured" if secured else "bootstrap"
    known, starting_lock, using_lock = (
        folder / name for name in (kind, f"{kind}.starting", f"{kind}.using")
    )
    with starting_lock.open("w") as starting, using_lock.open("w") as using:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(using, fcntl.LOCK_SH)  # from here on no process ends the broker
        if known.exists():
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield known.read_text()
            return
        with running(secured=secured) as address:
            known.write_text(address)
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield address
            fcntl.flock(using, fcntl.LOCK_EX)  # waits for the others
            known.unlink()


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="make kafka", description="A real Kafka broker on loopback until Ctrl-C."
    )
    parser.add_argument("port", nargs="?", type=int, help="a free one by default")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when the owner does")
    parser.add_argument(
        "--secured", action="store_true", help="with TLS, logins and an authorizer, for tests"
    )
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    if arguments.until_stdin_closes:
        threading.Thread(target=_leave_when_stdin_closes, daemon=True).start()
    else:
        print("Starting Kafka; Ctrl-C stops it and forgets everything it holds.", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(
            prefix="callgauge-kafka-", ignore_cleanup_errors=True
        ) as folder:
            _keep(Path(folder), arguments.port, secured=arguments.secured)
    except NoBrokerError as error:
        print(error, file=sys.stderr)
        sys.exit(NOTHING_TO_RUN)
    except BrokerStartError as error:
        sys.exit(str(error))


def _keep(folder: Path, port: int | None, *, secured: bool) -> None:
    """Starts a broker, says where it is, and waits until it or this process is ended."""
    doors = tuple(secured_broker.DOORS) if secured else ("PLAINTEXT",)
    ports = _free_ports(port, (*doors, "CONTROLLER"))
    announcement = (
        secured_broker.announced(folder, ports) if secured else f"127.0.0.1:{ports['PLAINTEXT']}"
    )
    missing = required_tools.provide(required_tools.JAVA, required_tools.MAVEN)
    if not missing:
        more = (
            secured_broker.broker_settings(folder, ports)
            if secured
            else _plain_settings("127.0.0.1", ports)
        )
        command = _java_command(
            folder, ports, more, secured_broker.format_options() if secured else []
        )
    elif required_tools.has_docker() and not secured:
        command = _docker_command(folder, ports)
    else:
        raise NoBrokerError(
            f"no {'secured ' if secured else ''}Kafka broker can run here: install "
            f"{required_tools.names(missing)}"
            + (
                ""
                if secured
                else (
                    ", or start a Docker engine, or name a broker of yours in "
                    "CALLGAUGE_TEST_BOOTSTRAP"
                )
            )
        )
    log = folder / "broker.log"
    with log.open("w") as output:
        broker = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, process_group=0
        )
    try:
        _wait_until_it_answers(broker, ports[doors[0]], log)
        print(announcement, flush=True)
        broker.wait()
        raise BrokerStartError(f"Kafka ended by itself; its log:\n{_tail(log)}")
    finally:
        _end(broker, folder)


def _plain_settings(listens_on: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Properties of the one listener without any security."""
    return {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "listeners": f"PLAINTEXT://{listens_on}:{ports['PLAINTEXT']},CONTROLLER://127.0.0.1:{ports['CONTROLLER']}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports['PLAINTEXT']}",
    }


def _java_command(
    folder: Path, ports: Mapping[str, int], more: Mapping[str, str], format_options: list[str]
) -> list[str]:
    jars = f"{kafka_jars()}/*"
    settings = SETTINGS | {
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "log.dirs": str(folder / "data"),
        **more,
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    java = [
        "java",
        *QUICK_JAVA,
        "-Xmx512m",
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "-cp",
        jars,
    ]
    # The cluster's id only has to be 22 characters: no other node ever joins.
    form = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        "callgauge-test-cluster",
        "-c",
        str(properties),
    ]
    formatted = subprocess.run([*form, *format_options], capture_output=True, text=True)
    if formatted.returncode != 0:
        raise BrokerStartError(
            f"Kafka could not format its folder:\n{formatted.stdout}{formatted.stderr}"
        )
    # On Linux the kernel ends the broker if this keeper is killed with -9 and cannot.
    tied = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return [*tied, *java, "kafka.Kafka", str(properties)]


def kafka_jars() -> Path:
    """Returns the folder of Kafka's jars, fetched once; two processes may do it at once, the first
    one done wins.
    """
    if not JARS.exists():
        JARS.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=JARS.parent, prefix="fetching-") as name:
            folder = Path(name)
            (folder / "pom.xml").write_text(_POM)
            # -C: a jar whose checksum is wrong is an error, not a warning.
            command = [
                "mvn",
                "-q",
                "-B",
                "-C",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
            ]
            command += [f"-DoutputDirectory={folder / 'jars'}"]
            fetched = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS
            )
            if fetched.returncode != 0:
                raise BrokerStartError(
                    f"Maven could not fetch Kafka {KAFKA}:\n{fetched.stdout}{fetched.stderr}"
                )
            try:
                (folder / "jars").rename(JARS)
            except OSError:
                if not JARS.exists():  # the other process came first, and its jars are as good
                    raise
    return JARS


def _docker_command(folder: Path, ports: Mapping[str, int]) -> list[str]:
    port = ports["PLAINTEXT"]
    settings = SETTINGS | {
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "log.dirs": "/tmp/kafka-data",  # noqa: S108 - inside the container, which is ours alone
        **_plain_settings("0.0.0.0", ports),  # noqa: S104 - as above: its published port is on loopback
    }
    # The image's rule: KAFKA_ and the setting in capitals, dots as underscores.
    variables = [
        f"--env=KAFKA_{name.upper().replace('.', '_')}={value}" for name, value in settings.items()
    ]
    image = f"apache/kafka:{KAFKA}"
    pulled = subprocess.run(
        ["docker", "pull", "--quiet", image], capture_output=True, text=True, timeout=FETCH_SECONDS
    )
    if pulled.returncode != 0:
        raise BrokerStartError(f"Docker could not fetch {image}:\n{pulled.stderr}")
    command = [
        "docker",
        "run",
        "--rm",
        "--cidfile",
        str(folder / "container"),
        f"--publish=127.0.0.1:{port}:{port}",
    ]
    return [*command, *variables, image]


OTHER_PORT = 19_092
"""A port that is named when the wanted one is taken."""


def _free_ports(port: int | None, doors: tuple[str, ...]) -> dict[str, int]:
    """A free port for each door; the first gets the one asked for."""
    try:
        with contextlib.ExitStack() as held:
            wanted = {door: port if port and door == doors[0] else 0 for door in doors}
            taken = {
                door: held.enter_context(socket.create_server(("127.0.0.1", n)))
                for door, n in wanted.items()
            }
            return {door: each.getsockname()[1] for door, each in taken.items()}
    except OSError as error:
        if error.errno == errno.EADDRINUSE and port:
            raise BrokerStartError(
                f"Port {port} is taken on this machine, so Kafka cannot listen there. Choose "
                "another, for example "
                f"make kafka PORT={OTHER_PORT}"
            ) from error
        raise BrokerStartError(f"no port for Kafka: {error}") from error


def _wait_until_it_answers(broker: subprocess.Popen[bytes], port: int, log: Path) -> None:
    # A connection alone proves little: Docker accepts it before the broker is there. Each try is
    # short: no signal reaches Python inside the client. log_level 0: a broker that is not there yet
    # is no news.
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    deadline = time.monotonic() + patient(START_SECONDS)
    while time.monotonic() < deadline and broker.poll() is None:
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=1)
            return
    raise BrokerStartError(f"Kafka did not come up in time; its log:\n{_tail(log)}")


def _end(broker: subprocess.Popen[bytes], folder: Path) -> None:
    container = folder / "container"
    if container.exists():
        subprocess.run(["docker", "rm", "--force", container.read_text()], capture_output=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(broker.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.wait(STOP_SECONDS)
            return


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:]) or "(empty)"


def _leave(*_: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # once is enough: the way out must not be interrupted
    sys.exit(0)


def _leave_when_stdin_closes() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _main()
