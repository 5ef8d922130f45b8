"""Workers get the slowest group first, and a group stays whole and in its order."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from tests.support import schedule
from tests.support.patience import patient

ROOT = Path(__file__).parents[3]
UNIT = [f"tests/unit/test_a.py::test_{n}" for n in range(3)]
SHARED = [f"tests/integration/test_process.py::test_{n}" for n in range(2)]
ALONE = [f"tests/integration/test_broker.py::test_{n}" for n in range(2)]


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
