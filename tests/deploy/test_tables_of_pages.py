"""The tables in README.md, docs/ and deploy/ have every command, every kind of check and every type of personal data."""

import re
import tomllib
from pathlib import Path

from schemas.closed_sets import Detector
from schemas.goals.checks import CHECKS
from schemas.redaction import tag_of
from streamer.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GOALS = (ROOT / "docs" / "goals.md").read_text(encoding="utf-8")
REDACTION = (ROOT / "deploy" / "redaction.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "deploy" / "security.md").read_text(encoding="utf-8")


def _table(page: str, first_header: str, column: int = 0) -> str:
    """One column of a table, by the header of its first column."""
    rows = page[page.index(f"| {first_header} |") :].split("\n\n")[0].splitlines()[2:]
    return "\n".join(re.split(r"(?<!\\)\|", row)[1 + column] for row in rows)


def _names(text: str) -> set[str]:
    """The first words of inline code, without the name of the program."""
    return set(re.findall(r"`(?:callgauge )?(\w+)", text))


def test_readme_has_every_command() -> None:
    rows = _table(README[README.index("## Commands") :], "command").splitlines()
    assert set(re.findall(r"^ `callgauge (\w+)", "\n".join(rows), re.M)) == COMMANDS.keys()


def test_of_every_command_a_page_has_its_rights_or_that_it_needs_none() -> None:
    (offline,) = re.findall(r"^(.+) need no broker\.", README, re.M)
    assert (
        _names(offline) | _names(_table(SECURITY, "what runs")) | _names(_table(SECURITY, "command")) >= COMMANDS.keys()
    )


def test_the_page_about_goals_has_every_kind_of_check() -> None:
    assert _names(_table(GOALS, "check")) == CHECKS.keys()


def test_the_page_about_redaction_has_every_type() -> None:
    assert set(re.findall(r"`(.+?)`", _table(REDACTION, "data", 1))) == {tag_of(detector) for detector in Detector}
    (settings,) = re.findall(r"```toml\n(.*?)```", REDACTION, re.S)
    assert tomllib.loads(settings)["redaction"]["detectors"] == [detector.value for detector in Detector]
