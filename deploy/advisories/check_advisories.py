"""Compares the locked packages with advisories in a file, without a network: `make audit`.

`pypi.json` has advisories about our packages in OSV's form: those of PyPA's advisory database (CC BY 4.0) until October 2024, and
later ones of GitHub's. It is as old as its newest entry. For a release take the newest: OSV's export of PyPI (`all.zip`), or any list
or folder of such files, as `make audit ADVISORIES=all.zip`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements.lock"
STORED: Final = Path(__file__).with_name("pypi.json")
_PIN: Final = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.M)

Advisory = Mapping[str, Any]


def pins(lock: str) -> dict[str, Version]:
    """The locked version of each package."""
    return {canonicalize_name(name): Version(version) for name, version in _PIN.findall(lock)}


def advisories(path: Path) -> Iterator[Advisory]:
    """The advisories of a file with one or a list of them, of a folder of such files, or of a zip archive of them."""
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
        if entry.get("package", {}).get("ecosystem") == "PyPI" and canonicalize_name(entry["package"]["name"]) == name
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
        f"{name} {version}: {advisory['id']} ({', '.join(advisory.get('aliases', ()))}): {advisory.get('summary', '')}"
        for advisory in known
        if "withdrawn" not in advisory
        for name, version in locked.items()
        if affected(version, advisory, name)
    ]


def main() -> int:
    """Prints what applies; the exit code is 1 if anything does, 2 if the file has no advisory."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else STORED
    locked, known = pins(LOCK.read_text()), list(advisories(path))
    if not known:
        sys.stderr.write(f"{path}: expected advisories in OSV's form, saw none. Nothing was compared.\n")
        return 2
    found = findings(locked, known)
    newest = max(str(advisory.get("modified", ""))[:10] for advisory in known)
    summary = f"{len(locked)} locked packages, {len(known)} advisories until {newest}: {len(found)} apply."
    sys.stdout.write("\n".join([*found, summary, ""]))
    if found:
        sys.stderr.write(
            "Take a fixed version with `make lock UPGRADE=1`, or say in SECURITY.md why it does not reach us.\n"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
