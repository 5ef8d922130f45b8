"""A release: made from one version, the same bytes each time, complete."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.make_release import (
    ROOT,
    ReleaseError,
    _archive,
    _bill_of_materials,
    _image,
    build,
    cut,
    notes_of,
    version_of,
)

STAMP = 1_790_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with the files that have the version."""
    for name in ("pyproject.toml", "deploy/helm/callgauge/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = (
        "# Changelog\n\n## Unreleased\n\n### Added\n- New.\n\n## 0.0.9 (2026-01-01)\n\n- Old.\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    return tmp_path


def test_the_chart_has_the_version_of_the_package() -> None:
    version = version_of(ROOT)
    lines = (ROOT / "deploy/helm/callgauge/Chart.yaml").read_text().splitlines()
    assert {f"version: {version}", f"appVersion: {version}"} <= set(lines)


def test_a_cut_writes_the_version_everywhere_and_gives_it_what_was_unreleased(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert notes_of(tree, "9.1.0") == ("# 9.1.0\n\n### Added\n- New.\n", False)
    cut(tree, "9.1.0", "2026-11-24")
    assert "9.1.0. Commit them." in capsys.readouterr().out
    assert version_of(tree) == "9.1.0"
    chart = (tree / "deploy/helm/callgauge/Chart.yaml").read_text()
    assert "\nversion: 9.1.0\nappVersion: 9.1.0\n" in chart
    assert (tree / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## Unreleased\n\n## 9.1.0 (2026-11-24)\n\n### Added\n- New.\n\n## 0.0.9 "
        "(2026-01-01)\n\n- Old.\n"
    )
    assert notes_of(tree, "9.1.0") == ("# 9.1.0\n\n### Added\n- New.\n", True)
    assert notes_of(tree, "0.0.9") == ("# 0.0.9\n\n- Old.\n", True)


@pytest.mark.parametrize(
    ("version", "why"),
    [("1.x", "is no version"), ("", "is no version"), ("0.0.9", "has a section")],
)
def test_a_cut_that_makes_no_sense_changes_nothing(tree: Path, version: str, why: str) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.*") if path.is_file()}
    with pytest.raises(ReleaseError, match=why):
        cut(tree, version, "2026-11-24")
    assert {path: path.read_bytes() for path in before} == before


def test_nothing_unreleased_is_no_release(tree: Path) -> None:
    cut(tree, "9.1.0", "2026-11-24")
    with pytest.raises(ReleaseError, match="nothing under 'Unreleased'"):
        cut(tree, "9.2.0", "2026-11-25")


def test_an_archive_has_the_content_of_links_and_no_trace_of_when_and_by_whom_it_was_made(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(("one", "two")):
        folder = tmp_path / name
        (folder / "b").mkdir(parents=True)
        (folder / "b" / "text").write_text("words")
        (folder / "a").symlink_to(folder / "b" / "text")
        (folder / "b" / "text").chmod(0o600 if number else 0o664)
        _archive(folder, "chart", tmp_path / f"{name}.tgz", STAMP)
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()
    with tarfile.open(tmp_path / "one.tgz") as tar:
        found = {each.name: (each.isfile(), each.mtime, each.uid) for each in tar}
    assert found == dict.fromkeys(("chart/a", "chart/b/text"), (True, STAMP, 0))


def test_the_bill_of_materials_has_every_package_of_the_lock_file() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    bill = json.loads(json.dumps(_bill_of_materials(lock, "9.1.0", STAMP)))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    named = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    assert named == {
        line.split(" ")[0]
        for line in lock.splitlines()
        if "==" in line and not line.startswith((" ", "#"))
    }
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references) > 20
    assert bill["dependencies"] == [{"ref": "callgauge", "dependsOn": references}]
    assert bill == json.loads(json.dumps(_bill_of_materials(lock, "9.1.0", STAMP)))


@pytest.mark.long  # it fetches what builds wheels
def test_two_builds_of_a_commit_are_the_same_to_the_byte_and_complete(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        clone = tmp_path / name
        subprocess.run(["git", "clone", "--quiet", "--local", ROOT, clone], check=True)
        build(clone, clone / "dist", with_image=False)
        found.append({path.name: path.read_bytes() for path in (clone / "dist").iterdir()})
    assert found[0] == found[1]
    version = version_of(ROOT)
    wheel, chart = f"callgauge-{version}-py3-none-any.whl", f"callgauge-chart-{version}.tgz"
    assert {
        wheel,
        chart,
        f"callgauge-{version}.tar.gz",
        f"callgauge-{version}.cdx.json",
        f"callgauge-{version}-deploy.tar.gz",
        "requirements.lock",
    } <= set(found[0])
    sums = {line[66:]: line[:64] for line in found[0]["SHA256SUMS"].decode().splitlines()}
    assert sums == {
        name: hashlib.sha256(data).hexdigest()
        for name, data in found[0].items()
        if name != "SHA256SUMS"
    }
    dist = tmp_path / "one" / "dist"
    with zipfile.ZipFile(dist / wheel) as packed:
        assert {"callgauge.py", "streamer/cli/app.py", "schemas/topics.py"} <= set(
            packed.namelist()
        )
    shown = subprocess.run(
        [Path(sys.executable).with_name("helm"), "template", "calls", dist / chart],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert f"callgauge:{version}" in shown.stdout


# -- the image
# ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a docker on the path, alone, that fails at one of its commands."""

    def install(failing: str) -> None:
        tool = tmp_path / "docker"
        tool.write_text(
            f'#!/bin/sh\n[ "$1" != {failing} ] || {{ echo "no {failing} today" >&2; exit 1; }}\n'
        )
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    return install


@pytest.mark.parametrize("failing", ["build", "save"])
def test_an_image_that_fails_where_docker_works_fails_the_release(
    docker: Callable[[str], None], tmp_path: Path, failing: str
) -> None:
    docker(failing)
    with pytest.raises(ReleaseError, match=f"could not make the image: no {failing} today"):
        _image(tmp_path, tmp_path / "image.tar", "1.2.3", 0)


def test_without_a_docker_that_works_the_image_is_skipped_and_that_is_said(
    docker: Callable[[str], None], tmp_path: Path
) -> None:
    assert _image(tmp_path, tmp_path / "image.tar", "1.2.3", 0).startswith(
        "The image is skipped: no docker"
    )
    docker("info")
    assert _image(tmp_path, tmp_path / "image.tar", "1.2.3", 0).startswith(
        "The image is skipped: no docker"
    )
    docker("nothing")
    assert _image(tmp_path, tmp_path / "image.tar", "1.2.3", 0) == ""
