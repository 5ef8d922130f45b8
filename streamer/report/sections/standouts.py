"""The parts of a call to look at first: long waits, overlapping speech, dead air, failed tools, stalls."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from schemas.closed_sets import Speaker, ToolOutcome
from schemas.scores.records import InterruptionFact, StallFact, ToolUseFact, Unscored
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.numbers import in_words, seconds

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
