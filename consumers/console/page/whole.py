"""One self-contained HTML file about calls, with an index and a section for each. It loads nothing
and runs no script.
"""

import base64
import hashlib
from collections.abc import Sequence

from markupsafe import Markup

from consumers.console.page.rendering import ICON, STYLE, render
from consumers.console.page.sections import section
from consumers.view.calls import ReportedCall
from consumers.view.contents import progress_value
from consumers.view.running import end_in_words
from consumers.view.words import counted, duration, seconds_if_known
from schemas.scores.trouble import worst_wait_ms


def page_of(
    calls: Sequence[ReportedCall],
    notes: Sequence[str],
    version: str,
    over_many_calls: Markup | None = None,
) -> Markup:
    """The whole file.

    Args:
        calls: Those that are shown; more than one have an index.
        notes: Parts that are left out, and why.
        version: Of callgauge.
        over_many_calls: A comparison of the calls with each other, above them.
    """
    several = len(calls) != 1
    return render(
        "page.html",
        heading=f"Report of {counted(len(calls), 'call')}" if several else "Call report",
        policy=_policy(STYLE),
        icon=ICON,
        style=Markup(STYLE),  # noqa: S704  # a file of ours
        version=version,
        notes=notes,
        index=index(calls) if len(calls) > 1 else None,
        over_many_calls=over_many_calls,
        sections=[section(call, has_index=several) for call in calls],
    )


def _policy(style: str) -> str:
    """The content security policy: text of a call that got into the markup could neither run nor
    load anything.
    """
    digest = hashlib.sha256(style.encode()).digest()
    return (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(digest).decode()}'; img-src "
        "data:; base-uri 'none'; form-action 'none'"
    )


def index(calls: Sequence[ReportedCall]) -> Markup:
    """A row for each call, which leads to its section."""
    return render(
        "index.html",
        rows=[
            (
                call.conversation_id,
                call.anchor_id,
                [
                    ("Agent", call.row.labels.agent),
                    ("Length", duration(call.length_ms)),
                    ("Turns", call.row.turns if call.is_closed else None),
                    ("Median wait", seconds_if_known(call.row.p50_ms)),
                    ("Longest wait", seconds_if_known(worst_wait_ms(call.row))),
                    ("Dead air", "not known" if call.dead_airs is None else call.dead_airs),
                    ("Subgoals", progress_value(call)),
                    ("End", end_in_words(call.row)),
                ],
            )
            for call in calls
        ],
    )
