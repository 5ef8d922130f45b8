"""Owners of a partition that end anywhere: together they publish what one owner publishes, byte for
byte.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from unittest import mock

import pytest
from aiokafka import TopicPartition
from hypothesis import event, example, given
from hypothesis import strategies as st

from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator import decisions as decided_module
from consumers.evaluator.settings import EvaluatorSettings
from schemas.goals.goal_set import GoalSet
from schemas.rows import CallRow, GoalsRow, Row
from schemas.topics import EVENTS_TOPIC, SOURCE_BY_TOPIC
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.properties.evaluation import Subject, assert_counted, lasting, newest, subject_of
from tests.support.fakes.engine_feed import Json
from tests.support.fakes.evaluator_fakes import NOW_MS, goal_set
from tests.support.laws import examples
from tests.unit.evaluator.little_broker import LittleBroker, Owner, published

TRAFFIC = [
    record
    for _, record in interleaved(
        [simulated_events(seed, NOW_MS + 9_000 * seed) for seed in range(2)]
    )
]
HALF = len(TRAFFIC) // 2
IDLE_MS = 15_000
"""Silence that ends a call in some laws: longer than any of these calls has."""
OUTPUTS = ("scores", "transcripts", "judge.requests", "quarantine")


@pytest.fixture(autouse=True, scope="module")
def small_transactions() -> Iterator[None]:
    """So that an owner ends with some of what it decided written, and some not."""
    with mock.patch.object(decided_module, "MAX_TRANSACTION_RECORDS", 3):
        yield


@contextmanager
def every_row() -> Iterator[None]:
    """Also those that others of the same transaction replace: which these are depends on what a
    transaction has.
    """
    with mock.patch.object(
        decided_module,
        "newest",
        lambda decisions: [record for each in decisions for record in each.records],
    ):
        yield


class OneSet:
    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        del goals_id, agent
        return goal_set()


def settings_of(version: str = "test", **limits: Any) -> EvaluatorSettings:
    return EvaluatorSettings(
        group_id="g",
        code_version=version,
        closed_overlap_ms=0,
        writes_transcripts=True,
        limits=Limits(**limits),
        goals=GoalRules(asks_judge=True),
    )


Actions = Sequence[tuple[str, int]]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "read", "read", "close", "write", "end", "end", "twin"]),
        st.sampled_from([1, 2, 3, 8, 30, 100, 500]),
    ),
    max_size=60,
)
LOG = TopicPartition(EVENTS_TOPIC, 0)
TICK_MS: Final = 500


def come(broker: LittleBroker, number: int, left: list[Any]) -> None:
    """The next events come to the log, and a tick wherever half a second has passed."""
    for record in left[:number]:
        while broker.now_ms + TICK_MS <= record.timestamp:
            broker.now_ms += TICK_MS
            broker.tick()
        broker.event(
            SOURCE_BY_TOPIC[record.topic], record.key.decode(), record.value, record.timestamp
        )
    del left[:number]


def repeat(broker: LittleBroker, number: int) -> None:
    """A sequencer that was frozen appends again what is there; once its successor has begun, that
    is void.
    """
    broker.sequencer.term += number % 2
    broker.tick()
    for record in broker.logs[LOG][-number:]:
        broker.put(EVENTS_TOPIC, record.value, record.key, record.headers)


async def owned(broker: LittleBroker, settings: EvaluatorSettings, actions: Actions) -> list[Owner]:
    """Owners that take these actions; the last one goes on to the end."""
    left = list(TRAFFIC)
    owners = [Owner(broker, settings, OneSet())]
    await owners[0].take_over()
    for what, number in actions:
        owner = owners[-1]
        match what:
            case "come":
                come(broker, number, left)
            case "twin":
                repeat(broker, number)
            case "read":
                owner.read(number)
            case "close":
                owner.close()
            case "write":
                await owner.write(number)
            case _:
                if what == "lose the log":
                    broker.delete_before(
                        EVENTS_TOPIC, min(owner.partition.first + number, broker.ends[LOG])
                    )
                if what == "end with another version":
                    settings = settings.model_copy(update={"code_version": str(number)})
                owners.append(Owner(broker, settings, OneSet()))
                await owners[-1].take_over()
    come(broker, len(left), left)
    await owners[-1].to_the_end()
    return owners


def written(broker: LittleBroker) -> dict[tuple[str, bytes | None], list[bytes]]:
    by_call: dict[tuple[str, bytes | None], list[bytes]] = {}
    for topic in OUTPUTS:
        for record in broker.logs[TopicPartition(topic, 0)]:
            if record.value is not None:
                by_call.setdefault((topic, record.key), []).append(record.value)
    return by_call


async def _undisturbed(broker: LittleBroker, settings: EvaluatorSettings) -> LittleBroker:
    alone = LittleBroker()
    alone.logs[LOG], alone.ends[LOG] = list(broker.logs[LOG]), broker.ends[LOG]
    alone.now_ms, alone.sequencer = broker.now_ms, broker.sequencer
    owner = Owner(alone, settings, OneSet())
    await owner.take_over()
    await owner.to_the_end()
    return alone


@example(
    [
        ("come", 30),
        ("read", 30),
        ("write", 2),
        ("end", 1),
        ("come", 60),
        ("read", 60),
        ("write", 5),
        ("end", 1),
    ],
    1,
)
@example(
    [
        ("come", 500),
        ("read", 500),
        ("write", 8),
        ("end", 1),
        ("read", 500),
        ("close", 1),
        ("write", 9),
        ("end", 1),
    ],
    2,
)
@given(ACTIONS, st.sampled_from([1, 2, 100]))
def test_owners_that_end_anywhere_publish_together_what_one_owner_publishes(
    actions: Actions, max_open_calls: int
) -> None:
    broker, settings = LittleBroker(), settings_of(max_open_calls=max_open_calls)
    with every_row():
        owners = asyncio.run(owned(broker, settings, actions))
        event(f"owners: {len(owners)}")
        assert written(broker) == written(asyncio.run(_undisturbed(broker, settings)))
    assert_closed_once(broker)


def closings(rows: Iterable[Row]) -> list[CallRow]:
    return [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]


def assert_closed_once(broker: LittleBroker) -> None:
    for rows in published(broker).values():
        assert closings(rows) == rows[-1:]


def final_values(broker: LittleBroker) -> dict[str, dict[Subject, Json]]:
    """By call and subject: the newest values, without decisions by silence."""
    calls = published(broker)
    return {
        call: {subject: lasting(row) for subject, row in newest(rows).items()}
        for call, rows in calls.items()
    }


@cache
def in_time() -> Mapping[Any, Any]:
    """The final values of one owner."""
    broker = LittleBroker()
    asyncio.run(owned(broker, settings_of(idle_ms=IDLE_MS), ()))
    return final_values(broker)


@example([("come", 100), ("read", 500), ("write", 9), ("come", 500), ("end", 1), ("read", 500)])
@examples(0.5)
@given(ACTIONS)
def test_how_late_they_read_and_where_they_end_changes_no_value(actions: Actions) -> None:
    broker = LittleBroker()
    asyncio.run(owned(broker, settings_of(idle_ms=IDLE_MS), actions))
    assert final_values(broker) == in_time()


def assert_counted_once(broker: LittleBroker) -> None:
    """However often rows are published again."""
    for rows in published(broker).values():
        assert_counted(rows)


def with_other_ends(actions: Actions, which: int, end: str) -> Actions:
    """Some of the ends are others."""
    return [
        (end, number) if what == "end" and which >> place & 1 else (what, number)
        for place, (what, number) in enumerate(actions)
    ]


IN_THE_MIDDLE = [("come", HALF), ("read", 500), ("write", 9)]


@example([*IN_THE_MIDDLE, ("end", 2), *IN_THE_MIDDLE, ("end", 3)], 2**60 - 1)
@examples(0.5)
@given(ACTIONS, st.integers(0, 2**60))
def test_owners_of_several_versions_publish_the_values_of_open_calls_once_again(
    actions: Actions, which: int
) -> None:
    broker, settings = LittleBroker(), settings_of(idle_ms=IDLE_MS)
    asyncio.run(
        owned(broker, settings, with_other_ends(actions, which, "end with another version"))
    )
    assert_closed_once(broker)
    assert_counted_once(broker)
    assert final_values(broker) == in_time()
    for rows in published(broker).values():
        again = max((row.revision for row in rows if row.revision % 2), default=0)
        last = [row.revision for row in newest(rows).values() if not isinstance(row, GoalsRow)]
        assert min(last) >= again, "no row is left of a version that did not close it"


@examples(0.5)
@given(ACTIONS, st.integers(0, 2**60))
def test_after_a_loss_revisions_go_up_and_nothing_counts_or_closes_twice(
    actions: Actions, which: int
) -> None:
    broker, settings = LittleBroker(), settings_of(idle_ms=IDLE_MS)
    asyncio.run(owned(broker, settings, with_other_ends(actions, which, "lose the log")))
    for rows in published(broker).values():
        assert len(closings(rows)) <= 1
        revisions: dict[Subject, int] = {}
        news = Counter(
            (subject_of(row), name)
            for row in rows
            if not isinstance(row, GoalsRow)
            for name in row.news
        )
        assert (
            max((number for (_, name), number in news.items() if name != "wait_revised"), default=1)
            == 1
        )
        for row in rows:
            assert row.revision >= revisions.get(subject_of(row), 0)
            revisions[subject_of(row)] = row.revision
