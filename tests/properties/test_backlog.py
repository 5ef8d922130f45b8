"""A backlog that is merged in any steps: whoever folds the log finds the same silences in it as in
the one that came live.
"""

import asyncio
from collections import Counter

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.limits import Limits
from consumers.runtime.kafka.connection import murmur2_place
from schemas.log import Event, LogReader
from tests.chaos.load.silences import LENGTHS_MS, LONG_MS
from tests.properties.backlogs import (
    IDLE_MS,
    INPUTS,
    PARTITIONS,
    SETTINGS,
    Brokers,
    Came,
    Place,
    a_silence,
    folded,
    live,
    one_that_comes_back,
    sequenced,
)
from tests.support.fakes.engine_feed import T0_MS

begins_ms = st.integers(0, 60_000).map(lambda ms: T0_MS + 1_000 + ms)
# Live it is noticed up to 1 s later that a call is idle: what comes meanwhile still belongs to it.
pauses_ms = st.lists(
    st.sampled_from([1_000, IDLE_MS - 2_000, IDLE_MS + 2_000, 3 * IDLE_MS]), min_size=1, max_size=2
)


@st.composite
def some_calls(draw: st.DrawFn) -> list[Came]:
    """Silent calls, and ids that come back."""
    records: list[Came] = []
    for number, begin_ms in enumerate(draw(st.lists(begins_ms, min_size=1, max_size=6))):
        records += a_silence(number, begin_ms)
    for number, (begin_ms, each) in enumerate(
        draw(st.lists(st.tuples(begins_ms, pauses_ms), max_size=4))
    ):
        records += one_that_comes_back("back" + number * "-", begin_ms, each)
    return records


polls = st.lists(st.dictionaries(st.sampled_from(INPUTS), st.integers(0, 20)), max_size=12)


@given(some_calls(), polls, st.integers(1, 60))
def test_a_fold_of_a_backlog_finds_the_same_silences_as_live(
    records: list[Came],
    polls: list[dict[Place, int]],
    step_ms: int,
) -> None:
    came = live(records)
    late = Brokers(records)
    begin_ms = max(record[2] for record in records) + 2 * IDLE_MS
    steps = ((begin_ms + place * step_ms, most) for place, most in enumerate([*polls, {}]))
    asyncio.run(sequenced(late, steps))
    for then, now in zip(came.log, late.log, strict=True):
        assert folded(now) == folded(then)
    dead_airs = sum((folded(log).dead_airs for log in late.log), Counter[str]())
    silences = {
        key: int(key.removeprefix("silence-"))
        for _, _, _, key, _ in records
        if key.startswith("silence-")
    }
    assert dead_airs == {
        key: 1 for key, number in silences.items() if LENGTHS_MS[number % 4] == LONG_MS
    }
    event(f"{min(9, sum(len(log) for log in late.log) // 20)} times 20 records")


def place_of(key: str) -> int:
    """The partition of a call."""
    return murmur2_place(key.encode(), PARTITIONS)


def test_an_id_that_comes_back_after_its_idle_time_is_two_calls() -> None:
    """Also if nothing else happens in between, and all of it is one poll."""
    other = next(key for key in ("a", "b", "c", "d") if place_of(key) == place_of("back"))
    records = [
        *one_that_comes_back("back", T0_MS + 1_000, [3 * IDLE_MS]),
        *one_that_comes_back(other, T0_MS + 2_000, []),  # so that the first one is forgotten
    ]
    late = Brokers(records)
    asyncio.run(sequenced(late, [(T0_MS + 10 * IDLE_MS, {})]))
    limits = Limits(idle_ms=IDLE_MS, max_closed_calls_remembered=1)
    found = folded(late.log[0], limits).closings + folded(late.log[1], limits).closings
    assert sorted(text.partition(":")[0] for text in found.elements()) == ["back", "back", other]


@pytest.mark.parametrize("most", [{}, {INPUTS[1]: 50}], ids=["one poll", "one input lags"])
def test_between_two_ticks_of_a_backlog_lies_no_more_time_than_a_tick_apart(
    most: dict[Place, int],
) -> None:
    dense = [
        (*INPUTS[1], T0_MS + 100 + 90 * number, f"call-{number % 5}", b"{}")
        for number in range(400)
    ]
    sparse = [(*INPUTS[0], T0_MS + at_ms, "call-0", b"{}") for at_ms in (50, 37_000)]
    late = Brokers([*dense, *sparse])
    asyncio.run(sequenced(late, [(T0_MS + 10 * IDLE_MS + number, most) for number in range(10)]))
    for log in late.log:
        reader = LogReader()
        for record in log:
            if isinstance(read := reader.read(record), Event):
                assert reader.known_ms <= read.timestamp < reader.known_ms + SETTINGS.tick_ms
        ticks = sum(record.key is None for record in log)
        assert ticks <= 400 * 90 / SETTINGS.tick_ms + 20, "and not a tick for each event"
