"""A network of its own for the commands of a test: every port is free in it, and nothing of the
world can be reached.

The commands also see a `/run` of their own, so a test may put secrets where pages say they are.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_KEEPER = """
import fcntl, pathlib, socket, struct, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
for name, content in zip(sys.argv[1::2], sys.argv[2::2]):
    path = pathlib.Path("/run/secrets", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
with socket.socket() as any_socket:  # SIOCSIFFLAGS: the loopback interface is up and runs
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))
print("ready", flush=True)
sys.stdin.read()
"""


class OwnNetwork:
    """Runs commands in the network of a process that keeps it."""

    def __init__(self, keeper: int) -> None:
        """Takes the number of that process."""
        self._enter = ("nsenter", "--target", str(keeper), "--net", "--mount", "--")

    def started(
        self, command: Sequence[str], folder: Path, output: Path, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Starts a command in a group of processes of its own, with its output in a file."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [*self._enter, "env", "--chdir", str(folder), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )


@contextmanager
def own_network(secrets: Mapping[str, str]) -> Iterator[OwnNetwork]:
    """Keeps a network for the length of the block; without the right to make one, the test is
    skipped.
    """
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip(
            "no network of its own can be made here: unshare and nsenter, of util-linux on Linux, "
            "are missing"
        )
    arguments = [part for secret in secrets.items() for part in secret]
    keeper = subprocess.Popen(
        ["unshare", "--net", "--mount", "--", sys.executable, "-c", _KEEPER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with keeper:
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "ready\n":
            assert keeper.stderr is not None
            pytest.skip(
                f"no network of its own can be made here: {keeper.stderr.read().strip()[-200:]}"
            )
        try:
            yield OwnNetwork(keeper.pid)
        finally:
            keeper.kill()
