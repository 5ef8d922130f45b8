"""The reference results that callgauge is measured by: those of `tests/conformance/data`, and EVA's
own, which are no part of the repository. Tests that need EVA's own skip where `CONFORMANCE_DIR` has
none.
"""

import os
from pathlib import Path
from typing import Final

import pytest

CONFORMANCE: Final = Path(
    os.environ.get("CONFORMANCE_DIR") or Path(__file__).parents[3] / "shared" / "conformance"
).resolve()
RECORD: Final = CONFORMANCE / "record_1.1.2"
"""A real call, as EVA has recorded it."""
_OURS: Final = Path(__file__).parents[1] / "conformance" / "data"


def place_of(name: str) -> Path:
    """Where the file or folder of that name is, or would be: in `CONFORMANCE_DIR`, otherwise in the
    repository.
    """
    ours = _OURS / name
    return ours if ours.exists() and not (CONFORMANCE / name).exists() else CONFORMANCE / name


def conformance(name: str) -> Path:
    """The file or folder of that name; the test in hand is skipped where it is not there."""
    path = place_of(name)
    if not path.exists():
        pytest.skip(_reason(name))
    return path


def needs_conformance(name: str) -> pytest.MarkDecorator:
    """For tests that are nothing without the file or folder of that name."""
    return pytest.mark.skipif(not place_of(name).exists(), reason=_reason(name))


def _reason(name: str) -> str:
    return f"the conformance data are not there ({name} in CONFORMANCE_DIR or next to the checkout)"
