"""Compares the locked packages with advisories in a file, without a network: `make audit`.

`pypi.json` has advisories about our packages in OSV's form: those of PyPA's advisory database (CC
BY 4.0) until October 2024, and later ones of GitHub's. It is as old as its newest entry, and of
what came later nothing is known: so advisories that are too old fail `make audit`, and `make
release` says so. Take the newest before you publish: OSV's export of PyPI (`all.zip`), or any list
or folder of such files, as `make audit ADVISORIES=all.zip`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements.lock"
STORED: Final = Path(__file__).with_name("pypi.json")
ANY_AGE: Final = "--any-age"
"""For a build of one's own: it tells how old the advisories are, and goes on."""
MAX_AGE_DAYS: Final = 30
"""How old the newest advisory may be. There are several a day, so a list without one for a month is
an old list.
"""
_PIN: Final = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.M)

Advisory = Mapping[str, Any]


def pins(lock: str) -> dict[str, Version]:
    """The locked version of each package."""
    return {canonicalize_name(name): Version(version) for name, version in _PIN.findall(lock)}


def advisories(path: Path) -> Iterator[Advisory]:
    """The advisories of a file with one or a list of them, of a folder of such files, or of a zip
    archive of them.
    """
    if path.is_dir():
        texts = [each.read_bytes() for each in sorted(path.rglob("*.json"))]
    elif path.suffix == ".zip":
        with ZipFile(path) as archive:
            texts = [archive.read(name) for name in archive.namelist() if name.endswith(".json")]
    else:
        texts = [path.read_bytes()]
    for text in texts:
        found = json.loads(text)
        yield from found if isinstance(found, list) else [found]


def affected(version: Version, advisory: Advisory, name: str) -> bool:
    """Whether an advisory is about this version of a package."""
    return any(
        _is_in(version, entry)
        for entry in advisory.get("affected", ())
        if entry.get("package", {}).get("ecosystem") == "PyPI"
        and canonicalize_name(entry["package"]["name"]) == name
    )


def _is_in(version: Version, entry: Mapping[str, Any]) -> bool:
    if str(version) in entry.get("versions", ()):
        return True
    for affected_range in entry.get("ranges", ()):
        if affected_range["type"] != "ECOSYSTEM":  # of commits
            continue
        is_in = False
        for event in affected_range["events"]:  # in the order of their versions
            (kind, at), *_ = event.items()
            if kind == "introduced":
                is_in = is_in or at == "0" or version >= Version(at)
            elif kind == "fixed":
                is_in = is_in and version < Version(at)
            elif kind == "last_affected":
                is_in = is_in and version <= Version(at)
            if is_in and kind != "introduced":
                break
        if is_in:
            return True
    return False


def findings(locked: Mapping[str, Version], known: Sequence[Advisory]) -> list[str]:
    """A line about each advisory that is about a locked version."""
    return [
        f"{name} {version}: {advisory['id']} ({', '.join(advisory.get('aliases', ()))}): "
        f"{advisory.get('summary', '')}"
        for advisory in known
        if "withdrawn" not in advisory
        for name, version in locked.items()
        if affected(version, advisory, name)
    ]


def main(arguments: Sequence[str], today: date) -> int:
    """Prints what applies; the exit code is 1 if anything does, 2 if the file has no advisory, 3 if
    its newest one is too old, unless it may be of any age (`--any-age`).
    """
    paths = [Path(each) for each in arguments if each != ANY_AGE]
    path = paths[0] if paths else STORED
    locked, known = pins(LOCK.read_text()), list(advisories(path))
    if not known:
        sys.stderr.write(
            f"{path}: expected advisories in OSV's form, saw none. Nothing was compared.\n"
        )
        return 2
    found = findings(locked, known)
    newest = max(str(advisory.get("modified", "1970-01-01"))[:10] for advisory in known)
    age_days = (today - date.fromisoformat(newest)).days
    summary = (
        f"{len(locked)} locked packages, {len(known)} advisories until {newest}: {len(found)} "
        "apply."
    )
    sys.stdout.write("\n".join([*found, summary, ""]))
    if found:
        sys.stderr.write(
            "Take a fixed version with `make lock UPGRADE=1`, or say in SECURITY.md why it does "
            "not reach us.\n"
        )
    if age_days > MAX_AGE_DAYS:
        sys.stderr.write(
            f"{path}: the newest advisory is {age_days} days old, expected at most {MAX_AGE_DAYS}. "
            "What was published since is not compared. Before you publish a release, take OSV's "
            "newest export of PyPI (all.zip, from osv.dev): make audit ADVISORIES=all.zip.\n"
        )
    if found:
        return 1
    return 3 if age_days > MAX_AGE_DAYS and ANY_AGE not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], datetime.now(UTC).date()))
