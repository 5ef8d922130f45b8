"""Measures of how a call sounded: amount of speech, overlap, pace, monologues and silence.

Pure arithmetic over stretches of sound, in milliseconds of epoch time; `talk_measure` chooses the events that they come from.
Open stretches are left out: they have no length.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from consumers.engine.turns.timeline.spans import Span, Spans, length_ms, merged

MS_PER_MINUTE: Final = 60_000


class ToolRun(NamedTuple):
    """The run of a tool in ms; a run without an end was never answered, and was waited for until somebody spoke."""

    start_ms: int
    end_ms: int | None


class SpokenTurn(NamedTuple):
    """One turn: the sounds of each side, and its number of words; 0 words where its text is unknown."""

    user: Spans = ()
    assistant: Spans = ()
    user_words: int = 0
    assistant_words: int = 0


class SideMeasures(NamedTuple):
    """Measures of one side of a call.

    Attributes:
        speech_ms: Time for which it was heard. Sounds at the same time count once.
        longest_ms: Its longest monologue: from its start until the other side spoke, or it paused for too long.
        words: Its words in the turns in which it was heard.
        worded_ms: Time for which it was heard in the turns whose words are known.
    """

    speech_ms: int = 0
    longest_ms: int = 0
    words: int = 0
    worded_ms: int = 0

    @property
    def words_per_minute(self) -> float | None:
        """Words by the minutes in which they were spoken; None without words or without sound."""
        return self.words * MS_PER_MINUTE / self.worded_ms if self.words and self.worded_ms else None


class CallMeasures(NamedTuple):
    """Measures of both sides of a call; all in ms.

    Attributes:
        user: The user.
        assistant: The assistant.
        overlap_ms: Time for which both were heard at once.
        dead_air_ms: Time for which the caller waited in silence, without speech and without a running tool; only waits of at
            least the threshold.
        first_assistant_ms: First sound of the assistant (epoch); None without one.
    """

    user: SideMeasures
    assistant: SideMeasures
    overlap_ms: int
    dead_air_ms: int
    first_assistant_ms: int | None

    @property
    def talk_ratio(self) -> float | None:
        """The assistant's share of the time both were heard, from 0 to 1; None while nobody was."""
        speech_ms = self.user.speech_ms + self.assistant.speech_ms
        return self.assistant.speech_ms / speech_ms if speech_ms else None


def measures_of(
    turns: Mapping[int, SpokenTurn], tools: Iterable[ToolRun], pause_ms: int, ended_ms: int | None = None
) -> CallMeasures:
    """Measures the call.

    Args:
        turns: The turns by id, in any order. A turn's sound may reach into other turns.
        tools: The runs of tools: they explain silence.
        pause_ms: Least silence that counts: as dead air after the caller has spoken, and as the end of a monologue.
        ended_ms: End of the call, if it is over: the caller may have waited until then.

    Example:
        >>> call = {1: SpokenTurn((Span(0, 2_000),), (Span(6_000, 9_000),), user_words=5)}
        >>> measured = measures_of(call, [], 3_000)
        >>> measured.talk_ratio, measured.dead_air_ms, measured.user.words_per_minute
        (0.6, 4000, 150.0)
    """
    user = merged(span for turn in turns.values() for span in turn.user)
    assistant = merged(span for turn in turns.values() for span in turn.assistant)
    user_words, user_worded_ms = _worded((turn.user_words, turn.user) for turn in turns.values())
    assistant_words, assistant_worded_ms = _worded((turn.assistant_words, turn.assistant) for turn in turns.values())
    user_ms, assistant_ms = length_ms(user), length_ms(assistant)
    anyone = merged((*user, *assistant))
    # A tool that answers at once has no length, and cuts a silence in two all the same.
    tool_spans = merged((_until_somebody_speaks(tool, anyone, ended_ms) for tool in tools), keeps_moments=True)
    return CallMeasures(
        SideMeasures(user_ms, _longest_ms(user, assistant, pause_ms), user_words, user_worded_ms),
        SideMeasures(assistant_ms, _longest_ms(assistant, user, pause_ms), assistant_words, assistant_worded_ms),
        user_ms + assistant_ms - length_ms(anyone),
        _dead_air_ms(anyone, user, tool_spans, pause_ms, ended_ms),
        assistant[0].start_ms if assistant else None,
    )


def _worded(sides: Iterable[tuple[int, Spans]]) -> tuple[int, int]:
    """Words of turns with sound, and the length of that sound in ms."""
    words = worded_ms = 0
    for count, spans in sides:
        spoken_ms = length_ms(merged(spans)) if count else 0
        if spoken_ms:
            words += count
            worded_ms += spoken_ms
    return words, worded_ms


def _longest_ms(own: Spans, other: Spans, pause_ms: int) -> int:
    """Longest monologue in ms. It ends when the other side is heard in a pause, or when a pause reaches `pause_ms`; the other
    side talking over it does not end it.
    """
    longest_ms = start_ms = 0
    place = 0
    last: Span | None = None
    for span in own:
        if last is not None:
            while place < len(other) and other[place].end_ms <= last.end_ms:
                place += 1
            is_answered = place < len(other) and other[place].start_ms < span.start_ms
        if last is None or is_answered or span.start_ms - last.end_ms >= pause_ms:
            start_ms = span.start_ms
        longest_ms = max(longest_ms, span.end_ms - start_ms)
        last = span
    return longest_ms


def _until_somebody_speaks(tool: ToolRun, anyone: Spans, ended_ms: int | None) -> Span:
    if tool.end_ms is not None:
        return Span(tool.start_ms, tool.end_ms)
    place = bisect_right(anyone, tool.start_ms, key=itemgetter(0))
    end_ms = anyone[place].start_ms if place < len(anyone) else ended_ms
    return Span(tool.start_ms, tool.start_ms if end_ms is None else end_ms)


def _dead_air_ms(anyone: Spans, user: Spans, tools: Spans, pause_ms: int, ended_ms: int | None) -> int:
    """Silences after speech of the caller; a running tool cuts a silence in two."""
    user_ends_ms = {span.end_ms for span in user}
    nexts_ms: Sequence[int | None] = [*(span.start_ms for span in anyone[1:]), ended_ms]
    dead_air_ms = 0
    place = 0
    for span, next_ms in zip(anyone, nexts_ms, strict=False):
        if next_ms is None or span.end_ms not in user_ends_ms:
            continue
        silent_since_ms = span.end_ms
        while place < len(tools) and tools[place].end_ms <= silent_since_ms:
            place += 1
        silences: list[int] = []
        for tool in tools[place:]:
            if tool.start_ms >= next_ms:
                break
            silences.append(tool.start_ms - silent_since_ms)
            silent_since_ms = tool.end_ms
        silences.append(next_ms - silent_since_ms)
        dead_air_ms += sum(silence for silence in silences if silence >= pause_ms)
    return dead_air_ms
