"""Records deleted before they were read: not confused with harmless gaps, counted, and their calls named; and offsets that
come again."""

from collections.abc import Mapping, Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.evaluator.lost_records import MAX_GAPS, Gap, InputGaps, InputMadeAnewError, LostRecords
from consumers.evaluator.recovery import CommitNote
from consumers.runtime.registry import Instruments
from tests.support.fakes.evaluator_fakes import AUDIT, PIPECAT, START, Shell

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


# Gaps.


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=20), st.integers(0, 100))
def test_a_loss_is_what_was_passed_over_before_the_beginning(polls: Sequence[tuple[int, int]], log_start: int) -> None:
    gaps = InputGaps()
    offset = 10
    passed_over: set[int] = set()
    for gap, records in polls:
        passed_over |= set(range(offset, offset + gap))
        gaps.handed_over(A, 10, offset + gap, offset + gap + records - 1)
        offset += gap + records
    lost = {each for each in passed_over if each < log_start}
    registry = CollectorRegistry()
    with capture_logs() as logged:
        LostRecords(gaps, dict, Instruments(registry, ["evaluator"]))._report(A, gaps.gaps.get(A, []), log_start)
    assert registry.get_sample_value("callgauge_input_records_lost_total") == len(lost)
    assert [line["record"] for line in logged] == ([f"a[0]@{min(lost)}"] if lost else [])


def test_an_offset_that_comes_again_is_of_another_topic() -> None:
    gaps = InputGaps()
    gaps.handed_over(A, 10, 10, 14)
    gaps.handed_over(B, 0, 0, 3)
    with pytest.raises(InputMadeAnewError, match=r"Input a\[0\]: offset 15 was to come next, and 0 came\. ") as raised:
        gaps.handed_over(A, 10, 0, 3)
    assert (raised.value.tp, raised.value.seen) == (A, 0)
    gaps.forget_positions()
    gaps.handed_over(A, 5, 5, 9)  # a rebalance: it is read again from there


def test_gaps_that_nobody_answers_for_are_bounded() -> None:
    gaps = InputGaps()
    for number in range(MAX_GAPS + 5):
        gaps.handed_over(A, 0, number * 2 + 1, number * 2 + 1)
    assert len(gaps.gaps[A]) == MAX_GAPS
    del gaps.gaps[A][:10]
    gaps.handed_over(A, 0, 5_000, 5_000)
    assert gaps.gaps[A][-1] == Gap(2 * (MAX_GAPS + 5), 5_000)


# Losses.


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell = Shell(monkeypatch)
    await shell.assigned(0, 1)
    for evaluator in shell.evaluators:
        evaluator.open_calls = ("c-2", "c-1")
    return shell


class Starts:
    """A client that says where inputs begin."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.error: Exception | None = None
        self.asked: list[TopicPartition] = []

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.asked += partitions
        if self.error is not None:
            raise self.error
        return dict.fromkeys(partitions, self.start)


def lost_by(shell: Shell) -> LostRecords:
    return shell.role._lost_records


def counted(shell: Shell, name: str) -> float | None:
    return shell.registry.get_sample_value(f"callgauge_{name}_total")


async def test_what_was_deleted_is_counted_and_the_open_calls_are_named_once(shell: Shell) -> None:
    await shell.folds(START, START + 1)
    await shell.folds(START + 30)
    client = Starts(START + 25)
    with capture_logs() as logged:
        await lost_by(shell).ask(client)
        await lost_by(shell).ask(client)
        await shell.folds(START + 40)
        client.start = START + 40
        shell.evaluators[0].open_calls = ("c-2", "c-3")
        await lost_by(shell).ask(client)
    assert client.asked == [TopicPartition(PIPECAT, 0)] * 2
    assert counted(shell, "input_records_lost") == 23 + 9
    assert counted(shell, "calls_incomplete") == 3
    assert [(line["event"], line.get("record"), line.get("conversation_ids")) for line in logged] == [
        ("input_not_where_it_was", f"{PIPECAT}[0]@{START + 2}", None),
        ("calls_incomplete", None, ["c-1", "c-2"]),
        ("input_not_where_it_was", f"{PIPECAT}[0]@{START + 31}", None),
        ("calls_incomplete", None, ["c-3"]),
    ]


async def test_what_transactions_leave_out_is_no_loss(shell: Shell) -> None:
    await shell.folds(START)
    await shell.folds(START + 2)
    with capture_logs() as logged:
        await lost_by(shell).ask(Starts(START + 1))
    assert logged == []
    assert counted(shell, "input_records_lost") == 0


async def test_a_broker_that_does_not_answer_is_asked_again(shell: Shell) -> None:
    await shell.folds(START + 5)
    client = Starts(START + 5)
    client.error = KafkaConnectionError("gone")
    await lost_by(shell).ask(client)
    client.error = None
    with capture_logs():
        await lost_by(shell).ask(client)
    assert counted(shell, "input_records_lost") == 5


async def test_a_gap_that_comes_while_the_broker_is_asked_waits_for_the_next_answer(shell: Shell) -> None:
    await shell.folds(START + 5)

    class Meanwhile(Starts):
        async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
            if not self.asked:
                await shell.folds(START + 7)
            return await super().beginning_offsets(partitions)

    client = Meanwhile(START + 7)
    counts = []
    with capture_logs():
        for _ in range(3):
            await lost_by(shell).ask(client)
            counts.append(counted(shell, "input_records_lost"))
    assert (counts, len(client.asked)) == ([5, 6, 6], 2)


async def test_a_gap_is_told_though_the_partition_is_given_up(shell: Shell) -> None:
    await shell.folds(START + 5)
    await shell.rebalanced(1)
    with capture_logs() as logged:
        await lost_by(shell).ask(Starts(START + 5))
    assert [line["event"] for line in logged] == ["input_not_where_it_was"]


async def test_nobody_is_asked_while_nothing_is_passed_over(shell: Shell) -> None:
    await shell.folds(START, START + 1)
    await shell.folds(START + 2)
    client = Starts(0)
    await lost_by(shell).ask(client)
    assert client.asked == []


# Topics made anew.


class Anew:
    """The client's answers about inputs, some of which were made anew."""

    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch, *tps: TopicPartition) -> None:
        self.shell = shell
        self.tps = tps
        monkeypatch.setattr(shell.consumer, "end_offsets", self.end_offsets, raising=False)
        monkeypatch.setattr(shell.consumer, "beginning_offsets", self.beginning_offsets, raising=False)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: 3 if tp in self.tps else 9 for tp in partitions}

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: 1 if tp in self.tps else 2 for tp in partitions}


async def test_topics_made_anew_end_the_role_and_are_read_from_their_first_records_next(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Anew(shell, monkeypatch, TopicPartition(PIPECAT, 0), TopicPartition(AUDIT, 1))
    await shell.folds(START, START + 1, START + 2)
    shell.journal.clear()
    polled = shell.polled(1, 2)
    with capture_logs() as logged, pytest.raises(InputMadeAnewError, match="offset 7 was to come next, and 1 came"):
        await polled
    assert shell.journal == [f"commit {AUDIT}[1]@1", f"commit {PIPECAT}[0]@1"]
    assert {CommitNote.parse(at.metadata) for at in shell.consumer.noted.values()} == {CommitNote(None, is_anew=True)}
    assert [line["event"] for line in logged] == ["input_not_where_it_was", "calls_incomplete"]
    assert shell.folded == [[START, START + 1, START + 2], []]
    await shell.role._commit()
    assert len(shell.journal) == 2, "their old places are committed no more"


async def test_one_that_has_grown_beyond_its_old_place_already_is_known_by_what_came(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Anew(shell, monkeypatch)
    await shell.folds(START)
    shell.journal.clear()
    polled = shell.polled(2)
    with capture_logs(), pytest.raises(InputMadeAnewError):
        await polled
    assert shell.journal == [f"commit {PIPECAT}[0]@2"]


async def test_a_topic_made_anew_ends_the_role_though_nothing_can_be_committed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Anew(shell, monkeypatch)
    await shell.folds(START)
    shell.consumer.error = KafkaConnectionError("gone")
    polled = shell.polled(0)
    with capture_logs() as logged, pytest.raises(InputMadeAnewError):
        await polled
    assert "commit_failed" in [line["event"] for line in logged]
