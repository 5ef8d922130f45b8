"""The proxy as its owner sees it: a process with two doors that can be narrowed and opened."""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.cluster.proxy import Way

ROOT: Final = Path(__file__).parents[3]


class ProxyError(Exception):
    """The proxy broke down: the run proves nothing."""


class Listener(NamedTuple):
    """One broker behind one door: where evaluators connect, and where that leads."""

    door: str
    port: int
    host: str
    target: int


class ProxyProcess:
    """Runs from construction until `stop`; all doors are open."""

    def __init__(self, listeners: Sequence[Listener], tie: Sequence[str] = ()) -> None:
        """Starts it; returns when it listens.

        Args:
            listeners: Of every broker.
            tie: Put before the command; ends the process with this one.
        """
        arguments = [f"{each.door} {each.port} {each.host} {each.target}" for each in listeners]
        self._process = subprocess.Popen(
            [*tie, sys.executable, "-m", "tests.chaos.cluster.proxy", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise ProxyError("the proxy between evaluators and brokers did not come up; the run proves nothing")

    def change(self, door: str, way: Way, delay_ms: int = 0) -> None:
        """Bytes pass a door like this from now on."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{door} {way} {delay_ms}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ProxyError("the proxy between evaluators and brokers has ended; the run proves nothing") from error

    def stop(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
