"""Runs the `callgauge` command as a user does: a process of its own, its output kept, and always
ended.
"""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import pytest

from streamer.cli import main as cli
from tests.integration.metrics_page import address_in
from tests.support.patience import patient
from tests.support.warm_starts import WarmStart

COMMAND = Path(sys.executable).with_name("callgauge")
POLL_SECONDS = (0.05, 0.5)
"""From one look at a condition to the next: at first, and at last. Each look may cost the process
that is looked at, too.
"""
POLL_SHARE = 0.05
"""Of the time waited so far, how much later than it could the end of a wait may be seen."""
COMMAND_SECONDS = 120

T = TypeVar("T")


def wait_for(what: str | Callable[[], str], condition: Callable[[], T | None], seconds: float) -> T:
    """The first result of `condition` that is not None or false, within so many seconds of an idle
    machine.

    `what` names the awaited state; a function is called at the end, so that it can show the output
    of a process.
    """
    begin = time.monotonic()
    # asked again, because others may begin to compute only now
    while time.monotonic() - begin < patient(seconds):
        found = condition()
        if found:
            return found
        waited = time.monotonic() - begin
        time.sleep(min(max(POLL_SECONDS[0], POLL_SHARE * waited), POLL_SECONDS[1]))
    said = what if isinstance(what, str) else what()
    raise AssertionError(f"waited {time.monotonic() - begin:.0f} s in vain for {said}")


class Process:
    def __init__(self, popen: "subprocess.Popen[bytes] | WarmStart", output: Path) -> None:
        self._popen = popen
        self._output = output

    @property
    def text(self) -> str:
        """Its output so far."""
        return self._output.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    @property
    def processor_seconds(self) -> float:
        """Processor time that it has used so far, user and system, as the kernel counts it."""
        fields = Path(f"/proc/{self._popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        """Memory that it holds now."""
        return int(Path(f"/proc/{self._popen.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    @property
    def waited_seconds(self) -> float:
        """How long its main thread was ready to run and had no processor, as the kernel
        counts it.
        """
        return int(Path(f"/proc/{self._popen.pid}/schedstat").read_text().split()[1]) / 1e9

    def printed(self, text: str, seconds: float = 30) -> str:
        """Wait until it has printed `text`; all it printed."""
        return wait_for(
            lambda: f"{text!r} in:\n{self.text}",
            lambda: self.text if text in self.text else None,
            seconds,
        )

    def metrics(self, seconds: float = 30) -> str:
        """Waits until it has printed the address of its metrics page; returns that."""
        return wait_for(
            lambda: f"the address of /metrics in:\n{self.text}",
            lambda: address_in(self.text),
            seconds,
        )

    def send(self, number: signal.Signals) -> None:
        """Sends a signal and waits for nothing."""
        self._popen.send_signal(number)

    def signalled(self, number: signal.Signals, seconds: float = 10) -> tuple[int, float]:
        """Send a signal and wait for the end: exit code, and how long it took."""
        begin = time.monotonic()
        self._popen.send_signal(number)
        return self._popen.wait(patient(seconds)), time.monotonic() - begin


@contextmanager
def started(
    output: Path, *arguments: str, command: Sequence[str] = (), **environment: str
) -> Iterator[Process]:
    """A `callgauge` process with its output in a file; killed at the end if it still runs.

    It starts warm. A test of the start itself names the `command`: the installed one, or another.
    Its log lines are those for people, because tests look for names and numbers in them; a test
    that needs JSON sets `CALLGAUGE_LOG_FORMAT`.
    """
    output.write_bytes(b"")
    environment = {**os.environ, "COLUMNS": "200", "CALLGAUGE_LOG_FORMAT": "console", **environment}
    popen: subprocess.Popen[bytes] | WarmStart
    if command:
        with output.open("wb") as file:
            popen = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
            )
    else:
        popen = WarmStart(arguments, environment, output, output)
    try:
        yield Process(popen, output)
    finally:
        if popen.poll() is None:
            popen.kill()
            popen.wait()


class Ended(NamedTuple):
    """Exit code of a command, and its output."""

    code: int
    out: str
    err: str


def ran_here(*arguments: str, **environment: str) -> Ended:
    """Run to the end in this process, as the installed command does, but for the seconds that it
    takes to start.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["callgauge", *arguments])
        for name, value in {**environment, "COLUMNS": "200"}.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            cli.main()
    return Ended(int(end.value.code or 0), out.getvalue(), err.getvalue())


def ended(*arguments: str, **environment: str) -> Ended:
    """Run to the end in a process of its own, which starts warm."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = WarmStart(arguments, {**os.environ, "COLUMNS": "200", **environment}, out, err)
        try:
            code = process.wait(patient(COMMAND_SECONDS))
        finally:
            process.kill()
        return Ended(code, out.read_text(), err.read_text())


def ran(*arguments: str, **environment: str) -> str:
    """Runs to the end; returns the output."""
    done = ended(*arguments, **environment)
    assert done.code == 0, done.out + done.err
    return done.out
