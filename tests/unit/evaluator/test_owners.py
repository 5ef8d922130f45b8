"""Owners of a partition that end anywhere: together they publish what one owner publishes, byte for byte."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import event, example, given
from hypothesis import strategies as st

from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator.recovery import OrderLog
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import Addresses
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.topics import SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from tests.benchmarks.traffic import BrokerRecord, interleaved, simulated_events
from tests.properties.owners import Settings, in_order
from tests.support.fakes.evaluator_fakes import NOW_MS, goal_set
from tests.support.laws import examples
from tests.unit.evaluator.little_broker import LittleBroker, Owner, published

TRAFFIC = [record for _, record in interleaved([simulated_events(seed, NOW_MS + 9_000 * seed) for seed in range(2)])]
HALF = len(TRAFFIC) // 2
IDLE_MS = 15_000
"""Silence that ends a call in some laws: longer than any of these calls has."""
OUTPUTS = ("scores", "transcripts", "judge.requests", "quarantine")


class OneSet:
    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        del goals_id, agent
        return goal_set()


def settings_of(version: str = "test", **limits: Any) -> EvaluatorSettings:
    return EvaluatorSettings(
        group_id="g",
        code_version=version, closed_overlap_ms=0, writes_transcripts=True, limits=Limits(**limits),
        goals=GoalRules(asks_judge=True),
    )  # fmt: skip


Actions = Sequence[tuple[str, int]]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "read", "read", "read one", "tick", "write", "commit", "end", "end"]),
        st.sampled_from([1, 2, 3, 8, 30, 100, 500]),
    ),
    max_size=60,
)


def come(broker: LittleBroker, records: Iterable[BrokerRecord]) -> None:
    for record in records:
        broker.now_ms = record.timestamp
        broker.put(record.topic, record.value, record.key)


async def owned(broker: LittleBroker, settings: EvaluatorSettings, actions: Actions) -> list[Owner]:
    """Owners that take these actions; the last one goes on to the end."""
    left = list(TRAFFIC)
    owners = [Owner(broker, settings, OneSet())]
    await owners[0].take_over()

    for what, number in actions:
        owner = owners[-1]
        match what:
            case "come":
                come(broker, left[:number])
                del left[:number]
            case "read":
                owner.read(number)
            case "read one":
                owner.read({list(SOURCE_BY_TOPIC)[number % 4]: number})
            case "tick":
                owner.tick()
            case "write":
                await owner.write(number)
            case "commit":
                owner.commit()
            case _:
                if what == "lose the order":
                    broker.delete_before("order", broker.ends[TopicPartition("order", 0)])
                if what == "end with another version":
                    settings = settings.model_copy(update={"code_version": str(number)})
                owners.append(Owner(broker, settings, OneSet()))
                await owners[-1].take_over()
    come(broker, left)
    await owners[-1].to_the_end()
    return owners


def undisturbed(broker: LittleBroker, settings: EvaluatorSettings) -> dict[tuple[str, bytes | None], list[bytes]]:
    """By topic and call: what one owner publishes that takes the steps of all."""
    log = OrderLog()
    for record in broker.logs[TopicPartition("order", 0)]:
        log.take(record)
    assert log.fault is None
    inputs = {
        (source, record.offset): record
        for source in InputSource
        for record in broker.logs[TopicPartition(TOPIC_BY_SOURCE[source], 0)]
    }
    by_call: dict[tuple[str, bytes | None], list[bytes]] = {}
    for each in in_order(log, inputs, Settings(settings.limits, settings.goals, lambda _: OneSet()), repeat("1")):
        outgoing = Addresses(0, broker.kafka).of(each)
        by_call.setdefault((outgoing.topic, outgoing.key), []).append(outgoing.value)
    return by_call


def written(broker: LittleBroker) -> dict[tuple[str, bytes | None], list[bytes]]:
    by_call: dict[tuple[str, bytes | None], list[bytes]] = {}
    for topic in OUTPUTS:
        for record in broker.logs[TopicPartition(topic, 0)]:
            if record.value is not None:
                by_call.setdefault((topic, record.key), []).append(record.value)
    return by_call


@given(ACTIONS, st.sampled_from([1, 2, 100]))
def test_owners_that_end_anywhere_publish_together_what_one_owner_publishes(
    actions: Actions, max_open_calls: int
) -> None:
    broker, settings = LittleBroker(), settings_of(max_open_calls=max_open_calls)
    owners = asyncio.run(owned(broker, settings, actions))
    event(f"owners: {len(owners)}")
    assert written(broker) == undisturbed(broker, settings)
    assert_closed_once(broker)


def assert_closed_once(broker: LittleBroker) -> None:
    for records in published(broker).values():
        assert [record["name"] for record in records].count("closed") == 1
        assert records[-1]["name"] == "closed"


HOW = {
    "code_version",
    "revision",
    "record_id",
    "is_first",
    "first_known",
    "offsets",
    "through",
    "event_time_ms",
    "status",
    "labels",
}
"""Fields that say how or when a value was found, which depends on the order of reading."""


def final_values(broker: LittleBroker) -> dict[tuple[str, str, int | None, int], dict[str, Any]]:
    """By call and subject: the newest record, without decisions by silence."""
    final: dict[tuple[str, str, int | None, int], dict[str, Any]] = {}
    for conversation_id, records in published(broker).items():
        for record in records:
            left_out = HOW if record["name"] == "closed" else {*HOW, "caused_at_ms"}
            subject = conversation_id, record["name"], record.get("turn"), record.get("index", 0)
            final[subject] = {name: value for name, value in record.items() if name not in left_out}
    return {subject: record for subject, record in final.items() if subject[1] != "dead_air"}


@cache
def in_time() -> Mapping[Any, Any]:
    """The final values of one owner that reads each record when it comes."""
    broker = LittleBroker()
    actions = [each for _ in TRAFFIC for each in (("come", 1), ("read", 1), ("tick", 1))]
    asyncio.run(owned(broker, settings_of(idle_ms=IDLE_MS), actions))
    return final_values(broker)


@example([("come", 100), ("read", 500), ("write", 9), ("commit", 1), ("come", 500), ("end", 1), ("read", 500)])
@examples(0.5)
@given(ACTIONS)
def test_how_late_they_read_and_where_they_end_changes_no_value(actions: Actions) -> None:
    broker = LittleBroker()
    asyncio.run(owned(broker, settings_of(idle_ms=IDLE_MS), actions))
    assert final_values(broker) == in_time()


def assert_revisions_go_up(broker: LittleBroker) -> None:
    for records in published(broker).values():
        newest: dict[Any, int] = {}
        for record in records:
            subject = record["name"], record.get("turn"), record.get("index")
            assert record["revision"] > newest.get(subject, 0), f"{subject} goes back to an older revision"
            newest[subject] = record["revision"]


def assert_counted_once(broker: LittleBroker) -> None:
    """However often values are published again."""
    assert_revisions_go_up(broker)
    for records in published(broker).values():
        firsts: Counter[Any] = Counter()
        for record in records:
            subject = record["name"], record.get("turn"), record.get("index")
            firsts.update([subject] * record["is_first"])
            firsts.update((*subject, value) for value in record.get("first_known", ()))
        assert max(firsts.values(), default=1) == 1, "a value is counted twice"


def with_other_ends(actions: Actions, which: int, end: str) -> Actions:
    """Some of the ends are others."""
    return [
        (end, number) if what == "end" and which >> place & 1 else (what, number)
        for place, (what, number) in enumerate(actions)
    ]


IN_THE_MIDDLE = [("come", HALF), ("read", 500), ("write", 9), ("commit", 1), ("commit", 1)]


@example([*IN_THE_MIDDLE, ("end", 1), ("read", 500), ("read", 500), *IN_THE_MIDDLE[2:], ("end", 1)], 1 << 5)
@examples(0.5)
@given(ACTIONS, st.integers(0, 2**60))
def test_without_an_order_nothing_counts_or_closes_twice_and_no_value_is_lost(actions: Actions, which: int) -> None:
    broker = LittleBroker()
    asyncio.run(owned(broker, settings_of(idle_ms=IDLE_MS), with_other_ends(actions, which, "lose the order")))
    assert_closed_once(broker)
    assert_counted_once(broker)
    assert final_values(broker) == in_time()


@example([*IN_THE_MIDDLE, ("end", 2), *IN_THE_MIDDLE, ("end", 3)], 2**60 - 1)
@examples(0.5)
@given(ACTIONS, st.integers(0, 2**60))
def test_owners_of_several_versions_publish_the_values_of_open_calls_once_again(actions: Actions, which: int) -> None:
    broker, settings = LittleBroker(), settings_of(idle_ms=IDLE_MS)
    asyncio.run(owned(broker, settings, with_other_ends(actions, which, "end with another version")))
    assert_closed_once(broker)
    assert_counted_once(broker)
    assert final_values(broker) == in_time()
    for records in published(broker).values():
        newest = {(each["name"], each.get("turn"), each.get("index")): each["code_version"] for each in records}
        assert set(newest.values()) == {records[-1]["code_version"]}, (
            "no value is left of a version that did not close it"
        )


@pytest.mark.parametrize("deleted", [1, 15, 50, 106])
def test_after_a_loss_revisions_go_up_all_the_same(deleted: int) -> None:
    """The records of another input open the calls again, and the former owner knew more of them."""
    broker, settings = LittleBroker(), settings_of(idle_ms=IDLE_MS)

    async def lose() -> None:
        come(broker, TRAFFIC[:HALF])
        former = Owner(broker, settings, OneSet())
        await former.take_over()
        while former.lagging:
            former.read(3)
            former.tick()
        await former.write()
        for _ in range(2):
            former.commit()
        caller = TOPIC_BY_SOURCE[InputSource.ELEVENLABS]
        tp = TopicPartition(caller, 0)
        broker.delete_before(caller, min(broker.committed[tp].offset + deleted, broker.ends[tp]))
        successor = Owner(broker, settings, OneSet())
        await successor.take_over()
        come(broker, TRAFFIC[HALF:])
        await successor.to_the_end()
        assert successor.counted("calls_incomplete") == 2

    asyncio.run(lose())
    assert_closed_once(broker)
    assert_revisions_go_up(broker)
