"""What holds for every test: Hypothesis profiles, logging as it was, and skips that CI does not accept."""

import logging
import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest
import structlog

from tests.support.required_tools import MISSING

# No deadline, and slow generation is no failure: the machine is shared and properties fold whole calls.
# CI must give the same answer twice for the same commit; at a desk every run may find something new. Neither explains a
# failure line by line: with whole calls that takes longer than five minutes, and the worker is taken for hung.
_SLOW = [hypothesis.HealthCheck.too_slow]
_PHASES = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
hypothesis.settings.register_profile(
    "desk", max_examples=60, deadline=None, phases=_PHASES, suppress_health_check=_SLOW
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("desk"), max_examples=100, derandomize=True, database=None, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that a test runs in this process may set up where log lines go; the next test sets up its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # So that a person can leave them out: -m "not kafka".
    for item in items:
        if "bootstrap" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_missing_tool(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_missing_tool(report)
    return report


def _refuse_missing_tool(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not (os.environ.get("CI") and report.skipped and isinstance(report.longrepr, tuple)):
        return
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if reason.startswith(MISSING):
        report.outcome = "failed"
        report.longrepr = f"{reason}: with CI set every tool must be there"
