"""Shares of talk: speech, monologues, pace, overlap, silence, repeated questions."""

import re
from bisect import bisect_right
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, cast

from consumers.engine.turns.heard import HeardSide, HeardSides, HeardTurn, HeardTurns, Purpose
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.timeline import PairedUse, Spans, TimeSpan, length_ms, merged
from schemas.closed_sets import UnscoredReason
from schemas.rows import NotApplicable, SideSpeech, SideTalk, Speech, TurnTalk, Unscored, Value

# Measures of how a call sounded: amount of speech, overlap, pace, monologues and silence.
#
# Pure arithmetic over stretches of sound, in milliseconds of epoch time; the caller chooses the
# events that they come from. Open stretches are left out: they have no length.

MS_PER_MINUTE: Final = 60_000
TURNS_OF_ONE_STEP: Final = 200
"""Turns that are measured in one step of a close: 10 ms."""


class ToolRunTimes(NamedTuple):
    """The run of a tool in ms; a run without an end was never answered, and was waited for until
    somebody spoke.
    """

    start_ms: int
    end_ms: int | None


class SpokenTurn(NamedTuple):
    """One turn: the sounds of each side, and its number of words; 0 words where its text is
    unknown.
    """

    user: Spans = ()
    assistant: Spans = ()
    user_words: int = 0
    assistant_words: int = 0


class SideMeasures(NamedTuple):
    """Measures of one side of a call.

    Attributes:
        speech_ms: Time for which it was heard. Sounds at the same time count once.
        longest_ms: Its longest monologue: from its start until the other side spoke, or it paused
            for too long.
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
        return (
            self.words * MS_PER_MINUTE / self.worded_ms if self.words and self.worded_ms else None
        )


class CallMeasures(NamedTuple):
    """Measures of both sides of a call; all in ms.

    Attributes:
        user: The user.
        assistant: The assistant.
        overlap_ms: Time for which both were heard at once.
        dead_air_ms: Time for which the caller waited in silence, without speech and without a
            running tool; only waits of at least the threshold.
        first_assistant_ms: First sound of the assistant (epoch); None without one.
    """

    user: SideMeasures
    assistant: SideMeasures
    overlap_ms: int
    dead_air_ms: int
    first_assistant_ms: int | None

    @property
    def talk_ratio(self) -> float | None:
        """The assistant's share of the time both were heard, from 0 to 1; None while neither was."""
        speech_ms = self.user.speech_ms + self.assistant.speech_ms
        return self.assistant.speech_ms / speech_ms if speech_ms else None


def measures_of(
    turns: Mapping[int, SpokenTurn],
    tools: Iterable[ToolRunTimes],
    pause_ms: int,
    ended_ms: int | None = None,
) -> CallMeasures:
    """Measures the call.

    Args:
        turns: The turns by id, in any order. A turn's sound may reach into other turns.
        tools: The runs of tools: they explain silence.
        pause_ms: Least silence that counts: as dead air after the caller has spoken, and as the end
            of a monologue.
        ended_ms: End of the call, if it is over: the caller may have waited until then.

    Example:
        >>> call = {1: SpokenTurn((TimeSpan(0, 2_000),), (TimeSpan(6_000, 9_000),), user_words=5)}
        >>> measured = measures_of(call, [], 3_000)
        >>> measured.talk_ratio, measured.dead_air_ms, measured.user.words_per_minute
        (0.6, 4000, 150.0)
    """
    user = merged(span for turn in turns.values() for span in turn.user)
    assistant = merged(span for turn in turns.values() for span in turn.assistant)
    user_words, user_worded_ms = _worded((turn.user_words, turn.user) for turn in turns.values())
    assistant_words, assistant_worded_ms = _worded(
        (turn.assistant_words, turn.assistant) for turn in turns.values()
    )
    user_ms, assistant_ms = length_ms(user), length_ms(assistant)
    anyone = merged((*user, *assistant))
    # A tool that answers immediately has no length, and cuts a silence in two all the same.
    tool_spans = merged(
        (_until_somebody_speaks(tool, anyone, ended_ms) for tool in tools), keeps_moments=True
    )
    return CallMeasures(
        SideMeasures(user_ms, _longest_ms(user, assistant, pause_ms), user_words, user_worded_ms),
        SideMeasures(
            assistant_ms,
            _longest_ms(assistant, user, pause_ms),
            assistant_words,
            assistant_worded_ms,
        ),
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
    """Longest monologue in ms. It ends when the other side is heard in a pause, or when a pause
    reaches `pause_ms`; the other side talking over it does not end it.
    """
    longest_ms = start_ms = 0
    place = 0
    last: TimeSpan | None = None
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


def _until_somebody_speaks(tool: ToolRunTimes, anyone: Spans, ended_ms: int | None) -> TimeSpan:
    if tool.end_ms is not None:
        return TimeSpan(tool.start_ms, tool.end_ms)
    place = bisect_right(anyone, tool.start_ms, key=itemgetter(0))
    end_ms = anyone[place].start_ms if place < len(anyone) else ended_ms
    return TimeSpan(tool.start_ms, tool.start_ms if end_ms is None else end_ms)


def _dead_air_ms(
    anyone: Spans, user: Spans, tools: Spans, pause_ms: int, ended_ms: int | None
) -> int:
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


# Finds questions asked again in the same words: by a caller who was not understood, or by an agent
# that forgot.

MIN_WORDS: Final = 3
"""Fewest words of a question whose repetition means something, unlike "Really?", "And you?"."""
MAX_WORDS: Final = 40
"""Words of one question that are compared; the longest questions of agents have some 30."""
MAX_QUESTIONS_PER_TURN: Final = 20
"""Questions of one side in one turn; more is a list that is read out."""

_SENTENCE = re.compile(r"[^.?!\n]+[.?!\n]*")
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_ASKING: Final = frozenset(
    {
        *(
            "what",
            "when",
            "where",
            "which",
            "who",
            "whose",
            "why",
            "how",
            "can",
            "could",
            "would",
            "will",
            "shall",
            "should",
        ),
        *("may", "do", "does", "did", "is", "are", "was", "were", "have", "has"),
    }
)
"""First words of English questions. Recognisers often leave the question mark out."""
_OPENING: Final = frozenset(
    {
        *(
            "and",
            "but",
            "so",
            "okay",
            "ok",
            "well",
            "now",
            "then",
            "sorry",
            "please",
            "yes",
            "no",
            "alright",
            "thanks",
        ),
        *("again", "um", "uh", "er", "hm", "hmm"),
    }
)
"""Words before or within a question that do not change it."""


def questions_in(text: str) -> frozenset[str]:
    """The questions of a text, in one spelling: the sentences with a question mark, and those that
    begin like one.

    Example:
        >>> sorted(questions_in("Sorry, what is your code? Okay. And can I have your name, please"))
        ['can i have your name', 'what is your code']
        >>> questions_in("I know what it is. Really?")
        frozenset()
    """
    found: set[str] = set()
    for sentence in _SENTENCE.findall(text):
        words = [word for word in map(str.lower, _WORD.findall(sentence)) if word not in _OPENING]
        if len(words) >= MIN_WORDS and ("?" in sentence or words[0] in _ASKING):
            found.add(" ".join(words[:MAX_WORDS]))
            if len(found) == MAX_QUESTIONS_PER_TURN:
                break
    return frozenset(found)


def repeated(asked: Mapping[int, frozenset[str]]) -> tuple[int, tuple[int, ...]]:
    """The number of questions by turn that had been asked in an earlier turn, and the turns with
    such questions, lowest first.
    """
    known: set[str] = set()
    again = {}
    for turn in sorted(asked):
        again[turn] = len(asked[turn] & known)
        known |= asked[turn]
    return sum(again.values()), tuple(turn for turn, count in again.items() if count)


# Measures how a call sounds: talk, pace, monologues, silence, overlap and repeated questions.

LONG_SILENCE_MS: Final = 3_000
"""Least silence that is dead air here and ends a monologue. Fixed, whatever `dead_air_ms` is, so
that the values mean the same everywhere, and in a back-test with other limits.
"""
MAX_RUNNING_WORK: Final = 500_000
"""Turns, stretches of sound, tools and pieces of text read for the running values of one call, a
second or two; beyond it only the final ones are published. A call of two hours with 250 turns takes
a quarter of it.
"""
_PIECE_CHARS: Final = 64
"""Characters that cost as much to read as one turn."""

_NO_EVENTS: Final = Unscored(UnscoredReason.NO_SPEECH_EVENTS)
_NO_USER: Final = Unscored(UnscoredReason.NO_USER_SPEECH)
_NO_ASSISTANT: Final = Unscored(UnscoredReason.NO_ASSISTANT_SPEECH)
_NO_TIMES: Final = Unscored(UnscoredReason.TIMES_UNKNOWN)
_NO_WORDS: Final = NotApplicable("no transcript has the words of this side")
_RATIO_DIGITS = 4
_PACE_DIGITS = 1

SpeechAndWork = tuple[Speech, int]
"""The speech of a call, and the work done for it: turns, stretches of sound, tools and pieces of
text.
"""


def word_count(text: str) -> int:
    """Words in a text, as blanks part them.

    Example:
        >>> word_count("It's $1.50 at 4 p.m.")
        5
    """
    return len(text.split())


def talk_of(
    turn: HeardTurn, sides: HeardSides, end_ms: int | None, *, is_cut_off: bool
) -> TurnTalk:
    """The talk of a turn, whose answer the caller cut off or not; an open sound ends at `end_ms`,
    or is left out.
    """
    return TurnTalk(
        SideTalk(
            _heard_ms(turn.user, end_ms) if sides.user else _NO_USER,
            _words(turn.user, Purpose.TALK),
        ),
        SideTalk(
            _heard_ms(turn.assistant, end_ms) if sides.assistant else _NO_ASSISTANT,
            _words(turn.assistant, Purpose.TALK),
        ),
        _words(turn.assistant, Purpose.WRITTEN) if is_cut_off else None,
    )


def _words(side: HeardSide, purpose: Purpose) -> int | None:
    """The number of its words; None if they are not known."""
    text = side.said(purpose)
    return word_count(text) if text else None


def speech_of(
    live: LiveCall, heard: HeardTurns, turns: Iterable[int], last_ms: int | None, *, is_over: bool
) -> SpeechAndWork:
    """Measures the call in one step; the arguments are those of `speech_in_steps`."""
    work = speech_in_steps(live, heard, turns, last_ms, is_over=is_over)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return cast("SpeechAndWork", done.value)


def speech_in_steps(
    live: LiveCall, heard: HeardTurns, turns: Iterable[int], last_ms: int | None, *, is_over: bool
) -> Generator[None, None, SpeechAndWork]:
    """Measures the call, and pauses behind every `TURNS_OF_ONE_STEP` turns.

    Args:
        live: The call.
        heard: Its turns.
        turns: Numbers of the turns that count.
        last_ms: Time of its last event.
        is_over: Whether it is over: open sound ends then, and the caller may have waited until
            then.
    """
    end_ms = heard.sound_end_ms(last_ms) if is_over else None
    user_asks, assistant_asks = dict[int, frozenset[str]](), dict[int, frozenset[str]]()
    has_user_words = has_assistant_words = has_user_gaps = has_assistant_gaps = False
    work = 0
    spoken = {}
    for place, number in enumerate(turns, 1):
        if place % TURNS_OF_ONE_STEP == 0:
            yield
        if (turn := heard.turn(number)) is None:
            continue
        user, assistant = turn.user.spans(end_ms), turn.assistant.spans(end_ms)
        by_user, by_assistant = turn.user.said(Purpose.TALK), turn.assistant.said(Purpose.TALK)
        spoken[number] = SpokenTurn(user, assistant, word_count(by_user), word_count(by_assistant))
        user_asks[number] = questions_in(by_user)
        assistant_asks[number] = questions_in(by_assistant)
        has_user_words |= bool(by_user)
        has_assistant_words |= bool(by_assistant)
        has_user_gaps |= _has_gaps(turn.user, is_over=is_over)
        has_assistant_gaps |= _has_gaps(turn.assistant, is_over=is_over)
        work += 1 + len(user) + len(assistant) + (len(by_user) + len(by_assistant)) // _PIECE_CHARS
    tools = [
        _run(use.called_at_ms, use) for use in live.turns.tools if use.called_at_ms is not None
    ]
    measured = measures_of(spoken, tools, LONG_SILENCE_MS, end_ms)
    sides = heard.sides
    unknown = _unknown(sides, measured) or (
        _NO_TIMES if has_user_gaps or has_assistant_gaps else None
    )
    of_user = repeated(user_asks) if has_user_words else None
    of_assistant = repeated(assistant_asks) if has_assistant_words else None
    no_user = _unheard(_NO_USER, is_heard=sides.user, has_gaps=has_user_gaps)
    no_assistant = _unheard(_NO_ASSISTANT, is_heard=sides.assistant, has_gaps=has_assistant_gaps)
    speech = Speech(
        result=unknown or round(measured.talk_ratio or 0.0, _RATIO_DIGITS),
        user=_side(measured.user, of_user, no_user),
        assistant=_side(measured.assistant, of_assistant, no_assistant),
        overlap_ms=unknown or float(measured.overlap_ms),
        dead_air_ms=unknown or float(measured.dead_air_ms),
        first_word_ms=_first_word(live.first_ms, measured.first_assistant_ms, sides),
        source=sides.source,
    )
    return speech, work + len(tools)


def _run(start_ms: int, use: PairedUse) -> ToolRunTimes:
    return ToolRunTimes(start_ms, None if use.duration_ms is None else start_ms + use.duration_ms)


def _heard_ms(side: HeardSide, end_ms: int | None) -> Value:
    if _has_gaps(side, is_over=end_ms is not None):
        return _NO_TIMES
    return float(length_ms(merged(side.spans(end_ms))))


def _has_gaps(side: HeardSide, *, is_over: bool) -> bool:
    """Whether the length of its sounds is unknown. The bot reports its ends itself, so the end that
    is missing after the call was lost, or the line went down first.
    """
    return side.has_gaps or (is_over and side.heard.are_paired_by_time and side.is_open)


def _unknown(sides: HeardSides, measured: CallMeasures) -> Unscored | None:
    """Why the values of both sides together are unknown; None when they are known."""
    if sides.source is None or measured.talk_ratio is None:
        return _NO_EVENTS
    if not sides.user:
        return _NO_USER
    return None if sides.assistant else _NO_ASSISTANT


def _unheard(reason: Unscored, *, is_heard: bool, has_gaps: bool) -> Unscored | None:
    """Why the times of a side are unknown; None when they are known."""
    if not is_heard:
        return reason
    return _NO_TIMES if has_gaps else None


def _side(
    measured: SideMeasures, asks: tuple[int, tuple[int, ...]] | None, unheard: Unscored | None
) -> SideSpeech:
    pace = measured.words_per_minute
    return SideSpeech(
        speech_ms=unheard or float(measured.speech_ms),
        longest_monologue_ms=unheard or float(measured.longest_ms),
        words_per_minute=unheard or (_NO_WORDS if pace is None else round(pace, _PACE_DIGITS)),
        repeated_questions=_NO_WORDS if asks is None else float(asks[0]),
        repeated_in_turns=() if asks is None else asks[1],
    )


def _first_word(began_ms: int | None, first_ms: int | None, sides: HeardSides) -> Value:
    if first_ms is None:
        return _NO_ASSISTANT if sides.source else _NO_EVENTS
    if began_ms is None or began_ms >= first_ms:
        return _NO_TIMES
    return float(first_ms - began_ms)
