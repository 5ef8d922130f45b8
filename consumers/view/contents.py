"""What is shown of a call, as plain data: the page, the report and `call` print it, each in its
way. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

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
from consumers.view.calls import ReportedCall, ScorePart
from consumers.view.running import Level, end_in_words, wait_level
from consumers.view.words import (
    anchor_in_words,
    check_in_words,
    clock,
    counted,
    day_and_time,
    duration,
    in_words,
    made,
    not_judged,
    note_in_words,
    number,
    outcome,
    percent,
    seconds,
    seconds_if_known,
)
from schemas import rows
from schemas.closed_sets import (
    FAILED_USES,
    Anchor,
    PipelineType,
    Speaker,
    ToolOutcome,
    UnjudgedReason,
)
from schemas.goals.goal_set import Subgoal as GoalSubgoal
from schemas.metrics.exporter import USED_AMOUNTS
from schemas.rows import (
    ExpectedTool,
    NotApplicable,
    ServiceUse,
    SubgoalResult,
    TurnRow,
    Unscored,
    Value,
)
from schemas.scores.trouble import (
    MANY_INTERRUPTIONS,
    SLOW_MS,
    VERY_SLOW_MS,
    Trouble,
    TroubleKind,
    bad_end,
    troubles_of,
    worst_wait_ms,
)
from schemas.units import MINUTE_MS, MS_PER_SECOND

_FIRST_MS: Final = 946_684_800_000
"""The year 2000: no call is older."""


def progress_value(call: ReportedCall) -> str:
    """Progress at the end, or so far."""
    found = call.progress
    if found is None:
        return "no goals" if call.goals is None else "not judged"
    value = rows.number(found.result)
    return "unscored" if value is None else percent(value)


def facts_of(call: ReportedCall) -> list[tuple[str, str]]:
    """What a person asks first: whose call it is, when it began, and how it ended."""
    labels = call.row.labels
    facts = [
        ("Agent", labels.agent),
        ("Tenant", labels.tenant),
        ("Environment", labels.environment),
        ("Version", labels.version or "unknown"),
        # EVA's default says nothing: most senders never tell
        (
            "Pipeline",
            "unknown"
            if labels.pipeline_type == PipelineType.CASCADE
            else in_words(labels.pipeline_type),
        ),
        ("Began", _began(call)),
        ("Ended", end_in_words(call.row)),
    ]
    return [(name, value) for name, value in facts if value != "unknown" or name == "Agent"]


def _began(call: ReportedCall) -> str:
    """A recording without a time of day counts from the beginning of the epoch."""
    if call.start_ms < _FIRST_MS:
        return "not known"
    ahead_ms = call.start_ms - call.row.first_known_ms
    doubt = f", by a clock that is {clock(ahead_ms)} ahead" if ahead_ms >= MINUTE_MS else ""
    return f"{day_and_time(call.start_ms)}{doubt}"


# How a value is known, and how far it can still change. What it was before is at its moment on the
# page.

STATUS_WORDS: Final = {
    "open": "open: the call is still there",
    "provisional": "provisional: late events can change it",
    "settled": "settled: every stream has passed it",
    "final": "final: the call is over",
}
_OBJECTIVE: Final = (
    f"95 % of answers within {seconds(SLOW_MS)}; of usual agents, 95 % within "
    f"{seconds(VERY_SLOW_MS)}"
)


def reasons_of(
    call: ReportedCall, turn: int | None, anchor: Anchor | None = None
) -> Iterator[tuple[str, str]]:
    """The reasons for a value of a turn, or of the call, as pairs of words."""
    if anchor is not None:
        yield "End of the caller's speech", anchor_in_words(anchor)
    if turn is not None:
        yield from _statuses(call, [turn])
    else:
        yield "Status", STATUS_WORDS["final" if call.is_closed else "provisional"]


def _statuses(call: ReportedCall, turns: Iterable[int]) -> Iterator[tuple[str, str]]:
    """How many of several turns can still change."""
    wanted = set(turns)
    known = Counter(call.status(each) for each in call.turns if each.turn in wanted)
    if known:
        counts = ", ".join(f"{known[each]} {each}" for each in STATUS_WORDS if each in known)
        yield "Status", counts if len(known) > 1 else STATUS_WORDS[next(iter(known))]


# The parts of a call to look at first: long waits, missing answers, overlapping speech, dead air,
# failed tools, the task, stalls.

MOST_MOMENTS: Final = 12
"""Of one kind that are listed."""
MOST_QUOTED: Final = 160
"""Characters of words that stand beside a moment."""

_NO_FAULTS: Final = frozenset({"Caller spoke over the agent", "Waits not known"})
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
    """A turn with its remark; None is the call as a whole. A greater `weight` comes first. A stall
    that the call came out of is no fault. What a list has beside the remark is `more`.
    """

    turn: int | None
    text: str
    weight: float = 0.0
    is_fault: bool = True
    more: str = ""


class Standout(NamedTuple):
    """One kind of standout with its moments: the greatest weight first, otherwise in the order of
    the call.

    Attributes:
        heading: The kind.
        moments: The turns, each with its remark.
        is_fault: Whether the agent did something wrong; otherwise it is worth a look and no more.
        said: It as a part of a sentence, with how often it was.
    """

    heading: str
    moments: tuple[Moment, ...]
    is_fault: bool
    said: str = ""


MOST_DRAWN: Final = 4
"""Calls whose standouts are kept while they are drawn: several parts of a page need them, and two
threads draw.
"""


@lru_cache(maxsize=MOST_DRAWN)
def standouts(call: ReportedCall) -> tuple[Standout, ...]:
    """Every kind with at least one moment; the kinds that disturb the caller most come first."""
    waits_ms = call.waits_ms
    silences = [each for each in call.silences if waits_ms.get(each.turn, 0) <= SLOW_MS]
    other = "Other dead air" if len(silences) < len(call.silences) else "Dead air"
    waits_in = None if call.is_over or call.row.waiting is None else call.row.waiting.turn
    ending = _bad_end(call.row)
    last = call.row.turn if call.row.waiting is None else call.row.waiting.turn
    waited = None if ending is None or call.row.waiting is None else last
    # a wait in vain has a sentence of its own, and may be longer
    longest, answers = "longest", counted(len(waits_ms), "wait")
    if call.row.waiting is not None:
        longest, answers = "slowest", counted(len(waits_ms), "answer")
    kinds: dict[str, tuple[Iterable[Moment], str]] = {
        "Ended badly": (
            [] if ending is None else [Moment(last, ending.partition(", turn")[0])],
            ending or "",
        ),
        "Authentication failed": (
            _task(call, "eva_authentication_success"),
            "authentication failed",
        ),
        "Task not completed": (_task(call, "eva_task_completion"), "the task was not completed"),
        "Turns without an answer": (
            [
                Moment(row.turn, _ENDINGS[row.outcome])
                for row in call.turns
                # "Ended badly" names that turn already
                if row.outcome in _ENDINGS and (waited is None or row.turn != waited)
            ],
            "{turns} without an answer",
        ),
        "Failed tools": (_tools(call), "tool {head} in turn {turn}{tail}{uses}"),
        "Goals missed": (_missed(call), "{text}"),
        "Tools that do not fit": (_unfit(call), "{text}"),
        f"Waits over {seconds(SLOW_MS)}, the objective": (
            [
                Moment(turn, _wait_with_tool(call, turn, wait_ms), wait_ms)
                for turn, wait_ms in waits_ms.items()
                if wait_ms > SLOW_MS
            ],
            f"{{count}} of {answers} over {seconds(SLOW_MS)}, the {longest} "
            "{text} in turn {turn}",
        ),
        "Agent spoke over the caller": (
            _interruptions(call, Speaker.ASSISTANT),
            "the agent spoke over the caller in {turns}",
        ),
        "Caller spoke over the agent": (_interruptions(call, Speaker.USER), ""),
        # Without long waits for an answer: such as at the end of a call.
        other: (
            [
                Moment(
                    each.turn,
                    # the caller may have spoken again since an earlier one of the turn
                    "still going on"
                    if each.turn == waits_in and each is silences[-1]
                    else seconds(each.length_ms),
                    each.length_ms,
                )
                for each in silences
            ],
            f"{other.lower()} in {{turns}}, the longest {{text}} in turn {{turn}}",
        ),
        "Errors of the agent": (
            [] if (errors := errors_in_words(call)) is None else [Moment(None, errors)],
            "{text}",
        ),
        "No goal reached after": (_stalls(call), "no further goal after turn {turn}"),
        "Waits not known": (
            [
                Moment(wait.turn, in_words(wait.value.reason))
                for wait in call.waits
                if isinstance(wait.value, Unscored)
            ],
            "",
        ),
    }
    found = []
    for heading, (moments, said) in kinds.items():
        in_order = sorted(moments, key=lambda each: -1 if each.turn is None else each.turn)
        ordered = sorted(in_order, key=attrgetter("weight"), reverse=True)
        if ordered:
            is_fault = heading not in _NO_FAULTS and any(each.is_fault for each in ordered)
            first = next((each for each in ordered if each.is_fault), ordered[0])
            head, _, tail = first.text.partition(", ")
            sentence = said.format(
                text=first.text,
                head=head,
                tail=f" and {tail}" * bool(tail),
                turn=first.turn,
                count=len(ordered),
                turns=counted(len({each.turn for each in ordered}), "turn"),
                uses=f"; {counted(len(ordered) - 1, 'other tool call')} failed too"
                * (len(ordered) > 1),
            )
            found.append(Standout(heading, tuple(ordered), is_fault, sentence))
    return tuple(found)


def _bad_end(row: rows.CallRow) -> str | None:
    """How a call ended badly, with how long its caller waited in vain."""
    ending, waited_ms = bad_end(row), row.in_vain_ms
    if ending is None or not waited_ms or ending.startswith("failed"):
        return ending
    how, comma, turn = ending.partition(", ")
    return f"{how} after {seconds(waited_ms)}{comma}{turn}"


def _wait_with_tool(call: ReportedCall, turn: int, wait_ms: float) -> str:
    """A wait, and the tool that took most of it."""
    row = call.row_of(turn)
    uses = [(use.duration_ms or 0.0, use.tool) for use in (row.tools if row else ())]
    longest_ms, tool = max((use for use in uses if use[0] <= wait_ms), default=(0.0, ""))
    of_it = f" ({call.shown(tool)} {seconds(longest_ms)})" if longest_ms > wait_ms / 2 else ""
    said = seconds(wait_ms)
    if said == seconds(SLOW_MS):  # two digits do not show that it is longer than the objective
        said = f"{wait_ms / MS_PER_SECOND:.3f} s"
    return said + of_it


MOST_SAID: Final = 3
"""Kinds of faults that the verdict names; the others stand below it."""


def verdict(call: ReportedCall, more: str = ", listed below") -> str:
    """What is wrong with the call, where and how often, and whether it is going on: a sentence or
    two. Where faults are left out, `more` says where they are.
    """
    faults = [each for each in standouts(call) if each.is_fault]
    if not faults:
        said = nothing_stands_out(call)
        said = said if call.is_over else f"So far {said[:1].lower()}{said[1:]}"
        return f"{said} {_quiet(call)}".strip()
    said = "; ".join(each.said for each in faults[:MOST_SAID])
    if len(faults) > MOST_SAID:
        said += f"; and {counted(len(faults) - MOST_SAID, 'more fault')}{more}"
    said, going_on = f"{said[:1].upper()}{said[1:]}.", _going_on(call, faults)
    if not call.is_over and (_quiet(call) or call.row.waiting is not None):
        return f"{going_on} {said}"  # what the caller suffers now comes first
    return " ".join(filter(None, (said, going_on, _all_reached(call))))


def _all_reached(call: ReportedCall) -> str:
    """Says that a call with faults reached what it was for; empty otherwise."""
    found = call.progress
    if found is None or found.missing or found.reached < found.subgoals:
        return ""
    return "All goals were reached." if found.subgoals > 1 else "The goal was reached."


def turn_to_look_at(call: ReportedCall) -> int | None:
    """The turn to look at first: of a call that runs the one that is open, unless it is in trouble
    for what was before; of that, and of one that is over, a turn with a fault. Without any fault
    that with the longest wait. None if there is none.
    """
    row = call.row
    if not call.is_over and (row.waiting is not None or not troubles_of(row, row.known_ms)):
        return max((each.turn for each in call.turns), default=None)
    faults = [fault for fault in standouts(call) if fault.is_fault]
    turns = [
        each.turn
        for fault in faults
        for each in fault.moments
        if each.turn is not None and each.is_fault
    ]
    # a goal that was missed has no turn, and the slowest one says nothing of it
    otherwise = None if faults else call.slowest_turn
    return turns[0] if turns else otherwise


class NoAnswer(NamedTuple):
    """A turn without an answer.

    Attributes:
        said: That, and how long the caller waited, in words.
        since_ms: From when on the caller waits in a call that runs, by the broker's clock; None
            where he waits no more.
        waits_ms: How long that is by the newest row, or was until the call went on or ended; 0
            where nobody knows.
    """

    said: str
    since_ms: int | None = None
    waits_ms: float = 0.0


def spoke_again_after(call: ReportedCall, row: TurnRow) -> Iterator[float]:
    """The lengths in ms of the dead air of a turn after which its caller spoke once more."""
    last_ms = max((sound.start_ms for sound in row.user_sounds), default=0)
    silences = (each for each in call.silences if each.turn == row.turn)
    yield from (each.length_ms for each in silences if each.start_ms < last_ms)


def no_answer(call: ReportedCall, row: TurnRow) -> NoAnswer | None:
    """Whether a turn has no answer, so far or for good; None where it has one, or nobody knows."""
    waiting = None if call.is_over else call.row.waiting
    if waiting is not None and waiting.turn == row.turn:
        waits_ms = max(0, call.row.known_ms - waiting.since_ms)
        return NoAnswer("No answer yet", waiting.since_ms, waits_ms)
    if row.outcome not in _ENDINGS:
        return None
    ends_ms = [sound.end_ms for sound in row.user_sounds if sound.end_ms is not None]
    since_ms = min((each.since_ms for each in row.dead_air), default=max(ends_ms, default=None))
    if since_ms is None:
        return NoAnswer(f"No answer: {_ENDINGS[row.outcome]}")
    later = (each.start_ms for each in call.stretches if each.turn > row.turn)
    until_ms = next(later, call.end_ms)
    in_vain = call.row.in_vain_ms
    if in_vain is not None and call.row.waiting is not None and call.row.waiting.turn == row.turn:
        until_ms = since_ms + in_vain  # as lists of calls have it
    # who asks again does not wait meanwhile
    asks_ms = sum(
        max(0, each.end_ms - max(since_ms, each.start_ms))
        for each in row.user_sounds
        if each.end_ms is not None
    )
    waited = seconds(max(0.0, until_ms - since_ms - asks_ms))
    said = f"No answer: the caller waited {waited}"
    if asks_ms:
        passed = seconds(max(0.0, until_ms - since_ms))
        said = f"No answer in {passed}: the caller waited {waited} of it in silence"
    return NoAnswer(f"{said}, then {_ENDINGS[row.outcome]}", None, max(0.0, until_ms - since_ms))


def waits_now(call: ReportedCall) -> NoAnswer | None:
    """The turn in which the caller waits for an answer now; None where he does not."""
    waiting = call.row.waiting
    row = None if waiting is None or call.is_over else call.row_of(waiting.turn)
    return None if row is None else no_answer(call, row)


def _quiet(call: ReportedCall) -> str:
    """Says that no events of a call that goes on come any more; empty otherwise."""
    quiet_ms = call.quiet_ms
    return f"No event of it has come for {duration(quiet_ms)}: it may be over." * bool(quiet_ms)


def _going_on(call: ReportedCall, faults: Iterable[Standout]) -> str:
    """Whether the faults go on, or how far they went; empty where nobody can say."""
    if not call.is_over:
        troubles, quiet = troubles_of(call.row, call.row.known_ms), _quiet(call)
        if quiet and not any(each.kind is TroubleKind.MUTE for each in troubles):
            return quiet
        now = "The trouble is over."
        if troubles:
            now = f"Now: {call.shown(_without_time(troubles[0]))}."
        return f"{now} {quiet}".strip()
    turns = [each.turn for fault in faults for each in fault.moments if each.turn is not None]
    last, end = max(turns, default=None), call.row.turn
    return f"The last fault was in turn {last} of {end}." if last and end and last < end else ""


def _without_time(trouble: Trouble) -> str:
    """The trouble without how long the caller waits: that is counted where the turn is shown."""
    is_a_wait = trouble.kind in {TroubleKind.MUTE, TroubleKind.SILENT}
    return trouble.reason.partition(" for ")[0] if is_a_wait else trouble.reason


def summary(call: ReportedCall) -> str:
    """The call in a few lines, for a team's chat."""
    labels = call.row.labels
    whose = [
        each
        for each in (f"{labels.agent} {labels.version or ''}".strip(), labels.tenant)
        if each != "unknown"
    ]
    length = (
        f"{duration(call.length_ms)} long" if call.is_over else f"{duration(call.length_ms)} so far"
    )
    return (
        f"{', '.join(whose)}: {verdict(call, '')}\nCall {call.conversation_id}, "
        f"{_began(call)}, {length}"
    )


def _task(call: ReportedCall, name: str) -> Iterator[Moment]:
    score = call.row.eva.get(name)
    if score is not None and rows.number(score.result) == 0:
        yield Moment(None, _TASKS[name])


def errors_in_words(call: ReportedCall) -> str | None:
    """How many errors the agent reported, and the newest; None without one."""
    if (errors := call.row.errors) is None:
        return None
    return (
        f"{counted(errors.number, 'error')}, the "
        f"newest{f' of its {in_words(errors.component)}' if errors.component else ''} at "
        f"{clock(call.offset_ms(errors.last_ms))}"
    )


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
                if _worked_later(call, row, use):
                    how += ", worked at a later try"
                yield Moment(row.turn, f"{call.shown(use.tool)} {how}", more=_said_after(call, row))


def _worked_later(call: ReportedCall, failed_in: TurnRow, failed: rows.ToolUse) -> bool:
    """Whether the same tool had success later in the call."""
    return any(
        use.tool == failed.tool and use.outcome is ToolOutcome.SUCCESS
        for row in call.turns
        if row.turn >= failed_in.turn
        for use in row.tools
        if row.turn > failed_in.turn or use.index > failed.index
    )


def _unfit(call: ReportedCall) -> Iterator[Moment]:
    """The uses of tools that the agent does not have, or with arguments that do not fit their
    schema; as far as `call_started` told the tools.
    """
    validity = call.row.eva.get("eva_tool_schema_validity")
    if validity is None:
        return
    parts = validity.sub_metrics
    total = parts.get("num_tool_calls") or 0
    for name, wrong in (
        ("unfit_arguments_rate", "with arguments that do not fit the schema"),
        ("unknown_tool_rate", "of a tool that the agent does not have"),
    ):
        if number_of := round((parts.get(name) or 0) * total):
            yield Moment(None, f"{number_of} of {counted(round(total), 'tool use')} {wrong}")


def _said_after(call: ReportedCall, row: TurnRow) -> str:
    """Quotes the agent from a turn in which a tool failed: it may have said that all
    was done. Empty where words are not known.
    """
    words = call.words.get(row.turn)
    text = "" if words is None else unmarked(words.assistant).strip()
    if len(text) > MOST_QUOTED:
        half = MOST_QUOTED // 2
        begin, end = text[:half].rpartition(" ")[0], text[-half:].partition(" ")[2]
        text = f"{begin} \u2026 {end}"
    return f"the agent said: \u201c{text}\u201d" if text else ""


def _stalls(call: ReportedCall) -> Iterator[Moment]:
    goals = call.row.goals
    if goals is None:
        return
    reached = sorted(each.reached_turn for each in goals.subgoals if each.reached_turn is not None)
    for stall in goals.stalls:
        later = next((turn for turn in reached if turn > stall.since_turn), None)
        end = "to the end of the call" if call.is_closed else "until now"
        text = end if later is None else f"until turn {later}"
        # no goal can be reached while no events come
        is_fault = later is None and not call.quiet_ms
        yield Moment(stall.since_turn, text, is_fault=is_fault)


def _missed(call: ReportedCall) -> Iterator[Moment]:
    """The goals that a call which is over has not reached."""
    found = call.progress
    if not call.is_over or found is None:
        return
    missed = [each.id for each, state, _, _ in subgoals_of(call) if state == "Not reached"]
    if missed:
        more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
        unknown = f", {found.missing} not judged" if found.missing else ""
        yield Moment(
            None,
            f"{found.reached} of {counted(found.subgoals, 'goal')} reached{unknown}, missed "
            f"{call.shown(missed[0])}{more}",
        )


def nothing_stands_out(call: ReportedCall) -> str:
    """The sentence for a call without faults; it names the kinds that could be measured. A caller
    who interrupts is no fault, and is named below.
    """
    known = {
        f"wait over {seconds(SLOW_MS)}": bool(call.waits_ms),
        "interruption by the agent": True,
        "dead air": call.dead_airs is not None,
        "tool that failed": True,
    }
    said = (
        "Nothing went wrong: " + ", ".join(f"no {fault}" for fault in known if known[fault]) + "."
    )
    unknown = [fault for fault in known if not known[fault]]
    if call.is_over and call.progress is not None and call.progress.missing:
        unknown.append(f"{call.progress.missing} of {counted(call.progress.subgoals, 'goal')}")
    return f"{said} Not known: {', '.join(unknown)}." if unknown else said


# The figures of a call, as tiles: each says whether it is good by the objectives of
# deploy/slo.yaml, in words and with a mark.


class FigureGrade(StrEnum):
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
        judged: How good it is, with the objective in words; None where there is no objective, or
            the figure is not known.
        why: How it is known, how far it can still change, and what it was.
    """

    name: str
    value: str
    more: str | None = None
    judged: tuple[FigureGrade, str] | None = None
    why: tuple[tuple[str, str], ...] = ()


def tiles(call: ReportedCall) -> Iterator[Tile]:
    """The figures in their order; those that this call cannot have are left out."""
    row, waits_ms = call.row, call.waits_ms
    yield Tile(
        "Length",
        duration(call.length_ms),
        counted(row.turns, "turn") if call.is_closed else "so far",
        why=(("What", "from the first event to the last"), ("Ended", end_in_words(call.row))),
    )
    in_time = sum(wait_ms <= SLOW_MS for wait_ms in waits_ms.values())
    anchors = Counter(
        wait.anchor for wait in call.waits if wait.turn in waits_ms and wait.anchor is not None
    )
    known = [
        f"{anchor_in_words(anchor)} ({counted(count, 'turn')})" for anchor, count in anchors.items()
    ]
    yield Tile(
        "Median wait",
        seconds_if_known(row.p50_ms),
        f"{in_time} of {counted(len(waits_ms), 'turn')} within {seconds(SLOW_MS)}"
        if waits_ms
        else "of 0 turns",
        None if row.p50_ms is None else _OF_A_WAIT[wait_level(row.p50_ms)],
        (
            (
                "What",
                "from the caller's last sound to the agent's first; of two in the middle the "
                "shorter one",
            ),
            *((("End of the caller's speech", ", ".join(known)),) if known else ()),
            *_statuses(call, waits_ms),
            ("Objective", _OBJECTIVE),
        ),
    )
    longest = next((wait for wait in call.waits if wait.turn == call.slowest_turn), None)
    in_vain = row.in_vain_ms
    if in_vain is not None and row.waiting is not None and in_vain == worst_wait_ms(row):
        yield Tile(
            "Longest wait",
            seconds(in_vain),
            f"turn {row.waiting.turn}, without an answer",
            _OF_A_WAIT[wait_level(in_vain)],
        )
    elif longest is None:
        yield Tile("Longest wait", seconds_if_known(row.longest_wait_ms))
    else:
        longest_ms = waits_ms[longest.turn]
        reasons = (*reasons_of(call, longest.turn, longest.anchor), ("Objective", _OBJECTIVE))
        yield Tile(
            "Longest wait",
            seconds(longest_ms),
            f"turn {longest.turn}",
            _OF_A_WAIT[wait_level(longest_ms)],
            reasons,
        )
    yield _dead_air_tile(call)
    yield _interruptions_tile(call)
    failed = row.failed_tool_calls
    judged = (
        (FigureGrade.BAD, f"{failed} without success")
        if failed
        else (FigureGrade.GOOD, "all with success")
    )
    ends = Counter(
        use.outcome for each in call.turns for use in each.tools if use.outcome is not None
    )
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
    reasons = [] if turn is None else [("Known", f"up to turn {turn}"), *reasons_of(call, turn)]
    if pending:
        reasons.append(
            (
                "Pending",
                f"a judge is asked about turn {', '.join(map(str, pending[:MOST_MOMENTS]))}",
            )
        )
        reached = f"{reached}, a verdict is pending" if reached else "a verdict is pending"
    return Tile("Subgoals", progress_value(call), reached, _of_progress(call), tuple(reasons))


_OF_A_WAIT: Final[Mapping[Level, tuple[FigureGrade, str]]] = {
    "": (FigureGrade.GOOD, f"within {seconds(SLOW_MS)}"),
    "bad": (FigureGrade.FAIR, f"over {seconds(SLOW_MS)}"),
    "urgent": (FigureGrade.BAD, f"over {seconds(VERY_SLOW_MS)}"),
}


def _dead_air_tile(call: ReportedCall) -> Tile:
    times = call.dead_airs
    if times is None:
        return Tile("Dead air", "not known")
    threshold = threshold_of(call)
    judged = (
        (FigureGrade.BAD, f"silent for over {threshold}")
        if times
        else (FigureGrade.GOOD, f"never over {threshold}")
    )
    what = f"nobody speaks and no tool runs for over {threshold} after the caller"
    reasons = (("What", what), ("Status", "final: each is decided when it ends"))
    together = sum(each.length_ms for each in call.silences)
    return Tile(
        "Dead air", counted(times, "time"), seconds(together) if times else None, judged, reasons
    )


def threshold_of(call: ReportedCall) -> str:
    """From when on a silence of this call is dead air."""
    thresholds_ms = [silence.threshold_ms for row in call.turns for silence in row.dead_air]
    return seconds(min(thresholds_ms, default=LONG_SILENCE_MS))


def _interruptions_tile(call: ReportedCall) -> Tile:
    by_user, by_assistant = call.row.user_interruptions, call.row.assistant_interruptions
    judged = None
    if not by_user and not by_assistant:
        judged = FigureGrade.GOOD, "none"
    elif by_assistant >= MANY_INTERRUPTIONS:
        judged = FigureGrade.BAD, "the agent again and again"
    elif by_assistant:
        judged = FigureGrade.FAIR, "the agent spoke over the caller"
    turns = call.row.interrupted_turns
    reasons = (("What", "one side begins to speak over the other"), *_statuses(call, turns))
    more = f"{by_user} by the caller, {by_assistant} by the agent"
    return Tile("Interruptions", str(by_user + by_assistant), more, judged, reasons)


def _of_progress(call: ReportedCall) -> tuple[FigureGrade, str] | None:
    found = call.progress
    if found is None or rows.number(found.result) is None:
        return None
    if found.reached == found.subgoals:
        return FigureGrade.GOOD, "every goal reached"
    if call.is_closed:
        return FigureGrade.BAD, "not every goal reached"
    return (FigureGrade.FAIR, "stalled") if any(each.is_fault for each in _stalls(call)) else None


def _eva_tiles(call: ReportedCall) -> Iterator[Tile]:
    timing = call.row.eva.get("eva_turn_taking")
    value = None if timing is None else rows.number(timing.result)
    if timing is not None and value is not None:
        least = EXPERIENCE_THRESHOLDS["turn_taking"]
        judged = (
            (FigureGrade.GOOD, f"EVA passes from {least}")
            if value >= least
            else (FigureGrade.BAD, f"below EVA's {least}")
        )
        yield Tile(
            "Turn taking",
            number(value),
            "from 0 to 1, best 1",
            judged,
            tuple(reasons_of(call, None, timing.anchor)),
        )
    task = call.row.eva.get("eva_task_completion")
    value = None if task is None else rows.number(task.result)
    if value is not None:
        judged = (
            (FigureGrade.GOOD, "as expected") if value else (FigureGrade.BAD, "not as expected")
        )
        yield Tile(
            "Task", "done" if value else "not done", None, judged, tuple(reasons_of(call, None))
        )


# Values.

DETAIL_CHARS: Final = 400
"""Characters of a detail of a score."""


def value_in_words(call: ReportedCall, name: str, value: Value) -> str:
    """The value; the reason why there is none may quote the call."""
    text = outcome(name, value)
    return call.shown(text, DETAIL_CHARS) if isinstance(value, NotApplicable) else text


def part_in_words(call: ReportedCall, part: ScorePart) -> str | None:
    """The value of a score, and what of it was not judged; None for a score of several numbers."""
    if part.value is None:
        return None
    text = value_in_words(call, part.name, part.value)
    if left_out := part.fields.get(
        "not_applicable"
    ):  # beside the number, which is about the rest alone
        text = f"{text}; {call.shown(not_judged(left_out), DETAIL_CHARS)}"
    return text


# Goals.


def subgoals_of(call: ReportedCall) -> list[tuple[GoalSubgoal, str, int | None, str]]:
    """The subgoals, each with its state, the turn that reached it, and who says so."""
    if call.goals is None or call.row.goals is None:
        return []
    known = zip(call.goals.subgoals, call.row.goals.subgoals, strict=False)
    return [(each, *_state(call, each, found)) for each, found in known]


def _state(
    call: ReportedCall, subgoal: GoalSubgoal, found: SubgoalResult
) -> tuple[str, int | None, str]:
    """The state of a subgoal, the turn that reached it, and who says so."""
    how = f"by code: {call.shown(check_in_words(subgoal.check), DETAIL_CHARS)}"
    result = found.result
    if subgoal.is_judged:
        votes = f", votes {found.votes_complete} for and {found.votes_incomplete} against"
        how = "by a judge" + (votes if found.votes_complete or found.votes_incomplete else "")
    if found.reached_turn is not None:
        return "Reached in ", found.reached_turn, how
    if subgoal.is_judged and call.unjudged_turns:
        return "Pending", None, "a judge is asked"
    # Until the end the row has the reason from before the first turn.
    if result == rows.NO_TURN_JUDGED and not call.is_over:
        so_far = None if call.progress is None or not subgoal.is_judged else call.progress.result
        if not isinstance(so_far, Unscored) or so_far.reason not in _UNJUDGED:
            judged = call.row.goals and call.row.goals.judged_turn
            open_turn = call.row.turn or 0
            later = f"; turn {open_turn} is judged later" if open_turn > (judged or 0) else ""
            text = f"Not reached up to turn {judged}{later}" if judged else "Not judged yet"
            return text, None, how
        result = so_far
    value = rows.number(result)
    if value is None:
        return outcome("", result), None, how
    return "Reached" if value == 1 else "Not reached", None, how


_UNJUDGED: Final = frozenset(map(str, UnjudgedReason))


def expected_of(found: ExpectedTool) -> tuple[str, int | None, str, str]:
    """The state of an expected tool call, the turn that was looked at, its tool, and
    why it is so.
    """
    value = rows.number(found.result)
    if value is not None:
        return "Made in " if value else "Missed in ", found.turn, found.tool, made(found)
    return (
        "Not known" if isinstance(found.result, Unscored) else "Left out",
        None,
        found.tool,
        made(found),
    )


# What the models used.


def used_in_words(use: ServiceUse) -> str:
    """What a service used."""
    amounts = ((name, getattr(use, name)) for name in USED_AMOUNTS)
    return ", ".join(f"{amount:,.10g} {in_words(name)}" for name, amount in amounts if amount)


def people_of(call: ReportedCall) -> list[tuple[str, str]]:
    """What people say of the call: who says it and when, and a label, a note or both."""
    return [
        (f"{each.by}, {day_and_time(each.at_ms)}", call.shown(each.words))
        for each in call.annotations
    ]


def notes_of(call: ReportedCall) -> list[tuple[int | None, str]]:
    """What the agent's framework notes, with the turns."""
    return [(note.turn, call.shown(note_in_words(note))) for note in call.row.notes]


def cost_in_words(cost: float | None) -> str:
    """A cost; None is one that nobody knows."""
    return "not known: no price" if cost is None else f"{cost:.6g} US dollars"


# The turns.

SIDES: Final = {Speaker.USER: "caller", Speaker.ASSISTANT: "agent"}
"""What the sides are called on screens."""
INTERRUPTIONS: Final = {
    Speaker.USER: "began by interrupting the agent",
    Speaker.ASSISTANT: "interrupted by the agent",
}
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


_TAGS: Final = {"interrupted": "its answer was interrupted by the caller"} | {
    outcome: f"no answer: {ending}" for outcome, ending in _ENDINGS.items()
}
"""What is said at a turn by its outcome."""


def wait_in_words(value: Value, anchor: Anchor | None) -> str:
    """How long the caller waited for the answer, and how the end of their speech is known."""
    if isinstance(value, Unscored | NotApplicable):
        return f"wait not known ({in_words(value.reason)})"
    by = "" if anchor is None else f" ({anchor})"
    if value < 0:
        return f"the agent began {seconds(-value)} before the caller had finished{by}"
    return f"answered after {seconds(value)}{by}"


def filler_in_words(row: TurnRow) -> str | None:
    """That the first sound of an answer was a filler, and how long the answer took; None where it
    was none.
    """
    if row.after_tools_ms is None:
        return None
    return f"first sound: a filler; answer after {seconds(row.after_tools_ms)}"


def tags_of(row: TurnRow) -> list[str]:
    """What is of note in a turn, beside its wait."""
    return [
        *(INTERRUPTIONS[by] for by in row.interruptions),
        *([_TAGS[row.outcome]] if row.outcome in _TAGS else []),
    ]


def tools_of(
    row: TurnRow | None, words: rows.WordsRow | None
) -> list[tuple[str, rows.ToolUse, rows.ToolWords]]:
    """The uses of tools in a turn, in their order: name, use and texts, as far as its row and its
    row of words are known.
    """
    uses = {} if row is None else {use.index: use for use in row.tools}
    texts = {} if words is None else {each.index: each for each in words.tools}
    return [
        (
            (texts.get(index) or uses[index]).tool,
            uses.get(index) or rows.ToolUse(index, ""),
            texts.get(index) or rows.ToolWords(index, ""),
        )
        for index in sorted(uses | texts)
    ]


def unmarked(text: str) -> str:
    """A text without EVA's marks, for people.

    >>> unmarked("[user interrupts] Yes, but [likely cut off by user] no")
    'Yes, but no'
    """
    for mark in _MARKS:
        text = text.replace(mark, "")
    return " ".join(text.split())
