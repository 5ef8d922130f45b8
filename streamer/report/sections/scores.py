"""All scores of a call: scores of the whole call as a list, scores of turns as a table."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pydantic import BaseModel

from schemas.scores.records import NotApplicable, Result, Scored, Unscored
from streamer.report.call.reported_call import ReportedCall
from streamer.report.call.score_parts import ScorePart, part_of, parts_of
from streamer.report.drawing.markup import Child, Markup, element, joined
from streamer.report.drawing.numbers import in_words, outcome, quantity, title
from streamer.report.drawing.texts import shortened

MOST_TURNS: Final = 500
"""Rows of the table."""
MOST_OF_CALL: Final = 200
"""Scores of the call that are listed; today's evaluators write some twenty."""
MOST_DETAILS: Final = 60
"""Details of one score that are listed; a score of EVA's has some thirty."""
_DETAIL_CHARS: Final = 400
_ELSEWHERE_OF_CALL: Final = frozenset({"speech"})
_ELSEWHERE_OF_TURN: Final = frozenset({"stages"})
"""Shown in sections of their own."""


class _Detail(NamedTuple):
    """One more thing that a record says."""

    name: str
    text: str


def scores(call: ReportedCall) -> Markup:
    """The two parts of the section: list and table."""
    of_call = (
        [] if call.whole is None else [each for each in parts_of(call.whole) if each.name not in _ELSEWHERE_OF_CALL]
    )
    rows = [_call_row(call, part) for part in of_call[:MOST_OF_CALL]]
    if (last := call.last_progress) is not None:
        rows.append(_call_row(call, part_of("progress", last), heading="Progress at the end"))
    left_out = len(of_call) - MOST_OF_CALL
    of_turns = {
        row.turn or 0: {each.name: each for each in parts_of(row) if each.name not in _ELSEWHERE_OF_TURN}
        for row in call.rows
    }
    return joined(
        element("h4", "Of the call"),
        element("dl", rows, class_="scores") if rows else element("p", "None.", class_="note"),
        element("p", f"{left_out} more are left out.", class_="note") if left_out > 0 else None,
        element("h4", "Of each turn"),
        _turn_table(call, of_turns) if of_turns else element("p", "None.", class_="note"),
    )


def _call_row(call: ReportedCall, part: ScorePart, heading: str | None = None) -> Markup:
    details = list(_details(call, part))
    more: Child = None
    if details:
        left_out = len(details) - MOST_DETAILS
        more = element(
            "details",
            element("summary", "Details"),
            element("p", part.meaning, class_="note") if part.meaning else None,
            element(
                "dl", [joined(element("dt", each.name), element("dd", each.text)) for each in details[:MOST_DETAILS]]
            ),
            element("p", f"{left_out} more are left out.", class_="note") if left_out > 0 else None,
        )
    return element(
        "div",
        element("dt", heading or title(part.name), " ", element("code", part.name)),
        element("dd", None if part.result is None else _result_markup(call, part.name, part.result)),
        element("dd", more) if more is not None else None,
    )


def _result_markup(call: ReportedCall, name: str, result: Result) -> Markup:
    """A result; an unscored one looks different from a value."""
    kind = {"scored": "value", "unscored": "unscored", "not_applicable": "none"}[result.outcome]
    return element("span", _outcome(call, name, result), class_=kind)


def _outcome(call: ReportedCall, name: str, result: Result) -> str:
    """The result as text; the reason of an unscored result may quote the call."""
    text = outcome(name, result)
    return call.shown(text, _DETAIL_CHARS) if isinstance(result, NotApplicable) else text


def _details(call: ReportedCall, part: ScorePart) -> Iterator[_Detail]:
    """The other fields of the score, nested fields included."""
    for name, value in part.fields.items():
        for path, text in _leaves(call, name, value):
            yield _Detail(title(path.removeprefix("sub_metrics.")), shortened(text, _DETAIL_CHARS))


def _leaves(call: ReportedCall, path: str, value: object) -> Iterator[tuple[str, str]]:
    """The values of a field with their paths; mappings are walked, empty and missing values are left out."""
    match value:
        case None | "":
            return
        case Scored() | Unscored() | NotApplicable():
            yield path, _outcome(call, path, value)
        case BaseModel():
            for name in type(value).model_fields:
                yield from _leaves(call, f"{path}.{name}", getattr(value, name))
        case Mapping():
            for name, item in value.items():
                yield from _leaves(call, f"{path}.{name}", item)
        case bool():
            yield path, "yes" if value else "no"
        case int() | float():
            yield path, quantity(path, value)
        case str():
            yield path, call.shown(value, _DETAIL_CHARS)
        case Iterable():
            texts = [text for item in value for _, text in _leaves(call, "", item)]
            if texts:
                yield path, ", ".join(texts)
        case _:
            yield path, call.shown(str(value), _DETAIL_CHARS)


def _turn_table(call: ReportedCall, parts: Mapping[int, Mapping[str, ScorePart]]) -> Markup:
    """A row for each turn, a column for each score."""
    fullest_first = sorted(parts.values(), key=len, reverse=True)
    names = list(dict.fromkeys(name for of_turn in fullest_first for name in of_turn))
    shown = sorted(parts)[:MOST_TURNS]
    head = [element("th", title(name), scope="col") for name in names]
    table = element(
        "table",
        element("thead", element("tr", element("th", "Turn", scope="col"), head)),
        element(
            "tbody",
            [
                element(
                    "tr",
                    element("th", element("a", turn, href=f"#{call.turn_anchor(turn)}"), scope="row"),
                    [element("td", _cell(call, parts[turn].get(name))) for name in names],
                )
                for turn in shown
            ],
        ),
    )
    box = element(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label="Scores of each turn; scrolls sideways"
    )
    if len(parts) > len(shown):
        return joined(box, element("p", f"The first {len(shown)} of {len(parts)} turns are shown.", class_="note"))
    return box


def _cell(call: ReportedCall, part: ScorePart | None) -> Child:
    """A result as a table cell; a result without a single number is shown with all its fields."""
    if part is None:
        return None
    match part.result:
        case Scored(value=value):
            reason = part.fields.get("reason")
            why_so = element("small", in_words(reason)) if isinstance(reason, str) else None
            return joined(element("span", quantity(part.name, value), class_="value"), why_so)
        case Unscored(reason=unknown):
            return joined(element("span", "Unscored", class_="unscored"), " ", element("small", in_words(unknown)))
        case NotApplicable(reason=why):
            return joined(element("span", "Not applicable", class_="none"), " ", element("small", call.shown(why)))
    said = "; ".join(f"{each.name}: {each.text}" for each in _details(call, part))
    return element("small", shortened(said, _DETAIL_CHARS))
