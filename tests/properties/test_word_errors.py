"""Word errors kept turn by turn are those of the whole call, and the quick way to one spelling is
the slow one's.
"""

from unicodedata import category

import jiwer
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.measures.words import CallWordErrors, differences
from consumers.engine.spelling.alphabets import English
from consumers.engine.turns.normal_text import normalised, without_bracketed

PLAIN = (
    "I",
    "would",
    "like",
    "to",
    "and",
    "flight",
    "colour",
    "organise",
    "grey",
    "um",
    "uh-huh",
    "L",
    "A",
    "X",
    "okay.",
)
NUMBERS = (
    "one",
    "two",
    "twenty",
    "five",
    "hundred",
    "oh",
    "double",
    "point",
    "half",
    "a",
    "0",
    "007",
    "20",
    "$5",
    "5%",
    "3rd",
    "first",
    "1st",
    "1",
    "ones",
    "seconds",
    "fifty",
    "thirty",
    "dollars",
    "cents",
    "and a half",
    "per cent",
    "minus",
)
MARKS = (
    "it's",
    "don't",
    "won't",
    "y'all",
    "mr",
    "st",
    "dr",
    "cause",
    "[pause]",
    "(x)",
    "10:30",
    "p.m.",
    "wait...",
    "é",
    "½",
)
PUNCTUATION = (
    ",",
    ".",
    "..",
    "?",
    "-",
    "dash",
    "919-696-3901",
    "2026-11-21",
    "th",
    "'",
    '"',
    "\\",
    "\\u00e9",
    "\\u12",
    "\\ud83d",
)

WORDS = st.sampled_from(PLAIN + NUMBERS + MARKS + PUNCTUATION)
TEXTS = st.one_of(
    st.lists(WORDS, max_size=9).map(" ".join),
    st.lists(WORDS, max_size=5).map("".join),
    st.text(max_size=20),
)
PAIRS = st.tuples(TEXTS, TEXTS)
CHANGES = st.lists(st.tuples(st.integers(-1, 4), st.one_of(st.none(), PAIRS)), max_size=12)


class _AnyWords(frozenset[str]):
    """Words that share one with every text."""

    def isdisjoint(self, other: object) -> bool:
        return False


def _without_short_cuts() -> English:
    """English by every rule, whether a text can meet it or not."""
    english = English()
    english._number_words = _AnyWords()
    english._written_out = [("", pattern, words) for _, pattern, words in english._written_out]
    return english


SHORT, LONG = English(), _without_short_cuts()


@given(CHANGES, st.sampled_from(["en", "ja", "de"]))
def test_sums_are_those_of_the_turns_that_are_left(
    changes: list[tuple[int, tuple[str, str] | None]], language: str
) -> None:
    kept = CallWordErrors(language)
    left: dict[int, tuple[str, str]] = {}
    for turn, pair in changes:
        before = kept.sums, dict(kept.turns)
        if pair is None:
            left.pop(turn, None)
            has_changed = kept.remove(turn)
        else:
            left[turn] = pair
            has_changed = kept.put(turn, *pair)
        assert has_changed or (kept.sums, dict(kept.turns)) == before
    again = CallWordErrors(language)
    again.put_all(
        {turn: one for turn, (one, _) in left.items()},
        {turn: other for turn, (_, other) in left.items()},
    )
    assert (kept.sums, dict(kept.turns)) == (again.sums, dict(again.turns))
    assert kept.result() == again.result()
    parts = [tuple(turn.sums) for turn in kept.turns.values()]
    assert tuple(kept.sums) == tuple(map(sum, zip((0, 0, 0, 0), *parts, strict=True)))


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_the_rate_is_jiwers_of_all_turns_at_once(pairs: list[tuple[str, str]]) -> None:
    errors = CallWordErrors()
    for turn, pair in enumerate(pairs):
        errors.put(turn, *pair)
    kept = [(without_bracketed(one), without_bracketed(other)) for one, other in pairs]
    whole = [(normalised(one), normalised(other)) for one, other in kept if one and other]
    if not whole:
        assert errors.result().error is not None
        return
    assert errors.sums.rate == jiwer.wer([one for one, _ in whole], [other for _, other in whole])


@given(TEXTS)
def test_rules_that_cannot_be_met_change_nothing(text: str) -> None:
    assert SHORT(text) == LONG(text)


@given(
    TEXTS,
    st.sampled_from(["en", "de", "es", "fr", "fr-CA", "hi", "ja", "zh", "ko", "it"]),
    st.booleans(),
)
def test_a_spelling_has_no_punctuation(text: str, language: str, as_eva: bool) -> None:
    if "\\" in text:
        return  # an escape that cannot be read leaves the text as it was
    spelled = normalised(text, language, as_eva=as_eva)
    assert not any(category(each)[0] == "P" for each in spelled)


@given(TEXTS)
def test_any_text_comes_back_as_one_that_can_be_written(text: str) -> None:
    normalised(text).encode()


@given(PAIRS)
def test_transcripts_differ_only_where_words_do(pair: tuple[str, str]) -> None:
    one, other = pair
    assert differences(one, one).sums.errors == 0
    found = differences(one, other)
    assert found.sums.errors >= 0
    assert (found.sums.errors == 0) == (found.errors == ())
    assert min(found.sums) >= 0
