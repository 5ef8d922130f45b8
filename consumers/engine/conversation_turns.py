"""The turns of a conversation as goals are judged on them: what was said, which tools were used, from when to when."""

from collections.abc import Iterable, Mapping
from json import dumps
from typing import Any

from consumers.engine.call_redaction import CallRedactor
from consumers.engine.history import EvaHistory
from consumers.engine.live_side import LiveSide
from consumers.engine.redaction import Redactor
from consumers.engine.speaking import SpeakingMachine, SpeakingTurn, Words
from consumers.engine.tool_uses import PairedUse, ToolUses, outcome_of
from consumers.engine.turn_facts import CalledTool, TurnFacts
from consumers.engine.turn_machine import TurnMachine
from consumers.engine.turn_state import TurnState, joined
from schemas.judging import TranscriptItem
from schemas.scores import ToolOutcome
from schemas.wire import MAX_TEXT_CHARS

MS_PER_SECOND = 1_000
MAX_ITEM_CHARS = 20_000
"""What is kept of one tool's arguments or answer in a judge's transcript; the longest recorded ones have 6,000."""


class ConversationTurns:
    """Follows the turn machine: facts of each turn from the greeting (turn 0) on."""

    def __init__(self) -> None:
        self._tools = ToolUses()
        self._uses: dict[int, dict[int, PairedUse]] = {}

    def follow(self, machine: TurnMachine | SpeakingMachine) -> set[int]:
        """Take over what changed in the tools of the call.

        Returns:
            The turns in which something did.
        """
        changed = self._tools.follow(machine.last_tool)
        for (turn, index), use in changed.items():
            uses = self._uses.setdefault(turn, {})
            if use is None:
                uses.pop(index, None)
            else:
                uses[index] = use
        return {turn for turn, _ in changed}

    def facts(self, live: LiveSide, turns: range) -> dict[int, TurnFacts]:
        """What is known now of these turns; one that has nothing is a turn in which nothing was said."""
        machine = live.machine
        if isinstance(machine, SpeakingMachine):
            return {turn: self._heard_by_the_bot(machine, live.history, turn) for turn in turns}
        times = _times(machine, turns.start)
        return {turn: self._heard_by_the_caller(machine.turns.get(turn), turn, times.get(turn, [])) for turn in turns}

    def _heard_by_the_caller(self, state: TurnState | None, turn: int, times_ms: list[int]) -> TurnFacts:
        if state is None:
            return self._facts(turn, "", "", times_ms)
        for heard in (state.user_starts, state.user_ends, state.assistant_starts, state.assistant_ends):
            times_ms += (int(time_s * MS_PER_SECOND) for time_s in heard)
        user = _words(state.transcribed_user, state.intended_user)
        return self._facts(turn, user, _words(state.intended_assistant, state.transcribed_assistant), times_ms)

    def _heard_by_the_bot(self, machine: SpeakingMachine, history: EvaHistory, turn: int) -> TurnFacts:
        heard = machine.turns.get(turn, SpeakingTurn())
        times_ms = [int(time_s * MS_PER_SECOND) for time_s in heard.times_s]
        said = machine.words.get(turn, ())
        user, assistant = _best(said, history, is_user=True), _best(said, history, is_user=False)
        return self._facts(turn, user, assistant, times_ms)

    def _facts(self, turn: int, user: str, assistant: str, times_ms: list[int]) -> TurnFacts:
        uses = self._uses.get(turn, {})
        ordered = [uses[index] for index in sorted(uses)]
        for use in ordered:
            if use.called_at_ms is not None:
                times_ms += (use.called_at_ms, use.called_at_ms + (use.duration_ms or 0))
        calls = tuple(map(_called, ordered))
        return TurnFacts(user, assistant, calls, min(times_ms, default=None), max(times_ms, default=None))


def transcript_of(turn: int, facts: TurnFacts, redactor: Redactor | CallRedactor) -> tuple[TranscriptItem, ...]:
    """The turn as a judge reads it, without personal data."""
    items = []
    if facts.user_words:
        items.append(TranscriptItem(turn=turn, kind="user", text=redactor.beginning(facts.user_words, MAX_TEXT_CHARS)))
    for call in facts.calls:
        items.append(TranscriptItem(turn=turn, kind="tool_call", text=_json(call.arguments, redactor), tool=call.tool))
        if call.is_success is not None:
            items.append(
                TranscriptItem(turn=turn, kind="tool_response", text=_json(_answer(call), redactor), tool=call.tool)
            )
    if facts.assistant_words:
        items.append(
            TranscriptItem(turn=turn, kind="assistant", text=redactor.beginning(facts.assistant_words, MAX_TEXT_CHARS))
        )
    return tuple(items)


def _answer(call: CalledTool) -> object:
    """The answer, which says that the tool failed where it did: a judge sees nothing else of it."""
    says_enough = call.is_success or outcome_of(call.answer) is ToolOutcome.ERROR
    return call.answer if says_enough else {"status": "error", "result": call.answer}


def _called(use: PairedUse) -> CalledTool:
    arguments: Mapping[str, Any] = use.arguments if isinstance(use.arguments, Mapping) else {}
    is_success = None if use.outcome is None else use.outcome is ToolOutcome.SUCCESS
    return CalledTool(use.tool, arguments, use.answer, is_success)


def _words(*texts: Any) -> str:
    """The first of these texts that says something: what was understood before what was meant, and so on."""
    return next((words for text in texts if text is not None and (words := joined(text).strip())), "")


def _best(said: Iterable[Words], history: EvaHistory, *, is_user: bool) -> str:
    """What one side said, by the source that knows best of those that say anything."""
    by_rank: dict[int, list[str]] = {}
    for words in said:
        if words.is_user is is_user:
            text = words.ref if isinstance(words.ref, str) else history.text_at(words.ref)
            if text.strip():
                by_rank.setdefault(words.rank, []).append(text.strip())
    return " ".join(by_rank[min(by_rank)]) if by_rank else ""


def _json(value: object, redactor: Redactor | CallRedactor) -> str:
    text = _dumped(value)
    # What is cut is no JSON any more, so it is a text like others.
    if len(text) > MAX_ITEM_CHARS:
        return redactor.beginning(text, MAX_ITEM_CHARS)
    redacted = redactor.redact_value(value)
    return text if redacted == value else _dumped(redacted)[:MAX_ITEM_CHARS]


def _dumped(value: object) -> str:
    return dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _times(machine: TurnMachine, first_turn: int) -> dict[int, list[int]]:
    """Times of the trace's entries, of the turns from this one on; the trace is read back no further than they reach."""
    times: dict[int, list[int]] = {}
    entry = machine.trace
    while entry is not None and entry.turn >= first_turn:
        if entry.time_ms is not None:
            times.setdefault(entry.turn, []).append(entry.time_ms)
        entry = entry.previous
    return times
