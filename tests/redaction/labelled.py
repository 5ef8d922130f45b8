"""Sentences with marked personal data, and the share of it that a redactor finds."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import Detector
from schemas.redaction import tag_of

HERE = Path(__file__).parent
SENTENCES = HERE / "sentences.jsonl"
HELD_OUT = HERE / "held_out.jsonl"
LANGUAGES = HERE / "languages.jsonl"
LANGUAGES_HELD_OUT = HERE / "languages_held_out.jsonl"
REVIEWED = HERE / "reviewed.jsonl"
"""Tricky sentences of five languages, by people who looked for gaps."""

_MARK = re.compile(rf"<({'|'.join(Detector)})>(.*?)</\1>")
_TAG = re.compile("|".join(re.escape(tag_of(detector)) for detector in Detector))


class Place(NamedTuple):
    """Personal data of a type, from `start` up to `end`."""

    type: Detector
    start: int
    end: int


class Labelled(NamedTuple):
    """A sentence as it was said, the places of its personal data, and its expected text after
    redaction.
    """

    text: str
    places: tuple[Place, ...]
    expected: str


def labelled(said: str) -> Labelled:
    """A sentence with its marks: "call <phone>415 555 0100</phone>"."""
    text, end = "", 0
    places: list[Place] = []
    for mark in _MARK.finditer(said):
        text += said[end : mark.start()]
        places.append(Place(Detector(mark[1]), len(text), len(text) + len(mark[2])))
        text += mark[2]
        end = mark.end()
    expected = _MARK.sub(lambda mark: tag_of(Detector(mark[1])), said)
    return Labelled(text + said[end:], tuple(places), expected)


def read(path: Path) -> list[Labelled]:
    """The sentences of a file, one JSON object a line."""
    return [
        labelled(json.loads(line)["said"]) for line in path.read_text(encoding="utf-8").splitlines()
    ]


def places_in(text: str, redacted: str) -> list[Place]:
    """The places that were taken out of a text, each with the type of its tag."""
    tags = [Detector(tag[1:-1].lower()) for tag in _TAG.findall(redacted)]
    kept = map(re.escape, _TAG.split(redacted))
    found = re.fullmatch("(.+?)".join(kept), text, re.DOTALL)
    assert found is not None, f"{redacted!r} is not {text!r} with parts taken out"
    return [Place(tag, *found.span(number)) for number, tag in enumerate(tags, 1)]


@dataclass
class Figures:
    """How often a redactor was right, by type.

    Attributes:
        found: Marked places that were taken out whole, as the right type.
        missed: Marked places that were not.
        wrong: Places that were taken out and are marked nowhere.
        inexact: Sentences that differ from their expected text in any letter.
    """

    sentences: int = 0
    found: Counter[Detector] = field(default_factory=Counter)
    missed: Counter[Detector] = field(default_factory=Counter)
    wrong: Counter[Detector] = field(default_factory=Counter)
    inexact: list[str] = field(default_factory=list)

    def recall(self, detector: Detector) -> float:
        """The share of the marked places that was taken out."""
        return self.found[detector] / (self.found[detector] + self.missed[detector])

    def precision(self, detector: Detector) -> float:
        """The share of the places taken out that are of the type they were taken for."""
        return self.found[detector] / (self.found[detector] + self.wrong[detector])


def measured(sentences: Iterable[Labelled], redactor: Redactor) -> Figures:
    """Runs the redactor on the sentences and counts its results."""
    figures = Figures()
    for sentence in sentences:
        figures.sentences += 1
        redacted = redactor.redact(sentence.text)
        taken = places_in(sentence.text, redacted)
        for place in sentence.places:
            is_found = any(
                each.type is place.type and each.start <= place.start and place.end <= each.end
                for each in taken
            )
            (figures.found if is_found else figures.missed)[place.type] += 1
        for each in taken:
            if not any(
                place.start < each.end and each.start < place.end for place in sentence.places
            ):
                figures.wrong[each.type] += 1
        if redacted != sentence.expected:
            figures.inexact.append(f"{sentence.expected!r} left as {redacted!r}")
    return figures


def table(named: Sequence[tuple[str, Figures]]) -> str:
    """The figures as a table of GitHub markdown, a row for each type."""
    heads = [f"{name} ({figures.sentences} sentences)" for name, figures in named]
    lines = [f"| type | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for detector in Detector:
        cells = [
            f"precision {figures.precision(detector):.2f}, recall {figures.recall(detector):.2f} "
            f"({figures.found[detector]} of {figures.found[detector] + figures.missed[detector]})"
            for _, figures in named
        ]
        lines.append(f"| `{detector}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
