"""Recorded calls for tests of the report, with every text in them chosen, and a redactor that shows
its input.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from consumers.engine.limits import GoalRules, Limits
from consumers.view.calls import ReportedCall
from schemas.goals.goal_set import GoalSet
from schemas.rows import ToolWords, TurnRow, WordsRow
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.files import RecordedCall
from streamer.sources.replay import with_control_events
from tests.support.calls.rows_of_calls import newest

Json = dict[str, Any]
T0_MS = 1_790_000_000_000


def recorded(
    text: str = "hello",
    *,
    name: str | None = None,
    conversation_id: str = "c",
    turns: int = 3,
    pace: float = 1.0,
) -> RecordedCall:
    """A call of so many turns in which everything that can be a text is this one; one tool fails
    and one does not answer.

    Names of things are `name`, or the text as well; all times are multiplied by `pace`.

    When speaking the second time the user interrupts, so that both speeches are turn 1; after the
    third, which is turn 2, the wait is four seconds.
    """
    name = text if name is None else name
    audit: list[Json] = []
    caller: list[Json] = []
    pipecat: list[Json] = []

    def heard(role: str, start_ms: int, end_ms: int) -> None:
        for kind, sound_ms in (("audio_start", start_ms), ("audio_end", end_ms)):
            caller.append(
                {
                    "timestamp": sound_ms,
                    "event_type": kind,
                    "user": role,
                    "audio_timestamp": sound_ms / 1_000,
                }
            )

    def answers(at_ms: int) -> None:
        audit.append({"timestamp": at_ms - 100, "message_type": "assistant", "value": text})
        pipecat.append({"timestamp": at_ms, "type": "turn_start", "data": {"frame": "turn_start"}})
        pipecat.append({"timestamp": at_ms, "type": "tts_text", "data": {"frame": text}})
        heard("pipecat_agent", at_ms, at_ms + 2_000)

    answers(T0_MS + 100)
    at_ms = T0_MS + 3_000
    for turn in range(1, turns + 1):
        start_ms = at_ms - 2_500 if turn == 2 else at_ms
        heard("elevenlabs_user", start_ms, at_ms + 1_000)
        caller.append(
            {"timestamp": at_ms + 1_000, "type": "user_speech", "data": {"text": f"{text} {turn}"}}
        )
        audit.append({"timestamp": at_ms + 1_100, "message_type": "user", "value": text})
        if turn == 1:
            audit.append(
                {
                    "timestamp": at_ms + 1_200,
                    "message_type": "tool_call",
                    "value": {"tool": name, "parameters": {text: text}},
                }
            )
            answer = {"tool": name, "response": {"status": "error", "message": text}}
            audit.append(
                {"timestamp": at_ms + 1_300, "message_type": "tool_response", "value": answer}
            )
            audit.append(
                {
                    "timestamp": at_ms + 1_350,
                    "message_type": "tool_call",
                    "value": {"tool": f"{name}2", "parameters": text},
                }
            )
        wait_ms = 4_000 if turn == 3 else 1_000
        answers(at_ms + 1_000 + wait_ms)
        at_ms += 5_000 + wait_ms
    caller.sort(key=lambda event: event["timestamp"])
    started = {
        "type": "call_started",
        "timestamp": T0_MS,
        "agent": name,
        "tenant": name,
        "environment": name,
    }
    ended = {"type": "call_ended", "timestamp": at_ms, "reason": text}
    said, heard_by_bot, heard_by_caller, control = (
        tuple(_at_pace(event, pace) for event in events)
        for events in (audit, pipecat, caller, (started, ended))
    )
    return RecordedCall(
        conversation_id, "cascade", None, said, heard_by_bot, heard_by_caller, control=control
    )


def _at_pace(event: Json, pace: float) -> Json:
    moved = {**event, "timestamp": T0_MS + int((event["timestamp"] - T0_MS) * pace)}
    if "audio_timestamp" in event:
        moved["audio_timestamp"] = T0_MS / 1_000 + (event["audio_timestamp"] - T0_MS / 1_000) * pace
    return moved


def wire_line(call: RecordedCall) -> str:
    """The call as a line of a wire-level file."""
    streams = {
        "audit": call.audit,
        "pipecat": call.pipecat,
        "user_sim": call.elevenlabs,
        "control": call.control,
    }
    return json.dumps({"id": call.conversation_id, **streams}) + "\n"


def goal_set(text: str = "hello") -> GoalSet:
    """Two subgoals that code checks, one of which every such call reaches in turn 1."""
    said = {"kind": "says", "speaker": "user", "pattern": "."}
    never = {"kind": "tool_called", "tool": "no such tool"}
    return GoalSet.model_validate(
        {
            "id": text,
            "subgoals": [
                {"id": "spoke", "details": text, "check": said},
                {"id": "used", "details": text, "check": never},
            ],
        }
    )


def reported(
    call: RecordedCall, goals: GoalSet | None = None, anchor_id: str = "c1", taken_out: str = "\x00"
) -> ReportedCall:
    """The call as a report has it; in each turn both sides say the first words of the caller."""
    call = with_control_events(call)
    scoring = RecordedScoring(call, ScoringPlan(Limits(), GoalRules(), "test"), goals)
    for _ in scoring.run():
        raise AssertionError("nothing is asked without a judge")
    row, turns, goals_row = newest(scoring.rows)
    text = next(
        (str(each["value"]) for each in call.audit or () if each["message_type"] == "user"), ""
    )
    words = words_of(turns, text) if text else ()
    return ReportedCall(row, turns, goals_row, words, anchor_id, Marks(taken_out))


def words_of(turns: Iterable[TurnRow], text: str = "hello") -> Iterator[WordsRow]:
    """Rows of words in which both sides say this in each turn, and tools are given and
    answer it.
    """
    for each in turns:
        tools = tuple(
            ToolWords(use.index, use.tool, json.dumps({text: text}), text) for use in each.tools
        )
        yield WordsRow(
            conversation_id=each.conversation_id,
            turn=each.turn,
            known_ms=each.known_ms,
            user=text,
            assistant=text,
            tools=tools,
        )


class Marks:
    """Puts `[redacted]` in place of a secret, and leaves every other text."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def redact(self, text: str) -> str:
        return text.replace(self._secret, "[redacted]")
