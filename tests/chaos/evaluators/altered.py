"""The real command in circumstances that the environment describes. `python -m
tests.chaos.evaluators.altered [with|without KIND] run ...`

Without any it is the command itself. With `without KIND` a part of it is broken, see `broken`; with
`with KIND` it is whole and only in the circumstances in which that part matters.
"""

import os
import sys
from pathlib import Path

from tests.chaos.evaluators import newer_version, stepped_clock

WITH, WITHOUT = "with", "without"


def main() -> None:
    """Alters the named modules and runs the command."""
    arguments = sys.argv[1:]
    if clock := os.environ.get(stepped_clock.FILE):
        stepped_clock.install(Path(clock))
    if os.environ.get(newer_version.NEWER):
        newer_version.install()
    # Only modules that are imported later are altered.
    if arguments[0] in (WITH, WITHOUT):
        from tests.chaos.evaluators.broken import CIRCUMSTANCES, KINDS

        way, kind = arguments[:2]
        if kind in CIRCUMSTANCES:
            CIRCUMSTANCES[kind]()
        if way == WITHOUT:
            KINDS[kind]()
        del arguments[:2]
    from streamer.cli.main import main as callgauge

    sys.argv = ["callgauge", *arguments]
    callgauge()


if __name__ == "__main__":
    main()
