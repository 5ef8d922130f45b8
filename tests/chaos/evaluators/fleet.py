"""Sequencers and evaluators as processes of their own, started again when they end, as a cluster
manager would.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.cluster.cluster import tied_to_us
from tests.chaos.evaluators import stepped_clock
from tests.chaos.evaluators.newer_version import NEWER
from tests.support.patience import patient

ROOT: Final = Path(__file__).parents[3]
COMMAND: Final = (str(Path(sys.executable).with_name("callgauge")),)
ALTERED: Final = (sys.executable, "-m", "tests.chaos.evaluators.altered")
"""The same, in circumstances that faults may change."""
RESTART_SECONDS: Final = 1.0
"""From the end of a process to the start of the next one in its place."""
LEAVE_SECONDS: Final = 30.0
"""How long SIGTERM may take before the process is killed, and counted as one that did not leave."""
TAIL_LINES: Final = 12
MOST_CHARS: Final = 300

_MEMORY = re.compile(r"^VmHWM:\s+(\d+) kB", re.M)
_ADDRESS = re.compile(r"http://[\d.]+:\d+/metrics")


Incident = tuple[str, str]
"""An act of a process, and the last line of its log."""


class Member:
    """One place in the fleet and the process that is in it now, if any.

    Attributes:
        role: Its role: evaluator or sequencer.
        number: From 1.
        thaws_at: When a frozen process goes on; None while it is not frozen.
        is_newer: Whether the next process in this place is one of a newer version, as only
            evaluators are.
        door: Through which door of the proxy it comes, if it comes through one.
    """

    def __init__(
        self,
        role: str,
        number: int,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        incidents: Counter[Incident],
        door: str | None = None,
    ) -> None:
        self.role = role
        self.number = number
        self.incidents = incidents
        self.is_newer = False
        self.door = door
        self._clock = folder / f"clock-{role}-{number}"
        stepped_clock.step(self._clock, 0)
        self.thaws_at: float | None = None
        self._folder = folder
        self._command = [*command, "run", "--roles", role]
        self._environment = environment
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder
        self._kill_at: float | None = None
        self._start_at: float | None = None
        self._expects_end = False
        self._is_leaving = False

    @property
    def name(self) -> str:
        """Its role and number."""
        return f"{self.role} {self.number}"

    @property
    def is_running(self) -> bool:
        """Whether a process is in this place and nothing was done to it that has not ended."""
        process = self._process
        return (
            process is not None
            and process.poll() is None
            and not self._expects_end
            and self.thaws_at is None
        )

    @property
    def is_gone(self) -> bool:
        """Whether it has left for good."""
        return self._is_leaving and self._process is None

    @property
    def process_id(self) -> int | None:
        """Of the process in this place."""
        return None if self._process is None else self._process.pid

    @property
    def metrics_address(self) -> str | None:
        """Where it shows its metrics; None until it has said so."""
        found = _ADDRESS.search(self.text)
        return None if found is None else found.group()

    def start(self) -> None:
        """Starts a process in this place."""
        self._starts += 1
        self._log = self._folder / f"{self.role}-{self.number}-{self._starts}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                tied_to_us(self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                process_group=0,  # Ctrl-C is for the run, which ends them
                env={
                    **os.environ,
                    **self._environment,
                    stepped_clock.FILE: str(self._clock),
                    NEWER: "yes" if self.is_newer else "",
                },
            )
        self._start_at = self._kill_at = self.thaws_at = None
        self._expects_end = False

    @property
    def text(self) -> str:
        """The log of the process in this place so far."""
        return self._log.read_text(errors="replace") if self._log.is_file() else ""

    def kill(self, *, for_good: bool = False) -> None:
        """kill -9; another starts a second later, unless it is gone for good."""
        self._send(signal.SIGKILL)
        self._expects_end = True
        self._is_leaving = for_good

    def terminate(self, *, for_good: bool) -> None:
        """SIGTERM; another starts a second after its end, unless it leaves for good."""
        self._send(signal.SIGTERM)
        self._expects_end = True
        self._is_leaving = for_good
        self._kill_at = time.monotonic() + LEAVE_SECONDS

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        self._send(signal.SIGSTOP)
        self.thaws_at = time.monotonic() + seconds

    def thaw(self) -> None:
        """SIGCONT as soon as `attend` is called."""
        self.thaws_at = time.monotonic()

    def step_clock(self, seconds: float) -> None:
        """The clock in this place is so many seconds off from now on, whichever process
        is in it.
        """
        stepped_clock.step(self._clock, seconds)

    def attend(self) -> str | None:
        """Takes due steps; returns a message for an operator, or None. Call it often."""
        now = time.monotonic()
        process = self._process
        if process is None:
            if self._start_at is not None and now >= self._start_at:
                self.start()
            return None
        if self.thaws_at is not None and now >= self.thaws_at:
            self.thaws_at = None
            self._send(signal.SIGCONT)
            return f"{self.name} goes on"
        code = process.poll()
        if code is None:
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at = None
                process.kill()
                return self._incident(
                    f"did not end within {LEAVE_SECONDS:.0f} s of SIGTERM and was killed"
                )
            return None
        self._process = None
        self._start_at = None if self._is_leaving else now + RESTART_SECONDS
        if self._expects_end and code in (0, -signal.SIGKILL):
            return None
        how = "after SIGTERM" if self._expects_end else "by itself"
        return self._incident(f"ended {how} with {code}")

    def stop(self) -> None:
        """Kills the process, and starts no other."""
        self._is_leaving = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def tail(self) -> str:
        """The last lines it logged."""
        lines = self.text.splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line[:MOST_CHARS]}" for line in lines)

    def _incident(self, what: str) -> str:
        last = self.text.strip().splitlines()[-1:]
        self.incidents[what, last[0] if last else "(nothing)"] += 1
        return f"{self.name} {what}"

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class Fleet:
    """All processes of a run with one role.

    Attributes:
        members: Those that have not left for good.
        incidents: Unexpected events: processes that ended by themselves, or did not end in order
            after a signal.
        most_bytes: The most memory that one of them had when it was looked at.
    """

    def __init__(
        self,
        role: str,
        folder: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = COMMAND,
        doors: Mapping[str, str] | None = None,
    ) -> None:
        """There is no process before `join`.

        Args:
            role: Its role.
            folder: For logs.
            environment: Of each process.
            command: Command that starts one, before `run --roles`.
            doors: Where the broker is for those that come through each door of the proxy; they take
                them in turn.
        """
        self._role = role
        self._doors = doors or {}
        self.members: list[Member] = []
        self.incidents: Counter[Incident] = Counter()
        self.most_bytes = 0
        self._folder = folder
        self._environment = environment
        self._command = command
        self._started = 0

    @property
    def running(self) -> list[Member]:
        """Members that run and to which nothing is being done."""
        return [member for member in self.members if member.is_running]

    def join(self, *, is_newer: bool = False, instance: str = "") -> Member:
        """One more, of a newer version if asked for, or with an instance name."""
        self._started += 1
        door, environment = None, dict(self._environment)
        if instance:
            environment[f"CALLGAUGE_{self._role.upper()}_INSTANCE"] = instance
        if self._doors:
            door = list(self._doors)[self._started % len(self._doors)]
            environment["CALLGAUGE_BOOTSTRAP"] = self._doors[door]
        member = Member(
            self._role,
            self._started,
            self._folder,
            self._command,
            environment,
            self.incidents,
            door,
        )
        member.is_newer = is_newer
        member.start()
        self.members.append(member)
        return member

    def attend(self) -> list[str]:
        """Starts, thaws and removes due processes; returns a line for each."""
        news = []
        for member in self.members:
            said = member.attend()
            if said is not None:
                news.append(said)
        self.members = [member for member in self.members if not member.is_gone]
        return news

    def look_at_memory(self) -> None:
        """Takes note of the most that each process has had so far."""
        for member in self.running:
            with contextlib.suppress(OSError):  # it ends at this moment
                found = _MEMORY.search(Path(f"/proc/{member.process_id}/status").read_text())
                self.most_bytes = max(self.most_bytes, int(found[1]) * 1_024 if found else 0)

    def logs_with(self, words: str) -> int:
        """How many lines of all logs have these words."""
        return sum(
            log.read_text(errors="replace").count(words)
            for log in self._folder.glob(f"{self._role}-*.log")
        )

    def told(self) -> Iterator[str]:
        """The incidents, a line for each kind: number, description, and the last line
        of the log.
        """
        for (what, last), count in self.incidents.most_common():
            yield f"{self._role}s: {count} {what}: {last[:MOST_CHARS]}"
        yield f"{self._role}s: at most {self.most_bytes >> 20} MB of memory"

    def stop(self) -> None:
        for member in self.members:
            member.stop()
        self.members.clear()


# -- the page of metrics of a process and its memory, as an operator sees them
# -------------------------------------------

LAG_MESSAGES = "callgauge_consumer_lag_messages"
LAG_SECONDS = "callgauge_consumer_lag_seconds"
OPEN_CALLS = "callgauge_calls_open"
TERM = "callgauge_sequencer_term"
ANSWER_SECONDS = 10.0
"""A process that is busy answers between two batches."""

Sample = tuple[dict[str, str], float]


class PageError(Exception):
    """A process does not show its metrics."""


def samples(member: Member, name: str) -> list[Sample]:
    """Every series of a metric: labels and value."""
    address = member.metrics_address
    try:
        text = httpx.get(address or "", timeout=patient(ANSWER_SECONDS)).raise_for_status().text
    except httpx.HTTPError as error:
        raise PageError(f"{member.name} does not show {address}: {type(error).__name__}") from error
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def total(member: Member, name: str, **labels: str) -> float:
    """Sum over the series that carry these labels."""
    return sum(value for found, value in samples(member, name) if labels.items() <= found.items())


def partitions_of(evaluator: Member) -> set[int]:
    """The partition numbers it has now."""
    return {int(labels["partition"]) for labels, _ in samples(evaluator, LAG_MESSAGES)}


def resident_bytes(member: Member) -> int:
    """Memory of its process now."""
    status = Path(f"/proc/{member.process_id}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.M)
    return int(found[1]) * 1_024 if found else 0
