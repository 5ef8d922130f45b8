"""How a call sounded, case by case; times in seconds for reading."""

import pytest

from consumers.engine.measures.talk import (
    MAX_QUESTIONS_PER_TURN,
    CallMeasures,
    RepeatedQuestions,
    SpokenTurn,
    ToolRun,
    measures_of,
    questions_in,
)
from consumers.engine.turns.timeline import Span

PAUSE_MS = 3_000
Times = tuple[float, float]


def spans(*times: Times) -> tuple[Span, ...]:
    return tuple(Span(int(start * 1000), int(end * 1000)) for start, end in times)


def call(
    user: tuple[Times, ...], assistant: tuple[Times, ...], tools: tuple[ToolRun, ...] = (), ended: float | None = None
) -> CallMeasures:
    """A call of one turn; which turn a sound is filed under makes no difference."""
    turns = {1: SpokenTurn(spans(*user), spans(*assistant))}
    return measures_of(turns, tools, PAUSE_MS, None if ended is None else int(ended * 1000))


def test_the_talk_ratio_is_the_assistants_share() -> None:
    assert call(((0, 2),), ((3, 9),)).talk_ratio == 0.75
    assert call(((0, 2),), ()).talk_ratio == 0.0
    assert call((), ((3, 9),)).talk_ratio == 1.0
    assert call((), ()).talk_ratio is None


def test_what_one_side_says_twice_at_once_counts_once() -> None:
    measured = call(((0, 4), (2, 5), (5, 6)), ((4, 8),))
    assert (measured.user.speech_ms, measured.assistant.speech_ms, measured.overlap_ms) == (6_000, 4_000, 2_000)


def test_sound_of_other_turns_overlaps_too() -> None:
    """The caller barges in: that is the next turn, while the assistant still speaks in the turn before."""
    turns = {1: SpokenTurn(assistant=spans((0, 5))), 2: SpokenTurn(user=spans((4, 6)))}
    assert measures_of(turns, [], PAUSE_MS).overlap_ms == 1_000


def test_a_stretch_that_ends_before_it_begins_has_no_length() -> None:
    measured = call(((5, 3),), ((6, 6),))
    assert (measured.talk_ratio, measured.first_assistant_ms, measured.overlap_ms) == (None, None, 0)


@pytest.mark.parametrize(
    ("user", "assistant", "tools", "ended", "dead_air_ms"),
    [
        (((0, 1),), ((3.9, 5),), (), None, 0),  # 2.9 s: not too long yet
        (((0, 1),), ((4, 5),), (), None, 3_000),  # counted whole, not only the surplus
        (((0, 1),), (), (), None, 0),  # the call goes on, the answer may still come
        (((0, 1),), (), (), 6, 5_000),  # it did not
        (((0, 1), (5, 6)), ((6, 9),), (), None, 4_000),  # "hello?"
        ((), ((0, 1), (9, 10)), (), 20, 0),  # the caller is the one who does not speak
        (((0, 1),), ((0.5, 2), (9, 10)), (), None, 0),  # the assistant spoke last
        (((0, 1),), ((9, 10),), (ToolRun(2_000, 8_000),), None, 0),  # waiting is explained
        (((0, 1),), ((9, 10),), (ToolRun(2_000, 5_000),), None, 4_000),  # and then it is not
        (((0, 1),), ((9, 10),), (ToolRun(5_000, 6_000),), None, 7_000),  # before the tool and after it
        (((0, 1),), ((6, 7),), (ToolRun(3_500, 3_500),), None, 0),  # it answered at once: 2.5 s before it and after it
        (((0, 1),), ((9, 10),), (ToolRun(2_000, 3_000), ToolRun(2_500, 8_000)), None, 0),  # two at once
        (((0, 1),), ((9, 10),), (ToolRun(2_000, None),), None, 0),  # never answered, but the assistant spoke
        (((0, 1),), (), (ToolRun(2_000, None),), 20, 0),
        (((0, 1), (9, 10)), ((15, 16),), (ToolRun(2_000, None),), None, 5_000),  # explains nothing in the next turn
        (((0, 1),), ((0, 1), (5, 6)), (), None, 4_000),  # both stopped at once
    ],
)
def test_dead_air(
    user: tuple[Times, ...],
    assistant: tuple[Times, ...],
    tools: tuple[ToolRun, ...],
    ended: float | None,
    dead_air_ms: int,
) -> None:
    assert call(user, assistant, tools, ended).dead_air_ms == dead_air_ms


@pytest.mark.parametrize(
    ("user", "assistant", "longest_ms"),
    [
        ((), ((0, 2), (3, 5)), 5_000),  # a breath
        ((), ((0, 2), (5, 8)), 3_000),  # a pause
        (((2.2, 2.5),), ((0, 2), (3, 5)), 2_000),  # the other had a word
        (((1, 1.5),), ((0, 2), (3, 5)), 5_000),  # into one's own
        (((1, 2.5),), ((0, 2), (3, 5)), 2_000),  # and on in the pause
        (((1, 2),), ((0, 2), (3, 5)), 5_000),  # and no longer
        (((4, 9),), ((0, 2), (3, 5)), 5_000),
        ((), (), 0),
    ],
)
def test_a_monologue_ends_where_the_other_speaks_or_one_pauses(
    user: tuple[Times, ...], assistant: tuple[Times, ...], longest_ms: int
) -> None:
    assert call(user, assistant).assistant.longest_ms == longest_ms
    assert call(assistant, user).user.longest_ms == longest_ms


def test_pace_is_that_of_the_turns_whose_words_are_known() -> None:
    turns = {
        1: SpokenTurn(user=spans((0, 6)), user_words=15),
        2: SpokenTurn(user=spans((10, 40)), assistant=spans((41, 42))),
        3: SpokenTurn(user_words=99, assistant_words=3),
    }
    measured = measures_of(turns, [], PAUSE_MS)
    assert measured.user.words_per_minute == 150.0
    assert (measured.user.words, measured.user.worded_ms, measured.user.speech_ms) == (15, 6_000, 36_000)
    assert measured.assistant.words_per_minute is None


def test_the_first_word_is_the_first_sound() -> None:
    assert call(((0, 1),), ((5, 6), (2, 3))).first_assistant_ms == 2_000


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ("What is your name?", {"what is your name"}),
        ("Sorry, what's your name, please?", {"what's your name"}),
        ("can you hear me", {"can you hear me"}),
        ("And can you hear me. Hello?", {"can you hear me"}),
        ("You want a window seat?", {"you want a window seat"}),
        ("I know what it is. It is late.", set()),
        ("Really? And you?", set()),
        ("Can I? No.", set()),
        ("", set()),
        ("Is it A12? Is it A12?", {"is it a12"}),
        ("¿Dónde está usted?", {"dónde está usted"}),
    ],
)
def test_questions_of_a_text(text: str, questions: set[str]) -> None:
    assert questions_in(text) == questions


def test_a_list_that_is_read_out_does_not_grow_without_end() -> None:
    assert len(questions_in(" ".join(f"Do you like number {n}?" for n in range(99)))) == MAX_QUESTIONS_PER_TURN
    (long,) = questions_in("do you like " + "this and that " * 99)
    assert len(long.split()) == 40


def test_questions_that_are_asked_again() -> None:
    asked = RepeatedQuestions()
    name, code = "what is your name", "what is your code"
    assert asked.put(1, frozenset({name}))
    assert not asked.put(1, frozenset({name}))
    assert (asked.count, asked.turns) == (0, ())
    asked.put(4, frozenset({name, code}))
    asked.put(3, frozenset({name}))
    assert (asked.count, asked.turns) == (2, (3, 4))
    asked.put(2, frozenset({code}))
    assert (asked.count, asked.turns) == (3, (3, 4))
    asked.put(1, frozenset())
    assert (asked.count, asked.turns) == (2, (4,))
    asked.put(4, frozenset())
    assert (asked.count, asked.turns) == (0, ())
    assert not asked.put(9, frozenset())
