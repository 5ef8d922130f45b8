"""Scores the timing of one turn from 0 to 1: EVA's curves for latency, for the assistant speaking over the user, and for its
yielding.

The inputs are the turn and the end of the assistant's answer before it, so a turn can be scored while the call runs and again,
by the same functions, when it is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final, NamedTuple

EARLIEST_MS: Final = -500.0
"""An answer this early before the user's end, or earlier, scores 0."""
SWEET_FROM_MS: Final = 500.0
INTERRUPTION_BEST: Final = 0.5
"""Highest score of a turn in which the assistant spoke over the user."""
OVERLAP_LIMIT_MS: Final = 2000.0
INTERRUPTIONS_LIMIT: Final = 3
YIELD_LIMIT_MS: Final = 2000.0
TOUCHING_S: Final = 0.001
"""Longest overlap of two sounds, in seconds, that is no interruption."""
SCORE_DIGITS: Final = 4
MS_DIGITS: Final = 3

Segments = Sequence[tuple[float, float]]
"""(start, end) of each stretch of sound, in epoch seconds."""


class TurnReason(StrEnum):
    """Grounds of a turn's score."""

    LATENCY = "latency"
    AGENT_INTERRUPT = "agent_interrupt"
    USER_INTERRUPT = "user_interrupt"
    DUAL_INTERRUPT = "dual_interrupt"
    TURN_END_FALLBACK = "turn_end_fallback"


class TurnTimes(NamedTuple):
    """Inputs of a turn's score.

    Attributes:
        user: Sounds of the user in the turn.
        assistant: Sounds of the assistant in the turn.
        assistant_before_end_s: End of the assistant's last sound in the turn before (epoch seconds); None without one.
        latency_s: From the end of the user's last sound to the assistant's first; None unless both were heard.
        has_tool_call: Whether a tool was called in the turn, which allows for a later answer.
        is_fallback: Whether the agent's turn-end timer had to step in.
        assistant_interrupted: Whether the assistant began to speak over the user.
        user_interrupted: Whether the user began to speak over the assistant.
    """

    user: Segments
    assistant: Segments
    assistant_before_end_s: float | None
    latency_s: float | None
    has_tool_call: bool
    is_fallback: bool
    assistant_interrupted: bool
    user_interrupted: bool


@dataclass(frozen=True, slots=True)
class TurnScore:
    """The score of a turn.

    Attributes:
        score: From 0 to 1, rounded to 4 digits.
        reason: Its grounds.
        evidence: The measurements behind it under EVA's names; milliseconds have 3 digits, scores 4.
    """

    score: float
    reason: TurnReason
    evidence: Mapping[str, float | int | bool]


def on_time_until_ms(*, has_tool_call: bool) -> float:
    """Latest answer that costs nothing, in ms after the user's end."""
    return 3000.0 if has_tool_call else 2000.0


def latest_ms(*, has_tool_call: bool) -> float:
    """Earliest late answer that scores 0, in ms after the user's end."""
    return 5000.0 if has_tool_call else 3500.0


def latency_score(latency_ms: float, *, has_tool_call: bool) -> float:
    """The score of an answer after this silence; not rounded.

    Example:
        >>> [latency_score(ms, has_tool_call=False) for ms in (-500, 0, 500, 2000, 2750, 3500)]
        [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
        >>> latency_score(4000, has_tool_call=True)
        0.5
    """
    high_ms, late_ms = on_time_until_ms(has_tool_call=has_tool_call), latest_ms(has_tool_call=has_tool_call)
    if latency_ms <= EARLIEST_MS or latency_ms >= late_ms:
        return 0.0
    if latency_ms < SWEET_FROM_MS:
        return (latency_ms - EARLIEST_MS) / (SWEET_FROM_MS - EARLIEST_MS)
    if latency_ms <= high_ms:
        return 1.0
    return (late_ms - latency_ms) / (late_ms - high_ms)


def turn_score(times: TurnTimes) -> TurnScore | None:
    """The score of a turn; None while one side was not heard in it, unless the fallback timer stepped in."""
    if times.is_fallback:
        return TurnScore(0.0, TurnReason.TURN_END_FALLBACK, {"has_tool_call": times.has_tool_call})
    if not times.user or not times.assistant or times.latency_s is None:
        return None
    by_agent, agent_evidence = _agent_interruption(times) if times.assistant_interrupted else (None, {})
    by_user, user_evidence = _user_interruption(times) if times.user_interrupted else (None, {})
    evidence: dict[str, float | int | bool] = {
        "has_tool_call": times.has_tool_call, **agent_evidence, **user_evidence
    }  # fmt: skip
    if by_agent is not None and by_user is not None:
        score, reason = min(by_agent, by_user), TurnReason.DUAL_INTERRUPT
    elif by_agent is not None:
        score, reason = by_agent, TurnReason.AGENT_INTERRUPT
    elif by_user is not None:
        score, reason = by_user, TurnReason.USER_INTERRUPT
    else:
        latency_ms = times.latency_s * 1000
        score, reason = latency_score(latency_ms, has_tool_call=times.has_tool_call), TurnReason.LATENCY
        evidence["latency_ms"] = round(latency_ms, MS_DIGITS)
        evidence["latency_score"] = round(score, SCORE_DIGITS)
    return TurnScore(round(score, SCORE_DIGITS), reason, evidence)


def _agent_interruption(times: TurnTimes) -> tuple[float, dict[str, float | int | bool]]:
    """Score and evidence where the assistant spoke over the user: how long, how often, and its answer after that."""
    overlap_s = 0.0
    count = 0
    for theirs in times.assistant:
        count += any(_shared_s(mine, theirs) > TOUCHING_S for mine in times.user)
    for mine, theirs in product(times.user, times.assistant):  # one by one: from Python 3.12 on sum() adds differently
        overlap_s += max(0.0, _shared_s(mine, theirs))
    overlap_ms = overlap_s * 1000
    scores = [INTERRUPTION_BEST * max(0.0, 1 - overlap_ms / OVERLAP_LIMIT_MS)]
    evidence: dict[str, float | int | bool] = {
        "overlap_ms": round(overlap_ms, MS_DIGITS),
        "overlap_score": round(scores[0], SCORE_DIGITS),
        "n_interrupt_segments": count,
    }
    if count:
        by_count = INTERRUPTION_BEST * max(0.0, 1 - (count - 1) / (INTERRUPTIONS_LIMIT - 1))
        evidence["interrupt_count_score"] = round(by_count, SCORE_DIGITS)
        scores.append(by_count)
    settled_ms = _settled_latency_ms(times)
    if settled_ms is not None:
        by_latency = latency_score(settled_ms, has_tool_call=times.has_tool_call)
        evidence["post_interrupt_latency_ms"] = round(settled_ms, MS_DIGITS)
        evidence["post_interrupt_latency_score"] = round(by_latency, SCORE_DIGITS)
        scores.append(by_latency)
    return min(scores), evidence


def _settled_latency_ms(times: TurnTimes) -> float | None:
    """From the user's last end to the answer that begins after it; None when the assistant keeps speaking, or never answers."""
    user_end_s = times.user[-1][1]
    if any(start <= user_end_s < end for start, end in times.assistant):
        return None
    later_s = min((start for start, _ in times.assistant if start > user_end_s), default=None)
    return None if later_s is None else (later_s - user_end_s) * 1000


def _user_interruption(times: TurnTimes) -> tuple[float | None, dict[str, float | int | bool]]:
    """Score and evidence where the user spoke over the assistant: how long it kept speaking."""
    if times.assistant_before_end_s is None:
        return None, {}
    yield_ms = max(0.0, times.assistant_before_end_s - times.user[0][0]) * 1000
    score = max(0.0, 1 - yield_ms / YIELD_LIMIT_MS)
    return score, {"yield_ms": round(yield_ms, MS_DIGITS), "yield_score": round(score, SCORE_DIGITS)}


def _shared_s(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Overlap of both in seconds; negative when one begins after the other's end."""
    return min(one[1], other[1]) - max(one[0], other[0])
