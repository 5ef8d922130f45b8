"""The choice of goals for a call, and the topic of goals on the embedded broker."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.goals.goal_set import ChoosesGoals, GoalSet
from schemas.topics import GOALS_TOPIC
from streamer.goals.files import GoalFolderError, GoalIndex
from streamer.goals.sources import GoalFolder, GoalSources
from streamer.goals.topic import GoalsTopic
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.embedded_broker import embedded_broker
from tests.support.known import Logged, some
from tests.support.patience import patient

NOBODY = KafkaSettings(bootstrap_servers="127.0.0.1:1")
PATIENCE_SECONDS = 20


def plain(goals_id: str, *agents: str, details: str = "d") -> dict[str, Any]:
    subgoal = {"id": "one", "details": details, "check": {"kind": "judge"}}
    return {"id": goals_id, "agents": list(agents), "subgoals": [subgoal]}


def goal_set(goals_id: str, *agents: str, details: str = "d") -> GoalSet:
    return GoalSet.model_validate(plain(goals_id, *agents, details=details))


@pytest.fixture
def sources(tmp_path: Path) -> GoalSources:
    """A folder and a topic of goals, both already read."""
    folder, topic = GoalFolder(tmp_path), GoalsTopic(NOBODY)
    folder.index = GoalIndex(
        [goal_set("both", "desk", details="folder"), goal_set("files", "night")]
    )
    topic.index = GoalIndex(
        [goal_set("both", "sales", details="topic"), goal_set("records", "desk")]
    )
    return GoalSources(folder, topic)


@pytest.mark.parametrize(
    ("goals_id", "agent", "expected"),
    [
        ("files", None, "files"),
        ("records", "night", "records"),  # the name in the call comes before its agent
        ("unknown", "desk", None),
        (None, "night", "files"),
        (None, "desk", "both"),  # the folder comes first
        (None, "sales", "both"),
        (None, "nobody", None),
        (None, None, None),
    ],
)
def test_a_call_names_its_goals_or_has_its_agents(
    sources: ChoosesGoals, goals_id: str | None, agent: str | None, expected: str | None
) -> None:
    found = sources.choose(goals_id, agent)
    assert (None if found is None else found.id) == expected


def test_the_folder_s_set_is_used_where_the_topic_has_one_of_the_same_id(
    sources: GoalSources,
) -> None:
    found = some(sources.choose("both", None))
    assert found.subgoals[0].details == "folder"


def test_an_unknown_name_is_told_once(sources: GoalSources, logged: Logged) -> None:
    for name in ("x", "x", "y"):
        sources.choose(name, None)
    assert [(line["event"], line["goal_set"]) for line in logged] == [
        ("goal_set_unknown", "x"),
        ("goal_set_unknown", "y"),
    ]


async def test_without_a_source_there_are_no_goals() -> None:
    sources, stop = GoalSources(None, None), asyncio.Event()
    await asyncio.wait_for(sources.run(stop), patient(PATIENCE_SECONDS))
    assert sources.ready.is_set()
    assert sources.choose("a", "b") is None


class Watched(GoalFolder):
    """A folder that signals when a reload has found the wanted set."""

    def __init__(self, folder: Path, wanted: str) -> None:
        super().__init__(folder)
        self.found = asyncio.Event()
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()

    def reload(self) -> None:
        super().reload()
        if self.index.named(self._wanted) is not None:
            self._loop.call_soon_threadsafe(self.found.set)


async def test_a_folder_is_followed_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(plain("a")))
    folder = Watched(tmp_path, "another")
    sources, stop = GoalSources(folder, None, poll_seconds=0.01), asyncio.Event()
    running = asyncio.create_task(sources.run(stop))
    await asyncio.wait_for(sources.ready.wait(), patient(PATIENCE_SECONDS))
    assert sources.choose("a", None) is not None
    path.write_text(json.dumps(plain("another")))
    await asyncio.wait_for(folder.found.wait(), patient(PATIENCE_SECONDS))
    assert (sources.choose("a", None), sources.choose("another", None)) == (
        None,
        goal_set("another"),
    )
    stop.set()
    await asyncio.wait_for(running, patient(PATIENCE_SECONDS))


async def test_a_folder_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(GoalFolderError, match="nowhere"):
        await GoalSources(GoalFolder(tmp_path / "nowhere"), None).run(asyncio.Event())


async def test_a_broker_that_is_away_costs_the_goals_and_nothing_else(logged: Logged) -> None:
    sources, stop = GoalSources(None, GoalsTopic(NOBODY)), asyncio.Event()
    running = asyncio.create_task(sources.run(stop))
    await asyncio.wait_for(sources.ready.wait(), patient(PATIENCE_SECONDS))
    stop.set()
    await asyncio.wait_for(running, patient(PATIENCE_SECONDS))
    assert [line["event"] for line in logged if line["event"].startswith("goal")] == [
        "goals_topic_unread"
    ]
    assert sources.choose("a", None) is None


@pytest.mark.parametrize(
    ("own", "chosen"),
    [
        pytest.param(None, "library-desk", id="nobody has set goals"),
        pytest.param(plain("night", "another"), "library-desk", id="goals of others"),
        pytest.param(plain("mine", "library-desk"), "mine", id="goals for the agent"),
        pytest.param(plain("library-desk"), "library-desk", id="goals of this name"),
    ],
)
async def test_simulated_calls_have_the_goals_that_come_with_callgauge_unless_others_are_set(
    tmp_path: Path, own: object, chosen: str
) -> None:
    folder = None
    if own is not None:
        (tmp_path / "own.json").write_text(json.dumps(own))
        folder = GoalFolder(tmp_path)
    sources, stop = GoalSources(folder, None), asyncio.Event()
    stop.set()
    await sources.run(stop)
    found = some(sources.choose("library-desk", "library-desk"))
    assert found.id == chosen
    assert (len(found.subgoals) > 1) == (own is None or "night" in str(own)), (
        "the simulated calls' have several"
    )
    assert sources.choose("sample", "unknown") is not None
    assert sources.choose(None, "pharmacy-refill") is None, (
        "a call that names no goals has none of these"
    )


async def test_stopping_does_not_wait_for_a_broker() -> None:
    sources, stop = GoalSources(None, GoalsTopic(NOBODY)), asyncio.Event()
    stop.set()
    await asyncio.wait_for(sources.run(stop), patient(PATIENCE_SECONDS))


@pytest.fixture(scope="module")
def embedded() -> Iterator[KafkaSettings]:
    with embedded_broker([GOALS_TOPIC]) as address:
        yield KafkaSettings(bootstrap_servers=address)


async def write(kafka: KafkaSettings, key: bytes | None, value: object) -> None:
    raw = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    async with kafka.producer("test") as producer:
        await producer.send_and_wait(kafka.topic(GOALS_TOPIC), raw, key=key)


class Noticed(GoalsTopic):
    """A topic that signals when it has the wanted set."""

    def __init__(self, kafka: KafkaSettings, wanted: str) -> None:
        super().__init__(kafka)
        self.found = asyncio.Event()
        self._wanted = wanted

    def _use(self, sets: dict[str, GoalSet]) -> None:
        super()._use(sets)
        if self._wanted in sets:
            self.found.set()


async def test_the_topic_of_the_embedded_broker(embedded: KafkaSettings) -> None:
    await write(embedded, b"a", plain("a", "desk"))
    topic, stop = Noticed(embedded, "b"), asyncio.Event()
    running = asyncio.create_task(topic.follow(stop))
    await asyncio.wait_for(topic.tried.wait(), patient(PATIENCE_SECONDS))
    assert topic.index.of_agent("desk") == topic.index.named("a") == goal_set("a", "desk")
    await write(embedded, b"b", plain("b", "night"))
    await asyncio.wait_for(topic.found.wait(), patient(PATIENCE_SECONDS))
    assert topic.index.of_agent("night") == goal_set("b", "night")
    stop.set()
    await asyncio.wait_for(running, patient(PATIENCE_SECONDS))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (None, plain("a"), "it has no key; the key is the id of the goal set."),
        (b"", plain("a"), "it has no key; the key is the id of the goal set."),
        (b"\xff", plain("a"), "its key is not UTF-8; the key is the id of the goal set."),
        (b"a", b"\xff", "its value is not UTF-8."),
        (
            b"a",
            b"{",
            "line 1: not JSON: Expecting property name enclosed in double quotes at column 2.",
        ),
        (
            b"a",
            {"id": "a"},
            "goal set: subgoals is missing; give at least one, each with id, details and check.",
        ),
        (b"a", plain("b"), "its key is 'a' and its id 'b'; they must be the same."),
        (
            b"a",
            [plain("a"), plain("b")],
            "it holds 2 goal sets; write each one to a record of its own.",
        ),
        (
            b"a",
            {**plain("a"), "x": 1, "y": 2},
            "x: there is no field 'x' here; there are id, agents, user_instruction, subgoals, "
            "expected_tool_calls, max_turns, num_judge_trials, optimize_judge_trials, "
            "max_retry_judge_trials, include_judge_explanation, "
            "template_subgoal (and 1 more mistakes).",
        ),
    ],
)
def test_a_record_that_is_no_goal_set_is_told_counted_and_left_out(
    key: bytes | None, value: object, told: str, logged: Logged
) -> None:
    topic = GoalsTopic(NOBODY)
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    sets = {"a": goal_set("a", details="before")}
    topic._read_record(BrokerRecord(GOALS_TOPIC, 7, key=key, value=raw, partition=3), sets)
    ((line),) = logged
    assert (line["event"], line["error"], line["offset"]) == ("goal_record_refused", told, 7)
    assert (topic.refused, sets["a"].subgoals[0].details) == (1, "before")


def test_a_record_takes_its_id_from_the_key_where_the_format_has_none() -> None:
    sets: dict[str, GoalSet] = {}
    GoalsTopic(NOBODY)._read_record(
        BrokerRecord(key=b"a", value=json.dumps({"sub_goals": [{"details": "d"}]}).encode()), sets
    )
    assert sets["a"].id == "a"
