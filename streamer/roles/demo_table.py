"""Which calls run and how they go, folded from the records of `scores`: what the demo's table shows. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from schemas.scores.all_records import (
    Anchor,
    AnyScoreRecord,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    ProgressScore,
    Scored,
    Speaker,
    StallFact,
    ToolUseFact,
    Unscored,
    UnscoredReason,
    VoiceToVoiceLatency,
)
from schemas.scores.newest_scores import Subject, is_taken_back

Item = TypeVar("Item", bound=Hashable)

MAX_CALLS: Final = 500
"""Calls held; the one that was quiet for longest makes room for a new one."""

SHOWN_AFTER_END_MS: Final = 5_000
"""How long a call stays in the table after it closed, so that a person sees how it ended."""


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """A voice-to-voice latency in ms, its anchor and its turn; negative when the assistant was early."""

    turn: int
    latency_ms: float
    anchor: Anchor | None


@dataclass(frozen=True, slots=True)
class GoalsReached:
    """How many subgoals of how many are reached, and of how many nobody knows."""

    reached: int
    missing: int
    subgoals: int


@dataclass(slots=True)
class CallRow:
    """One call as its score records have it so far.

    Attributes:
        conversation_id: Whose row it is.
        agent: As `call_started` names it; `unknown` until then.
        first_seen_ms: Broker's time of what caused its first record.
        changed_ms: Broker's time of what caused its newest record.
        closed: The closing record, once there is one.
    """

    conversation_id: str
    first_seen_ms: int
    changed_ms: int
    agent: str = "unknown"
    closed: ClosedFact | None = None
    _about_turns: set[Subject] = field(default_factory=set)
    _latencies: dict[int, MeasuredLatency] = field(default_factory=dict)
    _interruptions: set[tuple[Speaker, int | None, int]] = field(default_factory=set)
    _dead_airs: set[tuple[int | None, int]] = field(default_factory=set)
    _tools: set[tuple[int | None, int]] = field(default_factory=set)
    _goals: dict[int, GoalsReached] = field(default_factory=dict)
    _stalled_at: int | None = None

    @property
    def turn(self) -> int | None:
        """The newest turn of which something is known; None before the first, 0 for the greeting."""
        return max((turn for _, turn, _ in self._about_turns if turn is not None), default=None)

    @property
    def latency(self) -> MeasuredLatency | None:
        """That of the newest turn that has one."""
        return self._latencies[max(self._latencies)] if self._latencies else None

    @property
    def dead_airs(self) -> int:
        """How often nobody spoke for too long."""
        return len(self._dead_airs)

    @property
    def tool_calls(self) -> int:
        """How many tool calls came to an outcome."""
        return len(self._tools)

    @property
    def goals(self) -> GoalsReached | None:
        """After the newest turn that was judged; None while there is none, or without goals."""
        return self._goals[max(self._goals)] if self._goals else None

    @property
    def is_stalled(self) -> bool:
        """Whether it runs and no further subgoal was reached for too long."""
        return self.closed is None and self._stalled_at is not None and self._stalled_at == self._reached

    @property
    def _reached(self) -> int:
        return 0 if self.goals is None else self.goals.reached

    @property
    def status(self) -> Literal["running", "over"]:
        """Whether the call has closed."""
        return "running" if self.closed is None else "over"

    def interruptions_by(self, speaker: Speaker) -> int:
        """How often `speaker` spoke over the other."""
        return sum(who is speaker for who, _, _ in self._interruptions)

    def fold(self, record: AnyScoreRecord) -> None:
        """Takes in one record of this call; a later revision replaces an earlier one."""
        self.changed_ms = max(self.changed_ms, record.caused_at_ms)
        self.agent = record.labels.agent
        subject = (record.turn, record.index)
        if record.turn is not None:
            _keep(self._about_turns, (record.name, *subject), wanted=not is_taken_back(record))
        match record:
            case VoiceToVoiceLatency(turn=int(turn), result=Scored(value=latency_ms)):
                self._latencies[turn] = MeasuredLatency(turn, latency_ms, record.anchor)
            case VoiceToVoiceLatency(turn=int(turn)):
                self._latencies.pop(turn, None)
            case InterruptionFact():
                _keep(self._interruptions, (record.by, *subject), wanted=not record.is_withdrawn)
            case DeadAirFact():
                self._dead_airs.add(subject)
            case ToolUseFact():
                _keep(self._tools, subject, wanted=not record.is_withdrawn)
            case ProgressScore(turn=int(turn), result=Unscored(reason=UnscoredReason.WITHDRAWN)):
                self._goals.pop(turn, None)
            case ProgressScore(turn=int(turn)):
                self._goals[turn] = GoalsReached(record.reached, record.missing, record.subgoals)
            case StallFact():
                self._stalled_at = self._reached
            case ClosedFact():
                self.closed = record
            case _:
                pass  # of the start its labels, which every record has; of values the turn


class CallTable:
    """The calls that run, and those that ended moments ago.

    Attributes:
        calls_started: Calls seen to start, since the table was made.
        calls_ended: Calls seen to close.
        calls_dropped: Calls that made room for others while they still ran.
    """

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self.calls_started = 0
        self.calls_ended = 0
        self.calls_dropped = 0
        self._max_calls = max_calls
        self._rows: dict[str, CallRow] = {}

    def fold(self, record: AnyScoreRecord) -> CallRow:
        """Takes in one record and gives the row it changed."""
        row = self._rows.get(record.conversation_id)
        if row is None:
            row = CallRow(record.conversation_id, record.caused_at_ms, record.caused_at_ms)
            self._make_room()
            self._rows[record.conversation_id] = row
            self.calls_started += 1
        was_open = row.closed is None
        row.fold(record)
        self.calls_ended += was_open and row.closed is not None
        return row

    def rows(self, now_ms: int) -> list[CallRow]:
        """The rows in the order in which their calls began; those that closed `SHOWN_AFTER_END_MS` ago are let go."""
        gone = [
            row.conversation_id
            for row in self._rows.values()
            if row.closed is not None and row.changed_ms < now_ms - SHOWN_AFTER_END_MS
        ]
        for conversation_id in gone:
            del self._rows[conversation_id]
        return sorted(self._rows.values(), key=lambda row: (row.first_seen_ms, row.conversation_id))

    @property
    def calls_running(self) -> int:
        """Calls in the table that have not closed."""
        return sum(row.closed is None for row in self._rows.values())

    def _make_room(self) -> None:
        if len(self._rows) < self._max_calls:
            return
        quietest = min(self._rows.values(), key=lambda row: (row.closed is None, row.changed_ms))
        self.calls_dropped += quietest.closed is None
        del self._rows[quietest.conversation_id]


def _keep(kept: set[Item], item: Item, *, wanted: bool) -> None:
    if wanted:
        kept.add(item)
    else:
        kept.discard(item)
