"""Rows with the few parts that a test is about."""

from typing import Any

from consumers.engine.end_of_call import set_end
from schemas.closed_sets import Anchor, CloseReason
from schemas.rows import (
    Answer,
    CallRow,
    Goals,
    GoalsRow,
    Labels,
    Progress,
    Silence,
    Stall,
    TurnRow,
    Waiting,
)

NOW_MS = 1_790_000_000_000
THRESHOLD_MS = 3_000


def call_row(call: str = "call-1", **parts: Any) -> CallRow:
    """A running call of an agent called bot, known since NOW_MS."""
    common: dict[str, Any] = {
        "known_ms": NOW_MS,
        "first_known_ms": NOW_MS,
        "labels": Labels(agent="bot"),
    }
    return with_end(CallRow(conversation_id=call, **(common | parts)))


def with_end(row: CallRow) -> CallRow:
    """The row with how its call ended, if it is over; idle calls have told nothing."""
    if row.state != "running":
        is_told = row.close_reason is not CloseReason.IDLE
        set_end(row, has_answer=row.answer is not None, is_told=is_told)
    return row


def closed_row(call: str = "call-1", **parts: Any) -> CallRow:
    """The same, closed after three turns."""
    ended: dict[str, Any] = {
        "state": "closed",
        "close_reason": CloseReason.ENDED,
        "ended_reason": "goodbye",
        "turns": 3,
        "revision": 99,
    }
    return call_row(call, **(ended | {"news": ("closed",)} | parts))


def turn_row(turn: int, call: str = "call-1", **parts: Any) -> TurnRow:
    """A turn of such a call."""
    common: dict[str, Any] = {"known_ms": NOW_MS, "labels": Labels(agent="bot")}
    return TurnRow(conversation_id=call, turn=turn, **(common | parts))


def waited(turn: int, wait_ms: float, anchor: Anchor = Anchor.AUDIO, **parts: Any) -> TurnRow:
    """A turn whose answer is new."""
    answered: dict[str, Any] = {
        "wait_ms": wait_ms,
        "anchor": anchor,
        "wait_source": "elevenlabs",
        "news": ("wait",),
    }
    return turn_row(turn, **(answered | parts))


def answer(turn: int, wait_ms: float, **parts: Any) -> Answer:
    """The newest answer of a call."""
    return Answer(turn, wait_ms, **parts)


def waiting(turn: int, silences: int = 1, since_ms: int = NOW_MS - THRESHOLD_MS) -> Waiting:
    """A caller who has no answer, since as long as makes dead air by default."""
    return Waiting(turn, since_ms, silences)


def silence(number: int = 1) -> Silence:
    """A silence that is dead air."""
    return Silence(number, NOW_MS - THRESHOLD_MS, NOW_MS, THRESHOLD_MS)


def goals(
    reached: int = 0, missing: int = 0, of: int = 4, since_turn: int | None = None, **parts: Any
) -> Goals:
    """Goals of a call; `since_turn` is that of a stall."""
    share = reached / of
    progress = Progress(share, share, share, share, float(reached == of), reached, missing, of)
    stalls = () if since_turn is None else (Stall(since_turn, "turns"),)
    return Goals(
        "goals", "digest", progress=progress, stalls=stalls, is_stalled=bool(stalls), **parts
    )


def goals_row(*names: str, call: str = "call-1") -> GoalsRow:
    """A goal set with these subgoals."""
    return GoalsRow(
        conversation_id=call,
        revision=0,
        digest="digest",
        goal_set={"id": "goals", "subgoals": [{"id": name} for name in names]},
    )
