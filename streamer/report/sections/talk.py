"""The speech of the two sides: amount, speed, and longest monologues."""

from collections.abc import Sequence
from typing import Final

from consumers.engine.measures.talk import LONG_SILENCE_MS
from schemas.scores.records import Result, SideSpeech
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.markup import Markup, element, joined
from streamer.report.drawing.numbers import counted, outcome, percent, seconds

_ROWS: Final = {
    "Spoke for": "speech_ms",
    "Longest at a stretch": "longest_monologue_ms",
    "Words per minute": "words_per_minute",
    "Questions asked again": "repeated_questions",
}
"""The values of each side: heading and field."""

_MOST_TURNS: Final = 12
"""Turns with a repeated question that are named."""


def speech(call: ReportedCall) -> Markup | None:
    """The two sides next to each other, and their common values; None when nothing was measured."""
    whole = call.whole
    if whole is None or whole.speech is None:
        return None
    score = whole.speech
    sides = element(
        "table",
        element(
            "thead",
            element(
                "tr",
                element("th", "", scope="col"),
                [element("th", side, scope="col") for side in ("User", "Assistant")],
            ),
        ),
        element(
            "tbody",
            [
                element(
                    "tr",
                    element("th", heading, scope="row"),
                    [element("td", _value(field, side)) for side in (score.user, score.assistant)],
                )
                for heading, field in _ROWS.items()
            ],
        ),
        class_="sides",
    )
    together = (
        ("Assistant's share of the talk", _share(score.result)),
        ("Assistant's first word after", outcome("first_word_ms", score.first_word_ms)),
        ("Both spoke for", outcome("overlap_ms", score.overlap_ms)),
        (f"Dead air, each from {seconds(LONG_SILENCE_MS)}", outcome("dead_air_ms", score.dead_air_ms)),
    )
    return joined(
        sides,
        element(
            "dl",
            [element("div", element("dt", name), element("dd", call.shown(text))) for name, text in together],
            class_="facts",
        ),
        element("p", f"Counted up to turn {whole.through_turn}.", class_="note"),
    )


def _value(field: str, side: SideSpeech) -> Markup:
    result: Result = getattr(side, field)
    turns = None
    if field == "repeated_questions" and side.repeated_in_turns:
        turns = element(
            "small",
            f" in {counted(len(side.repeated_in_turns), 'turn')}: {_listed(side.repeated_in_turns)}",
        )
    kind = "value" if result.outcome == "scored" else "unscored"
    return joined(element("span", outcome(field, result), class_=kind), turns)


def _listed(turns: Sequence[int]) -> str:
    more = "" if len(turns) <= _MOST_TURNS else " and more"
    return ", ".join(map(str, turns[:_MOST_TURNS])) + more


def _share(result: Result) -> str:
    return percent(result.value) if result.outcome == "scored" else outcome("share", result)
