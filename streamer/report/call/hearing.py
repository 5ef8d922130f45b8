"""Sound, words and tools of a recorded call, from the engine: speech with its times, texts, and uses of tools."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

from consumers.engine.call import Call
from consumers.engine.turns.heard import HeardSide, HeardSides, HeardTurn, Purpose, answers_of
from consumers.engine.turns.timeline import PairedUse
from schemas.closed_sets import Speaker
from schemas.metric_context import AudioSegments, MetricContext
from streamer.report.call.intervals import Stretch, in_order
from streamer.report.drawing.numbers import MS_PER_SECOND

_OUTLIER_MS: Final = 600_000
"""An event whose clock is further than this from any sound says nothing of when the call was."""


class Said(NamedTuple):
    """Words of one speaker; `at_ms` is None where the call does not say when."""

    speaker: Speaker
    text: str
    at_ms: float | None


class TurnHeard(NamedTuple):
    """One turn: its words and actions, in this order.

    `meant_by_user` and `heard_by_user` are there in a call with a simulated user: what it meant to say, and what it
    understood the assistant to say.
    """

    turn: int
    items: tuple[Said | PairedUse, ...]
    meant_by_user: str | None = None
    heard_by_user: str | None = None


class HeardCall(NamedTuple):
    """One call; times in epoch milliseconds, and from `start_ms` to `end_ms` everything of it happened."""

    context: MetricContext
    start_ms: float
    end_ms: float
    stretches: tuple[Stretch, ...]
    tools: tuple[PairedUse, ...]
    turns: tuple[TurnHeard, ...]

    @property
    def has_ends(self) -> bool:
        """Whether every stretch of speech has a known end."""
        return all(each.end_ms > each.start_ms for each in self.stretches)


def heard_in(call: Call, times_ms: Iterable[float]) -> HeardCall:
    """Reads from the engine the words of each side, with their times.

    Args:
        call: The call after its last event.
        times_ms: When its events were.
    """
    context, heard = call.context(), call.live.heard()
    tools = tuple(call.live.turns.tools)
    if heard.is_simulated:
        stretches = in_order(
            chain(
                _from_audio(context.audio_timestamps_user_turns, Speaker.USER),
                _from_audio(context.audio_timestamps_assistant_turns, Speaker.ASSISTANT),
            )
        )
        turns = _turns_by_trace(context, tools)
    else:
        said = heard.turns(sorted(heard.numbers()))
        stretches = in_order(_from_bot(said, heard.sides))
        turns = _turns_by_bot(said)
    start_ms, end_ms = _span(times_ms, stretches)
    return HeardCall(context, start_ms, end_ms, stretches, tools, turns)


def _from_audio(segments: AudioSegments, speaker: Speaker) -> Iterator[Stretch]:
    for turn, heard in segments.items():
        for start_s, end_s in heard or ():
            start_ms = start_s * MS_PER_SECOND
            yield Stretch(speaker, turn, start_ms, max(start_ms, end_s * MS_PER_SECOND))


def _from_bot(turns: Mapping[int, HeardTurn], sides: HeardSides) -> Iterator[Stretch]:
    """Sound as the live turns take it; of a side without any the moments of its texts."""
    for number, turn in turns.items():
        user, assistant = turn.user, turn.assistant
        yield from _stretches(Speaker.USER, number, user.starts or user.texts_s, user.ends if user.starts else ())
        starts = assistant.starts if sides.assistant else assistant.texts_s
        yield from _stretches(Speaker.ASSISTANT, number, starts, assistant.ends)


def _stretches(speaker: Speaker, turn: int, starts: Sequence[float], ends: Sequence[float]) -> Iterator[Stretch]:
    for start_s, end_s in zip_longest(starts, ends[: len(starts)]):
        start_ms = start_s * MS_PER_SECOND
        yield Stretch(speaker, turn, start_ms, start_ms if end_s is None else max(start_ms, end_s * MS_PER_SECOND))


def _span(times_ms: Iterable[float], stretches: Sequence[Stretch]) -> tuple[float, float]:
    kept = list(times_ms)
    if stretches:
        first_ms, last_ms = stretches[0].start_ms, max(each.end_ms for each in stretches)
        near = [each for each in kept if first_ms - _OUTLIER_MS <= each <= last_ms + _OUTLIER_MS]
        kept = [first_ms, last_ms, *near]
    return min(kept, default=0.0), max(kept, default=0.0)


def _turns_by_bot(turns: Mapping[int, HeardTurn]) -> tuple[TurnHeard, ...]:
    """The turns in the words of the transcript; a caller whom nobody has transcribed yet has the log's placeholder."""
    answers = answers_of(turns)
    found = []
    for number, turn in turns.items():
        items: list[Said | PairedUse] = []
        if words := turn.user.said(Purpose.SPOKEN) or turn.user.said(Purpose.JUDGED):
            items.append(Said(Speaker.USER, words, _first_ms(turn.user)))
        items += turn.tools
        if words := answers[number]:
            items.append(Said(Speaker.ASSISTANT, words, _first_ms(turn.assistant)))
        found.append(TurnHeard(number, tuple(items)))
    return tuple(found)


def _first_ms(side: HeardSide) -> float | None:
    times_s = side.starts or side.texts_s
    return times_s[0] * MS_PER_SECOND if times_s else None


def _turns_by_trace(context: MetricContext, tools: Sequence[PairedUse]) -> tuple[TurnHeard, ...]:
    """The turns in the order of EVA's trace; each tool is shown at its call, or at an answer without one."""
    waiting: dict[tuple[int, str], list[PairedUse]] = {}
    for use in reversed(tools):
        waiting.setdefault((use.turn, use.tool), []).append(use)
    items: dict[int, list[Said | PairedUse]] = {}
    for entry in context.conversation_trace:
        turn = int(entry["turn_id"])
        of_turn = items.setdefault(turn, [])
        if entry["type"] not in ("tool_call", "tool_response"):
            of_turn.append(Said(Speaker(entry["role"]), str(entry["content"] or ""), _time_of(entry)))
            continue
        uses = waiting.get((turn, str(entry["tool_name"])), [])
        # The answer to a tool call is shown with its call.
        if uses and (entry["type"] == "tool_call") is (uses[-1].called_at_ms is not None):
            of_turn.append(uses.pop())
    return tuple(
        TurnHeard(
            turn,
            tuple(of_turn),
            _otherwise(context.intended_user_turns.get(turn), context.transcribed_user_turns.get(turn)),
            _otherwise(context.transcribed_assistant_turns.get(turn), context.intended_assistant_turns.get(turn)),
        )
        for turn, of_turn in items.items()
    )


def _time_of(entry: Mapping[str, Any]) -> float | None:
    stamp = entry.get("timestamp")
    return float(stamp) if isinstance(stamp, int | float) else None


def _otherwise(text: str | None, shown: str | None) -> str | None:
    """The text, unless the same words are shown already."""
    if not text or (shown is not None and text.split() == shown.split()):
        return None
    return text
