"""One shape of a turn from two machines: sound, words by purpose, and values that follow from the
turn before.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import pytest

from consumers.engine.turns.bot import BotTurn, BotTurnMachine, RankedWords
from consumers.engine.turns.eva import EvaHistory, TraceEntry, TurnState
from consumers.engine.turns.heard import (
    WORDS_BY_PURPOSE,
    HeardByTheBot,
    HeardByTheCaller,
    HeardSide,
    HeardTurn,
    HeardTurns,
    Purpose,
    last_end_s,
)
from consumers.engine.turns.timeline import (
    AUDIT_RANK,
    ElementKind,
    Sounds,
    TimeSpan,
    ToolUses,
    order_key,
)
from schemas.closed_sets import Anchor


def by_the_caller(
    trace: TraceEntry | None = None, since: int | None = None, **turns: dict[str, Any]
) -> HeardTurns:
    """EVA's turns, `t1={"user_starts": (1.0,)}`."""
    history = EvaHistory()
    for name, fields in turns.items():
        state = history.machine.turns[int(name[1:])] = TurnState(0)
        for field, value in fields.items():
            setattr(state, field, value)
    history.machine.trace = trace
    return HeardByTheCaller(history, ToolUses(), since)


def by_the_bot(
    *, words: Mapping[int, tuple[RankedWords, ...]] | None = None, **turns: BotTurn
) -> HeardTurns:
    """The bot's turns, `t1=BotTurn(...)`."""
    machine = BotTurnMachine()
    machine.turns = {int(name[1:]): turn for name, turn in turns.items()}
    machine.words = dict(words or {})
    return HeardByTheBot(machine, EvaHistory(), ToolUses())


def the(turns: HeardTurns, number: int = 1) -> HeardTurn:
    turn = turns.turn(number)
    assert turn is not None
    return turn


def said(turn: HeardTurn) -> dict[str, tuple[str, str]]:
    """The words of user and assistant, by purpose."""
    return {
        purpose.name: (turn.user.said(purpose), turn.assistant.said(purpose)) for purpose in Purpose
    }


TRACE = TraceEntry(
    None, "assistant", "intended", 1, "Sure, I move it [laughs]. Bye.", 4_000, is_from_audit=True
)


def test_words_of_a_simulated_call_by_purpose() -> None:
    turn = the(
        by_the_caller(
            TRACE,
            t1={
                "transcribed_user": "[user interrupts] Move [uh] it",
                "intended_user": "Move it.",
                "intended_assistant": "[assistant interrupts] Sure, [laughs]",
                "transcribed_assistant": "Shore",
            },
        )
    )
    assert said(turn) == {
        "TALK": ("Move  it", "Shore"),
        "JUDGED": ("[user interrupts] Move [uh] it", "[assistant interrupts] Sure, [laughs]"),
        "SPOKEN": ("Move [uh] it", "Shore"),
        "WRITTEN": ("", "Sure, I move it [laughs]. Bye."),
        "MEANT": ("Move it.", "[assistant interrupts] Sure, [laughs]"),
        "UNDERSTOOD": ("[user interrupts] Move [uh] it", "Shore"),
        "TOLD": ("[user interrupts] Move [uh] it", ""),
    }


def test_words_of_a_phone_call_by_purpose() -> None:
    words = (
        RankedWords(is_user=True, rank=1, ref="move it"),
        RankedWords(is_user=True, rank=0, ref="[user audio]"),
        RankedWords(is_user=False, rank=1, ref="Sure. I move it."),
        RankedWords(is_user=False, rank=2, ref=" Sure. "),
        RankedWords(is_user=False, rank=2, ref="I"),
    )
    assert said(the(by_the_bot(words={1: words}))) == {
        "TALK": ("move it", "Sure.  I"),
        "JUDGED": ("[user audio]", "Sure. I move it."),
        "SPOKEN": ("move it", "Sure. I"),
        "WRITTEN": ("", "Sure. I move it."),
        "MEANT": ("", ""),
        "UNDERSTOOD": ("[user audio]", ""),
        "TOLD": ("move it", "Sure. I move it."),
    }


def test_synthesis_has_the_words_that_sounded() -> None:
    words = tuple(
        RankedWords(is_user=False, rank=rank, ref=f"by rank {rank}") for rank in (2, 1, 0)
    )
    turn = the(by_the_bot(words={1: words}))
    assert {
        purpose: turn.assistant.said(purpose)
        for purpose in (Purpose.TALK, Purpose.JUDGED, Purpose.SPOKEN)
    } == {
        Purpose.TALK: "by rank 0",
        Purpose.JUDGED: "by rank 0",
        Purpose.SPOKEN: "by rank 0",
    }


def test_the_table_has_every_purpose() -> None:
    assert WORDS_BY_PURPOSE.keys() == set(Purpose)


def test_an_empty_text_is_no_missing_one_to_the_letter() -> None:
    turn = the(by_the_caller(t1={"transcribed_user": "", "intended_user": None}))
    assert (turn.user.wording(Purpose.MEANT), turn.user.wording(Purpose.UNDERSTOOD)) == (None, "")


def test_the_log_of_a_turn_says_when_its_words_came() -> None:
    older = TraceEntry(None, "user", "transcribed", 0, "Hello", 900)
    trace = TraceEntry(
        TraceEntry(older, "user", "transcribed", 1, "Move it", 3_000),
        None,
        "tool_call",
        1,
        "",
        3_500,
    )
    turns = by_the_caller(trace, t0={}, t1={})
    assert (the(turns).user.logged_ms, the(turns).assistant.logged_ms) == (3_000, None)
    assert the(turns).words.logged_times_ms == (3_500, 3_000)
    assert the(turns, 0).words.logged_times_ms == (900,)
    assert the(by_the_caller(trace, since=1, t0={}, t1={}), 0).words.logged_times_ms == (), (
        "it is read no further back"
    )


def test_the_bot_s_words_have_the_time_of_the_log_or_of_the_report() -> None:
    key = order_key(5_000, AUDIT_RANK, 1)
    words = {
        turn: (
            RankedWords(is_user=True, rank=0, ref=key),
            RankedWords(is_user=False, rank=2, ref="Hi"),
        )
        for turn in (1, 2)
    }
    turns = by_the_bot(words=words, t2=BotTurn(agent_heard=(7.5,), transcripts=()))
    assert [(the(turns, n).user.logged_ms, the(turns, n).assistant.logged_ms) for n in (1, 2)] == [
        (5_000, None),
        (7_500, None),
    ]


STARTS, ENDS = (1.0, 2.0, 5.0), (3.0, 6.0)


def test_eva_pairs_sound_by_place() -> None:
    side = the(by_the_caller(t1={"assistant_starts": STARTS, "assistant_ends": ENDS})).assistant
    assert side.segments == ((1.0, 3.0), (2.0, 6.0), (5.0, inf))
    assert side.spans(9_000) == (
        TimeSpan(1_000, 3_000),
        TimeSpan(2_000, 6_000),
        TimeSpan(5_000, 9_000),
    )
    assert side.spans(None) == (TimeSpan(1_000, 3_000), TimeSpan(2_000, 6_000))
    assert side.is_open


def test_the_bot_s_sound_is_paired_by_time() -> None:
    """It may be started twice before it stops."""
    side = the(by_the_bot(t1=BotTurn(bot_starts=STARTS, bot_ends=ENDS))).assistant
    assert side.spans(9_000) == (
        TimeSpan(1_000, 3_000),
        TimeSpan(2_000, 3_000),
        TimeSpan(5_000, 6_000),
    )
    assert side.segments == ((1.0, 3.0), (2.0, 6.0), (5.0, inf)), (
        "EVA's formulas pair by place here too"
    )
    open_side = HeardSide(side.words, Sounds((1.0, 5.0), (3.0,), are_paired_by_time=True))
    assert (open_side.spans(9_000)[1:], open_side.spans(None)[1:]) == (
        (TimeSpan(5_000, 9_000),),
        (),
    )


def test_a_caller_is_heard_by_the_detector_or_else_by_the_ruling() -> None:
    both = BotTurn(vad_starts=(1.0,), vad_ends=(2.0,), release_starts=(1.2,), release_ends=(2.5,))
    turns = by_the_bot(t1=both, t2=BotTurn(release_starts=(4.0,)))
    assert (the(turns).user.starts, the(turns, 2).user.starts) == ((1.0,), (4.0,))
    assert (the(turns).endpointing_s, the(turns, 2).endpointing_s) == (0.5, None)
    views = [the(turns, number).view for number in (1, 2)]
    assert [view and view.anchor for view in views] == [Anchor.VAD, Anchor.TURN_RELEASE]


@pytest.mark.parametrize(("ends", "end_s"), [((2.0, 3.0), 3.0), ((2.0,), inf), ((), inf)])
def test_a_turn_knows_the_end_of_the_answer_before_it(
    ends: tuple[float, ...], end_s: float
) -> None:
    starts = (1.0, 2.5)
    assert last_end_s(starts, ends) == end_s
    of_eva = by_the_caller(
        t0={"assistant_starts": starts, "assistant_ends": ends}, t1={"user_interrupted": True}
    )
    of_bot = by_the_bot(
        t0=BotTurn(bot_starts=starts, bot_ends=ends), t1=BotTurn(user_interrupted=True)
    )
    for turns in (of_eva, of_bot):
        assert the(turns).answer_before_end_s == end_s
        assert the(turns).rests_on_open_sound is (end_s == inf), (
            "the answer that was spoken over may go on"
        )
        assert the(turns, 0).answer_before_end_s is None


@pytest.mark.parametrize(
    ("turn", "before", "begin_s"),
    [
        pytest.param(
            BotTurn(vad_starts=(3.0,), transcripts=(4.0,)), BotTurn(), 3.0, id="its sound"
        ),
        pytest.param(
            BotTurn(transcripts=(4.0,)),
            BotTurn(bot_texts=(1.0, 2.0)),
            2.0,
            id="the bot's last words",
        ),
        pytest.param(BotTurn(transcripts=(4.0,)), BotTurn(), 4.0, id="its transcript"),
        pytest.param(
            BotTurn(agent_said=(6.0,), bot_starts=(5.0,)), BotTurn(), 5.0, id="its first moment"
        ),
        pytest.param(BotTurn(), BotTurn(bot_texts=(1.0,)), None, id="no time"),
    ],
)
def test_a_turn_begins_with_its_caller(
    turn: BotTurn, before: BotTurn, begin_s: float | None
) -> None:
    assert the(by_the_bot(t0=before, t1=turn)).begin_s == begin_s


def test_a_simulated_turn_begins_with_its_first_sound() -> None:
    turns = by_the_caller(
        t0={"assistant_starts": (1.0,)},
        t1={"user_starts": (3.0,), "assistant_starts": (2.0,)},
        t2={},
    )
    assert [the(turns, number).begin_s for number in range(3)] == [1.0, 3.0, None]


def test_a_turn_of_words_alone_has_no_view_and_one_that_is_not_there_is_none() -> None:
    turns = by_the_bot(words={2: (RankedWords(is_user=True, rank=0, ref="Hi"),)}, t1=BotTurn())
    assert turns.numbers() == {1, 2}
    assert (the(turns, 1).view is None, the(turns, 2).view is None, turns.turn(3)) == (
        False,
        True,
        None,
    )
    assert turns.turns((3, 2, 1)) == {2: the(turns, 2), 1: the(turns)}


def test_a_turn_is_built_once() -> None:
    turns = by_the_caller(t1={})
    assert turns.turn(1) is turns.turn(1)


def test_other_words_have_another_mark() -> None:
    history = EvaHistory()
    key = history.audit(ElementKind.AUDIT_ASSISTANT, 1_000, "Hello")
    machine = BotTurnMachine()
    marks = set()
    for text in ("Hi", "Ho"):
        machine.words = {
            1: (
                RankedWords(is_user=False, rank=1, ref=key),
                RankedWords(is_user=True, rank=1, ref=text),
            )
        }
        marks.add(the(HeardByTheBot(machine, history, ToolUses())).words.mark)
    history.timeline.replace(key, "Hallo")
    marks.add(the(HeardByTheBot(machine, history, ToolUses())).words.mark)
    assert len(marks) == 3
    assert (
        the(
            by_the_caller(t1={"transcribed_user": "Hi", "intended_assistant": ("Hel", ("lo",))})
        ).words.mark
        == 7
    )


@pytest.mark.parametrize(
    ("ref", "is_corrected"), [("Hello", True), (order_key(0, AUDIT_RANK, 1), False)]
)
def test_only_an_elevenlabs_agent_has_corrections(ref: int | str, is_corrected: bool) -> None:
    turn = the(by_the_bot(words={1: (RankedWords(is_user=False, rank=1, ref=ref),)}))
    assert turn.words.is_corrected is is_corrected
