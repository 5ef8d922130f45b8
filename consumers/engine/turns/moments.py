"""Publishes the moments of a call's turns: compares turns with the published values and makes records of latencies,
interruptions and tools.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from consumers.engine.records.revisions import Cause, Revisions
from consumers.engine.turns.timeline.tool_uses import PairedUse, ToolEntry, ToolUses, UseKey
from consumers.engine.turns.timeline.turn_view import TurnView, voice_to_voice_ms
from schemas.scores.all_records import (
    WITHDRAWN,
    AnyScoreRecord,
    InterruptionFact,
    Scored,
    ToolOutcome,
    ToolUseFact,
    TurnStatus,
    VoiceToVoiceLatency,
)

LATENCY = "voice_to_voice_latency_ms"
_INTERRUPTIONS = ("interruption_by_user", "interruption_by_assistant")


class TurnMoments:
    """The turns as last seen, and their status: open, provisional (left), settled (every stream has passed it, and none of its
    sounds is open).

    Attributes:
        ever_settled: Turns that were settled once, whatever their status now.
    """

    __slots__ = (
        "_current",
        "_highest",
        "_left_at_ms",
        "_reopened",
        "_revisions",
        "_tools",
        "_unended",
        "_views",
        "ever_settled",
    )

    def __init__(self, revisions: Revisions) -> None:
        self._revisions = revisions
        self._views: dict[int, TurnView] = {}
        self._left_at_ms: dict[int, int] = {}
        self.ever_settled: set[int] = set()
        self._reopened: set[int] = set()  # settled once, and not now
        self._unended: dict[int, int] = {}
        self._current = 0
        self._highest = 0
        self._tools = ToolUses()

    @property
    def turns(self) -> set[int]:
        """Turns that exist as last seen."""
        return set(self._views)

    def view(self, turn: int) -> TurnView | None:
        """The turn as last seen; None when it does not exist."""
        return self._views.get(turn)

    @property
    def tools(self) -> ToolUses:
        """The uses of tools as last seen."""
        return self._tools

    @property
    def highest_turn(self) -> int:
        """Largest turn number seen; 0 before the first turn."""
        return self._highest

    @property
    def unsettled_since_ms(self) -> int | None:
        """Time in ms at which the oldest turn that is left but not settled was left; None without one."""
        return min(self._left_at_ms.values(), default=None)

    def update(
        self,
        touched: AbstractSet[int],
        views: dict[int, TurnView],
        last_tool: ToolEntry | None,
        current: int,
        cause: Cause,
    ) -> tuple[list[AnyScoreRecord], set[int]]:
        """Records of the changes, and the turns whose uses of tools changed.

        Args:
            touched: Turns that may have changed, in any order.
            views: Their views; a touched turn without one does not exist any more.
            last_tool: Newest tool event of the call's timeline.
            current: The turn the call is in.
            cause: When they changed.
        """
        if self._unended:
            for turn in self._unended.keys() & touched:
                self._left_at_ms[turn] = self._unended.pop(turn)
        has_moved = current != self._current
        self._current = current
        records: list[AnyScoreRecord | None] = []
        for turn in sorted(touched) if len(touched) > 1 else touched:
            view = views.get(turn)
            old = self._views.get(turn)
            if view is None:
                if old is not None:
                    records += self._forget(turn, cause)
                continue
            if view == old and not has_moved:
                continue
            self._views[turn] = view
            self._highest = max(self._highest, turn)
            self._move(turn, cause)
            if view != old:
                records += self._turn_records(turn, view, old, cause)
        changed = self._tools.follow(last_tool)
        if changed:
            records += [self._tool_record(key, changed[key], cause) for key in sorted(changed)]
        return [record for record in records if record is not None], {turn for turn, _ in changed}

    def settle(self, passed_ms: int, rests_on_open_sound: Callable[[int], bool]) -> list[int]:
        """Settles the turns that were left at or before `passed_ms`, and returns them. A turn with an open sound waits for its
        end.
        """
        settled = []
        for turn in sorted(turn for turn, left in self._left_at_ms.items() if left <= passed_ms):
            left_at_ms = self._left_at_ms.pop(turn)
            if rests_on_open_sound(turn):
                self._unended[turn] = left_at_ms
                continue
            self.ever_settled.add(turn)
            self._reopened.discard(turn)
            settled.append(turn)
        return settled

    def final_records(
        self, views: dict[int, TurnView], last_tool: ToolEntry | None, cause: Cause
    ) -> list[AnyScoreRecord]:
        """Records of the latencies that change now that every sound has an end, and of unanswered tools."""
        self._views = dict(views)
        records: list[AnyScoreRecord | None] = []
        records += [self._latency(turn, views[turn], TurnStatus.FINAL, cause) for turn in sorted(views) if turn >= 1]
        self._tools.follow(last_tool)
        records += [self._tool_record((use.turn, use.index), use, cause, is_over=True) for use in self._tools]
        return [record for record in records if record is not None]

    def status(self, turn: int) -> TurnStatus:
        """Whether the turn is open, provisional or settled."""
        if self._is_settled(turn):
            return TurnStatus.SETTLED
        return TurnStatus.PROVISIONAL if turn < self._current else TurnStatus.OPEN

    def _is_settled(self, turn: int) -> bool:
        return turn in self.ever_settled and turn not in self._reopened

    def _reopen(self, turn: int) -> None:
        if turn in self.ever_settled:
            self._reopened.add(turn)

    def _move(self, turn: int, cause: Cause) -> None:
        """Notes when a turn was left, or that the call is in it again."""
        if turn >= self._current:
            self._left_at_ms.pop(turn, None)
            self._reopen(turn)
        elif not self._is_settled(turn):
            self._left_at_ms.setdefault(turn, cause.event_time_ms or 0)

    def _turn_records(
        self, turn: int, view: TurnView, old: TurnView | None, cause: Cause
    ) -> list[AnyScoreRecord | None]:
        """Records of a changed view: the latency if its ends moved, an interruption if it appeared or vanished."""
        records: list[AnyScoreRecord | None] = []
        if turn >= 1 and (old is None or view.timing != old.timing):
            records.append(self._latency(turn, view, self.status(turn), cause))
        was = (False, False) if old is None else (old.user_interrupted, old.assistant_interrupted)
        now = view.user_interrupted, view.assistant_interrupted
        if now != was:
            for name, is_so, was_so in zip(_INTERRUPTIONS, now, was, strict=True):
                if is_so is not was_so:
                    records.append(self._interruption(name, turn, cause, is_withdrawn=not is_so))
        return records

    def _latency(self, turn: int, view: TurnView, status: TurnStatus, cause: Cause) -> VoiceToVoiceLatency | None:
        """Record of the latency once it is known; withdraws one that is not known any more. The turn's own record has the
        reason.
        """
        result = voice_to_voice_ms(view)
        subject = (LATENCY, turn, 0)
        if not isinstance(result, Scored):
            last = self._revisions.published.get(subject)
            return None if last is None or not last.had_value else self._withdrawn_latency(turn, cause)
        inputs = (view.user_end_s, view.assistant_start_s, view.anchor, view.recorded_ms)
        return self._revisions.make(
            VoiceToVoiceLatency, subject, status, inputs, cause, result=result, anchor=view.anchor, source=view.source
        )

    def _withdrawn_latency(self, turn: int, cause: Cause) -> VoiceToVoiceLatency | None:
        return self._revisions.make(
            VoiceToVoiceLatency, (LATENCY, turn, 0), TurnStatus.OPEN, ("withdrawn",), cause, has_value=False,
            result=WITHDRAWN, anchor=None, source=None,
        )  # fmt: skip

    def _interruption(self, name: str, turn: int, cause: Cause, *, is_withdrawn: bool) -> InterruptionFact | None:
        return self._revisions.make(
            InterruptionFact, (name, turn, 0), self.status(turn), (is_withdrawn,), cause,
            has_value=not is_withdrawn, is_withdrawn=is_withdrawn,
        )  # fmt: skip

    def _forget(self, turn: int, cause: Cause) -> list[AnyScoreRecord | None]:
        """Withdraws every moment of a turn that does not exist any more."""
        del self._views[turn]
        self._left_at_ms.pop(turn, None)
        self._unended.pop(turn, None)
        self._reopen(turn)
        if turn == self._highest:
            self._highest = max(self._views, default=0)
        published = self._revisions.published
        records: list[AnyScoreRecord | None] = []
        if (LATENCY, turn, 0) in published:
            records.append(self._withdrawn_latency(turn, cause))
        names = [name for name in _INTERRUPTIONS if (name, turn, 0) in published]
        return records + [self._interruption(name, turn, cause, is_withdrawn=True) for name in names]

    def _tool_record(
        self, key: UseKey, use: PairedUse | None, cause: Cause, *, is_over: bool = False
    ) -> ToolUseFact | None:
        """Record of a use with a known outcome, at the end also of an unanswered one; otherwise withdraws the published one."""
        turn, index = key
        subject = ("tool_call", turn, index)
        if use is None or (use.outcome is None and not is_over):
            if subject not in self._revisions.published:
                return None
            return self._revisions.make(
                ToolUseFact, subject, TurnStatus.OPEN, ("withdrawn",), cause, has_value=False,
                tool="", outcome=ToolOutcome.UNANSWERED, duration_ms=None, is_withdrawn=True,
            )  # fmt: skip
        status = TurnStatus.FINAL if is_over else self.status(turn)
        outcome = use.outcome or ToolOutcome.UNANSWERED
        return self._revisions.make(
            ToolUseFact, subject, status, (use.tool, outcome, use.duration_ms), cause,
            tool=use.tool, outcome=outcome, duration_ms=use.duration_ms,
        )  # fmt: skip
