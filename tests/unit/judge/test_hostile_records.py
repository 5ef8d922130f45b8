"""The judge reads on past any record on `judge.requests`: it answers or refuses each, ends for none."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.judge.service import reply_partition_in
from schemas.judging import REPLY_PARTITION_HEADER
from tests.support.calls.judge_questions import (
    ScriptedEndpoint,
    answer,
    judge_settings,
    question,
    running_judge,
    wall_clock_ms,
)
from tests.unit.judge.test_service import P0, House, Record, record_of, running, until

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


headers = st.lists(st.tuples(st.sampled_from([REPLY_PARTITION_HEADER, "other"]), header_values), max_size=3)


@given(st.lists(st.tuples(values(), headers, st.none() | st.binary(max_size=3)), min_size=1, max_size=6))
def test_every_record_is_answered_or_refused(
    drawn: list[tuple[bytes | None, list[tuple[str, Any]], bytes | None]],
) -> None:
    records = [Record(value, offset, 0, tuple(named), key or b"") for offset, (value, named, key) in enumerate(drawn)]

    async def scenario() -> tuple[dict[int, int], list[Exception], list[str]]:
        with pytest.MonkeyPatch.context() as patch:
            async with running(House(patch)) as house:
                await house.assigned(P0)
                await house.take(*records)
                await house.take(record_of(question(conversation_id="last"), len(records)))
                await until(lambda: not house.worker._places)
                committed = await house.committed()
                written = [verdict.conversation_id for verdict, _, _ in house.cluster.verdicts]
                return committed, house.subscription.failures, written

    committed, failures, written = asyncio.run(scenario())
    assert failures == []
    assert committed == {0: len(records) + 1}
    assert "last" in written


@given(headers)
def test_a_reply_partition_is_one_or_none(named: list[tuple[str, Any]]) -> None:
    number = reply_partition_in(tuple(named), 4)
    assert number is None or 0 <= number < 4


@pytest.mark.parametrize("value", [None, b"", "²".encode(), b"9" * 5_000, b"-1", b"4"])
def test_what_is_no_reply_partition(value: bytes | None) -> None:
    assert reply_partition_in(((REPLY_PARTITION_HEADER, value),), 4) is None


async def test_money_of_the_future_does_not_switch_the_budget_off() -> None:
    """Its hour would never come, and until that hour nothing would be counted."""
    settings = judge_settings(budget_per_hour=0.05)
    now_ms = wall_clock_ms()
    async with running_judge(settings, ScriptedEndpoint(lambda _: answer("C"))) as (judge, _):
        judge.budget.recall(now_ms // HOUR_MS + 10, {"ava": 0.01}, now_ms)
        results = [(await judge.ask(question(subgoal_id=str(number)))).result.outcome for number in range(4)]
    assert results == ["judged", "unscored", "unscored", "unscored"]
