"""Taking a partition over: other owners are fenced off, then what they wrote is read, then it
begins where they were.
"""

import asyncio
import json
from typing import Any
from unittest import mock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, ProducerFenced
from structlog.testing import capture_logs

from consumers.evaluator import takeover
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Owners, PublishedCalls
from consumers.evaluator.writer import Claims, Writer
from consumers.runtime.kafka import ranges
from consumers.runtime.kafka.connection import KafkaUnreachableError
from schemas import rows
from schemas.closed_sets import CloseReason
from schemas.goals.goal_set import GoalSet
from schemas.owners import WRITER_HEADER
from schemas.rows import CallRow, GoalsRow, TurnRow
from schemas.topics import EVENTS_TOPIC, OWNER_MARK_KEY
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.evaluator_fakes import (
    NOW_MS,
    call_row,
    goal_set,
    goals_row,
    row,
    until_idle,
)
from tests.support.known import Logged
from tests.unit.evaluator.little_broker import (
    LittleBroker,
    LittleConsumer,
    LittleProducer,
    Owner,
    published,
)

SCORES = TopicPartition("scores", 0)
STARTED = json.dumps({"type": "call_started", "timestamp": NOW_MS, "agent": "desk"}).encode()
SAID = json.dumps({"type": "user_text_updated", "timestamp": NOW_MS, "text": "Hello"}).encode()
MARK = "mark scores[0]"


async def took_over(broker: LittleBroker, **options: Any) -> Owner:
    owner = Owner(broker, **options)
    broker.journal.clear()
    await owner.take_over()
    return owner


async def read_all(owner: Owner) -> None:
    """Reads and writes everything, and the place reached."""
    owner.read()
    owner.partition.write_row(is_last=True)
    await owner.write()


@pytest.fixture
def broker() -> LittleBroker:
    return LittleBroker()


@pytest.fixture
async def handed_over(broker: LittleBroker) -> LittleBroker:
    """An owner has folded two open calls; then a record came that it has not read."""
    broker.tick()
    broker.event("pipecat", "a", STARTED)
    broker.event("audit", "b", STARTED)
    await read_all(await took_over(broker))
    broker.event("pipecat", "a", SAID)
    return broker


def starts(broker: LittleBroker, call: str) -> int:
    """How often it was published that a call has started."""
    return news_of(broker, call).count("started")


def news_of(broker: LittleBroker, call: str) -> list[str]:
    """What has counted in a call itself, in order."""
    return [
        name
        for each in published(broker).get(call, ())
        if isinstance(each, CallRow)
        for name in each.news
    ]


# Who was there before.


async def test_first_nobody_else_can_write_then_what_was_written_is_read(
    handed_over: LittleBroker,
) -> None:
    former = handed_over.epochs["g-0"]
    await took_over(handed_over)
    assert handed_over.epochs["g-0"] == former + 2
    marks = [place for place, line in enumerate(handed_over.journal) if line == MARK]
    reads = [
        place for place, line in enumerate(handed_over.journal) if line.startswith("read scores")
    ]
    claimed, fenced, claimed_again = marks
    assert claimed < min(reads), (
        "what is read next is all that there will be, but for writers that are fenced off"
    )
    assert [place for place in reads if place > fenced]
    assert [place for place in reads if place > claimed_again]


async def test_nothing_is_read_before_every_partition_is_claimed(
    broker: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Owner(broker), Owner(broker, number=2)
    may_claim, claim = asyncio.Event(), Claims.claim

    async def late(self: Claims, number: int, writer_id: str) -> int:
        if number == 2:
            await may_claim.wait()
        return await claim(self, number, writer_id)

    monkeypatch.setattr(Claims, "claim", late)
    task = asyncio.create_task(
        one.takeover.take_over([one.partition, other.partition], one.consumer, one.writer.id)
    )
    await until_idle()
    assert broker.journal == [MARK]
    may_claim.set()
    await task
    assert broker.journal[1:3] == ["mark scores[2]", "ends"]
    assert (one.partition.is_active, other.partition.is_active) == (True, True)


async def test_a_former_owner_that_decided_nothing_is_known_by_its_mark(
    handed_over: LittleBroker,
) -> None:
    former = await took_over(handed_over)  # its marks are all that it has written
    handed_over.event("pipecat", "c", STARTED)
    former.read()
    await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await former.write()
    assert "c" not in published(handed_over)


async def test_who_was_fenced_off_writes_no_more(handed_over: LittleBroker) -> None:
    former = await took_over(handed_over)
    await read_all(former)
    handed_over.event("pipecat", "c", STARTED)
    former.read()
    successor = await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await former.write()
    await successor.to_the_end()
    assert starts(handed_over, "c") == 1


async def forgotten(_: LittleProducer) -> None:
    """The process dies before the end of its transaction."""


async def test_a_transaction_that_a_former_owner_left_open_is_ended_and_what_it_committed_before_is_read(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = await took_over(handed_over)
    await read_all(former)
    handed_over.event("pipecat", "c", STARTED)
    former.read()
    with monkeypatch.context() as dying:
        dying.setattr(LittleProducer, "commit_transaction", forgotten)
        await former.write()
    successor = await took_over(handed_over)
    assert handed_over.stable_end(SCORES) == handed_over.ends[SCORES]
    await successor.to_the_end()
    assert [starts(handed_over, call) for call in "abc"] == [1] * 3


async def test_a_writer_that_another_one_hides_is_fenced_off_too(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers of one process, whose transactions a broker left without their ends: the first
    hides that there is a second.
    """
    owner = await took_over(handed_over)
    await read_all(owner)
    writers = []
    for call in "cd":
        handed_over.event("pipecat", call, STARTED)
        owner.read()
        with monkeypatch.context() as dying:
            dying.setattr(LittleProducer, "commit_transaction", forgotten)
            await owner.write()
        writers.append(owner.writer)
        owner.writer = Writer(
            handed_over.kafka,
            EvaluatorSettings(group_id="g"),
            owner.instruments,
            owner.outlet.outbox,
        )
        await owner.writer.start()
        await owner.takeover.claim([0], owner.writer.id)
    assert set(handed_over.open) == {each.id for each in writers}
    successor = await took_over(handed_over)
    assert handed_over.open == {}
    await successor.to_the_end()
    assert [starts(handed_over, call) for call in "cd"] == [1] * 2


async def test_what_is_kept_is_claimed_for_the_next_writer(handed_over: LittleBroker) -> None:
    owner = await took_over(handed_over)
    await read_all(owner)
    handed_over.event("pipecat", "c", STARTED)
    owner.writer = Writer(
        handed_over.kafka, EvaluatorSettings(group_id="g"), owner.instruments, owner.outlet.outbox
    )
    await owner.writer.start()
    await owner.takeover.claim([0], owner.writer.id)
    owner.read()
    successor = await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await owner.write()
    await successor.to_the_end()
    assert starts(handed_over, "c") == 1


# Where it begins.


async def test_it_goes_on_where_its_former_owner_was_silently(handed_over: LittleBroker) -> None:
    before = list(handed_over.values("scores"))
    owner = await took_over(handed_over)
    assert owner.partition.next_offset == 0, "the tick in front of where the open calls began"
    owner.read(2)
    assert owner.partition.is_recovering
    owner.read(1)
    assert (owner.partition.is_recovering, owner.partition.next_offset) == (False, 3)
    assert owner.evaluator.open_calls == ("a", "b")
    await owner.write()
    assert handed_over.values("scores") == before
    await read_all(owner)
    assert [starts(handed_over, call) for call in "ab"] == [1, 1]
    assert owner.counted("events", source="pipecat", outcome="replayed") == 1


async def test_where_nobody_was_it_begins_with_the_first_record(
    broker: LittleBroker, logged: Logged
) -> None:
    for call in "abc":
        broker.event("pipecat", call, STARTED)
    broker.delete_before(EVENTS_TOPIC, 2)
    owner = await took_over(broker)
    assert (owner.partition.next_offset, owner.partition.is_recovering) == (2, False)
    assert logged == []  # nothing was folded, and nothing is missing
    await read_all(owner)
    assert list(published(broker)) == ["c"]
    assert owner.counted("log_records_lost") == 0


async def test_an_owner_that_folded_nothing_leaves_nothing_to_do(broker: LittleBroker) -> None:
    await read_all(await took_over(broker))
    second = await took_over(broker)
    assert not second.partition.is_recovering


async def test_the_row_is_found_however_much_was_written_behind_it(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a transaction that others wrote, or of marks of many owners that decided nothing."""
    monkeypatch.setattr(takeover, "FIRST_LOOK_RECORDS", 2)
    for _ in range(9):
        handed_over.put("scores", None, OWNER_MARK_KEY, [(WRITER_HEADER, b"g-writer-x")])
    owner = await took_over(handed_over)
    assert "g-writer-x" in handed_over.epochs, "it may still write"
    assert owner.partition._recovering is not None
    assert owner.partition._recovering.known.place == 3


async def test_calls_that_closed_up_to_a_while_before_are_known_and_a_late_record_opens_none(
    broker: LittleBroker,
) -> None:
    settings = EvaluatorSettings(group_id="g", closed_overlap_ms=400_000)
    broker.tick()
    broker.event("pipecat", "a", STARTED)
    owner = await took_over(broker, settings=settings)
    await owner.to_the_end()
    broker.now_ms += 60_000  # the next call opens a while after this one has closed
    broker.tick()
    broker.event("pipecat", "b", STARTED)
    owner.read()
    await read_all(owner)
    broker.event("pipecat", "a", SAID)
    successor = await took_over(broker, settings=settings)
    await successor.to_the_end()
    assert news_of(broker, "a").count("closed") == 1
    assert successor.counted("events", source="pipecat", outcome="after_close") == 0, "not yet"
    successor.partition.count_events()
    assert successor.counted("events", source="pipecat", outcome="after_close") == 1


async def test_scores_that_cannot_be_read_to_their_end_leave_nothing_active(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> dict[TopicPartition, Any]:
        return {}

    monkeypatch.setattr(ranges, "STALL_SECONDS", -1.0)
    monkeypatch.setattr(LittleConsumer, "getmany", silent)
    owner = Owner(handed_over)
    with pytest.raises(KafkaUnreachableError, match="no answer in time"):
        await owner.take_over()
    assert not owner.partition.is_active


# What `scores` says.


def scored(value: bytes | None, key: bytes | None = b"c-1", headers: Any = ()) -> BrokerRecord:
    return BrokerRecord("scores", 0, NOW_MS, key, value, 0, headers)


def test_the_last_row_counts_and_who_wrote_it_or_claimed_after_it() -> None:
    owners = Owners()
    mark = [(WRITER_HEADER, b"w-1")]
    for headers in (
        mark,
        [(WRITER_HEADER, b"w-2"), row(1).header()],
        [(WRITER_HEADER, b"w-3"), row(2).header()],
        [(WRITER_HEADER, b"w-4")],
        None,
        [("callgauge-row", b"not ours")],
    ):
        owners.read_record(scored(None, headers=headers or ()))
    owners.read_record(scored(b"{}"))
    owners.read_record(stand_in("scores", 3, 4))
    assert (owners.row, owners.writers) == (row(2), {"w-3", "w-4"})


def test_calls_are_open_until_they_close_and_beside_what_matters_only_their_first_records_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = mock.Mock(wraps=takeover._SEEN)
    monkeypatch.setattr(takeover, "_SEEN", seen)
    calls = PublishedCalls()
    text = call_row("c-4", code_version='"state":"closed"')  # quotes inside of a text are escaped
    for each in (
        call_row("c-1"),
        goals_row("c-2", goal_set(), 10),
        call_row("c-1", state="closed"),
        text,
        None,
    ):
        value, key = (
            (None, b"c-5") if each is None else (rows.encode(each), each.conversation_id.encode())
        )
        calls.read_record(scored(value, key))
        calls.read_record(scored(None, b"callgauge-owner", [row(7).header()]))
    calls.read_record(scored(b"{}", None))
    calls.read_record(scored(rows.encode(call_row("c-4", revision=9)), b"c-4"))
    assert (calls.open, calls.closed, calls.goals) == (
        {b"c-2": 10, b"c-4": 1},
        {"c-1": 7},
        {"c-2": (10, goal_set())},
    )
    assert seen.decode.call_count == 4


def test_what_no_callgauge_wrote_is_passed_over_with_few_lines(logged: Logged) -> None:
    calls, odd = PublishedCalls(), b'{"state":"closed"}'
    for value in (b'[{"state":"closed"}]', b'{"row":"goals"', b'{"row":"song"}', *[odd] * 9):
        calls.read_record(scored(value))
    assert calls.closed == {}
    assert [line["event"] for line in logged] == ["score_not_ours"] * takeover.MAX_ODD_RECORD_LINES


def test_a_call_that_another_version_closed_with_a_word_of_its_own_is_closed() -> None:
    calls, closed = (
        PublishedCalls(),
        rows.encode(call_row("c-1", state="closed", close_reason=CloseReason.ENDED)),
    )
    calls.read_record(
        scored(
            closed.replace(b'"ended"', b'"ended_by_caller"').replace(
                b'"state"', b'"of_later":[1],"state"'
            )
        )
    )
    calls.read_record(scored(None, b"callgauge-owner", [row(7).header()]))
    assert (calls.open, calls.closed) == ({}, {"c-1": 7})


def test_a_goal_set_that_this_version_cannot_read_is_none() -> None:
    calls, chosen = PublishedCalls(), rows.encode(goals_row("c-1", goal_set()))
    calls.read_record(scored(chosen.replace(b'"says"', b'"sings"')))
    assert calls.goals == {}


# Goals of the past.


class Goals:
    """The goals that calls get now."""

    def __init__(self, goals: GoalSet | None) -> None:
        self.goals = goals

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return self.goals if goals_id or agent else None


@pytest.mark.parametrize(
    "now", [None, goal_set("As it is."), goal_set("As it was.")], ids=["gone", "changed", "same"]
)
async def test_a_call_keeps_its_goals_whatever_became_of_them(
    broker: LittleBroker, now: GoalSet | None
) -> None:
    broker.tick()
    broker.event("pipecat", "a", STARTED)
    await read_all(await took_over(broker, goals=Goals(goal_set("As it was."))))
    owner = await took_over(broker, goals=Goals(now))
    await owner.to_the_end()
    (chosen,) = [each for each in published(broker)["a"] if isinstance(each, GoalsRow)]
    closed = published(broker)["a"][-1]
    assert chosen.goal_set["subgoals"][0]["details"] == "As it was."
    assert isinstance(closed, CallRow)
    assert closed.goals is not None
    assert (closed.state, closed.goals.digest) == ("closed", goal_set("As it was.").digest)


async def test_a_call_without_goals_gets_none_though_there_are_some_now(
    handed_over: LittleBroker,
) -> None:
    owner = await took_over(handed_over, goals=Goals(goal_set()))
    await owner.to_the_end()
    for written in published(handed_over).values():
        assert not [each for each in written if isinstance(each, GoalsRow)]
        assert all(each.goals is None for each in written if isinstance(each, CallRow))


# A log that is not as it was.


def assert_revisions_go_up(broker: LittleBroker) -> None:
    for written in published(broker).values():
        newest: dict[Any, int] = {}
        for each in written:
            subject = each.turn if isinstance(each, TurnRow) else type(each)
            assert each.revision >= newest.get(subject, 0), (
                f"{subject} goes back to an older revision"
            )
            newest[subject] = each.revision


async def test_where_retention_took_where_calls_began_they_are_named_and_go_on_with_new_numbers(
    handed_over: LittleBroker, logged: Logged
) -> None:
    handed_over.delete_before(EVENTS_TOPIC, 2)  # the record that opened `a`
    owner = await took_over(handed_over)
    await read_all(owner)
    assert [line["seen"] for line in logged if line["event"] == "log_not_where_it_was"] == [
        "the log has 2 to 4"
    ]
    assert [line["conversation_ids"] for line in logged if line["event"] == "calls_incomplete"] == [
        ["a", "b"]
    ]
    await owner.to_the_end()
    assert_revisions_go_up(handed_over)
    assert news_of(handed_over, "b") == ["started"], "what it lacks may have counted"


async def test_calls_that_lack_records_count_nothing_at_a_second_successor_either(
    handed_over: LittleBroker,
) -> None:
    handed_over.delete_before(EVENTS_TOPIC, 2)
    await read_all(await took_over(handed_over))
    handed_over.event("pipecat", "c", STARTED)
    second = await took_over(handed_over)
    assert second.evaluator.lacking == {"a", "b"}
    await read_all(second)
    third = await took_over(handed_over)
    assert third.evaluator.lacking == {"a", "b"}, "not the one that began since"
    await third.to_the_end()
    assert {call: news_of(handed_over, call) for call in "abc"} == {
        "a": ["started"],
        "b": ["started"],
        "c": ["started", "closed"],
    }


async def test_of_a_log_that_was_made_anew_calls_that_closed_stay_closed(
    broker: LittleBroker,
) -> None:
    """Its sequencer finds no tick and appends all that the inputs still have."""
    broker.tick()
    broker.event("pipecat", "a", STARTED)
    owner = await took_over(broker)
    await owner.to_the_end()
    broker.now_ms += 3_600_000
    for _ in range(20):  # its places, and so its revisions, are far above those of the new log
        broker.tick()
    broker.event("pipecat", "b", STARTED)
    broker.tick()
    await read_all(owner)
    broker.make_anew(EVENTS_TOPIC)
    broker.sequencer = type(broker.sequencer)()
    broker.event("pipecat", "a", STARTED, NOW_MS)
    with capture_logs() as logged:
        successor = await took_over(broker)
    assert [line["event"] for line in logged] == ["log_not_where_it_was"]
    assert (successor.partition.is_recovering, successor.partition.next_offset) == (True, 0)
    broker.event("pipecat", "b", STARTED)
    broker.tick()
    broker.event("pipecat", "c", STARTED)
    await successor.to_the_end()
    ends = {
        call: [isinstance(each, CallRow) and each.state for each in written].count("closed")
        for call, written in published(broker).items()
    }
    assert ends == {"a": 1, "b": 1, "c": 1}
    assert_revisions_go_up(broker)


async def test_a_log_that_lost_its_end_is_folded_to_its_end_and_goes_on(
    handed_over: LittleBroker,
) -> None:
    """A broker that was not in sync leads now."""
    log = TopicPartition(EVENTS_TOPIC, 0)
    del handed_over.logs[log][2:]
    handed_over.ends[log] = 2
    owner = await took_over(handed_over)
    owner.read()
    assert (owner.partition.is_recovering, owner.evaluator.open_calls) == (False, ("a",))


# What goes wrong.


@pytest.mark.parametrize("what", ["claim", "fence"])
async def test_a_fence_that_fails_is_not_passed_over(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner = Owner(handed_over)

    async def fail(*_: object) -> int:
        raise KafkaConnectionError("gone")

    monkeypatch.setattr(Claims, what, fail)
    with pytest.raises(KafkaUnreachableError):
        await owner.take_over()
    assert not owner.partition.is_active
