"""The head start of the demo loses no event, keeps the order of events, and makes up no call."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from streamer.roles.demo import split_at
from streamer.sources.simulator.traffic import simulated_traffic

START_MS = 1_790_000_000_000
CALLS = 12


@given(seed=st.integers(0, 50), head_ms=st.integers(0, 200_000), lines=st.integers(1, 5))
def test_past_and_present_are_the_traffic(seed: int, head_ms: int, lines: int) -> None:
    def traffic() -> list[tuple[str, int, bytes]]:
        calls = simulated_traffic(seed, concurrent_calls=lines, start_ms=START_MS, limit=CALLS)
        return [(call.conversation_id, event.arrival_ms, event.value) for call in calls for event in call.events]

    past, calls = split_at(simulated_traffic(seed, concurrent_calls=lines, start_ms=START_MS, limit=CALLS), head_ms)
    present = list(calls)
    assert all(event.arrival_ms < START_MS + head_ms for _, event in past)
    assert [event.arrival_ms for _, event in past] == sorted(event.arrival_ms for _, event in past)
    assert [call.start_offset_ms for call in present] == sorted(call.start_offset_ms for call in present)
    for call in present:
        assert call.start_offset_ms >= 0
        assert call.events[0].arrival_ms == START_MS + head_ms + call.start_offset_ms
    both = [(call, event.arrival_ms, event.value) for call, event in past]
    both += [(call.conversation_id, event.arrival_ms, event.value) for call in present for event in call.events]
    assert sorted(both) == sorted(traffic())


def test_endless_traffic_stays_lazy() -> None:
    past, calls = split_at(simulated_traffic(1, concurrent_calls=3, start_ms=START_MS), 60_000)
    assert past
    assert len(list(itertools.islice(calls, 20))) == 20
