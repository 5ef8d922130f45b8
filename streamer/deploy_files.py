"""The files with which callgauge is deployed, from the wheel or the checkout that this process runs
from.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from consumers.console.fleet import Runbook
from consumers.runtime.process import OperatorError

PLACES: Final = (
    "prometheus/rules",
    "grafana/dashboards",
    "alertmanager/alertmanager.yml",
    "alertmanager/templates",
    "runbooks",
    "helm/callgauge",
)
"""The parts of the folder `deploy` that are written; pyproject.toml puts the same into
the wheel.
"""
MAX_NAMED: Final = 5
"""Most files that the refusal names."""

_IN_THE_WHEEL: Final = Path(__file__).parent / "deployed"
_IN_THE_CHECKOUT: Final = Path(__file__).parents[1] / "deploy"


def write_deploy_files(folder: Path, *, replaces: bool) -> int:
    """Writes the files into the folder, each under its path.

    Returns:
        How many were written. A file with the same content is not written again.

    Raises:
        OperatorError: A file has another content and may not be replaced, so that nothing was
            written; or writing failed.
    """
    try:
        new = {
            path: content
            for path, content in _files()
            if not (folder / path).exists() or (folder / path).read_bytes() != content
        }
        changed = sorted(str(path) for path in new if (folder / path).exists())
        if changed and not replaces:
            raise OperatorError(
                f"{folder}: {len(changed)} files have another content than those of this version, "
                f"first {', '.join(changed[:MAX_NAMED])}. Nothing was written. Keep your changes "
                "elsewhere and give --replace, or choose another folder."
            )
        for path, content in new.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    except OSError as error:
        raise OperatorError(
            f"{error.filename}: it cannot be written ({error.strerror}). Files that were written "
            "before are whole. Give this user the right to write there, or choose another folder."
        ) from error
    return len(new)


def runbooks(contacts: Mapping[str, str]) -> Mapping[str, Runbook]:
    """By alert its runbook: what to do step by step, which the text of the alert has too, and the
    team that is asked, with its contact.
    """
    rules = "\n".join(content.decode() for _, content in _files(["prometheus/rules"]))
    teams = dict(_TEAM.findall(rules))
    found = {}
    for path, content in _files(["runbooks"]):
        text = content.decode()
        steps = _STEP.split(text.partition("## What to do\n")[2])[1:]
        team = teams.get(path.stem, "")
        found[path.stem] = Runbook(
            team, [" ".join(step.split()) for step in steps], text, contacts.get(team, "")
        )
    return found


_STEP: Final = re.compile(r"^\d+\. ", re.MULTILINE)
_TEAM: Final = re.compile(r"- alert: (\w+)\n(?:(?! *- alert:).*\n)*? *team: (\S+)")
"""An alert, and the label `team` of the same rule."""


def _files(places: Sequence[str] = PLACES) -> Iterator[tuple[Path, bytes]]:
    source = _IN_THE_WHEEL if _IN_THE_WHEEL.is_dir() else _IN_THE_CHECKOUT
    for place in places:
        for path in (
            sorted((source / place).rglob("*")) if (source / place).is_dir() else [source / place]
        ):
            if path.is_file():
                yield path.relative_to(source), path.read_bytes()
