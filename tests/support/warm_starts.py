"""Processes of `callgauge` that begin with its modules loaded: forked from a process that has
loaded them and does nothing more.

A command is ready to work some 1.5 s of processor time after its start, and the integration tests
start hundreds. A forked command has an id, an environment, files for its output and an end of its
own, and takes every signal as any process does. It does not show the start itself: for that a test
starts the installed command (`processes.COMMAND`).
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Final

LOADED: Final = (
    "streamer.cli.main",
    *(
        f"streamer.cli.{name}"
        for name in ("demo", "doctor", "quarantine", "run", "score", "simulate", "topics")
    ),
    "streamer.cluster.topic_admin",
    "streamer.doctor.examination",
    "streamer.quarantine",
    "streamer.sources.simulator.traffic",
    "streamer.sources.watch",
    "streamer.cli.app",
    "streamer.cli.replay",
    "streamer.backtest",
    "streamer.offline.call_work",
    "streamer.sources.publisher",
    "streamer.roles.demo",
    "streamer.roles.evaluator_role",
    "streamer.sources.http.role",
    "streamer.sources.monitor",
    "consumers.exporter.service",
    "consumers.judge.service",
)
"""Imports of the commands and roles of the integration tests, each only when it is needed."""

_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, *LOADED])


def begin_to_load() -> None:
    """Starts the process that loads, if it does not run yet; others that begin processes so may ask
    for less to be loaded.
    """
    forkserver.ensure_running()


class WarmStart:
    """A running command, with the part of `subprocess.Popen` that tests use.

    Attributes:
        pid: Of the process.
    """

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], out: Path, err: Path
    ) -> None:
        """Starts it.

        Args:
            arguments: The words after `callgauge`.
            environment: All its variables.
            out: Where its standard output is written to.
            err: The same of standard error; may be the same file.
        """
        self._process = _FORKS.Process(target=_run, args=(arguments, dict(environment), out, err))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns the exit code."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("callgauge", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: tuple[str, ...], environment: dict[str, str], out: Path, err: Path) -> None:
    """Becomes the command, with the arguments and the environment that a shell would
    have given it.
    """
    os.environ.clear()
    os.environ.update(environment)
    # The process that forked this one may have begun in a moment in which a test had signals
    # blocked (`streamer.offline.side_by_side`).
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    time.tzset()
    for number, file in ((1, out), (2, err)):
        # Appending, as both may be one file.
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    # They last as long as the process, as those that Python itself opens.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["callgauge", *arguments]
    import_module("streamer.cli.main").main()
