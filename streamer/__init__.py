"""The application around the engine.

Its sister packages have plain names, and so may folders of a person who sets PYTHONPATH. So they
are imported here, from beside this package, before anything asks for them by name.
"""

import importlib
import sys
from pathlib import Path


def _import_sisters() -> None:
    beside = str(Path(__file__).parents[1])
    sys.path.insert(0, beside)
    try:
        for name in ("schemas", "consumers"):
            importlib.import_module(name)
    finally:
        sys.path.remove(beside)


_import_sisters()
