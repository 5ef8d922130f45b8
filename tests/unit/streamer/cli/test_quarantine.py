"""The command appends nothing without consent."""

import sys

import pytest
import typer

from streamer.quarantine import confirm


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions to a person on a terminal, who answers no."""
    asked: list[str] = []

    def no(question: str, **_: object) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", no)
    return asked


def test_one_record_needs_no_question(person: list[str]) -> None:
    confirm(1, is_agreed=False)
    assert person == []


def test_more_than_one_is_asked_for_and_a_no_ends_it(person: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        confirm(2, is_agreed=False)
    assert ended.value.exit_code == 1
    assert person == ["Append 2 records to the input topics?"]
    assert "Nothing was appended" in capsys.readouterr().err


def test_yes_is_an_answer(person: list[str]) -> None:
    confirm(2, is_agreed=True)
    assert person == []


def test_without_a_terminal_nobody_can_agree(
    monkeypatch: pytest.MonkeyPatch, person: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(typer.Exit) as ended:
        confirm(2, is_agreed=False)
    assert ended.value.exit_code == 1
    assert person == []
    assert "--yes" in capsys.readouterr().err
