"""The load: many calls at a time at their own pace, from a process of its own. `python -m
tests.chaos.load.load`.

Calls are templates of a pool, played under new names at the present; when one ends another begins.
It says once a second on standard output how far it is, as JSON. On standard input "rate N" changes
the pace, "partitions SOURCE N" says how many an input has from now on, "pause SOURCE" holds back
what is for an input until "resume SOURCE", "heavy" plays a heavy call at once, "end" ends every
call and then the process; when standard input closes, the owner is gone, and it ends at once.
"""

import argparse
import contextlib
import heapq
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from zlib import crc32

from aiokafka.partitioner import murmur2
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from consumers.runtime.process import wall_clock_ms
from schemas.topics import SCORES_TOPIC, TOPIC_BY_SOURCE
from streamer.sources.simulator.plan import CallKind
from tests.chaos.cluster.cluster import tied_to_us
from tests.chaos.evaluators.fleet import ROOT
from tests.chaos.load import raw_batch
from tests.chaos.load.call_pool import KINDS, CallTemplate, make_pool
from tests.chaos.load.heavy_call import heavy_call
from tests.chaos.load.poison import Cook, Kind
from tests.chaos.load.silences import LENGTHS_MS, Silence, silence_name

POOL_CALLS: Final = 150
STEP_SECONDS: Final = 0.01
"""How long the sender sleeps before it looks for due events again."""
REPORT_SECONDS: Final = 1.0
POISON_SECONDS: Final = 1.0
SILENCES_SECONDS: Final = 1.0
"""From one round of calls with a silence of a known length to the next: some of them lie across
each fault.
"""
OF_ANOTHER_HASH: Final = "audit"
"""The input whose producer places its records by another hash than all others, as producers in
other languages do.
"""
SCORES: Final = "scores"
"""Stands beside the inputs: foreign records go there."""
HUNG_UP_SHARE: Final = 0.03
"""Calls without an announced end: only their silence says that they are over."""
MOST_PAUSE_MS: Final = 1_000
UNKNOWN_SECONDS: Final = 300.0
"""How long the client may not know a partition that there is: longer than a broker is away on a
busy machine.
"""
ASK_SECONDS: Final = 0.5
"""From one question for the partitions that the brokers know to the next."""
ANSWER_SECONDS: Final = 1.0
"""How long an answer may take; nothing is sent meanwhile."""
FLUSH_SECONDS: Final = 120.0
OWNER_IS_GONE: Final = 4  # exit code
_CLIENT: Final[dict[str, Any]] = {
    # neither doubled nor reordered when the broker goes away for a while
    "enable.idempotence": True,
    # few large batches: the machine has to carry the broker and the evaluators too
    "linger.ms": 40,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
    "delivery.report.only.error": True,
    # so that a restart of the broker is a gap of its own length and no longer
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 500,
    "log_level": 0,
}


@dataclass(slots=True)
class Report:
    """How far the load is.

    Attributes:
        open_calls: Calls that have begun and not ended.
        calls: Calls begun so far; the first so many names of `call_name` are theirs.
        events: Records sent, without the bad ones.
        poison: Bad records sent.
        poison_by_kind: How many of each kind.
        heavy: Heavy calls begun so far; the first so many names of `heavy_name` are theirs.
        silences: Calls with a silence of a known length begun so far; the first so many names of
            `silence_name` are theirs.
        paused: Inputs to which nothing is sent now, and everything sent before is acknowledged.
        failed: Records that the broker never took.
        cpu_seconds: Processor time of this process.
        behind_ms: How late the last event was sent.
        has_ended: Whether everything is sent and acknowledged.
    """

    open_calls: int = 0
    calls: int = 0
    events: int = 0
    poison: int = 0
    poison_by_kind: dict[str, int] = field(default_factory=dict)
    heavy: int = 0
    silences: int = 0
    paused: list[str] = field(default_factory=list)
    failed: int = 0
    cpu_seconds: float = 0.0
    behind_ms: int = 0
    has_ended: bool = False


def call_name(number: int) -> str:
    """The conversation id of the n-th call, from 0."""
    return f"call-{number:07d}"


def heavy_name(number: int) -> str:
    """The conversation id of the n-th heavy call, from 0."""
    return f"heavy-{number:04d}"


def uneven(partitions: int) -> dict[str, int]:
    """Partitions of each input, and of `scores`, where that has so many: inputs may have any
    number.
    """
    return {
        "pipecat": partitions,
        "elevenlabs": partitions + 1,
        "audit": partitions + 2,
        "judge": partitions,
        SCORES: partitions,
    }


def partition_of(source: str, name: bytes, partitions: int) -> int:
    """Where a call's records go on an input: as every producer of callgauge's decides it, or by
    another hash.
    """
    hashed = crc32(name) if source == OF_ANOTHER_HASH else int(murmur2(name) & 0x7FFFFFFF)
    return hashed % partitions


class _Line:
    """One call at a time, one after the other."""

    __slots__ = ("begin_seconds", "call", "is_hung_up", "name", "next", "partitions")

    def __init__(self) -> None:
        self.call: CallTemplate | None = None
        self.begin_seconds = 0
        self.name = b""
        self.partitions: Mapping[str, int] = {}
        self.next = 0
        self.is_hung_up = False


class Load:
    """Plays calls on so many lines until it is stopped.

    Attributes:
        report: How far it is.
        rate: How many times faster than real the calls are played. The times in their events stay
            real, so what is played faster runs ahead of the broker's clock.
    """

    def __init__(
        self,
        connect: Callable[[], Producer],
        bootstrap: str,
        prefix: str,
        *,
        partitions: Mapping[str, int],
        lines: int,
        ramp_seconds: float,
        seed: int,
        rate: float,
        poison: Collection[Kind] = frozenset(Kind),
        kinds: Sequence[CallKind] = KINDS,
        has_silences: bool = True,
    ) -> None:
        """Draws the pool; nothing is sent before `step`.

        Args:
            connect: Makes a client that sends. An input has a new one after each pause: a client
                does not find the leaders of a topic that was recreated, whose epochs begin at 0
                again (confluentinc/librdkafka, issue 4898).
            bootstrap: Where it sends to, for the bad records that need a client of their own.
            prefix: Put before each topic's name.
            partitions: Of each input by its source, and of `scores`.
            lines: How many calls there are at a time.
            ramp_seconds: Within this time the first call of each line begins.
            seed: Decides everything but the clock.
            rate: To begin with.
            poison: Which kinds of bad records there are.
            kinds: Which kinds of calls there are.
            has_silences: Whether there are calls with a silence of a known length.
        """
        self.report = Report()
        self._connect = connect
        self._bootstrap = bootstrap
        self._topics = {source.value: prefix + topic for source, topic in TOPIC_BY_SOURCE.items()}
        self._topics[SCORES] = prefix + SCORES_TOPIC
        self._producers = dict.fromkeys(self._topics, connect())
        self._partitions = dict(partitions)
        self._wanted_partitions = dict(partitions)
        self._held: dict[str, list[tuple[bytes, bytes]]] = {}
        self._pausing: dict[str, Future[None]] = {}
        self._ask_at = 0.0
        self._unsent: list[Message] = []
        self.rate = rate
        self._rng = random.Random(f"load {seed}")  # noqa: S311 - play, not secrets
        self._cook = Cook(random.Random(f"poison {seed}"), poison)  # noqa: S311 - as above
        self._has_poison = bool(poison)
        self._bad_producers: dict[tuple[str, str], Producer] = {}
        self._by_hand = ThreadPoolExecutor(1)
        self._pool = make_pool(seed, POOL_CALLS, kinds)
        now_ms = wall_clock_ms()
        self._lines = [_Line() for _ in range(lines)]
        # ascending: a heap
        self._due = [(now_ms + int(ramp_seconds * 1_000 * n / lines), n) for n in range(lines)]
        self._poison_due_ms = now_ms
        self._silences_due_ms = now_ms if has_silences else None
        self._silences: list[tuple[int, int, Silence]] = []

    def step(self) -> None:
        self._look_for_partitions()
        self._send_again()
        due = self._due
        while due and due[0][0] <= (now_ms := wall_clock_ms()):
            due_ms, number = due[0]
            heapq.heapreplace(due, (self._advance(self._lines[number], due_ms), number))
            self.report.behind_ms = now_ms - due_ms
        if self._has_poison and now_ms >= self._poison_due_ms:
            self._poison_due_ms = now_ms + int(POISON_SECONDS * 1_000)
            self._send_poison(now_ms)
        self._play_silences(wall_clock_ms())
        self._poll()
        self._look_at_pauses()

    def use_partitions(self, source: str, count: int) -> None:
        """An input has so many: as soon as the client knows all of them, calls go on where their
        name leads then.
        """
        self._wanted_partitions[source] = count

    def pause(self, source: str) -> None:
        """Holds back what is for this input. The report says when everything that was sent to it is
        acknowledged.
        """
        self._held.setdefault(source, [])
        shared = self._producers[source]
        others = [
            each
            for each, producer in self._producers.items()
            if producer is shared and each != source
        ]
        if others:  # so that this one soon has nothing on its way
            self._producers |= dict.fromkeys(others, self._connect())
        # comes after those that are on their way
        self._pausing[source] = self._by_hand.submit(lambda: None)

    def _look_at_pauses(self) -> None:
        """Without waiting: what is for other inputs goes on, also while the brokers of this one are
        away.
        """
        for source, by_hand in list(self._pausing.items()):
            is_unsent = any(each.topic() == self._topics[source] for each in self._unsent)
            if by_hand.done() and not is_unsent and not any(map(len, self._clients_of(source))):
                del self._pausing[source]
        self.report.paused = sorted(self._held.keys() - self._pausing)

    def _clients_of(self, source: str) -> Iterator[Producer]:
        yield self._producers[source]
        for (each, _), producer in self._bad_producers.items():
            if each == source:
                yield producer

    def _clients(self) -> set[Producer]:
        return set(self._producers.values())

    def _poll(self) -> None:
        for each in (*self._clients(), *self._bad_producers.values()):
            each.poll(0)

    def resume(self, source: str) -> None:
        """Sends what was held back, and goes on; with new clients if the pause had begun."""
        held = self._held.pop(source, [])
        if self._pausing.pop(source, None) is None:
            self._producers[source] = self._connect()
            self._bad_producers = {
                place: each for place, each in self._bad_producers.items() if place[0] != source
            }
        self.report.paused = sorted(self._held.keys() - self._pausing)
        for value, key in held:
            self._produce(source, value, key, partition_of(source, key, self._partitions[source]))

    def _look_for_partitions(self) -> None:
        counts = self._wanted_partitions
        if counts == self._partitions or time.monotonic() < self._ask_at:
            return
        self._ask_at = time.monotonic() + ASK_SECONDS
        if all(self._knows(source, counts[source]) for source in self._topics):
            self._partitions = dict(counts)
            for line in self._lines:
                line.partitions = self._places(line.name)

    def _knows(self, source: str, count: int) -> bool:
        """Whether the input's client knows so many partitions of it."""
        topic = self._topics[source]
        try:
            known = self._producers[source].list_topics(topic, timeout=ANSWER_SECONDS).topics
        except KafkaException:  # a broker is away
            return False
        return topic in known and len(known[topic].partitions) >= count

    def _places(self, name: bytes) -> dict[str, int]:
        """The partition of a call on each topic."""
        return {
            source: partition_of(source, name, count) for source, count in self._partitions.items()
        }

    def _play_silences(self, now_ms: int) -> None:
        if self._silences_due_ms is not None and now_ms >= self._silences_due_ms:
            self._silences_due_ms = now_ms + int(SILENCES_SECONDS * 1_000)
            for _ in LENGTHS_MS:
                silence = Silence(self.report.silences)
                heapq.heappush(self._silences, (now_ms, silence.number, silence))
                self.report.silences += 1
        while self._silences and self._silences[0][0] <= now_ms:
            _, number, silence = heapq.heappop(self._silences)
            name = silence_name(number).encode()
            source, value = silence.event(now_ms)
            self._send(source, value, name, partition_of(source, name, self._partitions[source]))
            if (wait_ms := silence.wait_ms) is not None:
                heapq.heappush(self._silences, (now_ms + wait_ms, number, silence))

    def play_heavy(self) -> None:
        """Sends a heavy call, from its beginning to its end."""
        name = heavy_name(self.report.heavy).encode()
        self.report.heavy += 1
        for source, value in heavy_call(wall_clock_ms()):
            self._send(source, value, name, partition_of(source, name, self._partitions[source]))

    def end(self) -> None:
        """Ends every call that is open and waits until the broker has everything."""
        self._silences_due_ms = None
        while self._silences:  # to their ends: a silence that is cut short proves nothing
            self._play_silences(wall_clock_ms())
            self._poll()
            time.sleep(STEP_SECONDS)
        for source in list(self._held):
            self.resume(source)
        now_ms = wall_clock_ms()
        ended = json.dumps(
            {"type": "call_ended", "timestamp": now_ms, "reason": "goodbye"}
        ).encode()
        for line in self._lines:
            if line.call is not None:
                self._send("audit", ended, line.name, line.partitions["audit"])
                line.call = None
        self.report.open_calls = 0
        self._by_hand.shutdown()
        for each in self._bad_producers.values():
            each.flush(FLUSH_SECONDS)
        left = self._flush()
        if self._unsent:
            self._send_again()
            left = self._flush()
        self.report.failed += left + len(self._unsent)
        self.report.has_ended = True

    def _flush(self) -> int:
        return sum(each.flush(FLUSH_SECONDS) for each in self._clients())

    def _advance(self, line: _Line, due_ms: int) -> int:
        """Sends the line's next event; when the one after it is due."""
        if line.call is None:
            return self._begin(line, due_ms)
        events = line.call.events
        event = events[line.next]
        line.next += 1
        if not (event.is_end and line.is_hung_up):
            value = event.rendered(line.begin_seconds, line.name)
            self._send(event.source, value, line.name, line.partitions[event.source])
        if line.next == len(events):
            line.call = None
            self.report.open_calls -= 1
            return due_ms + self._rng.randrange(MOST_PAUSE_MS)
        return due_ms + self._paced(events[line.next].after_ms - event.after_ms)

    def _begin(self, line: _Line, due_ms: int) -> int:
        number = self.report.calls
        line.call = self._rng.choice(self._pool)
        line.name = call_name(number).encode()
        line.partitions = self._places(line.name)
        # whole seconds only: the events of this call are up to a second old
        line.begin_seconds = due_ms // 1_000
        line.next = 0
        line.is_hung_up = self._rng.random() < HUNG_UP_SHARE
        self.report.calls += 1
        self.report.open_calls += 1
        return due_ms + self._paced(line.call.events[0].after_ms)

    def _paced(self, wait_ms: int) -> int:
        return wait_ms if self.rate == 1 else int(wait_ms / self.rate)

    def _send_poison(self, now_ms: int) -> None:
        live = [line for line in self._rng.choices(self._lines, k=8) if line.call is not None]
        if not live:
            return
        bad = self._cook.draw(live[0].name, now_ms)
        if bad.source in self._held:
            return
        partition = live[0].partitions[bad.source]
        if bad.raw is not None:
            self._by_hand.submit(self._send_by_hand, bad.kind, bad.source, partition, bad.raw)
            return
        self._count(bad.kind)
        if bad.codec is None:
            self._produce(bad.source, bad.value, bad.key, partition)
        else:  # the broker may well not take it, and then it has done its duty
            producer = self._bad_producer(bad.source, bad.codec)
            # as above: it may not know of a new partition yet
            with contextlib.suppress(KafkaException):
                producer.produce(self._topics[bad.source], bad.value, bad.key, partition)
            producer.poll(0)

    def _count(self, kind: Kind) -> None:
        self.report.poison += 1
        by_kind = self.report.poison_by_kind
        by_kind[kind] = by_kind.get(kind, 0) + 1

    def _bad_producer(self, source: str, codec: str) -> Producer:
        if (source, codec) not in self._bad_producers:
            own = {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "message.max.bytes": 1_000_000_000,
            }
            self._bad_producers[source, codec] = Producer(
                {**_CLIENT, **own, "delivery.report.only.error": False}
            )
        return self._bad_producers[source, codec]

    def _send_by_hand(self, kind: Kind, source: str, partition: int, batches: bytes) -> None:
        topic = self._topics[source]
        # a broker that is away gets none
        with contextlib.suppress(raw_batch.RefusedError, KafkaException):
            metadata = self._producers[source].list_topics(topic, timeout=5)
            leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
            raw_batch.send(leader.host, leader.port, topic, partition, batches)
            self._count(kind)

    def _send(self, source: str, value: bytes, key: bytes, partition: int) -> None:
        self.report.events += 1
        if source in self._held:
            self._held[source].append((value, key))
            return
        self._produce(source, value, key, partition)

    def _produce(self, source: str, value: bytes | None, key: bytes | None, partition: int) -> None:
        topic, producer = self._topics[source], self._producers[source]
        deadline = time.monotonic() + UNKNOWN_SECONDS
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=self._failed)
            # a partition so new that the client, or the broker, does not know it
            except KafkaException as error:
                if not _is_unknown(error.args[0]) or time.monotonic() > deadline:
                    raise
                with contextlib.suppress(KafkaException):
                    producer.list_topics(topic, timeout=ANSWER_SECONDS)
                producer.poll(STEP_SECONDS)
            else:
                return

    def _send_again(self) -> None:
        """Sends the records again that the client had taken for a partition of which it then heard
        that there is none.
        """
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            (source,) = (
                source for source, topic in self._topics.items() if topic == message.topic()
            )
            partition = message.partition()
            assert partition is not None
            self._produce(source, message.value(), message.key(), partition)

    def _failed(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if _is_unknown(error):
            self._unsent.append(message)
        else:
            self.report.failed += 1


def _is_unknown(error: KafkaError) -> bool:
    return error.code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)


def _tell(report: Report) -> None:
    report.cpu_seconds = round(time.process_time(), 2)
    print(json.dumps(asdict(report)), flush=True)


def _listen(commands: list[str]) -> None:
    for line in sys.stdin:
        commands.append(line.strip())  # noqa: PERF401  # each as it comes, not all at the end
    os._exit(OWNER_IS_GONE)


def main() -> None:
    """Plays until it is stopped."""
    parser = argparse.ArgumentParser(prog="tests.chaos.load.load")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--partitions", type=json.loads, required=True, help="by source, as JSON")
    parser.add_argument("--lines", type=int, required=True)
    parser.add_argument("--ramp", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--poison", type=Kind, nargs="*", default=list(Kind))
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--silences", action="store_true")
    arguments = parser.parse_args()
    commands: list[str] = []
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    load = Load(
        lambda: Producer({**_CLIENT, "bootstrap.servers": arguments.bootstrap}),
        arguments.bootstrap,
        arguments.prefix,
        partitions=arguments.partitions,
        lines=arguments.lines,
        ramp_seconds=arguments.ramp,
        seed=arguments.seed,
        rate=arguments.rate,
        poison=arguments.poison,
        kinds=arguments.kinds,
        has_silences=arguments.silences,
    )
    told_at = 0.0
    while True:
        if commands:
            command, _, argument = commands.pop(0).partition(" ")
            match command:
                case "end":
                    break
                case "rate":
                    load.rate = float(argument)
                case "partitions":
                    source, _, count = argument.partition(" ")
                    load.use_partitions(source, int(count))
                case "pause":
                    load.pause(argument)
                case "resume":
                    load.resume(argument)
                case "heavy":
                    load.play_heavy()
        load.step()
        if time.monotonic() - told_at >= REPORT_SECONDS:
            told_at = time.monotonic()
            _tell(load.report)
        time.sleep(STEP_SECONDS)
    load.end()
    _tell(load.report)


# -- the load as its owner sees it
# -------------------------------------------------------------------------------------


class LoadError(Exception):
    """The load broke down: the run proves nothing."""


class LoadProcess:
    """Runs from construction until it is asked to end, or `stop`."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        *,
        partitions: int | Mapping[str, int],
        lines: int,
        ramp_seconds: float,
        seed: int,
        rate: float = 1,
        poison: Collection[Kind] = frozenset(Kind),
        kinds: Sequence[CallKind] = KINDS,
        has_silences: bool = False,
    ) -> None:
        if isinstance(partitions, int):
            partitions = dict.fromkeys(uneven(partitions), partitions)
        command = [
            sys.executable,
            "-m",
            "tests.chaos.load.load",
            "--bootstrap",
            bootstrap,
            "--prefix",
            prefix,
        ]
        command += [
            "--partitions",
            json.dumps(partitions),
            "--lines",
            str(lines),
            "--ramp",
            str(ramp_seconds),
        ]
        command += [
            "--seed",
            str(seed),
            "--rate",
            str(rate),
            "--poison",
            *poison,
            "--kinds",
            *kinds,
        ]
        command += ["--silences"] if has_silences else []
        self._process = subprocess.Popen(
            tied_to_us(command),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._report = Report()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def report(self) -> Report:
        """Its last report."""
        report = self._report
        if report.failed:
            raise LoadError(
                f"the load: the broker did not take {report.failed} records; the run proves nothing"
            )
        if not report.has_ended and self._process.poll() is not None:
            raise LoadError(
                f"the load: its process ended with {self._process.returncode}; the run proves "
                "nothing"
            )
        return report

    def set_rate(self, rate: float) -> None:
        """So many times faster than real from now on."""
        self._tell(f"rate {rate}")

    def use_partitions(self, source: str, count: int) -> None:
        """An input has so many partitions from now on."""
        self._tell(f"partitions {source} {count}")

    def pause(self, source: str) -> None:
        """Holds back what is for an input; the report says when all that was sent to it is
        acknowledged.
        """
        self._tell(f"pause {source}")

    def resume(self, source: str) -> None:
        """Sends what was held back, and goes on."""
        self._tell(f"resume {source}")

    def play_heavy(self) -> None:
        """Plays a heavy call, all of it at once."""
        self._tell("heavy")

    def end(self) -> None:
        """Ends every call; the report says when that is done. Harmless when repeated."""
        if not self._report.has_ended:
            self._tell("end")

    def stop(self) -> None:
        """Ends the process at once."""
        process = self._process
        process.kill()
        process.wait()
        self._reader.join()  # it ends with the pipe
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # the last report, which was not read any more
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._report = Report(**json.loads(line))


if __name__ == "__main__":
    main()
