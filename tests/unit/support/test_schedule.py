"""Workers get the slowest group first, and a group stays whole and in its order."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import schedule
from tests.support.patience import patient

ROOT = Path(__file__).parents[3]
UNIT = [f"tests/unit/test_a.py::test_{n}" for n in range(3)]
SHARED = [f"tests/integration/test_process.py::test_{n}" for n in range(2)]
ALONE = [f"tests/integration/test_broker.py::test_{n}" for n in range(2)]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "durations.json"
    monkeypatch.setattr(schedule, "_TABLE", path)
    return path


def arranged(*nodeids: str) -> list[str]:
    items = cast("list[pytest.Item]", [SimpleNamespace(nodeid=nodeid) for nodeid in nodeids])
    schedule.arrange(items)
    return [item.nodeid for item in items]


def report(nodeid: str, when: str, seconds: float) -> Any:
    return SimpleNamespace(nodeid=nodeid, when=when, duration=seconds)


def test_the_slowest_group_goes_first_and_stays_in_its_order(table: Path) -> None:
    table.write_text(json.dumps({ALONE[1]: 9.0, SHARED[0]: 4.0, SHARED[1]: 6.0, UNIT[2]: 2.0}))
    assert arranged(*UNIT, *ALONE, *SHARED) == [*SHARED, ALONE[1], *UNIT, ALONE[0]]


def test_without_a_table_every_group_stays_where_it_is(table: Path) -> None:
    assert not table.exists()
    assert arranged(UNIT[0], ALONE[0], UNIT[1], ALONE[1]) == [UNIT[0], UNIT[1], *ALONE]


def test_tests_that_share_a_broker_share_a_worker_and_others_do_not() -> None:
    groups = [schedule.group_of(nodeid) for nodeid in (*SHARED, *ALONE, *UNIT)]
    assert (
        groups == ["tests/integration/test_process.py"] * 2 + ALONE + ["tests/unit/test_a.py"] * 3
    )


def test_the_others_collect_when_the_first_has(tmp_path: Path) -> None:
    begun = threading.Event()

    def collect() -> None:
        with schedule.after_the_first("gw3", tmp_path / "popen-gw3"):
            begun.set()

    other = threading.Thread(target=collect)
    with schedule.after_the_first("gw0", tmp_path / "popen-gw0"):
        other.start()
        assert not begun.wait(0.3)
    other.join(patient(10))
    assert begun.is_set()


def test_what_was_measured_replaces_what_was_known_of_it(table: Path) -> None:
    table.write_text(json.dumps({ALONE[0]: 9.0, UNIT[0]: 5.0, UNIT[1]: 7.0}))
    durations = schedule.Durations()
    took = [
        (ALONE[1], "setup", 1.25),
        (ALONE[1], "call", 2.0),
        (ALONE[1], "teardown", 60.0),
        (UNIT[0], "call", 0.2),
    ]
    for nodeid, when, seconds in took:
        durations.pytest_runtest_logreport(report(nodeid, when, seconds))
    durations.pytest_sessionfinish()
    assert json.loads(table.read_text()) == {ALONE[0]: 9.0, ALONE[1]: 3.2, UNIT[1]: 7.0}


def test_a_test_that_ends_its_worker_fails_once_and_every_other_test_runs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support.schedule import SlowestFirst\n"
        "def pytest_xdist_make_scheduler(config, log): return SlowestFirst(config, log)\n"
    )
    body = "import os\ndef test_a(): pass\ndef test_ends(): os._exit(1)\ndef test_b(): pass\n"
    (tmp_path / "test_ends.py").write_text(body)
    for name in ("c", "d"):
        (tmp_path / f"test_{name}.py").write_text("def test_it(): pass\n")
    options = ("-p", "no:cacheprovider", "-n", "1", "--rootdir", str(tmp_path), "-c", "/dev/null")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert ended.returncode == 1
    assert re.search(r"\b1 failed, 4 passed\b", ended.stdout), ended.stdout


def test_what_measures_steps_comes_first() -> None:
    measured = "tests/unit/evaluator/test_loop_held.py::test_no_event_holds_the_loop[a]"
    assert arranged(*UNIT, *ALONE, measured, *SHARED)[0] == measured
