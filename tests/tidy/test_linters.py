"""A linter's complaint is shown and fails the run, whether the command beside it passes or fails."""

import sys

import pytest

from tests.tidy import linters

SILENT = (sys.executable, "-c", "print('all is well')")
COMPLAINS = (sys.executable, "-c", "import sys; print('line 3 is too long'); sys.exit(2)")


def test_all_three_are_asked() -> None:
    assert [command[0] for command in linters.COMMANDS] == ["ruff", "ruff", "mypy"]


@pytest.mark.parametrize(
    ("linter", "command_fails", "code", "shown"),
    [(SILENT, 0, 0, ""), (SILENT, 3, 3, ""), (COMPLAINS, 0, 1, "line 3 is too long"), (COMPLAINS, 3, 3, "line 3 is too long")],
)  # fmt: skip
def test_either_fails_the_run_and_only_complaints_are_shown(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    linter: tuple[str, ...],
    command_fails: int,
    code: int,
    shown: str,
) -> None:
    monkeypatch.setattr(linters, "COMMANDS", (SILENT, linter))
    assert linters.main([sys.executable, "-c", f"raise SystemExit({command_fails})"]) == code
    printed = capfd.readouterr().out
    assert shown in printed
    assert "all is well" not in printed
