"""The troubles of a running call now, by its row alone: kinds of trouble, their rank, and the
reason in words. And how a call ended badly.

`top` sorts by it, and so does everything else that shows running calls. Pure: the row of a call and
the present time in, troubles out.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from schemas.closed_sets import CallOutcome
from schemas.rows import CallRow
from schemas.scores.latency_stages import Stage
from schemas.units import MS_PER_SECOND

# The figures of deploy/slo.yaml, where their sources are. A test compares them.

SLOW_MS: Final = 1_500
"""The objective of voice agents is that 95 % of answers are faster."""
VERY_SLOW_MS: Final = 3_500
"""95 % of answers of usual voice agents are faster: one slower than this is a trouble by itself."""
FRESH_MS: Final = 10_000
"""The objective of callgauge is that 99 % of scores are known this soon. What is older than this
says nothing of now.
"""

MANY_INTERRUPTIONS: Final = 3
"""Interruptions in the newest turns from which a call is in trouble: one is a conversation, three
are a struggle.
"""
RECENT_TURNS: Final = 5
"""How many turns back an interruption or a silence belongs to the present."""


ERROR_MS: Final = 60_000
"""How long an error of the agent is a trouble of its call, and can be what ended it."""
ERROR_REASON: Final = "error"
"""The reason of an end with which an agent or its framework says that the call failed."""


class TroubleKind(StrEnum):
    """A kind of trouble. The worst comes first: what the caller suffers at this moment, then what
    will soon make him hang up.

    - `mute`: the agent has not answered although the caller spoke again: two or more silences in
      one wait
    - `silent`: nobody speaks and the caller waits, for longer than the threshold of dead air
    - `agent_error`: the agent reported an error in the last `ERROR_MS`
    - `very_slow`: the newest answer took longer than `VERY_SLOW_MS`
    - `tool_fails`: the newest use of a tool failed
    - `stalled`: no further subgoal is reached
    - `slow`: the newest answer took longer than `SLOW_MS`, the objective
    - `interruptions`: the sides spoke over each other again and again
    - `dead_air`: the caller has waited in silence in the newest turns, and was answered
    """

    MUTE = "mute"
    SILENT = "silent"
    AGENT_ERROR = "agent_error"
    VERY_SLOW = "very_slow"
    TOOL_FAILS = "tool_fails"
    STALLED = "stalled"
    SLOW = "slow"
    INTERRUPTIONS = "interruptions"
    DEAD_AIR = "dead_air"


_PLACES: Final = {kind: place for place, kind in enumerate(reversed(TroubleKind), 1)}
URGENT: Final = frozenset(
    {TroubleKind.MUTE, TroubleKind.SILENT, TroubleKind.AGENT_ERROR, TroubleKind.VERY_SLOW}
)
"""Troubles that a caller hears at this moment."""


class Trouble(Struct, frozen=True, order=True):
    """One trouble of a call.

    Attributes:
        rank: The higher, the worse: the place of its kind (`dead_air` 1, `mute` 9), and within the
            kind a part of 1 that grows with its size.
        kind: Its kind.
        reason: The trouble in words, for example "silent for 6 s"; names in it are as the call's
            records have them.
    """

    rank: float
    kind: TroubleKind
    reason: str

    @property
    def is_urgent(self) -> bool:
        """Whether the caller hears it at this moment."""
        return self.kind in URGENT


def troubles_of(call: CallRow, now_ms: int) -> tuple[Trouble, ...]:
    """Returns the troubles of the call, the worst first; empty for a healthy call, and for one that
    is over.

    Args:
        call: The newest row of the call.
        now_ms: The time up to which its rows are known, on the broker's clock, in epoch ms: waits
            are counted up to it.
    """
    if call.state != "running":
        return ()
    found = [
        *_waits(call, now_ms),
        *_errors(call, now_ms),
        *_answers(call),
        *_tools(call),
        *_conversation(call),
    ]
    return tuple(sorted(found, reverse=True))


def worst_wait_ms(call: CallRow) -> float | None:
    """Returns the longest wait of the call, also one in vain; None without a known one."""
    waits_ms = (call.longest_wait_ms, call.in_vain_ms)
    return max((each for each in waits_ms if each is not None and each >= 0), default=None)


def bad_end(call: CallRow) -> str | None:
    """Returns how a call that is over ended badly, in words; None for a call that runs, ended well
    enough, or ended nobody knows how.

    A caller who gave up while he waited, and an agent that reported an error in its last moments,
    are what a person looks for first.
    """
    turn = 0 if call.waiting is None else call.waiting.turn
    if call.outcome is CallOutcome.NEVER_ANSWERED:
        return "never answered"
    if call.outcome is CallOutcome.HUNG_UP:
        return f"hung up unanswered, turn {turn}"
    if call.outcome is not CallOutcome.FAILED:
        return None
    if call.ended_reason == ERROR_REASON:
        return "failed: ended with an error" + (f", turn {turn}" if turn else "")
    component = None if call.errors is None else call.errors.component
    return "failed: agent error" + ("" if component is None else f": {component}")


def _trouble(kind: TroubleKind, size: float, reason: str) -> Trouble:
    """A trouble of this size, from 0 up; sizes without a bound come nearer and nearer to 1."""
    return Trouble(round(_PLACES[kind] + size / (1 + size), 4), kind, reason)


def _waits(call: CallRow, now_ms: int) -> list[Trouble]:
    if call.waiting is None:
        return []
    seconds = max(0, now_ms - call.waiting.since_ms) // MS_PER_SECOND
    if call.waiting.silences == 1:
        return [_trouble(TroubleKind.SILENT, seconds / 60, f"silent for {seconds} s")]
    return [_trouble(TroubleKind.MUTE, seconds / 60, f"agent mute for {seconds} s")]


def _errors(call: CallRow, now_ms: int) -> list[Trouble]:
    errors = call.errors
    if errors is None or now_ms - errors.known_ms > ERROR_MS:
        return []
    count = "agent error" if errors.number == 1 else f"{errors.number} agent errors"
    of = "" if errors.component is None else f": {errors.component}"
    return [_trouble(TroubleKind.AGENT_ERROR, errors.number, f"{count}{of}")]


def _answers(call: CallRow) -> list[Trouble]:
    newest = call.answer
    if newest is None or newest.wait_ms <= SLOW_MS:
        return []
    kind = TroubleKind.VERY_SLOW if newest.wait_ms > VERY_SLOW_MS else TroubleKind.SLOW
    reason = f"turn {newest.turn} slow: {_over_the_objective(newest.wait_ms)} s"
    stage, stage_ms = newest.slowest_stage, newest.slowest_stage_ms or 0
    if stage is not None and stage_ms > newest.wait_ms / 2:  # otherwise it explains little
        reason += f", {STAGE_WORDS[stage]} {stage_ms / MS_PER_SECOND:.1f} s"
    return [_trouble(kind, newest.wait_ms / VERY_SLOW_MS, reason)]


def _over_the_objective(wait_ms: float) -> str:
    """A wait in seconds, with as many digits as show that it is over."""
    written = (f"{wait_ms / MS_PER_SECOND:.{digits}f}" for digits in (1, 2, 3))
    over = (each for each in written if float(each) * MS_PER_SECOND > SLOW_MS)
    return next(over, f"{wait_ms / MS_PER_SECOND:.4f}")


def _tools(call: CallRow) -> list[Trouble]:
    times = {1: "", 2: " twice"}
    return [
        _trouble(
            TroubleKind.TOOL_FAILS, failed, f"{tool} fails{times.get(failed, f' {failed} times')}"
        )
        for tool, failed in call.failing_tools.items()
    ]


def _conversation(call: CallRow) -> list[Trouble]:
    found = []
    recent = (call.turn or 0) - RECENT_TURNS
    if call.goals is not None and call.goals.is_stalled:
        turns = max(0, (call.turn or 0) - call.goals.stalls[-1].since_turn)
        reason = f"stalled for {turns} turns" if turns > 1 else "stalled"
        found.append(_trouble(TroubleKind.STALLED, turns, reason))
    if sum(turn > recent for turn in call.interrupted_turns) >= MANY_INTERRUPTIONS:
        count = len(call.interrupted_turns)
        reason = (
            f"{_ORDINALS[count]} interruption" if count in _ORDINALS else f"{count} interruptions"
        )
        found.append(_trouble(TroubleKind.INTERRUPTIONS, count, reason))
    # where answers are slow, a silence was the wait for one of them
    is_slow = call.answer is not None and call.answer.wait_ms > SLOW_MS
    silent = [turn for turn in call.dead_air_turns if turn > recent and not is_slow]
    if silent and call.waiting is None:
        found.append(_trouble(TroubleKind.DEAD_AIR, len(silent), f"dead air in turn {silent[-1]}"))
    return found


_ORDINALS: Final = {3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}

STAGE_WORDS: Final = {stage: stage.value.replace("_", " ") for stage in Stage} | {
    Stage.STT_TRAILING: "transcription",
    Stage.LLM_FIRST_TOKEN: "model",
    Stage.LLM_FIRST_SENTENCE: "model",
    Stage.LLM_LAST_SENTENCE: "model",
    Stage.LLM_INFERENCE: "model",
    Stage.TOOL_REQUEST: "model, until its tool call",
    Stage.LLM_TOOL_CALL: "model, until its tool call",
    Stage.TOOL_RUN: "tool",
    Stage.FUNCTION_HANDLER: "tool",
    Stage.TTS_FIRST_BYTE: "voice",
    Stage.SPEECH_SYNTHESIS: "voice",
}
"""A word or two for each stage, for reasons and lines on a terminal."""
