"""Reports of the bot itself: the finished record of an ElevenLabs agent, and uses of tools."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from consumers.engine.effects import Count, Effect
from consumers.engine.turns.bot import BotHistory, BotTurnMachine, SpeechMoment, TokenUsage
from consumers.engine.turns.timeline import MS_DIGITS, ToolUse, TurnView
from schemas.closed_sets import Anchor, InputSource
from schemas.events.elevenlabs import LATENCY_METRIC, ConversationRecord, RecordEntry
from schemas.scores.latency_stages import CONVAI_METRICS, MAX_STAGE_SECONDS, SEVERAL, Several
from schemas.units import MS_PER_SECOND
from schemas.wire import without_infinity

# Matches the turns of an ElevenLabs conversation record with the turns heard live.
#
# A record groups into turns as the live events do: a turn begins when the caller speaks after the agent has. Entries
# match live events by id. Without ids, turns match by place if both sides have as many, otherwise by the caller's
# words.

MAX_AMOUNT: Final = 1e12
"""Largest number of tokens, or price, of a turn."""
_PIECE_CHARS: Final = 64
"""Characters that cost as much to read as one turn."""


class RecordedTurn(NamedTuple):
    """One turn of a record.

    Attributes:
        user_words: The caller's words, in small letters and with single blanks.
        ids: (whether the caller's, id of the live event) of its entries.
        latency_ms: The latency that ElevenLabs measured for the caller; None without one.
        metrics: Seconds by name; of several entries' values the one that `SEVERAL` chooses.
        usage: Tokens and their prices by model.
    """

    user_words: str
    ids: frozenset[tuple[bool, int]]
    latency_ms: float | None
    metrics: Mapping[str, float]
    usage: Mapping[str, TokenUsage] = {}

    @property
    def measured(self) -> tuple[object, ...]:
        """The measured values, without the fields that identify the turn."""
        return self[2:]


_NOTHING: Final = RecordedTurn("", frozenset(), None, {})


class AgentRecord:
    """One record, matched with the turns of a call.

    Attributes:
        agent_id: ElevenLabs' id of the agent; None where the record has none.
        entries: The entries of a record of a call that is over; empty for one that was fetched too early.
        ended_reason: Why the call ended, in ElevenLabs' words; None where the record does not say.
        ended_ms: When the call ended, in ms since 1970; 0 where the record does not say.
    """

    def __init__(self, record: ConversationRecord) -> None:
        self.agent_id = record.agent_id
        self.entries = record.transcript if record.is_final else ()
        metadata = record.metadata
        self.ended_reason = metadata.termination_reason
        start_s, duration_s = metadata.start_time_unix_secs, metadata.call_duration_secs
        self.ended_ms = 0 if start_s is None or duration_s is None else int((start_s + duration_s) * MS_PER_SECOND)
        self._turns = _turns(record)
        self._worth = _worth(record)
        self._places: dict[int, int] = {}
        self._place_by_id = {each: place for place, turn in enumerate(self._turns) for each in turn.ids}
        self._spoken = [place for place, turn in enumerate(self._turns) if turn.user_words]
        self._places_by_words: dict[str, list[int]] = {}
        for place in self._spoken:
            self._places_by_words.setdefault(self._turns[place].user_words, []).append(place)

    def is_worth_less_than(self, record: ConversationRecord) -> bool:
        """Whether the other record is of a call that is over, is longer, or is newer."""
        return self._worth < _worth(record)

    @property
    def placed(self) -> dict[int, RecordedTurn]:
        """The matched live turns with their recorded ones."""
        return {turn: self._turns[place] for turn, place in self._places.items()}

    def place(self, machine: BotTurnMachine) -> int:
        """Matches each live turn with a turn of the record.

        Returns:
            The work done: turns and pieces of text read.
        """
        self._places = self._found(machine)
        return sum(1 + sum(1 + _pieces(words.ref) for words in said) for said in machine.words.values())

    def forget(self) -> None:
        """Drops the matches: the live turns are others now."""
        self._places = {}

    def recorded(self, turn: int) -> RecordedTurn:
        """The values that the record has for a live turn; none without a match."""
        place = self._places.get(turn)
        return _NOTHING if place is None else self._turns[place]

    def revised(self, turn: int, view: TurnView) -> TurnView:
        """The view of a live turn with the record's latency in place of an estimate."""
        recorded_ms = self.recorded(turn).latency_ms
        if recorded_ms is None or view.anchor is not Anchor.ESTIMATED:
            return view
        return view._replace(recorded_ms=recorded_ms, anchor=Anchor.RECORD)

    def _found(self, machine: BotTurnMachine) -> dict[int, int]:
        by_id = self._place_by_id
        found: dict[int, int] = {}
        placed: set[int] = set()
        for turn in sorted(machine.words):
            said = [(words.is_user, words.event_id) for words in machine.words[turn] if words.event_id is not None]
            place = next((by_id[each] for each in sorted(said, reverse=True) if each in by_id), None)
            if place is not None and place not in placed:
                found[turn] = place
                placed.add(place)
        return found or self._found_by_words(machine)

    def _found_by_words(self, machine: BotTurnMachine) -> dict[int, int]:
        live = [(turn, words) for turn in sorted(machine.words) if (words := _user_words(machine, turn))]
        found = {0: 0} if self._turns and 0 in machine.words and not self._turns[0].user_words else {}
        if len(live) == len(self._spoken):
            return found | {turn: place for (turn, _), place in zip(live, self._spoken, strict=True)}
        first = 0
        for turn, words in live:
            places = self._places_by_words.get(words, [])
            at = bisect_left(places, first)
            if at < len(places):
                found[turn] = places[at]
                first = places[at] + 1
        return found


def _turns(record: ConversationRecord) -> tuple[RecordedTurn, ...]:
    grouped: list[list[RecordEntry]] = [[]]
    has_agent_spoken = False
    for entry in record.transcript:
        if entry.user_words and (has_agent_spoken or len(grouped) == 1):
            grouped.append([])
            has_agent_spoken = False
        has_agent_spoken = has_agent_spoken or bool(entry.agent_words)
        grouped[-1].append(entry)
    return tuple(map(_turn, grouped))


def _turn(entries: list[RecordEntry]) -> RecordedTurn:
    said = " ".join(entry.user_words for entry in entries if entry.user_words)
    measured = [(entry.role == "user", entry.metrics) for entry in entries]
    waits_s = (seconds.get(LATENCY_METRIC, 0.0) for is_user, seconds in measured if not is_user)
    # The first wait only: a turn with tools has several, and the caller's silence precedes none of the later ones.
    wait_s = next((seconds for seconds in waits_s if 0 < seconds <= MAX_STAGE_SECONDS), None)
    return RecordedTurn(
        user_words=_plain(said),
        ids=frozenset(
            (entry.role == "user", entry.source_event_id)
            for entry in entries
            if entry.source_event_id is not None and (entry.user_words or entry.agent_words)
        ),
        latency_ms=round(wait_s * MS_PER_SECOND, MS_DIGITS) if wait_s is not None else None,
        metrics=_together(seconds for _, seconds in measured),
        usage=usage_in(entry.llm_usage for entry in entries),
    )


def _together(entries: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """A turn with tools has several entries, and an entry after a tool may repeat earlier measurements."""
    metrics: dict[str, float] = {}
    for seconds in entries:
        for name, elapsed in seconds.items():
            known = CONVAI_METRICS.get(name)
            if name not in metrics or (known is not None and SEVERAL[known.stage] is Several.LAST):
                metrics[name] = elapsed
    return metrics


def usage_in(entries: Iterable[object]) -> Mapping[str, TokenUsage]:
    """Tokens of a turn by model, from `llm_usage` of its entries. Equal counts are one count repeated: requests to a model grow
    from one to the next.
    """
    counted: list[tuple[str, TokenUsage]] = []
    for entry in entries:
        by_model = entry.get("model_usage") if isinstance(entry, Mapping) else None
        if isinstance(by_model, Mapping):
            counted += [
                (str(model), _token_usage(each)) for model, each in by_model.items() if isinstance(each, Mapping)
            ]
    usage: dict[str, TokenUsage] = {}
    for model, used in dict.fromkeys(counted):
        usage[model] = usage.get(model, TokenUsage()).plus(used)
    return usage


def _token_usage(counts: Mapping[str, object]) -> TokenUsage:
    kinds = [counts.get(kind) for kind in ("input", "input_cache_read", "input_cache_write", "output_total")]
    found = [each if isinstance(each, Mapping) else {} for each in kinds]
    tokens = [int(_amount(each.get("tokens"))) for each in found]
    return TokenUsage(*tokens, *(_amount(each.get("price")) for each in found))


def _amount(value: Any) -> float:
    """A number of tokens or of dollars; 0 for an impossible one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MAX_AMOUNT else 0.0


def _user_words(machine: BotTurnMachine, turn: int) -> str:
    said = [words.ref for words in machine.words[turn] if words.is_user]
    return _plain(" ".join(text for text in said if isinstance(text, str)))


def _pieces(ref: object) -> int:
    return len(ref) // _PIECE_CHARS if isinstance(ref, str) else 0


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _worth(record: ConversationRecord) -> tuple[bool, int, float]:
    return record.is_final, len(record.transcript), float(record.timestamp)


# The conversation records of one call with an ElevenLabs agent: chooses the best and matches it with the live turns.
#
# Several come when one is fetched while the call runs. Once matching has cost too much, it waits for the close, which
# always matches the most complete record.

MAX_RECORDS: Final = 16
"""Records of one call that are matched while it runs. A webhook sends one; a bridge that fetches too early a few."""
MAX_PLACING_WORK: Final = 500_000
"""Turns and pieces of text read to match records while one call runs, half a second; words of two hours that come after their
record, one by one, take two fifths of it.
"""

_LIMIT: Final = "callgauge_limits_hit_total"


class AgentRecords:
    """The records of one call.

    Attributes:
        current: The record that is matched with the turns; None before the first.
        is_any: Whether one has come.
    """

    def __init__(self) -> None:
        self.current: AgentRecord | None = None
        self.is_any = False
        self._newest: AgentRecord | None = None
        self._count = 0
        self._work = 0

    def fold(self, record: ConversationRecord) -> None:
        """Keeps a record if it is more complete than the best so far."""
        best = self._newest or self.current
        if best is None or best.is_worth_less_than(record):
            self._newest = AgentRecord(record)
            self.is_any = True

    def follow(self, machine: BotTurnMachine, out: list[Effect]) -> set[int]:
        """Matches a new record, and the current one again if the known words changed.

        Returns:
            The live turns with other recorded values than before.
        """
        was_over = self._work > MAX_PLACING_WORK
        record = self.current if machine.have_words_changed and not was_over else None
        if self._newest is not None and self._count <= MAX_RECORDS:
            self._count += 1
            if self._count <= MAX_RECORDS:
                record = self._newest
            else:
                out.append(Count(_LIMIT, ("agent_records",)))
        if record is None:
            return set()
        changed = self._place(record, machine)
        if self._work > MAX_PLACING_WORK and not was_over:
            out.append(Count(_LIMIT, ("placed_records",)))
        return changed

    def finish(self, machine: BotTurnMachine | None) -> None:
        """Matches the most complete record with the final words. In a call without a bot's turns (`machine` is None), match
        nothing.
        """
        record = self._newest or self.current
        if machine is None:
            self.current = record
        elif record is not None:
            self._place(record, machine)

    def forget(self) -> set[int]:
        """Drops the matches: the call's turns are EVA's from now on, and a record does not know them.

        Returns:
            The turns that had recorded values.
        """
        if self.current is None:
            return set()
        turns = set(self.current.placed)
        self.current.forget()
        return turns

    def _place(self, record: AgentRecord, machine: BotTurnMachine) -> set[int]:
        """Makes this record the current one; returns the turns with other recorded values than before."""
        before = {} if self.current is None else self.current.placed
        if record is self._newest:
            self._newest = None
        self.current = record
        self._work += record.place(machine)
        machine.have_words_changed = False
        return _changed(before, record.placed)


def _changed(before: Mapping[int, RecordedTurn], after: Mapping[int, RecordedTurn]) -> set[int]:
    pairs = {turn: (before.get(turn, _NOTHING), after.get(turn, _NOTHING)) for turn in before.keys() | after.keys()}
    return {turn for turn, (old, new) in pairs.items() if old is not new and old.measured != new.measured}


# Uses of tools as an ElevenLabs agent or pipecat reports them: with the id of the call, in any order, repeatedly.


@dataclass(slots=True)
class _Tool:
    """One use of a tool, as far as its events have come: `call` and `reply` are its keys on the timeline."""

    call: int | None = None
    called_ms: int = 0
    arguments: object = None
    reply: int | None = None
    replied_ms: int = 0
    result: object = None
    result_is_error: bool = False
    is_exact: bool = True
    is_withheld: bool = False
    took_ms: int | None = None


class ReportedTools:
    """The tools of one call that `source` reports. Of repeated reports the earlier time and the fuller value count."""

    def __init__(self, source: InputSource) -> None:
        self._source = source
        self._tools: dict[str, _Tool] = {}

    def called(
        self,
        bot: BotHistory,
        call_id: str,
        name: str,
        at_ms: int,
        arguments: object,
        event_id: int | None = None,
        *,
        is_exact: bool = True,
    ) -> bool:
        """Adds the call of a tool at `at_ms`; `arguments` are None if not reported, `is_exact` is false for a time that gives
        only the order.

        Returns:
            Whether it is the first report of this call.
        """
        tool = self._tools.setdefault(call_id, _Tool())
        is_news = tool.call is None
        if arguments is not None:
            tool.arguments = arguments
        if tool.call is not None:
            bot.timeline.remove(tool.call)
        tool.called_ms = at_ms if is_news else min(tool.called_ms, at_ms)
        tool.is_exact = tool.is_exact and is_exact
        use = ToolUse(name, tool.arguments, call_id, is_exact=tool.is_exact, source=self._source)
        tool.call = bot.from_agent(SpeechMoment.TOOL_CALL, tool.called_ms, event_id, use)
        return is_news

    def answered(
        self,
        bot: BotHistory,
        call_id: str,
        name: str,
        at_ms: int,
        result: object,
        event_id: int | None = None,
        *,
        is_error: bool,
        is_withheld: bool = False,
        is_exact: bool = True,
        took_ms: int | None = None,
    ) -> bool:
        """Adds the answer of a tool at `at_ms`.

        Args:
            bot: The timeline.
            call_id: Id of the call.
            name: Name of the tool.
            at_ms: When it answered.
            result: Its answer, parsed if the text holds JSON, so that an error in it is found; None if not reported.
            event_id: Id of the event.
            is_error: Whether it failed.
            is_withheld: Whether the producer keeps the answer back; `result` is then None, or its status alone.
            is_exact: Whether the time is its own, and not only its place in the order.
            took_ms: Its time, if the event itself has it.

        Returns:
            Whether it is the first report of this answer.
        """
        tool = self._tools.setdefault(call_id, _Tool())
        is_news = tool.reply is None
        tool.result_is_error = tool.result_is_error or is_error
        if result is not None or tool.result is None:
            tool.is_withheld = is_withheld
        if result is not None:
            tool.result = _parsed(result)
        tool.is_exact = tool.is_exact and is_exact
        tool.took_ms = took_ms if tool.took_ms is None else tool.took_ms
        if tool.reply is not None:
            bot.timeline.remove(tool.reply)
        tool.replied_ms = at_ms if is_news else min(tool.replied_ms, at_ms)
        # A failure without a result gets an answer of its own, because EVA sees no answer in None.
        answer = {"status": "error"} if tool.result is None and tool.result_is_error else tool.result
        use = ToolUse(
            name,
            answer,
            call_id,
            is_error=tool.result_is_error,
            is_withheld=tool.is_withheld and answer is tool.result,
            is_exact=tool.is_exact,
            took_ms=tool.took_ms,
            source=self._source,
        )
        tool.reply = bot.from_agent(SpeechMoment.TOOL_RESPONSE, tool.replied_ms, event_id, use)
        return is_news

    def withdraw(self, bot: BotHistory) -> None:
        """Removes these tools from the timeline: a better source reports them."""
        for key in self._keys():
            bot.timeline.remove(key)
        self._tools.clear()

    def _keys(self) -> Iterator[int]:
        for tool in self._tools.values():
            yield from (key for key in (tool.call, tool.reply) if key is not None)


def _parsed(result: object) -> object:
    if isinstance(result, str) and result.lstrip()[:1] in ("{", "["):
        try:
            return without_infinity(from_json(result, allow_inf_nan=False))
        except ValueError:
            return result
    return result


# Waits that the agent's framework measured itself, of turns in which no event tells when the answer was heard.

MAX_TOLD_WAITS: Final = 1_000
"""Waits of one call that are kept, the first ones: as many as a call may have turns."""


class ToldWaits:
    """The waits of one call, each with the stretch of time in which its turn lies. They do not depend on the order of arrival."""

    def __init__(self) -> None:
        self._waits: list[tuple[float, float, float]] = []

    def __len__(self) -> int:
        return len(self._waits)

    def fold(self, data: Any, machine: BotTurnMachine) -> None:
        """Takes the wait of a turn, and touches the turns that it may belong to; nothing if it has no stretch."""
        told = data if isinstance(data, Mapping) else {}
        begin_s, end_s, seconds = (told.get(name) for name in ("turn_began_at", "turn_ended_at", "latency_seconds"))
        if not (
            isinstance(begin_s, float | int) and isinstance(end_s, float | int) and isinstance(seconds, float | int)
        ):
            return
        if 0 < seconds <= MAX_STAGE_SECONDS and len(self._waits) < MAX_TOLD_WAITS:
            self._waits.append((begin_s, end_s, seconds))
            machine.touched.update(
                number
                for number, turn in machine.turns.items()
                if any(begin_s <= at_s <= end_s for at_s in turn.transcripts)
            )

    def revised(self, machine: BotTurnMachine, number: int, view: TurnView) -> TurnView:
        """The view of a turn with the told wait, if its words are all that is known of the answer. The turn is the last one whose
        transcript lies in the stretch: of several waits, the framework keeps the last.
        """
        turn, following = machine.turns[number], machine.turns.get(number + 1)
        if not view.is_answered_in_text or view.anchor is not Anchor.TRANSCRIPT or not turn.transcripts:
            return view
        next_s = following.transcripts[0] if following is not None and following.transcripts else inf
        told_s = [
            seconds for begin_s, end_s, seconds in self._waits if begin_s <= turn.transcripts[-1] <= end_s < next_s
        ]
        if not told_s:
            return view
        recorded_ms = round(min(told_s) * MS_PER_SECOND, MS_DIGITS)
        return view._replace(recorded_ms=recorded_ms, anchor=Anchor.VAD, source="pipecat")
