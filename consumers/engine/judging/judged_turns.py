"""The turns of a conversation as goals are judged on them: words, tools, and times."""

from collections.abc import Mapping
from json import dumps
from typing import Any

from consumers.engine.judging.turn_facts import CalledTool, TurnFacts
from consumers.engine.redaction.call_redaction import CallRedactor
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.turns.heard.heard_turn import MS_PER_SECOND, HeardTurn
from consumers.engine.turns.heard.turn_words import Purpose
from consumers.engine.turns.live_call import LiveCall
from consumers.engine.turns.timeline.tool_uses import PairedUse, outcome_of
from schemas.judging import TranscriptItem
from schemas.scores.all_records import ToolOutcome
from schemas.wire import MAX_TEXT_CHARS

MAX_ITEM_CHARS = 20_000
"""Longest arguments or answer of one tool in a judge's transcript; the longest recorded ones have 6,000."""


def facts_of(live: LiveCall, turns: range) -> dict[int, TurnFacts]:
    """The facts of these turns as known now. A turn that does not exist has empty facts."""
    heard = live.heard(since=turns.start)
    return {number: _facts(heard.turn(number)) for number in turns}


def _facts(turn: HeardTurn | None) -> TurnFacts:
    if turn is None:
        return TurnFacts("", "")
    times_ms = [*turn.words.logged_times_ms]
    times_ms += (int(time_s * MS_PER_SECOND) for times_s in turn.times_s for time_s in times_s)
    for use in turn.tools:
        if use.called_at_ms is not None:
            times_ms += (use.called_at_ms, use.called_at_ms + (use.duration_ms or 0))
    return TurnFacts(
        turn.user.said(Purpose.JUDGED),
        turn.assistant.said(Purpose.JUDGED),
        tuple(map(_called, turn.tools)),
        min(times_ms, default=None),
        max(times_ms, default=None),
    )


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
    """The answer, marked as failed where the tool failed: a judge sees no other sign of it."""
    says_enough = call.is_success or outcome_of(call.answer) is ToolOutcome.ERROR
    return call.answer if says_enough else {"status": "error", "result": call.answer}


def _called(use: PairedUse) -> CalledTool:
    arguments: Mapping[str, Any] = use.arguments if isinstance(use.arguments, Mapping) else {}
    is_known = use.outcome not in (None, ToolOutcome.UNKNOWN)
    is_success = use.outcome is ToolOutcome.SUCCESS if is_known else None
    return CalledTool(use.tool, arguments, use.answer, is_success, use.is_withheld, use.lacks_arguments)


def _json(value: object, redactor: Redactor | CallRedactor) -> str:
    text = _dumped(value)
    # A cut value is no JSON any more, so it is redacted as text.
    if len(text) > MAX_ITEM_CHARS:
        return redactor.beginning(text, MAX_ITEM_CHARS)
    redacted = redactor.redact_value(value)
    return text if redacted == value else _dumped(redacted)[:MAX_ITEM_CHARS]


def _dumped(value: object) -> str:
    return dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
