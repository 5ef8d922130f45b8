"""The progress of a call: the share of reached subgoals after each turn, and the turn that reached each."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, assert_never

from schemas.goals.goal_set import GoalSet
from schemas.scores.records import NotApplicable, ProgressScore, Scored, SubgoalScore, Unscored
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.axis import Scale, spaced
from streamer.report.drawing.markup import Child, Markup, element, joined
from streamer.report.drawing.numbers import counted, in_words, number, percent

MOST_POINTS: Final = 1_000
"""Turns that are drawn: as many as a goal set may count."""
_HEIGHT: Final = 180
_TOP, _BOTTOM = 12, 148
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_NUMBER_PERCENT: Final = 7.0
"""Turn numbers nearer than this share of the width would touch on a telephone."""


def progress(call: ReportedCall) -> Markup | None:
    """The curve and the subgoals; None for a call without goals."""
    goals = call.goals
    points = sorted(call.of(ProgressScore), key=lambda record: record.turn or 0)[:MOST_POINTS]
    if goals is None:
        return None
    return joined(
        element("p", _in_words(goals, call)),
        _curve(points, goals) if points else element("p", "No turn was judged.", class_="note"),
        _subgoals(call, goals),
    )


def _in_words(goals: GoalSet, call: ReportedCall) -> str:
    said = f"Goal set {call.shown(goals.id)}, {counted(len(goals.subgoals), 'subgoal')}, up to {goals.max_turns} turns."
    last = call.last_progress
    if last is None:
        return said
    reached = f" Reached {last.reached} of {last.subgoals}"
    missing = f", {last.missing} without a verdict" if last.missing else ""
    return f"{said}{reached}{missing}."


def _curve(points: Sequence[ProgressScore], goals: GoalSet) -> Markup:
    turns = [record.turn or 0 for record in points]
    # From the greeting, before which nothing is reached, to the last turn there can be something about.
    scale = Scale(0, max([*turns, min(goals.max_turns, turns[-1] + 1)]))
    placed = [(record, least) for record in points if (least := _least(record)) is not None]
    steps: list[Markup] = []
    for (record, value), (following, next_value) in pairwise(placed):
        at, y, next_y = scale.at(following.turn or 0), _y(value), _y(next_value)
        is_known = isinstance(record.result, Scored) and isinstance(following.result, Scored)
        kind = "curve" if is_known else "curve unknown"
        steps.append(element("line", x1=scale.at(record.turn or 0), x2=at, y1=y, y2=y, class_=kind))
        if next_y != y:
            steps.append(element("line", x1=at, x2=at, y1=y, y2=next_y, class_=kind))
    note = None
    if not all(isinstance(record.result, Scored) for record in points):
        note = element("p", "Hollow and dashed: at least so much; of some subgoals nobody knows.", class_="note")
    drawing = element(
        "div",
        element(
            "svg",
            element("title", "Progress after each turn"),
            [
                joined(
                    element("line", x1=0, x2="100%", y1=_y(share), y2=_y(share), class_="grid"),
                    element("text", percent(share), x=0, y=_y(share), dx=-8, dy=4, class_="share"),
                )
                for share in _SHARES
            ],
            steps,
            [_point(record, least, scale) for record, least in placed],
            _turn_numbers(turns, scale),
            width="100%",
            height=_HEIGHT,
            role="img",
            aria_label="Progress after each turn: "
            + "; ".join(f"turn {record.turn} {_value(record)}" for record in points),
        ),
        class_="chart",
    )
    return joined(drawing, note)


def _least(record: ProgressScore) -> float | None:
    """The progress; if unknown, its certain minimum; None when that is unknown too."""
    if isinstance(record.result, Scored):
        return record.result.value
    return record.reached / record.subgoals if record.subgoals else None


def _y(share: float) -> float:
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 2)


def _point(record: ProgressScore, least: float, scale: Scale) -> Markup:
    title = element("title", f"Turn {record.turn}: {_value(record)}")
    kind = "point" if isinstance(record.result, Scored) else "point unknown"
    return element("circle", title, cx=scale.at(record.turn or 0), cy=_y(least), r=4, class_=kind)


def _value(record: ProgressScore) -> str:
    match record.result:
        case Scored(value=value):
            return percent(value)
        case Unscored(reason=reason):
            return f"unscored, {in_words(reason)}; {record.reached} of {record.subgoals} subgoals for certain"
        case NotApplicable(reason=why):
            return f"not applicable, {why}"
        case _:
            assert_never(record.result)


def _turn_numbers(turns: Sequence[int], scale: Scale) -> list[Markup]:
    shown = spaced((scale.place(turn), _NUMBER_PERCENT) for turn in turns)
    return [
        element("text", turn, x=scale.at(turn), y=_BOTTOM + 20, class_="turn-number")
        for turn, shift in zip(turns, shown, strict=True)
        if shift is not None
    ]


def _subgoals(call: ReportedCall, goals: GoalSet) -> Markup:
    by_index = {record.index: record for record in call.subgoals}
    rows = []
    for index, subgoal in enumerate(goals.subgoals):
        state, how = _state(call, by_index.get(index))
        rows.append(
            element(
                "li",
                element("span", state, class_="state"),
                element(
                    "span",
                    element("strong", call.shown(subgoal.id)),
                    " ",
                    call.shown(subgoal.details),
                    class_="what",
                ),
                element("small", how),
            )
        )
    return element("ol", rows, class_="subgoals")


def _state(call: ReportedCall, record: SubgoalScore | None) -> tuple[Child, str]:
    """The state of a subgoal, and its source."""
    if record is None:
        return "Not judged", ""
    how = "by code"
    if record.checked_by == "judge":
        votes = f", votes {record.votes_complete} for and {record.votes_incomplete} against"
        how = "by a judge" + (votes if record.votes_complete or record.votes_incomplete else "")
    match record.result:
        case Scored(value=value) if value and record.reached_turn is not None:
            turn = record.reached_turn
            return joined("Reached in ", element("a", f"turn {turn}", href=f"#{call.turn_anchor(turn)}")), how
        case Scored(value=value):
            return ("Reached" if value == 1 else "Not reached" if value == 0 else number(value)), how
        case Unscored(reason=reason):
            return f"Unscored: {in_words(reason)}", how
        case NotApplicable(reason=why):
            return f"Not applicable: {why}", how
        case _:
            assert_never(record.result)
