"""The brokers' time as a sequencer estimates it."""

import time

import pytest

from consumers.sequencer.reading import BrokerTime


class Clocks:
    """The clocks of a machine, in ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = 1_000_000, 5_000
        monkeypatch.setattr(time, "time_ns", lambda: self.wall * 1_000_000)
        monkeypatch.setattr(time, "clock_gettime_ns", lambda _: self.steady * 1_000_000)

    def go_on(self, ms: int) -> None:
        self.wall += ms
        self.steady += ms


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_a_step_of_the_wall_clock_changes_nothing(clocks: Clocks) -> None:
    clock = BrokerTime()
    clocks.go_on(500)
    clocks.wall += 3_600_000
    assert (clock.now_ms(), clock.difference_ms) == (1_000_500, 3_600_000)


@pytest.mark.parametrize(
    ("stamps_ms", "expected_ms"),
    [
        pytest.param([1_000_030], 1_000_100, id="a stamp on the way of the tick proves nothing"),
        pytest.param([990_000], 990_100, id="ahead: the stamp cannot be before the tick was sent"),
        pytest.param([1_009_000], 1_009_000, id="behind: the stamp cannot be after the answer"),
        pytest.param([990_000, 1_000_030, 7_000_000], 990_100, id="the slowest broker counts"),
        pytest.param(
            [-1, 990_000], 1_000_100, id="a topic with the producers' times has no stamps"
        ),
        pytest.param([], 1_000_100, id="nothing"),
    ],
)
def test_the_stamps_of_a_tick_correct_it(
    clocks: Clocks, stamps_ms: list[int], expected_ms: int
) -> None:
    clock = BrokerTime()
    sent_ms = clock.now_ms()
    clocks.go_on(100)
    clock.stamped(sent_ms, stamps_ms)
    assert (clock.now_ms(), clock.difference_ms) == (expected_ms, 1_000_100 - expected_ms)


def test_a_process_that_was_frozen_on_the_way_of_a_tick_learns_less(clocks: Clocks) -> None:
    clock = BrokerTime()
    sent_ms = clock.now_ms()
    clocks.go_on(60_000)
    clock.stamped(sent_ms, [1_000_010])
    assert clock.now_ms() == 1_060_000
