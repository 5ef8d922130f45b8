"""The sections of the page of a call: what each shows is computed here, how it looks is in its template."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from markupsafe import Markup
from msgspec import Struct, structs

from consumers.console.page.calls import ReportedCall, ScorePart, Stretch, part_of, parts_of
from consumers.console.page.drawing import (
    MS_PER_SECOND,
    Scale,
    anchor_in_words,
    clock,
    counted,
    day_and_time,
    duration,
    in_words,
    json_text,
    made,
    not_judged,
    note_in_words,
    number,
    outcome,
    percent,
    quantity,
    round_ticks,
    seconds,
    seconds_if_known,
    shortened,
    spaced,
    time_ticks,
    title,
)
from consumers.console.page.rendering import render
from consumers.engine.measures.eva import EXPERIENCE_THRESHOLDS
from consumers.engine.measures.talk import LONG_SILENCE_MS
from consumers.engine.turns.eva_text import (
    ASSISTANT_INTERRUPTS,
    CUT_ITSELF_OFF,
    CUT_OFF_BY_ASSISTANT,
    CUT_OFF_BY_USER,
    LIKELY_INTERRUPTION,
    USER_INTERRUPTS,
)
from schemas import rows
from schemas.closed_sets import FAILED_USES, TURN_JUDGES, Anchor, CloseReason, Speaker, ToolOutcome
from schemas.metrics.exporter import USED_AMOUNTS
from schemas.rows import (
    ExpectedTool,
    NotApplicable,
    ServiceUse,
    StageLatency,
    Subgoal,
    TurnRow,
    Unscored,
    Value,
)
from schemas.scores.latency_stages import CONTRIBUTIONS, Stage
from schemas.scores.trouble import MANY_INTERRUPTIONS, SLOW_MS, VERY_SLOW_MS, bad_end

# The progress of a call: the share of reached subgoals after each turn, and the turn that reached each.

MOST_POINTS: Final = 1_000
"""Turns that are drawn: as many as a goal set may count."""
_TOP, _BOTTOM = 12, 148
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_NUMBER_PERCENT: Final = 7.0
"""Turn numbers nearer than this share of the width would touch on a telephone."""


def progress(call: ReportedCall) -> Markup:
    """The curve and the subgoals."""
    goals = call.row.goals
    points = [(each.turn, each.progress) for each in call.turns if each.progress is not None][:MOST_POINTS]
    pending = call.unjudged_turns
    known = [] if goals is None or call.goals is None else list(zip(call.goals.subgoals, goals.subgoals, strict=False))
    return render(
        "progress.html",
        call=call,
        goals=call.goals,
        last=call.progress,
        pending=pending,
        curve=_curve(points, call.goals.max_turns) if call.goals is not None and points else None,
        subgoals=[
            (each, *_state(found, is_judged=each.is_judged, is_pending=each.is_judged and bool(pending)))
            for each, found in known
        ],
        expected=[] if goals is None else [_expected(each) for each in goals.expected_tools],
    )


def _curve(points: Sequence[tuple[int, rows.Progress]], max_turns: int) -> Mapping[str, object]:
    turns = [turn for turn, _ in points]
    # From the greeting, before which nothing is reached, to the last turn there can be something about.
    scale = Scale(0, max([*turns, min(max_turns, turns[-1] + 1)]))
    placed = [
        (scale.at(turn), _y(least), "" if rows.number(found.result) is not None else " unknown", turn, found)
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
        "points": [(x, y, unknown, f"Turn {turn}: {_progress(found)}") for x, y, unknown, turn, found in placed],
        "numbers": [(scale.at(turn), turn) for turn, shift in zip(turns, shifts, strict=True) if shift is not None],
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
            return f"unscored, {in_words(reason)}; {found.reached} of {found.subgoals} subgoals for certain"
        case NotApplicable(reason=why):
            return f"not applicable, {why}"
    return percent(found.result)


def _state(found: Subgoal, *, is_judged: bool, is_pending: bool) -> tuple[str, int | None, str]:
    """The state of a subgoal, the turn that reached it, and who says so."""
    how = "by code"
    if is_judged:
        votes = f", votes {found.votes_complete} for and {found.votes_incomplete} against"
        how = "by a judge" + (votes if found.votes_complete or found.votes_incomplete else "")
    if found.reached_turn is not None:
        return "Reached in ", found.reached_turn, how
    if is_pending:
        return "Pending", None, "a judge is asked"
    value = rows.number(found.result)
    if value is None:
        return outcome("", found.result), None, how
    return "Reached" if value == 1 else "Not reached", None, how


def _expected(found: ExpectedTool) -> tuple[str, int | None, str, str]:
    """The state of an expected tool call, the turn that was looked at, its tool, and why it is so."""
    value = rows.number(found.result)
    if value is not None:
        return "Made in " if value else "Missed in ", found.turn, found.tool, made(found)
    return "Not known" if isinstance(found.result, Unscored) else "Left out", None, found.tool, made(found)


# How a value is known, and how far it can still change. What it was before is at its moment on the page.

STATUS_WORDS: Final = {
    "open": "open: the call is still there",
    "provisional": "provisional: late events can change it",
    "settled": "settled: every stream has passed it",
    "final": "final: the call is over",
}
_OBJECTIVE: Final = f"95 % of answers within {seconds(SLOW_MS)}; of usual agents, 95 % within {seconds(VERY_SLOW_MS)}"


def _why(call: ReportedCall, turn: int | None, anchor: Anchor | None = None) -> Iterator[tuple[str, str]]:
    """The reasons for a value of a turn, or of the call, as pairs of words."""
    if anchor is not None:
        yield "End of the user's speech", anchor_in_words(anchor)
    if turn is not None:
        yield from _statuses(call, [turn])
    else:
        yield "Status", STATUS_WORDS["final" if call.is_closed else "provisional"]


def _statuses(call: ReportedCall, turns: Iterable[int]) -> Iterator[tuple[str, str]]:
    """How many of several turns can still change."""
    wanted = set(turns)
    known = Counter(call.status(each) for each in call.turns if each.turn in wanted)
    if len(known) == 1:
        yield "Status", STATUS_WORDS[next(iter(known))]
    elif known:
        yield "Status", ", ".join(f"{known[status]} {status}" for status in STATUS_WORDS if status in known)


# All scores of a call: scores of the whole call as a list, scores of turns as a table.

_RATINGS: Final = frozenset(kind.value for kind in TURN_JUDGES)
"""Values of turns that a judge gives."""

MOST_TURNS: Final = 500
"""Turns in a table or a transcript; the longest calls of an hour have some three hundred."""
MOST_OF_CALL: Final = 200
"""Scores of the call that are listed; today's evaluators write some twenty."""
MOST_DETAILS: Final = 60
"""Details of one score that are listed; a score of EVA's has some thirty."""
_DETAIL_CHARS: Final = 400
_MOST_ZERO_RATES: Final = 3


def scores(call: ReportedCall) -> Markup:
    """The two parts of the section: list and table."""
    of_call = list(parts_of(call.row))
    listed = [_call_row(call, part) for part in of_call[:MOST_OF_CALL]]
    goals = call.row.goals
    if goals is not None and goals.progress is not None:
        heading = "Progress at the end" if call.is_closed else "Progress so far"
        listed.append(_call_row(call, part_of("progress", goals.progress), goals.judged_turn) | {"heading": heading})
    of_turns = [(row, {each.name: each for each in parts_of(row) if each.name != "stages"}) for row in call.turns]
    of_turns = [each for each in of_turns if each[1]]
    states = {call.status(row) for row, _ in of_turns}
    fullest_first = sorted((parts for _, parts in of_turns), key=len, reverse=True)
    names = list(dict.fromkeys(name for parts in fullest_first for name in parts))
    return render(
        "scores.html",
        call=call,
        of_call=listed,
        call_left_out=len(of_call) - MOST_OF_CALL,
        most_details=MOST_DETAILS,
        names=names,
        turns=len(of_turns),
        status=STATUS_WORDS[min(states)] if len(states) == 1 else None,
        rows=[
            (
                row.turn,
                call.status(row) if len(states) > 1 else None,
                [_score_cell(call, row, name, parts.get(name)) for name in names],
            )
            for row, parts in of_turns[:MOST_TURNS]
        ],
    )


def _call_row(call: ReportedCall, part: ScorePart, turn: int | None = None) -> dict[str, object]:
    value = part.value
    text = None if value is None else _outcome(call, part.name, value)
    if left_out := part.fields.get("not_applicable"):  # beside the number, which is about the rest alone
        text = f"{text}; {call.shown(not_judged(left_out), _DETAIL_CHARS)}"
    return {
        "heading": title(part.name),
        "name": part.name,
        "kind": None if value is None else _kind(value),
        "text": text,
        "meaning": part.meaning,
        "details": [*_details(call, part), *_why(call, turn)],
    }


def _kind(value: Value) -> str:
    """How a value looks: an unscored one looks different from a number."""
    match value:
        case Unscored():
            return "unscored"
        case NotApplicable():
            return "none"
    return "value"


def _outcome(call: ReportedCall, name: str, value: Value) -> str:
    """The value as text; the reason why there is none may quote the call."""
    text = outcome(name, value)
    return call.shown(text, _DETAIL_CHARS) if isinstance(value, NotApplicable) else text


def _details(call: ReportedCall, part: ScorePart) -> Iterator[tuple[str, str]]:
    """The other fields of the score with their names, nested fields included; many rates of zero share one row."""
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
            yield f"{name}, together" if name in names else name, shortened(text, _DETAIL_CHARS)  # a count and its sum
            names.add(name)
    if folded:
        yield f"{len(folded)} further rates", "0"


def _leaves(call: ReportedCall, path: str, value: object) -> Iterator[tuple[str, str]]:
    """The values of a field with their paths; mappings are walked, empty and missing values are left out."""
    match value:
        case None | "":
            return
        case Unscored() | NotApplicable():
            yield path, _outcome(call, path, value)
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
            yield path, call.shown(value, _DETAIL_CHARS)
        case Iterable():
            texts = [text for item in value for _, text in _leaves(call, "", item)]
            if texts:
                yield path, ", ".join(texts)
        case _:
            yield path, call.shown(str(value), _DETAIL_CHARS)


def _score_cell(
    call: ReportedCall, row: TurnRow, name: str, part: ScorePart | None
) -> tuple[str | None, str, str | None]:
    """How a value looks in the table, its text, and why. A judge's rating that other turns have is pending once a judge is asked: when
    the turn is left. A value without a single number is shown with all its fields.
    """
    if part is None:
        is_rated_later = name in _RATINGS and row.status != "open" and not call.is_closed
        return ("unscored", "Pending", "a judge is asked") if is_rated_later else (None, "", None)
    match part.value:
        case None:
            said = "; ".join(f"{name}: {text}" for name, text in _details(call, part))
            return None, "", shortened(said, _DETAIL_CHARS)
        case Unscored(reason=unknown):
            return "unscored", "Unscored", in_words(unknown)
        case NotApplicable(reason=why):
            return "none", "Not applicable", call.shown(why)
    reason = part.fields.get("reason")
    return "value", quantity(part.name, part.value), in_words(reason) if isinstance(reason, str) else None


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


# The parts of a call to look at first: long waits, missing answers, overlapping speech, dead air, failed tools, the task, stalls.

MOST_MOMENTS: Final = 12
"""Of one kind that are listed."""

_NO_FAULTS: Final = frozenset({"User interrupted", "Waits not known"})
"""Kinds that a good call has too."""
_ENDINGS: Final = {
    "unanswered": "the call went on",
    "abandoned": "the call ended",
    "failed": "the agent reported an error",
}
"""How a turn without an answer ended."""
_TASKS: Final = {
    "eva_authentication_success": "the session at the end is not the expected one",
    "eva_task_completion": "the records at the end are not the expected ones",
}
"""EVA's metrics of the end of a call that are 0 or 1, and what 0 means."""


class Moment(NamedTuple):
    """A turn with its remark; None is the call as a whole. A greater `weight` comes first. A stall that the call came out of is no
    fault.
    """

    turn: int | None
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
    waits_ms = call.waits_ms
    silences = [each for each in call.silences if waits_ms.get(each.turn, 0) <= SLOW_MS]
    long_waits = [(turn, wait_ms) for turn, wait_ms in waits_ms.items() if wait_ms > SLOW_MS]
    unknown = [(wait.turn, wait.value.reason) for wait in call.waits if isinstance(wait.value, Unscored)]
    ending = bad_end(call.row)
    kinds: dict[str, Iterable[Moment]] = {
        "Ended badly": [] if ending is None else [Moment(call.row.turn, ending)],
        "Authentication failed": _task(call, "eva_authentication_success"),
        "Task not completed": _task(call, "eva_task_completion"),
        "Turns without an answer": [
            Moment(row.turn, _ENDINGS[row.outcome]) for row in call.turns if row.outcome in _ENDINGS
        ],
        f"Waits over {seconds(SLOW_MS)}, the objective": [
            Moment(turn, seconds(wait_ms), wait_ms) for turn, wait_ms in long_waits
        ],
        "Assistant spoke over the user": _interruptions(call, Speaker.ASSISTANT),
        "User interrupted": _interruptions(call, Speaker.USER),
        # Without long waits for an answer: such as at the end of a call.
        "Other dead air": [Moment(each.turn, seconds(each.length_ms), each.length_ms) for each in silences],
        "Errors of the agent": _errors(call),
        "Tools without success": _tools(call),
        "No progress after": _stalls(call),
        "Waits not known": [Moment(turn, in_words(reason)) for turn, reason in unknown],
    }
    found = []
    for heading, moments in kinds.items():
        in_order = sorted(moments, key=lambda each: -1 if each.turn is None else each.turn)
        ordered = sorted(in_order, key=attrgetter("weight"), reverse=True)
        if ordered:
            is_fault = heading not in _NO_FAULTS and any(each.is_fault for each in ordered)
            found.append(Standout(heading, tuple(ordered), is_fault))
    return found


def _task(call: ReportedCall, name: str) -> Iterator[Moment]:
    score = call.row.eva.get(name)
    if score is not None and rows.number(score.result) == 0:
        yield Moment(None, _TASKS[name])


def _errors(call: ReportedCall) -> Iterator[Moment]:
    if (errors := call.row.errors) is not None:
        component = "" if errors.component is None else f", the newest of its {in_words(errors.component)}"
        yield Moment(None, f"{counted(errors.number, 'error')}{component}")


def _interruptions(call: ReportedCall, by: Speaker) -> Iterator[Moment]:
    for row in call.turns:
        if by in row.interruptions:
            both_ms = sum(each.length_ms for each in call.overlaps if each.turn == row.turn)
            yield Moment(row.turn, f"{seconds(both_ms)} together" if both_ms else "", both_ms)


def _tools(call: ReportedCall) -> Iterator[Moment]:
    for row in call.turns:
        for use in row.tools:
            if use.outcome in FAILED_USES:
                how = "failed" if use.outcome is ToolOutcome.ERROR else "did not answer"
                yield Moment(row.turn, f"{call.shown(use.tool)} {how}")


def _stalls(call: ReportedCall) -> Iterator[Moment]:
    goals = call.row.goals
    if goals is None:
        return
    reached = sorted(each.reached_turn for each in goals.subgoals if each.reached_turn is not None)
    for stall in goals.stalls:
        later = next((turn for turn in reached if turn > stall.since_turn), None)
        end = "to the end of the call" if call.is_closed else "until now"
        text = end if later is None else f"until turn {later}"
        yield Moment(stall.since_turn, text, is_fault=later is None)


# The figures of a call, as tiles: each says whether it is good by the objectives of deploy/slo.yaml, in words and with a mark.


class Verdict(StrEnum):
    """How good a figure is: within its objective, beyond it as in usual calls, or worse."""

    GOOD = "good"
    FAIR = "fair"
    BAD = "bad"


class Tile(NamedTuple):
    """One figure.

    Attributes:
        name: What it is.
        value: It in words.
        more: What it rests on; None where the value says all.
        judged: How good it is, with the objective in words; None where there is no objective, or the figure is not known.
        why: How it is known, how far it can still change, and what it was.
    """

    name: str
    value: str
    more: str | None = None
    judged: tuple[Verdict, str] | None = None
    why: tuple[tuple[str, str], ...] = ()


def tiles(call: ReportedCall) -> Iterator[Tile]:
    """The figures in their order; those that this call cannot have are left out."""
    row, waits_ms = call.row, call.waits_ms
    yield Tile(
        "Length",
        duration(call.length_ms),
        counted(row.turns, "turn") if call.is_closed else "so far",
        why=(("What", "from the first event to the last"), ("Call", end_in_words(call))),
    )
    in_time = sum(wait_ms <= SLOW_MS for wait_ms in waits_ms.values())
    anchors = Counter(wait.anchor for wait in call.waits if wait.turn in waits_ms and wait.anchor is not None)
    known = [f"{anchor_in_words(anchor)} ({counted(count, 'turn')})" for anchor, count in anchors.items()]
    yield Tile(
        "Median wait",
        seconds_if_known(row.p50_ms),
        f"{in_time} of {counted(len(waits_ms), 'turn')} within {seconds(SLOW_MS)}" if waits_ms else "of 0 turns",
        _of_a_wait(row.p50_ms),
        (
            ("What", "from the user's last sound to the assistant's first"),
            *((("End of the user's speech", ", ".join(known)),) if known else ()),
            *_statuses(call, waits_ms),
            ("Objective", _OBJECTIVE),
        ),
    )
    longest = next((wait for wait in call.waits if wait.turn == call.slowest_turn), None)
    if longest is None:
        yield Tile("Longest wait", seconds_if_known(row.longest_wait_ms))
    else:
        longest_ms = waits_ms[longest.turn]
        reasons = (*_why(call, longest.turn, longest.anchor), ("Objective", _OBJECTIVE))
        yield Tile("Longest wait", seconds(longest_ms), f"turn {longest.turn}", _of_a_wait(longest_ms), reasons)
    yield _dead_air_tile(call)
    yield _interruptions_tile(call)
    failed = row.failed_tool_calls
    judged = (Verdict.BAD, f"{failed} without success") if failed else (Verdict.GOOD, "all with success")
    ends = Counter(use.outcome for each in call.turns for use in each.tools if use.outcome is not None)
    outcomes = ", ".join(f"{ends[each]} {each}" for each in ToolOutcome if each in ends)
    yield Tile(
        "Tools",
        counted(row.tool_calls, "use"),
        None,
        judged if row.tool_calls else None,
        (("Outcomes", outcomes),) if outcomes else (),
    )
    if call.goals is not None:
        yield _progress_tile(call)
    yield from _eva_tiles(call)


def _progress_tile(call: ReportedCall) -> Tile:
    found, pending = call.progress, call.unjudged_turns
    reached = None if found is None else f"{found.reached} of {counted(found.subgoals, 'subgoal')}"
    turn = None if call.row.goals is None else call.row.goals.judged_turn
    reasons = [] if turn is None else [("Known", f"up to turn {turn}"), *_why(call, turn)]
    if pending:
        reasons.append(("Pending", f"a judge is asked about turn {', '.join(map(str, pending[:MOST_MOMENTS]))}"))
        reached = f"{reached}, a verdict is pending" if reached else "a verdict is pending"
    return Tile("Progress", progress_value(call), reached, _of_progress(call), tuple(reasons))


def _of_a_wait(wait_ms: float | None) -> tuple[Verdict, str] | None:
    if wait_ms is None:
        return None
    if wait_ms <= SLOW_MS:
        return Verdict.GOOD, f"within {seconds(SLOW_MS)}"
    if wait_ms <= VERY_SLOW_MS:
        return Verdict.FAIR, f"over {seconds(SLOW_MS)}"
    return Verdict.BAD, f"over {seconds(VERY_SLOW_MS)}"


def _dead_air_tile(call: ReportedCall) -> Tile:
    times = call.dead_airs
    if times is None:
        return Tile("Dead air", "not known")
    threshold = _threshold(call)
    judged = (Verdict.BAD, f"silent for over {threshold}") if times else (Verdict.GOOD, f"never over {threshold}")
    what = f"nobody speaks and no tool runs for over {threshold} after the user"
    reasons = (("What", what), ("Status", "each is decided once and stays"))
    together = sum(each.length_ms for each in call.silences)
    return Tile("Dead air", counted(times, "time"), seconds(together) if times else None, judged, reasons)


def _threshold(call: ReportedCall) -> str:
    """From when on a silence of this call is dead air."""
    thresholds_ms = [silence.threshold_ms for row in call.turns for silence in row.dead_air]
    return seconds(min(thresholds_ms, default=LONG_SILENCE_MS))


def _interruptions_tile(call: ReportedCall) -> Tile:
    by_user, by_assistant = call.row.user_interruptions, call.row.assistant_interruptions
    judged = None
    if not by_user and not by_assistant:
        judged = Verdict.GOOD, "none"
    elif by_assistant >= MANY_INTERRUPTIONS:
        judged = Verdict.BAD, "the assistant again and again"
    elif by_assistant:
        judged = Verdict.FAIR, "the assistant spoke over the user"
    turns = call.row.interrupted_turns
    reasons = (("What", "one side begins to speak over the other"), *_statuses(call, turns))
    more = f"{by_user} by the user, {by_assistant} by the assistant"
    return Tile("Interruptions", str(by_user + by_assistant), more, judged, reasons)


def _of_progress(call: ReportedCall) -> tuple[Verdict, str] | None:
    found = call.progress
    if found is None or rows.number(found.result) is None:
        return None
    if found.reached == found.subgoals:
        return Verdict.GOOD, "every subgoal reached"
    if call.is_closed:
        return Verdict.BAD, "not every subgoal reached"
    return (Verdict.FAIR, "stalled") if any(each.is_fault for each in _stalls(call)) else None


def _eva_tiles(call: ReportedCall) -> Iterator[Tile]:
    timing = call.row.eva.get("eva_turn_taking")
    value = None if timing is None else rows.number(timing.result)
    if timing is not None and value is not None:
        least = EXPERIENCE_THRESHOLDS["turn_taking"]
        judged = (Verdict.GOOD, f"EVA passes from {least}") if value >= least else (Verdict.BAD, f"below EVA's {least}")
        yield Tile("Turn taking", number(value), "from 0 to 1, best 1", judged, tuple(_why(call, None, timing.anchor)))
    task = call.row.eva.get("eva_task_completion")
    value = None if task is None else rows.number(task.result)
    if value is not None:
        judged = (Verdict.GOOD, "as expected") if value else (Verdict.BAD, "not as expected")
        yield Tile("Task", "done" if value else "not done", None, judged, tuple(_why(call, None)))


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
        "Assistant's share of the talk": outcome("share", found.result) if share is None else percent(share),
        "Assistant's first word after": outcome("first_word_ms", found.first_word_ms),
        "Both spoke for": outcome("overlap_ms", found.overlap_ms),
        f"Dead air, each from {seconds(LONG_SILENCE_MS)}": outcome("dead_air_ms", found.dead_air_ms),
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
            _used(use),
            _cost(use.cost),
        )
        for use in row.uses
    ]
    notes = [(note.turn, call.shown(note_in_words(note))) for note in row.notes]
    return render("told.html", call=call, uses=uses, notes=notes, cost=_cost(rows.number(row.cost_dollars)))


def _used(use: ServiceUse) -> str:
    amounts = ((name, getattr(use, name)) for name in USED_AMOUNTS)
    return ", ".join(f"{amount:,.10g} {in_words(name)}" for name, amount in amounts if amount)


def _cost(cost: float | None) -> str:
    return "not known: no price" if cost is None else f"{cost:.6g} US dollars"


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
_PHONE_PIXELS: Final = 260
"""Room for the drawing on a small telephone, where it is said that a wider one scrolls."""
_HALF_LABEL_PIXELS: Final = 14
_TICK_PIXELS: Final = 90
_DIGIT_PIXELS: Final = 8
_LANE_Y: Final = {Speaker.USER: 22, Speaker.ASSISTANT: 66}
_LEAST_SHARE: Final = 2.0
"""Pixels that the shortest sound is wide."""


def timeline(call: ReportedCall) -> Markup:
    """The drawing with its lanes' names beside it."""
    if not call.stretches:
        so_far = "this call" if call.is_closed else "this call so far"
        return render("note.html", text=f"Nothing in {so_far} says who spoke when, so there is no timeline.")
    pixels = int(min(MOST_PIXELS, max(_LEAST_PIXELS, call.length_ms / MS_PER_SECOND * _PIXELS_PER_SECOND)))
    scale = Scale(call.start_ms, call.end_ms)
    ticks_ms = time_ticks(call.length_ms, pixels // _TICK_PIXELS)
    places = [(call.start_ms + tick_ms, clock(tick_ms)) for tick_ms in ticks_ms]
    return render(
        "timeline.html",
        call=call,
        pixels=pixels,
        is_wide=pixels > _PHONE_PIXELS,
        scale=scale,
        least=100 * _LEAST_SHARE / pixels,
        most_drawn=MOST_DRAWN,
        lane_y=_LANE_Y,
        most_links=MOST_TURN_LINKS,
        ticks=[(scale.at(at_ms), _label_shift(scale.place(at_ms), pixels), text) for at_ms, text in places],
        turns=_turns(call, scale, pixels),
        tools=_placed_tools(call),
        kinds=list(_legend(call)),
        notes=list(_notes(call, pixels)),
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
    by_turn: dict[int, list[Stretch]] = {}
    for stretch in call.stretches:
        by_turn.setdefault(stretch.turn, []).append(stretch)
    ordered = sorted(by_turn.items(), key=lambda item: item[1][0].start_ms)[:MOST_DRAWN]
    letterings = (
        (scale.place(heard[0].start_ms) / 100 * pixels, _DIGIT_PIXELS * len(str(turn)) + _DIGIT_PIXELS)
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
                (each.speaker, scale.at(each.start_ms), scale.length(each.start_ms, each.end_ms, least))
                for each in _merged(heard, call.length_ms / pixels)
            ],
        }


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


def _legend(call: ReportedCall) -> Iterator[tuple[str, str]]:
    yield "user", "User speaks"
    yield "assistant", "Assistant speaks"
    if call.overlaps:
        yield "overlap", f"Both speak ({seconds(sum(each.length_ms for each in call.overlaps))})"
    if call.silences:
        yield "dead-air", f"Dead air, over {_threshold(call)} ({counted(len(call.silences), 'time')})"
    if _placed_tools(call):
        yield "tool", "Tool"


def _notes(call: ReportedCall, pixels: int) -> Iterator[str]:
    began = inf if call.is_closed else call.end_ms  # what begins only now has no end yet
    if any(each.end_ms <= each.start_ms < began for each in call.stretches):
        yield "Of some speech only the beginning is known: it is drawn as a line."
    if pixels == MOST_PIXELS:
        yield f"The call is long: one pixel is {seconds(call.length_ms / pixels)}, and nearer events are drawn as one."
    turns = {stretch.turn for stretch in call.stretches}
    most = max(len(turns), len(call.overlaps), len(call.silences), len(_placed_tools(call)))
    if most > MOST_DRAWN:
        yield f"Of turns, overlaps, silences and tools the first {MOST_DRAWN:,} of each kind are drawn."
    if len(turns) > MOST_TURN_LINKS:
        yield f"Only the first {MOST_TURN_LINKS} of {len(turns)} turns lead to their words."


# The wait of the user in each turn, as bars: voice-to-voice latency, its anchor, and its known stages; and a table of all
# stages, with the source and the values of other sources.

_MOST_TICKS: Final = 4


def latency(call: ReportedCall) -> Markup:
    """A row for each turn, on one scale."""
    waits, waits_ms = call.waits, call.waits_ms
    if not waits:
        so_far = "" if call.is_closed else " so far"
        return render("note.html", text=f"No turn of this call has an answer whose wait could be measured{so_far}.")
    bars = {row.turn: stacked(row.stages, waits_ms.get(row.turn)) for row in call.turns}
    parts = [part for bar in bars.values() for part in bar]
    longest_ms = max([*waits_ms.values(), *(part.end_ms for part in parts)], default=0.0)
    ticks = round_ticks(longest_ms / MS_PER_SECOND, _MOST_TICKS)
    anchors = {wait.anchor for wait in waits if wait.anchor is not None}
    states = {row.turn: call.status(row) for row in call.turns}
    several = {states[wait.turn] for wait in waits}
    drawn = {part.family for part in parts}
    measured = [row for row in call.turns if row.stages]
    known = {each.stage for row in measured for each in row.stages}
    return render(
        "waits.html",
        call=call,
        kinds=[
            ("wait", "User's last sound to assistant's first"),
            *((f"stage-{family}", name) for family, name in FAMILIES.items() if family in drawn),
        ],
        early=sum((rows.number(each.value) or 0) < 0 for each in waits),
        anchors=list(anchors),
        status=STATUS_WORDS[min(several)] if len(several) == 1 else None,
        states=states if len(several) > 1 else {},
        ticks=ticks,
        scale=Scale(0, ticks[-1]),
        waits=[(wait, _kind(wait.value)) for wait in waits[:MOST_ROWS]],
        bars=bars,
        fillers={row.turn: row.after_tools_ms for row in call.turns},
        stages=[stage for stage in Stage if stage in known],
        stage_rows=[(row.turn, {each.stage: each for each in row.stages}) for row in measured[:MOST_ROWS]],
    )


# What was said, turn by turn: the caller, tools with arguments and answers, the agent.

INTERRUPTIONS: Final = {Speaker.USER: "began by interrupting the agent", Speaker.ASSISTANT: "interrupted by the agent"}
"""By who interrupted what is said at the turn: that of a user who interrupts begins with it."""
_MARKS: Final = (
    ASSISTANT_INTERRUPTS,
    USER_INTERRUPTS,
    CUT_OFF_BY_USER,
    CUT_OFF_BY_ASSISTANT,
    CUT_ITSELF_OFF,
    LIKELY_INTERRUPTION,
)
"""EVA's marks in texts. The rows of turns say who interrupted."""


def transcript(call: ReportedCall) -> Markup:
    """The turns in their order."""
    if not call.words:
        return render("note.html", text="There are no words to show." if call.is_closed else _NO_WORDS_SO_FAR)
    starts_ms: dict[int, float] = {}
    for stretch in call.stretches:
        starts_ms.setdefault(stretch.turn, stretch.start_ms)
    by_turn = {row.turn: row for row in call.turns}
    shown = [
        _turn_of_transcript(call, by_turn.get(turn), call.words[turn], starts_ms.get(turn))
        for turn in sorted(call.words)[:MOST_TURNS]
    ]
    return render("transcript.html", call=call, turns=shown, objective_ms=SLOW_MS)


_NO_WORDS_SO_FAR: Final = "There are no words to show so far."


def _turn_of_transcript(
    call: ReportedCall, row: TurnRow | None, words: rows.WordsRow, start_ms: float | None
) -> dict[str, object]:
    tags: list[str] = []
    uses: dict[int, rows.ToolUse] = {}
    if row is not None:
        tags = [INTERRUPTIONS[by] for by in row.interruptions]
        tags += [f"no answer: {_ENDINGS[row.outcome]}"] if row.outcome in _ENDINGS else []
        uses = {use.index: use for use in row.tools}
    texts = {each.index: each for each in words.tools}
    names = {index: use.tool for index, use in uses.items()} | {index: each.tool for index, each in texts.items()}
    nothing = rows.ToolWords(0, "")
    tools = [
        (names[index], uses.get(index), *map(json_text, _texts(texts.get(index, nothing)))) for index in sorted(names)
    ]
    return {
        "number": words.turn,
        "start_ms": start_ms,
        "wait_ms": call.waits_ms.get(words.turn),
        "status": None if row is None or call.is_closed else row.status,
        "tags": tags,
        "user": unmarked(words.user),
        "tools": tools,
        "assistant": unmarked(words.assistant),
        "written": unmarked(words.written),
        "left_out": ", ".join(words.left_out),
    }


def _texts(words: rows.ToolWords) -> tuple[str, str]:
    return words.arguments, words.answer


def unmarked(text: str) -> str:
    """A text without EVA's marks, for people.

    >>> unmarked("[user interrupts] Yes, but [likely cut off by user] no")
    'Yes, but no'
    """
    for mark in _MARKS:
        text = text.replace(mark, "")
    return " ".join(text.split())


# A call as one article: its figures, what stands out, and the sections.


def people(call: ReportedCall) -> Markup:
    """What people say of the call: a label, a note or both, with who says it and when; nothing if nobody does."""
    said = [(f"{each.by}, {day_and_time(each.at_ms)}", call.shown(each.words)) for each in call.annotations]
    return render("people.html", said=said) if said else Markup()


SECTIONS: Final = {
    "People": people,
    "Timeline": timeline,
    "Wait for the answer, by turn": latency,
    "Progress": progress,
    "Speech": speech,
    "Models and notes": told,
    "Scores": scores,
    "Transcript": transcript,
}
"""The sections of a call below its figures: each is one function and the template that it fills."""
_PLACES: Final = {name: name.split()[0].lower() for name in SECTIONS}
"""The end of the id of each section."""
_REASON_CHARS: Final = 60
_FIRST_MS: Final = 946_684_800_000
"""The year 2000: no call is older."""


def progress_value(call: ReportedCall) -> str:
    """Progress at the end, or so far."""
    found = call.progress
    if found is None:
        return "no goals" if call.goals is None else "not judged"
    value = rows.number(found.result)
    return "unscored" if value is None else percent(value)


def end_in_words(call: ReportedCall) -> str:
    """How the call ended."""
    row = call.row
    if not call.is_closed:
        return "over, waiting for verdicts" if call.is_over else "not yet"
    if row.ended_reason:
        return call.shown(in_words(row.ended_reason), _REASON_CHARS)
    return "no reason given" if row.close_reason is CloseReason.ENDED else in_words(row.close_reason or "not known")


def parts_of_page(call: ReportedCall, *, has_index: bool = False) -> dict[str, Markup]:
    """The parts of an article about a call in their order, by their ids: a live page gets those that changed."""
    filled = ((name, f"{call.anchor_id}-{_PLACES[name]}", fill(call)) for name, fill in SECTIONS.items())
    sections = [each for each in filled if each[2]]
    top = render(
        "call_top.html",
        call=call,
        has_index=has_index,
        labels=_labels(call),
        tiles=list(tiles(call)),
        sections=sections,
    )
    outstanding = render(
        "standouts.html", call=call, standouts=standouts(call), most_moments=MOST_MOMENTS, nothing=_nothing(call)
    )
    return {
        f"{call.anchor_id}-top": top,
        f"{call.anchor_id}-standouts": outstanding,
        **{place: _SECTION.format(place, name, content) for name, place, content in sections},
    }


_SECTION: Final = Markup('<section id="{}"><h3>{}</h3>{}</section>')
_ARTICLE: Final = Markup('<article id="{0}" aria-labelledby="{0}-head">{1}</article>')


def section(call: ReportedCall, *, has_index: bool) -> Markup:
    """Everything about one call, as one article."""
    return _ARTICLE.format(call.anchor_id, Markup("").join(parts_of_page(call, has_index=has_index).values()))


def _labels(call: ReportedCall) -> list[tuple[str, str]]:
    labels = call.row.labels
    facts = [
        ("Agent", labels.agent),
        ("Tenant", labels.tenant),
        ("Environment", labels.environment),
        ("Version", labels.version or "unknown"),
        ("Pipeline", in_words(labels.pipeline_type)),
        ("Began", _began(call.start_ms)),
        ("Ended", end_in_words(call)),
    ]
    return [(name, value) for name, value in facts if value != "unknown" or name == "Agent"]


def _began(start_ms: float) -> str:
    """A recording without a time of day counts from the beginning of the epoch."""
    return "not known" if start_ms < _FIRST_MS else day_and_time(start_ms)


def _nothing(call: ReportedCall) -> str:
    """The sentence for a call without standouts; it names the kinds that could be measured."""
    known = {
        f"wait over {seconds(SLOW_MS)}": bool(call.waits_ms),
        "interruption": True,
        "dead air": call.dead_airs is not None,
        "tool that failed": True,
    }
    said = "Nothing: " + ", ".join(f"no {fault}" for fault in known if known[fault]) + "."
    unknown = [fault for fault in known if not known[fault]]
    return f"{said} Not known: {', '.join(unknown)}." if unknown else said
