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


@pytest.mark.parametrize(("records", "is_agreed"), [(1, False), (2, True)])
def test_one_record_or_a_yes_needs_no_question(
    person: list[str], records: int, *, is_agreed: bool
) -> None:
    confirm(records, is_agreed=is_agreed)
    assert person == []


@pytest.mark.parametrize(
    ("has_terminal", "asked", "said"),
    [
        (
            True,
            ["Append 2 records to the input topics, those that can be taken?"],
            "Nothing was appended",
        ),
        (False, [], "--yes"),
    ],
)
def test_more_than_one_is_asked_for_and_without_a_terminal_nobody_can_agree(
    monkeypatch: pytest.MonkeyPatch,
    person: list[str],
    capsys: pytest.CaptureFixture[str],
    *,
    has_terminal: bool,
    asked: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: has_terminal, raising=False)
    with pytest.raises(typer.Exit) as ended:
        confirm(2, is_agreed=False)
    assert (ended.value.exit_code, person) == (1, asked)
    assert said in capsys.readouterr().err
