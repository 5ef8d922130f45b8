"""Both lock files satisfy pyproject.toml, agree with each other, and name no address that files
come from.
"""

import re
import tomllib
from dataclasses import dataclass

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.source_tree import ROOT

RUNTIME, DEV = "requirements.lock", "requirements-dev.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ASKED = {
    RUNTIME: PROJECT["project"]["dependencies"],
    DEV: [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]],
}


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    hashes: int


def _pins(text: str) -> list[Pin]:
    lines = [
        line
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    pins = []
    for line in lines:
        requirement = Requirement(line.split(" --hash=")[0].strip())
        exact = re.fullmatch(r"==([^,*]+)", str(requirement.specifier))
        assert exact is not None, f"not pinned: {line}"
        pins.append(
            Pin(canonicalize_name(requirement.name), exact[1], line.count(" --hash=sha256:"))
        )
    return pins


def _unsatisfied(asked: list[str], pins: list[Pin]) -> list[str]:
    """Requirements without a pin, or with one outside their range."""
    wrong = []
    for requirement in map(Requirement, asked):
        versions = [pin.version for pin in pins if pin.name == canonicalize_name(requirement.name)]
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement}: locked at {versions}")
    return wrong


@pytest.mark.parametrize("lock", [RUNTIME, DEV])
def test_a_lock_is_what_the_project_asks_for(lock: str) -> None:
    pins = _pins((ROOT / lock).read_text())
    assert _unsatisfied(ASKED[lock], pins) == [], "run `make lock`"
    assert [pin for pin in pins if not pin.hashes] == []


@pytest.mark.parametrize("lock", [RUNTIME, DEV])
def test_a_lock_names_no_address(lock: str) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    assert [
        line
        for line in lines
        if "://" in line or re.match(r"\s*(-i|-f|--\w*(index|find|host))", line)
    ] == []


def test_what_is_tested_is_what_runs() -> None:
    runtime, dev = (
        {(pin.name, pin.version) for pin in _pins((ROOT / lock).read_text())}
        for lock in (RUNTIME, DEV)
    )
    assert runtime - dev == set(), "run `make lock`"


def test_a_wrong_lock_is_seen() -> None:
    pins = _pins(
        "a==1.0 \\\n    --hash=sha256:00\nb==2.0 ; python_full_version < '3.13' \\\n    "
        "--hash=sha256:00\n"
    )
    assert pins == [Pin("a", "1.0", 1), Pin("b", "2.0", 1)]
    assert _unsatisfied(["A>=1", "b[x]>=2,<3"], pins) == []
    assert _unsatisfied(["a>=2", "c"], pins) == ["a>=2: locked at ['1.0']", "c: locked at []"]
