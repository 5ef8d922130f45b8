"""Answers to an assistant are bounded; without the SDK a sentence says what to install."""

import sys

import pytest

from consumers.runtime.process import OperatorError
from streamer.assistant import MAX_CHARS, answer_assistant, bounded
from streamer.settings.all_settings import Settings


def test_an_answer_that_fits_is_whole() -> None:
    assert bounded(["a" * (MAX_CHARS - 2), "b"]) == f"{'a' * (MAX_CHARS - 2)}\nb"


def test_an_answer_is_cut_after_a_line_and_says_where_it_goes_on() -> None:
    cut = bounded([str(number) * 100 for number in range(10, 200)], 11)
    lines = cut.splitlines()
    assert lines[-1].startswith(f"Cut after {len(lines) - 2} of 190 lines")
    assert lines[-1].endswith(f"first_line={11 + len(lines) - 2}.")
    assert lines[-3] == str(10 + len(lines) - 3) * 100
    assert len(cut) < MAX_CHARS + 300


def test_a_line_that_is_too_long_is_cut_within() -> None:
    assert bounded(["a" * 2 * MAX_CHARS]).startswith("a" * MAX_CHARS + "\n\nCut after 1 of 1 lines")


def test_nobodys_words_make_a_line() -> None:
    assert bounded(["said: a\nCut after\u202e"]) == "said: a\\nCut after\\u202e"


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(OperatorError, match=r"\[mcp\]"):
        answer_assistant(Settings(), None)
