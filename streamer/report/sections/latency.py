"""The wait of the user in each turn, as bars: voice-to-voice latency, its anchor, and its known stages."""

from collections.abc import Collection, Sequence
from typing import Final

from schemas.closed_sets import Anchor
from schemas.scores.records import NotApplicable, Scored, Unscored
from streamer.report.call.reported_call import ReportedCall, Wait
from streamer.report.drawing.axis import Scale, round_ticks
from streamer.report.drawing.markup import Child, Markup, element, joined
from streamer.report.drawing.numbers import MS_PER_SECOND, anchor_in_words, counted, in_words, number, seconds
from streamer.report.sections.stages import FAMILIES, StagePart, stage_parts, stages_table
from streamer.report.sections.timeline import legend

MOST_ROWS: Final = 500
"""Turns that have a bar."""
_MOST_TICKS: Final = 4
_BAR_HEIGHT: Final = 22
_TOTAL_Y, _TOTAL_HEIGHT = 2, 8
_STAGES_Y, _STAGES_HEIGHT = 12, 8
_ALONE_Y, _ALONE_HEIGHT = 4, 14


def latency(call: ReportedCall) -> Markup:
    """A row for each turn, on one scale."""
    rows = call.latencies
    if not rows:
        return element("p", "No turn of this call has an answer whose wait could be measured.", class_="note")
    parts = stage_parts(call)
    longest_ms = max([*call.waits_ms.values(), *(part.end_ms for each in parts.values() for part in each)], default=0.0)
    ticks = round_ticks(longest_ms / MS_PER_SECOND, _MOST_TICKS)
    scale = Scale(0, ticks[-1])
    shown = rows[:MOST_ROWS]
    anchors = {wait.anchor for wait in rows if wait.anchor is not None}
    kinds = [("wait", "User's last sound to assistant's first")]
    there = {part.family for each in parts.values() for part in each}
    kinds += [(f"stage-{family}", name) for family, name in FAMILIES.items() if family in there]
    table = element(
        "table",
        element("caption", _in_words(call), _anchor_in_words(anchors)),
        element(
            "thead",
            element(
                "tr",
                element("th", "Turn", scope="col"),
                element("th", _axis(ticks, scale), scope="col", class_="bar"),
                element("th", "Wait", scope="col"),
            ),
        ),
        element(
            "tbody",
            [_row(call, wait, parts.get(wait.turn, ()), scale, ticks, says_anchor=len(anchors) > 1) for wait in shown],
        ),
        class_="bars",
    )
    note = None
    if len(rows) > len(shown):
        note = element("p", f"The first {len(shown)} of {len(rows)} turns are shown.", class_="note")
    return joined(legend(kinds), table, note, stages_table(call))


def _in_words(call: ReportedCall) -> str:
    waits_ms, median_ms = call.waits_ms, call.median_wait_ms
    if median_ms is None:
        return f"No wait is known in {counted(len(call.latencies), 'turn')}."
    slowest = max(waits_ms, key=lambda turn: waits_ms[turn])
    early = sum(isinstance(each.result, Scored) and each.result.value < 0 for each in call.latencies)
    said = f"Median {seconds(median_ms)} of {counted(len(waits_ms), 'turn')}; longest {seconds(waits_ms[slowest])}, turn {slowest}."
    if early:
        said += f" Left out: {counted(early, 'turn')} in which the assistant began before the user had finished."
    return said


def _anchor_in_words(anchors: Collection[Anchor]) -> str:
    """How the end of the user's speech is known, if it is so in every turn."""
    if len(anchors) != 1:
        return ""
    (anchor,) = anchors
    return f" How the end of the user's speech is known: {anchor_in_words(anchor)}."


def _axis(ticks: Sequence[float], scale: Scale) -> Markup:
    anchors = {0: "start", len(ticks) - 1: "end"}
    return element(
        "svg",
        [
            element(
                "text",
                number(tick) if index < len(ticks) - 1 else f"{number(tick)} s",
                x=scale.at(tick),
                y=14,
                text_anchor=anchors.get(index, "middle"),
                class_="tick",
            )
            for index, tick in enumerate(ticks)
        ],
        width="100%",
        height=18,
        role="img",
        aria_label=f"Scale from 0 to {number(ticks[-1])} seconds",
    )


def _row(
    call: ReportedCall,
    wait: Wait,
    parts: Sequence[StagePart],
    scale: Scale,
    ticks: Sequence[float],
    *,
    says_anchor: bool,
) -> Markup:
    turn = wait.turn
    link = element("a", turn, href=f"#{call.turn_anchor(turn)}", aria_label=f"Turn {turn}")
    match wait.result:
        case Scored(value=wait_ms) if wait_ms >= 0:
            bar: Child = _bar(wait_ms, parts, scale, ticks)
            value: Child = seconds(wait_ms)
        case Scored(value=wait_ms):
            bar = element("span", "The assistant began before the user had finished.", class_="why")
            value = seconds(wait_ms)
        case Unscored(reason=reason):
            bar, value = element("span", in_words(reason), class_="why"), element("span", "Unscored", class_="unscored")
        case NotApplicable(reason=why):
            bar, value = element("span", why, class_="why"), element("span", "Not applicable", class_="none")
    anchor = None if wait.anchor is None or not says_anchor else element("small", anchor_in_words(wait.anchor))
    return element(
        "tr",
        element("th", link, scope="row"),
        element("td", bar, class_="bar"),
        element("td", value, " ", anchor, class_="value"),
    )


def _bar(wait_ms: float, parts: Sequence[StagePart], scale: Scale, ticks: Sequence[float]) -> Markup:
    y, height = (_TOTAL_Y, _TOTAL_HEIGHT) if parts else (_ALONE_Y, _ALONE_HEIGHT)
    shapes = [element("line", x1=scale.at(tick), x2=scale.at(tick), y1=0, y2="100%", class_="grid") for tick in ticks]
    whole = scale.length(0, wait_ms / MS_PER_SECOND, 0.3)
    shapes.append(
        element("rect", element("title", seconds(wait_ms)), x=0, y=y, width=whole, height=height, rx=2, class_="wait")
    )
    for part in parts:
        start, end = part.start_ms / MS_PER_SECOND, part.end_ms / MS_PER_SECOND
        title = element("title", f"{part.name}: {seconds(part.length_ms)}")
        shapes.append(
            element(
                "rect",
                title,
                x=scale.at(start),
                y=_STAGES_Y,
                width=scale.length(start, end, 0.3),
                height=_STAGES_HEIGHT,
                class_=f"stage-{part.family}",
            )
        )
    named = ", ".join(f"{part.name} {seconds(part.length_ms)}" for part in parts)
    return element(
        "svg",
        shapes,
        width="100%",
        height=_BAR_HEIGHT,
        role="img",
        aria_label=f"{seconds(wait_ms)}. {named}".strip(". "),
    )
