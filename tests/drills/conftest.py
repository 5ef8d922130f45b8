"""The broker of the drills in real time, and the table of alerts with the times after which they
fired.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.conftest import bootstrap as bootstrap
from tests.integration.conftest import environment as environment
from tests.integration.conftest import topic_prefix as topic_prefix

DRILL = "drill"
"""Property of a test: incident, alert, minutes that it may take and took."""
Record = Callable[[str, object], None]


def note(record: Record, incident: str, alert: str, allowed: float, took: float) -> None:
    """Keeps a row of the table, and checks that the alert came in time; both times are
    in minutes.
    """
    record(DRILL, (incident, alert, allowed, took))
    assert 0 < took <= allowed, f"{alert} after {took:.1f} min, allowed are {allowed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints a table of all drills of the run; of one that ran more than once the slowest."""
    slowest: dict[tuple[str, str], tuple[float, float]] = {}
    for incident, alert, allowed, took in _rows(terminalreporter):
        slowest[incident, alert] = max(
            (took, allowed), slowest.get((incident, alert), (0.0, allowed))
        )
    if not slowest:
        return
    terminalreporter.section("drills")
    terminalreporter.write_line(f"{'incident':24}{'alert':32}{'fired after':>12}{'allowed':>10}")
    for (incident, alert), (took, allowed) in sorted(slowest.items()):
        terminalreporter.write_line(f"{incident:24}{alert:32}{took:>8.1f} min{allowed:>6} min")


def _rows(terminalreporter: pytest.TerminalReporter) -> Iterator[tuple[str, str, float, float]]:
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == DRILL and report.when == "call":
                yield value
