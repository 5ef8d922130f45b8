"""A network of the nodes' own, so that they can lose each other while every client still reaches
them.

Each node lives in a network namespace, and a bridge joins them with this machine. A node goes blind
for another when the other's address leads to a network card that does not exist: what it sends is
lost without an answer, as with a broken switch. This needs Linux, `ip` and root; where that is
missing, `is_possible` says so.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

NOBODY: Final = "02:00:00:00:de:ad"
"""The address of a network card that no one has."""


def is_possible() -> bool:
    """Whether namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"callgauge-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return made.returncode == 0


class Network:
    """Namespaces, a pair of virtual cards for each, and the bridge; `close` removes them."""

    def __init__(self, nodes: int) -> None:
        """Makes them for nodes 1 to `nodes`."""
        own = os.getpid()
        self._nodes = range(1, nodes + 1)
        self._subnet = f"10.{200 + own % 50}.{own // 50 % 250}"
        self._bridge = f"cgb{own}"
        self._blind: set[tuple[int, int]] = set()
        try:
            self._make()
        except subprocess.CalledProcessError:
            self.close()
            raise

    def address(self, node: int) -> str:
        """Where a node listens."""
        return f"{self._subnet}.{node}"

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command, run where the node lives."""
        return ["ip", "netns", "exec", self._namespace(node), *command]

    def blind(self, node: int, other: int) -> None:
        """Packets from the node to the other are lost from now on."""
        _ip(
            "-n",
            self._namespace(node),
            "neigh",
            "replace",
            self.address(other),
            "lladdr",
            NOBODY,
            "dev",
            "eth0",
            "nud",
            "permanent",
        )
        self._blind.add((node, other))

    def heal(self) -> None:
        """Every node reaches every other again."""
        for node, other in sorted(self._blind):
            _ip("-n", self._namespace(node), "neigh", "del", self.address(other), "dev", "eth0")
        self._blind.clear()

    def close(self) -> None:
        """Removes everything; harmless when it is not there."""
        for node in self._nodes:
            subprocess.run(["ip", "netns", "del", self._namespace(node)], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", self._bridge)
        for node in self._nodes:
            space, card = self._namespace(node), f"cgv{os.getpid()}-{node}"
            _ip("netns", "add", space)
            _ip("link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", card, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for each in ("eth0", "lo"):
                _ip("-n", space, "link", "set", each, "up")

    def _namespace(self, node: int) -> str:
        return f"callgauge-{os.getpid()}-{node}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
