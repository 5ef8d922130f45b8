"""Values in an order that does not depend on their arrival, and the windows in which turns have them."""

import itertools

from consumers.engine.measures.stages import Measured, Reported, StageValues, TurnWindows
from consumers.engine.turns.bot import BotTurn, BotTurnMachine
from consumers.engine.turns.eva import EvaHistory
from consumers.engine.turns.heard import HeardByTheBot
from consumers.engine.turns.timeline import ToolUses
from schemas.scores.latency_stages import Stage, StageSource

EVER = (float("-inf"), float("inf"))


def value(seconds: float, *, begin_s: float = 5.0, stage: Stage = Stage.LLM_FIRST_TOKEN, model: str = "") -> Measured:
    return Measured(begin_s, stage, StageSource.PIPECAT, seconds, 0, model)


def test_of_values_that_begin_at_once_the_same_is_the_first_in_any_order() -> None:
    found = []
    for order in itertools.permutations([value(0.5), value(0.25), value(0.25, model="m"), value(0.75)]):
        values = StageValues()
        for each in order:
            assert values.add(each)
        assert not values.add(order[0]), "it is there"
        assert len(values) == 4
        found.append(values.reports(*EVER))
    assert found[0] == {Stage.LLM_FIRST_TOKEN: {StageSource.PIPECAT: Reported(0, 0.25, "")}}
    assert all(each == found[0] for each in found)


def test_a_slice_tells_whether_other_values_are_in_a_window() -> None:
    values = StageValues()
    for begin_s in (1.0, 2.0, 3.0):
        values.add(value(0.5, begin_s=begin_s))
    assert values.slice(1.5, 9.0) == values.slice(2.0, 3.5) == (2, 2.0, 3.0)
    assert values.slice(1.0, 3.0) == (2, 1.0, 2.0)
    assert values.slice(3.5, 9.0)[0] == 0


def heard(turns: dict[int, BotTurn]) -> HeardByTheBot:
    machine = BotTurnMachine()
    machine.turns = turns
    return HeardByTheBot(machine, EvaHistory(), ToolUses())


def starting(**starts_s: float) -> HeardByTheBot:
    """Turns by number, `t1=10.0`: the user starts to speak then."""
    return heard({int(name[1:]): BotTurn(vad_starts=(start_s,)) for name, start_s in starts_s.items()})


def test_a_turn_lasts_until_the_next_one_and_the_first_from_ever() -> None:
    windows = TurnWindows()
    assert windows.turn_at(0.0) is None
    windows.update(starting(t1=10.0, t2=20.0), {1, 2})
    assert windows.window(1) == (EVER[0], 20.0)
    assert windows.window(2) == (20.0, EVER[1])
    assert [windows.turn_at(at_s) for at_s in (-5.0, 10.0, 19.9, 20.0, 99.0)] == [1, 1, 1, 2, 2]
    from_s, until_s = windows.window(7)
    assert from_s == until_s, "a turn without sound has no time"


def test_a_turn_that_moves_moves_its_neighbours_borders() -> None:
    windows = TurnWindows()
    assert windows.update(starting(t1=10.0, t2=20.0, t3=30.0), {1, 2, 3}) == {1, 2, 3}
    assert windows.update(starting(t1=10.0, t2=20.0, t3=30.0), {1, 2, 3}) == set()
    assert windows.update(starting(t1=10.0, t2=15.0, t3=30.0), {2}) == {1, 2, 3}
    assert windows.window(1)[1] == 15.0
    assert windows.update(starting(t1=10.0, t3=30.0), {2}) == {1, 2, 3}
    assert windows.window(1) == (EVER[0], 30.0)
    assert windows.update(starting(t1=10.0, t2=12.0, t3=30.0, t4=40.0), {4}) == {3, 4}
    assert windows.update(starting(t1=10.0, t2=12.0, t3=30.0, t4=40.0), {2}) == {1, 2, 3}


def test_a_turn_known_by_its_transcript_alone_begins_behind_the_bot_s_last_words() -> None:
    """The transcript is stamped when the user has spoken; its work began before."""
    turns = {0: BotTurn(bot_texts=(1.0, 2.0)), 1: BotTurn(transcripts=(8.0,), bot_texts=(9.0,))}
    windows = TurnWindows()
    windows.update(heard(turns), {0, 1})
    assert [windows.turn_at(at_s) for at_s in (1.5, 7.7, 8.5)] == [0, 1, 1]
    turns[0] = BotTurn(bot_texts=(1.0, 2.0, 4.0))
    assert windows.update(heard(turns), {0}) >= {1}
    assert windows.turn_at(3.0) == 0
