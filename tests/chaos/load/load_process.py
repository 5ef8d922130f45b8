"""The load as its owner sees it: a process that reports how far it is and can be stopped."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Collection

from tests.chaos.cluster.cluster import tied_to_us
from tests.chaos.evaluators.fleet import ROOT
from tests.chaos.load.load import Report
from tests.chaos.load.poison import Kind


class LoadError(Exception):
    """The load broke down: the run proves nothing."""


class LoadProcess:
    """Runs from construction until it is asked to end, or `stop`."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        *,
        partitions: int,
        lines: int,
        ramp_seconds: float,
        seed: int,
        rate: float = 1,
        poison: Collection[Kind] = frozenset(Kind),
    ) -> None:
        command = [sys.executable, "-m", "tests.chaos.load.load", "--bootstrap", bootstrap, "--prefix", prefix]
        command += ["--partitions", str(partitions), "--lines", str(lines), "--ramp", str(ramp_seconds)]
        command += ["--seed", str(seed), "--rate", str(rate), "--poison", *poison]
        self._process = subprocess.Popen(
            tied_to_us(command), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        self._report = Report()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def report(self) -> Report:
        """Its last report."""
        report = self._report
        if report.failed:
            raise LoadError(f"the load: the broker did not take {report.failed} records; the run proves nothing")
        if not report.has_ended and self._process.poll() is not None:
            raise LoadError(f"the load: its process ended with {self._process.returncode}; the run proves nothing")
        return report

    def set_rate(self, rate: float) -> None:
        """So many times faster than real from now on."""
        self._tell(f"rate {rate}")

    def use_partitions(self, count: int) -> None:
        """There are so many partitions from now on."""
        self._tell(f"partitions {count}")

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
                with contextlib.suppress(BrokenPipeError):  # the last report, which was not read any more
                    pipe.close()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._report = Report(**json.loads(line))
