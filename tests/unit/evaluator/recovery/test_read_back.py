"""What former owners wrote is read back: to its end by position, in order, and never silently short."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from consumers.evaluator import recovery as read_back_module
from consumers.evaluator.recovery import MAX_ODD_RECORD_LINES, PublishedCalls, PublishedGoals, ReadBackError, read_back
from schemas.closed_sets import InputSource
from schemas.scores.records import GENERATION
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import Record, fact, goal_set, goals_fact, until_idle
from tests.unit.evaluator.little_broker import LittleBroker, LittleConsumer


class Watched(LittleConsumer):
    """Keeps what it is asked for; is silent, or never starts, where the test says so."""

    is_silent = False
    never_starts = False
    last: "Watched"

    def __init__(self, broker: LittleBroker) -> None:
        super().__init__(broker)
        Watched.last = self
        self.polled: list[Sequence[TopicPartition]] = []
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        if self.never_starts:
            await asyncio.Event().wait()

    async def stop(self) -> None:
        self.calls.append("stop")

    async def getmany(self, *tps: TopicPartition, timeout_ms: int = 0) -> dict[TopicPartition, list[Record]]:
        assert timeout_ms > 0
        self.polled.append(tps)
        await asyncio.sleep(0)
        return {} if self.is_silent else await super().getmany(*tps)


class Reading:
    """Some partitions of `scores`, and what is read of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **silence: bool) -> None:
        self.broker = LittleBroker()
        self.broker.consumer = Watched
        self.taken: dict[int, list[str]] = {}
        for name, value in silence.items():
            monkeypatch.setattr(Watched, name, value)

    def put(self, values: str, number: int = 0) -> None:
        """A letter for each record; a dot is the end of a transaction."""
        for letter in values:
            if letter == ".":
                self.broker.ends[TopicPartition("scores", number)] += 1
            else:
                self.broker.put("scores", letter.encode(), number=number)

    async def read(self, starts: Mapping[int, int], ends: Mapping[int, int] | None = None) -> dict[int, str]:
        if ends is None:
            ends = {number: self.broker.ends[TopicPartition("scores", number)] for number in starts}
        self.taken = {number: [] for number in starts}
        takes = {
            number: lambda record, to=taken: to.append(record.value.decode()) for number, taken in self.taken.items()
        }
        await read_back(self.broker.kafka, "scores", starts, ends, takes)
        return {number: "".join(taken) for number, taken in self.taken.items()}


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


async def test_each_partition_is_read_from_its_start_to_its_end_in_order(reading: Reading) -> None:
    reading.put("abc.de.")
    reading.put("xy.", number=2)
    assert await reading.read({0: 0, 2: 1}) == {0: "abcde", 2: "y"}
    assert Watched.last.calls == ["start", "stop"]


async def test_the_end_is_a_position_and_not_a_record(reading: Reading) -> None:
    reading.put("a......")
    assert await reading.read({0: 0}) == {0: "a"}


async def test_what_stands_behind_the_end_is_not_ours_to_read(reading: Reading) -> None:
    reading.put("abcd")
    assert await reading.read({0: 0}, {0: 3}) == {0: "abc"}


async def test_what_was_read_to_its_end_is_asked_for_no_more(reading: Reading) -> None:
    reading.put("abcdef")
    reading.put("x", number=2)
    await reading.read({0: 0, 2: 0})
    short = TopicPartition("scores", 2)
    assert [short in polled for polled in Watched.last.polled] == [True, False, False]


async def test_where_there_is_nothing_to_read_nobody_is_asked(reading: Reading) -> None:
    reading.put("ab")
    reading.broker.consumer = None  # type: ignore[assignment]  # it would fail
    assert await reading.read({0: 2, 1: 0}) == {0: "", 1: ""}


async def test_a_log_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_back_module, "MAX_SILENT_SECONDS", -1.0)  # is over at once
    reading = Reading(monkeypatch, is_silent=True)
    reading.put("abc")
    with pytest.raises(ReadBackError, match=r"records outstanding in scores\[0\] before 3\. .* evaluator ends"):
        await reading.read({0: 0, 2: 0})
    assert Watched.last.calls == ["start", "stop"]


async def test_a_log_that_comes_slowly_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, is_silent=True)
    reading.put("abc")
    task = asyncio.create_task(reading.read({0: 0}))
    await until_idle()
    assert len(Watched.last.polled) > 1
    Watched.is_silent = False
    assert await task == {0: "abc"}


@pytest.mark.parametrize("silence", ["is_silent", "never_starts"])
async def test_a_reading_that_is_cancelled_disconnects(monkeypatch: pytest.MonkeyPatch, silence: str) -> None:
    reading = Reading(monkeypatch, **{silence: True})
    reading.put("abc")
    task = asyncio.create_task(reading.read({0: 0}))
    await until_idle()
    assert Watched.last.calls == ["start"]
    task.cancel()
    await asyncio.wait([task])
    assert Watched.last.calls == ["start", "stop"]


# Calls, where there is no order.


def score(call: str, **fields: Any) -> Record:
    value = fact(call).model_dump(mode="json") | fields
    return Record("scores", 7, value=json.dumps(value).encode())


def published(*records: Any) -> PublishedCalls:
    calls = PublishedCalls()
    for record in records:
        calls.take(record)
    return calls


def test_scores_say_which_calls_closed_how_far_the_inputs_were_read_and_the_next_generation() -> None:
    calls = published(
        score("a", offsets={"pipecat.events": 7, "audit.events": 2}),
        score("b", offsets={"pipecat.events": 5, "of another": 99}, revision=3),
        score("a", name="closed"),
        Record("scores", 8, value=None),
        score("c", name="closed"),
        score("a", name="closed"),  # an id may be used again
    )
    assert list(calls.closed) == ["c", "a"], "in the order in which they closed"
    assert calls.reached == {InputSource.PIPECAT: 8, InputSource.AUDIT: 3}
    assert calls.generation == GENERATION


@pytest.mark.parametrize("revision", [GENERATION, GENERATION + 7, 2 * GENERATION - 1])
def test_a_generation_that_was_begun_is_not_used_again(revision: int) -> None:
    assert published(score("a", revision=revision), score("b", revision=1)).generation == 2 * GENERATION


def test_nothing_was_published_where_nothing_is() -> None:
    calls = published()
    assert (calls.closed, calls.reached, calls.generation) == ({}, {}, GENERATION)


def test_records_of_other_versions_count_as_those_of_our_own() -> None:
    later = {"schema_version": 99, "name": "closed", "reason": "of a later version", "turns": None}
    assert list(published(score("a", **later)).closed) == ["a"]
    of_schema_1 = (Path(__file__).parents[3] / "support" / "scores_of_schema_1.jsonl").read_bytes().splitlines()
    with capture_logs() as logged:
        calls = published(*(Record("scores", place, value=value) for place, value in enumerate(of_schema_1)))
    closed = [json.loads(value) for value in of_schema_1]
    assert list(calls.closed) == [each["conversation_id"] for each in closed if each["name"] == "closed"]
    assert calls.closed
    assert min(calls.reached.values()) > 0
    assert logged == []


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"",
        b"[2]",
        b"\xff",
        b'{"name": "closed", "conversation_id": 7, "offsets": {}, "revision": 1}',
        b"[" * 10_000,
    ],
    ids=["no JSON", "empty", "no object", "no text", "no id", "deep"],
)
def test_what_no_callgauge_wrote_is_passed_over_and_told(value: bytes) -> None:
    with capture_logs() as logged:
        calls = published(Record("scores", 7, value=value), score("a", name="closed"))
    assert list(calls.closed) == ["a"]
    assert [(line["event"], line["record"]) for line in logged] == [("score_not_ours", "scores[0]@7")]


def test_of_many_such_records_a_few_are_told() -> None:
    with capture_logs() as logged:
        published(*[Record("scores", 7, value=b"{}")] * 40, stand_in("scores", 8, 9))
    assert len(logged) == MAX_ODD_RECORD_LINES


# Goal sets.


def test_the_goal_sets_that_are_wanted_are_found() -> None:
    wanted, other = goal_set("As it was."), goal_set("Another.")
    goals = PublishedGoals({wanted.digest, "of a set that is nowhere"})
    of_a_later_version = goals_fact("d", goal_set("New.")).model_dump(mode="json")
    of_a_later_version["goal_set"]["subgoals"][0]["check"]["kind"] = "new"
    goals.wanted.add(of_a_later_version["digest"])
    values = [goals_fact("a", other).model_dump(mode="json"), of_a_later_version]
    for value in [*values, goals_fact("b", wanted).model_dump(mode="json"), fact("c").model_dump(mode="json")]:
        goals.take(Record("scores", 7, value=json.dumps(value).encode()))
    goals.take(Record("scores", 8, value=None))
    goals.take(stand_in("scores", 9, 9))
    assert goals.found == {wanted.digest: wanted}
    assert goals.wanted == {"of a set that is nowhere", of_a_later_version["digest"]}
