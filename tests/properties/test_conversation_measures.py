"""Laws of the sound of a call, for random stretches of sound."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.measures.talk import SpokenTurn, ToolRunTimes, measures_of, repeated
from consumers.engine.turns.timeline import TimeSpan, length_ms, merged

PAUSE_MS = 10
TIMES = st.integers(0, 80)
SPANS = st.lists(st.builds(TimeSpan, TIMES, TIMES), max_size=4).map(tuple)
TURNS = st.dictionaries(
    st.integers(-1, 5),
    st.builds(SpokenTurn, SPANS, SPANS, st.integers(0, 9), st.integers(0, 9)),
    max_size=5,
)
TOOLS = st.lists(st.builds(ToolRunTimes, TIMES, st.one_of(st.none(), TIMES)), max_size=3)
ENDS = st.one_of(st.none(), st.integers(80, 120))


def _moments(spans: list[TimeSpan]) -> set[int]:
    """Every millisecond of the spans: the measures, counted one by one."""
    return {ms for span in spans for ms in range(span.start_ms, span.end_ms)}


@given(TURNS, TOOLS, ENDS)
def test_times_are_those_that_one_counts(
    turns: dict[int, SpokenTurn], tools: list[ToolRunTimes], ended_ms: int | None
) -> None:
    measured = measures_of(turns, tools, PAUSE_MS, ended_ms)
    user = _moments([span for turn in turns.values() for span in turn.user])
    assistant = _moments([span for turn in turns.values() for span in turn.assistant])
    assert measured.user.speech_ms == len(user)
    assert measured.assistant.speech_ms == len(assistant)
    assert measured.overlap_ms == len(user & assistant)
    assert measured.first_assistant_ms == min(assistant, default=None)
    worded = [turn for turn in turns.values() if turn.user_words and _moments(list(turn.user))]
    assert measured.user.words == sum(turn.user_words for turn in worded)
    assert measured.user.worded_ms == sum(len(_moments(list(turn.user))) for turn in worded)
    ratio = measured.talk_ratio
    assert (ratio is None) == (not user and not assistant)
    assert ratio is None or 0 <= ratio <= 1


@given(TURNS, TOOLS, ENDS)
def test_dead_air_is_silence_after_the_caller(
    turns: dict[int, SpokenTurn], tools: list[ToolRunTimes], ended_ms: int | None
) -> None:
    measured = measures_of(turns, tools, PAUSE_MS, ended_ms)
    anyone = _moments([span for turn in turns.values() for span in (*turn.user, *turn.assistant)])
    if not anyone:
        assert measured.dead_air_ms == 0
        return
    user = {
        span.end_ms for turn in turns.values() for span in turn.user if span.start_ms < span.end_ms
    }
    speaking_or_tool = anyone | _moments(
        [TimeSpan(tool.start_ms, tool.end_ms or 0) for tool in tools]
    )
    for tool in tools:
        if tool.end_ms is None:
            until_ms = min(
                (ms for ms in anyone if ms > tool.start_ms and ms - 1 not in anyone),
                default=ended_ms,
            )
            speaking_or_tool |= set(range(tool.start_ms, until_ms or tool.start_ms))
    end_ms = max(anyone) + 1 if ended_ms is None else ended_ms
    expected, silent_ms, is_after_user = 0, 0, False
    for ms in range(min(anyone), end_ms + 1):
        if ms in user and ms not in anyone:
            is_after_user = True
        if ms not in speaking_or_tool and ms < end_ms:
            silent_ms += is_after_user
            continue
        expected += silent_ms if silent_ms >= PAUSE_MS else 0
        silent_ms = 0
        if ms in anyone:
            is_after_user = False
    assert measured.dead_air_ms == expected


@given(TURNS, TOOLS, ENDS, st.randoms(use_true_random=False))
def test_the_order_of_turns_and_tools_changes_nothing(
    turns: dict[int, SpokenTurn], tools: list[ToolRunTimes], ended_ms: int | None, random: Any
) -> None:
    shuffled, other_tools = list(turns.items()), list(tools)
    random.shuffle(shuffled)
    random.shuffle(other_tools)
    assert measures_of(turns, tools, PAUSE_MS, ended_ms) == measures_of(
        dict(shuffled), other_tools, PAUSE_MS, ended_ms
    )


@given(TURNS)
def test_a_monologue_is_no_shorter_than_a_stretch_and_no_longer_than_the_call(
    turns: dict[int, SpokenTurn],
) -> None:
    measured = measures_of(turns, [], PAUSE_MS)
    for side, sides in ((measured.user, "user"), (measured.assistant, "assistant")):
        own = merged(span for turn in turns.values() for span in getattr(turn, sides))
        longest = max((span.end_ms - span.start_ms for span in own), default=0)
        assert longest <= side.longest_ms <= (own[-1].end_ms - own[0].start_ms if own else 0)
        pause_ms = sum(later.start_ms - earlier.end_ms for earlier, later in pairwise(own))
        assert side.longest_ms <= length_ms(own) + pause_ms


@given(st.dictionaries(st.integers(0, 5), st.frozensets(st.sampled_from("abcd"))))
def test_repeated_questions_are_those_of_an_earlier_turn(asked: dict[int, frozenset[str]]) -> None:
    turns = {each: sorted(turn for turn in asked if each in asked[turn]) for each in "abcd"}
    count, again = repeated(asked)
    assert count == sum(max(0, len(each) - 1) for each in turns.values())
    assert list(again) == sorted({turn for each in turns.values() for turn in each[1:]})
