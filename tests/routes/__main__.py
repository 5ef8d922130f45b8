"""`python -m tests.routes` goes the ways of strangers: the wheel in an empty environment, `serve`,
and a first call of each source.

It needs a package index. What an installation takes is measured apart, because it is the network's.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.routes.sources import GOAL_SECONDS, PIPECAT, ROUTES, Bots, followed
from tests.support.pages import ROOT, blocks_of

OF_THE_BOT: Final = {
    "pipecat": (PIPECAT, ["pipecat-ai[tracing]", "opentelemetry-exporter-otlp-proto-http"]),
    "livekit": ("docs/sources/livekit.md", ["livekit-agents"]),
}
"""Environments of bots: the page that says what to install, and what is there before."""
IN_LIVEKITS: Final = "LiveKit"


def _made(folder: Path, *installs: list[str]) -> tuple[Path, float]:
    """The Python of a new environment, and the seconds that it took."""
    began = time.monotonic()
    subprocess.run(
        [getattr(sys, "_base_executable", sys.executable), "-m", "venv", str(folder)], check=True
    )
    for arguments in installs:
        subprocess.run([folder / "bin/pip", "install", "--quiet", *arguments], cwd=ROOT, check=True)
    return folder / "bin/python", time.monotonic() - began


def _installed_by(page: str) -> list[str]:
    """What the page says to install."""
    return next(
        found[1].split()
        for block in blocks_of(page)
        if (found := re.search(r"^pip install (.*)$", block.text, re.M))
    )


def _lines(folder: Path) -> Iterator[str]:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT],
        check=True,
    )
    (wheel,) = folder.glob("callgauge-*.whl")
    python, seconds = _made(folder / "command", [str(wheel)])
    yield f"the wheel was installed in {seconds:.1f} s"
    bots = {}
    for name, (page, first) in OF_THE_BOT.items():
        bots[name], seconds = _made(folder / name, first, _installed_by(page))
        yield f"the environment of a bot of {name} was made in {seconds:.1f} s"
    yield f"{'seconds from the installed command':<36}{'serve prints':>14}{'call on page':>14}{'first latency':>15}"
    for number, source in enumerate(ROUTES):
        bot = bots["livekit" if source == IN_LIVEKITS else "pipecat"]
        took = followed(source, folder / f"reader-{number}", python.parent, Bots(bot, str(ROOT)))
        late = "" if took.on_page < GOAL_SECONDS else "   above the goal"
        yield f"{source:<36}{took.ready:>14.1f}{took.on_page:>14.1f}{took.measured:>15.1f}{late}"


def main() -> None:
    """Prints what each step took."""
    with TemporaryDirectory(prefix="callgauge-routes-") as folder:
        for line in _lines(Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
