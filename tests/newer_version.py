"""A callgauge of a later release, as far as `scores` shows it: `python -m tests.newer_version run --roles evaluator`.

One reason for closing has another name, and the closing has a field more. The schema version is today's: that is what no
release may do, and what a rollback must survive all the same.
"""

import sys
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Final

from tests.tidy.source_tree import ROOT

CHANGES: Final = {
    'ENDED = "ended"\n': 'ENDED = "ended_by_caller"\n',
    "    reason: CloseReason\n": "    reason: CloseReason\n    closing_steps: int = 1\n",
}


def install() -> None:
    """Puts the later `schemas.scores` in the place of today's, before anybody has imported that."""
    name = "schemas.scores"
    path: Path = ROOT / "schemas" / "scores.py"
    source = path.read_text()
    for today, later in CHANGES.items():
        if source.count(today) != 1:
            raise RuntimeError(f"{path} does not have this once any more: {today!r}")
        source = source.replace(today, later)
    spec = spec_from_loader(name, loader=None, origin=str(path))
    if spec is None or name in sys.modules:
        raise RuntimeError(f"{name} cannot be replaced")
    module = sys.modules[name] = module_from_spec(spec)
    exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102  # our own source with the changes above


if __name__ == "__main__":
    install()
    from streamer.cli import main

    sys.argv[0] = "callgauge"
    main()
