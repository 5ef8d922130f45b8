"""A command that starts warm is the installed command in everything but its start."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.integration.processes import COMMAND
from tests.support import warm_starts
from tests.support.patience import patient
from tests.support.warm_starts import LOADED, WarmStart

ENVIRONMENT = {"PATH": os.environ["PATH"], "COLUMNS": "100", "LANG": "C.UTF-8"}


@pytest.mark.parametrize(
    "arguments",
    [("goals", "--help"), ("run", "--roles", "nobody"), ("goals", "check", "gone.yaml")],
)
def test_it_prints_and_ends_as_the_installed_command(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    installed = subprocess.run(
        [str(COMMAND), *arguments], env=ENVIRONMENT, capture_output=True, text=True
    )
    out, err = tmp_path / "out", tmp_path / "err"
    warm = WarmStart(arguments, ENVIRONMENT, out, err)
    code = warm.wait(patient(30))
    assert (code, out.read_text(), err.read_text()) == (
        installed.returncode,
        installed.stdout,
        installed.stderr,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_takes_signals(number: signal.Signals, tmp_path: Path) -> None:
    warm = WarmStart(("demo", "--port", "0"), ENVIRONMENT, tmp_path / "out", tmp_path / "err")
    assert warm.poll() is None
    warm.send_signal(number)
    if number is signal.SIGSTOP:
        with pytest.raises(subprocess.TimeoutExpired):
            warm.wait(0.1)
        warm.kill()
    assert warm.wait(patient(10)) == warm.returncode == -signal.SIGKILL


def test_all_that_is_to_be_loaded_is_there() -> None:
    """A missing module would be passed over, and loaded at each start instead."""
    assert [name for name in LOADED if find_spec(name) is None] == []


def test_what_is_forked_has_all_loaded_and_no_thread(tmp_path: Path) -> None:
    """A thread of the process that forks would be missing in the command, together with any lock
    that it holds then.
    """
    seen = tmp_path / "seen"
    # another test may have begun one that has less loaded
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    warm_starts._FORKS.set_forkserver_preload([warm_starts.__name__, *LOADED])
    process = warm_starts._FORKS.Process(target=_look, args=(seen,))
    process.start()
    process.join(patient(30))
    assert json.loads(seen.read_text()) == {
        "not loaded": [],
        "threads": 1 if TASKS.is_dir() else None,
    }


TASKS = Path("/proc/self/task")


def _look(seen: Path) -> None:
    tasks = Path(f"/proc/{os.getppid()}/task")
    threads = len(list(tasks.iterdir())) if TASKS.is_dir() else None
    seen.write_text(
        json.dumps(
            {"not loaded": [name for name in LOADED if name not in sys.modules], "threads": threads}
        )
    )
