"""Calls with a silence of a known length: the engine finds as many dead airs in them as their
broker times alone say.
"""

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, PublishRow
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.rows import TurnRow
from tests.chaos.load.silences import LENGTHS_MS, LONG_MS, Silence, SilenceTimes, silence_name
from tests.chaos.verdict.log_check import InputRecord

NOW_MS = 1_790_000_000_000
LIMITS = Limits(delivery_allowance_ms=0)


@pytest.mark.parametrize("late_ms", [0, 190])
@pytest.mark.parametrize("number", range(len(LENGTHS_MS)))
def test_a_silence_has_as_many_dead_airs_as_its_times_say(number: int, late_ms: int) -> None:
    """Even if the end of the caller's speech comes late to the broker."""
    silence, times, name = Silence(number), SilenceTimes(), silence_name(number)
    evaluator = PartitionEvaluator(LIMITS, "test")
    effects: list[Effect] = []
    now_ms, offset = NOW_MS, 0
    while True:
        source, value = silence.event(now_ms)
        broker_ms = now_ms + (late_ms if b'"audio_end", "user": "elevenlabs_user"' in value else 0)
        times.take(name, value, broker_ms)
        record = InputRecord("topic", 0, offset, broker_ms, name.encode(), value)
        arrival = admit(InputSource(source), record, LIMITS)
        assert isinstance(arrival, Arrival), arrival
        effects += evaluator.receive(arrival)
        if (wait_ms := silence.wait_ms) is None:
            break
        now_ms, offset = now_ms + wait_ms, offset + 1
        effects += evaluator.advance(now_ms - 1)
    effects += evaluator.advance(now_ms + 3_600_000)
    turns = [
        each.row
        for each in effects
        if isinstance(each, PublishRow) and isinstance(each.row, TurnRow)
    ]
    news = [name for row in turns for name in row.news]
    is_long = LENGTHS_MS[number] == LONG_MS
    assert sum(name.startswith("dead_air.") for name in news) == is_long
    assert times.silences_ms()[name][0] == LENGTHS_MS[number]


def test_only_calls_with_all_of_their_records_in_order_are_judged() -> None:
    times, silence, now_ms = SilenceTimes(), Silence(0), NOW_MS
    for place in range(20):
        _, value = silence.event(now_ms)
        times.take("call", value, now_ms + (500 if place == 3 else 0))
        if (wait_ms := silence.wait_ms) is None:
            break
        assert times.silences_ms() == {}, "it is not over"
        now_ms += wait_ms
    assert times.silences_ms() == {}, "what came behind it was before it"
