"""Precision and recall of the redactor on sentences that were labelled by hand; its page has these
figures.
"""

from collections import Counter
from pathlib import Path

import pytest

from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import Detector
from schemas.redaction import RedactionRules
from tests.redaction.labelled import (
    HELD_OUT,
    LANGUAGES,
    LANGUAGES_HELD_OUT,
    REVIEWED,
    SENTENCES,
    Figures,
    labelled,
    measured,
    places_in,
    read,
    table,
)
from tests.tidy.source_tree import ROOT

PAGE = ROOT / "deploy" / "redaction.md"
FLOORS = {
    SENTENCES: (0.97, 0.97),
    HELD_OUT: (0.95, 0.80),
    LANGUAGES: (0.97, 0.97),
    LANGUAGES_HELD_OUT: (0.95, 0.80),
    REVIEWED: (0.97, 0.97),
}
"""The lowest precision and recall allowed for each type."""
REGIONS = ("US", "GB", "DE", "FR", "ES", "IT")
"""Those of callers who speak the five languages."""
ENGLISH_SETS = (SENTENCES, HELD_OUT)


def redactor_for(path: Path) -> Redactor:
    """The redactor that a set of sentences is written for."""
    return Redactor() if path in ENGLISH_SETS else Redactor(RedactionRules(phone_regions=REGIONS))


@pytest.fixture(scope="module", params=FLOORS, ids=lambda path: path.stem)
def judged(request: pytest.FixtureRequest) -> tuple[Figures, float, float]:
    return measured(read(request.param), redactor_for(request.param)), *FLOORS[request.param]


@pytest.mark.parametrize("detector", Detector)
def test_precision_and_recall_stay_above_their_floors(
    judged: tuple[Figures, float, float], detector: Detector
) -> None:
    figures, least_precision, least_recall = judged
    assert figures.precision(detector) >= least_precision, figures.inexact
    assert figures.recall(detector) >= least_recall, figures.inexact


def test_most_sentences_leave_exactly_as_they_should(judged: tuple[Figures, float, float]) -> None:
    figures, _, least = judged
    assert len(figures.inexact) <= (1 - least) * figures.sentences, figures.inexact


def test_the_sets_are_large_and_have_nothing_in_common() -> None:
    sentences, held_out = read(SENTENCES), read(HELD_OUT)
    assert len(sentences) >= 250
    assert len(held_out) >= 80
    assert not {each.text for each in sentences} & {each.text for each in held_out}
    for each in (sentences, held_out):
        types = Counter(place.type for sentence in each for place in sentence.places)
        assert all(types[detector] >= 9 for detector in Detector), types
        assert sum(not sentence.places for sentence in each) >= 20, (
            "without hard cases precision says nothing"
        )


def test_the_sets_of_five_languages_are_large_and_a_third_is_harmless() -> None:
    sentences, held_out, reviewed = read(LANGUAGES), read(LANGUAGES_HELD_OUT), read(REVIEWED)
    assert (len(sentences), len(held_out), len(reviewed)) >= (150, 40, 68)
    assert len({each.text for each in (*sentences, *held_out, *reviewed)}) == sum(
        map(len, (sentences, held_out, reviewed))
    )
    assert sum(not sentence.places for sentence in sentences) >= len(sentences) * 0.3
    types = Counter(place.type for sentence in sentences for place in sentence.places)
    assert all(types[detector] >= 12 for detector in Detector), types


def test_a_redactor_that_finds_nothing_or_everything_is_seen() -> None:
    sentences = read(SENTENCES)
    blind = Redactor()
    blind._detectors = ()
    nothing = measured(sentences, blind)
    assert all(nothing.recall(detector) == 0 for detector in Detector)
    hasty = Redactor()
    # a redactor that is wrong
    hasty._redact = lambda text, lead: "[PHONE]" if text else text  # type: ignore[method-assign]
    assert measured(sentences, hasty).precision(Detector.PHONE) < 0.5


def test_marks_are_read_and_places_found_again() -> None:
    sentence = labelled("call <phone>415 555 0100</phone> or <email>a@b.co</email>")
    assert sentence.text == "call 415 555 0100 or a@b.co"
    assert sentence.expected == "call [PHONE] or [EMAIL]"
    assert tuple(places_in(sentence.text, sentence.expected)) == sentence.places
    assert places_in(sentence.text, sentence.text) == []


def test_the_page_has_these_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = (
        (SENTENCES, "labelled while the rules were written"),
        (HELD_OUT, "held out"),
        (LANGUAGES, "five languages, labelled while the rules were written"),
        (LANGUAGES_HELD_OUT, "five languages, held out"),
        (REVIEWED, "five languages, by reviewers"),
    )
    figures = [(name, measured(read(path), redactor_for(path))) for path, name in named]
    for columns in (figures[:2], figures[2:]):
        written = table(columns)
        assert written in page, f"{PAGE.name} should have:\n{written}"
