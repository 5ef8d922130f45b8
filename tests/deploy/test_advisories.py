"""Locked packages beside advisories: an advisory about a locked version is told, any
other is not.
"""

import importlib.util
import json
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.version import Version

from tests.tidy.source_tree import ROOT

SCRIPT = ROOT / "deploy" / "advisories" / "check_advisories.py"


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("check_advisories", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = _loaded()


def advisory(*events: dict[str, str], name: str = "Some_Package", **more: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    return {"id": "A-1", "affected": [{"package": package, "ranges": ranges, **more}]}


TWO_LINES = advisory({"introduced": "0"}, {"fixed": "1.3"}, {"introduced": "2.0"}, {"fixed": "2.4"})
LAST = advisory({"introduced": "1.0"}, {"last_affected": "1.2"})


@pytest.mark.parametrize(
    ("known", "version", "is_affected"),
    [
        (TWO_LINES, "1.2", True),
        (TWO_LINES, "1.3", False),
        (TWO_LINES, "1.5", False),
        (TWO_LINES, "2.0", True),
        (TWO_LINES, "2.4", False),
        (LAST, "0.9", False),
        (LAST, "1.2", True),
        (LAST, "1.10", False),
        (advisory(versions=["1.2"]), "1.2", True),
        (advisory(versions=["1.2"]), "1.3", False),
        (advisory({"introduced": "0"}), "9", True),
        (advisory({"introduced": "0"}, name="another"), "9", False),
    ],
)
def test_a_version_is_in_the_ranges_of_its_package(
    known: dict[str, Any], version: str, is_affected: bool
) -> None:
    found = check.findings({"some-package": Version(version)}, [known])
    assert found == ([f"some-package {version}: A-1 (): "] if is_affected else [])


def test_what_was_withdrawn_or_is_of_another_ecosystem_is_passed_over() -> None:
    locked = {"some-package": Version("1")}
    everything = advisory({"introduced": "0"})
    assert check.findings(locked, [everything])
    assert not check.findings(locked, [everything | {"withdrawn": "2026-01-01"}])
    everything["affected"][0]["package"]["ecosystem"] = "npm"
    assert not check.findings(locked, [everything])


def test_advisories_come_as_a_list_a_folder_or_an_archive(tmp_path: Path) -> None:
    text = json.dumps(TWO_LINES)
    (tmp_path / "one.json").write_text(text)
    (tmp_path / "list.json").write_text(f"[{text}, {text}]")
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("A-1.json", text)
    counts = {
        name: len(list(check.advisories(tmp_path / name)))
        for name in ("one.json", "list.json", "all.zip", ".")
    }
    assert counts == {"one.json": 1, "list.json": 2, "all.zip": 1, ".": 3}


@pytest.mark.parametrize(
    ("today", "code"), [("2026-03-31", 0), ("2026-04-01", 3), ("2027-01-01", 3), ("2026-02-01", 0)]
)
def test_advisories_that_are_too_old_fail_and_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], today: str, code: int
) -> None:
    newest = TWO_LINES | {"modified": "2026-03-01T10:00:00Z"}
    (tmp_path / "list.json").write_text(
        json.dumps([newest, LAST | {"modified": "2025-01-01T00:00:00Z"}])
    )
    assert check.main([str(tmp_path / "list.json")], date.fromisoformat(today)) == code
    said = capsys.readouterr().err
    assert ("days old" in said) is ("ADVISORIES=all.zip" in said) is (code != 0)
    # who builds for himself sees the same message, and the build goes on
    assert check.main([check.ANY_AGE, str(tmp_path / "list.json")], date.fromisoformat(today)) == 0
    assert capsys.readouterr().err == said


def test_an_advisory_that_applies_fails_however_old_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    applies = advisory({"introduced": "0"}, name="starlette") | {"modified": "2026-03-01T10:00:00Z"}
    (tmp_path / "one.json").write_text(json.dumps(applies))
    assert check.main([str(tmp_path / "one.json")], date(2026, 3, 2)) == 1
    assert check.main([str(tmp_path / "one.json")], date(2026, 12, 2)) == 1
    assert check.main([check.ANY_AGE, str(tmp_path / "one.json")], date(2026, 12, 2)) == 1
    assert "make lock UPGRADE=1" in capsys.readouterr().err
    (tmp_path / "none.json").write_text("[]")
    assert check.main([str(tmp_path / "none.json")], date(2026, 3, 2)) == 2


def test_a_release_begins_with_the_advisories() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("release:")) + 1
    assert "check_advisories.py --any-age $(ADVISORIES)" in lines[first]
    assert "make_release.py" in lines[first + 1]


def test_no_stored_advisory_is_about_what_is_locked() -> None:
    locked = check.pins((ROOT / "requirements.lock").read_text())
    known = list(check.advisories(check.STORED))
    named = {each["package"]["name"].lower() for one in known for each in one["affected"]}
    assert len(locked) > 40
    assert named <= locked.keys(), "advisories about packages that we no longer use can go"
    assert check.findings(locked, known) == []
    old = {**locked, "starlette": Version("0.40.0")}
    assert any("GHSA-7f5h-v6xp-fcq8" in line for line in check.findings(old, known))
