"""Money, rates, the breaker and the sample: pure, with the time passed in."""

import random
from typing import Any

import pytest

from consumers.judge.ask import is_sampled
from consumers.judge.limits import (
    MAX_AGENTS,
    MAX_CALLS,
    Allowance,
    Breaker,
    Budget,
    Prices,
    RateLimit,
    WaitingLine,
    WaitingQuestion,
)
from schemas.closed_sets import JudgeKind, UnjudgedReason
from schemas.judging import TokenUse
from schemas.units import HOUR_MS
from tests.support.calls.judge_questions import question
from tests.support.known import some

NOON_MS = 500_000 * HOUR_MS


def budget(per_call: float = 100, per_agent_hour: float = 100, per_hour: float = 100) -> Budget:
    return Budget(Allowance(per_call, per_agent_hour, per_hour))


def test_prices_are_of_a_million_tokens() -> None:
    prices = Prices(prompt=2.0, cached=0.5, answer=8.0)
    assert prices.cost_of(TokenUse(prompt=1_000_000)) == 2.0
    assert prices.cost_of(
        TokenUse(prompt=1_000_000, cached=1_000_000, answer=1_000)
    ) == pytest.approx(0.508)
    assert prices.cost_of(TokenUse(prompt=10, cached=20)) == prices.cost_of(
        TokenUse(prompt=20, cached=20)
    )


@pytest.mark.parametrize("name", ["per_call", "per_agent_hour", "per_hour"])
def test_each_budget_ends_what_it_is_for(name: str) -> None:
    bound = budget(**{name: 1.0})
    bound.spend("c-1", "ava", 0.75, NOON_MS)
    assert bound.promise("c-1", "ava", 0.5, NOON_MS) is None
    assert bound.promise("c-1", "ava", 0.25, NOON_MS) is not None
    assert (bound.promise("c-2", "ava", 0.5, NOON_MS) is None) == (name != "per_call")
    assert (bound.promise("c-2", "ben", 0.5, NOON_MS) is None) == (name == "per_hour")


def test_what_is_promised_counts_until_it_is_over() -> None:
    bound = budget(per_hour=1.0)
    promise = some(bound.promise("c-1", "ava", 0.9, NOON_MS))
    with promise:
        assert bound.promise("c-2", "ben", 0.2, NOON_MS) is None
        promise.settle(0.3, 0.01, NOON_MS)
        assert bound.left(NOON_MS)["hour"] == pytest.approx(1 - 0.6 - 0.01)
    assert bound.left(NOON_MS)["hour"] == pytest.approx(0.99)


@pytest.mark.parametrize("name", ["per_call", "per_agent_hour", "per_hour"])
def test_promises_of_the_same_call_add_up(name: str) -> None:
    bound = budget(**{name: 1.0})
    with bound.promise("c-1", "ava", 0.6, NOON_MS) or pytest.fail("there is money"):
        assert bound.promise("c-1", "ava", 0.6, NOON_MS) is None
    assert bound.promise("c-1", "ava", 0.6, NOON_MS) is not None


def test_a_promise_that_fails_gives_everything_back() -> None:
    bound = budget(per_hour=1.0)
    promise = some(bound.promise("c-1", "ava", 1.0, NOON_MS))
    with pytest.raises(TimeoutError), promise:
        raise TimeoutError
    assert bound.left(NOON_MS)["hour"] == 1.0


def test_an_hour_is_one_of_the_clock_and_a_call_s_budget_outlives_it() -> None:
    bound = budget(per_call=1.0, per_hour=1.0, per_agent_hour=1.0)
    bound.spend("c-1", "ava", 1.0, NOON_MS + HOUR_MS - 1)
    assert bound.promise("c-2", "ava", 0.1, NOON_MS + HOUR_MS - 1) is None
    assert bound.promise("c-2", "ava", 0.1, NOON_MS + HOUR_MS) is not None
    assert bound.promise("c-1", "ben", 0.1, NOON_MS + HOUR_MS) is None


def test_a_successor_has_spent_what_its_predecessors_had() -> None:
    first, second, new = budget(), budget(), budget(per_hour=10, per_agent_hour=4)
    first.spend("c-1", "ava", 3.0, NOON_MS)
    first.spend("c-1", "ben", 1.0, NOON_MS)
    second.spend("c-2", "ava", 2.0, NOON_MS)
    for _ in range(2):  # it takes several partitions over from each
        new.recall(*first.spent(NOON_MS), NOON_MS)
        new.recall(*second.spent(NOON_MS), NOON_MS)
    assert new.left(NOON_MS) == {"hour": 6.0, "agent": 1.0}
    assert new.left(NOON_MS + HOUR_MS) == {"hour": 10.0, "agent": 4.0}
    new.recall(*first.spent(NOON_MS), NOON_MS + HOUR_MS)
    assert new.left(NOON_MS + HOUR_MS) == {"hour": 10.0, "agent": 4.0}, "that hour is over"


def test_the_least_that_an_agent_has_left() -> None:
    bound = budget(per_agent_hour=10)
    bound.spend("c-1", "ava", 3, NOON_MS)
    bound.spend("c-2", "ben", 4, NOON_MS)
    some(bound.promise("c-1", "ava", 2, NOON_MS))
    assert bound.left(NOON_MS) == {"hour": 91, "agent": 5}


def test_memory_of_calls_and_agents_is_bounded() -> None:
    bound = budget(per_call=1.0, per_agent_hour=1.0, per_hour=10**9)
    for number in range(MAX_CALLS + 5):
        bound.spend(f"c-{number}", f"agent-{number}", 1.0, NOON_MS)
    assert (len(bound._spent_by_call), len(bound._spent_by_agent)) == (MAX_CALLS, MAX_AGENTS + 1)
    # it shares the budget of the others
    assert bound.promise("c-new", "agent-new", 0.1, NOON_MS) is None
    assert bound.promise("c-new", f"agent-{MAX_CALLS}", 0.1, NOON_MS) is None


def test_a_burst_goes_out_at_once_and_what_follows_has_to_wait() -> None:
    limit = RateLimit(requests_per_minute=60, tokens_per_minute=10**9)
    waits = some(limit.reserve(0, 1, 12, 10_000))
    assert waits[:10] == [0] * 10
    assert waits[10:] == pytest.approx([1_000, 2_000])
    assert limit.reserve(0, 1, 1, 10_000) == pytest.approx([3_000])
    assert limit.reserve(13_000, 1, 1, 10_000) == [0]


def test_tokens_are_counted_like_requests() -> None:
    limit = RateLimit(requests_per_minute=10**9, tokens_per_minute=60_000)
    assert limit.reserve(0, 10_000, 1, 0) == [0]
    assert limit.reserve(0, 1_000, 1, 2_000) == pytest.approx([1_000])
    limit.correct(reserved=10_000, used=1_000, repeats=0)
    assert limit.reserve(0, 1_000, 1, 0) == [0]


def test_who_cannot_wait_so_long_takes_no_place() -> None:
    limit = RateLimit(requests_per_minute=60, tokens_per_minute=10**9)
    assert limit.reserve(0, 1, 10, 0) == [0] * 10
    assert limit.reserve(0, 1, 3, 2_999) is None
    assert limit.reserve(0, 1, 1, 1_000) == pytest.approx([1_000])


def test_a_request_larger_than_a_burst_goes_out_when_all_is_there() -> None:
    limit = RateLimit(requests_per_minute=10**9, tokens_per_minute=600)
    assert limit.reserve(0, 100_000, 1, 0) == [0]
    assert limit.reserve(60_000, 100, 1, 10**9) == pytest.approx([100_000 / 600 * 60_000 - 60_000])


def test_the_rate_of_an_hour_is_what_was_set() -> None:
    limit = RateLimit(requests_per_minute=500, tokens_per_minute=10**9)
    sent, now_ms = 0, 0.0
    while now_ms < 60 * 60_000:
        waits = some(limit.reserve(now_ms, 1, 1, 10**9))
        now_ms += waits[0]
        sent += 1
    assert sent == pytest.approx(500 * 60, rel=0.01)


def test_the_breaker_opens_after_failures_in_a_row_and_lets_one_try() -> None:
    breaker = Breaker(failures=3, pause_ms=1_000)
    for now_ms in (0, 1):
        breaker.failed(now_ms)
    breaker.succeeded()
    for now_ms in (2, 3):
        breaker.failed(now_ms)
    assert (breaker.is_open, breaker.wait_ms(3)) == (False, 0)
    breaker.failed(4)
    assert (
        breaker.is_open,
        breaker.wait_ms(4),
        breaker.wait_ms(1_003),
        breaker.wait_ms(1_004),
    ) == (True, 1_000, 1, 0)
    breaker.begin(1_004)
    assert breaker.wait_ms(1_004) == 1_000  # the others wait for how the try goes
    breaker.failed(1_100)
    assert breaker.wait_ms(1_100) == 1_000
    breaker.begin(2_100)
    breaker.succeeded()
    assert (breaker.is_open, breaker.wait_ms(2_100)) == (False, 0)


def test_a_try_that_never_ends_does_not_keep_the_breaker_open_for_ever() -> None:
    breaker = Breaker(failures=1, pause_ms=1_000)
    breaker.failed(0)
    breaker.begin(1_000)
    assert breaker.wait_ms(2_000) == 0


PINNED = [True, False, True, False, True, True, False, True]
"""Which of the first calls are in a sample of half: another hash would change the sample under
running calls.
"""


def test_a_call_is_in_the_sample_or_not_for_ever() -> None:
    ids = [f"call-{number}" for number in range(20_000)]
    sampled = {name for name in ids if is_sampled(name, 0.25)}
    assert len(sampled) == pytest.approx(5_000, rel=0.05)
    assert sampled <= {name for name in ids if is_sampled(name, 0.5)}
    assert is_sampled("call-1", 1.0)
    assert not is_sampled("call-1", 0.0)
    assert [is_sampled(name, 0.5) for name in ids[:8]] == PINNED


# The next question to be asked, and the ones that have to leave.


def waiting(
    number: int, deadline_ms: int = 1_000, arrived_ms: int = 0, **fields: object
) -> WaitingQuestion:
    fields = {"conversation_id": f"c-{number}"} | fields
    return WaitingQuestion(
        question(asked_at_ms=0, deadline_ms=deadline_ms, **fields), arrived_ms, deadline_ms, number
    )


def line_of(*entries: WaitingQuestion, max_waiting: int = 100) -> WaitingLine:
    line = WaitingLine(max_waiting)
    for entry in entries:
        assert list(line.put(entry)) == []
    return line


def order(line: WaitingLine) -> list[int]:
    taken = []
    while (entry := line.pop()) is not None:
        taken.append(entry.number)
    return taken


def test_calls_at_risk_then_the_nearest_deadline_then_who_came_first() -> None:
    line = line_of(
        waiting(1, 900),
        waiting(2, 500),
        waiting(3, 900, priority=5),
        waiting(4, 500),
        waiting(5, 100),
    )
    assert order(line) == [3, 5, 2, 4, 1]


def test_who_has_waited_too_long_leaves() -> None:
    line = line_of(waiting(1, 300), waiting(2, 100), waiting(3, 200))
    assert line.next_deadline_ms == 100
    assert [entry.number for entry in line.expired(200)] == [2, 3]
    assert (len(line), line.next_deadline_ms, order(line)) == (1, 300, [1])
    assert line.oldest_ms is None


def test_the_age_of_the_oldest() -> None:
    assert (
        line_of(waiting(1, arrived_ms=70), waiting(2, arrived_ms=50, deadline_ms=9_000)).oldest_ms
        == 50
    )


def test_a_full_line_sends_the_least_urgent_away() -> None:
    line = line_of(waiting(1, 300), waiting(2, 900), max_waiting=2)
    first, last = waiting(3, 100), waiting(4, 999)
    assert [(left.number, why) for left, why in line.put(first)] == [(2, UnjudgedReason.QUEUE_FULL)]
    assert [(left.number, why) for left, why in line.put(last)] == [(4, UnjudgedReason.QUEUE_FULL)]
    assert order(line) == [3, 1]


RUNNING: dict[str, Any] = {"kind": JudgeKind.CONVERSATION_PROGRESSION, "conversation_id": "c"}


def test_a_later_turn_takes_the_place_only_of_kinds_that_judge_the_whole_call() -> None:
    assert order(line_of(*(waiting(turn, turn=turn, conversation_id="c") for turn in (1, 2)))) == [
        1,
        2,
    ]
    earlier, later = (waiting(turn, turn=turn, **RUNNING) for turn in (1, 2))
    line = line_of(earlier)
    assert [(left.number, why) for left, why in line.put(later)] == [(1, UnjudgedReason.SUPERSEDED)]
    assert order(line) == [2]


def test_an_earlier_turn_that_comes_late_is_superseded_itself() -> None:
    line = line_of(waiting(2, turn=2, **RUNNING))
    assert [left.number for left, _ in line.put(waiting(1, turn=1, **RUNNING))] == [1]
    assert order(line) == [2]


def test_progression_is_judged_one_at_a_time_and_only_the_newest() -> None:
    kind = JudgeKind.CONVERSATION_PROGRESSION
    turns = [waiting(turn, kind=kind, turn=turn, conversation_id="c") for turn in range(1, 5)]
    line = line_of(turns[0])
    running = line.pop()
    assert running is turns[0]
    assert list(line.put(turns[1])) == []
    assert line.pop() is None
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
        line = WaitingLine(8)
        there: dict[str, int] = {}
        came: list[int] = []
        went: list[int] = []

        def go(
            entry: WaitingQuestion, there: dict[str, int] = there, went: list[int] = went
        ) -> None:
            del there[entry.request_id]
            went.append(entry.number)

        for number in range(120):
            entry = waiting(
                number,
                draw.randrange(1_000),
                conversation_id=f"c-{draw.randrange(3)}",
                turn=draw.randrange(5),
                priority=draw.randrange(2),
                transcript=(),
            )
            # a repeated question gets the same answer, before it comes here
            if entry.request_id not in there:
                there[entry.request_id] = number
                came.append(number)
                for gone, _ in list(line.put(entry)):
                    go(gone)
            if draw.random() < 0.3:
                for gone in line.expired(draw.randrange(400)):
                    go(gone)
            if draw.random() < 0.3 and (taken := line.pop()) is not None:
                go(taken)
            assert len(line) == len(there) <= 8
        went += order(line)
        assert sorted(came) == sorted(went)
        assert len(went) > 40
