"""In which order tests run where several workers share them, and which of them must share one."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.patience import patient

_TABLE: Final = Path(__file__).parents[1] / "durations.json"
_LEAST_SECONDS: Final = 1.0
"""Faster tests are not in the table: nothing is gained by their place."""
_ONE_BY_ONE: Final = ("tests/drills/test_pipeline.py", "tests/integration/", "tests/properties/")
"""Files that are too long for one worker. Other files stay together, with the fixtures that their
tests share.
"""
_TOGETHER: Final = ("tests/integration/test_process.py", "tests/integration/test_security.py")
"""Files whose tests share slow fixtures: a broker that may be frozen, rights on a secured one."""


_IN_A_FRESH_PROCESS: Final = "/test_loop_held.py"
"""Files that measure steps in milliseconds: in a process that has run thousands of tests, memory is
in pieces, and the same step takes three times as long.
"""

_FIRST: Final = "gw0"
_FIRST_SECONDS: Final = 120
"""Within this a worker has imported all tests, on any machine."""


@contextlib.contextmanager
def after_the_first(worker: str, folder: Path) -> Iterator[None]:
    """One worker collects alone, the others behind it: in a fresh clone it compiles all that they
    import, which takes longest.

    Args:
        worker: The name of this one.
        folder: Its own, beside those of the other workers of this run.
    """
    collected = folder.parent / "collected"
    until = time.monotonic() + patient(_FIRST_SECONDS)
    while worker != _FIRST and not collected.exists() and time.monotonic() < until:
        time.sleep(0.1)
    try:
        yield
    finally:
        if worker == _FIRST:
            collected.touch()


def arrange(items: list[pytest.Item]) -> None:
    """Puts the slowest groups first, so that no worker begins one when the others are done; before
    them what needs a fresh process.
    """
    seconds = known_seconds()
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)

    def place(group: list[pytest.Item]) -> tuple[bool, float]:
        needs_fresh = group[0].nodeid.partition("::")[0].endswith(_IN_A_FRESH_PROCESS)
        return not needs_fresh, -sum(seconds.get(item.nodeid, 0) for item in group)

    in_order = sorted(groups.values(), key=place)
    items[:] = chain.from_iterable(in_order)


def group_of(nodeid: str) -> str:
    """The unit that runs on one worker, in its order: a file, or a single test."""
    file = nodeid.partition("::")[0]
    return nodeid if nodeid.startswith(_ONE_BY_ONE) and file not in _TOGETHER else file


class SlowestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no type hints
    """Gives each worker that has little left the next group, in the order that `arrange` made."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def remove_node(self, node: Any) -> str | None:
        """Takes a worker away that ended, and its test, which would end the next worker too. The
        others get the rest of its tests.
        """
        groups = self.assigned_work[node]
        running = next(
            (test for group in groups.values() for test, is_over in group.items() if not is_over),
            None,
        )
        for name, group in list(groups.items()):
            if running in group:
                group[running] = True
            if all(group.values()):
                del groups[name]
        super().remove_node(node)
        return running

    def schedule(self) -> None:
        """Gives out groups, at the start and when a worker has replaced another one.

        A worker runs a test when it has the next one, too, and the library gives a replacement one
        group, maybe of one test.
        """
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Durations:
    """Measures how long tests take with their set-up, and writes the table of the slow ones.

    Their tear-down does not count: the worker that started a broker waits there for all others.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Tests that did not run keep their rows of the table."""
        table = {
            nodeid: seconds
            for nodeid, seconds in known_seconds().items()
            if nodeid not in self._seconds
        }
        table |= {
            nodeid: round(taken, 1)
            for nodeid, taken in self._seconds.items()
            if taken >= _LEAST_SECONDS
        }
        _TABLE.write_text(
            json.dumps(dict(sorted(table.items())), indent=1, ensure_ascii=False) + "\n"
        )


def known_seconds() -> Mapping[str, float]:
    """How long tests took that are not fast, by name."""
    found: dict[str, float] = json.loads(_TABLE.read_text()) if _TABLE.exists() else {}
    return found
