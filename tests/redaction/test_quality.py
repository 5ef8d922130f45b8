"""Precision and recall of the redactor on sentences that were labelled by hand; its page has these figures."""

from collections import Counter

import pytest

from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import Detector
from tests.redaction.labelled import HELD_OUT, SENTENCES, Figures, labelled, measured, places_in, read, table
from tests.tidy.source_tree import ROOT

PAGE = ROOT / "deploy" / "redaction.md"
FLOORS = {SENTENCES: (0.97, 0.97), HELD_OUT: (0.95, 0.80)}
"""The lowest precision and recall allowed for each type."""


@pytest.fixture(scope="module", params=FLOORS, ids=lambda path: path.stem)
def judged(request: pytest.FixtureRequest) -> tuple[Figures, float, float]:
    return measured(read(request.param), Redactor()), *FLOORS[request.param]


@pytest.mark.parametrize("detector", Detector)
def test_precision_and_recall_stay_above_their_floors(judged: tuple[Figures, float, float], detector: Detector) -> None:
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
        assert sum(not sentence.places for sentence in each) >= 20, "without hard cases precision says nothing"


def test_a_redactor_that_finds_nothing_or_everything_is_seen() -> None:
    sentences = read(SENTENCES)
    blind = Redactor()
    blind._detectors = ()
    nothing = measured(sentences, blind)
    assert all(nothing.recall(detector) == 0 for detector in Detector)
    hasty = Redactor()
    hasty._redact = lambda text, lead: "[PHONE]" if text else text  # type: ignore[method-assign]  # a redactor that is wrong
    assert measured(sentences, hasty).precision(Detector.PHONE) < 0.5


def test_marks_are_read_and_places_found_again() -> None:
    sentence = labelled("call <phone>415 555 0100</phone> or <email>a@b.co</email>")
    assert sentence.text == "call 415 555 0100 or a@b.co"
    assert sentence.expected == "call [PHONE] or [EMAIL]"
    assert tuple(places_in(sentence.text, sentence.expected)) == sentence.places
    assert places_in(sentence.text, sentence.text) == []


def test_the_page_has_these_figures() -> None:
    written = table(
        [
            ("labelled while the rules were written", measured(read(SENTENCES), Redactor())),
            ("held out", measured(read(HELD_OUT), Redactor())),
        ]
    )
    assert written in PAGE.read_text(encoding="utf-8"), f"{PAGE.name} should have:\n{written}"
