"""The timeline of a call: a lane for each speaker, overlaps, silences, tools, and links to the turns.

Its width grows with the call, and it scrolls in a box of its own. Marks less than a pixel apart are drawn as one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from schemas.closed_sets import Speaker, ToolOutcome
from schemas.scores.records import DeadAirFact
from streamer.report.call.intervals import Stretch
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.axis import Scale, spaced, time_ticks
from streamer.report.drawing.markup import NOTHING, Markup, element, joined
from streamer.report.drawing.numbers import clock, counted, seconds

MOST_PIXELS: Final = 24_000
"""Widest drawing: over two hours at the usual scale. Longer calls are drawn narrower."""
MOST_DRAWN: Final = 2_000
"""Turns, and likewise overlaps, silences and tools that are drawn, the first ones: a call of two hours has some six hundred."""
MOST_TURN_LINKS: Final = 500
"""Bound of linked turns: as many as the transcript shows."""
_LEAST_PIXELS: Final = 320
_PIXELS_PER_SECOND: Final = 3
_HALF_LABEL_PIXELS: Final = 14
_TICK_PIXELS: Final = 90
_DIGIT_PIXELS: Final = 8
_LABEL_PIXELS: Final = 44
"""Width of the length of a silence as text."""

_HEIGHT: Final = 164
_NUMBERS_Y: Final = 12
_LANE_Y: Final = {Speaker.USER: 22, Speaker.ASSISTANT: 66}
_LANE_HEIGHT: Final = 32
_LANES_HEIGHT: Final = _LANE_Y[Speaker.ASSISTANT] + _LANE_HEIGHT - _LANE_Y[Speaker.USER]
_TOOLS_Y: Final = 110
_TOOL_HEIGHT: Final = 16
_AXIS_Y: Final = 136
_LEAST_SHARE: Final = 2.0
"""Pixels that the shortest sound is wide."""


def timeline(call: ReportedCall) -> Markup:
    """The drawing with its lanes' names beside it."""
    heard = call.heard
    if not heard.stretches:
        return element("p", "Nothing in this recording says who spoke when, so there is no timeline.", class_="note")
    pixels = _pixels(call.length_ms)
    scale = Scale(heard.start_ms, heard.end_ms)
    drawing = element(
        "svg",
        element("title", f"Timeline of call {call.conversation_id}"),
        _grid(call, scale, pixels),
        _dead_air(call, scale, pixels),
        _turns(call, scale, pixels),
        _overlaps(call, scale, pixels),
        _tools(call, scale, pixels),
        width=pixels,
        height=_HEIGHT,
        role="group",
        aria_label=f"Who spoke when, from 0:00 to {clock(call.length_ms)}. Each turn is a link to its words.",
    )
    lanes = (("turn", "Turn"), ("user", "User"), ("assistant", "Assistant"), ("tools", "Tools"), ("time", "Time"))
    return joined(
        element(
            "div",
            element(
                "div",
                [element("span", name, class_=f"lane-{lane}") for lane, name in lanes],
                class_="lanes",
                aria_hidden="true",
            ),
            element(
                "div", drawing, class_="scroll", tabindex=0, role="region", aria_label="Timeline; it scrolls sideways"
            ),
            class_="timeline",
        ),
        _legend(call),
        _notes(call, pixels),
    )


def _pixels(length_ms: float) -> int:
    return int(min(MOST_PIXELS, max(_LEAST_PIXELS, length_ms / 1_000 * _PIXELS_PER_SECOND)))


def _grid(call: ReportedCall, scale: Scale, pixels: int) -> Markup:
    start_ms = call.heard.start_ms
    ticks = [(start_ms + tick_ms, clock(tick_ms)) for tick_ms in time_ticks(call.length_ms, pixels // _TICK_PIXELS)]
    marks = [(scale.at(at_ms), _label_shift(scale.place(at_ms), pixels), text) for at_ms, text in ticks]
    return element(
        "g",
        [element("line", x1=at, x2=at, y1=_LANE_Y[Speaker.USER] - 4, y2=_AXIS_Y, class_="grid") for at, _, _ in marks],
        [element("rect", x=0, y=y, width="100%", height=_LANE_HEIGHT, class_="lane") for y in _LANE_Y.values()],
        [element("text", text, x=at, y=_AXIS_Y + 16, dx=shift, class_="tick") for at, shift, text in marks],
        aria_hidden="true",
    )


def _label_shift(place: float, pixels: int) -> int:
    """Pixels by which a label is moved: to the middle of its line, but not out of the drawing.

    Example:
        >>> _label_shift(0, 800), _label_shift(50, 800), _label_shift(99.5, 800)
        (0, -14, -28)
    """
    left, right = (share / 100 * pixels for share in (place, 100 - place))
    if left < _HALF_LABEL_PIXELS:
        return 0
    return -2 * _HALF_LABEL_PIXELS if right < _HALF_LABEL_PIXELS else -_HALF_LABEL_PIXELS


def _dead_air(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Markup]:
    for each in call.dead_air[:MOST_DRAWN]:
        start_ms, end_ms, _ = each.silence
        at, width = scale.at(start_ms), scale.length(start_ms, end_ms)
        length = seconds(end_ms - start_ms)
        shape = element(
            "rect",
            x=at,
            y=_LANE_Y[Speaker.USER],
            width=width,
            height=_LANES_HEIGHT,
            fill="url(#dead-air)",
            class_="dead-air",
        )
        text = NOTHING
        if (scale.place(end_ms) - scale.place(start_ms)) / 100 * pixels >= _LABEL_PIXELS:
            middle = scale.at((start_ms + end_ms) / 2)
            text = element("text", length, x=middle, y=_LANE_Y[Speaker.USER] + _LANES_HEIGHT / 2 + 4, class_="length")
        title = element("title", f"Dead air from {clock(call.offset_ms(start_ms))}: nobody spoke for {length}")
        yield element("g", title, shape, text)


def _turns(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Markup]:
    """For each turn one link: its number and everything that was heard in it."""
    by_turn: dict[int, list[Stretch]] = {}
    for stretch in call.heard.stretches:
        by_turn.setdefault(stretch.turn, []).append(stretch)
    ordered = sorted(by_turn.items(), key=lambda item: item[1][0].start_ms)[:MOST_DRAWN]
    letterings = (
        (scale.place(heard[0].start_ms) / 100 * pixels, _DIGIT_PIXELS * len(str(turn)) + _DIGIT_PIXELS)
        for turn, heard in ordered
    )
    shifts = spaced(letterings, most_shift=_DIGIT_PIXELS)
    for place, ((turn, heard), shift) in enumerate(zip(ordered, shifts, strict=True)):
        shapes = [_stretch(each, scale, pixels) for each in _merged(heard, call.length_ms / pixels)]
        title = element("title", _turn_in_words(call, turn, heard))
        number = NOTHING
        if shift is not None:
            number = element(
                "text", turn, x=scale.at(heard[0].start_ms), dx=shift or None, y=_NUMBERS_Y, class_="number"
            )
        if place < MOST_TURN_LINKS:
            yield element("a", title, number, shapes, href=f"#{call.turn_anchor(turn)}")
        else:
            yield element("g", title, number, shapes)


def _merged(heard: Iterable[Stretch], least_ms: float) -> list[Stretch]:
    """Stretches of a turn, those of one speaker joined that are nearer than `least_ms`."""
    pieces: list[Stretch] = []
    latest: dict[Speaker, int] = {}
    for stretch in heard:
        index = latest.get(stretch.speaker)
        if index is not None and stretch.start_ms - pieces[index].end_ms < least_ms:
            pieces[index] = pieces[index]._replace(end_ms=max(pieces[index].end_ms, stretch.end_ms))
        else:
            latest[stretch.speaker] = len(pieces)
            pieces.append(stretch)
    return pieces


def _stretch(stretch: Stretch, scale: Scale, pixels: int) -> Markup:
    return element(
        "rect",
        x=scale.at(stretch.start_ms),
        y=_LANE_Y[stretch.speaker],
        width=scale.length(stretch.start_ms, stretch.end_ms, 100 * _LEAST_SHARE / pixels),
        height=_LANE_HEIGHT,
        rx=3,
        class_=stretch.speaker.value,
    )


def _overlaps(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Markup]:
    for each in call.overlaps[:MOST_DRAWN]:
        title = f"Both spoke from {clock(call.offset_ms(each.start_ms))} for {seconds(each.length_ms)}"
        yield element(
            "g",
            element("title", title),
            element(
                "rect",
                x=scale.at(each.start_ms),
                y=_LANE_Y[Speaker.USER],
                width=scale.length(each.start_ms, each.end_ms, 100 * _LEAST_SHARE / pixels),
                height=_LANES_HEIGHT,
                fill="url(#overlap)",
                class_="overlap",
            ),
        )


def _tools(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Markup]:
    for use in call.heard.tools[:MOST_DRAWN]:
        if use.called_at_ms is None:
            continue
        took = "" if use.duration_ms is None else f", {seconds(use.duration_ms)}"
        outcome = use.outcome or ToolOutcome.UNANSWERED
        end_ms = use.called_at_ms + (use.duration_ms or 0)
        yield element(
            "g",
            element(
                "title", f"Tool {call.shown(use.tool)} at {clock(call.offset_ms(use.called_at_ms))}: {outcome}{took}"
            ),
            element(
                "rect",
                x=scale.at(use.called_at_ms),
                y=_TOOLS_Y,
                width=scale.length(use.called_at_ms, end_ms, 100 * 4 / pixels),
                height=_TOOL_HEIGHT,
                rx=2,
                class_="tool" if outcome in (ToolOutcome.SUCCESS, ToolOutcome.UNKNOWN) else "tool failed",
            ),
        )


def _turn_in_words(call: ReportedCall, turn: int, heard: Sequence[Stretch]) -> str:
    parts = [f"Turn {turn} from {clock(call.offset_ms(heard[0].start_ms))}"]
    for speaker in Speaker:
        spoke_ms = sum(each.end_ms - each.start_ms for each in heard if each.speaker is speaker)
        if spoke_ms:
            parts.append(f"{speaker} {seconds(spoke_ms)}")
    wait_ms = call.waits_ms.get(turn)
    if wait_ms is not None:
        parts.append(f"wait for the answer {seconds(wait_ms)}")
    return ", ".join(parts)


def _legend(call: ReportedCall) -> Markup:
    shown = [("user", "User speaks"), ("assistant", "Assistant speaks")]
    if call.overlaps:
        both_ms = sum(each.length_ms for each in call.overlaps)
        shown.append(("overlap", f"Both speak ({seconds(both_ms)})"))
    if facts := call.of(DeadAirFact):
        threshold = seconds(min(fact.threshold_ms for fact in facts))
        shown.append(("dead-air", f"Dead air, over {threshold} ({counted(len(facts), 'time')})"))
    if call.heard.tools:
        shown.append(("tool", "Tool"))
    return legend(shown)


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """The meaning of colours and patterns: pairs of a class and a text."""
    patterned = {"overlap": "url(#overlap)", "dead-air": "url(#dead-air)"}
    return element(
        "ul",
        [
            element(
                "li",
                element(
                    "svg",
                    element("rect", width="100%", height="100%", rx=2, fill=patterned.get(kind), class_=kind),
                    width=18,
                    height=12,
                    aria_hidden="true",
                ),
                text,
            )
            for kind, text in entries
        ],
        class_="legend",
    )


def _notes(call: ReportedCall, pixels: int) -> Markup:
    notes = []
    if not call.heard.has_ends:
        notes.append("Of some speech only the beginning is known: it is drawn as a line.")
    if pixels == MOST_PIXELS:
        notes.append(
            f"The call is long: one pixel is {seconds(call.length_ms / pixels)}, and nearer events are drawn as one."
        )
    turns = {stretch.turn for stretch in call.heard.stretches}
    most = max(len(turns), len(call.overlaps), len(call.dead_air), len(call.heard.tools))
    if most > MOST_DRAWN:
        notes.append(f"Of turns, overlaps, silences and tools the first {MOST_DRAWN:,} of each kind are drawn.")
    if len(turns) > MOST_TURN_LINKS:
        notes.append(f"Only the first {MOST_TURN_LINKS} of {len(turns)} turns lead to their words.")
    return joined([element("p", note, class_="note") for note in notes])
