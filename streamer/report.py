"""The report of calls: the file, and the comparison of trials in it."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from consumers.console.page.rendering import render
from consumers.console.page.whole import page_of
from consumers.view.calls import ReportedCall
from streamer.trials.calls import NewestRows
from streamer.trials.comparison import (
    DIGEST_CHARS,
    compared,
    errors,
    figures,
    fitting,
    judge_errors,
    remarks,
    shown,
)


def page(calls: Sequence[ReportedCall], notes: Sequence[str], version: str) -> Markup:
    """The whole HTML file: the calls, and more than one of them compared with each other. The
    arguments are those of `page_of`.
    """
    return page_of(calls, notes, version, over_many_calls(calls))


# The section "Over many calls": repeated calls of each goal set compared, and their errors with
# links to the calls.

MOST_LINKS: Final = 12
"""Calls of one error that are linked; the others are counted."""


def over_many_calls(calls: Sequence[ReportedCall]) -> Markup | None:
    """The calls as trials of their goal sets; None if no two of them have goals."""
    found = (
        NewestRows(filter(None, [call.goals_row, *call.turns, call.row])).trial(call.anchor_id)
        for call in calls
    )
    trials = [trial for trial in found if trial is not None]
    if len(trials) < 2:
        return None
    redacted = calls[0].shown  # by the settings, as every call does
    groups = compared(trials)
    ks = shown(fitting(groups, None), None)
    # a digest tells nothing, and may look like a number of a person
    names = [f"{redacted(each.goal_set.id)} {each.digest[:DIGEST_CHARS]}" for each in groups]
    return render(
        "trials.html",
        rows=[
            (name, None, list(figures(group, ks)))
            for name, group in zip(names, groups, strict=True)
        ],
        remarks=map(redacted, remarks(groups, None)),
        groups=[
            (
                name,
                [(redacted(phrase), trials) for phrase, trials in errors(group)],
                (judge_errors(group) or "").removeprefix("judge: "),
            )
            for name, group in zip(names, groups, strict=True)
        ],
        most_links=MOST_LINKS,
    )
