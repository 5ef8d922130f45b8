"""The common parts of all runs: a cluster, topics, a fleet of evaluators, the load, and a reader of the scores."""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiokafka.errors import KafkaError

from schemas.scores.records import GENERATION
from schemas.topics import OWNER_MARK_KEY, SCORES_TOPIC
from tests.chaos.cluster.administration import asked
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.cluster.proxy import DOORS
from tests.chaos.evaluators.fleet import COMMAND, Fleet
from tests.chaos.evaluators.newer_version import is_newer
from tests.chaos.load.foreign import is_foreign
from tests.chaos.load.load import LoadProcess, call_name, heavy_name
from tests.chaos.load.poison import Kind
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.deleted_records import DeletedRecords, Deletion
from tests.chaos.verdict.topic_reader import Follower, ReadRecord
from tests.chaos.verdict.verdict import Traces, judged, limits_of, rules_of
from tests.support.brokers.topic_changes import add_partitions
from tests.support.patience import patient

PREFIX: Final = "chaos."
SESSION_SECONDS: Final = 10.0
"""After so long a silence the group gives an evaluator's partitions to another."""
LOOK_SECONDS: Final = 0.1
PROGRESS_SECONDS: Final = 10.0
READY_SECONDS: Final = 90.0
CREATE_TRIES: Final = 3
"""A busy broker may need longer to show a topic than the command waits; created topics and partitions stay."""
IDLE_MS: Final = 40_000
"""Longer than any silence in a simulated call together with a restart of the broker."""
GRACE_MS: Final = 2_000
QUIET_SECONDS: Final = IDLE_MS / 1_000 + SESSION_SECONDS + 40
"""When calls are still open and nothing was written for so long, nothing will be."""
LIMITS: Final = {"CALLGAUGE_LIMITS__IDLE_MS": str(IDLE_MS), "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": str(GRACE_MS)}

_OF_A_LATER_GENERATION = re.compile(rb'"revision":\d{%d,}' % len(str(GENERATION)))

Say = Callable[[str], None]


class RunError(Exception):
    """The run could not be made, so it proves nothing."""


class Stage:
    """Everything that runs, from `with` to its end; nothing of it outlives that.

    Attributes:
        prefix: Before each topic's name.
        cluster: The brokers.
        fleet: The evaluators; none before `wait_for_fleet`.
        partitions: Of every topic.
        kept: Records deleted from the inputs.
        deletions: Those that may have cost calls some of their records.
        scores: Records of `scores` seen so far.
        newer_closings: Calls that evaluators of the newer version have closed so far.
        of_later_generations: Records of `scores` with a revision that calls have only after a change of versions.
        status: Adds to the progress line, if set.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        say: Say,
        *,
        partitions: int,
        command: Sequence[str] = COMMAND,
        prefix: str = PREFIX,
        limits: Mapping[str, str] = LIMITS,
        through_proxy: bool = False,
    ) -> None:
        """Nothing runs before `with`.

        Args:
            cluster: The brokers, running.
            folder: For logs.
            say: Takes each line of the report.
            partitions: Of every topic.
            command: Command that starts an evaluator, before `run --roles evaluator`.
            prefix: Before each topic's name and the group's, so that several runs may share a cluster.
            limits: Of the evaluators, as their settings.
            through_proxy: Whether evaluators reach the brokers through the proxy.
        """
        self.prefix = prefix
        self.cluster = cluster
        self.partitions = partitions
        self.environment = {
            "CALLGAUGE_BOOTSTRAP": cluster.bootstrap,
            "CALLGAUGE_TOPIC_PREFIX": prefix,
            "CALLGAUGE_EVALUATOR_GROUP": self.group,
            "CALLGAUGE_HTTP_PORT": "0",
            "COLUMNS": "200",
            **limits,
        }
        doors = {door: cluster.bootstrap_through(door) for door in DOORS} if through_proxy else {}
        self.fleet = Fleet(folder, self.environment, command, doors)
        self.kept = DeletedRecords(folder / "deleted")
        self.deletions: list[Deletion] = []
        self.scores = 0
        self.newer_closings = 0
        self.of_later_generations = 0
        self.status: Callable[[], str] | None = None
        self._say = say
        self._began = self._told_at = self._written_at = time.monotonic()
        self._scores_told = 0
        self._folder = folder
        self._closed: set[bytes] = set()
        self._closed_on: set[tuple[int, bytes]] = set()
        self._unclosed: set[tuple[int, bytes]] = set()
        self._may_never_close: set[bytes] = set()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._load: LoadProcess | None = None
        self._running = ExitStack()

    def __enter__(self) -> Self:
        """Makes the topics."""
        replicas = len(self.cluster.nodes)
        command = [*COMMAND, "topics", "create", "--partitions", str(self.partitions)]
        command += ["--replication-factor", str(replicas)]
        for _ in range(CREATE_TRIES):
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.environment})
            if done.returncode == 0:
                break
        else:
            raise RunError(f"the topics could not be made:\n{done.stdout}{done.stderr}")
        self._follower = Follower(self.cluster.bootstrap, self.prefix + SCORES_TOPIC, self.partitions)
        self._running.callback(self._follower.close)
        self._running.callback(self.fleet.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def closed(self) -> int:
        """Calls of which the closed fact was seen."""
        return len(self._closed)

    def closed_on(self, number: int) -> frozenset[bytes]:
        """Keys of the calls of which the closed fact was seen on this partition number.

        A call that is open while partitions are added is two calls: one may be over while the other goes on.
        """
        return frozenset(key for partition, key in self._closed_on if partition == number)

    @property
    def group(self) -> str:
        """The consumer group of the evaluators."""
        return f"{self.prefix}evaluator"

    @property
    def load(self) -> LoadProcess:
        """The load; there from `start_load` on."""
        assert self._load is not None
        return self._load

    def wait_for_fleet(self, evaluators: int) -> None:
        """Starts so many evaluators and waits until they show their metrics."""
        for _ in range(evaluators):
            self.fleet.join()
        deadline = time.monotonic() + patient(READY_SECONDS)
        while not all(member.metrics_address for member in self.fleet.members):
            self.look()
            if time.monotonic() > deadline:
                tails = "\n".join(member.tail() for member in self.fleet.members)
                raise RunError(f"not every evaluator became ready in time; the last lines of each:\n{tails}")

    def start_load(
        self,
        *,
        calls: int,
        ramp_seconds: float,
        seed: int,
        rate: float = 1.0,
        poison: Collection[Kind] = frozenset(Kind),
    ) -> None:
        """Starts the load; returns once every line has begun its first call."""
        self._load = LoadProcess(
            self.cluster.bootstrap,
            self.prefix,
            partitions=self.partitions,
            lines=calls,
            ramp_seconds=ramp_seconds,
            seed=seed,
            rate=rate,
            poison=poison,
        )
        self._running.callback(self._load.stop)
        while not self._load.report.calls:
            self.look()  # it draws its calls first, which takes a while on a busy machine
        self.look_for(ramp_seconds)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something later; the load does not end before."""
        self._due.append((time.monotonic() + seconds, action))

    def add_partitions(self, more: int) -> None:
        """Adds partitions to every topic that has as many as the inputs, outputs first; then the load uses them."""
        count = self.partitions + more
        for tries_left in reversed(range(CREATE_TRIES)):
            try:
                self._add_partitions(count)
                break
            except (KafkaError, TimeoutError) as error:
                if not tries_left:
                    raise RunError(f"partitions could not be added: {error}") from error
        self.partitions = count
        self._follower.follow(count)
        self.load.use_partitions(count)

    def _add_partitions(self, count: int) -> None:
        topics = asked(self.cluster.bootstrap, lambda admin: admin.describe_topics())
        ours = [
            each["topic"]
            for each in topics
            if each["topic"].startswith(self.prefix) and len(each["partitions"]) == self.partitions
        ]
        outputs_first = sorted(ours, key=lambda each: each.endswith(".events"))
        asyncio.run(add_partitions(self.cluster.bootstrap, dict.fromkeys(outputs_first, count)))

    def lost(self, deletion: Deletion, keys: set[bytes]) -> None:
        """These calls may have lost records: the run does not wait for their end."""
        self.deletions.append(deletion)
        self._may_never_close |= keys

    def look_for(self, seconds: float) -> None:
        """Lets time pass, attending to everything."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()

    def look(self, seconds: float = LOOK_SECONDS) -> list[ReadRecord]:
        """Lets so long pass: restarts due processes, follows the scores, reports progress; returns the new scores."""
        for node in self.cluster.nodes:
            if node.attend():
                self.note(f"node {node.number} starts again")
            node.must_run()
        for news in self.fleet.attend():
            self.note(news)
        self._do_what_is_due(time.monotonic())
        new = self._follower.new(seconds)
        records = [each for each in new if not is_foreign(each.key) and each.key != OWNER_MARK_KEY]
        if records:
            self._written_at = time.monotonic()
            self.scores += len(records)
            self._follow_calls(records)
        if self._load is not None and time.monotonic() - self._told_at >= PROGRESS_SECONDS:
            self._tell(self._load)
        return records

    def finish(self) -> None:
        """Ends the load after the last fault, and waits until every call is closed, or no more scores come.

        Then the fleet leaves in peace.
        """
        while self._due:
            self.look()
        self.note("the load ends; waiting until every call is closed")
        self.load.end()
        self._written_at = time.monotonic()
        while not self._everything_is_closed():
            self.look()
            if self.load.report.has_ended and time.monotonic() - self._written_at > QUIET_SECONDS:
                self.note(f"nothing was written for {QUIET_SECONDS:.0f} s, and calls are open")
                break
        while any(member.thaws_at is not None for member in self.fleet.members):
            self.look()  # a frozen evaluator may still have something to say
        self.look()
        self.part_in_peace()
        report = self.load.report
        self.note(f"load: {report.cpu_seconds:.0f} s of processor time for {report.events:,} events")

    def part_in_peace(self) -> None:
        """Lets every evaluator leave in order."""
        for member in self.fleet.running:
            member.terminate(for_good=True)
        deadline = time.monotonic() + patient(READY_SECONDS)
        while self.fleet.members and time.monotonic() < deadline:
            self.look()

    def judged(self) -> Findings:
        """The checker's findings about the topics as they are now."""
        self.note(f"judging {len(self._closed):,} closed calls, {self.scores:,} records of scores")
        settings = limits_of(self.environment), rules_of(self.environment)
        place = (self.cluster.bootstrap, self.prefix, self.partitions)
        return judged(Traces(*place, *settings, self._folder / "deleted", tuple(self.deletions)))

    def note(self, what: str) -> None:
        """One line of the report, with its time."""
        self._say(f"{time.monotonic() - self._began:6.0f} s  {what}")

    def _tell(self, load: LoadProcess) -> None:
        self.fleet.look_at_memory()
        now = time.monotonic()
        report = load.report
        per_second = (self.scores - self._scores_told) / (now - self._told_at)
        self._told_at, self._scores_told = now, self.scores
        members, running = len(self.fleet.members), len(self.fleet.running)
        parts = [
            f"open {report.open_calls:,}",
            f"closed {len(self._closed):,} of {report.calls:,}",
            f"events {report.events:,}",
            f"scores {per_second:,.0f}/s",
            f"evaluators {running}" + (f" of {members}" if running < members else ""),
            f"poison {report.poison}",
        ]
        if report.behind_ms > 1_000:
            parts.append(f"load is {report.behind_ms} ms behind")
        if self.status is not None:
            parts.append(self.status())
        self.note(", ".join(parts))

    def _do_what_is_due(self, now: float) -> None:
        due = [each for each in self._due if each[0] <= now]
        self._due = [each for each in self._due if each[0] > now]
        for _, action in sorted(due, key=lambda each: each[0]):
            action()

    def _follow_calls(self, records: Sequence[ReadRecord]) -> None:
        for each in records:
            if each.value is None or each.key is None:
                continue
            self.of_later_generations += _OF_A_LATER_GENERATION.search(each.value) is not None
            if b'"name":"closed"' in each.value:
                self._closed.add(each.key)
                self._closed_on.add((each.partition, each.key))
                self.newer_closings += is_newer(each.value)
                self._unclosed.discard((each.partition, each.key))
            elif b'"status":"final"' not in each.value:
                self._unclosed.add((each.partition, each.key))

    def _everything_is_closed(self) -> bool:
        report = self.load.report
        if not report.has_ended or len(self._closed | self._may_never_close) < report.calls:
            return False
        if any(key not in self._may_never_close for _, key in self._unclosed):
            return False
        names = (call_name(number).encode() for number in range(report.calls))
        heavy = (heavy_name(number).encode() for number in range(report.heavy))
        return all(each in self._closed or each in self._may_never_close for each in (*names, *heavy))
