"""What is read of a partition's order, where in it a successor must begin, and the note that says so."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import consumers.engine
import schemas
from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator import recovery as order_log
from consumers.evaluator import recovery as read_back_module
from consumers.evaluator.recovery import (
    MAX_NOTE_CHARS,
    MAX_ODD_RECORD_LINES,
    MAX_STARTS,
    ChosenThen,
    CommitNote,
    OrderStarts,
    PlacedStart,
    PublishedCalls,
    PublishedGoals,
    ReadBackError,
    code_digest,
    order_version,
    read_back,
)
from consumers.evaluator.settings import EvaluatorSettings
from schemas.closed_sets import InputSource
from schemas.order import (
    START_HEADER,
    Closed,
    Evicted,
    Fold,
    GoalsChosen,
    OrderStart,
    Renumbered,
    Step,
    TimePassed,
    order_value,
)
from schemas.redaction import RedactionRules
from schemas.scores.records import GENERATION
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import NOW_MS, Record, WrittenOrder, fact, goal_set, goals_fact, until_idle
from tests.unit.evaluator.little_broker import LittleBroker, LittleConsumer

PIPECAT, AUDIT = InputSource.PIPECAT, InputSource.AUDIT

# The order.


class Ahead(NamedTuple):
    """A record is folded, some places behind the one before it."""

    source: InputSource
    by: int
    opened: str | None


NAMES = st.sampled_from(["a", "b", "c-\u00e9"])
STEPS = st.one_of(
    st.builds(TimePassed, st.integers(0, 10**13)),
    st.builds(Evicted, NAMES),
    st.builds(Closed, NAMES),
    st.builds(GoalsChosen, NAMES, st.just("goals"), st.sampled_from(["1", "2"])),
    st.builds(Renumbered, NAMES, st.integers(1, 10**7), st.booleans()),
    st.builds(Ahead, st.sampled_from(InputSource), st.integers(1, 3), st.none() | NAMES),
)


@given(st.lists(st.tuples(st.none() | st.sampled_from("12"), st.booleans(), st.lists(STEPS, max_size=4)), max_size=8))
def test_what_owners_wrote_is_read_from_the_first_start_on(drawn: list[tuple[str | None, bool, list[Any]]]) -> None:
    order, reached = WrittenOrder(40), dict.fromkeys(InputSource, 0)
    starts: list[PlacedStart] = []
    useless = 0
    for version, is_marked, steps in drawn:
        if is_marked:
            order.mark()
        if version is not None:
            order.owner(version)
        before = dict(reached)
        written: list[Step] = []
        for step in steps:
            if not isinstance(step, Ahead):
                written.append(step)
                continue
            reached[step.source] += step.by
            written.append(Fold(step.source, reached[step.source] - 1, step.opened))
        record = order.write(*written)
        if version is not None:
            starts.append(PlacedStart(record.timestamp, before, record.offset))
        elif not starts:
            useless += len(written)
    log, expected = order.read(), order.steps[useless:]
    assert log.fault is None
    assert list(log.steps()) == list(log.steps()) == expected, "as often as it is asked for"
    assert log.starts == starts
    assert log.positions == (reached if starts else {})
    assert log.closings == Counter(step.conversation_id for step in expected if isinstance(step, Closed))
    assert log.versions == {step.version for step in expected if isinstance(step, OrderStart)}
    chosen = [step for step in expected if isinstance(step, GoalsChosen)]
    assert log.goals == {
        step.digest: ChosenThen(
            step.goals_id, NOW_MS, {each.conversation_id for each in chosen if each.digest == step.digest}
        )
        for step in reversed(chosen)
    }


def written_by_two() -> WrittenOrder:
    order = WrittenOrder()
    order.owner()
    order.write(Fold(PIPECAT, 0, "a"), Closed("a"))
    order.mark()
    order.owner()
    order.write(Fold(PIPECAT, 1, "b"))
    return order


def test_the_time_of_a_goal_set_is_that_of_its_record() -> None:
    order = WrittenOrder()
    order.owner()
    order.write(GoalsChosen("a", "goals", "1"), at_ms=70)
    order.write(GoalsChosen("b", "goals", "1"), at_ms=90)
    assert order.read().goals == {"1": ChosenThen("goals", 70, {"a", "b"})}, "of the first of its facts"


def changed(order: WrittenOrder, place: int, **fields: Any) -> None:
    order.records[place] = order.records[place]._replace(**fields)


def undecodable(order: WrittenOrder) -> None:
    order.records[2] = stand_in("order", 3, 4)  # type: ignore[call-overload]  # as the client hands it over


def begin_too_early(order: WrittenOrder) -> None:
    order.owner(positions={PIPECAT: 1})
    order.write(Fold(PIPECAT, 1))


FAULTS: dict[str, tuple[Callable[[WrittenOrder], None], str]] = {
    "cannot be decoded": (undecodable, r"order\[0\]@3 to @4: the batch cannot be unpacked"),
    "another format": (lambda order: changed(order, 2, value=b"\x02"), r"order\[0\]@2: its format is 2"),
    "no format": (lambda order: changed(order, 2, value=b""), r"order\[0\]@2: its format is empty"),
    "cut off": (lambda order: changed(order, 2, value=order_value(b"\x02\x09a")), r"order\[0\]@2: .* are cut off"),
    "another header": (lambda order: changed(order, 2, headers=[(START_HEADER, b"{}")]), r"order\[0\]@2: the header"),
    "an owner that begins before": (begin_too_early, r"order\[0\]@3: an owner began at pipecat@1, before the end"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_order_that_cannot_be_read_says_where_and_why(fault: str) -> None:
    spoil, told = FAULTS[fault]
    order = written_by_two()
    spoil(order)
    order.write(Closed("b"))
    log = order.read()
    assert log.fault is not None
    assert re.match(told, log.fault)
    assert "b" not in log.closings, "nothing behind it counts"


def test_what_stands_before_the_first_start_is_not_even_looked_at() -> None:
    order = WrittenOrder(first_offset=7)
    order.write(Closed("a"))
    changed(order, 0, value=b"\x02")
    order.owner(positions={PIPECAT: 5})
    order.write(Fold(PIPECAT, 5, "a"))
    log = order.read()
    assert (log.fault, [start.offset for start in log.starts], log.positions[PIPECAT]) == (None, [8], 6)


def test_an_empty_order_has_no_start_and_no_position() -> None:
    order = WrittenOrder()
    order.mark()
    log = order.read()
    assert (log.fault, log.starts, list(log.steps()), log.positions) == (None, [], [], {})


# Where in it a successor begins.


def starts_at(*starts: tuple[int, int, int], overlap_ms: int = 0) -> OrderStarts:
    """Each is its time, and the positions of two inputs before it; their offsets are 100, 101 and so on."""
    placed = [
        PlacedStart(at_ms, {PIPECAT: pipecat, AUDIT: audit}, 100 + place)
        for place, (at_ms, pipecat, audit) in enumerate(starts)
    ]
    return OrderStarts(placed, overlap_ms)


def test_an_input_that_nobody_reads_holds_no_start_back() -> None:
    starts = starts_at((1_000, 0, 0), (2_000, 10, 5), (3_000, 20, 5))
    assert [starts.offset_for({PIPECAT: 20}) for _ in range(2)] == [102, 102]


GROWING = st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=12)


@given(GROWING, GROWING, st.integers(0, 5))
def test_the_start_that_is_named_is_the_last_one_that_is_old_enough(
    steps: list[tuple[int, int, int]], calls: list[tuple[int, int, int]], overlap_ms: int
) -> None:
    """Starts come and open calls go on in any order; both only go forward."""
    given_starts = [tuple(sum(each) for each in zip(*steps[: end + 1], strict=True)) for end in range(len(steps))]
    placed = [
        PlacedStart(at_ms, {PIPECAT: one, AUDIT: two}, 100 + n) for n, (at_ms, one, two) in enumerate(given_starts)
    ]
    starts, known = OrderStarts(placed[:1], overlap_ms), placed[:1]
    reached = {PIPECAT: 0, AUDIT: 0}
    for is_start, one, two in calls:
        if is_start and len(known) < len(placed):
            known.append(placed[len(known)])
            starts.add(known[-1])
        reached = {PIPECAT: reached[PIPECAT] + one, AUDIT: reached[AUDIT] + two}
        below = [each for each in known if all(each.positions[source] <= at for source, at in reached.items())]
        newest_ms = max((each.at_ms for each in below), default=0)
        old_enough = [each for each in below if each.at_ms <= newest_ms - overlap_ms]
        assert starts.offset_for(reached) == max((each.offset for each in old_enough), default=100)


def test_starts_are_bounded_and_of_many_none_is_named_too_late() -> None:
    starts = starts_at((0, 0, 0))
    for number in range(1, 2 * MAX_STARTS):
        starts.add(PlacedStart(number, {PIPECAT: number}, 100 + number))
    assert len(starts._starts) <= MAX_STARTS
    for watermark in (0, 7, MAX_STARTS, 2 * MAX_STARTS - 2):
        assert 100 + watermark - 4 <= starts.offset_for({PIPECAT: watermark}) <= 100 + watermark


# The note.


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_note_stands_beside_an_offset_that_was_folded(offset: int, read: int) -> None:
    note = CommitNote.parse(CommitNote(7, read=read).text(), offset)
    assert (note is None) == (offset > read)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_note_is_read_back_as_it_was_written(order: int, read: int) -> None:
    text = CommitNote(order, read=read).text()
    assert CommitNote.parse(text) == CommitNote(order)
    assert len(text) <= MAX_NOTE_CHARS
    anew = CommitNote.parse(CommitNote(None, is_anew=True).text())
    assert anew == CommitNote(None, is_anew=True)


NOT_OURS = (
    "", "{", "[" * MAX_NOTE_CHARS, "[7, 9]", "null", '"order"', "{}", '{"order": "7"}', '{"order": 7.5}', '{"order": NaN}',
    '{"order": -1}', '{"anew": 1}', '{"order": 7}' + " " * MAX_NOTE_CHARS,
)  # fmt: skip


@pytest.mark.parametrize("text", NOT_OURS, ids=range(len(NOT_OURS)))
def test_a_note_that_callgauge_did_not_write_is_none(text: str) -> None:
    assert CommitNote.parse(text) is None


@given(st.text(max_size=80))
def test_no_text_at_all_is_an_error(text: str) -> None:
    note = CommitNote.parse(text)
    assert note is None or min(note.order or 0, note.scores) >= 0


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"order": 7, "more": [1]}', CommitNote(7)),
        ('{"scores": 70, "read": 30, "takeovers": 2}', CommitNote(None, 70)),
        ('{"scores": 70, "read": 30, "snapshot": [0, 3, 4]}', CommitNote(None, 70)),
    ],
    ids=["of a later version", "of schema 2", "of schema 2 with a snapshot"],
)
def test_notes_of_other_versions_are_read(text: str, note: CommitNote) -> None:
    assert CommitNote.parse(text) == note


# The version.


@pytest.mark.parametrize(
    ("changes", "is_equal"),
    [
        ({}, True),
        ({"group_id": "other", "tick_ms": 1, "closed_overlap_ms": 7}, True),
        ({"code_version": "2"}, False),
        ({"limits": Limits(idle_ms=7)}, False),
        ({"redaction": RedactionRules(enabled=False)}, False),
        ({"goals": GoalRules(stall_turns=9)}, False),
        ({"writes_transcripts": True}, False),
    ],
    ids=["the same", "what decides nothing", "code version", "limits", "redaction", "goals", "transcripts"],
)
def test_processes_that_publish_the_same_have_the_same_version(changes: dict[str, Any], *, is_equal: bool) -> None:
    assert (order_version(EvaluatorSettings(**changes)) == order_version(EvaluatorSettings())) == is_equal


def test_another_source_is_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = order_version(EvaluatorSettings())
    monkeypatch.setattr(order_log, "code_digest", lambda: "another")
    assert order_version(EvaluatorSettings()) != before
    for package in (consumers.engine, schemas):
        monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
    digests = []
    for name, content in (("a.py", "1"), ("a.py", "2"), ("b/c.py", "2"), ("b/d.so", ""), ("notes.md", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        digests.append(code_digest.__wrapped__())
    assert len(set(digests[:4])) == 4
    assert digests[4] == digests[3], "no source"


# What former owners wrote is read back: to its end by position, in order, and never silently short.


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
    of_schema_1 = (Path(__file__).parents[2] / "support" / "scores_of_schema_1.jsonl").read_bytes().splitlines()
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
