"""The judge reads on past any record on `judge.requests` and `judge.verdicts`: it answers or refuses each, ends for none."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from consumers.judge.ledger import MAX_UNREADABLE_LINES, _read, partition_number_in
from schemas.judging import REPLY_PARTITION_HEADER, REQUEST_PARTITION_HEADER, JudgeVerdict
from tests.support.calls.judge_questions import (
    ScriptedEndpoint,
    answer,
    judge_settings,
    question,
    running_judge,
    wall_clock_ms,
)
from tests.unit.judge.test_service import P0, House, Record, record_of, until

HEADERS = (REPLY_PARTITION_HEADER, REQUEST_PARTITION_HEADER)
HOUR_MS = 3_600_000
GOOD = json.loads(question(conversation_id="c", transcript=[]).model_dump_json())
DEEP = b'{"transcript":' + b"[" * 200_000

odd = st.none() | st.booleans() | st.integers(-2, 6) | st.text(max_size=5) | st.sampled_from(
    [10**18, -(10**18), 10**400, 10**4_000, 1e308, float("nan"), float("inf"), "9" * 5_000, "x" * 300, [], [None], {}, "\x00",
     "conciseness", "subgoal.1"]
)  # fmt: skip
header_values = st.none() | st.binary(max_size=4) | st.sampled_from(
    [b"0", b"3", b"4", b"-1", b"9" * 5_000, b"9" * 10, "²".encode(), b"1e3", b"0x1", b" 1", b"1_0"]
)  # fmt: skip


@st.composite
def values(draw: st.DrawFn) -> bytes | None:
    """Questions with odd fields, and values that are no question at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.none() | st.binary(max_size=20) | st.sampled_from([DEEP, b"null", b"[]", b'"\\ud800"', b"1e999"])
        )
    changed = draw(st.dictionaries(st.sampled_from(sorted(GOOD)), odd, max_size=3))
    return json.dumps({**GOOD, "deadline_ms": wall_clock_ms() + 5_000, **changed}).encode()


headers = st.lists(st.tuples(st.sampled_from([*HEADERS, "other"]), header_values), max_size=3)


@given(st.lists(st.tuples(values(), headers, st.none() | st.binary(max_size=3)), min_size=1, max_size=6))
def test_every_record_is_answered_or_refused(
    drawn: list[tuple[bytes | None, list[tuple[str, Any]], bytes | None]],
) -> None:
    records = [Record(value, offset, 0, tuple(named), key or b"") for offset, (value, named, key) in enumerate(drawn)]

    async def scenario() -> tuple[dict[int, int], list[Exception], list[str]]:
        with pytest.MonkeyPatch.context() as patch:
            async with working(House(patch)) as house:
                await house.assigned(P0)
                await house.take(*records)
                await house.take(record_of(question(conversation_id="last"), len(records)))
                await until(lambda: not house.worker._places and not house.worker._writing)
                written = [verdict.conversation_id for verdict, _, _ in house.producer.sent]
                return await house.committed(), house.subscription.failures, written

    committed, failures, written = asyncio.run(scenario())
    assert failures == []
    assert committed == {0: len(records) + 1}
    assert "last" in written


@asynccontextmanager
async def working(house: House) -> AsyncIterator[House]:
    judging = asyncio.create_task(house.worker._judge.run())
    try:
        yield house
        assert not judging.done()
    finally:
        judging.cancel()
        await asyncio.gather(judging, return_exceptions=True)


@given(headers)
def test_a_partition_number_is_one_or_none(named: list[tuple[str, Any]]) -> None:
    for header in HEADERS:
        number = partition_number_in(Record(None, 0, headers=tuple(named)), header)
        assert number is None or 0 <= number < 10**10


@pytest.mark.parametrize("value", [None, b"", "²".encode(), b"9" * 5_000, b"-1"])
def test_what_is_no_partition_number(value: bytes | None) -> None:
    record = Record(None, 0, headers=((REQUEST_PARTITION_HEADER, value),))  # type: ignore[arg-type]  # Kafka has null too
    assert partition_number_in(record, REQUEST_PARTITION_HEADER) is None


class LedgerConsumer:
    """Hands over its records at once."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.at = 0

    async def position(self, _: TopicPartition) -> int:
        return self.at

    async def getmany(self, partition: TopicPartition, **_: Any) -> dict[TopicPartition, list[Record]]:
        self.at = len(self.records)
        return {partition: self.records}


async def test_the_ledger_is_read_past_what_is_no_verdict() -> None:
    good = (await verdict_on("c-1")).model_dump_json().encode()
    ours = ((REQUEST_PARTITION_HEADER, b"0"),)
    bad = [None, b"", b"{}", DEEP, b'"\\ud800"', good.replace(b'"cost":0', b'"cost":NaN'), *[b"junk"] * 20]
    odd_headers: list[Any] = [((REQUEST_PARTITION_HEADER, value),) for value in (None, b"9" * 5_000, b"x")]
    records = [Record(value, 0, headers=ours) for value in bad]
    records += [Record(good, 0, headers=named) for named in odd_headers]
    records.append(Record(good, 0, headers=ours))
    read: list[JudgeVerdict] = []
    consumer: Any = LedgerConsumer(records)
    with capture_logs() as lines:
        await _read(consumer, {TopicPartition("judge.verdicts", 0): len(records)}, {0}, read.append)
    assert [verdict.conversation_id for verdict in read] == ["c-1"]
    unreadable = [line for line in lines if line["event"] == "verdict_unreadable"]
    assert len(unreadable) == MAX_UNREADABLE_LINES
    assert [line["unreadable"] for line in lines if line["event"] == "verdicts_read"] == [len(bad)]


async def verdict_on(conversation_id: str) -> JudgeVerdict:
    async with running_judge(judge_settings(), ScriptedEndpoint(lambda _: answer("C"))) as (judge, _):
        return await judge.ask(question(conversation_id=conversation_id))


async def test_a_verdict_of_the_future_does_not_switch_the_budget_off() -> None:
    """Its hour would never come, and until that hour nothing would be counted."""
    spent = await verdict_on("earlier")
    settings = judge_settings(budget_per_hour=0.05)
    async with running_judge(settings, ScriptedEndpoint(lambda _: answer("C"))) as (judge, _):
        judge.recall(spent.model_copy(update={"timestamp": wall_clock_ms() + 10 * HOUR_MS, "cost": 0.0}))
        results = [(await judge.ask(question(subgoal_id=str(number)))).result.outcome for number in range(4)]
    assert results == ["judged", "unscored", "unscored", "unscored"]
