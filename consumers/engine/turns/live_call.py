"""The live call: turns as heard now, and their latencies, interruptions, tools and silences as records to publish.

A call with a simulated caller is heard through the caller's audio events, which make EVA's own turns; any other call through
the bot's events. The first audio event switches from the bot's turns to EVA's, as a revision. Estimates of an ElevenLabs
agent's turns give way to the values of the conversation record, once it is there.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import NamedTuple

from consumers.engine.effects import Effect, PublishScore
from consumers.engine.limits import Limits
from consumers.engine.records.label_history import LabelHistory
from consumers.engine.records.revisions import Cause, Revisions
from consumers.engine.turns.bot.agent_record import AgentRecord
from consumers.engine.turns.bot.agent_records import AgentRecords
from consumers.engine.turns.bot.bot_turn import BotTurn, SpeechMoment, Words
from consumers.engine.turns.bot.history import BotHistory
from consumers.engine.turns.bot.turn_machine import BotTurnMachine
from consumers.engine.turns.dead_air import DeadAir, DeadAirWatch
from consumers.engine.turns.eva.history import EvaHistory
from consumers.engine.turns.eva.turn_machine import EvaTurnMachine
from consumers.engine.turns.function_calls import FunctionCalls
from consumers.engine.turns.heard.by_the_bot import HeardByTheBot, views_by_the_bot
from consumers.engine.turns.heard.by_the_caller import HeardByTheCaller, views_by_the_caller
from consumers.engine.turns.heard.heard_turn import HeardTurns
from consumers.engine.turns.moments import TurnMoments
from consumers.engine.turns.timeline.elements import ToolUse
from consumers.engine.turns.timeline.silence import BrokerMoment, HeardBy
from consumers.engine.turns.timeline.turn_view import TurnView, turn_with_user_end
from schemas.closed_sets import InputSource
from schemas.events.call import PipelineType
from schemas.events.elevenlabs_record import ConversationRecord
from schemas.events.pipecat import FunctionCall, Message, message_began_ms
from schemas.scores.all_records import AnyScoreRecord, CallLabels, CallStartedFact, DeadAirFact, TurnStatus

_USER_STARTS = frozenset({SpeechMoment.VAD_STARTED, SpeechMoment.TURN_STARTED})
INPUT_RANK = {source: rank for rank, source in enumerate(InputSource)}
"""Order of two records of different topics with the same broker time."""


class LiveChanges(NamedTuple):
    """Turns that one event may have changed, turns that it settled, and turns with changed uses of tools."""

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
        first_ms: When the call began: its start or its first event of any stream, whichever is earlier; None before both.
        turns: The turns and their published moments.
        dead_air: Watches for dead air.
        bot: The bot's own history; None where a simulated caller hears the call.
    """

    def __init__(self, history: EvaHistory, revisions: Revisions, limits: Limits) -> None:
        self.broker_ms = self.input_rank = self._logged_ms = 0
        self.first_ms: int | None = None
        self.turns = TurnMoments(revisions)
        self.dead_air = DeadAirWatch(limits.dead_air_ms, limits.delivery_allowance_ms)
        self.history, self._revisions, self._limits = history, revisions, limits
        self.bot: BotHistory | None = BotHistory(history.replays)
        self._heard_by = HeardBy.BOT
        self._watermarks: dict[InputSource, int] = {}
        self._settle_at_ms, self._has_announced = inf, False
        self._found: list[DeadAir] = []
        self._labels = LabelHistory()
        self._records = AgentRecords()
        self._function_calls = FunctionCalls()

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
        """The machine whose turns count: EVA's where a simulated caller hears the call, otherwise the bot's."""
        return self.history.machine if self.bot is None else self.bot.machine

    @property
    def turn(self) -> int:
        """The turn that the call is in."""
        return self.machine.turn

    def heard(self, since: int | None = None) -> HeardTurns:
        """The turns as they are now, in one shape, each built on demand; of EVA's trace only the part `since` that turn."""
        if self.bot is None:
            return HeardByTheCaller(self.history, self.turns.tools, since)
        return HeardByTheBot(self.bot.machine, self.history, self.turns.tools)

    @property
    def record(self) -> AgentRecord | None:
        """The record of a conversation with an ElevenLabs agent; None before it has come."""
        return self._records.current

    @property
    def broker_moment(self) -> BrokerMoment:
        """Broker time and input rank of the record that is folded now."""
        return BrokerMoment(self.broker_ms, self.input_rank)

    @property
    def newest_ms(self) -> int:
        """Latest event time of any stream; 0 before the first."""
        return max(self._watermarks.values(), default=0)

    def note_time(self, source: InputSource, time_ms: int) -> bool:
        """Moves the stream's watermark; true when every stream was past this time by the allowed lateness."""
        self._logged_ms = time_ms
        watermarks = self._watermarks
        own_ms = watermarks.get(source)
        if own_ms is not None and time_ms >= own_ms:
            if time_ms > own_ms:
                watermarks[source] = time_ms
            return False
        self.began(time_ms)
        low_ms = min(watermarks.values(), default=time_ms)
        if own_ms is None:
            watermarks[source] = time_ms
        return time_ms < low_ms - self._limits.allowed_lateness_ms

    def began(self, time_ms: int) -> None:
        """Notes a start of the call, or an event; of several the earliest counts."""
        if self.first_ms is None or time_ms < self.first_ms:
            self.first_ms = time_ms

    def moment(self, moment: SpeechMoment, at_s: float, started_s: float | None = None) -> None:
        """Folds a start or end of speech that the bot reports; an end may name its start."""
        bot = self.bot
        if bot is None:
            return
        machine, at_ms = bot.machine, int(at_s * 1000)
        is_unseen, is_found = bot.is_start_unseen(moment), bot.spoken(moment, at_s, started_s)
        if is_found and started_s is not None:
            self.someone_speaks(int(started_s * 1000))
        self.dead_air.is_heard(HeardBy.BOT if machine.has_user_events else HeardBy.TRANSCRIPT, self.broker_moment)
        if is_unseen and not is_found:
            self.dead_air.someone_spoke(at_ms, self.broker_moment, self._heard_by)
        elif moment in _USER_STARTS:
            self.dead_air.user_started(at_ms, self.broker_moment, self._heard_by)
        elif moment is SpeechMoment.BOT_STARTED:
            self.someone_speaks(at_ms)
        if machine.bot_turn is None and (
            (moment is SpeechMoment.VAD_STOPPED and machine.pending_vad is None)
            or (moment is SpeechMoment.TURN_RELEASED and not machine.turns.get(machine.turn, BotTurn()).vad_starts)
        ):
            self.user_fell_silent(at_ms, machine.turn)

    def audio(self, *, is_user: bool, is_start: bool, at_s: float) -> None:
        """Folds a start or end of sound at the simulated caller; EVA's history must have it already."""
        machine = self.history.machine
        if self.bot is not None:
            self.bot, self._heard_by = None, HeardBy.CALLER
            self.dead_air.is_heard(HeardBy.CALLER, self.broker_moment)
            machine.touch(self.turns.turns | set(machine.turns) | self._records.forget())
        if is_start:
            self.someone_speaks(int(at_s * 1000))
        elif is_user and not machine.is_assistant_audio_open and machine.user_start_turn is not None:
            self.user_fell_silent(int(at_s * 1000), machine.user_start_turn)

    def user_text(self, time_ms: int, key: int) -> None:
        """Folds the agent's transcript of a whole turn of the caller; only in a cascade does its stamp mark the turn's end."""
        bot = self.bot
        if bot is None:
            return
        bot.audited(SpeechMoment.USER_TEXT, time_ms, time_ms / 1000)
        bot.said_in_log(time_ms, Words(is_user=True, rank=0, ref=key))
        if bot.machine.hears_transcripts and not bot.machine.has_user_events:
            self.user_fell_silent(time_ms, bot.machine.turn, HeardBy.TRANSCRIPT)

    def assistant_text(self, time_ms: int, key: int) -> None:
        """Folds an answer of the agent."""
        if self.bot is not None:
            self.bot.said_in_log(time_ms, Words(is_user=False, rank=1, ref=key))
            if self.bot.machine.is_mute:  # its words are the answer
                self.someone_speaks(time_ms)

    def fell_back(self, time_ms: int) -> None:
        """Folds a step of the agent's turn-end timer."""
        if self.bot is not None:
            self.bot.fell_back(time_ms)

    def message(self, time_ms: int, text: str, message: Message, *, is_user: bool) -> None:
        """Folds pipecat's own record of an utterance, for calls whose audit log lacks it."""
        if self.bot is None:
            return
        # An utterance that was cut off is logged after the caller has begun, and belongs to the turn before.
        if not is_user:
            time_ms = message_began_ms(message.timestamp, time_ms)
            if message.says_what_was_heard:
                self.bot.report_answers()
            if self.bot.machine.is_mute:
                self.someone_speaks(time_ms)
        is_cut = not is_user and message.interrupted is True
        words = Words(is_user, 1 if is_user else 2, text, is_cut=is_cut, is_turn=is_user)
        self.bot.said_to_pipecat(time_ms, words)

    def pipeline_type_set(self) -> None:
        """Follows a change of the history's pipeline type: it decides whether transcripts mark the end of turns."""
        if self.bot is not None:
            self.bot.hear_transcripts(are_heard=self.history.pipeline_type is PipelineType.CASCADE)

    def tool_used(self, moment: SpeechMoment, use: ToolUse, time_ms: int) -> None:
        """Folds the call of a tool from the audit log, or the answer of one."""
        if self.bot is not None:
            self.bot.audited(moment, time_ms, use)
        self.other_tool(moment, time_ms)

    def other_tool(self, moment: SpeechMoment, time_ms: int, *, is_exact: bool = True) -> None:
        """Notes a use of a tool that another source than pipecat reports; a time that is not exact explains no silence."""
        at = self.broker_moment
        self._function_calls.give_way(at, self.dead_air, self.bot)
        if is_exact:
            used = self.dead_air.tool_called if moment is SpeechMoment.TOOL_CALL else self.dead_air.tool_answered
            used(time_ms, at)

    def function_call(self, call: FunctionCall, time_ms: int) -> None:
        """Folds pipecat's report of a tool's progress."""
        self._function_calls.fold(call, time_ms, self.broker_moment, self.dead_air, self.bot)

    def bot_marked(self) -> None:
        """Folds one of EVA's turn markers: a border of texts."""
        if self.bot is not None:
            self.bot.marked()

    def bot_text(self, stamp: float, frame: str, *, is_reply: bool = False) -> None:
        """Folds text that the bot hands to speech synthesis, or a reply of its model: its speech, if it does not report that."""
        bot = self.bot
        if bot is None:
            return
        time_ms = int(stamp)
        is_new = bot.replied(time_ms, frame) if is_reply else bot.synthesised(time_ms, frame)
        if is_new and not bot.machine.has_bot_events:
            self.someone_speaks(time_ms)
        elif bot.machine.has_bot_events and not is_reply:
            self.dead_air.words_came(time_ms, len(frame), self.broker_moment, self._heard_by)

    def fold_agent_record(self, record: ConversationRecord) -> None:
        """Folds a conversation record of an ElevenLabs agent's provider; of several the most complete counts."""
        self._records.fold(record)

    def may_have_changed(self, time_ms: int) -> bool:
        """Whether an event of this time may have changed or settled a turn. Nine of ten do not."""
        return bool(self.machine.touched) or self._records.is_any or time_ms >= self._settle_at_ms

    def refresh(self, cause: Cause, out: list[Effect]) -> LiveChanges:
        """Publishes the changed moments, and settles the turns that every stream has passed."""
        machine = self.machine
        touched = machine.drain_touched()
        with_tools: set[int] = set()
        if self._records.is_any and self.bot is not None:
            touched |= self._records.follow(self.bot.machine, out)
        if touched:
            views = self._views(touched)
            records, with_tools = self.turns.update(touched, views, machine.last_tool, machine.turn, cause)
            touched |= with_tools
            self._publish(records, out)
            if not self._has_announced:
                self.announce(cause.broker_ms, out)  # a call is announced with its first turn, whatever is known of it
            self._plan_settling()
        settled: Sequence[int] = ()
        if (cause.event_time_ms or 0) >= self._settle_at_ms:
            low_ms = min(self._watermarks.values())
            if low_ms >= self._settle_at_ms:
                passed_ms = low_ms - self._limits.allowed_lateness_ms
                settled = self.turns.settle(passed_ms, self.rests_on_open_sound)
                self._plan_settling()
        return LiveChanges(touched, settled, with_tools)

    def reached(self, now_ms: int, out: list[Effect]) -> None:
        """Declares the dead air that broker time `now_ms` decides."""
        self._found += self.dead_air.reached(now_ms)
        self._declare_dead_air(out)

    def set_labels(self, labels: CallLabels, broker_ms: int, out: list[Effect]) -> None:
        """Sets the labels of the call; a change is published at once."""
        if labels != self._revisions.labels:
            self._revisions.labels = labels
            self._labels.note(self.broker_ms, labels)
            self._has_announced = False
        self.announce(broker_ms, out)

    def announce(self, broker_ms: int, out: list[Effect]) -> None:
        """Publishes the call itself, before its first other record and whenever its labels change."""
        if self._has_announced:
            return
        self._has_announced = True
        subject = ("call_started", None, 0)
        inputs = (self._revisions.labels.model_dump_json(),)
        record = self._revisions.make(CallStartedFact, subject, TurnStatus.OPEN, inputs, Cause(None, broker_ms))
        if record is not None:
            out.append(PublishScore(record))

    def final_records(self, cause: Cause) -> list[AnyScoreRecord]:
        """The moments that change at the end of the call, with open sound closed as EVA closes it."""
        if self.bot is not None:
            self.bot.machine.is_over = True
        self._records.finish(None if self.bot is None else self.bot.machine)
        views = self._views(None, self.history.session_end_s())
        return self.turns.final_records(views, self.machine.last_tool, cause)

    def rests_on_open_sound(self, turn: int) -> bool:
        """Whether an open sound hides a value of the turn."""
        heard = self.heard().turn(turn)
        return heard is not None and heard.rests_on_open_sound

    def _views(self, numbers: set[int] | None, end_s: float | None = None) -> dict[int, TurnView]:
        """Views of the existing turns among `numbers`, or of all; EVA's open sound ends at `end_s`."""
        if self.bot is None:
            return views_by_the_caller(self.history, numbers, end_s)
        views, record = views_by_the_bot(self.bot.machine, numbers), self.record
        return views if record is None else {turn: record.revised(turn, view) for turn, view in views.items()}

    def _publish(self, records: Sequence[AnyScoreRecord], out: list[Effect]) -> None:
        if records:
            self.announce(records[0].caused_at_ms, out)
            out.extend([PublishScore(record) for record in records])

    def _plan_settling(self) -> None:
        since_ms = self.turns.unsettled_since_ms
        self._settle_at_ms = inf if since_ms is None else since_ms + self._limits.allowed_lateness_ms

    def user_fell_silent(self, end_ms: int, turn: int, heard_by: HeardBy | None = None) -> None:
        """Begins a silence: the caller has finished. `heard_by` is the better of the caller and the bot by default."""
        self.dead_air.user_ended(end_ms, self._logged_ms, self.broker_moment, turn, heard_by or self._heard_by)

    def someone_speaks(self, start_ms: int) -> None:
        """Ends the silence."""
        self.dead_air.speech_started(start_ms, self.broker_moment, self._heard_by)

    def _declare_dead_air(self, out: list[Effect]) -> None:
        found, self._found = self._found, []
        for each in found:
            turn = turn_with_user_end(self.machine.turns, each.user_end_ms, each.turn)
            dead_air = DeadAir(each.silent_since_ms, turn, each.number, each.known_at_ms)
            known_at_ms, threshold_ms = each.known_at_ms, self._limits.dead_air_ms
            record = self._revisions.make(
                DeadAirFact, ("dead_air", turn, each.number), TurnStatus.FINAL, (dead_air,),
                Cause(each.silent_since_ms + threshold_ms, known_at_ms), labels=self._labels.at(known_at_ms),
                silent_since_ms=each.silent_since_ms, threshold_ms=threshold_ms,
            )  # fmt: skip
            if record is not None:
                self.announce(known_at_ms, out)
                out.append(PublishScore(record))
