"""The call as it is now: its turn, and the moments that are published at once."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final, Literal, NamedTuple

from msgspec import structs

from consumers.engine.effects import Effect
from consumers.engine.limits import Limits
from consumers.engine.rows import CallRows
from consumers.engine.sources.facts import ToldWait, ToolFact, ToolState, WordsFact
from consumers.engine.turns.bot import (
    MESSAGE_RANK,
    BotElementKind,
    BotHistory,
    BotTurn,
    BotTurnMachine,
    RankedWords,
)
from consumers.engine.turns.dead_air import DeadAirWatch
from consumers.engine.turns.eva import EvaHistory, EvaTurnMachine
from consumers.engine.turns.heard import (
    HeardByTheBot,
    HeardByTheCaller,
    HeardTurns,
    view_of_bot_turn,
    view_of_eva_turn,
)
from consumers.engine.turns.reported import AgentRecord, AgentRecords, ReportedTools, ToldWaits
from consumers.engine.turns.timeline import (
    NO_SOUNDS,
    BrokerMoment,
    HeardBy,
    PairedUse,
    SilenceKind,
    ToolEntry,
    ToolPayload,
    ToolUses,
    TurnSounds,
    TurnView,
    UseKey,
    turn_with_user_end,
    voice_to_voice_ms,
)
from schemas import rows as table
from schemas.closed_sets import InputSource, PipelineType, Speaker, ToolOutcome, UnscoredReason
from schemas.rows import MAX_SILENCES, Errors, Labels, Silence
from schemas.scores.latency_stages import ServiceKind
from schemas.units import MS_PER_SECOND

# The moments of a call's turns: waits, interruptions and uses of tools.

_WITHDRAWN: Final = table.Unscored(UnscoredReason.WITHDRAWN)


class Cause(NamedTuple):
    """What changed turns.

    Attributes:
        event_time_ms: The time of the event, on the call's own clock; None where the change has no
            time there.
        broker_ms: Broker time of the record.
    """

    event_time_ms: int | None
    broker_ms: int


class TurnMoments:
    """The turns as last seen, and their status: open, provisional (left), settled (every stream has
    passed it, and none of its sounds is open).

    Attributes:
        ever_settled: Turns that were settled once, whatever their status now.
        highest_turn: Largest turn number seen; 0 before the first turn.
        tools: The uses of tools as last seen.
    """

    def __init__(self, rows: CallRows) -> None:
        self._rows = rows
        self._views: dict[int, TurnView] = {}
        self._left_at_ms: dict[int, int] = {}
        self.ever_settled: set[int] = set()
        self._reopened: set[int] = set()  # settled once, and not now
        self._unended: dict[int, int] = {}
        self._current = 0
        self.highest_turn = 0
        self.tools = ToolUses()

    @property
    def turns(self) -> set[int]:
        """Turns that exist as last seen."""
        return set(self._views)

    def view(self, turn: int) -> TurnView | None:
        """The turn as last seen; None when it does not exist."""
        return self._views.get(turn)

    @property
    def unsettled_since_ms(self) -> int | None:
        """Time in ms at which the oldest turn that is left but not settled was left; None without
        one.
        """
        return min(self._left_at_ms.values(), default=None)

    def update(
        self,
        touched: AbstractSet[int],
        views: dict[int, TurnView],
        last_tool: ToolEntry | None,
        current: int,
        cause: Cause,
    ) -> set[int]:
        """Follows the changes; returns the turns whose uses of tools changed.

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
        for turn in sorted(touched) if len(touched) > 1 else touched:
            view = views.get(turn)
            old = self._views.get(turn)
            if view is None:
                if old is not None:
                    self._forget(turn, cause.broker_ms)
                continue
            if view == old and not has_moved:
                continue
            self._views[turn] = view
            self.highest_turn = max(self.highest_turn, turn)
            self._move(turn, cause)
            if view != old:
                self._follow(turn, view, old, cause.broker_ms)
        changed = self.tools.follow(last_tool)
        if changed:
            for key in sorted(changed):
                self._follow_tool(key, changed[key], cause.broker_ms)
        return {turn for turn, _ in changed}

    def settle(self, passed_ms: float, rests_on_open_sound: Callable[[int], bool]) -> list[int]:
        """Settles the turns that were left at or before `passed_ms`, and returns them. A turn with
        an open sound waits for its end.
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

    def finish(
        self, views: dict[int, TurnView], last_tool: ToolEntry | None, known_ms: int
    ) -> None:
        """Sets the waits that change now that every sound has an end, and unanswered tools."""
        self._views = dict(views)
        for turn in sorted(views):
            if turn >= 1:
                self._set_wait(turn, views[turn], known_ms)
        self.tools.follow(last_tool)
        for use in self.tools:
            self._follow_tool((use.turn, use.index), use, known_ms, is_over=True)

    def status(self, turn: int) -> Literal["open", "provisional", "settled"]:
        """How far the turn can still change."""
        if self._is_settled(turn):
            return "settled"
        return "provisional" if turn < self._current else "open"

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

    def _follow(self, turn: int, view: TurnView, old: TurnView | None, known_ms: int) -> None:
        """Follows a changed view: its wait if its ends moved, an interruption if it appeared or
        vanished.
        """
        if old is None and turn in self._rows.turns:  # it may be there again
            self._rows.set_turn(turn, known_ms, status=self.status(turn))
        if turn >= 1 and (old is None or view.timing != old.timing):
            self._set_wait(turn, view, known_ms)
        was = (False, False) if old is None else (old.user_interrupted, old.assistant_interrupted)
        now = view.user_interrupted, view.assistant_interrupted
        if now != was:
            for by, is_so, was_so in zip((Speaker.USER, Speaker.ASSISTANT), now, was, strict=True):
                if is_so is not was_so:
                    self._rows.interrupts(turn, known_ms, by, is_withdrawn=not is_so)

    def _set_wait(self, turn: int, view: TurnView, known_ms: int) -> None:
        """Sets the wait once it is known; withdraws one that is not known any more. Why it is not
        known is a measure's to say.
        """
        wait_ms = voice_to_voice_ms(view)
        if isinstance(wait_ms, float):
            self._rows.set_wait(turn, known_ms, wait_ms, view.anchor, view.source)
        else:
            self._withdraw_wait(turn, known_ms)

    def _withdraw_wait(self, turn: int, known_ms: int) -> None:
        row = self._rows.turns.get(turn)
        if row is not None and isinstance(row.wait_ms, float):
            self._rows.set_wait(turn, known_ms, _WITHDRAWN)

    def _forget(self, turn: int, known_ms: int) -> None:
        """Withdraws a turn that does not exist any more."""
        del self._views[turn]
        self._left_at_ms.pop(turn, None)
        self._unended.pop(turn, None)
        self._reopen(turn)
        if turn == self.highest_turn:
            self.highest_turn = max(self._views, default=0)
        if turn in self._rows.turns:
            self._withdraw_wait(turn, known_ms)
            for by in Speaker:
                self._rows.interrupts(turn, known_ms, by, is_withdrawn=True)
            self._rows.set_turn(turn, known_ms, status="withdrawn")

    def _follow_tool(
        self, key: UseKey, use: PairedUse | None, known_ms: int, *, is_over: bool = False
    ) -> None:
        """Sets a use with a known outcome, at the end also an unanswered one; otherwise withdraws
        what is known of it.
        """
        turn, index = key
        if use is None or (use.outcome is None and not is_over):
            if turn in self._rows.turns:
                self._rows.set_tool(turn, known_ms, None, index)
            return
        outcome = use.outcome or ToolOutcome.UNANSWERED
        called_ms = use.called_at_ms if use.is_exact else None
        in_row = table.ToolUse(index, use.tool, outcome, use.duration_ms, called_ms)
        self._rows.set_tool(turn, known_ms, in_row, index)


# Tools of a call from pipecat's `FunctionCallObserver`; they count where no other source has tools.


class FunctionCalls:
    """Follows the function calls of one call. A requested tool is not in use yet: it may wait for
    another, and never run. A cancelled tool runs no more and has no answer.
    """

    def __init__(self) -> None:
        self._tools = ReportedTools()
        self._heard: set[tuple[str, bool]] = set()
        self._names: dict[str, str] = {}
        self._nameless: dict[str, list[ToolFact]] = {}
        self._gave_way_at: BrokerMoment | None = None

    @property
    def nameless(self) -> int:
        """Tools of which no event has the name; they are in no score."""
        return len(self._nameless)

    def fold(
        self, run: ToolFact, at: BrokerMoment, dead_air: DeadAirWatch, bot: BotHistory | None
    ) -> None:
        """Folds one step of a use. One step of several needs to have the name. `bot` is None where
        a simulated caller hears the call.
        """
        call_id, is_over = run.call_id, run.state is not ToolState.RUNS
        if run.state is ToolState.ASKED:
            return
        if (call_id, is_over) not in self._heard:
            self._heard.add((call_id, is_over))
            dead_air.note(
                SilenceKind.FUNCTION_SETTLED if is_over else SilenceKind.FUNCTION_CALLED,
                run.at_ms,
                at,
            )
        if bot is None or self._gave_way_at is not None:
            return
        if run.name is None and call_id not in self._names:
            self._nameless.setdefault(call_id, []).append(run)
            return
        name = self._names.setdefault(call_id, run.name or "")
        for step in (*self._nameless.pop(call_id, ()), run):
            self._use(bot, step._replace(name=name))

    def _use(self, bot: BotHistory, run: ToolFact) -> None:
        if run.state is ToolState.RUNS:
            self._tools.called(bot, run)
        elif run.began_ms is not None:
            self._tools.called(bot, run._replace(at_ms=run.began_ms, value=None))
        if run.state is ToolState.ANSWERED:
            self._tools.answered(bot, run)

    def give_way(self, at: BrokerMoment, dead_air: DeadAirWatch, bot: BotHistory | None) -> None:
        """Drops these tools: another source, the audit log or an ElevenLabs agent, has reported a
        tool at this moment.

        They leave the timeline at once, the earlier ones too. A silence that one of them explains
        is decided in the broker's order, so there they count until the first such moment in that
        order.
        """
        if self._gave_way_at is None and bot is not None:
            self._tools.withdraw(bot)
            self._nameless.clear()
        if self._gave_way_at is None or at < self._gave_way_at:
            self._gave_way_at = at
            dead_air.note(SilenceKind.FUNCTIONS_GAVE_WAY, 0, at)


# The errors that an agent reports: how many, the newest, and which turns they fell into.

NEVER_MS: Final = 10**15
"""A threshold that no silence reaches."""
ERRORS_EVERY_MS: Final = 10_000
"""From one record of further errors to the next, in ms of the call: a bot can report one for every
frame.
"""
TOLD_AGAIN_MS: Final = 5_000
"""Two ways to tell one error are so close together at most: a server says it by two messages at
once.
"""
MAX_TOLD_ERRORS: Final = 16
"""Errors kept of a call that may be told again, the newest ones."""
MAX_ERROR_TIMES: Final = 1_000
"""Times of errors kept of a call, the earliest ones: a turn without an answer is looked up among
them.
"""


class AgentErrors:
    """The errors of the agent of one call. What is final does not depend on the order in which they
    arrive.
    """

    __slots__ = ("_count", "_newest", "_published_ms", "_rows", "_times_ms", "_told")

    def __init__(self, rows: CallRows) -> None:
        self._rows = rows
        self._count = 0
        self._newest = (0, "")
        self._published_ms = 0
        self._times_ms = array("q")
        self._told: list[tuple[str, str, int]] = []

    def is_told_again(self, told: tuple[str, str] | None, time_ms: int) -> bool:
        """Whether this is an error that was told already in the other way.

        Args:
            told: The framework's name of the error, and the way in which it is told; None if there
                is one way only.
            time_ms: When it was told.
        """
        if told is None:
            return False
        cause, told_by = told
        for place, (known, known_by, known_ms) in enumerate(self._told):
            if known == cause and known_by != told_by and abs(time_ms - known_ms) <= TOLD_AGAIN_MS:
                del self._told[place]
                return True
        self._told = [*self._told, (cause, told_by, time_ms)][-MAX_TOLD_ERRORS:]
        return False

    def fold(self, time_ms: int, component: ServiceKind | None, known_ms: int) -> None:
        """Counts an error at this time. It is in the row of the call now, or soon."""
        self._count += 1
        self._newest = max(self._newest, (time_ms, component or ""))
        insort(self._times_ms, time_ms)
        del self._times_ms[MAX_ERROR_TIMES:]
        has_doubled = not self._count & (self._count - 1)
        if has_doubled or time_ms >= self._published_ms + ERRORS_EVERY_MS:
            self._published_ms = time_ms
            self.publish(known_ms)

    def publish(self, known_ms: int) -> None:
        """Sets what is known of the errors in the row of the call; nothing without any."""
        last_ms, component = self._newest
        known = self._rows.call.errors
        errors = Errors(
            self._count, last_ms, known_ms, ServiceKind(component) if component else None
        )
        if self._count and (
            known is None or structs.replace(errors, known_ms=known.known_ms) != known
        ):
            self._rows.set_call(known_ms, errors=errors)
            self._rows.count(None, "errors")

    def is_any(self, from_s: float, until_s: float) -> bool:
        """Whether there was an error from one epoch second until before the other."""
        place = bisect_left(self._times_ms, round(from_s * MS_PER_SECOND))
        return place < len(self._times_ms) and self._times_ms[place] / MS_PER_SECOND < until_s


# The live call: turns as heard now, and their waits, interruptions, tools and silences, which it
# sets in their rows.
#
# A call with a simulated caller is heard through the caller's audio events, which make EVA's own
# turns; any other call through the bot's events. The first audio event switches from the bot's
# turns to EVA's, as a revision. Estimates of an ElevenLabs agent's turns give way to the values of
# the conversation record, once it is there.

_USER_STARTS = frozenset({BotElementKind.VAD_STARTED, BotElementKind.TURN_STARTED})
_ASSISTANTS = frozenset({BotElementKind.BOT_STARTED, BotElementKind.BOT_STOPPED})
MAX_ANSWERS: Final = 20
"""Starts of the assistant's speech that are kept, the newest ones: one may come before the silence
that it ends is known.
"""
INPUT_RANK = {source: rank for rank, source in enumerate(InputSource)}
"""Order of two records of different topics with the same broker time."""


class LiveChanges(NamedTuple):
    """Turns that one event may have changed, turns that it settled, and turns with changed uses of
    tools.
    """

    touched: AbstractSet[int] = frozenset()
    settled: Sequence[int] = ()
    with_tools: AbstractSet[int] = frozenset()


NO_CHANGES = LiveChanges()


class LiveCall:
    """Follows `history` and the speech moments of one call.

    Attributes:
        history: EVA's history of the call.
        broker_ms: Broker time of the record that is folded now.
        input_rank: The rank of its input.
        first_ms: When the call began: its start or its first event of any stream, whichever is
            earlier; None before both.
        announced_end_ms: Time of the latest `call_ended`; 0 without one.
        turns: The turns and their published moments.
        dead_air: Watches for dead air.
        records: The records of a conversation with an ElevenLabs agent.
        errors: The errors that the agent reports.
        low_ms: Time in ms that every stream has reached; minus infinity before the first.
        settle_at_ms: Time in ms at which the oldest turn that is left settles, once every stream
            has reached it; infinity without one.
        bot: The bot's own history; None where a simulated caller hears the call.
        is_told_later: Whether events come long after what they tell, as spans do.
    """

    def __init__(self, history: EvaHistory, rows: CallRows, limits: Limits) -> None:
        self.broker_ms = self.input_rank = self._logged_ms = 0
        self.first_ms: int | None = None
        self.announced_end_ms = 0
        self.turns = TurnMoments(rows)
        self.dead_air = DeadAirWatch(limits.dead_air_ms, limits.delivery_allowance_ms)
        self.history, self._rows, self._limits = history, rows, limits
        self.bot: BotHistory | None = BotHistory(history.replays, limits.allowed_lateness_ms)
        self.is_told_later = False
        self._heard_by = HeardBy.BOT
        self._watermarks: dict[InputSource, int] = {}
        self.low_ms, self.settle_at_ms, self._has_announced = -inf, inf, False
        self.records = AgentRecords()
        self._function_calls = FunctionCalls()
        self._told_waits = ToldWaits()
        self.errors = AgentErrors(rows)
        self._silences: list[
            tuple[int, Silence]
        ] = []  # newest ones, after which the assistant was not heard, with their turns
        self._answers_ms: list[int] = []  # newest ones

    @property
    def has_speech_events(self) -> bool:
        """Whether any event reports who spoke when."""
        return self.bot is None or self.bot.has_moments

    @property
    def is_simulated(self) -> bool:
        """Whether a simulated caller hears the call."""
        return self.bot is None

    @property
    def machine(self) -> EvaTurnMachine | BotTurnMachine:
        """The machine whose turns count: EVA's where a simulated caller hears the call, otherwise
        the bot's.
        """
        return self.history.machine if self.bot is None else self.bot.machine

    @property
    def turn(self) -> int:
        """The turn that the call is in."""
        return self.machine.turn

    def heard(self, since: int | None = None) -> HeardTurns:
        """The turns as they are now, in one shape, each built on demand; of EVA's trace only the
        part `since` that turn.
        """
        if self.bot is None:
            return HeardByTheCaller(self.history, self.turns.tools, since)
        return HeardByTheBot(self.bot.machine, self.history, self.turns.tools)

    @property
    def record(self) -> AgentRecord | None:
        """The record of a conversation with an ElevenLabs agent; None before it has come."""
        return self.records.current

    @property
    def broker_moment(self) -> BrokerMoment:
        """Broker time and input rank of the record that is folded now."""
        return BrokerMoment(self.broker_ms, self.input_rank)

    @property
    def newest_ms(self) -> int:
        """Latest event time of any stream; 0 before the first."""
        return max(self._watermarks.values(), default=0)

    def note_time(self, source: InputSource, time_ms: int) -> bool:
        """Moves the stream's watermark; true when every stream was past this time by the allowed
        lateness.
        """
        self._logged_ms = time_ms
        watermarks = self._watermarks
        own_ms = watermarks.get(source)
        if own_ms is not None and time_ms >= own_ms:
            if time_ms > own_ms:
                watermarks[source] = time_ms
                if own_ms == self.low_ms:
                    self.low_ms = min(watermarks.values())
            return False
        self.began(time_ms)
        is_late = time_ms < self.low_ms - self._limits.allowed_lateness_ms
        if own_ms is None:
            watermarks[source] = time_ms
            self.low_ms = min(watermarks.values())
        return is_late

    def began(self, time_ms: int) -> None:
        """Notes a start of the call, or an event; of several the earliest counts."""
        if self.first_ms is None or time_ms < self.first_ms:
            self.first_ms = time_ms

    @property
    def tells_nothing(self) -> bool:
        """Whether no speech, no words and no use of a tool are known."""
        return self.bot is not None and not len(self.bot.timeline) and not self.records.is_any

    def told_later(self) -> None:
        """Leaves dead air out of this call: its events come too late to tell silence from speech
        that is not known yet.
        """
        self.is_told_later = True
        self.dead_air = DeadAirWatch(NEVER_MS, 0)

    def moment(
        self,
        moment: BotElementKind,
        at_s: float,
        started_s: float | None = None,
        sound_id: str | None = None,
    ) -> None:
        """Folds a start or end of speech that the bot reports; an end may name its start, and a
        start the id that its words have.
        """
        bot = self.bot
        if bot is None:
            return
        if sound_id is not None and moment in _USER_STARTS:
            bot.machine.name_sound(sound_id, at_s)
        machine, at_ms = bot.machine, int(at_s * 1000)
        is_unseen, is_found = bot.is_start_unseen(moment), bot.spoken(moment, at_s, started_s)
        is_assistant = moment in _ASSISTANTS
        if is_found and started_s is not None:
            self.someone_speaks(int(started_s * 1000), is_assistant=is_assistant)
        self.dead_air.is_heard(
            HeardBy.BOT if machine.has_user_events else HeardBy.TRANSCRIPT, self.broker_moment
        )
        if is_unseen and not is_found:
            self.dead_air.note(SilenceKind.SOMEONE_SPOKE, at_ms, self.broker_moment, self._heard_by)
            if is_assistant:
                self._assistant_heard(at_ms)
        elif moment in _USER_STARTS:
            self.dead_air.note(SilenceKind.USER_STARTED, at_ms, self.broker_moment, self._heard_by)
        elif moment is BotElementKind.BOT_STARTED:
            self.someone_speaks(at_ms, is_assistant=True)
        if machine.bot_turn is None and (
            (moment is BotElementKind.VAD_STOPPED and machine.pending_vad is None)
            or (
                moment is BotElementKind.TURN_RELEASED
                and not machine.turns.get(machine.turn, BotTurn()).vad_starts
            )
        ):
            self.user_fell_silent(at_ms, machine.turn)

    def audio(self, *, is_user: bool, is_start: bool, at_s: float) -> None:
        """Folds a start or end of sound at the simulated caller; EVA's history must have it
        already.
        """
        machine = self.history.machine
        if self.bot is not None:
            self.bot, self._heard_by = None, HeardBy.CALLER
            self.dead_air.is_heard(HeardBy.CALLER, self.broker_moment)
            machine.touched |= self.turns.turns | set(machine.turns) | self.records.forget()
        if is_start:
            self.someone_speaks(int(at_s * 1000), is_assistant=not is_user)
        elif (
            is_user and not machine.is_assistant_audio_open and machine.user_start_turn is not None
        ):
            self.user_fell_silent(int(at_s * 1000), machine.user_start_turn)

    def user_text(self, time_ms: int, key: int) -> None:
        """Folds the agent's transcript of a whole turn of the caller; only in a cascade does its
        stamp mark the turn's end.
        """
        bot = self.bot
        if bot is None:
            return
        bot.audited(BotElementKind.USER_TEXT, time_ms, time_ms / 1000)
        bot.said_in_log(time_ms, RankedWords(is_user=True, rank=0, ref=key))
        if bot.machine.hears_transcripts and not bot.machine.has_user_events:
            self.user_fell_silent(time_ms, bot.machine.turn, HeardBy.TRANSCRIPT)

    def assistant_text(self, time_ms: int, key: int) -> None:
        """Folds an answer of the agent."""
        if self.bot is not None:
            self.bot.said_in_log(time_ms, RankedWords(is_user=False, rank=1, ref=key))
            if self.bot.machine.is_mute:  # its words are the answer
                self.someone_speaks(time_ms, is_assistant=True)

    def message(self, said: WordsFact) -> None:
        """Folds the bot's own record of an utterance, for calls whose audit log lacks it."""
        if self.bot is None:
            return
        if said.tells_cuts:
            self.bot.report_answers()
        if not said.is_user and self.bot.machine.is_mute:
            self.someone_speaks(said.at_ms, is_assistant=True)
        self.bot.said_to_pipecat(said.at_ms, _words_of(said))

    def recorded_words(self, said: Iterable[WordsFact]) -> None:
        """Folds the words of a record that came after what it tells."""
        if self.bot is not None:
            self.bot.said_in_record((each.at_ms, _words_of(each)) for each in said)

    def pipeline_type_set(self) -> None:
        """Follows a change of the history's pipeline type: it decides whether transcripts mark the
        end of turns.
        """
        if self.bot is not None:
            self.bot.hear_transcripts(are_heard=self.history.pipeline_type is PipelineType.CASCADE)

    def tool_used(self, moment: BotElementKind, use: ToolPayload, time_ms: int) -> None:
        """Folds the call of a tool from the audit log, or the answer of one."""
        if self.bot is not None:
            self.bot.audited(moment, time_ms, use)
        self.other_tool(moment, time_ms)

    def other_tool(self, moment: BotElementKind, time_ms: int, *, is_exact: bool = True) -> None:
        """Notes a use of a tool that another source than pipecat reports; a time that is not exact
        explains no silence.
        """
        at = self.broker_moment
        self._function_calls.give_way(at, self.dead_air, self.bot)
        if is_exact:
            is_call = moment is BotElementKind.TOOL_CALL
            self.dead_air.note(
                SilenceKind.TOOL_CALLED if is_call else SilenceKind.TOOL_ANSWERED, time_ms, at
            )

    def function_call(self, run: ToolFact) -> None:
        """Folds the bot's report of a tool's progress."""
        self._function_calls.fold(run, self.broker_moment, self.dead_air, self.bot)

    def waited(self, wait: ToldWait) -> None:
        """Folds the wait for an answer as the agent's framework measured it."""
        if self.bot is not None:
            self._told_waits.fold(wait, self.bot.machine)

    @property
    def nameless_tools(self) -> int:
        """Tools of which no event of pipecat has the name."""
        return self._function_calls.nameless

    def agent_failed(self, time_ms: int, component: ServiceKind | None) -> None:
        """Folds an error that the agent reports."""
        self.errors.fold(time_ms, component, self.broker_ms)

    def bot_text(self, stamp: float, frame: str, *, is_reply: bool = False) -> None:
        """Folds text that the bot hands to speech synthesis, or a reply of its model: its speech,
        if it does not report that.
        """
        bot = self.bot
        if bot is None:
            return
        time_ms = int(stamp)
        is_new = bot.replied(time_ms, frame) if is_reply else bot.synthesised(time_ms, frame)
        if is_new and not bot.machine.has_bot_events:
            self.someone_speaks(time_ms, is_assistant=True)
        elif bot.machine.has_bot_events and not is_reply:
            self.dead_air.words_came(time_ms, len(frame), self.broker_moment, self._heard_by)

    def refresh(self, cause: Cause, out: list[Effect]) -> LiveChanges:
        """Follows the changed moments, and settles the turns that every stream has passed."""
        machine = self.machine
        touched, machine.touched = machine.touched, set()
        with_tools: set[int] = set()
        if self.records.is_any and self.bot is not None:
            touched |= self.records.follow(self.bot.machine, out)
        if touched:
            views = self._views(touched)
            with_tools = self.turns.update(touched, views, machine.last_tool, machine.turn, cause)
            touched |= with_tools
            # a call is announced with its first turn, whatever is known of it
            self.announce(cause.broker_ms)
            self._plan_settling()
        settled: Sequence[int] = ()
        if min(cause.event_time_ms or 0, self.low_ms) >= self.settle_at_ms:
            settled = self.turns.settle(
                self.low_ms - self._limits.allowed_lateness_ms, self.rests_on_open_sound
            )
            self._plan_settling()
        return LiveChanges(touched, settled, with_tools)

    def reached(self, now_ms: int) -> None:
        """Declares the dead air that broker time `now_ms` decides."""
        for each in self.dead_air.reached(now_ms):
            turn = turn_with_user_end(self.machine.turns, each.user_end_ms, each.turn)
            since_ms, threshold_ms = each.silent_since_ms, self._limits.dead_air_ms
            until_ms = min((at_ms for at_ms in self._answers_ms if at_ms >= since_ms), default=None)
            silence = Silence(each.number, since_ms, each.known_at_ms, threshold_ms, until_ms)
            self._rows.set_silence(turn, silence)
            if until_ms is None:
                self._silences = [*self._silences, (turn, silence)][-MAX_SILENCES:]

    def pass_gap(self, from_ms: int, until_ms: int) -> None:
        """Notes that no events were taken in this time: a silence that had not lasted long enough
        by its beginning is given up.
        """
        behind_all = BrokerMoment(from_ms, max(INPUT_RANK.values()))
        self.dead_air.note(SilenceKind.SOMEONE_SPOKE, until_ms, behind_all)

    def set_labels(self, labels: Labels, traceparent: str | None, known_ms: int) -> None:
        """Sets the labels of the call, and its span unless that is None."""
        self._rows.set_call(
            known_ms, labels=labels, traceparent=traceparent or self._rows.call.traceparent
        )
        self.announce(known_ms)

    def announce(self, known_ms: int) -> None:
        """Has a row of the call made, unless there was one before."""
        if not self._has_announced:
            self._has_announced = True
            self._rows.announce(known_ms)

    def finish(self, known_ms: int) -> None:
        """Sets the moments that change at the end of the call, with open sound closed as EVA closes
        it.
        """
        if self.bot is not None:
            self.bot.machine.is_over = True
        self.records.finish(None if self.bot is None else self.bot.machine)
        self.turns.finish(
            self._views(None, self.history.session_end_s()), self.machine.last_tool, known_ms
        )
        self.errors.publish(known_ms)

    def is_answer_over(self, turn: int) -> bool:
        """Whether the agent has answered in the turn and is silent now. Without sound it is,
        because its words are whole utterances; text for a synthesis that is not reported may go on.
        """
        if self.bot is None:
            return self.is_agent_silent(turn)
        machine = self.bot.machine
        state = machine.turns.get(turn)
        if state is None:
            return False
        if state.bot_starts:
            return machine.bot_turn != turn
        return bool(state.agent_said) or machine.is_mute

    def is_agent_silent(self, turn: int) -> bool:
        """Whether the agent has sounded in the turn, and none of its sounds goes on."""
        if self.bot is None:
            heard = self.history.machine.turns.get(turn)
            return heard is not None and 0 < len(heard.assistant_starts) <= len(
                heard.assistant_ends
            )
        state, machine = self.bot.machine.turns.get(turn), self.bot.machine
        return state is not None and bool(state.bot_starts) and machine.bot_turn != turn

    def sounds(self, turn: int) -> TurnSounds:
        """The sounds of a turn, as its row has them."""
        state = self.machine.turns.get(turn)
        return NO_SOUNDS if state is None else state.sounds

    def rests_on_open_sound(self, turn: int) -> bool:
        """Whether an open sound hides a value of the turn."""
        heard = self.heard().turn(turn)
        return heard is not None and heard.rests_on_open_sound

    def _views(self, numbers: set[int] | None, end_s: float | None = None) -> dict[int, TurnView]:
        """Views of the existing turns among `numbers`, or of all; EVA's open sound ends
        at `end_s`.
        """
        if self.bot is None:
            of_caller = self.history.machine.turns
            return {
                turn: view_of_eva_turn(of_caller[turn], end_s)
                for turn in _among(of_caller, numbers)
            }
        machine, record = self.bot.machine, self.record
        views = {turn: view_of_bot_turn(machine, turn) for turn in _among(machine.turns, numbers)}
        if self._told_waits:
            views = {
                turn: self._told_waits.revised(machine, turn, view) for turn, view in views.items()
            }
        return (
            views
            if record is None
            else {turn: record.revised(turn, view) for turn, view in views.items()}
        )

    def _plan_settling(self) -> None:
        since_ms = self.turns.unsettled_since_ms
        self.settle_at_ms = inf if since_ms is None else since_ms + self._limits.allowed_lateness_ms

    def user_fell_silent(self, end_ms: int, turn: int, heard_by: HeardBy | None = None) -> None:
        """Begins a silence: the caller has finished. `heard_by` is the better of the caller and the
        bot by default.
        """
        self.dead_air.user_ended(
            end_ms, self._logged_ms, self.broker_moment, turn, heard_by or self._heard_by
        )

    def someone_speaks(self, start_ms: int, *, is_assistant: bool) -> None:
        """Ends the silence."""
        self.dead_air.note(SilenceKind.SPEECH_STARTED, start_ms, self.broker_moment, self._heard_by)
        if is_assistant:
            self._assistant_heard(start_ms)

    def _assistant_heard(self, at_ms: int) -> None:
        """Notes until when the caller has waited through silences that became dead air, or are
        about to.
        """
        self._answers_ms = [*self._answers_ms, at_ms][-MAX_ANSWERS:]
        if self._silences:
            for turn, silence in self._silences:
                if silence.since_ms <= at_ms:
                    self._rows.end_silence(turn, silence.number, at_ms, self.broker_ms)
            self._silences = [each for each in self._silences if each[1].since_ms > at_ms]


def _among(turns: Mapping[int, object], numbers: Iterable[int] | None) -> Iterable[int]:
    """The numbers of existing turns among `numbers`, or of all."""
    return turns if numbers is None else [number for number in numbers if number in turns]


def _words_of(said: WordsFact) -> RankedWords:
    """Words of the bot's framework, for the timeline."""
    rank = 1 if said.is_user else MESSAGE_RANK
    return RankedWords(
        said.is_user,
        rank,
        said.text,
        is_cut=said.is_cut,
        is_turn=said.is_user,
        sounded_s=said.sounded_s,
        sound_id=said.sound_id,
        at_ms=said.at_ms,
    )
