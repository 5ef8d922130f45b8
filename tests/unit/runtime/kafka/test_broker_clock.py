"""The time at the broker: wall clocks that are set, wrong from the start, frozen; records that prove the time or do not."""

from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.runtime.kafka.broker_clock import ALLOWED_MS, RECENT_MS, STEP_MS, UNPROVED_MS, BrokerClock, read_clocks
from consumers.runtime.registry import Instruments
from tests.support.fakes.evaluator_fakes import NOW_MS, PIPECAT, START, Clocks, Record, Shell

MINUTES_10 = 600_000
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Timed:
    """A clock, and a broker with a clock that is right."""

    def __init__(self, wall_wrong_by_ms: int = 0) -> None:
        self.clocks = Clocks(NOW_MS + wall_wrong_by_ms, 5_000_000)
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry, ["evaluator"])
        self.clock = BrokerClock(self.instruments, self.clocks)
        self.broker_ms = NOW_MS

    def go(self, by_ms: int) -> None:
        self.clocks.go(by_ms)
        self.broker_ms += by_ms

    def step(self, by_ms: int) -> None:
        self.clocks.wall_ms += by_ms

    def record(
        self, tp: TopicPartition = A, wrong_by_ms: int = 0, after_ms: int = 200, *, is_of_broker: bool = True
    ) -> bool:
        """A record comes, half-way between nothing outstanding and now; returns whether it corrected the estimate."""
        empty_at_ms = self.clocks.steady_ms
        self.go(after_ms)
        at_ms = self.broker_ms - after_ms // 2 + wrong_by_ms
        self.clock.weigh(tp, empty_at_ms, at_ms, at_ms, is_of_broker=is_of_broker)
        return self.clock.correct()

    @property
    def wrong_by_ms(self) -> int:
        return self.clock.now_ms() - self.broker_ms

    @property
    def steps(self) -> float | None:
        return self.registry.get_sample_value("callgauge_clock_steps_total")


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(-MINUTES_10, MINUTES_10), st.booleans()), max_size=10))
def test_no_steps_of_the_wall_clock_move_time(moves: Sequence[tuple[int, int, bool]]) -> None:
    """Time goes as the machine counts it, however often the wall clock is set, looked at or not, with records between."""
    timed = Timed()
    with capture_logs():
        for passed_ms, step_ms, has_record in moves:
            timed.go(passed_ms)
            timed.step(step_ms)
            timed.clock.was_stepped()
            if has_record:
                assert not timed.record()
            assert timed.wrong_by_ms == 0


@given(
    st.integers(-MINUTES_10, MINUTES_10),
    st.lists(
        st.tuples(
            st.integers(0, 30_000),
            st.integers(-MINUTES_10, MINUTES_10),
            st.integers(-MINUTES_10, MINUTES_10),
            st.sampled_from([A, B]),
            st.booleans(),
        ),
        max_size=10,
    ),
)
def test_producers_clocks_alone_do_not_move_time(
    wall_wrong_by_ms: int, moves: Sequence[tuple[int, int, int, TopicPartition, bool]]
) -> None:
    """Time goes as the machine counts it, or as the wall clock shows it, and producers' stamps change neither."""
    timed = Timed(wall_wrong_by_ms)
    with capture_logs():
        for passed_ms, step_ms, record_wrong_by_ms, tp, is_stepped in moves:
            timed.go(passed_ms)
            timed.step(step_ms if is_stepped else 0)
            timed.clock.was_stepped()
            before_ms = timed.wrong_by_ms
            if timed.record(tp, record_wrong_by_ms, is_of_broker=False):
                assert abs(timed.clock.wall_offset_ms) < STEP_MS
            else:
                assert timed.wrong_by_ms == before_ms


@given(
    st.integers(-MINUTES_10, MINUTES_10),
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(-MINUTES_10, MINUTES_10), st.integers(0, 20_000)),
        min_size=1,
        max_size=10,
    ),
)
def test_the_broker_s_records_bring_time_right_and_keep_it_so(
    wall_wrong_by_ms: int, moves: Sequence[tuple[int, int, int]]
) -> None:
    """The proof of a record is never wrong, however long it lay unread; the fresher the record, the more it proves."""
    timed = Timed(wall_wrong_by_ms)
    with capture_logs():
        for passed_ms, step_ms, after_ms in moves:
            timed.go(passed_ms)
            timed.step(step_ms)
            timed.clock.was_stepped()
            before_ms = abs(timed.wrong_by_ms)
            timed.record(after_ms=after_ms)
            assert abs(timed.wrong_by_ms) <= before_ms
        timed.go(RECENT_MS + 1)  # a record that lay unread for long proves little
        timed.record()
    assert abs(timed.wrong_by_ms) <= ALLOWED_MS + 200


@pytest.mark.parametrize("step_ms", [MINUTES_10, -MINUTES_10, STEP_MS, -STEP_MS])
def test_a_step_is_logged_once_and_counted(step_ms: int) -> None:
    timed = Timed()
    with capture_logs() as logged:
        assert not timed.clock.was_stepped()
        timed.step(step_ms)
        assert [timed.clock.was_stepped() for _ in range(3)] == [True, False, False]
    assert [(line["event"], line["by_seconds"]) for line in logged] == [("clock_stepped", step_ms / 1_000)]
    assert timed.steps == 1
    timed.instruments.refresh()
    assert timed.registry.get_sample_value("callgauge_clock_offset_seconds") == step_ms / 1_000


def test_being_frozen_or_asleep_is_no_step() -> None:
    timed = Timed()
    timed.go(20_000)
    assert not timed.clock.was_stepped()
    assert timed.wrong_by_ms == 0


def test_small_steps_are_one_when_they_come_to_as_much() -> None:
    timed = Timed()
    seen = []
    for _ in range(4):
        timed.step(STEP_MS // 2)
        seen.append(timed.clock.was_stepped())
    assert seen == [False, True, False, True]


@pytest.mark.parametrize("wrong_by_ms", [MINUTES_10, -MINUTES_10])
def test_a_clock_that_was_wrong_from_the_start_is_brought_right_at_once(wrong_by_ms: int) -> None:
    timed = Timed(wrong_by_ms)
    with capture_logs() as logged:
        assert timed.record()
        assert not timed.record()
    assert -100 <= timed.wrong_by_ms <= 0, "rather late than early: dead air is never taken back"
    assert [line["event"] for line in logged] == ["clock_corrected"]
    assert ("wait" in logged[0]["what_happens_now"]) == (wrong_by_ms > 0)


def test_a_clock_that_is_set_right_later_is_believed_when_producers_agree() -> None:
    timed = Timed(MINUTES_10)
    with capture_logs():
        assert not timed.record(is_of_broker=False), "the wall clock does not say so"
        timed.step(-MINUTES_10)
        timed.clock.was_stepped()
        assert timed.wrong_by_ms == MINUTES_10
        assert timed.record(is_of_broker=False)
    assert timed.wrong_by_ms == 0


def test_a_clock_that_is_set_right_later_is_believed_when_the_broker_s_records_allow_it() -> None:
    """A record after a second without any says no more than that the time is within this second."""
    timed = Timed(MINUTES_10)
    with capture_logs():
        timed.step(-MINUTES_10)
        timed.clock.was_stepped()
        assert timed.record(after_ms=1_000)
    assert timed.wrong_by_ms == 0


def test_brokers_whose_clocks_disagree_move_nothing() -> None:
    timed = Timed()
    assert not timed.record(B)
    for _ in range(100):
        assert not timed.record(A, MINUTES_10)
    with capture_logs():
        timed.go(RECENT_MS)
        assert timed.record(A, MINUTES_10), "the other has proved nothing for a minute"


def test_a_producer_whose_clock_is_ahead_moves_nothing_beside_brokers_that_are_right() -> None:
    timed = Timed()
    assert not timed.record(B)
    assert not timed.record(A, MINUTES_10, is_of_broker=False)
    assert timed.wrong_by_ms == 0


def test_records_of_two_clocks_prove_nothing() -> None:
    timed = Timed()
    timed.clock.weigh(A, timed.clocks.steady_ms, NOW_MS, NOW_MS + MINUTES_10, is_of_broker=True)
    assert not timed.clock.correct()
    assert not timed.clock.is_trusted()


def test_at_the_start_time_waits_for_a_proof_and_not_for_long() -> None:
    timed = Timed()
    timed.go(MINUTES_10)  # until everything is read
    assert not timed.clock.is_trusted()
    timed.go(UNPROVED_MS - 1)
    assert not timed.clock.is_trusted()
    timed.go(1)
    assert timed.clock.is_trusted()
    proved = Timed()
    proved.record()
    assert proved.clock.is_trusted()
    disproved = Timed()
    disproved.record(A, MINUTES_10, is_of_broker=False)
    assert not disproved.clock.is_trusted()


def test_an_answer_is_never_newer_than_now() -> None:
    timed = Timed()
    assert timed.clock.steady_ms_of(NOW_MS - 70) == timed.clocks.steady_ms - 70
    assert timed.clock.steady_ms_of(NOW_MS + MINUTES_10) == timed.clocks.steady_ms


def test_what_comes_between_the_two_clocks_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is frozen just there reads both again."""
    times_ns = iter([0, 20_000_000_000, 20_000_000_000, 20_000_000_100])
    monkeypatch.setattr("time.clock_gettime_ns", lambda _: next(times_ns))
    walls_ns = iter([0, 20_000_000_000])
    monkeypatch.setattr("time.time_ns", lambda: next(walls_ns))
    assert read_clocks() == (20_000, 20_000)


# In the evaluator.


class Running:
    """An evaluator with nothing outstanding, whose client stamps the broker's answers by the wall clock, as aiokafka does."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    async def go(self, by_ms: int, *, is_frozen: bool = False) -> None:
        """Time passes; the broker answers every 100 ms unless we are frozen, and we look as often."""
        shell, clocks = self.shell, self.shell.clocks
        for passed_ms in (by_ms,) if is_frozen else (100,) * (by_ms // 100):
            clocks.go(passed_ms)
            shell.consumer.answered_at_ms = clocks.wall_ms
            await shell.role._assignment.look(shell.consumer)
            shell.role._assignment.advance()

    def has_closed(self) -> bool:
        """Whether time came to the moment for which the engine waits: there a call would close."""
        return bool(self.shell.evaluators[0].advanced_to_ms)


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    shell = Shell(monkeypatch)
    await shell.assigned(0)
    running = Running(shell)
    await running.go(1_000)
    return running


@pytest.mark.parametrize("is_frozen", [False, True], ids=["running", "frozen"])
@pytest.mark.parametrize("step_ms", [MINUTES_10, -MINUTES_10])
async def test_a_step_closes_no_call_and_holds_none_back(running: Running, step_ms: int, is_frozen: bool) -> None:
    clocks = running.shell.clocks
    due_ms = clocks.steady_ms + 60_000
    running.shell.evaluators[0].wakeup_ms = due_ms
    with capture_logs() as logged:
        for step in (step_ms, step_ms, -step_ms):
            clocks.wall_ms += step
            await running.go(15_000, is_frozen=is_frozen)
            assert not running.has_closed()
        await running.go(14_000)
        assert not running.has_closed()
        await running.go(1_300)
    assert running.has_closed()
    assert running.shell.evaluators[0].advanced_to_ms[0] - due_ms < 100
    assert [line["event"] for line in logged] == ["clock_stepped"] * 3


async def test_an_answer_from_before_a_step_is_not_taken_for_a_later_one(running: Running) -> None:
    """The answer came, the clock was set back, and only then did we look: by the new clock it comes from the future."""
    shell = running.shell
    shell.evaluators[0].wakeup_ms = shell.clocks.steady_ms + 1_000
    shell.clocks.go(100)
    shell.consumer.answered_at_ms = shell.clocks.wall_ms
    shell.clocks.wall_ms -= MINUTES_10
    shell.clocks.go(20_000)
    with capture_logs():
        for _ in range(2):
            await shell.role._assignment.look(shell.consumer)
            shell.consumer.answered_at_ms = shell.clocks.wall_ms  # asked before we were frozen
        shell.role._assignment.advance()
    assert not running.has_closed()


async def test_records_prove_the_time_through_the_evaluator(running: Running) -> None:
    """A clock that was behind from the start: a stamp of the broker moves time, one of a producer does not."""
    shell = running.shell
    shell.clock._proofs.clear()
    shell.evaluators[0].wakeup_ms = shell.clocks.steady_ms + MINUTES_10
    for is_of_broker in (False, True):
        await running.go(1_000)
        at_ms = shell.clocks.steady_ms + MINUTES_10
        offset = shell.consumer.positions[TopicPartition(PIPECAT, 0)]
        shell.consumer.positions[TopicPartition(PIPECAT, 0)] += 1
        with capture_logs():
            await shell.role._take([Record(PIPECAT, offset, at_ms, timestamp_type=int(is_of_broker))])
            await running.go(1_000)
        assert running.has_closed() == is_of_broker


async def test_what_a_transaction_hid_proves_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is older than it seems: it could not be seen while the transaction was open."""
    shell = running.shell
    monkeypatch.setattr(shell.consumer, "highwater", lambda _: START + 5)
    monkeypatch.setattr(shell.consumer, "last_stable_offset", lambda _: START)
    await running.go(60_000)
    await shell.role._take([Record(PIPECAT, START, shell.clocks.steady_ms - 50_000, timestamp_type=1)])
    assert shell.clock.now_ms() == shell.clocks.steady_ms


async def test_before_time_is_proved_it_goes_as_far_as_records_do(running: Running) -> None:
    shell = running.shell
    shell.clock._is_trusted = False
    assignment = shell.role._assignment
    assert assignment.known_ms(0) == 0
    assignment.owned[0].last_record_ms[PIPECAT] = NOW_MS - 500
    assert assignment.known_ms(0) == NOW_MS - 500
    await running.go(UNPROVED_MS)
    known_ms = assignment.known_ms(0)
    assert known_ms is not None
    assert known_ms > NOW_MS
