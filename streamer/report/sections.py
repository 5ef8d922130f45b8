"""The sections of the report."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple, assert_never

from pydantic import BaseModel

from consumers.engine.measures.talk import LONG_SILENCE_MS
from consumers.engine.turns.timeline import PairedUse
from schemas.closed_sets import Anchor, Speaker, ToolOutcome
from schemas.goals.goal_set import GoalSet
from schemas.scores.latency_stages import CONTRIBUTIONS, Stage
from schemas.scores.records import (
    DeadAirFact,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SideSpeech,
    StageLatency,
    StallFact,
    SubgoalScore,
    ToolUseFact,
    TurnValues,
    Unscored,
)
from streamer.report.calls import ReportedCall, Said, ScorePart, Stretch, TurnHeard, Wait, part_of, parts_of
from streamer.report.drawing import (
    MS_PER_SECOND,
    NOTHING,
    Child,
    Markup,
    Scale,
    anchor_in_words,
    clock,
    counted,
    element,
    in_words,
    joined,
    number,
    outcome,
    percent,
    quantity,
    round_ticks,
    seconds,
    shortened,
    spaced,
    time_ticks,
    title,
)
from streamer.trials.calls import CallFold, Trial
from streamer.trials.comparison import GoalSetTrials, compared, errors, figures, fitting, judge_errors, remarks, shown

# The progress of a call: the share of reached subgoals after each turn, and the turn that reached each.

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
            + "; ".join(f"turn {record.turn} {_progress_value(record)}" for record in points),
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
    title = element("title", f"Turn {record.turn}: {_progress_value(record)}")
    kind = "point" if isinstance(record.result, Scored) else "point unknown"
    return element("circle", title, cx=scale.at(record.turn or 0), cy=_y(least), r=4, class_=kind)


def _progress_value(record: ProgressScore) -> str:
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


# All scores of a call: scores of the whole call as a list, scores of turns as a table.

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
                    [element("td", _score_cell(call, parts[turn].get(name))) for name in names],
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


def _score_cell(call: ReportedCall, part: ScorePart | None) -> Child:
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


# The stages of the wait in each turn: a drawing in sequence, and a table of all measurements.
#
# pipecat's latency breakdown covers the whole wait without gaps, so it is drawn unchanged. Stages of other sources
# are drawn in their order, and the rest of the wait as not measured. Stages that contain other stages are only in the
# table.

MOST_ROWS: Final = 500
"""Turns in the table."""

FAMILIES: Final[Mapping[str, str]] = {
    "listening": "End of the user's turn",
    "model": "Language model",
    "sentence": "Waiting for a sentence",
    "tools": "Tools",
    "voice": "Speech synthesis",
    "way": "Transport and pipeline",
    "rest": "Not measured",
}
"""The kinds of drawn stages in the order of the legend: class of the style sheet, and label."""

_FAMILY_OF: Final[Mapping[Stage, str]] = {
    Stage.ENDPOINTING: "listening", Stage.STT_TRAILING: "listening", Stage.ENDPOINTING_WAIT: "listening",
    Stage.TRANSCRIPTION: "listening", Stage.TURN_DETECTION: "listening", Stage.TURN_COMPLETION: "listening",
    Stage.WAITING_FOR_USER: "listening",
    Stage.TOOL_RUN: "tools", Stage.FUNCTION_HANDLER: "tools",
    Stage.TOOL_REQUEST: "model", Stage.LLM_TOOL_CALL: "model",  # the model writes the arguments of the tool
    Stage.LLM_FIRST_TOKEN: "model", Stage.LLM_LAST_SENTENCE: "model", Stage.LLM_INFERENCE: "model", Stage.FIRST_REQUEST: "model",
    Stage.LLM_FIRST_SENTENCE: "sentence", Stage.SENTENCE_AGGREGATION: "sentence", Stage.AWAITING_SPEAKABLE_TEXT: "sentence",
    Stage.TTS_FIRST_BYTE: "voice", Stage.SPEECH_SYNTHESIS: "voice",
    Stage.OUTPUT_TRANSPORT: "way", Stage.PIPELINE: "way",
}  # fmt: skip
ONLY_IN_THE_TABLE: Final = frozenset({Stage.TURN_ANALYZER, Stage.VOICE_TO_VOICE, Stage.FIRST_SPEECH})
"""Stages that are not drawn, because they contain others or are a part of one."""


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


def stage_parts(call: ReportedCall) -> dict[int, list[StagePart]]:
    """By turn: its bar, for turns of which a stage besides the whole is known."""
    waits_ms = call.waits_ms
    parts = {}
    for record in call.rows:
        turn = record.turn or 0
        bar = stacked(record.stages, waits_ms.get(turn))
        if bar:
            parts[turn] = bar
    return parts


def stacked(stages: Sequence[StageLatency], wait_ms: float | None) -> list[StagePart]:
    """The bar of one turn; `wait_ms` is all that it should cover, None when that is not known."""
    known = {each.stage: each.latency_ms for each in stages}
    lengths = [(stage, known[stage]) for stage in CONTRIBUTIONS.values() if stage in known] or _in_sequence(
        known, wait_ms
    )
    parts: list[StagePart] = []
    at_ms = 0.0
    for stage, length_ms in lengths:
        if length_ms > 0:
            parts.append(StagePart(in_words(stage), _FAMILY_OF[stage], at_ms, length_ms))
            at_ms += length_ms
    if parts and wait_ms is not None and wait_ms > at_ms:
        parts.append(StagePart("not measured", "rest", at_ms, wait_ms - at_ms))
    return parts


def _in_sequence(known: Mapping[Stage, float], wait_ms: float | None) -> list[tuple[Stage, float]]:
    """The stages in sequence; the part that a stage shares with the one before it is subtracted."""
    # The final transcript comes before the turn is ruled over, so the longer of the two contains the other.
    heard = [stage for stage in (Stage.ENDPOINTING, Stage.STT_TRAILING) if stage in known]
    lengths = [max(((stage, known[stage]) for stage in heard), key=lambda item: item[1])] if heard else []
    if Stage.TOOL_REQUEST in known:  # written from the first token on, so it contains the wait for that
        lengths.append((Stage.TOOL_REQUEST, known[Stage.TOOL_REQUEST]))
    else:
        token_ms = known.get(Stage.LLM_FIRST_TOKEN, 0)
        lengths.append((Stage.LLM_FIRST_TOKEN, token_ms))
        lengths.append((Stage.LLM_FIRST_SENTENCE, known.get(Stage.LLM_FIRST_SENTENCE, 0) - token_ms))
    lengths += [(stage, known[stage]) for stage in (Stage.TOOL_RUN, Stage.TTS_FIRST_BYTE) if stage in known]
    # A whole answer says more than was waited for, unless nobody spoke before it was there: then it fits into the wait.
    whole_ms = known.get(Stage.LLM_LAST_SENTENCE)
    has_more_exact = Stage.LLM_FIRST_TOKEN in known or Stage.LLM_FIRST_SENTENCE in known
    if whole_ms is not None and wait_ms is not None and not has_more_exact:
        before_voice = len(lengths) - (Stage.TTS_FIRST_BYTE in known)
        if sum(length_ms for _, length_ms in lengths) + whole_ms <= wait_ms:
            lengths.insert(before_voice, (Stage.LLM_LAST_SENTENCE, whole_ms))
    return lengths


def stages_table(call: ReportedCall) -> Markup | None:
    """Every stage of every turn in numbers, with its source and the values of other sources; None without stages."""
    records = [record for record in call.rows if record.stages]
    if not records:
        return None
    there = {each.stage for record in records for each in record.stages}
    columns = [stage for stage in Stage if stage in there]
    table = element(
        "table",
        element(
            "thead",
            element(
                "tr",
                element("th", "Turn", scope="col"),
                [element("th", in_words(stage), scope="col") for stage in columns],
            ),
        ),
        element("tbody", [_stage_row(record, columns) for record in records[:MOST_ROWS]]),
    )
    box = element(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label="Stages of each turn; scrolls sideways"
    )
    return element("details", element("summary", "All stages in numbers"), box)


def _stage_row(record: TurnValues, columns: Sequence[Stage]) -> Markup:
    known = {each.stage: each for each in record.stages}
    return element(
        "tr",
        element("th", record.turn, scope="row"),
        [element("td", _stage_cell(known[stage]) if stage in known else None) for stage in columns],
    )


def _stage_cell(latency: StageLatency) -> Child:
    anchor = f", {anchor_in_words(latency.anchor)}" if latency.anchor else ""
    others = "".join(f"; {source} says {seconds(other_ms)}" for source, other_ms in latency.others_ms.items())
    return joined(
        element("span", seconds(latency.latency_ms), class_="value"),
        element("span", "disputed", class_="tag warning") if latency.is_disputed else None,
        element("small", f"{latency.source}{anchor}{others}"),
    )


# The parts of a call to look at first: long waits, overlapping speech, dead air, failed tools, stalls.

LONG_WAIT_MS: Final = 3_500
"""From here on a wait is pointed out: where EVA's turn taking gives nothing, and where the alert for slow answers is."""

MOST_MOMENTS: Final = 12
"""Of one kind that are listed."""

_NO_FAULTS: Final = frozenset({"User interrupted", "Waits not known"})
"""Kinds that a good call has too."""


class Moment(NamedTuple):
    """A turn with its remark; a greater `weight` comes first. A stall that the call came out of is no fault."""

    turn: int
    text: str
    weight: float = 0.0
    is_fault: bool = True


class Standout(NamedTuple):
    """One kind of standout with its moments: the greatest weight first, otherwise in the order of the call.

    Attributes:
        heading: The kind.
        moments: The turns, each with its remark.
        is_fault: Whether the agent did something wrong; otherwise it is worth a look and no more.
    """

    heading: str
    moments: tuple[Moment, ...]
    is_fault: bool


def standouts(call: ReportedCall) -> list[Standout]:
    """Every kind with at least one moment; the kinds that disturb the user most come first."""
    kinds = {
        f"Waits over {seconds(LONG_WAIT_MS)}": _long_waits(call),
        "Assistant spoke over the user": _interruptions(call, Speaker.ASSISTANT),
        "User interrupted": _interruptions(call, Speaker.USER),
        "Other dead air": _silences(call),
        "Tools without success": _tools(call),
        "No progress after": _stalls(call),
        "Waits not known": _unknown_waits(call),
    }
    found = []
    for heading, moments in kinds.items():
        ordered = sorted(sorted(moments, key=attrgetter("turn")), key=attrgetter("weight"), reverse=True)
        if ordered:
            is_fault = heading not in _NO_FAULTS and any(each.is_fault for each in ordered)
            found.append(Standout(heading, tuple(ordered), is_fault))
    return found


def _long_waits(call: ReportedCall) -> Iterator[Moment]:
    for turn, wait_ms in call.waits_ms.items():
        if wait_ms >= LONG_WAIT_MS:
            yield Moment(turn, seconds(wait_ms), wait_ms)


def _unknown_waits(call: ReportedCall) -> Iterator[Moment]:
    for wait in call.latencies:
        if isinstance(wait.result, Unscored):
            yield Moment(wait.turn, in_words(wait.result.reason))


def _silences(call: ReportedCall) -> Iterator[Moment]:
    """Dead air that is no long wait for an answer, such as at the end of a call."""
    waits_ms = call.waits_ms
    for each in call.dead_air:
        if waits_ms.get(each.silence.turn, 0) < LONG_WAIT_MS:
            length_ms = each.silence.length_ms
            yield Moment(each.silence.turn, seconds(length_ms), length_ms)


def _interruptions(call: ReportedCall, by: Speaker) -> Iterator[Moment]:
    for fact in call.of(InterruptionFact):
        if fact.by is by:
            turn = fact.turn or 0
            both_ms = sum(each.length_ms for each in call.overlaps if each.turn == turn)
            yield Moment(turn, f"{seconds(both_ms)} together" if both_ms else "", both_ms)


def _tools(call: ReportedCall) -> Iterator[Moment]:
    for use in call.of(ToolUseFact):
        if use.outcome in (ToolOutcome.ERROR, ToolOutcome.UNANSWERED):
            how = "failed" if use.outcome is ToolOutcome.ERROR else "did not answer"
            yield Moment(use.turn or 0, f"{call.shown(use.tool)} {how}")


def _stalls(call: ReportedCall) -> Iterator[Moment]:
    reached = sorted(each.reached_turn for each in call.subgoals if each.reached_turn is not None)
    for stall in call.of(StallFact):
        later = next((turn for turn in reached if turn > stall.since_turn), None)
        text = "to the end of the call" if later is None else f"until turn {later}"
        yield Moment(stall.since_turn, text, is_fault=later is None)


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
    whole = call.whole
    if whole is None or whole.speech is None:
        return None
    score = whole.speech
    sides = element(
        "table",
        element(
            "thead",
            element(
                "tr",
                element("th", "", scope="col"),
                [element("th", side, scope="col") for side in ("User", "Assistant")],
            ),
        ),
        element(
            "tbody",
            [
                element(
                    "tr",
                    element("th", heading, scope="row"),
                    [element("td", _talk_value(field, side)) for side in (score.user, score.assistant)],
                )
                for heading, field in _ROWS.items()
            ],
        ),
        class_="sides",
    )
    together = (
        ("Assistant's share of the talk", _share(score.result)),
        ("Assistant's first word after", outcome("first_word_ms", score.first_word_ms)),
        ("Both spoke for", outcome("overlap_ms", score.overlap_ms)),
        (f"Dead air, each from {seconds(LONG_SILENCE_MS)}", outcome("dead_air_ms", score.dead_air_ms)),
    )
    return joined(
        sides,
        element(
            "dl",
            [element("div", element("dt", name), element("dd", call.shown(text))) for name, text in together],
            class_="facts",
        ),
        element("p", f"Counted up to turn {whole.through_turn}.", class_="note"),
    )


def _talk_value(field: str, side: SideSpeech) -> Markup:
    result: Result = getattr(side, field)
    turns = None
    if field == "repeated_questions" and side.repeated_in_turns:
        turns = element(
            "small",
            f" in {counted(len(side.repeated_in_turns), 'turn')}: {_listed(side.repeated_in_turns)}",
        )
    kind = "value" if result.outcome == "scored" else "unscored"
    return joined(element("span", outcome(field, result), class_=kind), turns)


def _listed(turns: Sequence[int]) -> str:
    more = "" if len(turns) <= _MOST_TURNS else " and more"
    return ", ".join(map(str, turns[:_MOST_TURNS])) + more


def _share(result: Result) -> str:
    return percent(result.value) if result.outcome == "scored" else outcome("share", result)


# The timeline of a call: a lane for each speaker, overlaps, silences, tools, and links to the turns.
#
# Its width grows with the call, and it scrolls in a box of its own. Marks less than a pixel apart are drawn as one.

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

_TIMELINE_HEIGHT: Final = 164
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
        _timeline_tools(call, scale, pixels),
        width=pixels,
        height=_TIMELINE_HEIGHT,
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


def _timeline_tools(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Markup]:
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


# The wait of the user in each turn, as bars: voice-to-voice latency, its anchor, and its known stages.

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
        element("caption", _latency_in_words(call), _anchor_in_words(anchors)),
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
            [
                _latency_row(call, wait, parts.get(wait.turn, ()), scale, ticks, says_anchor=len(anchors) > 1)
                for wait in shown
            ],
        ),
        class_="bars",
    )
    note = None
    if len(rows) > len(shown):
        note = element("p", f"The first {len(shown)} of {len(rows)} turns are shown.", class_="note")
    return joined(legend(kinds), table, note, stages_table(call))


def _latency_in_words(call: ReportedCall) -> str:
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


def _latency_row(
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


# The redacted transcript of a call, turn by turn: words, tools with arguments and results, interruptions.

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


# The section "Over many calls": repeated calls of each goal set compared, and their errors with links to the calls.

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
            element("tbody", [_trial_row(texts.shown(name), values) for name, values in rows]),
            class_="index",
        ),
        [element("p", texts.shown(remark), class_="note") for remark in remarks(groups, None)],
        [_errors(group, texts) for group in groups],
        aria_labelledby=_HEADING_ID,
    )


def _trial(call: ReportedCall) -> Trial | None:
    return CallFold(call.records).trial(call.conversation_id, call.anchor_id)


def _trial_row(name: str, values: Sequence[tuple[str, str]]) -> Markup:
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
