"""Taking a partition over: other owners are fenced off, then what they wrote is read, then it begins where they were."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from structlog.testing import capture_logs

from consumers.evaluator import recovery as read_back
from consumers.evaluator.recovery import CommitNote, ReadBackError
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import Claims, Mark, Writer
from schemas.goals.goal_set import GoalSet
from schemas.topics import INPUT_TOPICS
from tests.support.fakes.evaluator_fakes import AUDIT, NOW_MS, PIPECAT, goal_set, until_idle
from tests.unit.evaluator.little_broker import LittleBroker, LittleConsumer, LittleProducer, Owner, published

ORDER = TopicPartition("order", 0)
GENERATION = 1_000_000
STARTED = json.dumps({"type": "call_started", "timestamp": NOW_MS, "agent": "desk"}).encode()
SAID = json.dumps({"type": "user_text_updated", "timestamp": NOW_MS, "text": "Hello"}).encode()


def commit(broker: LittleBroker, offset: int, text: str, *topics: str) -> None:
    """These inputs are committed at this offset, with this note."""
    broker.committed |= {TopicPartition(topic, 0): OffsetAndMetadata(offset, text) for topic in topics or INPUT_TOPICS}


def noted(broker: LittleBroker) -> int | None:
    """Where the committed notes say that the order must be read from."""
    (order,) = {note.order for at in broker.committed.values() if (note := CommitNote.parse(at.metadata)) is not None}
    return order


async def took_over(broker: LittleBroker, **options: Any) -> Owner:
    owner = Owner(broker, **options)
    broker.journal.clear()
    await owner.take_over()
    return owner


async def read_all(owner: Owner) -> None:
    """Reads, writes and commits everything."""
    for _ in range(4):
        owner.read(20)
    await owner.write()
    for _ in range(2):
        owner.commit()


@pytest.fixture
def broker() -> LittleBroker:
    return LittleBroker()


@pytest.fixture
async def handed_over(broker: LittleBroker) -> LittleBroker:
    """An owner has folded two open calls and committed; then a record came that it has not read."""
    broker.put(PIPECAT, STARTED, b"a")
    broker.put(AUDIT, STARTED, b"b")
    await read_all(await took_over(broker))
    broker.put(PIPECAT, SAID, b"a")
    return broker


def revisions(broker: LittleBroker, call: str) -> list[int]:
    return [record["revision"] for record in published(broker)[call] if record["name"] == "call_started"]


# Who was there before.


async def test_first_nobody_else_can_write_then_what_was_written_is_read(handed_over: LittleBroker) -> None:
    order = noted(handed_over)
    former = handed_over.epochs["g-0"]
    await took_over(handed_over)
    assert handed_over.epochs["g-0"] == former + 2
    marks = ["mark order[0]", "mark scores[0]"]
    assert handed_over.journal[: len(marks) + 3] == [
        *marks, "committed by g", "ends", f"read order[0] from {order}",
    ]  # fmt: skip
    fenced_and_claimed = handed_over.journal[len(marks) + 3 :]
    assert fenced_and_claimed[:4] == marks * 2
    assert fenced_and_claimed[4].startswith("read order[0] from ")


async def test_nothing_is_read_before_every_partition_is_claimed(
    broker: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Owner(broker), Owner(broker, number=2)
    may_claim, claim = asyncio.Event(), Claims.claim

    async def late(self: Claims, number: int, writer_id: str) -> Mark:
        if number == 2:
            await may_claim.wait()
        return await claim(self, number, writer_id)

    monkeypatch.setattr(Claims, "claim", late)
    await one.takeover.start()
    task = asyncio.create_task(one.takeover.take([one.partition, other.partition], one.consumer, one.writer.id))
    await until_idle()
    assert broker.journal == ["mark order[0]", "mark scores[0]"]
    may_claim.set()
    await task
    assert broker.journal[2:5] == ["mark order[2]", "mark scores[2]", "committed by g"]
    assert (one.partition.is_active, other.partition.is_active) == (True, True)


async def test_a_former_owner_that_committed_nothing_is_known_by_its_mark(handed_over: LittleBroker) -> None:
    former = await took_over(handed_over)  # its marks are all that it has written
    former.read(20)
    former.read(20)
    handed_over.put(PIPECAT, STARTED, b"c")
    former.read(20)
    await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await former.write()
    assert "c" not in published(handed_over)


async def test_a_former_owner_whose_mark_is_gone_is_known_by_its_commits(handed_over: LittleBroker) -> None:
    former = await took_over(handed_over)
    await read_all(former)
    handed_over.put(PIPECAT, STARTED, b"c")
    former.read(20)
    trim(handed_over)
    await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await former.write()
    assert "c" not in published(handed_over)


async def test_a_transaction_that_a_former_owner_left_open_is_ended_and_what_it_committed_before_is_read(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = await took_over(handed_over)
    await read_all(former)
    handed_over.put(PIPECAT, STARTED, b"c")
    former.read(20)
    with monkeypatch.context() as dying:
        dying.setattr(LittleProducer, "commit_transaction", forgotten)
        await former.write()
    successor = await took_over(handed_over)
    assert handed_over.stable_end(ORDER) == handed_over.ends[ORDER]
    await successor.to_the_end()
    assert [revisions(handed_over, call) for call in "abc"] == [[1]] * 3


async def test_what_is_kept_is_claimed_for_the_next_writer(handed_over: LittleBroker) -> None:
    owner = await took_over(handed_over)
    await read_all(owner)
    handed_over.put(PIPECAT, STARTED, b"c")
    owner.writer = Writer(handed_over.kafka, EvaluatorSettings(group_id="g"), owner.instruments)
    await owner.writer.start()
    await owner.takeover.keep([owner.partition], owner.writer.id)
    assert owner.partition.writer_id == owner.writer.id
    owner.read(20)
    successor = await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await owner.write()
    await successor.to_the_end()
    assert revisions(handed_over, "c") == [1]


async def forgotten(_: LittleProducer) -> None:
    """The process dies before the end of its transaction."""


async def test_who_was_fenced_off_writes_no_more(handed_over: LittleBroker) -> None:
    former = await took_over(handed_over)
    former.read(20)
    former.read(20)
    handed_over.put(PIPECAT, STARTED, b"c")
    former.read(20)
    await took_over(handed_over)
    with pytest.raises(ProducerFenced):
        await former.write()
    assert "c" not in published(handed_over)


# Where it begins.


async def test_it_goes_on_where_its_former_owner_was_silently(handed_over: LittleBroker) -> None:
    before = {topic: list(handed_over.values(topic)) for topic in ("scores", "order")}
    owner = await took_over(handed_over)
    assert owner.partition.next_offsets == {**dict.fromkeys(INPUT_TOPICS, 0)}, "where the open calls began"
    owner.read({AUDIT: 20})
    owner.read({PIPECAT: 1})
    assert owner.partition.open_calls == ("a", "b")
    assert owner.partition.next_offsets[PIPECAT] == 1, "behind what the former owner had folded"
    assert {topic: handed_over.values(topic) for topic in before} == before
    await read_all(owner)
    assert [revisions(handed_over, call) for call in "ab"] == [[1], [1]]
    assert owner.counted("events", source="pipecat", outcome="replayed") == 1
    assert owner.counted("order_unusable") == 0


async def test_where_nobody_was_it_begins_with_the_first_record(broker: LittleBroker) -> None:
    for _ in range(3):
        broker.put(PIPECAT, STARTED, b"a")
    broker.delete_before(PIPECAT, 2)
    broker.committed[TopicPartition(AUDIT, 0)] = OffsetAndMetadata(-1, "")  # as the broker says it
    with capture_logs() as logged:
        owner = await took_over(broker)
    assert owner.partition.next_offsets == dict.fromkeys(INPUT_TOPICS, 0) | {PIPECAT: 2}
    assert not owner.partition.is_recovering
    assert (owner.counted("input_records_lost"), owner.counted("order_unusable"), logged) == (0, 0, [])
    await read_all(owner)
    assert noted(broker) == broker.logs[ORDER][-1].offset, "its first record of the order, behind its mark"


async def test_an_owner_that_wrote_nothing_leaves_nothing_to_do(broker: LittleBroker) -> None:
    first = await took_over(broker)
    await read_all(first)
    second = await took_over(broker)
    assert f"read order[0] from {noted(broker)}" in broker.journal
    second.read(1)
    assert (second.partition.is_recovering, second.counted("order_unusable")) == (False, 0)


@pytest.mark.parametrize("text", ["", "theirs", '{"order": "7"}'])
async def test_an_offset_that_callgauge_did_not_commit_counts_for_nothing_where_there_is_an_order(
    handed_over: LittleBroker, text: str
) -> None:
    commit(handed_over, 1, text)
    owner = await took_over(handed_over)
    assert "read order[0] from 0" in handed_over.journal
    assert owner.partition.next_offsets == dict.fromkeys(INPUT_TOPICS, 0)
    await read_all(owner)
    assert owner.partition.open_calls == ("a", "b")
    assert [revisions(handed_over, call) for call in "ab"] == [[1], [1]]


async def test_of_one_input_without_our_note_the_order_says_where_it_was(handed_over: LittleBroker) -> None:
    order = noted(handed_over)
    commit(handed_over, 2, "theirs", PIPECAT)
    owner = await took_over(handed_over)
    assert f"read order[0] from {order}" in handed_over.journal
    assert owner.partition.next_offsets[PIPECAT] == 0


async def test_an_offset_beyond_what_its_note_says_is_not_ours(handed_over: LittleBroker) -> None:
    """Somebody moved the group and kept the notes."""
    (note,) = {handed_over.committed[TopicPartition(PIPECAT, 0)].metadata}
    for topic in INPUT_TOPICS:
        commit(handed_over, 2, note, topic)
    with capture_logs() as logged:
        owner = await took_over(handed_over)
    assert owner.partition.next_offsets == dict.fromkeys(INPUT_TOPICS, 0)
    assert [line["event"] for line in logged] == ["offsets_not_ours"]
    await read_all(owner)
    assert [revisions(handed_over, call) for call in "ab"] == [[1], [1]]


async def test_what_somebody_else_committed_past_is_read_although_the_last_owner_decided_nothing(
    broker: LittleBroker,
) -> None:
    """Its notes say from where to read the order, and there is no start behind: an earlier one counts, or the first record."""
    await read_all(await took_over(broker))
    for _ in range(3):
        broker.put(PIPECAT, STARTED, b"a")
    broker.put(AUDIT, SAID, b"a")
    commit(broker, 3, "", PIPECAT)
    with capture_logs() as logged:
        owner = await took_over(broker)
    (line,) = logged
    assert (line["event"], line["records"], line["log_level"]) == ("offsets_not_ours", [f"{PIPECAT}[0]@3"], "error")
    assert "not obeyed" in line["what_happens_now"]
    await read_all(owner)
    assert owner.partition.next_offsets[PIPECAT] == 3
    assert [record["labels"]["agent"] for record in published(broker)["a"] if record["name"] == "call_started"] == [
        "desk"
    ]
    assert owner.counted("input_records_lost") == 0


async def test_an_earlier_start_of_the_order_counts_where_an_offset_is_not_ours(handed_over: LittleBroker) -> None:
    """The owners after the one that folded two calls decided nothing, and noted the end of the order."""
    end = handed_over.ends[ORDER]
    commit(handed_over, 1, CommitNote(end, read=1).text())
    commit(handed_over, 2, "", PIPECAT)
    owner = await took_over(handed_over)
    assert [each for each in handed_over.journal if each.startswith("read order")][:2] == [
        f"read order[0] from {end}", "read order[0] from 0",
    ]  # fmt: skip
    assert owner.partition.next_offsets[PIPECAT] == 0
    await read_all(owner)
    assert revisions(handed_over, "a") == [1]


@pytest.mark.parametrize("has_order", [True, False])
async def test_without_an_order_too_no_foreign_offset_is_obeyed(handed_over: LittleBroker, has_order: bool) -> None:
    if not has_order:
        trim(handed_over)
    commit(handed_over, 2, "")
    owner = await took_over(handed_over)
    assert owner.partition.next_offsets == dict.fromkeys(INPUT_TOPICS, 0)
    await read_all(owner)
    assert owner.partition.next_offsets[PIPECAT] == 2
    assert not any(record["name"] == "closed" for records in published(handed_over).values() for record in records)


async def test_a_foreign_offset_is_obeyed_where_nobody_of_ours_was(broker: LittleBroker) -> None:
    for call in "ab":
        broker.put(PIPECAT, STARTED, call.encode())
    commit(broker, 1, "", PIPECAT)
    with capture_logs() as logged:
        owner = await took_over(broker)
    assert (owner.partition.next_offsets[PIPECAT], owner.partition.is_recovering) == (1, False)
    assert [(line["event"], line["records"]) for line in logged] == [("offsets_not_ours", [f"{PIPECAT}[0]@1"])]
    assert "begins there" in logged[0]["what_happens_now"]


# Orders that cannot be used.


def trim(broker: LittleBroker) -> None:
    """Retention has taken the order."""
    broker.delete_before("order", broker.ends[ORDER])


def make_order_anew(broker: LittleBroker) -> None:
    broker.make_anew("order")


def damage(broker: LittleBroker) -> None:
    log = broker.logs[ORDER]
    log[-1] = log[-1]._replace(value=b"\x07")


def write_note_of_schema_2(broker: LittleBroker) -> None:
    commit(broker, 0, '{"scores": 1, "read": 2, "takeovers": 1}')


def make_input_anew(broker: LittleBroker) -> None:
    """While nobody was there who noticed: it is shorter than what was folded."""
    broker.make_anew(AUDIT)


UNUSABLE: dict[str, Callable[[LittleBroker], None]] = {
    "deleted": trim, "shorter": make_order_anew, "damaged": damage, "of schema 2": write_note_of_schema_2,
    "beyond an input": make_input_anew,
}  # fmt: skip


@pytest.mark.parametrize("why", UNUSABLE)
async def test_without_an_order_that_can_be_used_scores_say_what_happened(handed_over: LittleBroker, why: str) -> None:
    UNUSABLE[why](handed_over)
    with capture_logs() as logged:
        owner = await took_over(handed_over)
    events = {"damaged": ["order_unreadable"], "beyond an input": ["order_unreadable"]}
    assert [line["event"] for line in logged] == [*events.get(why, []), "order_unusable"]
    assert owner.counted("order_unusable") == 1
    assert f"read scores[0] from {1 if why == 'of schema 2' else 0}" in handed_over.journal
    owner.read({PIPECAT: 20})
    assert owner.partition.is_recovering == (why != "beyond an input")
    await read_all(owner)
    assert revisions(handed_over, "a") == [1, GENERATION]
    assert [record["is_first"] for record in published(handed_over)["a"]].count(True) == 1
    successor = await took_over(handed_over)
    await read_all(successor)
    assert successor.counted("order_unusable") == 0
    assert revisions(handed_over, "a") == [1, GENERATION], "what was published once again stays so"


async def test_an_order_that_nobody_needs_may_be_gone(broker: LittleBroker) -> None:
    owner = await took_over(broker)
    await read_all(owner)
    trim(broker)
    with capture_logs() as logged:
        successor = await took_over(broker)
    assert (successor.counted("order_unusable"), logged) == (0, [])


async def test_a_note_of_scores_that_are_gone_begins_with_the_first(handed_over: LittleBroker) -> None:
    commit(handed_over, 0, '{"scores": 99, "read": 2}')
    await took_over(handed_over)
    assert "read scores[0] from 0" in handed_over.journal


async def test_scores_that_cannot_be_read_to_their_end_leave_nothing_active(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> dict[TopicPartition, Any]:
        return {}

    monkeypatch.setattr(read_back, "MAX_SILENT_SECONDS", -1.0)
    monkeypatch.setattr(LittleConsumer, "getmany", silent)
    owner = Owner(handed_over)
    with pytest.raises(ReadBackError):
        await owner.take_over()
    assert not owner.partition.is_active


# Goals of the past.


class Goals:
    """The goals that calls get now."""

    def __init__(self, goals: GoalSet | None) -> None:
        self.goals = goals

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return self.goals if goals_id or agent else None


async def with_goals(broker: LittleBroker, then: GoalSet) -> None:
    """An owner has folded an open call with these goals."""
    for _ in range(3):
        broker.put("scores", None)  # long ago
    broker.now_ms += 3_600_000
    broker.put(
        PIPECAT, json.dumps({"type": "call_started", "timestamp": broker.now_ms, "agent": "desk"}).encode(), b"a"
    )
    await read_all(await took_over(broker, goals=Goals(then)))


@pytest.mark.parametrize("now", [None, goal_set("As it is."), goal_set("As it was.")], ids=["gone", "changed", "same"])
async def test_a_call_keeps_its_goals_whatever_became_of_them(broker: LittleBroker, now: GoalSet | None) -> None:
    then = goal_set("As it was.")
    await with_goals(broker, then)
    owner = await took_over(broker, goals=Goals(now))
    is_known = now == then
    read = [line for line in broker.journal if line.startswith("read scores")]
    assert read == ([] if is_known else ["read scores[0] from 3"])
    await owner.to_the_end()
    names = [record["name"] for record in published(broker)["a"]]
    assert (names.count("goals"), names.count("subgoal")) == (1, 1)


async def test_a_call_without_goals_gets_none_though_there_are_some_now(handed_over: LittleBroker) -> None:
    owner = await took_over(handed_over, goals=Goals(goal_set()))
    await owner.to_the_end()
    for records in published(handed_over).values():
        assert not {"goals", "subgoal", "progress"} & {record["name"] for record in records}


async def test_goals_of_calls_that_closed_are_not_looked_for(broker: LittleBroker) -> None:
    await with_goals(broker, goal_set("As it was."))
    await (await took_over(broker, goals=Goals(goal_set("As it was.")))).to_the_end()
    commit(broker, 0, json.dumps({"order": 0}))
    owner = await took_over(broker, goals=Goals(None))
    assert "read order[0] from 0" in broker.journal
    assert not [line for line in broker.journal if line.startswith("read scores")]
    await read_all(owner)
    assert owner.partition.open_calls == ()


# Inputs that are not as they were.


async def test_an_input_that_was_made_anew_is_read_as_new_and_the_others_silently(handed_over: LittleBroker) -> None:
    handed_over.make_anew(AUDIT)
    handed_over.put(AUDIT, STARTED, b"c")
    handed_over.put(AUDIT, STARTED, b"d")
    commit(handed_over, 0, CommitNote(None, is_anew=True).text(), AUDIT)
    owner = await took_over(handed_over)
    assert owner.counted("order_unusable") == 1
    await read_all(owner)
    assert owner.partition.open_calls == ("a", "c", "d")
    assert revisions(handed_over, "a") == [1, GENERATION]
    assert [(revisions(handed_over, call), published(handed_over)[call][0]["is_first"]) for call in "cd"] == [
        ([1], True), ([1], True),
    ]  # fmt: skip


async def test_where_all_inputs_were_made_anew_everything_is_new(handed_over: LittleBroker) -> None:
    for topic in (PIPECAT, AUDIT):
        handed_over.make_anew(topic)
        for call in "cde":
            handed_over.put(topic, STARTED, call.encode())
    commit(handed_over, 0, CommitNote(None, is_anew=True).text())
    owner = await took_over(handed_over)
    assert (owner.partition.is_recovering, owner.counted("order_unusable")) == (False, 0)
    await read_all(owner)
    assert [revisions(handed_over, call) for call in "cde"] == [[1]] * 3


async def test_what_retention_took_is_counted_and_its_calls_go_on_with_new_numbers(handed_over: LittleBroker) -> None:
    handed_over.put(PIPECAT, STARTED, b"c")
    await read_all(await took_over(handed_over))
    handed_over.delete_before(PIPECAT, 1)  # the first record of `a`: its second is in the order
    with capture_logs() as logged:
        owner = await took_over(handed_over)
        await read_all(owner)
    assert owner.counted("input_records_lost") == 1
    assert [line["record"] for line in logged if "record" in line] == [f"{PIPECAT}[0]@0"]
    assert sorted(owner.partition.open_calls) == ["a", "b", "c"]
    assert "a" in [call for line in logged for call in line.get("conversation_ids", ())]
    await owner.to_the_end()
    for records in published(handed_over).values():
        newest: dict[Any, int] = {}
        for record in records:
            subject = record["name"], record.get("turn"), record.get("index")
            assert record["revision"] > newest.get(subject, 0), f"{subject} goes back to an older revision"
            newest[subject] = record["revision"]


async def test_a_commit_above_the_end_is_told_and_reading_begins_at_the_first_record(broker: LittleBroker) -> None:
    broker.put(PIPECAT, STARTED, b"a")
    commit(broker, 2, json.dumps({"order": 0}), PIPECAT)
    with capture_logs() as logged:
        owner = await took_over(broker)
    assert owner.partition.next_offsets[PIPECAT] == 0
    assert owner.counted("input_records_lost") == 0  # the topic was made anew: its former records do not count as lost
    assert [(line["event"], line["seen"]) for line in logged] == [
        ("input_not_where_it_was", "the topic has 0 to 1"),
    ]  # fmt: skip


# What goes wrong.


async def test_taking_over_without_a_connection_is_refused(broker: LittleBroker) -> None:
    """Without commits everything is read again, so their absence must not be a guess."""
    owner = Owner(broker)
    with pytest.raises(RuntimeError, match="before it was started, or after it was stopped"):
        await owner.takeover.take([owner.partition], owner.consumer, owner.writer.id)
    await owner.takeover.start()
    await owner.takeover.stop()
    with pytest.raises(RuntimeError, match="before it was started, or after it was stopped"):
        await owner.takeover.take([owner.partition], owner.consumer, owner.writer.id)
    assert not any(line.startswith("read") for line in broker.journal)
    assert not owner.partition.is_active


@pytest.mark.parametrize("what", ["claim", "fence"])
async def test_a_fence_that_fails_is_not_passed_over(
    handed_over: LittleBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner = Owner(handed_over)

    async def fail(*_: object) -> Mark:
        raise KafkaConnectionError("gone")

    monkeypatch.setattr(Claims, what, fail)
    with pytest.raises(KafkaConnectionError):
        await owner.take_over()
    assert not owner.partition.is_active


async def test_without_transactions_the_ends_are_asked_for(handed_over: LittleBroker) -> None:
    order = noted(handed_over)
    settings = EvaluatorSettings(group_id="g", closed_overlap_ms=0, uses_transactions=False)
    owner = await took_over(handed_over, settings=settings)
    assert handed_over.journal == ["committed by g", "ends", f"read order[0] from {order}", "ends", "ends"]
    await read_all(owner)
    assert (owner.partition.open_calls, revisions(handed_over, "a")) == (("a", "b"), [1])


async def test_the_embedded_broker_keeps_nothing_to_ask_for() -> None:
    broker = LittleBroker()
    broker.kafka = broker._kafka(is_embedded=True)
    broker.put(PIPECAT, STARTED, b"a")
    broker.put(PIPECAT, STARTED, b"b")
    broker.delete_before(PIPECAT, 1)
    owner = await took_over(broker)
    assert broker.journal == []
    assert owner.partition.next_offsets == dict.fromkeys(INPUT_TOPICS, 0) | {PIPECAT: 1}
    owner.read(9)
    await owner.write()
    assert (revisions(broker, "b"), broker.values("order")) == ([1], [])


async def test_it_disconnects_once(broker: LittleBroker) -> None:
    owner = Owner(broker)
    await owner.takeover.stop()
    await owner.takeover.start()
    await owner.takeover.stop()
    await owner.takeover.stop()
    assert broker.journal == ["disconnect"]
