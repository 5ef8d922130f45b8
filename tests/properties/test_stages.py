"""Latency by stage: the same for any order of the numbers, repeats or crashes; each stage is
counted once.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.rows import Row, StageLatency, TurnRow
from tests.properties.evaluation import assert_counted, final_values, holds
from tests.properties.measured_anew import MeasuredTurns, stages_anew
from tests.properties.owners import Acts, Log, Owner, Settings, acts
from tests.support.calls.wire_calls import Json
from tests.support.fakes.engine_feed import T0_MS, rows_of
from tests.support.laws import examples

LONG_AFTER_MS = 10**9

# so that several begin at once, to the last bit
_seconds = st.sampled_from([0.0, 0.125, 0.25, 0.25, 0.5, 700.0])
_processors = st.sampled_from(["OneSTTService#0", "OneLLMService#0", "OneTTSService#0", "Camera#0"])
_parts = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["llm_inference", "llm_tool_call", "pipeline", "of tomorrow"]),
        "duration_secs": _seconds,
    }
)
_call_began_s = T0_MS / 1000
_numbers = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["TTFBMetricsData", "ProcessingMetricsData", "TextAggregationMetricsData"]
            ),
            "processor": _processors,
            "model": st.sampled_from([None, "m"]),
            "value": _seconds,
        }
    ),
    st.fixed_dictionaries({"type": st.just("user_bot_latency"), "data": _seconds}),
    st.fixed_dictionaries(
        {
            "type": st.just("function_call_event"),
            "data": st.fixed_dictionaries(
                {
                    "kind": st.just("function_call_completed"),
                    "in_progress_at": st.integers(0, 5).map(
                        lambda after_s: _call_began_s + after_s
                    ),
                }
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("latency_breakdown"),
            "data": st.fixed_dictionaries(
                {"contributions": st.lists(_parts, max_size=4), "user_turn_secs": _seconds}
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("LLMUsageMetricsData"),
            "model": st.just("m"),
            "value": st.fixed_dictionaries({"completion_tokens": st.integers(0, 9)}),
        }
    ),
    st.fixed_dictionaries(
        {
            "message_type": st.just("llm_call"),
            "value": st.sampled_from(["Yes.", ""]),
            "latency_ms": st.sampled_from([250, 500]),
        }
    ),
)


@st.composite
def talks(draw: st.DrawFn) -> list[Json]:
    """A call as pipecat reports it: speakers with times of their own, and numbers at any time,
    several at once too.
    """
    events: list[Json] = []
    at_ms = 0
    for _ in range(draw(st.integers(1, 4))):
        for kind in (
            "user_speech_started",
            "user_speech_stopped",
            "bot_speech_started",
            "bot_speech_stopped",
        ):
            at_ms += draw(st.integers(1, 15)) * 100 + 1
            if draw(st.integers(0, 3)):  # without the bot in between, a turn has several starts
                moment = {"kind": kind, "timestamp": (T0_MS + at_ms) / 1000}
                events.append({"type": "speech_event", "data": moment, "at_ms": at_ms})
    numbers = draw(st.lists(st.tuples(_numbers, st.integers(0, 48)), max_size=12))
    return events + [number | {"at_ms": 125 * eighths} for number, eighths in numbers]


def arrivals(events: Iterable[Json]) -> list[Arrival]:
    result = []
    next_offset: Counter[InputSource] = Counter()
    for event in events:
        source = InputSource.AUDIT if "message_type" in event else InputSource.PIPECAT
        wire = {"timestamp": T0_MS + event["at_ms"]} | {
            key: event[key] for key in event if key != "at_ms"
        }
        value = json.dumps(wire).encode()
        found = decode(source, value)
        result.append(
            Arrival(source, next_offset[source], T0_MS + 60_000, "call", found, value, None)
        )
        next_offset[source] += 1
    return result


def folded(
    evaluator: PartitionEvaluator, log: Sequence[Arrival], *, closes: bool = True
) -> list[Effect]:
    effects = [effect for arrival in log for effect in evaluator.receive(arrival)]
    return [*effects, *evaluator.advance(T0_MS + LONG_AFTER_MS)] if closes else effects


def turns_in(effects: Iterable[Effect]) -> list[TurnRow]:
    return [row for row in rows_of(effects) if isinstance(row, TurnRow)]


def final_stages(rows: Sequence[Row]) -> dict[int, tuple[StageLatency, ...]]:
    final_values(rows)  # the call closes once, and last
    last = {row.turn: row for row in rows if isinstance(row, TurnRow)}
    return {turn: row.stages for turn, row in last.items() if holds(row)}


def transcript_metrics(evaluator: PartitionEvaluator) -> list[Any]:
    """The transcript's values of each turn, tokens included, if the call closed now: then every
    turn is looked at.
    """
    call = evaluator._calls["call"]
    stages, live, heard = call._measures.stages, call.live, call.live.heard()
    stages.stale_turns(heard, set(live.machine.turns))
    return [stages.turn_metrics(heard, live.record, turn) for turn in sorted(live.machine.turns)]


def fresh() -> PartitionEvaluator:
    return PartitionEvaluator(Limits(), "test")


def shuffled(events: Sequence[Any], seed: int) -> list[Any]:
    order = list(events)
    random.Random(seed).shuffle(order)  # noqa: S311  # an order, nothing secret
    return order


def _in_time(events: Sequence[Json]) -> list[Json]:
    return sorted(events, key=lambda event: (event["at_ms"], event.get("type") != "speech_event"))


@examples(times=2)
@given(talks(), st.integers(0, 1000))
def test_any_order_of_arrival_gives_the_same_stages(events: list[Json], seed: int) -> None:
    if not events:
        return
    expected = final_stages(rows_of(folded(fresh(), arrivals(_in_time(events)))))
    assert final_stages(rows_of(folded(fresh(), arrivals(shuffled(events, seed))))) == expected


@examples(times=2)
@given(talks(), st.integers(0, 1000))
def test_whenever_turns_are_measured_their_stages_are_those_worked_out_again(
    events: list[Json], seed: int
) -> None:
    evaluator = fresh()
    measured = MeasuredTurns(evaluator)
    for arrival in arrivals(shuffled(events, seed)):
        measured.take(evaluator.receive(arrival), "call")
    if not events:
        return
    call = evaluator._calls["call"]
    stages, again, heard = call._measures.stages, stages_anew(call), call.live.heard()
    stages.stale_turns(heard, call._measures._dirty)
    for turn in call.live.machine.turns:
        assert stages.stages_of(heard, turn) == again.stages_of(heard, turn)


@given(talks(), st.data())
def test_a_number_that_comes_twice_counts_once(events: list[Json], data: st.DataObject) -> None:
    if not events:
        return
    numbers = [event for event in events if event.get("type") != "speech_event"]
    again = data.draw(st.lists(st.sampled_from(numbers), max_size=5)) if numbers else []
    once, twice = fresh(), fresh()
    in_time = _in_time(events)
    out_once = folded(once, arrivals(in_time), closes=False)
    out_twice = folded(twice, arrivals([*in_time, *again]), closes=False)
    assert transcript_metrics(twice) == transcript_metrics(once)
    out_once += once.advance(T0_MS + LONG_AFTER_MS)
    out_twice += twice.advance(T0_MS + LONG_AFTER_MS)
    assert final_stages(rows_of(out_twice)) == final_stages(rows_of(out_once))


@examples(times=3)
@given(talks(), st.integers(0, 1000), st.lists(acts(), max_size=2))
def test_every_stage_is_known_for_the_first_time_once_whatever_crashes(
    events: list[Json], seed: int, lives: list[Acts]
) -> None:
    sent = arrivals(shuffled(events, seed))
    log = Log.of(sent)
    for each in lives:
        Owner(log, Settings()).live(each)
    Owner(log, Settings()).to_the_end()

    assert_counted(log.rows)
    if sent:
        assert final_stages(log.rows) == final_stages(rows_of(folded(fresh(), sent)))


@given(talks(), st.data())
def test_a_successor_on_the_way_changes_nothing(events: list[Json], data: st.DataObject) -> None:
    log = arrivals(_in_time(events))
    done = data.draw(st.integers(0, len(log)))
    effects = folded(fresh(), log[:done], closes=False)
    successor = fresh()
    for arrival in log[:done]:
        successor.receive(arrival)
    effects += folded(successor, log[done:])
    assert turns_in(effects) == turns_in(folded(fresh(), log))
