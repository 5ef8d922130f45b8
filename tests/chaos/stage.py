"""The common parts of all runs: a cluster, topics, sequencers and evaluators, the load, and a
reader of the scores.
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiokafka.errors import KafkaError

from schemas.closed_sets import InputSource
from schemas.log import Positions
from schemas.topics import EVENTS_TOPIC, OWNER_MARK_KEY, SCORES_TOPIC, TOPIC_BY_SOURCE
from tests.chaos.cluster.administration import asked
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.cluster.proxy import DOORS
from tests.chaos.evaluators.fleet import COMMAND, LAG_MESSAGES, Fleet, Member, PageError, samples
from tests.chaos.evaluators.newer_version import is_newer
from tests.chaos.load.foreign import is_foreign
from tests.chaos.load.load import LoadProcess, call_name, heavy_name, uneven
from tests.chaos.load.poison import Kind
from tests.chaos.load.silences import silence_name
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.deleted_records import DeletedRecords, Deletion, Excuse
from tests.chaos.verdict.topic_reader import Follower, ReadRecord, newest_positions
from tests.chaos.verdict.verdict import Traces, judged, limits_of, rules_of
from tests.support.brokers.topic_changes import add_partitions
from tests.support.patience import patient

PREFIX: Final = "chaos."
SESSION_SECONDS: Final = 10.0
"""After so long a silence the group gives an evaluator's partitions to another."""
SEQUENCERS: Final = 2
"""One is active, the other stands by."""
LOOK_SECONDS: Final = 0.1
PROGRESS_SECONDS: Final = 10.0
READY_SECONDS: Final = 90.0
CREATE_TRIES: Final = 3
"""A busy broker may need longer to show a topic than the command waits; created topics and
partitions stay.
"""
IDLE_MS: Final = 40_000
"""Longer than any silence in a simulated call together with a restart of the broker."""
GRACE_MS: Final = 2_000
QUIET_SECONDS: Final = IDLE_MS / 1_000 + SESSION_SECONDS + 40
"""When calls are still open and nothing was written for so long, nothing will be."""
LIMITS: Final = {
    "CALLGAUGE_LIMITS__IDLE_MS": str(IDLE_MS),
    "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": str(GRACE_MS),
    # so that a silence of a little more than 3 s is dead air
    "CALLGAUGE_LIMITS__DELIVERY_ALLOWANCE_MS": "0",
}

_SAID_AGAIN = re.compile(rb'"revision":\d*[13579],')

Say = Callable[[str], None]


class RunError(Exception):
    """The run could not be made, so it proves nothing."""


class Stage:
    """Everything that runs, from `with` to its end; nothing of it outlives that.

    Attributes:
        prefix: Before each topic's name.
        cluster: The brokers.
        fleet: The evaluators; none before `wait_for_fleet`.
        sequencers: The same of those who write the log.
        partitions: Of `events`, and of the topics that have as many.
        inputs: Partitions of each input by its source, and of `scores`.
        kept: Records deleted from the topics.
        deletions: Those of records that may not have been read.
        excuses: When records of an input may come after the time that was known.
        scores: Records of `scores` seen so far.
        newer_closings: Calls that evaluators of the newer version have closed so far.
        said_again: Records of `scores` with a revision that calls have only after a change of
            versions.
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
            partitions: Of every topic; some inputs have more.
            command: Command that starts a sequencer or an evaluator, before `run --roles`.
            prefix: Before each topic's name and the group's, so that several runs may share a
                cluster.
            limits: As settings of sequencers and evaluators.
            through_proxy: Whether they reach the brokers through the proxy.
        """
        self.prefix = prefix
        self.cluster = cluster
        self.partitions = partitions
        self.inputs = uneven(partitions)
        self.environment = {
            "CALLGAUGE_BOOTSTRAP": cluster.bootstrap,
            "CALLGAUGE_TOPIC_PREFIX": prefix,
            "CALLGAUGE_HTTP_PORT": "0",
            "COLUMNS": "200",
            **limits,
        }
        doors = {door: cluster.bootstrap_through(door) for door in DOORS} if through_proxy else {}
        self.fleet = Fleet("evaluator", folder, self.environment, command, doors)
        self.sequencers = Fleet("sequencer", folder, self.environment, command, doors)
        self.kept = DeletedRecords(folder / "deleted")
        self.deletions: list[Deletion] = []
        self.excuses: list[Excuse] = []
        self.scores = 0
        self.newer_closings = 0
        self.said_again = 0
        self.status: Callable[[], str] | None = None
        self._say = say
        self._began = self._told_at = self._written_at = time.monotonic()
        self._scores_told = 0
        self._folder = folder
        self._closed: set[bytes] = set()
        self._unclosed: set[bytes] = set()
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
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, **self.environment}
            )
            if done.returncode == 0:
                break
        else:
            raise RunError(f"the topics could not be made:\n{done.stdout}{done.stderr}")
        more = {
            self.topic_of(source): count
            for source, count in self.inputs.items()
            if count > self.partitions
        }
        self._asked_for_partitions(more)
        self._follower = Follower(
            self.cluster.bootstrap, self.prefix + SCORES_TOPIC, self.partitions
        )
        self._running.callback(self._follower.close)
        self._running.callback(self.fleet.stop)
        self._running.callback(self.sequencers.stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    @property
    def closed(self) -> int:
        """Calls of which the closed row was seen."""
        return len(self._closed)

    @property
    def closed_keys(self) -> frozenset[bytes]:
        """Keys of the calls of which the closed row was seen."""
        return frozenset(self._closed)

    @property
    def members(self) -> list[Member]:
        """Sequencers and evaluators."""
        return [*self.sequencers.members, *self.fleet.members]

    def topic_of(self, source: str) -> str:
        """The topic of an input, or `scores`."""
        return self.prefix + (
            SCORES_TOPIC if source == SCORES_TOPIC else TOPIC_BY_SOURCE[InputSource(source)]
        )

    def positions(self) -> Positions:
        """Where each input stands, by the newest tick; none before the first one."""
        return newest_positions(self.cluster.bootstrap, self.prefix + EVENTS_TOPIC)

    @property
    def group(self) -> str:
        """The consumer group of the evaluators."""
        return f"{self.prefix}callgauge-evaluator"

    @property
    def load(self) -> LoadProcess:
        """The load; there from `start_load` on."""
        assert self._load is not None
        return self._load

    def wait_for_fleet(self, evaluators: int, sequencers: int = SEQUENCERS) -> None:
        """Starts so many of each and waits until they show their metrics."""
        for _ in range(sequencers):
            self.sequencers.join()
        for _ in range(evaluators):
            self.fleet.join()
        deadline = time.monotonic() + patient(READY_SECONDS)
        while not all(member.metrics_address for member in self.members):
            self.look()
            if time.monotonic() > deadline:
                tails = "\n".join(member.tail() for member in self.members)
                raise RunError(
                    f"not every process became ready in time; the last lines of each:\n{tails}"
                )

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
            partitions=self.inputs,
            lines=calls,
            ramp_seconds=ramp_seconds,
            seed=seed,
            rate=rate,
            poison=poison,
            has_silences=True,
        )
        self._running.callback(self._load.stop)
        while not self._load.report.calls:
            self.look()  # it draws its calls first, which takes a while on a busy machine
        self.look_for(ramp_seconds)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something later; the load does not end before."""
        self._due.append((time.monotonic() + seconds, action))

    def add_partitions(self, more: int) -> None:
        """Adds partitions to every input; then the load uses them. Those of `events` and of outputs
        stay as they are.
        """
        wanted = {
            source: count + more for source, count in self.inputs.items() if source != SCORES_TOPIC
        }
        self._asked_for_partitions(
            {self.topic_of(source): count for source, count in wanted.items()}
        )
        for source, count in wanted.items():
            self.inputs[source] = count
            self.load.use_partitions(source, count)

    def _asked_for_partitions(self, counts: Mapping[str, int]) -> None:
        """Gives topics so many partitions, unless an attempt whose answer was lost did so."""
        for tries_left in reversed(range(CREATE_TRIES)):
            try:
                topics = asked(
                    self.cluster.bootstrap, lambda admin: admin.describe_topics(list(counts))
                )
                there = {each["topic"]: len(each["partitions"]) for each in topics}
                wanted = {topic: count for topic, count in counts.items() if there[topic] < count}
                asyncio.run(add_partitions(self.cluster.bootstrap, wanted))
            except (KafkaError, TimeoutError) as error:
                if not tries_left:
                    raise RunError(f"partitions could not be added: {error}") from error
            else:
                return

    def lost(self, deletion: Deletion, keys: set[bytes]) -> None:
        """These calls may have lost records, even all of them: the run does not wait
        for their end.
        """
        self.deletions.append(deletion)
        self._may_never_close |= keys

    def look_for(self, seconds: float) -> None:
        """Lets time pass, attending to everything."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()

    def look(self, seconds: float = LOOK_SECONDS) -> list[ReadRecord]:
        """Lets so long pass: restarts due processes, follows the scores, reports progress; returns
        the new scores.
        """
        for node in self.cluster.nodes:
            if node.attend():
                self.note(f"node {node.number} starts again")
            node.must_run()
        for news in (*self.sequencers.attend(), *self.fleet.attend()):
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
        """Ends the load after the last fault, and waits until every call is closed, or no more
        scores come.

        Then everybody leaves in peace.
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
        while any(member.thaws_at is not None for member in self.members):
            self.look()  # who is frozen may still have something to say
        self.look()
        self.part_in_peace()
        report = self.load.report
        self.note(
            f"load: {report.cpu_seconds:.0f} s of processor time for {report.events:,} events"
        )

    def part_in_peace(self) -> None:
        """Lets sequencers leave in order, and evaluators when they have folded the log to its end,
        as the judgement does.
        """
        for member in self.sequencers.running:
            member.terminate(for_good=True)
        deadline = time.monotonic() + patient(READY_SECONDS)
        while (self.sequencers.members or self._is_behind()) and time.monotonic() < deadline:
            self.look()
        for member in self.fleet.running:
            member.terminate(for_good=True)
        deadline = time.monotonic() + patient(READY_SECONDS)
        while self.members and time.monotonic() < deadline:
            self.look()

    def _is_behind(self) -> bool:
        """Whether evaluators have records of the log left to fold, or partitions to take over."""
        try:
            lags = [
                lag for member in self.fleet.running for _, lag in samples(member, LAG_MESSAGES)
            ]
        except PageError:
            return True
        return bool(self.fleet.running) and (len(lags) < self.partitions or any(lags))

    def judged(self) -> Findings:
        """The checker's findings about the topics as they are now."""
        self.note(f"judging {len(self._closed):,} closed calls, {self.scores:,} records of scores")
        settings = limits_of(self.environment), rules_of(self.environment)
        counts = {source: count for source, count in self.inputs.items() if source != SCORES_TOPIC}
        place = (self.cluster.bootstrap, self.prefix, self.partitions, counts)
        kept = self._folder / "deleted"
        return judged(
            Traces(
                *place, *settings, kept, tuple(self.deletions), tuple(self.excuses), self.kept.made
            )
        )

    def told(self) -> Iterator[str]:
        """What there is to say of the processes."""
        yield from self.sequencers.told()
        yield from self.fleet.told()

    def note(self, what: str) -> None:
        """One line of the report, with its time."""
        self._say(f"{time.monotonic() - self._began:6.0f} s  {what}")

    def _tell(self, load: LoadProcess) -> None:
        self.sequencers.look_at_memory()
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
            f"sequencers {len(self.sequencers.running)} of {len(self.sequencers.members)}",
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
            self.said_again += _SAID_AGAIN.search(each.value) is not None
            if b'"state":"closed"' in each.value:
                self._closed.add(each.key)
                self.newer_closings += is_newer(each.value)
                self._unclosed.discard(each.key)
            elif each.key not in self._closed:
                self._unclosed.add(each.key)

    def _everything_is_closed(self) -> bool:
        report = self.load.report
        if not report.has_ended or len(self._closed | self._may_never_close) < report.calls:
            return False
        if self._unclosed - self._may_never_close:
            return False
        names = [call_name(number).encode() for number in range(report.calls)]
        names += [heavy_name(number).encode() for number in range(report.heavy)]
        names += [silence_name(number).encode() for number in range(report.silences)]
        return all(each in self._closed or each in self._may_never_close for each in names)
