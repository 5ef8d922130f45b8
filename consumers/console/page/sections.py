"""The sections of the page of a call: what each shows is computed here, how it looks is in its
template.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from markupsafe import Markup
from msgspec import Struct, structs

from consumers.console.page.drawing import Scale, round_ticks, spaced, time_ticks
from consumers.console.page.rendering import MOST_KEPT_CHARS, kept, render
from consumers.engine.measures.talk import LONG_SILENCE_MS
from consumers.view.calls import (
    ReportedCall,
    ScorePart,
    SpeechStretch,
    own_parts,
    part_of,
    parts_of,
)
from consumers.view.contents import (
    DETAIL_CHARS,
    MOST_MOMENTS,
    SIDES,
    STATUS_WORDS,
    cost_in_words,
    expected_of,
    facts_of,
    filler_in_words,
    no_answer,
    notes_of,
    part_in_words,
    people_of,
    reasons_of,
    spoke_again_after,
    standouts,
    subgoals_of,
    tags_of,
    threshold_of,
    tiles,
    tools_of,
    turn_to_look_at,
    unmarked,
    used_in_words,
    value_in_words,
    verdict,
    waits_now,
)
from consumers.view.words import (
    anchor_in_words,
    clock,
    counted,
    in_words,
    outcome,
    percent,
    quantity,
    seconds,
    shortened,
    stage_in_words,
    title,
)
from schemas import rows
from schemas.closed_sets import TURN_JUDGES, Anchor, Speaker
from schemas.rows import (
    NotApplicable,
    StageLatency,
    TurnRow,
    Unscored,
    Value,
)
from schemas.scores.latency_stages import CONTRIBUTIONS, Stage, fits_whole_answer
from schemas.scores.trouble import SLOW_MS
from schemas.units import MS_PER_SECOND

# The progress of a call: the share of reached subgoals after each turn, and the turn that reached
# each.

MOST_POINTS: Final = 1_000
"""Turns that are drawn: as many as a goal set may count."""
_TOP, _BOTTOM = 12, 148
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_NUMBER_PERCENT: Final = 7.0
"""Turn numbers nearer than this share of the width would touch on a telephone."""


def progress(call: ReportedCall) -> Markup:
    """The curve and the subgoals."""
    goals = call.row.goals
    points = [(each.turn, each.progress) for each in call.turns if each.progress is not None][
        :MOST_POINTS
    ]
    return render(
        "progress.html",
        call=call,
        goals=call.goals,
        last=call.progress,
        pending=call.unjudged_turns,
        curve=_curve(points, call.goals.max_turns) if call.goals is not None and points else None,
        subgoals=subgoals_of(call),
        expected=[] if goals is None else [expected_of(each) for each in goals.expected_tools],
    )


def _curve(points: Sequence[tuple[int, rows.Progress]], max_turns: int) -> Mapping[str, object]:
    turns = [turn for turn, _ in points]
    # From the greeting, before which nothing is reached, to the last turn there can be something
    # about.
    scale = Scale(0, max([*turns, min(max_turns, turns[-1] + 1)]))
    placed = [
        (
            scale.at(turn),
            _y(least),
            "" if rows.number(found.result) is not None else " unknown",
            turn,
            found,
        )
        for turn, found in points
        if (least := _least(found)) is not None
    ]
    steps: list[tuple[str, str, float, float, str]] = []
    for (x, y, unknown, *_), (next_x, next_y, next_unknown, *_) in pairwise(placed):
        steps.append((x, next_x, y, y, unknown or next_unknown))
        if next_y != y:
            steps.append((next_x, next_x, y, next_y, unknown or next_unknown))
    shifts = spaced((scale.place(turn), _NUMBER_PERCENT) for turn in turns)
    return {
        "grid": [(share, _y(share)) for share in _SHARES],
        "lines": steps,
        "points": [
            (x, y, unknown, f"Turn {turn}: {_progress(found)}")
            for x, y, unknown, turn, found in placed
        ],
        "numbers": [
            (scale.at(turn), turn)
            for turn, shift in zip(turns, shifts, strict=True)
            if shift is not None
        ],
        "spoken": [f"turn {turn} {_progress(found)}" for turn, found in points],
        "has_unknown": any(rows.number(found.result) is None for _, found in points),
    }


def _least(found: rows.Progress) -> float | None:
    """The progress; if unknown, its certain minimum; None when that is unknown too."""
    value = rows.number(found.result)
    if value is None and found.subgoals:
        return found.reached / found.subgoals
    return value


def _y(share: float) -> float:
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 2)


def _progress(found: rows.Progress) -> str:
    match found.result:
        case Unscored(reason=reason):
            return (
                f"unscored, {in_words(reason)}; {found.reached} of {found.subgoals} subgoals for "
                "certain"
            )
        case NotApplicable(reason=why):
            return f"not applicable, {why}"
    return percent(found.result)


# All scores of a call: scores of the whole call as a list, scores of turns as a table.

_RATINGS: Final = frozenset(kind.value for kind in TURN_JUDGES)
"""Values of turns that a judge gives."""

MOST_TURNS: Final = 500
"""Turns in a table or a transcript; the longest calls of an hour have some three hundred."""
MOST_OF_CALL: Final = 200
"""Scores of the call that are listed; today's evaluators write some twenty."""
MOST_DETAILS: Final = 60
"""Details of one score that are listed; a score of EVA's has some thirty."""
_MOST_ZERO_RATES: Final = 3


def scores(call: ReportedCall) -> Markup:
    """The two parts of the section: list and table."""
    of_call = [*parts_of(call.row), *own_parts(call, None)]
    listed = [_call_row(call, part) for part in of_call[:MOST_OF_CALL]]
    goals = call.row.goals
    if goals is not None and goals.progress is not None:
        heading = "Subgoals reached at the end" if call.is_closed else "Subgoals reached so far"
        listed.append(
            _call_row(call, part_of("progress", goals.progress), goals.judged_turn)
            | {"heading": heading}
        )
    told = [each for each in listed if each["kind"] != "none"]
    return render(
        "scores.html",
        of_call=told,
        not_applicable=[each for each in listed if each["kind"] == "none"],
        anchor_id=call.anchor_id,
        call_left_out=len(of_call) - MOST_OF_CALL,
        most_details=MOST_DETAILS,
    )


def _scores_of_turns(
    call: ReportedCall,
) -> dict[int, tuple[tuple[str, str | None, str, str | None], ...]]:
    """By turn its scores but the wait: heading, how it looks, text, and why."""
    of_turns = [
        (row, {each.name: each for each in (*parts_of(row), *own_parts(call, row.turn))})
        for row in call.turns[:MOST_TURNS]
    ]
    names = dict.fromkeys(
        name for _, parts in of_turns for name in parts if name not in ("wait_ms", "stages")
    )
    return {
        row.turn: tuple(
            (title(name), *cell)
            for name in names
            if any(cell := _score_cell(call, row, name, parts.get(name)))
        )
        for row, parts in of_turns
    }


def _call_row(call: ReportedCall, part: ScorePart, turn: int | None = None) -> dict[str, object]:
    return {
        "heading": title(part.name),
        "name": part.name,
        "kind": None if part.value is None else _kind(part.value),
        "text": part_in_words(call, part),
        "meaning": part.meaning,
        "rule": _EVA_RULES.get(part.name, ""),
        "details": [*_details(call, part), *reasons_of(call, turn)],
    }


_EVA_RULES: Final = {
    "eva_conversation_correctly_finished": "EVA's own rule: 0 only if the call ended because nobody "
    "was heard any more, and the caller was the last to speak; a caller who hangs up counts as 1"
}
"""A remark stands beside a metric of EVA's whose name lets people expect something else."""


def _kind(value: Value) -> str:
    """How a value looks: an unscored one looks different from a number."""
    return _KINDS.get(type(value), "value")


_KINDS: Final[Mapping[type, str]] = {Unscored: "unscored", NotApplicable: "none"}


def _details(call: ReportedCall, part: ScorePart) -> Iterator[tuple[str, str]]:
    """The other fields of the score with their names, nested fields included; many rates of zero
    share one row.
    """
    leaves = [
        (path.removeprefix("sub_metrics."), text)
        for name, value in part.fields.items()
        for path, text in _leaves(call, name, None if name == "not_applicable" else value)
    ]
    zero_rates = [path for path, text in leaves if path.endswith("_rate") and text == "0"]
    folded = set(zero_rates) if len(zero_rates) > _MOST_ZERO_RATES else set()
    names: set[str] = set()
    for path, text in leaves:
        if path not in folded:
            name = title(path)
            # a count and its sum
            yield f"{name}, together" if name in names else name, shortened(text, DETAIL_CHARS)
            names.add(name)
    if folded:
        yield f"{len(folded)} further rates", "0"


def _leaves(call: ReportedCall, path: str, value: object) -> Iterator[tuple[str, str]]:
    """The values of a field with their paths; mappings are walked, empty and missing values are
    left out.
    """
    match value:
        case None | "":
            return
        case Unscored() | NotApplicable():
            yield path, value_in_words(call, path, value)
        case Struct():
            yield from _leaves(call, path, structs.asdict(value))
        case Mapping():
            for name, item in value.items():
                yield from _leaves(call, f"{path}.{name}", item)
        case Anchor():
            yield path, anchor_in_words(value)
        case bool():
            yield path, "yes" if value else "no"
        case int() | float():
            yield path, quantity(path, value)
        case str():
            yield path, call.shown(value, DETAIL_CHARS)
        case Iterable():
            texts = [text for item in value for _, text in _leaves(call, "", item)]
            if texts:
                yield path, ", ".join(texts)
        case _:
            yield path, call.shown(str(value), DETAIL_CHARS)


def _score_cell(
    call: ReportedCall, row: TurnRow, name: str, part: ScorePart | None
) -> tuple[str | None, str, str | None]:
    """How a value looks in the table, its text, and why. A judge's rating that other turns have is
    pending once a judge is asked: when the turn is left. A value without a single number is shown
    with all its fields.
    """
    if part is None:
        is_rated_later = name in _RATINGS and row.status != "open" and not call.is_closed
        return ("unscored", "Pending", "a judge is asked") if is_rated_later else (None, "", None)
    match part.value:
        case None:
            said = "; ".join(f"{name}: {text}" for name, text in _details(call, part))
            return None, "", shortened(said, DETAIL_CHARS)
        case Unscored(reason=unknown):
            return "unscored", "Unscored", in_words(unknown)
        case NotApplicable(reason=why):
            return "none", "Not applicable", call.shown(why)
    reason = part.fields.get("reason")
    text = quantity(part.name, part.value)
    if part.name == "turn_taking":
        # of a turn that has all of it, the reason says only by what it was scored
        if rows.number(part.value) == 1:
            reason = None
        text, reason = f"{text} of 1", "for its wait" if reason == "latency" else reason
    return "value", text, in_words(reason) if isinstance(reason, str) else None


# The stages of the wait in each turn: a drawing in sequence, and a table of all measurements.
#
# pipecat's latency breakdown covers the whole wait without gaps, so it is drawn unchanged. Stages
# of other sources are drawn in their order, and the rest of the wait as not measured. Stages that
# contain other stages are only in the table.

MOST_ROWS: Final = 500
"""Turns in the table."""

FAMILIES: Final[Mapping[str, str]] = {
    "listening": "End of the caller's turn",
    "model": "Language model",
    "sentence": "Waiting for a sentence",
    "tools": "Tools",
    "voice": "Speech synthesis",
    "way": "Transport and pipeline",
    "rest": "Not measured",
}
"""The kinds of drawn stages in the order of the legend: class of the style sheet, and label."""

_FAMILY_OF: Final[Mapping[Stage, str]] = {
    Stage.ENDPOINTING: "listening",
    Stage.STT_TRAILING: "listening",
    Stage.ENDPOINTING_WAIT: "listening",
    Stage.TRANSCRIPTION: "listening",
    Stage.TURN_DETECTION: "listening",
    Stage.TURN_COMPLETION: "listening",
    Stage.WAITING_FOR_USER: "listening",
    Stage.TOOL_RUN: "tools",
    Stage.FUNCTION_HANDLER: "tools",
    # the model writes the arguments of the tool
    Stage.TOOL_REQUEST: "model",
    Stage.LLM_TOOL_CALL: "model",
    Stage.LLM_FIRST_TOKEN: "model",
    Stage.LLM_LAST_SENTENCE: "model",
    Stage.LLM_INFERENCE: "model",
    Stage.FIRST_REQUEST: "model",
    Stage.LLM_FIRST_SENTENCE: "sentence",
    Stage.SENTENCE_AGGREGATION: "sentence",
    Stage.AWAITING_SPEAKABLE_TEXT: "sentence",
    Stage.TTS_FIRST_BYTE: "voice",
    Stage.SPEECH_SYNTHESIS: "voice",
    Stage.OUTPUT_TRANSPORT: "way",
    Stage.PIPELINE: "way",
}


class StagePart(NamedTuple):
    """One piece of the bar of a turn."""

    name: str
    family: str
    start_ms: float
    length_ms: float

    @property
    def end_ms(self) -> float:
        """Where it ends in the bar."""
        return self.start_ms + self.length_ms


def stacked(stages: Sequence[StageLatency], wait_ms: float | None) -> list[StagePart]:
    """The bar of one turn; `wait_ms` is all that it should cover, None when that is not known."""
    known = {each.stage: each.latency_ms for each in stages}
    lengths = [
        (stage, known[stage]) for stage in CONTRIBUTIONS.values() if stage in known
    ] or _in_sequence(known, wait_ms)
    parts: list[StagePart] = []
    at_ms = 0.0
    for stage, length_ms in lengths:
        if length_ms > 0:
            parts.append(StagePart(stage_in_words(stage), _FAMILY_OF[stage], at_ms, length_ms))
            at_ms += length_ms
    if parts and wait_ms is not None and wait_ms > at_ms:
        parts.append(StagePart("not measured", "rest", at_ms, wait_ms - at_ms))
    return parts


def _in_sequence(known: Mapping[Stage, float], wait_ms: float | None) -> list[tuple[Stage, float]]:
    """The stages in sequence; the part that a stage shares with the one before it is subtracted."""
    # The final transcript comes before the turn is ruled over, so the longer of the two contains
    # the other.
    heard = [stage for stage in (Stage.ENDPOINTING, Stage.STT_TRAILING) if stage in known]
    lengths = (
        [max(((stage, known[stage]) for stage in heard), key=lambda item: item[1])] if heard else []
    )
    # written from the first token on, so it contains the wait for that
    if Stage.TOOL_REQUEST in known:
        lengths.append((Stage.TOOL_REQUEST, known[Stage.TOOL_REQUEST]))
    else:
        token_ms = known.get(Stage.LLM_FIRST_TOKEN, 0)
        lengths += [
            (Stage.LLM_FIRST_TOKEN, token_ms),
            (Stage.LLM_FIRST_SENTENCE, known.get(Stage.LLM_FIRST_SENTENCE, 0) - token_ms),
        ]
    lengths += [
        (stage, known[stage]) for stage in (Stage.TOOL_RUN, Stage.TTS_FIRST_BYTE) if stage in known
    ]
    if wait_ms is not None and fits_whole_answer(known, wait_ms):
        whole_ms = known[Stage.LLM_LAST_SENTENCE]
        before_voice = len(lengths) - (Stage.TTS_FIRST_BYTE in known)
        if sum(length_ms for _, length_ms in lengths) + whole_ms <= wait_ms:
            lengths.insert(before_voice, (Stage.LLM_LAST_SENTENCE, whole_ms))
    return lengths


# The speech of the two sides: amount, speed, and longest monologues.

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
    found = call.row.speech
    if found is None:
        return None
    share = rows.number(found.result)
    together = {
        "Agent's share of the talk": outcome("share", found.result)
        if share is None
        else percent(share),
        "Agent's first word after": outcome("first_word_ms", found.first_word_ms),
        "Both spoke for": outcome("overlap_ms", found.overlap_ms),
        f"Dead air, each from {seconds(LONG_SILENCE_MS)}": outcome(
            "dead_air_ms", found.dead_air_ms
        ),
    }
    return render(
        "speech.html",
        rows=_ROWS,
        sides=(found.user, found.assistant),
        together=[(name, call.shown(text)) for name, text in together.items()],
        most_turns=_MOST_TURNS,
        through_turn=call.row.through_turn,
    )


# What the agent's models used and cost, and what its framework notes.


def told(call: ReportedCall) -> Markup | None:
    """The uses and the notes; None without any."""
    row = call.row
    if not (row.uses or row.notes):
        return None
    uses = [
        (
            use.kind,
            call.shown(use.provider or "not known"),
            call.shown(use.model or "not known"),
            used_in_words(use),
            cost_in_words(use.cost),
        )
        for use in row.uses
    ]
    return render(
        "told.html",
        call=call,
        uses=uses,
        notes=notes_of(call),
        cost=cost_in_words(rows.number(row.cost_dollars)),
    )


# The timeline of a call: a lane for each speaker, overlaps, silences, tools, and links to the
# turns.
#
# Its width grows with the call, and it scrolls in a box of its own. Marks less than a pixel apart
# are drawn as one.

MOST_PIXELS: Final = 24_000
"""Widest drawing: over two hours at the usual scale. Longer calls are drawn narrower."""
MOST_DRAWN: Final = 2_000
"""Turns, and likewise overlaps, silences and tools that are drawn, the first ones: a call of two
hours has some six hundred.
"""
MOST_TURN_LINKS: Final = 500
"""Bound of linked turns: as many as the transcript shows."""
_LEAST_PIXELS: Final = 320
_PIXELS_PER_SECOND: Final = 3
_PHONE_PIXELS: Final = 260
"""Room for the drawing on a small telephone, where it is said that a wider one scrolls."""
_HALF_LABEL_PIXELS: Final = 14
_TICK_PIXELS: Final = 90
_DIGIT_PIXELS: Final = 8
LETTERS: Final = "AB"
"""Names of two calls side by side; the first is the base."""
_LANE_Y: Final = {Speaker.USER: 22, Speaker.ASSISTANT: 66}
_LEAST_SHARE: Final = 2.0
"""Pixels that the shortest sound is wide."""


def timeline(*calls: ReportedCall) -> Markup:
    """The drawing with its lanes' names beside it. Of two calls, A and B, one is drawn under the
    other, on one scale of time.
    """
    if not any(call.stretches for call in calls):
        so_far = "this call" if calls[0].is_closed else "this call so far"
        return render(
            "note.html", text=f"Nothing in {so_far} says who spoke when, so there is no timeline."
        )
    length_ms = max(call.length_ms for call in calls)
    pixels = int(
        min(MOST_PIXELS, max(_LEAST_PIXELS, length_ms / MS_PER_SECOND * _PIXELS_PER_SECOND))
    )
    whole = Scale(0, length_ms)
    drawings = []
    for place, call in enumerate(calls):
        scale = Scale(call.start_ms, call.start_ms + length_ms)
        drawings.append(
            {
                "whose": LETTERS[place] if len(calls) > 1 else "",
                "call": call,
                "scale": scale,
                "turns": list(_turns(call, scale, pixels)),
                "tools": _placed_tools(call),
                "kinds": list(_legend(call)),
                "notes": list(_notes(call, pixels, length_ms / pixels)),
            }
        )
    return render(
        "timeline.html",
        drawings=drawings,
        pixels=pixels,
        is_wide=pixels > _PHONE_PIXELS,
        length_ms=length_ms,
        least=100 * _LEAST_SHARE / pixels,
        most_drawn=MOST_DRAWN,
        lane_y=_LANE_Y,
        most_links=MOST_TURN_LINKS,
        ticks=[
            (whole.at(tick_ms), _label_shift(whole.place(tick_ms), pixels), clock(tick_ms))
            for tick_ms in time_ticks(length_ms, pixels // _TICK_PIXELS)
        ],
    )


def _placed_tools(call: ReportedCall) -> list[rows.ToolUse]:
    return [use for row in call.turns for use in row.tools if use.called_ms is not None]


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


def _turns(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Mapping[str, object]]:
    """Each turn: its number and everything that was heard in it."""
    by_turn: dict[int, list[SpeechStretch]] = {}
    for stretch in call.stretches:
        by_turn.setdefault(stretch.turn, []).append(stretch)
    ordered = sorted(by_turn.items(), key=lambda item: item[1][0].start_ms)[:MOST_DRAWN]
    letterings = (
        (
            scale.place(heard[0].start_ms) / 100 * pixels,
            _DIGIT_PIXELS * len(str(turn)) + _DIGIT_PIXELS,
        )
        for turn, heard in ordered
    )
    shifts = spaced(letterings, most_shift=_DIGIT_PIXELS)
    least = 100 * _LEAST_SHARE / pixels
    for (turn, heard), shift in zip(ordered, shifts, strict=True):
        yield {
            "turn": turn,
            "title": _turn_in_words(call, turn, heard),
            "x": scale.at(heard[0].start_ms),
            "shift": shift,  # None if its number would touch another
            "stretches": [
                (
                    each.speaker,
                    scale.at(each.start_ms),
                    scale.length(each.start_ms, each.end_ms, least),
                )
                for each in _merged(heard, (scale.end - scale.start) / pixels)
            ],
        }


def _merged(heard: Iterable[SpeechStretch], least_ms: float) -> list[SpeechStretch]:
    """Stretches of a turn, those of one speaker joined that are nearer than `least_ms`."""
    pieces: list[SpeechStretch] = []
    latest: dict[Speaker, int] = {}
    for stretch in heard:
        index = latest.get(stretch.speaker)
        if index is not None and stretch.start_ms - pieces[index].end_ms < least_ms:
            pieces[index] = pieces[index]._replace(end_ms=max(pieces[index].end_ms, stretch.end_ms))
        else:
            latest[stretch.speaker] = len(pieces)
            pieces.append(stretch)
    return pieces


def _turn_in_words(call: ReportedCall, turn: int, heard: Sequence[SpeechStretch]) -> str:
    parts = [f"Turn {turn} from {clock(call.offset_ms(heard[0].start_ms))}"]
    for speaker in Speaker:
        spoke_ms = sum(each.end_ms - each.start_ms for each in heard if each.speaker is speaker)
        if spoke_ms:
            parts.append(f"{SIDES[speaker]} {seconds(spoke_ms)}")
    wait_ms = call.waits_ms.get(turn)
    if wait_ms is not None:
        parts.append(f"wait for the answer {seconds(wait_ms)}")
    return ", ".join(parts)


def _legend(call: ReportedCall) -> Iterator[tuple[str, str]]:
    yield "user", "Caller speaks"
    yield "assistant", "Agent speaks"
    if call.overlaps:
        yield "overlap", f"Both speak ({seconds(sum(each.length_ms for each in call.overlaps))})"
    if call.silences:
        yield (
            "dead-air",
            f"Dead air, over {threshold_of(call)} ({counted(len(call.silences), 'time')})",
        )
    if _placed_tools(call):
        yield "tool", "Tool"


def _notes(call: ReportedCall, pixels: int, pixel_ms: float) -> Iterator[str]:
    if not call.stretches:
        yield "Nothing in this call says who spoke when."
    began = inf if call.is_closed else call.end_ms  # what begins only now has no end yet
    if any(each.end_ms <= each.start_ms < began for each in call.stretches):
        yield "Of some speech only the beginning is known: it is drawn as a line."
    if pixels == MOST_PIXELS:
        yield (
            f"The call is long: one pixel is {seconds(pixel_ms)}, and nearer events are drawn as "
            "one."
        )
    turns = {stretch.turn for stretch in call.stretches}
    most = max(len(turns), len(call.overlaps), len(call.silences), len(_placed_tools(call)))
    if most > MOST_DRAWN:
        yield (
            f"Of turns, overlaps, silences and tools the first {MOST_DRAWN:,} of each kind are "
            "drawn."
        )
    if len(turns) > MOST_TURN_LINKS:
        yield f"Only the first {MOST_TURN_LINKS} of {len(turns)} turns lead to their words."


# The wait of the user in each turn, as bars: voice-to-voice latency, its anchor, and its known
# stages; and a table of all stages, with the source and the values of other sources.

_MOST_TICKS: Final = 4


def latency(call: ReportedCall) -> Markup:
    """A row for each turn, on one scale."""
    waits, waits_ms = call.waits, call.waits_ms
    if not waits:
        so_far = "" if call.is_closed else " so far"
        return render(
            "note.html",
            text=f"No turn of this call has an answer whose wait could be measured{so_far}.",
        )
    bars = {row.turn: tuple(stacked(row.stages, waits_ms.get(row.turn))) for row in call.turns}
    parts = [part for bar in bars.values() for part in bar]
    longest_ms = max([*waits_ms.values(), *(part.end_ms for part in parts)], default=0.0)
    ticks = tuple(round_ticks(longest_ms / MS_PER_SECOND, _MOST_TICKS))
    scale = Scale(0, ticks[-1])
    fillers = {row.turn: filler_in_words(row) for row in call.turns}
    anchors = {wait.anchor for wait in waits if wait.anchor is not None}
    states = {row.turn: call.status(row) for row in call.turns}
    several = {states[wait.turn] for wait in waits}
    drawn = {part.family for part in parts}
    return render(
        "waits.html",
        call=call,
        kinds=[
            ("wait", "Caller's last sound to agent's first"),
            *((f"stage-{family}", name) for family, name in FAMILIES.items() if family in drawn),
        ],
        early=sum((rows.number(each.value) or 0) < 0 for each in waits),
        anchors=list(anchors),
        status=STATUS_WORDS[min(several)] if len(several) == 1 else None,
        ticks=ticks,
        scale=scale,
        waits=[
            kept(
                "wait.html",
                wait=wait,
                kind=_kind(wait.value),
                stages_of=bars[wait.turn],
                ticks=ticks,
                scale=scale,
                place=call.turn_anchor(wait.turn) if call.has_turn(wait.turn) else None,
                names_anchor=len(anchors) > 1,
                state=states[wait.turn] if len(several) > 1 else None,
                filler=fillers[wait.turn],
            )
            for wait in waits[:MOST_ROWS]
        ],
    )


def _bars(row: TurnRow, wait_ms: float | None) -> tuple[tuple[str, str, float], ...]:
    """The kinds of stages that a wait consists of, each with its class of the style sheet and how
    long it took, the longest first.
    """
    lengths_ms: dict[str, float] = {}
    for part in stacked(row.stages, wait_ms):
        lengths_ms[part.family] = lengths_ms.get(part.family, 0) + part.length_ms
    longest_first = sorted(lengths_ms, key=lambda each: -lengths_ms[each])
    return tuple((FAMILIES[family], family, lengths_ms[family]) for family in longest_first)


_STEPS: Final = ("listening", "model", "tools", "voice")
"""The steps to an answer that leave a trace, in their order."""


def _steps_told(row: TurnRow | None) -> set[str]:
    """The steps of which a turn tells something."""
    if row is None:
        return set()
    families = {_FAMILY_OF.get(stage.stage, "") for stage in row.stages}
    return families | {"tools"} if row.tools else families


def _missing_steps(row: TurnRow | None, of_call: AbstractSet[str]) -> tuple[str, ...]:
    """The steps of which the call tells something, and this turn nothing; not every turn needs a
    tool.
    """
    mine = _steps_told(row) | {"tools"}
    return tuple(FAMILIES[each].lower() for each in _STEPS if each in of_call and each not in mine)


def _stages_told(row: TurnRow) -> tuple[tuple[str, float, str], ...]:
    """The stages of a turn as they were measured, of which some contain others: name, how long it
    took, and who says so.
    """
    told = []
    for each in row.stages:
        others = "".join(
            f"; {source} says {seconds(other_ms)}" for source, other_ms in each.others_ms.items()
        )
        anchor = "" if each.anchor is None else f", {anchor_in_words(each.anchor)}"
        told.append(
            (
                stage_in_words(each.stage),
                each.latency_ms,
                f"{'disputed: ' * each.is_disputed}{each.source}{anchor}{others}",
            )
        )
    return tuple(told)


# What was said, turn by turn: the caller, tools with arguments and answers, the agent.


def transcript(call: ReportedCall) -> Markup:
    """The turns in their order: what was said, and beside it the stages and scores of the one that
    is chosen.
    """
    return render(
        "transcript.html",
        call=call,
        turns=list(words_by_turn(call).values()),
        all_turns=len({*call.words, *(row.turn for row in call.turns)}),
    )


def words_by_turn(call: ReportedCall, whose: str = "") -> dict[int, Markup]:
    """The words of each turn, `MOST_TURNS` at most. A call beside another one has its letter, and
    neither stages nor scores.
    """
    starts_ms = {stretch.turn: stretch.start_ms for stretch in reversed(call.stretches)}
    turns = sorted({*call.words, *(row.turn for row in call.turns)})
    scored = {} if whose else _scores_of_turns(call)
    first = None if whose else turn_to_look_at(call)
    of_call = {step for row in call.turns for step in _steps_told(row)}
    return {
        turn: _turn_markup(
            sum(map(len, (words.user, words.assistant, words.written)))
            + sum(len(each.arguments + each.answer) for each in words.tools),
            head=f"{whose}, turn {turn}" if whose else f"Turn {turn}",
            number=turn,
            place=call.turn_anchor(turn),
            began_ms=call.start_ms,
            start_ms=starts_ms.get(turn),
            wait_ms=call.waits_ms.get(turn),
            objective_ms=SLOW_MS,
            status=None if row is None or call.is_closed else row.status,
            status_means="" if row is None else STATUS_WORDS.get(row.status, ""),
            tags=() if row is None else tuple(tags_of(row)),
            user=unmarked(words.user),
            spoke_again_ms=() if row is None else tuple(spoke_again_after(call, row)),
            assistant=unmarked(words.assistant),
            written=unmarked(words.written),
            tools=tuple(tools_of(row, words)),
            left_out=", ".join(words.left_out),
            is_first=turn == first,
            bars=() if row is None or whose else _bars(row, call.waits_ms.get(turn)),
            stages=() if row is None or whose else _stages_told(row),
            scores=scored.get(turn, ()),
            no_answer=unanswered,
            missing=() if unanswered is None else _missing_steps(row, of_call),
        )
        for turn in turns[:MOST_TURNS]
        for row in [call.row_of(turn)]
        for words in [call.words.get(turn) or rows.WordsRow(conversation_id="", turn=turn)]
        for unanswered in [None if row is None or whose else no_answer(call, row)]
    }


def _turn_markup(chars: int, **turn: Hashable) -> Markup:
    return (kept if chars <= MOST_KEPT_CHARS else kept.__wrapped__)("turn.html", **turn)


# A call as one article: its figures, what stands out, and the sections.


def people(call: ReportedCall) -> Markup:
    """What people say of the call: a label, a note or both, with who says it and when; nothing if
    nobody does.
    """
    said = people_of(call)
    return render("people.html", said=said) if said else Markup()


SECTIONS: Final[Mapping[str, Callable[[ReportedCall], Markup]]] = {
    "Timeline": timeline,
    "Transcript": transcript,
    "Goals": progress,
    "Labels and notes": people,
}
"""The sections of a call below what stands out: each is one function and the template that it
fills.
"""
FOLDED: Final[Mapping[str, Callable[[ReportedCall], Markup | None]]] = {
    "Figures": lambda call: render("figures.html", call=call, tiles=list(tiles(call))),
    "Wait for the answer, by turn": latency,
    "Speech": speech,
    "Models and notes": told,
    "Scores": scores,
}
"""Those that a person opens if he wants to know more."""


def parts_of_page(call: ReportedCall, *, has_index: bool = False) -> dict[str, Markup]:
    """The parts of an article about a call in their order, by their ids: a live page gets those
    that changed.
    """
    top = render(
        "call_top.html",
        call=call,
        has_index=has_index,
        labels=facts_of(call),
        verdict=verdict(call),
        waits=waits_now(call),
        is_well=not any(each.is_fault for each in standouts(call)),
    )
    outstanding = render(
        "standouts.html", call=call, standouts=standouts(call), most_moments=MOST_MOMENTS
    )
    parts = {f"{call.anchor_id}-top": top, f"{call.anchor_id}-standouts": outstanding}
    for markup, sections in ((_SECTION, SECTIONS), (_FOLD, FOLDED)):
        for name, fill in sections.items():
            if content := fill(call):
                place = f"{call.anchor_id}-{name.split()[0].lower()}"
                parts[place] = markup.format(place, name, content)
    return parts


_SECTION: Final = Markup('<section id="{}"><h3>{}</h3>{}</section>')
_FOLD: Final = Markup(
    '<section id="{0}" class="fold"><details '
    'id="{0}-fold"><summary><h3>{1}</h3></summary>{2}</details></section>'
)
_ARTICLE: Final = Markup('<article id="{0}" aria-labelledby="{0}-head">{1}</article>')


def section(call: ReportedCall, *, has_index: bool) -> Markup:
    """Everything about one call, as one article."""
    return _ARTICLE.format(
        call.anchor_id, Markup("").join(parts_of_page(call, has_index=has_index).values())
    )
