"""Commands work even if PYTHONPATH has another folder with the name of one of our packages."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.patience import patient

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("arguments", [["--version"], ["schema", "score"], ["score", "sample", "--processes", "2"]])
def test_a_command_finds_our_packages_behind_others_of_their_names(tmp_path: Path, arguments: list[str]) -> None:
    for name in ("schemas", "consumers", "streamer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of somebody else')\n")
    start = "from callgauge import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}"}, capture_output=True, text=True,
        timeout=patient(60),
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_the_installed_command_starts_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"callgauge": "callgauge:main"}


def test_the_module_is_the_command(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "callgauge", "--version"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=patient(30),
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("callgauge ")
