"""The section "Over many calls": repeated calls of each goal set compared, and their errors with links to the calls."""

from collections.abc import Iterator, Sequence
from typing import Final

from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.markup import Child, Markup, element
from streamer.trials.comparison import GoalSetTrials, compared
from streamer.trials.results import errors, figures, fitting, judge_errors, remarks, shown
from streamer.trials.trial import CallFold, Trial

MOST_LINKS: Final = 12
"""Calls of one error that are linked; the others are counted."""
_HEADING_ID: Final = "over-many-calls"


def over_many_calls(calls: Sequence[ReportedCall]) -> Markup | None:
    """The calls as trials of their goal sets; None if no two of them have goals."""
    trials = [trial for call in calls if (trial := _trial(call)) is not None]
    if len(trials) < 2:
        return None
    texts = calls[0]  # redacts by the settings, as every call does
    groups = compared(trials)
    ks = fitting(groups, None)
    rows = [(group.goal_set.id, list(figures(group, shown(ks, None)))) for group in groups]
    heads = ("Goal set", *(name for name, _ in rows[0][1]))
    return element(
        "section",
        element("h2", "Over many calls", id=_HEADING_ID),
        element(
            "table",
            element("thead", element("tr", [element("th", head, scope="col") for head in heads])),
            element("tbody", [_row(texts.shown(name), values) for name, values in rows]),
            class_="index",
        ),
        [element("p", texts.shown(remark), class_="note") for remark in remarks(groups, None)],
        [_errors(group, texts) for group in groups],
        aria_labelledby=_HEADING_ID,
    )


def _trial(call: ReportedCall) -> Trial | None:
    return CallFold(call.records).trial(call.conversation_id, call.anchor_id)


def _row(name: str, values: Sequence[tuple[str, str]]) -> Markup:
    cells = [element("td", value, data_head=head) for head, value in values]
    return element("tr", element("th", name, scope="row"), cells)


def _errors(group: GoalSetTrials, texts: ReportedCall) -> Markup | None:
    """Lists the errors in calls of one goal set; None if there are none and no judge voted."""
    parts = [
        element("div", element("dt", texts.shown(phrase)), element("dd", element("ul", _links(trials))))
        for phrase, trials in errors(group)
    ]
    if (judged := judge_errors(group)) is not None:
        parts.append(element("div", element("dt", "judge"), element("dd", judged.removeprefix("judge: "))))
    if not parts:
        return None
    return element(
        "section",
        element("h3", f"{texts.shown(group.goal_set.id)}: errors"),
        element("dl", parts, class_="standouts"),
    )


def _links(trials: Sequence[Trial]) -> Iterator[Child]:
    for trial in trials[:MOST_LINKS]:
        yield element("li", element("a", trial.conversation_id, href=f"#{trial.place}"))
    if (more := len(trials) - MOST_LINKS) > 0:
        yield element("li", f"and {more} more")
