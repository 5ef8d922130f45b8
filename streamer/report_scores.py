"""All scores of a call, whatever their names: those of the whole call as a list, those of turns as a table."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pydantic import BaseModel

from schemas.scores import (
    AnyScoreRecord,
    CallRecord,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SubgoalScore,
    Unscored,
)
from schemas.speech_scores import SpeechScore
from schemas.stage_scores import TurnStages
from streamer.markup import Child, Markup, element, joined
from streamer.report_numbers import in_words, outcome, quantity, title
from streamer.report_texts import shortened
from streamer.reported_call import ReportedCall

MOST_TURNS: Final = 500
"""Rows of the table."""
MOST_OF_CALL: Final = 200
"""Scores of the call that are listed; today's evaluators write some twenty."""
MOST_OF_ONE_TURN: Final = 5
"""Records of one score in one turn."""
MOST_DETAILS: Final = 60
"""Details of one score that are listed; a score of EVA's has some thirty."""
_DETAIL_CHARS: Final = 400
_COMMON: Final = frozenset({*CallRecord.model_fields, "record_id", "kind", "name", "result"})
_ELSEWHERE: Final = (ProgressScore, SubgoalScore, TurnStages, SpeechScore)
"""Shown in sections of their own."""


class _Detail(NamedTuple):
    """One more thing that a record says."""

    name: str
    text: str


def scores(call: ReportedCall) -> Markup:
    """Both."""
    told = [record for record in call.records if record.kind == "score" and not isinstance(record, _ELSEWHERE)]
    of_call = [record for record in told if record.turn is None]
    of_turns = [record for record in told if record.turn is not None]
    rows = [_call_row(call, record) for record in of_call[:MOST_OF_CALL]]
    if (last := call.last_progress) is not None:
        rows.append(_call_row(call, last, heading="Progress at the end"))
    left_out = len(of_call) - MOST_OF_CALL
    return joined(
        element("h4", "Of the call"),
        element("dl", rows, class_="scores") if rows else element("p", "None.", class_="note"),
        element("p", f"{left_out} more are left out.", class_="note") if left_out > 0 else None,
        element("h4", "Of each turn"),
        _turn_table(call, of_turns) if of_turns else element("p", "None.", class_="note"),
    )


def _result(record: AnyScoreRecord) -> Result | None:
    result = getattr(record, "result", None)
    return result if isinstance(result, Scored | Unscored | NotApplicable) else None


def _call_row(call: ReportedCall, record: AnyScoreRecord, heading: str | None = None) -> Markup:
    result = _result(record)
    details = list(_details(call, record))
    more: Child = None
    if details:
        left_out = len(details) - MOST_DETAILS
        more = element(
            "details",
            element("summary", "Details"),
            element("p", _meaning(record), class_="note"),
            element(
                "dl", [joined(element("dt", each.name), element("dd", each.text)) for each in details[:MOST_DETAILS]]
            ),
            element("p", f"{left_out} more are left out.", class_="note") if left_out > 0 else None,
        )
    return element(
        "div",
        element("dt", heading or title(record.name), _of_whom(record), " ", element("code", record.name)),
        element("dd", None if result is None else _result_markup(call, record.name, result)),
        element("dd", more) if more is not None else None,
    )


def _of_whom(record: AnyScoreRecord) -> str:
    """Which of two records of one name it is, where they are of one side each."""
    speaker = getattr(record, "speaker", None)
    return f", {speaker}" if isinstance(speaker, str) else ""


def _meaning(record: AnyScoreRecord) -> str:
    """What its contract says it is."""
    return (inspect.getdoc(type(record)) or "").split("\n\n")[0].replace("`", "").replace("\n", " ")


def _result_markup(call: ReportedCall, name: str, result: Result) -> Markup:
    """A result that can be told from a value when it is none."""
    kind = {"scored": "value", "unscored": "unscored", "not_applicable": "none"}[result.outcome]
    return element("span", _outcome(call, name, result), class_=kind)


def _outcome(call: ReportedCall, name: str, result: Result) -> str:
    """The result as a text; why there is none may be told in words of the call."""
    text = outcome(name, result)
    return call.shown(text, _DETAIL_CHARS) if isinstance(result, NotApplicable) else text


def _details(call: ReportedCall, record: AnyScoreRecord) -> Iterator[_Detail]:
    """The fields that only this kind of record has, those within fields too."""
    for name in type(record).model_fields:
        if name not in _COMMON:
            for path, text in _leaves(call, name, getattr(record, name)):
                yield _Detail(title(path.removeprefix("sub_metrics.")), shortened(text, _DETAIL_CHARS))


def _leaves(call: ReportedCall, path: str, value: object) -> Iterator[tuple[str, str]]:
    """What is in a field: each value that is no mapping, with its path; nothing for what is empty or not there."""
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


def _turn_table(call: ReportedCall, records: Sequence[AnyScoreRecord]) -> Markup:
    """A row for each turn, a column for each score; several records of one score in one turn stand in one field."""
    names = list(dict.fromkeys(record.name for record in records))
    cells: dict[int, dict[str, list[AnyScoreRecord]]] = {}
    for record in records:
        cells.setdefault(record.turn or 0, {}).setdefault(record.name, []).append(record)
    shown = sorted(cells)[:MOST_TURNS]
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
                    [element("td", _cell(call, cells[turn].get(name, ()))) for name in names],
                )
                for turn in shown
            ],
        ),
    )
    box = element(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label="Scores of each turn; scrolls sideways"
    )
    if len(cells) > len(shown):
        return joined(box, element("p", f"The first {len(shown)} of {len(cells)} turns are shown.", class_="note"))
    return box


def _cell(call: ReportedCall, records: Sequence[AnyScoreRecord]) -> Markup:
    shown = [element("div", _short(call, record)) for record in records[:MOST_OF_ONE_TURN]]
    left_out = len(records) - MOST_OF_ONE_TURN
    return joined(shown, element("small", f"and {left_out} more") if left_out > 0 else None)


def _short(call: ReportedCall, record: AnyScoreRecord) -> Markup:
    """A result in a field of a table; of a record without one, what it says instead."""
    match _result(record):
        case Scored(value=value):
            reason = getattr(record, "reason", None)
            why_so = element("small", in_words(reason)) if isinstance(reason, str) else None
            return joined(element("span", quantity(record.name, value), class_="value"), why_so)
        case Unscored(reason=reason):
            return joined(element("span", "Unscored", class_="unscored"), " ", element("small", in_words(reason)))
        case NotApplicable(reason=why):
            return joined(element("span", "Not applicable", class_="none"), " ", element("small", call.shown(why)))
    said = "; ".join(f"{each.name}: {each.text}" for each in _details(call, record))
    return element("small", shortened(said, _DETAIL_CHARS))
