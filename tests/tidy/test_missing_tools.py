"""A test that is skipped because of a missing tool fails in CI, and only there; any other skip
stays a skip.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.tidy.source_tree import ROOT

SKIPS = """
import pytest
from tests.support.required_tools import MISSING, require_tool

def test_in_the_test(): require_tool("no-such-program", "nowhere")

@pytest.fixture
def tool(): require_tool("no-such-program", "nowhere")

def test_in_a_fixture(tool): pass

@pytest.mark.skipif(True, reason=MISSING + "no-such-program (nowhere)")
def test_by_a_mark(): pass

def test_for_another_reason(): pytest.skip("no data")
"""
SKIPPED_MODULE = """
import pytest
from tests.support.required_tools import MISSING
pytest.skip(MISSING + "no-such-program (nowhere)", allow_module_level=True)
"""


def _run(folder: Path, **more: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name != "CI" and "PYTEST" not in name
    } | more
    # the tests need no plugin, and plugins take a second to load
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = [
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "--continue-on-collection-errors",
        str(folder),
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout


def test_a_missing_tool_fails_in_ci_only(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_skipped_module.py").write_text(SKIPPED_MODULE)
    assert " 5 skipped in" in _run(tmp_path)
    in_ci = _run(tmp_path, CI="true")
    assert " 1 failed, 1 skipped, 3 errors in" in in_ci  # a skip before the test runs is an error
    assert (
        in_ci.count("missing tool: no-such-program (nowhere): with CI set every tool must be there")
        >= 4
    )
