"""Events of a producer whose clock is wrong are counted, and those of a live one are not."""

import pytest

from consumers.engine.evaluator import AHEAD_MS, BEHIND_MS
from tests.support.fakes.engine_feed import Feed

SKEWED = "callgauge_skewed_events_total"
LINE = {"type": "turn_start", "data": {"frame": "StartFrame#0"}}


@pytest.mark.parametrize(
    ("broker_ms", "expected"),
    [
        (100_000 - AHEAD_MS - 1, {("pipecat", "ahead"): 1}),
        (100_000 - AHEAD_MS, {}),
        (100_000 + 40, {}),
        (100_000 + BEHIND_MS, {}),
        (100_000 + BEHIND_MS + 1, {("pipecat", "behind"): 1}),
    ],
)
def test_an_event_far_from_the_brokers_time_is_counted(broker_ms: int, expected: dict[tuple[str, str], int]) -> None:
    feed = Feed()
    feed.send("pipecat", LINE, 100_000, broker_ms=broker_ms)
    assert feed.counts(SKEWED) == expected


def test_a_repeated_record_counts_once_and_every_drain_begins_anew() -> None:
    feed = Feed()
    for _ in range(2):
        feed.send("pipecat", LINE, 100_000, broker_ms=0, offset=5)
    assert feed.counts(SKEWED) == {("pipecat", "ahead"): 1}
    feed.send("audit", {"type": "call_started", "agent": "desk"}, 0, broker_ms=0)
    assert [count for count in feed.evaluator.drain_counts() if count.metric == SKEWED] == []
