"""Builds a release into dist/ from the last commit: wheels, source archives, chart, deploy files,
image, SBOM, notes, checksums.

    python deploy/make_release.py              (`make release`)
    python deploy/make_release.py cut 0.2.0    (`make cut VERSION=0.2.0`)

Two builds of one commit give the same bytes; only the image does not, because its base and its byte
code have times of their own. The version stands in pyproject.toml. `cut` writes it there and into
the chart, and gives the entries of the changelog that are under "Unreleased" to that version.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).parents[1]
DIST: Final = "dist"
CHART: Final = Path("deploy/helm/callgauge")
DISTRIBUTIONS: Final = (
    Path(),
    *(Path("streamer/observers") / name for name in ("send", "pipecat", "livekit")),
)
UNRELEASED: Final = "## Unreleased"
_BUILT_WITH: Final = "requirements-dev.lock"


class ReleaseError(Exception):
    """No release was made; the text says why, and what to do."""


def main(arguments: Sequence[str]) -> None:
    """Builds, or cuts the changelog.

    Raises:
        SystemExit: Nothing was made, or the arguments are others.
    """
    try:
        match arguments:
            case []:
                build(ROOT, ROOT / DIST, with_image=True)
            case ["cut", version]:
                cut(ROOT, version, datetime.now(UTC).date().isoformat())
            case _:
                raise SystemExit(__doc__)
    except ReleaseError as error:
        raise SystemExit(str(error)) from None


# -- the version and the changelog
# -------------------------------------------------------------------------------------


def version_of(tree: Path) -> str:
    """The version that pyproject.toml says."""
    version: str = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    return version


def cut(tree: Path, version: str, day: str) -> None:
    """Writes a new version into pyproject.toml and the chart, and a section of the changelog with
    all that is unreleased.

    Args:
        tree: The checkout.
        version: The new one, `0.2.0`.
        day: Today, `2026-11-24`.

    Raises:
        ReleaseError: The version is none, or released already, or there is nothing to release.
            Nothing was written.
    """
    changelog = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        is_plain = str(Version(version)) == version
    except InvalidVersion:
        is_plain = False
    if not is_plain:
        raise ReleaseError(
            f"{version!r} is no version: expected one such as 0.2.0. Nothing was written."
        )
    if _section(changelog, f"## {version}") is not None:
        raise ReleaseError(
            f"CHANGELOG.md has a section {version} already. Nothing was written. Take the next "
            "version."
        )
    if not (_section(changelog, UNRELEASED) or "").strip():
        raise ReleaseError(
            "CHANGELOG.md has nothing under 'Unreleased'. Nothing was written. Write what has "
            "changed."
        )
    changes = {
        tree / "CHANGELOG.md": changelog.replace(
            UNRELEASED, f"{UNRELEASED}\n\n## {version} ({day})", 1
        ),
        tree / "pyproject.toml": _replaced(
            tree / "pyproject.toml", r'^version = ".*"$', f'version = "{version}"'
        ),
        tree / CHART / "Chart.yaml": _chart_of(tree, version),
    }
    for path, text in changes.items():
        path.write_text(text, encoding="utf-8")
    sys.stdout.write(
        f"{', '.join(str(path.relative_to(tree)) for path in changes)}: {version}. Commit them.\n"
    )


def _replaced(path: Path, line: str, text: str) -> str:
    replaced, count = re.subn(line, text, path.read_text(encoding="utf-8"), count=1, flags=re.M)
    if not count:
        raise ReleaseError(f"{path}: expected a line like {line}, seen none. Nothing was written.")
    return replaced


def _chart_of(tree: Path, version: str) -> str:
    """The chart's file with this version, of itself and of the image."""
    return re.sub(
        r"^(version|appVersion): .*$",
        rf"\1: {version}",
        (tree / CHART / "Chart.yaml").read_text("utf-8"),
        flags=re.M,
    )


def _section(changelog: str, heading: str) -> str | None:
    """The text below a heading of the changelog; None if there is no such heading."""
    found = re.search(
        rf"^{re.escape(heading)}(?: \([^)\n]*\))?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    return found[1] if found else None


def notes_of(tree: Path, version: str) -> tuple[str, bool]:
    """What the changelog says of a version, and whether it was cut. If it was not, these are the
    entries that are unreleased.
    """
    changelog = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    section = _section(changelog, f"## {version}")
    return (
        f"# {version}\n\n{(section or _section(changelog, UNRELEASED) or '').strip()}\n",
        section is not None,
    )


# -- the files
# ---------------------------------------------------------------------------------------------------------


def build(checkout: Path, dist: Path, *, with_image: bool) -> None:
    """Builds all of the last commit of a checkout; what was in `dist` before is gone.

    Raises:
        ReleaseError: Something could not be built; `dist` has no checksums.
    """
    if _ran(checkout, "git", "status", "--porcelain"):
        sys.stdout.write(
            "There are changes that are not committed: they are not in this release.\n"
        )
    stamp = int(_ran(checkout, "git", "log", "-1", "--format=%ct"))
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        with tarfile.open(
            fileobj=io.BytesIO(_output(checkout, "git", "archive", "HEAD"))
        ) as archive:
            archive.extractall(tree, filter="data")
        version = version_of(tree)
        notes, was_cut = notes_of(tree, version)
        if not was_cut:
            sys.stdout.write(
                f"CHANGELOG.md has no section {version}: the notes are those of 'Unreleased'. "
                "`make cut` makes one.\n"
            )
        for distribution in DISTRIBUTIONS:
            _build_distribution(tree, tree / distribution, dist, stamp)
        (tree / CHART / "Chart.yaml").write_text(_chart_of(tree, version), encoding="utf-8")
        _archive(tree / CHART, "callgauge", dist / f"callgauge-chart-{version}.tgz", stamp)
        _archive(
            tree / "deploy",
            f"callgauge-{version}-deploy",
            dist / f"callgauge-{version}-deploy.tar.gz",
            stamp,
        )
        lock = (tree / "requirements.lock").read_text("utf-8")
        (dist / "requirements.lock").write_text(lock, encoding="utf-8")
        sbom = json.dumps(_bill_of_materials(lock, version, stamp), indent=1)
        (dist / f"callgauge-{version}.cdx.json").write_text(sbom + "\n", encoding="utf-8")
        (dist / f"callgauge-{version}-notes.md").write_text(notes, encoding="utf-8")
        image = (
            _image(tree, dist / f"callgauge-{version}-image.tar", version, stamp)
            if with_image
            else ""
        )
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(dist.iterdir())
    ]
    (dist / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    sys.stdout.write("".join(sums) + image)


def _build_distribution(tree: Path, source: Path, dist: Path, stamp: int) -> None:
    """Makes wheel and source archive with the tools of the lock file."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.is_file():
        raise ReleaseError(
            f"{uv} is missing, which builds the wheel. Nothing was built. `make release` installs "
            "it."
        )
    options = ("--build-constraints", str(tree / _BUILT_WITH), "--no-create-gitignore", "--quiet")
    done = subprocess.run(  # noqa: S603 - our own command
        [uv, "build", *options, "--out-dir", dist, source],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(stamp)},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ReleaseError(
            f"{source.relative_to(tree)} could not be built. It fetches hatchling: that needs the "
            "network, or an index of "
            f"yours (UV_DEFAULT_INDEX). Then run make release again. uv says:\n{done.stderr}"
        )


def _archive(folder: Path, name: str, archive: Path, stamp: int) -> None:
    """Packs a folder: files in order, links as what they lead to, everything of one time and of
    nobody.
    """
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=stamp) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            entry.size, entry.mtime, entry.mode = len(content), stamp, 0o644
            tar.addfile(entry, io.BytesIO(content))


def _bill_of_materials(lock: str, version: str, stamp: int) -> dict[str, object]:
    """What the wheel needs to run, as CycloneDX: each package of the lock file, with the condition
    on which it is installed.
    """
    components = [
        {
            "type": "library",
            "name": need.name,
            "version": (pinned := str(need.specifier).removeprefix("==")),
            "purl": (purl := f"pkg:pypi/{need.name}@{pinned}"),
            "bom-ref": f"{purl}#{need.marker}" if need.marker else purl,
            **(
                {"properties": [{"name": "marker", "value": str(need.marker)}]}
                if need.marker
                else {}
            ),
        }
        for need in _pinned(lock)
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'callgauge {version} {stamp} {lock}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(stamp, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "application",
                "bom-ref": "callgauge",
                "name": "callgauge",
                "version": version,
                "purl": f"pkg:pypi/callgauge@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": "callgauge", "dependsOn": [each["bom-ref"] for each in components]}
        ],
    }


def _pinned(lock: str) -> Iterator[Requirement]:
    for line in lock.splitlines():
        if re.match(r"[a-z0-9]", line):
            yield Requirement(line.removesuffix("\\").strip())


def _image(tree: Path, archive: Path, version: str, stamp: int) -> str:
    """Builds the image with the first tool that works, and returns what to tell if there is none.

    Raises:
        ReleaseError: There is one, and it could not build or save the image.
    """
    name, dockerfile = f"callgauge:{version}", "deploy/Dockerfile"
    tools = {
        "docker": (("docker", "info"), ("docker", "save", "--output", str(archive), name)),
        "podman": (
            ("podman", "info"),
            ("podman", "save", "--format", "oci-archive", "--output", str(archive), name),
        ),
        "buildah": (
            ("buildah", "info"),
            ("buildah", "push", name, f"oci-archive:{archive}:{name}"),
        ),
    }
    for tool, (probe, save) in tools.items():
        if shutil.which(tool) is None or _fails(tree, *probe):
            continue
        stamped = ("--timestamp", str(stamp)) if tool != "docker" else ()
        why = _fails(
            tree, tool, "build", *stamped, "--file", dockerfile, "--tag", name, "."
        ) or _fails(tree, *save)
        if why:
            raise ReleaseError(
                f"{tool} works here and could not make the image: {why}. dist has no checksums: it "
                "is no release."
            )
        return ""
    return (
        "The image is skipped: no docker, podman or buildah works here. All other files are "
        "complete. Where one works: docker build "
        f"--file {dockerfile} .\n"
    )


def _fails(folder: Path, *command: str) -> str:
    """Runs a command, and returns the end of what it said if it failed; empty if it did not."""
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)  # noqa: S603 - our own commands
    return (
        (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if done.returncode
        else ""
    )


def _ran(folder: Path, *command: str) -> str:
    return _output(folder, *command).decode().strip()


def _output(folder: Path, *command: str) -> bytes:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True)  # noqa: S603 - our own commands
    if done.returncode:
        raise ReleaseError(
            f"{' '.join(command)} failed: {done.stderr.decode()}Nothing was built. A release is "
            "built from a git checkout."
        )
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
