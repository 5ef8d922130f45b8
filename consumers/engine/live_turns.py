"""The live view of a call: compares turns with what was published and says what is new, per turn, with revisions."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from consumers.engine.call_memory import Subject
from consumers.engine.record_book import RecordBook
from consumers.engine.tool_uses import PairedUse, ToolEntry, ToolUses, UseKey
from consumers.engine.turn_view import TurnView, unmeasured_reason, voice_to_voice_ms
from schemas.scores import (
    AnyScoreRecord,
    InterruptionFact,
    NotApplicable,
    Scored,
    ToolOutcome,
    ToolUseFact,
    TurnFact,
    TurnStatus,
    Unscored,
    UnscoredReason,
    VoiceToVoiceLatency,
)

LATENCY = "voice_to_voice_latency_ms"
_STATUS_INPUTS = {status: (status,) for status in TurnStatus}  # one tuple for all turns of all calls
_UNHEARD = TurnView(
    has_user=False,
    has_assistant=False,
    is_user_speaking=False,
    user_end_s=None,
    assistant_start_s=None,
    anchor=None,
    source=None,
    user_interrupted=False,
    assistant_interrupted=False,
)


class LiveTurns:
    """Views of the turns as last seen, and their status: open, provisional (left), settled (every stream is past it, and no
    sound of it is without an end).

    Attributes:
        ever_settled: Turns that were settled once, whatever became of them.
        just_settled: Those of them that were settled since turns last changed, with what they are now.
    """

    def __init__(self, book: RecordBook) -> None:
        self._book = book
        self._views: dict[int, TurnView] = {}
        self._left_at_ms: dict[int, int] = {}
        self._settled: set[int] = set()
        self.ever_settled: set[int] = set()
        self.just_settled: set[int] = set()
        self._unended: dict[int, int] = {}
        self._said: dict[int, TurnStatus] = {}
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
        """When the oldest turn that is left but not settled was left; None when there is none."""
        return min(self._left_at_ms.values(), default=None)

    def update(
        self,
        touched: AbstractSet[int],
        views: dict[int, TurnView],
        last_tool: ToolEntry | None,
        current: int,
        time_ms: int,
    ) -> list[AnyScoreRecord]:
        """What changed, as records.

        Args:
            touched: Turns that may have changed, in any order.
            views: Their views; a touched turn without one does not exist any more.
            last_tool: Newest tool event of the call's timeline.
            current: The turn the call is in.
            time_ms: Event time of what changed them.
        """
        self.just_settled.clear()
        if self._unended:
            for turn in self._unended.keys() & touched:
                self._left_at_ms[turn] = self._unended.pop(turn)
        has_moved = current != self._current
        self._current = current
        records: list[AnyScoreRecord | None] = []
        for turn in sorted(touched):
            view = views.get(turn)
            old = self._views.get(turn)
            if view is None:
                if old is not None:
                    del self._views[turn]
                    self._left_at_ms.pop(turn, None)
                    self._unended.pop(turn, None)
                    self._settled.discard(turn)
                    self._said.pop(turn, None)
                    records += self._withdrawn(turn, time_ms)
                    if turn == self._highest:
                        self._highest = max(self._views, default=0)
                continue
            if view == old and not has_moved:
                continue
            self._views[turn] = view
            self._highest = max(self._highest, turn)
            self._move(turn, time_ms)
            status = self.status(turn)
            if self._said.get(turn) is not status:
                records.append(self._turn_fact(turn, status, time_ms))
            if view != old:
                records += self._turn_records(turn, view, old, status, time_ms)
        changed = self._tools.follow(last_tool)
        if changed:
            records += [self._tool_record(key, changed[key], time_ms) for key in sorted(changed)]
        return [record for record in records if record is not None]

    def settle(self, passed_ms: int, rests_on_open_sound: Callable[[int], bool]) -> list[AnyScoreRecord]:
        """Turns that every stream has passed: those left at or before `passed_ms`; one with an open sound waits for its end."""
        records = []
        for turn in sorted(turn for turn, left in self._left_at_ms.items() if left <= passed_ms):
            left_at_ms = self._left_at_ms.pop(turn)
            if rests_on_open_sound(turn):
                self._unended[turn] = left_at_ms
                continue
            self._settled.add(turn)
            self.ever_settled.add(turn)
            self.just_settled.add(turn)
            records.append(self._turn_fact(turn, TurnStatus.SETTLED, left_at_ms))
        return [record for record in records if record is not None]

    def final_records(
        self, views: dict[int, TurnView], last_tool: ToolEntry | None, time_ms: int | None, *, has_speech_events: bool
    ) -> list[AnyScoreRecord]:
        """Every score of every turn once more, as final; what is still unknown says why."""
        records: list[AnyScoreRecord | None] = []
        self._views = dict(views)
        for turn in sorted(views):
            view = views[turn]
            is_unanswered_end = turn == self._current and view.has_user and not view.has_assistant
            records.append(self._turn_fact(turn, TurnStatus.FINAL, time_ms, counts=not is_unanswered_end))
            if turn < 1:
                continue
            result: Scored | Unscored | NotApplicable | None = voice_to_voice_ms(view)
            if is_unanswered_end:
                result = NotApplicable(reason="the call ended before an answer")
            elif result is None:
                result = Unscored(reason=unmeasured_reason(view, has_speech_events=has_speech_events))
            records.append(self._latency_record(turn, view, result, TurnStatus.FINAL, time_ms))
        self._tools.follow(last_tool)
        records += [self._tool_record((use.turn, use.index), use, time_ms, is_over=True) for use in self._tools]
        return [record for record in records if record is not None]

    def take_back(self, subjects: Iterable[Subject], time_ms: int) -> list[AnyScoreRecord]:
        """Withdraw what an earlier evaluator of the call said and this one does not know."""
        records = [self._taken_back(subject, time_ms) for subject in subjects]
        return [record for record in records if record is not None]

    def status(self, turn: int) -> TurnStatus:
        """How far the turn can still change."""
        if turn in self._settled:
            return TurnStatus.SETTLED
        return TurnStatus.PROVISIONAL if turn < self._current else TurnStatus.OPEN

    def _move(self, turn: int, time_ms: int) -> None:
        """Note when a turn was left, or that the call is in it again."""
        if turn >= self._current:
            self._left_at_ms.pop(turn, None)
            self._settled.discard(turn)
        elif turn not in self._settled:
            self._left_at_ms.setdefault(turn, time_ms)

    def _turn_fact(self, turn: int, status: TurnStatus, time_ms: int | None, *, counts: bool = True) -> TurnFact | None:
        """A turn counts when it is left, or at the end of the call if it was answered: a goodbye is no turn."""
        is_over = status is not TurnStatus.OPEN and counts
        self._said[turn] = status
        return self._book.record(
            TurnFact, ("turn", turn, 0), status, _STATUS_INPUTS[status], event_time_ms=time_ms, has_value=is_over
        )

    def _turn_records(
        self, turn: int, view: TurnView, old: TurnView | None, status: TurnStatus, time_ms: int
    ) -> list[AnyScoreRecord | None]:
        """What a changed view says anew: the latency if its ends moved, an interruption if there now is one or is none."""
        records: list[AnyScoreRecord | None] = []
        if turn >= 1 and (old is None or view.timing != old.timing):
            result: Scored | Unscored | None = voice_to_voice_ms(view)
            if result is None and (LATENCY, turn, 0) in self._book.published:
                result = Unscored(reason=UnscoredReason.WITHDRAWN)
            if result is not None:
                records.append(self._latency_record(turn, view, result, status, time_ms))
        by_user, by_assistant = (old.user_interrupted, old.assistant_interrupted) if old is not None else (False, False)
        for name, is_so, was_so in (
            ("interruption_by_user", view.user_interrupted, by_user),
            ("interruption_by_assistant", view.assistant_interrupted, by_assistant),
        ):
            if is_so is not was_so:
                records.append(self._interruption(name, turn, time_ms, is_withdrawn=not is_so))
        return records

    def _latency_record(
        self,
        turn: int,
        view: TurnView,
        result: Scored | Unscored | NotApplicable,
        status: TurnStatus,
        time_ms: int | None,
    ) -> VoiceToVoiceLatency | None:
        is_scored = isinstance(result, Scored)
        inputs = (view.user_end_s, view.assistant_start_s, view.anchor, None if is_scored else result)
        return self._book.record(
            VoiceToVoiceLatency,
            (LATENCY, turn, 0),
            status,
            inputs if view.recorded_ms is None else (*inputs, view.recorded_ms),
            event_time_ms=time_ms,
            has_value=is_scored,
            result=result,
            anchor=view.anchor,
            source=view.source,
        )

    def _interruption(self, name: str, turn: int, time_ms: int, *, is_withdrawn: bool) -> InterruptionFact | None:
        return self._book.record(
            InterruptionFact,
            (name, turn, 0),
            self.status(turn),
            (is_withdrawn,),
            event_time_ms=time_ms,
            has_value=not is_withdrawn,
            is_withdrawn=is_withdrawn,
        )

    def _withdrawn(self, turn: int, time_ms: int) -> list[AnyScoreRecord | None]:
        """The turn does not exist any more: everything said of it is taken back."""
        published = self._book.published
        subjects = [(name, turn, 0) for name in (LATENCY, "interruption_by_user", "interruption_by_assistant")]
        return [
            self._turn_taken_back(turn, time_ms),
            *(self._taken_back(subject, time_ms) for subject in subjects if subject in published),
        ]

    def _turn_taken_back(self, turn: int, time_ms: int) -> TurnFact | None:
        return self._book.record(
            TurnFact, ("turn", turn, 0), TurnStatus.OPEN, ("withdrawn",), event_time_ms=time_ms, has_value=False,
            is_withdrawn=True,
        )  # fmt: skip

    def _taken_back(self, subject: Subject, time_ms: int) -> AnyScoreRecord | None:
        name, turn, index = subject
        if turn is None:
            return None
        match name:
            case "turn":
                return self._turn_taken_back(turn, time_ms)
            case "interruption_by_user" | "interruption_by_assistant":
                return self._interruption(name, turn, time_ms, is_withdrawn=True)
            case "tool_call":
                return self._tool_record((turn, index), None, time_ms)
            case "voice_to_voice_latency_ms":
                withdrawn = Unscored(reason=UnscoredReason.WITHDRAWN)
                return self._latency_record(turn, _UNHEARD, withdrawn, TurnStatus.OPEN, time_ms)
        return None

    def _tool_record(
        self, key: UseKey, use: PairedUse | None, time_ms: int | None, *, is_over: bool = False
    ) -> ToolUseFact | None:
        """A use whose outcome is known, at the end also one that was never answered; else what was said is taken back."""
        turn, index = key
        subject = ("tool_call", turn, index)
        if use is None or (use.outcome is None and not is_over):
            if subject not in self._book.published:
                return None
            return self._book.record(
                ToolUseFact, subject, TurnStatus.OPEN, ("withdrawn",), event_time_ms=time_ms, has_value=False,
                tool="", outcome=ToolOutcome.UNANSWERED, duration_ms=None, is_withdrawn=True,
            )  # fmt: skip
        status = TurnStatus.FINAL if is_over else self.status(turn)
        outcome = use.outcome or ToolOutcome.UNANSWERED
        return self._book.record(
            ToolUseFact, subject, status, (use.tool, outcome, use.duration_ms),
            event_time_ms=time_ms, tool=use.tool, outcome=outcome, duration_ms=use.duration_ms,
        )  # fmt: skip
