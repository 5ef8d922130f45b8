"""The next question to be asked, and the ones that have to leave."""

import random

from consumers.judge.limits import Waiting, WaitingLine
from schemas.closed_sets import JudgeKind, UnjudgedReason
from tests.support.calls.judge_questions import question


def waiting(number: int, deadline_ms: int = 1_000, arrived_ms: int = 0, **fields: object) -> Waiting:
    fields = {"conversation_id": f"c-{number}"} | fields
    return Waiting(question(asked_at_ms=0, deadline_ms=deadline_ms, **fields), arrived_ms, deadline_ms, number)


def line_of(*entries: Waiting, max_waiting: int = 100, skips: bool = False) -> WaitingLine:
    line = WaitingLine(max_waiting, skips_superseded=skips)
    for entry in entries:
        assert list(line.put(entry)) == []
    return line


def order(line: WaitingLine) -> list[int]:
    taken = []
    while (entry := line.take()) is not None:
        taken.append(entry.number)
    return taken


def test_calls_at_risk_then_the_nearest_deadline_then_who_came_first() -> None:
    line = line_of(waiting(1, 900), waiting(2, 500), waiting(3, 900, priority=5), waiting(4, 500), waiting(5, 100))
    assert order(line) == [3, 5, 2, 4, 1]


def test_who_has_waited_too_long_leaves() -> None:
    line = line_of(waiting(1, 300), waiting(2, 100), waiting(3, 200))
    assert line.next_deadline_ms == 100
    assert [entry.number for entry in line.expired(200)] == [2, 3]
    assert (len(line), line.next_deadline_ms, order(line)) == (1, 300, [1])
    assert line.oldest_ms is None


def test_the_age_of_the_oldest() -> None:
    assert line_of(waiting(1, arrived_ms=70), waiting(2, arrived_ms=50, deadline_ms=9_000)).oldest_ms == 50


def test_a_full_line_sends_the_least_urgent_away() -> None:
    line = line_of(waiting(1, 300), waiting(2, 900), max_waiting=2)
    first, last = waiting(3, 100), waiting(4, 999)
    assert [(left.number, why) for left, why in line.put(first)] == [(2, UnjudgedReason.QUEUE_FULL)]
    assert [(left.number, why) for left, why in line.put(last)] == [(4, UnjudgedReason.QUEUE_FULL)]
    assert order(line) == [3, 1]


def test_a_later_turn_takes_the_place_only_where_that_is_set() -> None:
    earlier, later = (waiting(turn, turn=turn, conversation_id="c") for turn in (1, 2))
    assert order(line_of(earlier, later)) == [1, 2]
    line = line_of(earlier, skips=True)
    assert [(left.number, why) for left, why in line.put(later)] == [(1, UnjudgedReason.SUPERSEDED)]
    assert order(line) == [2]


def test_an_earlier_turn_that_comes_late_is_superseded_itself() -> None:
    line = line_of(waiting(2, turn=2, conversation_id="c"), skips=True)
    assert [left.number for left, _ in line.put(waiting(1, turn=1, conversation_id="c"))] == [1]
    assert order(line) == [2]


def test_another_subgoal_supersedes_nothing() -> None:
    line = line_of(waiting(1, conversation_id="c", subgoal_id="a"), skips=True)
    assert list(line.put(waiting(2, conversation_id="c", subgoal_id="b", turn=2))) == []
    assert order(line) == [1, 2]


def test_progression_is_judged_one_at_a_time_and_only_the_newest() -> None:
    kind = JudgeKind.CONVERSATION_PROGRESSION
    turns = [waiting(turn, kind=kind, turn=turn, conversation_id="c") for turn in range(1, 5)]
    line = line_of(turns[0])
    running = line.take()
    assert running is turns[0]
    assert list(line.put(turns[1])) == []
    assert line.take() is None
    assert [left.number for left, _ in line.put(turns[2])] == [2]
    assert list(line.put(waiting(9, kind=kind, conversation_id="other"))) == []
    assert order(line) == [9]
    line.finished(running)
    assert order(line) == [3]


def test_who_is_withdrawn_is_gone() -> None:
    entries = [waiting(number) for number in range(3)]
    line = line_of(*entries)
    assert line.withdraw([entries[1].request_id, "unknown"]) == [entries[1]]
    assert order(line) == [0, 2]


def test_nobody_is_lost_or_doubled_whatever_happens() -> None:
    for seed in range(30):
        draw = random.Random(seed)  # noqa: S311 - the same every time
        line = WaitingLine(8, skips_superseded=draw.random() < 0.5)
        there: dict[str, int] = {}
        came: list[int] = []
        went: list[int] = []

        def go(entry: Waiting, there: dict[str, int] = there, went: list[int] = went) -> None:
            del there[entry.request_id]
            went.append(entry.number)

        for number in range(120):
            entry = waiting(number, draw.randrange(1_000), conversation_id=f"c-{draw.randrange(3)}",
                            turn=draw.randrange(5), priority=draw.randrange(2), transcript=())  # fmt: skip
            if entry.request_id not in there:  # a repeated question gets the same answer, before it comes here
                there[entry.request_id] = number
                came.append(number)
                for gone, _ in list(line.put(entry)):
                    go(gone)
            if draw.random() < 0.3:
                for gone in line.expired(draw.randrange(400)):
                    go(gone)
            if draw.random() < 0.3 and (taken := line.take()) is not None:
                go(taken)
            assert len(line) == len(there) <= 8
        went += order(line)
        assert sorted(came) == sorted(went)
        assert len(went) > 40
