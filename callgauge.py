"""The installed command starts here, `python -m callgauge`, and what scripts import: `from callgauge import score`.

Folders of a person may have the plain names of our packages, and stand before them on PYTHONPATH. So our packages are imported
here, from beside this file, before anything asks for them by name; processes that a command starts import this module first, too.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumers.engine.agent_inspect import NumericalScore
    from consumers.measures.own import NotMeasured, measure
    from streamer.notebook import (
        ScoredCall,
        auc,
        past_calls,
        ppt,
        progress,
        score,
        success,
        tool_correctness,
    )

__all__ = [
    "NotMeasured",
    "NumericalScore",
    "ScoredCall",
    "auc",
    "main",
    "measure",
    "past_calls",
    "ppt",
    "progress",
    "score",
    "success",
    "tool_correctness",
]


def main() -> None:
    """Runs a command."""
    from streamer.cli.main import main as run

    run()


def __getattr__(name: str) -> Any:
    """The functions for scripts are loaded when one of them is asked for, because commands start without the engine."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where = "consumers.measures.own" if name in {"NotMeasured", "measure"} else "streamer.notebook"
    return getattr(importlib.import_module(where), name)


def _import_ours() -> None:
    beside = str(Path(__file__).parent)
    sys.path.insert(0, beside)
    try:
        importlib.import_module("streamer")  # it imports its sisters in the same way
    finally:
        sys.path.remove(beside)


_import_ours()

if __name__ == "__main__":
    main()
