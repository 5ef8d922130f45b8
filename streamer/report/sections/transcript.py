"""The redacted transcript of a call, turn by turn: words, tools with arguments and results, interruptions."""

from collections.abc import Iterator
from typing import Final

from consumers.engine.turns.timeline import PairedUse
from schemas.closed_sets import Speaker, ToolOutcome
from schemas.scores.records import InterruptionFact
from streamer.report.call.hearing import Said, TurnHeard
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.markup import Markup, element, joined
from streamer.report.drawing.numbers import clock, seconds
from streamer.report.sections.standouts import LONG_WAIT_MS

MOST_TURNS: Final = 500
"""Bound of the shown turns; the longest calls of an hour have some three hundred."""
MOST_ITEMS: Final = 100
"""Bound of the shown entries of one turn: a turn has some five; more than this is a loop of the agent."""
_NAMES: Final = {Speaker.USER: "User", Speaker.ASSISTANT: "Assistant"}


def transcript(call: ReportedCall) -> Markup:
    """The turns in their order."""
    turns = call.heard.turns
    if not turns:
        return element("p", "This recording has no words.", class_="note")
    starts_ms: dict[int, float] = {}
    for stretch in call.heard.stretches:
        starts_ms.setdefault(stretch.turn, stretch.start_ms)
    marks = {(fact.turn, fact.by) for fact in call.of(InterruptionFact)}
    shown = [
        element(
            "li",
            element("h4", f"Turn {heard.turn}", _moment(call, starts_ms.get(heard.turn))),
            _wait(call, heard.turn),
            [_interruption(by) for by in Speaker if (heard.turn, by) in marks],
            _items(call, heard),
            id=call.turn_anchor(heard.turn),
            class_="turn",
            tabindex=-1,
        )
        for heard in turns[:MOST_TURNS]
    ]
    note = None
    if len(turns) > MOST_TURNS:
        note = element("p", f"The first {MOST_TURNS} of {len(turns)} turns are shown.", class_="note")
    return joined(element("ol", shown, class_="transcript"), note)


def _moment(call: ReportedCall, time_ms: float | None) -> Markup | None:
    if time_ms is None:
        return None
    return joined(" ", element("small", f"from {clock(call.offset_ms(time_ms))}"))


def _wait(call: ReportedCall, turn: int) -> Markup | None:
    wait_ms = call.waits_ms.get(turn)
    if wait_ms is None:
        return None
    is_long = wait_ms >= LONG_WAIT_MS
    return element("span", f"answered after {seconds(wait_ms)}", class_="tag warning" if is_long else "tag")


def _interruption(by: Speaker) -> Markup:
    said = "Assistant spoke over the user" if by is Speaker.ASSISTANT else "User interrupted"
    return element("span", said, class_="tag warning")


def _items(call: ReportedCall, heard: TurnHeard) -> Iterator[Markup]:
    shown = heard.items[:MOST_ITEMS]
    last = {item.speaker: place for place, item in enumerate(shown) if isinstance(item, Said)}
    for place, item in enumerate(shown):
        yield _said(call, item) if isinstance(item, Said) else _tool(call, item)
        if place == last.get(Speaker.USER):
            yield from _otherwise(call, "The user meant to say", heard.meant_by_user)
        elif place == last.get(Speaker.ASSISTANT):
            yield from _otherwise(call, "The user heard", heard.heard_by_user)
    if (more := len(heard.items) - MOST_ITEMS) > 0:
        yield element("p", f"{more} more things of this turn are left out.", class_="note")


def _said(call: ReportedCall, said: Said) -> Markup:
    return element(
        "div",
        element("span", _NAMES[said.speaker], class_="who"),
        element("p", call.shown(said.text) or "(no words)", class_="words", dir="auto"),
        class_=f"said by-{said.speaker}",
    )


def _tool(call: ReportedCall, use: PairedUse) -> Markup:
    outcome = use.outcome or ToolOutcome.UNANSWERED
    took = "" if use.duration_ms is None else f", {seconds(use.duration_ms)}"
    when = "" if use.called_at_ms is None else f" at {clock(call.offset_ms(use.called_at_ms))}"
    answer = None
    if use.outcome is not None:
        answer = joined(element("h5", "Answer"), element("pre", call.shown_json(use.answer), dir="auto"))
    return element(
        "details",
        element(
            "summary",
            element("span", "Tool", class_="who"),
            element("code", call.shown(use.tool)),
            " ",
            element("span", f"{outcome}{took}", class_="tag" if outcome is ToolOutcome.SUCCESS else "tag warning"),
            element("small", when),
        ),
        element("h5", "Arguments"),
        element("pre", call.shown_json(use.arguments), dir="auto"),
        answer,
        class_="tool-use",
    )


def _otherwise(call: ReportedCall, label: str, text: str | None) -> Iterator[Markup]:
    if text is None:
        return
    yield element(
        "details",
        element("summary", label),
        element("p", call.shown(text), class_="words", dir="auto"),
        class_="otherwise",
    )
