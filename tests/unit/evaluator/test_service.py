"""The evaluator runs and ends: its ticks, its health reports, and the things it leaves behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalOperation, KafkaConnectionError, ProducerFenced
from structlog.testing import capture_logs

from consumers.evaluator import partition, service
from consumers.evaluator.recovery import Recovery
from consumers.evaluator.service import LogMadeAnewError, SharedNameError
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.topics import (
    SLOW_SECONDS,
    STUCK_JOIN_SECONDS,
    STUCK_WRITE_SECONDS,
    StandstillError,
    used_topics,
)
from consumers.evaluator.writer import FencedError, WriteError
from consumers.runtime import process
from consumers.runtime.kafka.connection import TopicsUnfitError
from consumers.runtime.process import StuckTaskError
from tests.support.fakes.evaluator_fakes import (
    MAX_UNWRITTEN,
    NOW_MS,
    START,
    Shell,
    decision,
    fact,
    logs_of,
    pause,
    row,
    until_idle,
)
from tests.support.patience import patient


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


# Ticks.


async def ticking(shell: Shell, until: Callable[[], object]) -> None:
    """Ticks go on until then."""
    task = asyncio.create_task(shell.role._tick_for_ever())
    async with asyncio.timeout(patient(5)):
        while not until():  # noqa: ASYNC110  # what it waits for is no event
            await asyncio.sleep(0)
    task.cancel()


async def test_a_tick_closes_calls_and_lets_no_time_pass(shell: Shell) -> None:
    await shell.assigned(0)
    shell.evaluators[0].closing_calls = 2
    await ticking(shell, lambda: not shell.evaluators[0].closing_calls)
    assert shell.evaluators[0].advanced_to_ms == [0], "where it began"
    assert shell.role.stalled() == ()


async def test_a_tick_has_the_place_written_where_nothing_is_decided(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "ROW_EVERY_SECONDS", 0.0)
    await shell.assigned(0)
    await ticking(shell, lambda: shell.role.owned[0].outlet.place == START)


async def test_what_is_published_once_again_gives_way_and_comes_before_the_next_record(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shell.assigned(0)
    owned = shell.role.owned[0]
    monkeypatch.setattr(partition, "PUBLISHED_AGAIN_IN_A_STEP", 1)
    owned._again = iter([fact("c-1")] * 3)
    turns: list[int] = []

    async def others() -> None:
        while owned.is_publishing_again:
            turns.append(owned.next_offset)
            await pause(0)

    waiting = asyncio.create_task(others())
    await shell.folds(START)
    await waiting
    assert turns == [START] * 4, "others have a turn after each step"
    assert owned.next_offset == START + 1


async def test_an_offset_that_comes_twice_ends_the_role(shell: Shell) -> None:
    await shell.assigned(0)
    await shell.folds(START)
    with pytest.raises(LogMadeAnewError, match=r"Log events\[0\]: offset 5 was to come next, and 3 came"):
        await shell.polled(3)
    assert not shell.role.owned[0].is_active, "so that nothing of it is written any more"


async def test_a_partition_with_too_many_calls_to_close_pauses_alone(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.evaluators[1].closing_calls = 2 * service.MAX_CLOSING_CALLS
    await shell.folds(START)
    assert shell.consumer.paused == logs_of(1)
    shell.evaluators[1].closing_calls = service.MAX_CLOSING_CALLS // 2
    shell.consumer.positions[TopicPartition("events", 1)] = START
    await shell.folds(START + 1)
    assert shell.consumer.paused == set()


async def test_what_it_lacks_is_told_by_messages_and_by_time(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    await shell.assigned(0)
    now_ms = NOW_MS
    monkeypatch.setattr(service, "wall_clock_ms", lambda: now_ms)

    def lag() -> tuple[float | None, ...]:
        shell.role._instruments.refresh()
        labels = {"group": "callgauge-evaluator", "topic": "events", "partition": "0"}
        names = ("consumer_lag_messages", "consumer_lag_seconds", "watermark_lag_messages")
        return tuple(shell.registry.get_sample_value(f"callgauge_{name}", labels) for name in names)

    shell.consumer.end = START
    assert lag() == (0, 0, 0)
    await shell.folds(START)
    shell.consumer.end = START + 3
    now_ms += 1_500
    assert lag() == (2, 1.5, 1)
    shell.consumer.end, now_ms = START + 1, NOW_MS + service.STALE_MS + 1
    assert lag() == (0, 5.001, 1), "the broker has not answered for as long"
    assert shell.registry.get_sample_value(
        "callgauge_source_last_event_timestamp_seconds", {"source": "pipecat"}
    ) == NOW_MS / 1_000  # fmt: skip


async def test_a_partition_that_recovers_is_being_taken_over(shell: Shell) -> None:
    await shell.assigned(0)
    shell.role.owned[0].start(Recovery(row(9), START, 9))
    assert shell.role.problems() == ("evaluator: taking over partitions 0",)


async def test_it_is_well_while_it_ticks(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    role = shell.role
    assert role.problems() == ("evaluator: not reading the log",)
    assert role.stalled() == ()
    role.ready.set()
    assert role.problems() == ()
    role.ready.clear()
    role._is_leaving = True
    assert role.problems() == ("evaluator: leaving",)
    now_seconds = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_seconds)
    role._ticked_at = now_seconds - 30
    assert role.stalled() == ()
    role._ticked_at = now_seconds - 31
    assert role.stalled() == ("evaluator: no look at the partitions for 31 s",)


async def test_polls_that_fail_make_it_stall(shell: Shell) -> None:
    shell.role._ticked_at = time.monotonic()
    shell.subscription.stalls = ("evaluator: its polls fail",)
    assert shell.role.stalled() == ("evaluator: its polls fail",)


# The end.


async def run(shell: Shell, monkeypatch: pytest.MonkeyPatch, stop: asyncio.Event) -> None:
    """Runs the role on fakes that read nothing by themselves."""

    async def read() -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(shell.role, "_read", read)
    await shell.role.run(stop)


async def test_the_end_waits_for_nobody(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.01)
    await shell.assigned(0)
    shell.may_write.clear()
    waiting = shell.polled(*range(4, 9))
    await until_idle()
    stop = asyncio.Event()
    stop.set()
    await run(shell, monkeypatch, stop)
    await waiting
    assert shell.journal == []


async def test_at_the_end_all_is_written_and_committed_and_everyone_disconnects(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shell.assigned(0)
    shell.takeover.gate.clear()
    await shell.rebalanced(0, 1)  # so that leaving takes a moment longer
    shell.may_write.clear()
    await shell.folds(4)
    stop = asyncio.Event()
    running = asyncio.create_task(run(shell, monkeypatch, stop))
    await until_idle()
    assert shell.role.ready.is_set()
    stop.set()
    await until_idle()
    assert not shell.role.ready.is_set()
    late = shell.polled(5)  # the successor's
    shell.may_write.set()
    await asyncio.gather(running, late)
    assert shell.folded == [[4], []]
    assert shell.commits[-1] == "commit events[0]@5"
    assert "write c-1 to 0" in shell.journal
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [(False, True), (False, True)]
    assert shell.subscription.stopped


async def test_a_failure_ends_the_role_without_a_commit(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    await shell.assigned(0)
    await shell.folds(4)
    shell.subscription.fail(ZeroDivisionError("boom"))
    with pytest.raises(ZeroDivisionError, match="boom"):
        await run(shell, monkeypatch, asyncio.Event())
    assert shell.commits == []
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [(False, True)]
    assert shell.subscription.stopped
    assert not shell.role.ready.is_set()


async def test_an_end_in_the_middle_of_a_takeover_leaves_nothing_behind(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.takeover.gate.clear()
    await shell.assigned(0)
    stop = asyncio.Event()
    stop.set()
    await run(shell, monkeypatch, stop)
    shell.takeover.gate.set()
    await until_idle()
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [(False, True)]
    assert not shell.role.owned
    assert not shell.subscription.failures
    assert shell.commits == []


# The evaluator's commits and their timing, writers that are fenced off, and reading that slows down with slow writing.


# Writers, and those that are fenced off.


async def test_a_writer_that_fails_ends_the_role_and_nothing_is_committed(shell: Shell) -> None:
    await shell.assigned(0)
    shell.writers[0].error = WriteError("refused")
    await shell.folds(4)
    await shell.role._commit(1)
    await shell.role._commit(1)
    assert shell.subscription.failures == [shell.writers[0].error]
    assert shell.commits == []


async def test_partitions_that_are_fenced_off_are_dropped_and_never_committed(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.writers[0].error = FencedError("partition 0")
    await shell.folds(4)
    await shell.folds(5)
    await shell.folds(4, number=1)
    await shell.role._commit(1)
    await shell.revoked()
    assert shell.folded == [[4], [], [], []]
    assert shell.commits == []
    assert not shell.subscription.failures
    assert shell.registry.get_sample_value("callgauge_partitions_fenced_total") == 2


async def test_fenced_partitions_are_taken_over_again_unless_the_group_gives_them_away(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept: what another process has written is only in `scores`, which a takeover reads."""
    monkeypatch.setattr(service, "TAKE_AGAIN_SECONDS", 0)
    await shell.assigned(0, 1)
    await shell.rebalanced(0, 1)
    shell.writers[1].error = FencedError("partition 0")
    await shell.folds(4)
    assert (shell.takeover.begun, shell.writers[1].stopped, shell.writers[2].numbers) == (2, True, [0, 1])
    assert not shell.consumer.paused
    await shell.folds(4)
    assert shell.folded == [[4], [], [4], []]
    assert shell.role.ready.is_set()
    monkeypatch.setattr(service, "TAKE_AGAIN_SECONDS", 60)
    shell.writers[2].error = FencedError("partition 0")
    await shell.folds(5)
    assert shell.consumer.paused == logs_of(0, 1)
    assert shell.role.problems() == ("evaluator: taking over partitions 0, 1",)
    await shell.rebalanced(1)
    assert (shell.takeover.begun, shell.writers[-1].numbers) == (3, [1])


@pytest.mark.parametrize("error", [ProducerFenced(), IllegalOperation("not in transaction")])
async def test_a_claim_that_another_one_overtakes_is_made_again(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(service, "TAKE_AGAIN_SECONDS", 0)
    shell.takeover.error = error
    shell.takeover.gate.clear()
    await shell.assigned(0)
    polled_before = shell.polled(4)
    shell.takeover.gate.set()
    await asyncio.sleep(0)
    shell.takeover.error = None
    await polled_before
    await until_idle()
    assert shell.takeover.begun == 2
    await shell.folds(4)
    assert shell.folded[-1] == [4]
    assert shell.role.ready.is_set()
    assert [writer.stopped for writer in shell.writers] == [True, False]
    assert shell.registry.get_sample_value("callgauge_partitions_fenced_total") == 0


async def test_partitions_that_are_claimed_again_and_again_end_the_role(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TAKE_AGAIN_SECONDS", 0)
    shell.takeover.error = ProducerFenced()
    await shell.assigned(0)
    with pytest.raises(SharedNameError):
        await asyncio.wait_for(shell.subscription.failure(), patient(5))
    assert shell.takeover.begun == service.MAX_TAKEOVERS
    assert "Partitions 0: another process claimed them" in str(shell.subscription.failures[0])


async def test_fences_that_are_far_apart_end_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TAKE_AGAIN_SECONDS", 0)
    monkeypatch.setattr(service, "STEADY_SECONDS", -1)
    await shell.assigned(0)
    for number in range(service.MAX_TAKEOVERS + 1):
        shell.writers[number].error = FencedError("partition 0")
        await shell.folds(START)
    assert shell.takeover.begun == service.MAX_TAKEOVERS + 2
    assert not shell.subscription.failures


# Commits and their timing.


async def test_before_partitions_go_all_is_written_and_committed(shell: Shell) -> None:
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.folds(4)
    revoking = asyncio.create_task(shell.revoked())
    await until_idle()
    assert shell.journal == []
    shell.may_write.set()
    await revoking
    assert shell.journal[0] == "write c-1 to 0"
    assert shell.commits == ["commit events[0]@5"]


async def test_a_commit_is_of_what_was_written_and_waits_for_nobody(shell: Shell) -> None:
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.folds(4, 5)
    await shell.role._commit(1)
    assert shell.folded == [[4, 5]]
    assert shell.commits == []
    shell.may_write.set()
    await until_idle()
    await shell.role._commit(1)
    assert shell.commits == ["commit events[0]@6"]


async def test_only_what_changed_is_committed(shell: Shell) -> None:
    await shell.assigned(0)
    await shell.role._commit(1)
    shell.journal.clear()
    await shell.role._commit(1)
    assert shell.journal == []
    await shell.folds(4)
    await shell.role._commit(1)
    await shell.role._commit(1)
    assert shell.journal == ["write c-1 to 0", "commit events[0]@5"]


@pytest.mark.parametrize("error", [CommitFailedError("rebalance"), KafkaConnectionError("gone")])
async def test_a_commit_that_fails_is_tried_again(shell: Shell, error: Exception) -> None:
    await shell.assigned(0)
    await shell.folds(4)
    shell.consumer.error = error
    await shell.role._commit(1)
    shell.consumer.error = None
    await shell.role._commit(1)
    assert shell.commits == ["commit events[0]@5"] * 2


async def test_after_a_rebalance_what_is_committed_is_not_taken_for_granted(shell: Shell) -> None:
    await shell.assigned(0)
    await shell.folds(4)
    await shell.rebalanced(0)
    await shell.role._commit(1)
    assert shell.commits == ["commit events[0]@5"] * 2


async def test_a_broker_that_takes_nothing_does_not_hold_up_a_rebalance(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.01)
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.folds(4)
    with capture_logs() as logged:
        await shell.revoked()
    assert [line["scores"] for line in logged if line["event"] == "handed_over_unwritten"] == [1]
    assert shell.journal == []
    await shell.assigned()
    shell.may_write.set()
    await until_idle()
    assert shell.journal == []  # the next owner decides


async def test_what_was_given_up_unwritten_is_not_committed_when_it_comes_back(shell: Shell) -> None:
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.folds(4)
    await shell.role._commit(1)
    await shell.assigned()
    shell.may_write.set()
    await shell.assigned(0)
    shell.journal.clear()
    await shell.role._commit(1)
    assert shell.commits == []


# Reading slows down when writing does.


async def test_reading_waits_for_a_broker_that_takes_scores_slowly(shell: Shell) -> None:
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.polled(*range(4, 4 + MAX_UNWRITTEN))
    assert shell.consumer.paused == set()
    await shell.polled(7)
    assert shell.consumer.paused == logs_of(0)
    shell.may_write.set()
    await until_idle()
    shell.role._pause_or_resume()
    assert shell.role._unwritten_records == 0
    assert shell.consumer.paused == set()


async def test_all_partitions_wait_for_the_one_writer_until_half_of_it_is_written(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.may_write.clear()
    await shell.polled(*range(4, 4 + 2 * MAX_UNWRITTEN))
    outbox = shell.role.owned[0].outbox
    seen = []
    while outbox.records:
        shell.role._pause_or_resume()
        seen.append((outbox.records, shell.consumer.paused == logs_of(0) | logs_of(1)))
        outbox.written(1)
    half = MAX_UNWRITTEN // 2
    assert seen == [(left, left > half) for left in range(2 * MAX_UNWRITTEN, 0, -1)]


async def test_a_tick_does_not_pause_what_waits_for_the_writer_a_moment(shell: Shell) -> None:
    await shell.assigned(0)
    shell.may_write.clear()
    shell.role.owned[0].outbox.put(decision(*[fact("c-1")] * (MAX_UNWRITTEN + 1)))
    shell.role._pause_or_resume(may_stop=False)
    assert shell.consumer.paused == set()
    shell.role._pause_or_resume()
    assert shell.consumer.paused == logs_of(0)


async def test_nobody_waits_for_what_is_given_up(shell: Shell) -> None:
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.polled(*range(4, 9))
    assert shell.consumer.paused == logs_of(0)
    await shell.assigned(1)
    shell.role._pause_or_resume()
    assert shell.consumer.paused == set()


# Standstill: what should go on, and does not, while ticks go on.

WHOLE = {"leader": 1, "replicas": [1, 2], "isr": [2, 1]}


def partitions(**changed: object) -> dict[str, list[dict[str, object]]]:
    """What Kafka says of the topics."""
    return {topic: [{**WHOLE, **changed}] for topic in used_topics(EvaluatorSettings())}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the evaluator sees on the monotonic clock."""
    now = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


async def looks_after(shell: Shell, clock: list[float], seconds: float) -> None:
    """Time passes, offsets are committed, and ticks look at what goes on."""
    clock[0] += seconds
    await shell.role._commit(1)
    shell.role._topic_watch.look(shell.role._standstill())
    shell.role._topic_watch.look(shell.role._standstill())
    await until_idle()


async def let_scores_wait(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.may_write.clear()
    await shell.polled(4)


async def let_the_group_be_silent(shell: Shell) -> None:
    await shell.assigned(0, 1)
    await shell.revoked()


STANDSTILLS = [
    (let_scores_wait, "scores have waited to be written", STUCK_WRITE_SECONDS),
    (let_the_group_be_silent, "the group callgauge-evaluator has given this member no partitions", STUCK_JOIN_SECONDS),
]


@pytest.mark.parametrize(("begin", "what", "most_seconds"), STANDSTILLS)
async def test_a_standstill_ends_readiness_within_half_a_minute_and_the_role_soon_after(
    shell: Shell, clock: list[float], begin: Callable[[Shell], Awaitable[None]], what: str, most_seconds: float
) -> None:
    shell.found = partitions()
    await begin(shell)
    assert shell.role.problems() == ()
    await looks_after(shell, clock, SLOW_SECONDS - 1)
    assert shell.role.problems() == ()
    assert shell.asked_about_topics == 0
    await looks_after(shell, clock, 2)
    assert shell.role.problems() == (f"evaluator: {what} for 16 s",)
    assert shell.asked_about_topics == 1
    assert shell.subscription.failures == []
    for _ in range(int(most_seconds // SLOW_SECONDS)):  # Kafka is asked as often
        await looks_after(shell, clock, SLOW_SECONDS + 0.1)
    failure = shell.subscription.failures[0]
    assert isinstance(failure, StandstillError)
    assert str(failure).startswith(f"{what} for ")


@pytest.mark.parametrize("begin", [begin for begin, _, _ in STANDSTILLS])
@pytest.mark.parametrize("found", [None, partitions(isr=[1]), partitions(leader=-1)])
async def test_a_role_waits_for_kafka_as_long_as_kafka_is_not_whole(
    shell: Shell, clock: list[float], begin: Callable[[Shell], Awaitable[None]], found: dict[str, Any] | None
) -> None:
    shell.found = found
    await begin(shell)
    for _ in range(20):
        await looks_after(shell, clock, SLOW_SECONDS + 0.1)
    assert shell.asked_about_topics == 20
    assert shell.subscription.failures == []
    assert shell.role.problems() != ()


async def test_what_goes_on_again_is_no_standstill(shell: Shell, clock: list[float]) -> None:
    shell.found = partitions()
    await let_scores_wait(shell)
    await looks_after(shell, clock, SLOW_SECONDS + 1)
    shell.may_write.set()
    await until_idle()
    await shell.role._commit(1)
    await looks_after(shell, clock, 0)
    assert shell.role.problems() == ()
    await let_the_group_be_silent(shell)
    await looks_after(shell, clock, SLOW_SECONDS + 1)
    await shell.assigned(0, 1)
    await shell.role._commit(1)
    assert shell.role.problems() == ()
    assert shell.subscription.failures == []


async def test_a_topic_that_is_gone_ends_the_role_at_the_first_look(shell: Shell, clock: list[float]) -> None:
    shell.found = {**partitions(), "scores": []}
    await let_scores_wait(shell)
    await looks_after(shell, clock, SLOW_SECONDS + 1)
    (failure,) = shell.subscription.failures
    assert isinstance(failure, TopicsUnfitError)


# A writer that ignores its cancellation.


async def test_a_writer_that_goes_on_after_its_cancellation_ends_the_role(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 0.01)
    await shell.assigned(0)
    shell.writers[0].ignores_cancels = True
    await shell.revoked()
    (failure,) = shell.subscription.failures
    assert isinstance(failure, StuckTaskError)
    assert "writer" in str(failure)
    assert shell.role.owned == {}
    assert not shell.role.ready.is_set()
    shell.writers[0].may_end.set()
    await until_idle()
