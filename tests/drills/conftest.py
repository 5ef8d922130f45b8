"""The broker of the drills in real time, and the table of what fired after how long."""

from collections.abc import Iterator

import pytest

from tests.integration.conftest import bootstrap as bootstrap
from tests.integration.conftest import environment as environment
from tests.integration.conftest import topic_prefix as topic_prefix

DRILL = "drill"
"""Property of a test: incident, alert, minutes that it may take and took."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints a table of all drills of the run that fired an alert."""
    rows = list(_rows(terminalreporter))
    if not rows:
        return
    terminalreporter.section("drills")
    terminalreporter.write_line(f"{'incident':24}{'alert':32}{'fired after':>12}{'allowed':>10}")
    for incident, alert, allowed, took in rows:
        terminalreporter.write_line(f"{incident:24}{alert:32}{_minutes(took):>12}{_minutes(allowed):>10}")


def _rows(terminalreporter: pytest.TerminalReporter) -> Iterator[tuple[str, str, float | None, float | None]]:
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == DRILL and report.when == "call":
                yield value


def _minutes(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f} min"
