"""Patterns of goals: accepted ones mean the same as in Python, and costly ones are refused."""

import re

import pytest

from schemas.goals.patterns import (
    MAX_PATTERN_STEPS,
    MAX_REPEATS,
    MAX_SEARCHED_CHARS,
    PatternError,
    compiled,
    is_found,
    worst_steps,
)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("thank you", "Well, THANK YOU!", True),
        ("thank you", "thanks", False),
        ("^yes\\b", "yes please", True),
        ("^yes\\b", "oh yes", False),
        ("bye$", "good bye", True),
        ("\\bcan(?:cel|celled)\\b", "I cancelled it", True),
        ("[A-Z]{2}\\d{3,4}", "flight sk703", True),
        ("[^aeiou ]{5}", "rhythm", True),
        ("confirm(ed)?.{0,10}number", "I confirmed\nyour number", True),
        ("a\\{2\\}", "a{2}", True),
        ("yes|yeah|", "no", True),
        ("[\\]\\[\\-]", "[", True),
        ("Straße", "STRASSE", False),  # as Python: one letter is compared with one letter
    ],
)
def test_a_pattern_is_searched_without_case(pattern: str, text: str, expected: bool) -> None:
    worst_steps(pattern)
    assert is_found(compiled(pattern), text) is expected


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(a+)+$", "repeats without a bound"),
        ("a*", "say how often at most, for example {1,80}"),
        ("a{3,}", "repeats without a bound"),
        ("(a|a){0,40}b", "fits in so many ways"),
        ("(.{0,50}){0,50}x", "more than a billion steps"),
        (".{0,99}.{0,99}x", "steps at each character"),
        (r"(a)\1", "no groupref is taken"),
        ("(?=a)", "no assert is taken"),
        ("(?m)a", "flags such as"),
        ("(?s:a)", "no subpattern is taken"),
        ("a{2,3}?", "no min repeat is taken"),
        ("a{2}+", "no possessive repeat is taken"),
        ("a{9,2}", "min repeat greater than max repeat at position 2"),
        (f"a{{{MAX_REPEATS + 1}}}", f"more than {MAX_REPEATS} times"),
        ("a{99999999999}", "too large"),
        ("{2}", "nothing to repeat at position 0"),
        ("(a", "unterminated subpattern at position 0"),
        ("a)", "unbalanced parenthesis at position 1"),
        ("b[a", "unterminated character set at position 1"),
        ("[[a]", "Possible nested set at position 1"),
        ("[a--b]", "Possible set difference at position 2"),
        ("[z-a]", "bad character range"),
        ("a\\", "bad escape (end of pattern)"),
        ("(" * 30 + "a" + ")" * 30, "nested deeper than 20"),
        ("(" * 249 + "a" + ")" * 249, "nested deeper than 20"),
    ],
)
def test_what_is_not_taken_says_why(pattern: str, told: str) -> None:
    with pytest.raises(PatternError) as refused:
        worst_steps(pattern)
    assert told in str(refused.value)


def test_the_limit_of_steps_is_where_it_says() -> None:
    most = max(
        count
        for count in range(1, 200)
        if _steps_or_none(f".{{0,{count}}}.{{0,{count}}}x") is not None
    )
    assert worst_steps(f".{{0,{most}}}.{{0,{most}}}x") <= MAX_PATTERN_STEPS
    assert (most + 2) ** 2 * 2 > MAX_PATTERN_STEPS


def _steps_or_none(pattern: str) -> int | None:
    try:
        return worst_steps(pattern)
    except PatternError:
        return None


def test_a_long_text_is_searched_up_to_a_limit() -> None:
    pattern = compiled("needle")
    assert is_found(pattern, "x" * (MAX_SEARCHED_CHARS - 6) + "needle")
    assert not is_found(pattern, "x" * (MAX_SEARCHED_CHARS - 5) + "needle")


def test_every_taken_pattern_is_one_of_python() -> None:
    """A pattern that the reader accepts must not fail in `re` later, when a call runs."""
    for pattern in (
        "\\n",
        "\\.",
        "\\-",
        "é{2}",
        "(?:)",
        "()",
        "a|",
        "[\\d-]",
        "^{2}",
        "\\b?",
        "]{1}a",
    ):
        try:
            worst_steps(pattern)
        except PatternError:
            continue
        assert isinstance(re.compile(pattern), re.Pattern)
