"""In which order tests run where several workers share them, and which of them must share one."""

import json
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

_TABLE: Final = Path(__file__).parents[1] / "durations.json"
_LEAST_SECONDS: Final = 1.0
"""What is faster than this is not in the table: nothing is gained by its place."""
_ONE_BY_ONE: Final = ("tests/integration/", "tests/properties/")
"""Where a file is too long for one worker. Elsewhere a file stays together, with what its tests share."""


def arrange(items: list[pytest.Item]) -> None:
    """Puts the slowest first, so that no worker begins one when the others are done.

    Tests of one `xdist_group`, and of one file where that is short, stay together in their order.
    """
    known: dict[str, float] = json.loads(_TABLE.read_text()) if _TABLE.exists() else {}
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_group(item), []).append(item)
    for name, members in groups.items():
        for item in members if len(members) > 1 else ():
            item.add_marker(pytest.mark.xdist_group(name))
    slowest_first = sorted(
        groups.values(), key=lambda members: -sum(known.get(_name(item.nodeid), 0) for item in members)
    )
    items[:] = chain.from_iterable(slowest_first)


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    if mark is not None:
        return str(mark.args[0])
    return item.nodeid if item.nodeid.startswith(_ONE_BY_ONE) else item.nodeid.partition("::")[0]


def _name(nodeid: str) -> str:
    """Without what xdist adds to it, the group."""
    return nodeid.partition("@")[0]


class Durations:
    """Measures how long tests take with what they set up, and writes the table of the slow ones."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(report.nodeid)
        self._seconds[name] = self._seconds.get(name, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Tests that did not run keep what the table says of them."""
        kept = json.loads(_TABLE.read_text()) if _TABLE.exists() else {}
        table = {name: seconds for name, seconds in kept.items() if name not in self._seconds}
        table |= {name: round(seconds, 1) for name, seconds in self._seconds.items() if seconds >= _LEAST_SECONDS}
        _TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=1, ensure_ascii=False) + "\n")
