"""The sections of the report: what each shows is computed here, how it looks is in its template."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from markupsafe import Markup
from pydantic import BaseModel

from consumers.console.page.calls import ReportedCall, Said, ScorePart, Stretch, TurnHeard, part_of, parts_of
from consumers.console.page.drawing import (
    MS_PER_SECOND,
    Scale,
    anchor_in_words,
    clock,
    counted,
    day_and_time,
    duration,
    in_words,
    made,
    not_judged,
    number,
    outcome,
    percent,
    quantity,
    round_ticks,
    seconds,
    seconds_if_known,
    shortened,
    spaced,
    time_of_day,
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
from consumers.engine.turns.timeline import PairedUse
from schemas.closed_sets import FAILED_USES, TURN_JUDGES, Anchor, CloseReason, Speaker, ToolOutcome
from schemas.goals.goal_set import GoalSet
from schemas.metrics.exporter import USED_AMOUNTS
from schemas.scores.latency_stages import CONTRIBUTIONS, Stage
from schemas.scores.records import (
    AgentErrorsFact,
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    DeadAirFact,
    EvaMetricName,
    ExpectedToolCallScore,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    ServiceUse,
    StageLatency,
    StallFact,
    SubgoalScore,
    ToolUseFact,
    TurnOutcome,
    TurnStatus,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from schemas.scores.trouble import MANY_INTERRUPTIONS, SLOW_MS, VERY_SLOW_MS

# The progress of a call: the share of reached subgoals after each turn, and the turn that reached each.

MOST_POINTS: Final = 1_000
"""Turns that are drawn: as many as a goal set may count."""
_TOP, _BOTTOM = 12, 148
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_NUMBER_PERCENT: Final = 7.0
"""Turn numbers nearer than this share of the width would touch on a telephone."""


def progress(call: ReportedCall) -> Markup:
    """The curve and the subgoals."""
    goals = call.goals
    points = sorted(call.of(ProgressScore), key=lambda record: record.turn or 0)[:MOST_POINTS]
    pending = call.unjudged_turns
    by_index = {record.index: record for record in call.subgoals}
    subgoals = () if goals is None else goals.subgoals
    return render(
        "progress.html",
        call=call,
        goals=goals,
        last=call.last_progress,
        pending=pending,
        curve=_curve(call, points, goals) if goals is not None and points else None,
        subgoals=[
            (subgoal, *_state(call, by_index.get(index), is_pending=subgoal.is_judged and bool(pending)))
            for index, subgoal in enumerate(subgoals)
        ],
        expected=[] if call.whole is None else [_expected(each) for each in call.whole.expected_tool_calls or ()],
    )


def _curve(call: ReportedCall, points: Sequence[ProgressScore], goals: GoalSet) -> Mapping[str, object]:
    turns = [record.turn or 0 for record in points]
    # From the greeting, before which nothing is reached, to the last turn there can be something about.
    scale = Scale(0, max([*turns, min(goals.max_turns, turns[-1] + 1)]))
    placed = [
        (scale.at(record.turn or 0), _y(least), "" if isinstance(record.result, Scored) else " unknown", record)
        for record in points
        if (least := _least(record)) is not None
    ]
    steps: list[tuple[str, str, float, float, str]] = []
    for (x, y, unknown, _), (next_x, next_y, next_unknown, _) in pairwise(placed):
        steps.append((x, next_x, y, y, unknown or next_unknown))
        if next_y != y:
            steps.append((next_x, next_x, y, next_y, unknown or next_unknown))
    shifts = spaced((scale.place(turn), _NUMBER_PERCENT) for turn in turns)
    return {
        "grid": [(share, _y(share)) for share in _SHARES],
        "lines": steps,
        "points": [
            (x, y, unknown, f"Turn {each.turn}: {_progress(each)}{_so_far(call, each, _progress)}")
            for x, y, unknown, each in placed
        ],
        "numbers": [(scale.at(turn), turn) for turn, shift in zip(turns, shifts, strict=True) if shift is not None],
        "spoken": [f"turn {record.turn} {_progress(record)}" for record in points],
        "has_unknown": not all(isinstance(record.result, Scored) for record in points),
    }


def _least(record: ProgressScore) -> float | None:
    """The progress; if unknown, its certain minimum; None when that is unknown too."""
    if isinstance(record.result, Scored):
        return record.result.value
    return record.reached / record.subgoals if record.subgoals else None


def _y(share: float) -> float:
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 2)


def _progress(record: ProgressScore) -> str:
    match record.result:
        case Scored(value=value):
            return percent(value)
        case Unscored(reason=reason):
            return f"unscored, {in_words(reason)}; {record.reached} of {record.subgoals} subgoals for certain"
        case NotApplicable(reason=why):
            return f"not applicable, {why}"


def _state(call: ReportedCall, record: SubgoalScore | None, *, is_pending: bool) -> tuple[str, int | None, str]:
    """The state of a subgoal, the turn that reached it, and who says so."""
    if is_pending and (record is None or record.reached_turn is None):
        return "Pending", None, "a judge is asked"
    if record is None:
        return "Not judged" if call.closed is not None else "Not reached so far", None, ""
    text, turn, how = _judged(record)
    return text, turn, how + _so_far(call, record, _reached)


def _reached(record: SubgoalScore) -> str:
    text, turn, _ = _judged(record)
    return f"{text}turn {turn}" if turn is not None else text


def _judged(record: SubgoalScore) -> tuple[str, int | None, str]:
    how = "by code"
    if record.checked_by == "judge":
        votes = f", votes {record.votes_complete} for and {record.votes_incomplete} against"
        how = "by a judge" + (votes if record.votes_complete or record.votes_incomplete else "")
    match record.result:
        case Scored(value=value) if value and record.reached_turn is not None:
            return "Reached in ", record.reached_turn, how
        case Scored(value=value):
            return "Reached" if value == 1 else "Not reached" if value == 0 else number(value), None, how
    return outcome("", record.result), None, how


def _expected(found: ExpectedToolCallScore) -> tuple[str, int | None, str, str]:
    """The state of an expected tool call, the turn that was looked at, its tool, and why it is so."""
    if isinstance(found.result, Scored):
        return "Made in " if found.result.value else "Missed in ", found.turn, found.tool, made(found)
    return "Not known" if isinstance(found.result, Unscored) else "Left out", None, found.tool, made(found)


# Why a value is what it is: how it is known, how far it can still change, and what it was before.

STATUS_WORDS: Final = {
    TurnStatus.OPEN: "open: the call is still there",
    TurnStatus.PROVISIONAL: "provisional: late events can change it",
    TurnStatus.SETTLED: "settled: every stream has passed it",
    TurnStatus.FINAL: "final: the call is over",
}
_OBJECTIVE: Final = f"95 % of answers within {seconds(SLOW_MS)}; of usual agents, 95 % within {seconds(VERY_SLOW_MS)}"
_Valued = TypeVar("_Valued", bound=AnyScoreRecord)


def why(
    call: ReportedCall, record: _Valued, text_of: Callable[[_Valued], str | None], anchor: Anchor | None = None
) -> Iterator[tuple[str, str]]:
    """The reasons for a value as pairs of words.

    Args:
        call: Its call.
        record: Who says it.
        text_of: What a revision of the record says of it; None is nothing.
        anchor: How the end of the user's speech is known, where that counts.
    """
    if anchor is not None:
        yield "End of the user's speech", anchor_in_words(anchor)
    yield "Status", STATUS_WORDS[call.status(record)]
    was = call.earlier(record, text_of)
    if was is not None:
        yield "Before", f"{call.shown(was.text, _DETAIL_CHARS)}, until {time_of_day(was.until_ms)} UTC"


def _so_far(call: ReportedCall, record: _Valued, text_of: Callable[[_Valued], str | None]) -> str:
    """The same as the end of a sentence; nothing for a value that is final and always was the same."""
    status, was = call.status(record), call.earlier(record, text_of)
    said = "" if status is TurnStatus.FINAL else f"; {status}"
    return (
        said if was is None else f"{said}; was {call.shown(was.text, _DETAIL_CHARS)} until {time_of_day(was.until_ms)}"
    )


def _statuses(call: ReportedCall, records: Iterable[AnyScoreRecord]) -> Iterator[tuple[str, str]]:
    """How many of several values can still change."""
    known = Counter(call.status(record) for record in records)
    if len(known) == 1:
        yield "Status", STATUS_WORDS[next(iter(known))]
    elif known:
        yield "Status", ", ".join(f"{known[status]} {status}" for status in TurnStatus if status in known)


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
_KINDS: Final = {"scored": "value", "unscored": "unscored", "not_applicable": "none"}
"""How a result looks: an unscored one looks different from a value."""


def scores(call: ReportedCall) -> Markup:
    """The two parts of the section: list and table."""
    whole, last = call.whole, call.last_progress
    of_call = [] if whole is None else [each for each in parts_of(whole) if each.name != "speech"]
    rows = [] if whole is None else [_call_row(call, whole, part) for part in of_call[:MOST_OF_CALL]]
    if last is not None:
        heading = "Progress at the end" if call.closed is not None else "Progress so far"
        rows.append(_call_row(call, last, part_of("progress", last)) | {"heading": heading})
    of_turns = {
        row.turn or 0: {each.name: each for each in parts_of(row) if each.name != "stages"} for row in call.rows
    }
    by_turn = {row.turn or 0: row for row in call.rows}
    states = {call.status(row) for row in call.rows}
    fullest_first = sorted(of_turns.values(), key=len, reverse=True)
    names = list(dict.fromkeys(name for of_turn in fullest_first for name in of_turn))
    return render(
        "scores.html",
        call=call,
        of_call=rows,
        call_left_out=len(of_call) - MOST_OF_CALL,
        most_details=MOST_DETAILS,
        names=names,
        turns=len(of_turns),
        status=STATUS_WORDS[min(states)] if len(states) == 1 else None,
        rows=[
            (
                turn,
                call.status(by_turn[turn]).value if len(states) > 1 else None,
                [_score_cell(call, by_turn[turn], name, of_turns[turn].get(name), names) for name in names],
            )
            for turn in sorted(of_turns)[:MOST_TURNS]
        ],
    )


def _call_row(call: ReportedCall, record: CallValues | ProgressScore, part: ScorePart) -> dict[str, object]:
    result = part.result
    text = None if result is None else _outcome(call, part.name, result)
    if left_out := part.fields.get("not_applicable"):  # beside the number, which is about the rest alone
        text = f"{text}; {call.shown(not_judged(left_out), _DETAIL_CHARS)}"
    return {
        "heading": title(part.name),
        "name": part.name,
        "kind": None if result is None else _KINDS[result.outcome],
        "text": text,
        "meaning": part.meaning,
        "details": [*_details(call, part), *why(call, record, lambda each: _part_text(each, part.name))],
    }


def _outcome(call: ReportedCall, name: str, result: Result) -> str:
    """The result as text; the reason of an unscored result may quote the call."""
    text = outcome(name, result)
    return call.shown(text, _DETAIL_CHARS) if isinstance(result, NotApplicable) else text


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
        case Scored() | Unscored() | NotApplicable():
            yield path, _outcome(call, path, value)
        case BaseModel():
            for name in type(value).model_fields:
                yield from _leaves(call, f"{path}.{name}", getattr(value, name))
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


def _part_text(record: TurnValues | CallValues | ProgressScore, name: str) -> str | None:
    """What a revision says of one value; None is nothing, or more than a number."""
    if isinstance(record, ProgressScore):
        return outcome("progress", record.result)
    part = next((each for each in parts_of(record) if each.name == name), None)
    return None if part is None or part.result is None else outcome(name, part.result)


def _score_cell(
    call: ReportedCall, row: TurnValues, name: str, part: ScorePart | None, names: Sequence[str]
) -> tuple[str | None, str, str | None]:
    """How a result looks in the table, its text, and why, with what it was before; a judge's rating that other turns have is
    pending once a judge is asked.
    """
    if part is None and name in _RATINGS and call.is_rated_later(row):
        return "unscored", "Pending", "a judge is asked"
    kind, text, reason = _result_cell(call, part)
    was = None if part is None or part.result is None else call.earlier(row, lambda each: _part_text(each, name))
    if was is None:
        return kind, text, reason
    before = f"was {call.shown(was.text, _DETAIL_CHARS)} until {time_of_day(was.until_ms)}"
    return kind, text, f"{reason}; {before}" if reason else before


def _result_cell(call: ReportedCall, part: ScorePart | None) -> tuple[str | None, str, str | None]:
    """How a result looks in the table, its text, and why; a result without a single number is shown with all its fields."""
    match part:
        case None:
            return None, "", None
        case ScorePart(result=Scored(value=value)):
            reason = part.fields.get("reason")
            return "value", quantity(part.name, value), in_words(reason) if isinstance(reason, str) else None
        case ScorePart(result=Unscored(reason=unknown)):
            return "unscored", "Unscored", in_words(unknown)
        case ScorePart(result=NotApplicable(reason=why)):
            return "none", "Not applicable", call.shown(why)
    said = "; ".join(f"{name}: {text}" for name, text in _details(call, part))
    return None, "", shortened(said, _DETAIL_CHARS)


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
    TurnOutcome.UNANSWERED: "the call went on",
    TurnOutcome.ABANDONED: "the call ended",
    TurnOutcome.FAILED: "the agent reported an error",
}
"""How a turn without an answer ended."""
_TASKS: Final[Mapping[EvaMetricName, str]] = {
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
    silences = [each.silence for each in call.dead_air if waits_ms.get(each.silence.turn, 0) <= SLOW_MS]
    long_waits = [(turn, wait_ms) for turn, wait_ms in waits_ms.items() if wait_ms > SLOW_MS]
    unknown = [(wait.turn, wait.result.reason) for wait in call.latencies if isinstance(wait.result, Unscored)]
    kinds: dict[str, Iterable[Moment]] = {
        "Authentication failed": _task(call, "eva_authentication_success"),
        "Task not completed": _task(call, "eva_task_completion"),
        "Turns without an answer": [
            Moment(row.turn, _ENDINGS[row.outcome]) for row in call.rows if row.outcome in _ENDINGS
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


def _task(call: ReportedCall, name: EvaMetricName) -> Iterator[Moment]:
    score = None if call.whole is None else call.whole.eva.get(name)
    if score is not None and isinstance(score.result, Scored) and not score.result.value:
        yield Moment(None, _TASKS[name])


def _errors(call: ReportedCall) -> Iterator[Moment]:
    for fact in call.of(AgentErrorsFact):
        component = "" if fact.component is None else f", the newest of its {in_words(fact.component)}"
        yield Moment(None, f"{counted(fact.errors, 'error')}{component}")


def _interruptions(call: ReportedCall, by: Speaker) -> Iterator[Moment]:
    for fact in call.of(InterruptionFact):
        if fact.by is by:
            turn = fact.turn or 0
            both_ms = sum(each.length_ms for each in call.overlaps if each.turn == turn)
            yield Moment(turn, f"{seconds(both_ms)} together" if both_ms else "", both_ms)


def _tools(call: ReportedCall) -> Iterator[Moment]:
    for use in call.of(ToolUseFact):
        if use.outcome in FAILED_USES:
            how = "failed" if use.outcome is ToolOutcome.ERROR else "did not answer"
            yield Moment(use.turn or 0, f"{call.shown(use.tool)} {how}")


def _stalls(call: ReportedCall) -> Iterator[Moment]:
    reached = sorted(each.reached_turn for each in call.subgoals if each.reached_turn is not None)
    for stall in call.of(StallFact):
        later = next((turn for turn in reached if turn > stall.since_turn), None)
        end = "to the end of the call" if call.closed is not None else "until now"
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
    closed, waits_ms = call.closed, call.waits_ms
    yield Tile(
        "Length",
        duration(call.length_ms),
        "so far" if closed is None else counted(closed.turns, "turn"),
        why=(("What", "from the first event to the last"), ("Call", end_in_words(call))),
    )
    in_time = sum(wait_ms <= SLOW_MS for wait_ms in waits_ms.values())
    measured = [wait for wait in call.latencies if wait.turn in waits_ms]
    anchors = Counter(wait.anchor for wait in measured if wait.anchor is not None)
    known = [f"{anchor_in_words(anchor)} ({counted(count, 'turn')})" for anchor, count in anchors.items()]
    rest_on = (("End of the user's speech", ", ".join(known)),) if known else ()
    yield Tile(
        "Median wait",
        seconds_if_known(call.median_wait_ms),
        f"{in_time} of {counted(len(waits_ms), 'turn')} within {seconds(SLOW_MS)}" if waits_ms else "of 0 turns",
        _of_a_wait(call.median_wait_ms),
        (
            ("What", "from the user's last sound to the assistant's first"),
            *rest_on,
            *_statuses(call, (wait.record for wait in measured)),
            ("Objective", _OBJECTIVE),
        ),
    )
    longest = next((wait for wait in measured if wait.turn == call.slowest_turn), None)
    if longest is None:
        yield Tile("Longest wait", seconds_if_known(None))
    else:
        longest_ms = waits_ms[longest.turn]
        reasons = (*why(call, longest.record, _wait_text, longest.anchor), ("Objective", _OBJECTIVE))
        yield Tile("Longest wait", seconds(longest_ms), f"turn {longest.turn}", _of_a_wait(longest_ms), reasons)
    yield _dead_air_tile(call)
    yield _interruptions_tile(call)
    uses = call.of(ToolUseFact)
    failed = sum(use.outcome in FAILED_USES for use in uses)
    judged = (Verdict.BAD, f"{failed} without success") if failed else (Verdict.GOOD, "all with success")
    ends = Counter(use.outcome for use in uses)
    outcomes = (
        (("Outcomes", ", ".join(f"{ends[each]} {each}" for each in ToolOutcome if each in ends)),) if ends else ()
    )
    yield Tile("Tools", counted(len(uses), "use"), None, judged if uses else None, (*outcomes, *_statuses(call, uses)))
    if call.goals is not None:
        yield _progress_tile(call)
    yield from _eva_tiles(call)


def _wait_text(record: TurnValues | VoiceToVoiceLatency) -> str:
    result = record.result if isinstance(record, VoiceToVoiceLatency) else record.voice_to_voice_ms
    return outcome("voice_to_voice_latency_ms", result)


def _progress_tile(call: ReportedCall) -> Tile:
    last, pending = call.last_progress, call.unjudged_turns
    reached = None if last is None else f"{last.reached} of {counted(last.subgoals, 'subgoal')}"
    reasons = [] if last is None else [("Known", f"up to turn {last.turn}"), *why(call, last, _progress)]
    if pending:
        reasons.append(("Pending", f"a judge is asked about turn {', '.join(map(str, pending[:MOST_MOMENTS]))}"))
        reached = f"{reached}, a verdict is pending" if reached else "a verdict is pending"
    return Tile("Progress", progress_value(call), reached, _of_progress(call), tuple(reasons))


def _of_a_wait(wait_ms: float | None) -> tuple[Verdict, str] | None:
    if wait_ms is None:
        return None
    if wait_ms <= SLOW_MS:
        return Verdict.GOOD, f"within {seconds(SLOW_MS)}"
    return (
        (Verdict.FAIR, f"over {seconds(SLOW_MS)}")
        if wait_ms <= VERY_SLOW_MS
        else (Verdict.BAD, f"over {seconds(VERY_SLOW_MS)}")
    )


def _dead_air_tile(call: ReportedCall) -> Tile:
    times = call.dead_air_times
    if times is None:
        return Tile("Dead air", "not known")
    threshold = seconds(min((fact.threshold_ms for fact in call.of(DeadAirFact)), default=LONG_SILENCE_MS))
    judged = (Verdict.BAD, f"silent for over {threshold}") if times else (Verdict.GOOD, f"never over {threshold}")
    what = f"nobody speaks and no tool runs for over {threshold} after the user"
    reasons = (("What", what), ("Status", "each is decided once and stays"))
    return Tile("Dead air", counted(times, "time"), seconds(call.dead_air_ms) if times else None, judged, reasons)


def _interruptions_tile(call: ReportedCall) -> Tile:
    facts = call.of(InterruptionFact)
    by = [fact.by for fact in facts]
    by_user, by_assistant = by.count(Speaker.USER), by.count(Speaker.ASSISTANT)
    judged = None
    if not by:
        judged = Verdict.GOOD, "none"
    elif by_assistant >= MANY_INTERRUPTIONS:
        judged = Verdict.BAD, "the assistant again and again"
    elif by_assistant:
        judged = Verdict.FAIR, "the assistant spoke over the user"
    reasons = (("What", "one side begins to speak over the other"), *_statuses(call, facts))
    return Tile(
        "Interruptions", str(len(by)), f"{by_user} by the user, {by_assistant} by the assistant", judged, reasons
    )


def _of_progress(call: ReportedCall) -> tuple[Verdict, str] | None:
    last = call.last_progress
    if last is None or not isinstance(last.result, Scored):
        return None
    if last.reached == last.subgoals:
        return Verdict.GOOD, "every subgoal reached"
    if call.closed is not None:
        return Verdict.BAD, "not every subgoal reached"
    return (Verdict.FAIR, "stalled") if any(each.is_fault for each in _stalls(call)) else None


def _eva_tiles(call: ReportedCall) -> Iterator[Tile]:
    whole = call.whole
    if whole is None:
        return

    def reasons(name: EvaMetricName, anchor: Anchor | None) -> tuple[tuple[str, str], ...]:
        return tuple(why(call, whole, lambda each: _part_text(each, name), anchor))

    timing = whole.eva.get("eva_turn_taking")
    if timing is not None and isinstance(timing.result, Scored):
        least, value = EXPERIENCE_THRESHOLDS["turn_taking"], timing.result.value
        judged = (Verdict.GOOD, f"EVA passes from {least}") if value >= least else (Verdict.BAD, f"below EVA's {least}")
        known = reasons("eva_turn_taking", timing.anchor)
        yield Tile("Turn taking", number(value), "from 0 to 1, best 1", judged, known)
    task = whole.eva.get("eva_task_completion")
    if task is not None and isinstance(task.result, Scored):
        is_done = bool(task.result.value)
        judged = (Verdict.GOOD, "as expected") if is_done else (Verdict.BAD, "not as expected")
        yield Tile("Task", "done" if is_done else "not done", None, judged, reasons("eva_task_completion", None))


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
    share = percent(score.result.value) if isinstance(score.result, Scored) else outcome("share", score.result)
    together = {
        "Assistant's share of the talk": share,
        "Assistant's first word after": outcome("first_word_ms", score.first_word_ms),
        "Both spoke for": outcome("overlap_ms", score.overlap_ms),
        f"Dead air, each from {seconds(LONG_SILENCE_MS)}": outcome("dead_air_ms", score.dead_air_ms),
    }
    return render(
        "speech.html",
        rows=_ROWS,
        sides=(score.user, score.assistant),
        together=[(name, call.shown(text)) for name, text in together.items()],
        most_turns=_MOST_TURNS,
        through_turn=whole.through_turn,
    )


# What the agent's models used and cost, and what its framework notes.


def told(call: ReportedCall) -> Markup | None:
    """The uses and the notes; None without any."""
    whole = call.whole
    if whole is None or not (whole.uses or whole.notes):
        return None
    uses = [
        (
            use.kind,
            call.shown(use.provider or "not known"),
            call.shown(use.model or "not known"),
            _used(use),
            _cost(use.cost),
        )
        for use in whole.uses or ()
    ]
    notes = [(note.turn, call.shown(note.in_words)) for note in whole.notes or ()]
    cost = _cost(whole.cost.value if isinstance(whole.cost, Scored) else None)
    return render("told.html", call=call, uses=uses, notes=notes, cost=cost)


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
    heard = call.heard
    if not heard.stretches:
        so_far = "this recording" if call.closed is not None else "this call so far"
        return render("note.html", text=f"Nothing in {so_far} says who spoke when, so there is no timeline.")
    pixels = int(min(MOST_PIXELS, max(_LEAST_PIXELS, call.length_ms / MS_PER_SECOND * _PIXELS_PER_SECOND)))
    scale = Scale(heard.start_ms, heard.end_ms)
    ticks_ms = time_ticks(call.length_ms, pixels // _TICK_PIXELS)
    places = [(heard.start_ms + tick_ms, clock(tick_ms)) for tick_ms in ticks_ms]
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
        kinds=list(_legend(call)),
        notes=list(_notes(call, pixels)),
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


def _turns(call: ReportedCall, scale: Scale, pixels: int) -> Iterator[Mapping[str, object]]:
    """Each turn: its number and everything that was heard in it."""
    by_turn: dict[int, list[Stretch]] = {}
    for stretch in call.heard.stretches:
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
    if facts := call.of(DeadAirFact):
        threshold = seconds(min(fact.threshold_ms for fact in facts))
        yield "dead-air", f"Dead air, over {threshold} ({counted(len(facts), 'time')})"
    if call.heard.tools:
        yield "tool", "Tool"


def _notes(call: ReportedCall, pixels: int) -> Iterator[str]:
    began = call.heard.end_ms if call.closed is None else inf  # what begins only now has no end yet
    if any(each.end_ms <= each.start_ms < began for each in call.heard.stretches):
        yield "Of some speech only the beginning is known: it is drawn as a line."
    if pixels == MOST_PIXELS:
        yield f"The call is long: one pixel is {seconds(call.length_ms / pixels)}, and nearer events are drawn as one."
    turns = {stretch.turn for stretch in call.heard.stretches}
    most = max(len(turns), len(call.overlaps), len(call.dead_air), len(call.heard.tools))
    if most > MOST_DRAWN:
        yield f"Of turns, overlaps, silences and tools the first {MOST_DRAWN:,} of each kind are drawn."
    if len(turns) > MOST_TURN_LINKS:
        yield f"Only the first {MOST_TURN_LINKS} of {len(turns)} turns lead to their words."


# The wait of the user in each turn, as bars: voice-to-voice latency, its anchor, and its known stages; and a table of all
# stages, with the source and the values of other sources.

_MOST_TICKS: Final = 4


def latency(call: ReportedCall) -> Markup:
    """A row for each turn, on one scale."""
    waits = call.latencies
    if not waits:
        so_far = "" if call.closed is not None else " so far"
        return render("note.html", text=f"No turn of this call has an answer whose wait could be measured{so_far}.")
    bars = {row.turn or 0: stacked(row.stages, call.waits_ms.get(row.turn or 0)) for row in call.rows}
    parts = [part for bar in bars.values() for part in bar]
    longest_ms = max([*call.waits_ms.values(), *(part.end_ms for part in parts)], default=0.0)
    ticks = round_ticks(longest_ms / MS_PER_SECOND, _MOST_TICKS)
    scale = Scale(0, ticks[-1])
    anchors = {wait.anchor for wait in waits if wait.anchor is not None}
    states = {call.status(wait.record) for wait in waits}
    drawn = {part.family for part in parts}
    measured = [record for record in call.rows if record.stages]
    known = {each.stage for record in measured for each in record.stages}
    return render(
        "waits.html",
        call=call,
        kinds=[
            ("wait", "User's last sound to assistant's first"),
            *((f"stage-{family}", name) for family, name in FAMILIES.items() if family in drawn),
        ],
        early=sum(isinstance(each.result, Scored) and each.result.value < 0 for each in waits),
        anchors=list(anchors),
        status=STATUS_WORDS[min(states)] if len(states) == 1 else None,
        said={wait.turn: _so_far(call, wait.record, _wait_text).removeprefix("; ") for wait in waits[:MOST_ROWS]},
        ticks=ticks,
        scale=scale,
        waits=waits[:MOST_ROWS],
        bars=bars,
        fillers={row.turn: row.after_tools_ms for row in call.rows},
        stages=[stage for stage in Stage if stage in known],
        stage_rows=[(record.turn, {each.stage: each for each in record.stages}) for record in measured[:MOST_ROWS]],
    )


# The redacted transcript of a call, turn by turn: words, tools with arguments and results, interruptions.

MOST_ITEMS: Final = 100
"""Bound of the shown entries of one turn: a turn has some five; more than this is a loop of the agent."""
_INTERRUPTIONS: Final = {
    Speaker.USER: ("interrupted by the user", "User interrupted"),
    Speaker.ASSISTANT: ("spoke over the user", "Assistant spoke over the user"),
}
"""By who interrupted: what is said at the answer, and where no words of it are known, at the turn."""
_MARKS: Final = {
    ASSISTANT_INTERRUPTS: "spoke over the user",
    USER_INTERRUPTS: "interrupted the assistant",
    CUT_OFF_BY_USER: "likely cut off by the user",
    CUT_OFF_BY_ASSISTANT: "likely cut off by the assistant",
    CUT_ITSELF_OFF: "likely cut itself off",
    LIKELY_INTERRUPTION: "likely interrupted",
}
"""EVA's marks in texts, and what is said beside the words instead."""
_GUESSES: Final = frozenset({_MARKS[CUT_OFF_BY_USER], _MARKS[LIKELY_INTERRUPTION]})
"""Marks that are left out of an answer that the user did interrupt: they only guess at it."""


class Entry(NamedTuple):
    """One thing that was said or done in a turn.

    Attributes:
        item: The words with their speaker, or the use of a tool.
        words: The words, without EVA's marks; empty for a tool.
        tags: What is to be said of them.
        label: The name of `otherwise`.
        otherwise: The same words as the other side has them, if they differ.
    """

    item: Said | PairedUse
    words: str
    tags: tuple[str, ...]
    label: str
    otherwise: str | None

    @property
    def is_said(self) -> bool:
        """Whether it was said."""
        return isinstance(self.item, Said)


def transcript(call: ReportedCall) -> Markup:
    """The turns in their order."""
    turns = call.heard.turns
    if not turns:
        text = "This recording has no words." if call.closed is not None else "There are no words to show so far."
        return render("note.html", text=text)
    starts_ms: dict[int, float] = {}
    for stretch in call.heard.stretches:
        starts_ms.setdefault(stretch.turn, stretch.start_ms)
    by_turn = {heard.turn: heard for heard in turns[:MOST_TURNS]}
    at_turns: dict[int, list[str]] = {}
    at_items: dict[tuple[int, int], list[str]] = {}
    for fact in call.of(InterruptionFact):
        at_answer, at_turn = _INTERRUPTIONS[fact.by]
        place = _answer_of(fact, by_turn)
        if place is None:
            at_turns.setdefault(fact.turn or 0, []).append(at_turn)
        else:
            at_items.setdefault(place, []).append(at_answer)
    rows = {row.turn: row for row in call.rows}
    shown = [
        {
            "number": number,
            "start_ms": starts_ms.get(number),
            "wait_ms": call.waits_ms.get(number),
            "status": _turn_status(call, rows.get(number), is_last=heard is turns[-1]),
            "tags": [*at_turns.get(number, ()), *_unanswered(rows.get(number))],
            "entries": _entries(heard, at_items),
            "left_out": len(heard.items) - MOST_ITEMS,
        }
        for number, heard in by_turn.items()
    ]
    return render("transcript.html", call=call, turns=shown, objective_ms=SLOW_MS)


def _answer_of(fact: InterruptionFact, by_turn: Mapping[int, TurnHeard]) -> tuple[int, int] | None:
    """The answer that was interrupted, or that came too early: its turn and place; None if its words are not shown.

    Where the user begins to speak over an answer, that answer is the one before their words: in the same turn or the one before.
    """
    turn = fact.turn or 0
    said = [
        (place, item.speaker)
        for place, item in enumerate(by_turn[turn].items[:MOST_ITEMS] if turn in by_turn else ())
        if isinstance(item, Said)
    ]
    answers = [place for place, speaker in said if speaker is Speaker.ASSISTANT]
    if fact.by is Speaker.ASSISTANT:
        return (turn, answers[0]) if answers else None
    last_word = max((place for place, speaker in said if speaker is Speaker.USER), default=-1)
    before = [place for place in answers if place < last_word]
    if before:
        return turn, before[-1]
    earlier = by_turn[turn - 1].items[:MOST_ITEMS] if turn - 1 in by_turn else ()
    places = [
        place for place, item in enumerate(earlier) if isinstance(item, Said) and item.speaker is Speaker.ASSISTANT
    ]
    return (turn - 1, places[-1]) if places else None


def _turn_status(call: ReportedCall, row: TurnValues | None, *, is_last: bool) -> str | None:
    """How far the turn can still change; None once the call is closed."""
    if call.closed is not None:
        return None
    if row is not None:
        return call.status(row).value
    return TurnStatus.OPEN.value if is_last and not call.is_over else None


def _unanswered(row: TurnValues | None) -> Iterator[str]:
    if row is not None and row.outcome in _ENDINGS:
        yield f"no answer: {_ENDINGS[row.outcome]}"


def _entries(heard: TurnHeard, at_items: Mapping[tuple[int, int], Sequence[str]]) -> Iterator[Entry]:
    """What was said and done, and after the last words of a side how they were otherwise, if known."""
    shown = heard.items[:MOST_ITEMS]
    last = {item.speaker: place for place, item in enumerate(shown) if isinstance(item, Said)}
    for place, item in enumerate(shown):
        label, otherwise = "", None
        if place == last.get(Speaker.USER):
            label, otherwise = "The user meant to say", heard.meant_by_user
        elif place == last.get(Speaker.ASSISTANT):
            label, otherwise = "The user heard", heard.heard_by_user
        otherwise = None if otherwise is None else unmarked(otherwise)
        tags = dict.fromkeys(at_items.get((heard.turn, place), ()))
        words = item.text if isinstance(item, Said) else ""
        for mark, text in _MARKS.items():
            if mark in words:
                words = words.replace(mark, "").strip()
                if not (text in _GUESSES and _INTERRUPTIONS[Speaker.USER][0] in tags):
                    tags[text] = None
        yield Entry(item, words, tuple(tags), label, otherwise)


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
    last = call.last_progress
    if last is None:
        return "no goals" if call.goals is None else "not judged"
    return percent(last.result.value) if isinstance(last.result, Scored) else "unscored"


def end_in_words(call: ReportedCall) -> str:
    """How the call ended."""
    closed = call.closed
    if closed is None:
        return "over, waiting for verdicts" if call.is_over else "not yet"
    if closed.ended_reason:
        return call.shown(in_words(closed.ended_reason), _REASON_CHARS)
    return "no reason given" if closed.reason is CloseReason.ENDED else in_words(closed.reason)


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
    labels = call.labels
    facts = [
        ("Agent", labels.agent),
        ("Tenant", labels.tenant),
        ("Environment", labels.environment),
        ("Version", next((record.version for record in call.of(CallStartedFact)), None) or "unknown"),
        ("Pipeline", in_words(labels.pipeline_type)),
        ("Began", _began(call.heard.start_ms)),
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
        "dead air": call.dead_air_times is not None,
        "tool that failed": True,
    }
    said = "Nothing: " + ", ".join(f"no {fault}" for fault in known if known[fault]) + "."
    unknown = [fault for fault in known if not known[fault]]
    return f"{said} Not known: {', '.join(unknown)}." if unknown else said
