"""The evaluator runs and ends: its ticks, its health reports, and the things it leaves behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import CommitFailedError, KafkaConnectionError

from consumers.evaluator import partition, service
from consumers.evaluator.partition import MAX_CLOSING_CALLS, Recovery
from consumers.evaluator.service import LogMadeAnewError, SharedNameError
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.topics import (
    STUCK_JOIN_SECONDS,
    STUCK_WRITE_SECONDS,
    StandstillError,
    used_topics,
)
from consumers.evaluator.writer import FencedError, WriteError
from consumers.runtime import process
from consumers.runtime.kafka import polling
from consumers.runtime.kafka.connection import TopicsUnfitError
from consumers.runtime.kafka.polling import SLOW_SECONDS
from consumers.runtime.process import OperatorError, StuckTaskError
from tests.support.fakes.evaluator_fakes import (
    MAX_UNWRITTEN,
    NOW_MS,
    START,
    Shell,
    ended,
    moment,
    pause,
    row,
    until_idle,
)
from tests.support.known import Logged
from tests.support.patience import patient


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


@pytest.fixture
async def owner(shell: Shell) -> Shell:
    """It has partition 0."""
    await shell.assigned(0)
    return shell


# The loop.


async def test_the_loop_closes_calls_and_lets_no_time_pass(owner: Shell) -> None:
    owner.evaluators[0].closing_calls = 2
    await owner.goes_round()
    await owner.goes_round()
    assert owner.closing == [0]
    assert owner.evaluators[0].advanced_to_ms == [0], "where it began"
    assert owner.role.stalled() == ()


async def test_the_loop_has_the_place_written_where_nothing_is_decided(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "ROW_EVERY_SECONDS", 0.0)
    await shell.assigned(0)
    await shell.goes_round()
    await until_idle()
    assert shell.role.owned[0].outlet.place == START


async def test_partitions_recover_some_at_a_time_and_the_oldest_call_first(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all at once, none would be live before the last."""
    monkeypatch.setattr(service, "RECOVERED_AT_ONCE", 1)
    for number, began_ms in enumerate((NOW_MS + 3, NOW_MS + 1, NOW_MS + 2)):
        known = row(START + 2, first=START, first_known_ms=began_ms, known_ms=began_ms)
        shell.takeover.found[number] = Recovery(known, START, START + 2)
    await shell.assigned(0, 1, 2, 3)
    turns: list[set[int]] = []
    for records in (
        (),
        (ended(START, 1),),
        (ended(START + 1, 1),),
        (ended(START, 2), ended(START + 1, 2)),
        (),
    ):
        await shell.goes_round(*records)
        turns.append({0, 1, 2, 3} - {tp.partition for tp in shell.consumer.pauses})
    assert turns == [{1, 3}, {1, 3}, {1, 3}, {1, 2, 3}, {0, 1, 2, 3}], "3 had no former owner"


async def test_a_poll_that_does_not_come_back_ends(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's waits for ever while the group reassigns its partitions."""

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "MAX_POLL_SECONDS", 0.0)
    monkeypatch.setattr(shell.consumer, "getmany", never)
    await shell.assigned(0)
    async with asyncio.timeout(patient(5)):
        await shell.goes_round()
    assert shell.role.stalled() == ()


async def test_a_poll_that_fails_is_tried_again(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(polling, "RETRY_SECONDS", 0.0)
    await shell.assigned(0)
    with monkeypatch.context() as broken:
        broken.setattr(shell.consumer, "getmany", fails)
        await shell.goes_round()
    await shell.goes_round(ended(START))
    assert shell.folded == [[START]]
    assert (
        shell.registry.get_sample_value("callgauge_poll_failures_total", {"role": "evaluator"}) == 1
    )


async def test_what_is_published_once_again_gives_way_and_comes_before_the_next_record(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = owner.role.owned[0]
    monkeypatch.setattr(partition, "PUBLISHED_AGAIN_IN_A_STEP", 1)
    owned._again = iter([moment("c-1")] * 3)
    turns: list[int] = []

    async def others() -> None:
        while owned.is_publishing_again:
            turns.append(owned.next_offset)
            await pause(0)

    waiting = asyncio.create_task(others())
    await owner.folds(START)
    await waiting
    assert turns == [START] * 4, "others have a turn after each step"
    assert owned.next_offset == START + 1


async def test_an_offset_that_comes_twice_ends_the_role(owner: Shell) -> None:
    await owner.folds(START)
    with pytest.raises(
        LogMadeAnewError, match=r"Log events\[0\]: offset 5 was to come next, and 3 came"
    ):
        await owner.polled(3)
    assert not owner.role.owned[0].is_active, "so that nothing of it is written any more"


async def test_an_error_names_the_record_that_was_folded(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner.evaluators[0], "receive", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError) as failed:
        await owner.goes_round(ended(START))
    assert failed.value.__notes__ == [f"while events[0]@{START} was folded"]


async def test_a_partition_with_too_many_calls_to_close_is_read_no_more_until_some_are_closed(
    shell: Shell,
) -> None:
    await shell.assigned(0, 1)
    shell.evaluators[1].closing_calls = MAX_CLOSING_CALLS + 1
    for _ in range(2):
        await shell.goes_round()
    assert shell.consumer.polls == [({0}, 0), ({0, 1}, 0)]
    shell.evaluators[0].closing_calls = shell.evaluators[1].closing_calls = MAX_CLOSING_CALLS + 1
    await shell.goes_round()
    assert len(shell.consumer.polls) == 2, "nothing may be read"
    assert shell.closing == [MAX_CLOSING_CALLS, MAX_CLOSING_CALLS + 1]


async def test_a_partition_that_publishes_again_is_read_afterwards(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.role.owned[0]._again = iter([moment("c-1")])
    for _ in range(3):
        await shell.goes_round()
    assert shell.consumer.polls == [({1}, 0), ({1}, 0), ({0, 1}, 1)]


async def test_what_it_lacks_is_told_by_messages_and_by_time(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = NOW_MS
    monkeypatch.setattr(service, "wall_clock_ms", lambda: now_ms)

    def lag() -> tuple[float | None, ...]:
        owner.role._instruments.refresh()
        labels = {"group": "callgauge-evaluator", "topic": "events", "partition": "0"}
        names = ("consumer_lag_messages", "consumer_lag_seconds", "watermark_lag_messages")
        return tuple(owner.registry.get_sample_value(f"callgauge_{name}", labels) for name in names)

    owner.consumer.end = START
    assert lag() == (0, 0, 0)
    await owner.folds(START)
    owner.consumer.end = START + 3
    now_ms += 1_500
    assert lag() == (2, 1.5, 1)
    owner.consumer.end, now_ms = START + 1, NOW_MS + service.STALE_MS + 1
    assert lag() == (0, 5.001, 1), "the broker has not answered for as long"
    assert (
        owner.registry.get_sample_value(
            "callgauge_source_last_event_timestamp_seconds", {"source": "pipecat"}
        )
        == NOW_MS / 1_000
    )


async def test_a_partition_that_recovers_is_being_taken_over(owner: Shell) -> None:
    owner.role.owned[0].start(Recovery(row(9), START, 9))
    assert owner.role.problems() == ("evaluator: taking over partitions 0",)


async def test_it_is_well_while_it_ticks(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    role = shell.role
    assert (role.problems(), role.stalled()) == (("evaluator: not reading the log",), ())
    role.ready.set()
    assert role.problems() == ()
    role.ready.clear()
    role._is_leaving = True
    assert role.problems() == ("evaluator: leaving",)
    now_seconds = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_seconds)
    role._looked_at = now_seconds - 30
    assert role.stalled() == ()
    role._looked_at = now_seconds - 31
    assert role.stalled() == ("evaluator: no poll for 31 s",)


async def test_polls_that_fail_make_it_stall(shell: Shell) -> None:
    shell.role._looked_at = time.monotonic()
    shell.role._polls.failed(ValueError("odd"))
    assert shell.role.stalled() == ()
    shell.role._polls._failing_since -= polling.MAX_FAILING_SECONDS + 1
    assert shell.role.stalled() == ("evaluator: its polls of Kafka have failed for 31 s",)


# The end.


async def run(shell: Shell, monkeypatch: pytest.MonkeyPatch, stop: asyncio.Event) -> None:
    """Runs the role on fakes that read nothing by themselves."""

    async def read() -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(shell.role, "_evaluate", read)
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
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.takeover.gate.clear()
    await owner.rebalanced(0, 1)  # so that leaving takes a moment longer
    owner.may_write.clear()
    await owner.folds(4)
    stop = asyncio.Event()
    running = asyncio.create_task(run(owner, monkeypatch, stop))
    await until_idle()
    assert owner.role.ready.is_set()
    stop.set()
    await until_idle()
    assert not owner.role.ready.is_set()
    late = owner.polled(5)  # the successor's
    owner.may_write.set()
    await asyncio.gather(running, late)
    assert owner.folded == [[4], []]
    assert owner.commits[-1] == "commit events[0]@5"
    assert "write c-1 to 0" in owner.journal
    assert [(writer.runs, writer.stopped) for writer in owner.writers] == [
        (False, True),
        (False, True),
    ]
    assert owner.consumer.stopped


async def test_a_failure_ends_the_role_without_a_commit(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owner.folds(4)
    owner.role._fail(ZeroDivisionError("boom"))
    with pytest.raises(ZeroDivisionError, match="boom"):
        await run(owner, monkeypatch, asyncio.Event())
    assert owner.commits == []
    assert [(writer.runs, writer.stopped) for writer in owner.writers] == [(False, True)]
    assert owner.consumer.stopped
    assert not owner.role.ready.is_set()


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
    assert not shell.failures
    assert shell.commits == []


# The evaluator's commits and their timing, writers that are fenced off, and reading that slows down
# with slow writing.


# Writers, and those that are fenced off.


async def test_a_writer_that_fails_ends_the_role_and_nothing_is_committed(owner: Shell) -> None:
    owner.writers[0].error = WriteError("refused")
    await owner.folds(4)
    await owner.role._commit(1)
    await owner.role._commit(1)
    assert (owner.failures, owner.commits) == ([owner.writers[0].error], [])


async def test_partitions_that_are_fenced_off_are_dropped_and_never_committed_and_the_role_begins_again(
    shell: Shell,
) -> None:
    """Nothing is kept: what another process has written is only in `scores`, which a takeover
    reads.
    """
    await shell.assigned(0, 1)
    shell.writers[0].error = FencedError("another evaluator writes partition 0 now")
    await shell.folds(4)
    await shell.folds(5)
    await shell.folds(4, number=1)
    await shell.role._commit(1)
    await shell.revoked()
    assert (shell.folded, shell.commits, shell.role.owned) == ([[4], []], [], {})
    (failure,) = shell.failures
    assert isinstance(failure, SharedNameError)
    assert "Partitions 0, 1: another evaluator writes partition 0 now, but the group" in str(
        failure
    )
    assert "each evaluator_instance is used once" in str(failure)
    assert shell.registry.get_sample_value("callgauge_partitions_fenced_total") == 2


async def test_a_claim_that_is_overtaken_again_and_again_ends_the_role(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CLAIM_AGAIN_SECONDS", (0.0, 0.0))
    shell.takeover.error = FencedError("another process claimed them at the same moment")
    await shell.assigned(0)
    await until_idle()
    (failure,) = shell.failures
    assert isinstance(failure, SharedNameError)
    assert "Partitions 0: another process claimed them" in str(failure)
    assert (shell.role.owned, shell.role.ready.is_set()) == ({}, False)
    assert [writer.stopped for writer in shell.writers] == [True] * 3


async def test_a_claim_that_another_one_overtakes_comes_again_without_leaving_the_group(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    """It was the last one of a former owner. Who leaves the group for that has everything shared
    out anew, and more of them come.
    """
    monkeypatch.setattr(service, "CLAIM_AGAIN_SECONDS", (0.01,))
    await shell.assigned(0)
    await shell.folds(START)
    shell.takeover.error = FencedError("another process claimed them at the same moment")
    await shell.rebalanced(0, 1)
    assert not shell.role.active, (
        "what another one may have written is not known, so nothing is kept"
    )
    assert "taking over partitions 0, 1" in shell.role.problems()[0]
    shell.takeover.error = None
    async with asyncio.timeout(patient(5)):
        while not shell.role.active:
            await pause(0.01)
    assert (shell.failures, sorted(shell.role.active)) == ([], [0, 1])
    assert "claim_overtaken" in {line["event"] for line in logged}
    assert shell.takeover.kept == []
    await shell.folds(START)
    assert shell.folded[-2:] == [[START], []], "it begins where its takeover says"


# Commits and their timing.


async def test_before_partitions_go_all_is_written_and_committed(owner: Shell) -> None:
    owner.may_write.clear()
    await owner.folds(4)
    revoking = asyncio.create_task(owner.revoked())
    await until_idle()
    assert owner.journal == []
    owner.may_write.set()
    await revoking
    assert owner.journal[0] == "write c-1 to 0"
    assert owner.commits == ["commit events[0]@5"]


async def test_a_commit_is_of_what_was_written_and_waits_for_nobody(owner: Shell) -> None:
    owner.may_write.clear()
    await owner.folds(4, 5)
    await owner.role._commit(1)
    assert (owner.folded, owner.commits) == ([[4, 5]], [])
    owner.may_write.set()
    await until_idle()
    await owner.role._commit(1)
    assert owner.commits == ["commit events[0]@6"]


async def test_only_what_changed_is_committed(owner: Shell) -> None:
    await owner.role._commit(1)
    owner.journal.clear()
    await owner.role._commit(1)
    assert owner.journal == []
    await owner.folds(4)
    await owner.role._commit(1)
    await owner.role._commit(1)
    assert owner.journal == ["write c-1 to 0", "commit events[0]@5"]


@pytest.mark.parametrize("error", [CommitFailedError("rebalance"), KafkaConnectionError("gone")])
async def test_a_commit_that_fails_is_tried_again(owner: Shell, error: Exception) -> None:
    await owner.folds(4)
    owner.consumer.error = error
    await owner.role._commit(1)
    owner.consumer.error = None
    await owner.role._commit(1)
    assert owner.commits == ["commit events[0]@5"] * 2


async def test_after_a_rebalance_what_is_committed_is_not_taken_for_granted(owner: Shell) -> None:
    await owner.folds(4)
    await owner.rebalanced(0)
    await owner.role._commit(1)
    assert owner.commits == ["commit events[0]@5"] * 2


async def test_a_broker_that_takes_nothing_does_not_hold_up_a_rebalance(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.01)
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.folds(4)
    await shell.revoked()
    assert [line["scores"] for line in logged if line["event"] == "handed_over_unwritten"] == [1]
    assert shell.journal == []
    await shell.assigned()
    shell.may_write.set()
    await until_idle()
    assert shell.journal == []  # the next owner decides


async def test_what_was_given_up_unwritten_is_not_committed_when_it_comes_back(
    owner: Shell,
) -> None:
    owner.may_write.clear()
    await owner.folds(4)
    await owner.role._commit(1)
    await owner.assigned()
    owner.may_write.set()
    await owner.assigned(0)
    owner.journal.clear()
    await owner.role._commit(1)
    assert owner.commits == []


# Reading slows down when writing does.


async def test_nothing_is_read_and_nothing_closes_while_too_much_waits_to_be_written(
    shell: Shell,
) -> None:
    await shell.assigned(0, 1)
    shell.evaluators[1].closing_calls = 2
    shell.may_write.clear()
    await shell.goes_round(*[ended(offset) for offset in range(START, START + MAX_UNWRITTEN)])
    await shell.goes_round(ended(START + MAX_UNWRITTEN))
    await shell.goes_round()
    assert (len(shell.consumer.polls), shell.closing) == (2, [0, 0])
    shell.evaluators[1].closing_calls = 1
    await shell.goes_round()
    assert (len(shell.consumer.polls), shell.closing) == (2, [0, 1])
    shell.may_write.set()
    await until_idle()
    await shell.goes_round()
    assert (len(shell.consumer.polls), shell.closing) == (3, [0, 0])
    assert shell.consumer.pauses == set(), "the client would drop what it has"


async def test_nobody_waits_for_what_is_given_up(owner: Shell) -> None:
    owner.may_write.clear()
    await owner.polled(*range(4, 9))
    await owner.goes_round()
    assert owner.consumer.polls == []
    await owner.assigned(1)
    await owner.goes_round()
    assert owner.consumer.polls == [({1}, 1)]


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
    """Time passes, offsets are committed, and the topics are looked at."""
    clock[0] += seconds
    await shell.role._commit(1)
    try:
        await shell.role._topic_watch.look(shell.role._standstill())
    except OperatorError as error:
        shell.role._fail(error)


async def let_scores_wait(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.may_write.clear()
    await shell.polled(4)


async def let_the_group_be_silent(shell: Shell) -> None:
    await shell.assigned(0, 1)
    await shell.revoked()


STANDSTILLS = [
    (let_scores_wait, "scores have waited to be written", STUCK_WRITE_SECONDS),
    (
        let_the_group_be_silent,
        "the group callgauge-evaluator has given this member no partitions",
        STUCK_JOIN_SECONDS,
    ),
]


@pytest.mark.parametrize(("begin", "what", "most_seconds"), STANDSTILLS)
async def test_a_standstill_ends_readiness_within_half_a_minute_and_the_role_soon_after(
    shell: Shell,
    clock: list[float],
    begin: Callable[[Shell], Awaitable[None]],
    what: str,
    most_seconds: float,
) -> None:
    shell.found = partitions()
    await begin(shell)
    assert shell.role.problems() == ()
    await looks_after(shell, clock, SLOW_SECONDS - 1)
    assert shell.role.problems() == ()
    assert shell.asked_about_topics == 0
    await looks_after(shell, clock, 2)
    assert shell.role.problems() == (f"evaluator: {what} for 16 s",)
    assert (shell.asked_about_topics, shell.failures) == (1, [])
    for _ in range(int(most_seconds // SLOW_SECONDS)):  # Kafka is asked as often
        await looks_after(shell, clock, SLOW_SECONDS + 0.1)
    failure = shell.failures[0]
    assert isinstance(failure, StandstillError)
    assert str(failure).startswith(f"{what} for ")


@pytest.mark.parametrize("begin", [begin for begin, _, _ in STANDSTILLS])
@pytest.mark.parametrize("found", [None, partitions(isr=[1]), partitions(leader=-1)])
async def test_a_role_waits_for_kafka_as_long_as_kafka_is_not_whole(
    shell: Shell,
    clock: list[float],
    begin: Callable[[Shell], Awaitable[None]],
    found: dict[str, Any] | None,
) -> None:
    shell.found = found
    await begin(shell)
    for _ in range(20):
        await looks_after(shell, clock, SLOW_SECONDS + 0.1)
    assert (shell.asked_about_topics, shell.failures) == (20, [])
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
    assert shell.failures == []


async def test_a_topic_that_is_gone_ends_the_role_at_the_first_look(
    shell: Shell, clock: list[float]
) -> None:
    shell.found = {**partitions(), "scores": []}
    await let_scores_wait(shell)
    await looks_after(shell, clock, SLOW_SECONDS + 1)
    (failure,) = shell.failures
    assert isinstance(failure, TopicsUnfitError)


# A writer that ignores its cancellation.


async def test_a_writer_that_goes_on_after_its_cancellation_ends_the_role(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 0.01)
    await shell.assigned(0)
    shell.writers[0].ignores_cancels = True
    await shell.revoked()
    (failure,) = shell.failures
    assert isinstance(failure, StuckTaskError)
    assert "writer" in str(failure)
    assert shell.role.owned == {}
    assert not shell.role.ready.is_set()
    shell.writers[0].may_end.set()
    await until_idle()
