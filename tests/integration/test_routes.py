"""The ways of strangers to a first call, as `python -m tests.routes` goes them, in the environment
of tests: nothing is fetched.
"""

import sys
from pathlib import Path

import pytest

from tests.routes.sources import GOAL_SECONDS, ROUTES, Bots, followed
from tests.support.observers import PYTHONPATH
from tests.support.patience import patient

ELSEWHERE = {"LiveKit"}  # has environments of its own: tests/integration/test_livekit_observer.py


@pytest.mark.parametrize("source", [source for source in ROUTES if source not in ELSEWHERE])
def test_whoever_follows_the_page_of_a_source_sees_a_call(source: str, tmp_path: Path) -> None:
    python = Path(sys.executable)
    took = followed(source, tmp_path / "reader", python.parent, Bots(python, PYTHONPATH))
    print(
        f"{source}: ready {took.ready:.1f} s, on the page {took.on_page:.1f} s, measured "
        f"{took.measured:.1f} s"
    )
    assert took.on_page < patient(GOAL_SECONDS)
