"""What holds for every test: Hypothesis profiles, logging as it was, and skips that CI does not
accept.
"""

import gc
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from _pytest.doctest import DoctestModule
from structlog.testing import capture_logs

from tests.support.known import Logged
from tests.support.required_tools import MISSING
from tests.support.schedule import Durations, SlowestFirst, after_the_first, arrange, known_seconds
from tests.support.tiers import is_short

_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

# No deadline, and slow generation is no failure: the machine is shared and properties fold whole
# calls. No profile explains a failure line by line: with whole calls that takes longer than five
# minutes, and the worker is taken for hung.
_PATIENT = hypothesis.settings(
    deadline=None,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
# The same commit gets the same answer twice; what is new is found by `make laws`.
hypothesis.settings.register_profile(
    "same", _PATIENT, max_examples=30, derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "laws", _PATIENT, max_examples=int(os.environ.get("EXAMPLES", "1000"))
)
# For tests of tests, which ask only whether a law fails: looking for the smallest case that fails
# would take minutes each time.
hypothesis.settings.register_profile(
    "unshrunk",
    hypothesis.settings.get_profile("same"),
    phases=[phase for phase in _PATIENT.phases if phase is not hypothesis.Phase.shrink],
)
hypothesis.settings.load_profile("same")

# LiveKit, chDB and the peers of benchmarks are in environments of their own, so here the doctest
# search could not import what uses them.
collect_ignore = [
    "benchmarks/peers",
    "support/livekit_agents",
    "support/clickhouse/server.py",
]

_KEEP_IT = (
    "Keep each failure: put the failing test case above the law as @example(...), so that every "
    "run tries it first. "
    "A law that draws from `data` takes no @example: write what it drew as a test of its own."
)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that a test runs in this process may set up where log lines go; the next test sets
    up its own.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def logged() -> Iterator[Logged]:
    """What is logged from the moment at which a test begins."""
    with capture_logs() as lines:
        yield lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # A law that failed at random need not fail in the next run.
    failed = any(
        report.keywords.get("hypothesis") for report in terminalreporter.stats.get("failed", ())
    )
    if failed and terminalreporter.config.getoption("hypothesis_profile") == "laws":
        terminalreporter.section("failures of laws")
        terminalreporter.write_line(_KEEP_IT)
    passed = terminalreporter.stats.get("passed", ())
    killed = [
        what for report in passed for name, what in report.user_properties if name == "mutant"
    ]
    if killed:
        terminalreporter.section(f"{len(killed)} mutants, all killed")
        terminalreporter.write_line("\n".join(sorted(map(str, killed))))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations",
        action="store_true",
        help="keep how long tests take, see tests/support/schedule",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_durations") and not _IS_WORKER:
        config.pluginmanager.register(Durations())


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SlowestFirst:
    return SlowestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Looks for examples only where there are any: each worker would import every module of the
    tests for it, and look through all that it holds.
    """
    found = yield
    if b">>> " in file_path.read_bytes():
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, None, None]:
    if not _IS_WORKER:
        return (yield)
    # What collecting makes stays to the end: looking through it for garbage takes a third of the
    # time, and finds none.
    gc.disable()
    try:
        with after_the_first(
            os.environ["PYTEST_XDIST_WORKER"], Path(session.config.getoption("basetemp"))
        ):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _IS_WORKER:
        arrange(items)
    seconds = known_seconds()
    # So that a person can leave them out: -m "not kafka".
    for item in items:
        if not is_short(item.nodeid, seconds):
            item.add_marker(pytest.mark.thorough)
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
