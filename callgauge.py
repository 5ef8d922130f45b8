"""The installed command starts here, and `python -m callgauge`.

Folders of a person may have the plain names of our packages, and stand before them on PYTHONPATH. So our packages are imported
here, from beside this file, before anything asks for them by name; processes that a command starts import this module first, too.
"""

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Runs a command."""
    from streamer.cli.main import main as run

    run()


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
