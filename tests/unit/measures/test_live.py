"""Measures of one's own on running calls: whose values are due when, and that each counts once,
over stops and changes of files.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from consumers.engine.redaction.redactor import Redactor
from consumers.measures import live
from consumers.measures.files import MeasureSettings
from consumers.measures.live import LiveMeasures, Reached
from consumers.runtime.process import OperatorError
from consumers.runtime.registry import Instruments
from schemas.metric_context import MetricContext
from schemas.rows import CallRow, OwnRow, Row, TurnRow, WordsRow

FILE = """
from callgauge import measure

@measure
def turns_of_call(call, turns):
    return len(turns)

@measure
def said(turn, words):
    return len(words.assistant) if words else "silent"
"""

SLOW = """
@measure
def slow(call):
    import time
    time.sleep(0.5)
    return 1
"""


class Reader:
    """One partition, row by row, and what came of it."""

    def __init__(self, folder: Path, *, reached: Reached | None = None) -> None:
        self.registry = CollectorRegistry()
        self.live = LiveMeasures(
            MeasureSettings(folder=folder, seconds=5.0),
            Instruments(self.registry, ["measures"]),
            Redactor(),
            no_context,
        )
        self.live.begin(0, reached or Reached(0, 0, None))

    def take(self, *rows: Row | None, first: int = 0) -> None:
        for offset, row in enumerate(rows, first):
            self.live.read_row(0, offset, row)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await self.live.changed.wait()
                self.live.changed.clear()

    def own(self) -> dict[tuple[str, str, int | None], OwnRow]:
        return {(row.conversation_id, row.measure, row.turn): row for row in self.live.values()}

    def total(self, name: str, **labels: str) -> float:
        samples = (
            each
            for family in self.registry.collect()
            for each in family.samples
            if each.name == name
        )
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    def counted(self, measure: str) -> float:
        values = self.total("callgauge_own_value_count", measure=measure)
        return values + self.total("callgauge_own_labels_total", measure=measure)


async def no_context(call: CallRow) -> MetricContext:
    raise OperatorError(f"{call.conversation_id} has no events any more")


@asynccontextmanager
async def reader(
    folder: Path, text: str = FILE, reached: Reached | None = None
) -> AsyncIterator[Reader]:
    (folder / "mine.py").write_text(text)
    found = Reader(folder, reached=reached)
    following = asyncio.create_task(found.live.follow_files())
    try:
        async with asyncio.timeout(20):
            await found.live.read.wait()
        yield found
    finally:
        following.cancel()
        await asyncio.wait([following])
        for thread in threading.enumerate():
            if thread.name.startswith("measure "):
                thread.join(5)


def turn(
    number: int, call: str = "c", *, revision: int = 2, status: str = "provisional"
) -> TurnRow:
    return TurnRow(conversation_id=call, turn=number, revision=revision, status=status)  # type: ignore[arg-type]


def running(call: str = "c", first_known_ms: int = 5) -> CallRow:
    return CallRow(conversation_id=call, state="running", first_known_ms=first_known_ms)


def closed(call: str = "c", revision: int = 9) -> CallRow:
    return CallRow(conversation_id=call, state="closed", revision=revision, first_known_ms=5)


def words(number: int, text: str, call: str = "c") -> WordsRow:
    return WordsRow(conversation_id=call, turn=number, assistant=text)


async def test_a_turn_is_measured_when_it_is_left_and_the_rest_at_the_close(tmp_path: Path) -> None:
    async with reader(tmp_path) as one:
        one.live.take_words(words(0, "Hello"))
        one.take(running(), turn(0), turn(1, status="open"))
        await one.until(lambda: ("c", "said", 0) in one.own())
        assert [*one.own()] == [("c", "said", 0)]
        one.take(turn(2, status="withdrawn"), closed(), first=3)
        await one.until(lambda: one.counted("turns_of_call"))
        found = one.own()
        assert {key[1:] for key in found} == {("said", 0), ("said", 1), ("turns_of_call", None)}
        assert (found["c", "said", 0].value, found["c", "said", 1].label) == (5.0, "silent")
        assert found["c", "turns_of_call", None].value == 2.0
        assert one.counted("said") == 2
        assert one.live.reached(0) == Reached(5, 5, None)


async def test_later_words_change_a_value_which_counts_once(tmp_path: Path) -> None:
    async with reader(tmp_path) as one:
        one.take(running(), turn(0))
        await one.until(lambda: ("c", "said", 0) in one.own())
        one.live.take_words(words(0, "Good day"))
        await one.until(lambda: one.own()["c", "said", 0].value == 8.0)
        one.take(closed(), first=2)
        await one.until(lambda: one.counted("turns_of_call"))
        assert one.counted("said") == 1
        assert one.total("callgauge_own_value_sum", measure="said") == 8.0


async def test_a_successor_counts_what_was_not_counted_and_nothing_twice(tmp_path: Path) -> None:
    rows: list[Row] = [running("a"), turn(0, "a"), running("b", 7), turn(0, "b"), closed("a")]
    async with reader(tmp_path) as one:
        one.take(*rows)
        await one.until(lambda: one.counted("turns_of_call"))
        reached = one.live.reached(0)
    assert reached == Reached(2, 5, 7), "from the first row of b on, which is open"
    async with reader(tmp_path, reached=reached) as one:
        one.take(*rows[reached.first :], closed("b"), first=reached.first)
        await one.until(lambda: one.counted("turns_of_call"))
        assert one.counted("turns_of_call") == one.counted("said") == 1
        assert ("b", "said", 0) in one.own()
        assert one.live.reached(0) == Reached(6, 6, None)


async def test_calls_are_counted_in_order_and_a_slow_function_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_WAIT_SECONDS", 0.2)
    async with reader(tmp_path, FILE + SLOW) as one:
        one.take(running("a"), running("b"), closed("a"), closed("b"))
        await one.until(lambda: ("b", "turns_of_call", None) in one.own())
        assert one.live.reached(0) == Reached(0, 2, 5), "the close of a is not counted yet"
        assert one.counted("turns_of_call") == 0
        await one.until(lambda: one.counted("turns_of_call") == 2)
        assert one.own()["a", "slow", None].value == 1.0
        assert (one.own()["b", "slow", None].reason or "").startswith("not called within")
        assert one.total("callgauge_own_unmeasured_total", measure="slow", cause="mistake") == 1


async def test_the_place_is_in_front_of_the_first_close_that_is_not_counted(tmp_path: Path) -> None:
    async with reader(tmp_path, FILE + SLOW) as one:
        one.take(running("a"), running("b"), closed("a"), closed("b"), running("d"))
        await one.until(lambda: one.counted("turns_of_call") == 1)
        assert one.live.reached(0) == Reached(1, 3, 5)
        await one.until(lambda: one.counted("turns_of_call") == 2)
        assert one.live.reached(0) == Reached(4, 5, 5)


async def test_a_changed_file_counts_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "WATCH_SECONDS", 0.01)
    async with reader(tmp_path) as one:
        one.take(running("a"), closed("a"))
        await one.until(lambda: one.own().get(("a", "turns_of_call", None)))
        (tmp_path / "mine.py").write_text(FILE.replace("len(turns)", "100"))
        one.take(running("b"), first=2)
        for _ in range(2_000):
            if one.live._functions["turns_of_call"].measure(None, ()) == 100:
                break
            await asyncio.sleep(0.01)
        one.take(closed("b"), first=3)
        await one.until(lambda: one.own().get(("b", "turns_of_call", None)))
        assert one.own()["a", "turns_of_call", None].value == 0.0
        assert one.own()["b", "turns_of_call", None].value == 100.0


async def test_texts_of_functions_are_redacted_and_a_missing_context_is_a_reason(
    tmp_path: Path,
) -> None:
    text = """
from callgauge import measure

@measure
def label(call):
    return "ann@example.com"

@measure
def raises(call):
    raise ValueError("ann@example.com is no number")

@measure
def asks(call, context):
    return 1
"""
    async with reader(tmp_path, text) as one:
        one.take(closed())
        await one.until(lambda: len(one.own()) == 3)
        said = [row.label or row.reason or "" for row in one.own().values()]
        assert not any("ann@" in each for each in said)
        assert one.own()["c", "asks", None].reason == "c has no events any more"


async def test_of_too_many_calls_the_last_one_is_left_out_as_a_whole_and_its_rows_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_CALLS", 2)
    async with reader(tmp_path) as one:
        one.take(*map(running, "abc"), turn(0, "a"), turn(0, "c"), closed("a"), turn(1, "c"))
        one.take(running("d"), turn(0, "d"), closed("c"), closed("d"), closed("b"), first=7)
        one.live.take_words(words(1, "Hello", "c"))
        await one.until(lambda: ("b", "turns_of_call", None) in one.own())
        found = one.own()
        assert {key[1:] for key in found if key[0] == "c"} == {
            ("turns_of_call", None),
            ("said", None),
        }
        assert (found["c", "said", None].reason or "").startswith("left out: it began while 2 ")
        turns = {name: found[name, "turns_of_call", None].value for name in "abcd"}
        assert turns == {"a": 1.0, "b": 0.0, "c": None, "d": 1.0}, "there was room for d again"
        assert one.total("callgauge_own_unmeasured_total", cause="limit") == 2
        assert one.live.reached(0) == Reached(12, 12, None)
        assert not one.live._left_out


async def test_a_call_without_room_for_its_words_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_CALLS", 2)
    async with reader(tmp_path) as one:
        for name in "abc":
            one.live.take_words(words(0, "Hello", name))
        one.take(running("a"), turn(0, "a"), closed("a"), running("b"), turn(0, "b"), closed("b"))
        await one.until(lambda: ("b", "said", 0) in one.own())
        assert one.own()["b", "said", 0].value == 5.0
        assert (one.own()["a", "said", None].reason or "").startswith("left out")


async def test_what_a_function_gives_of_a_partition_that_was_given_up_is_no_value(
    tmp_path: Path,
) -> None:
    async with reader(tmp_path, FILE + SLOW) as one:
        one.take(running("a"), closed("a"))
        await one.until(lambda: ("a", "turns_of_call", None) in one.own())
        one.live.end()
        one.live.begin(0, Reached(2, 2, None))
        one.take(running("b"), closed("b"), first=2)
        await one.until(lambda: ("b", "slow", None) in one.own())
        assert ("a", "slow", None) not in one.own()
