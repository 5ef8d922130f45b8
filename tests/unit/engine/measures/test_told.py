"""What an agent tells of a call: its models' use and cost, and notes, whatever the order of
arrival.
"""

import itertools
from typing import Any

import pytest
from msgspec import to_builtins

from consumers.engine.limits import Limits, Price
from schemas.closed_sets import UnscoredReason
from schemas.rows import CallRow, Unscored
from tests.support.fakes.engine_feed import T0_MS, Feed

MODEL = {
    "gpt-4o": Price(input=2.0, cached=1.0, output=10.0),
    "sonic": Price(characters=50.0),
    "nova": Price(audio_minute=0.006),
}
NOTHING: dict[str, Any] = {}


def usage(kind: str, at_ms: int, model: str, processor: str, **amounts: float) -> dict[str, Any]:
    data = {
        "kind": kind,
        "processor": processor,
        "model": model,
        "timestamp": (T0_MS + at_ms) / 1000,
        **amounts,
    }
    return {"type": "service_usage", "timestamp": T0_MS + at_ms, "data": data}


def interruption(at_ms: int, cause: str) -> dict[str, Any]:
    data = {"kind": "interruption", "timestamp": (T0_MS + at_ms) / 1000, "cause": cause}
    return {"type": "speech_event", "timestamp": T0_MS + at_ms, "data": data}


USED = (
    usage(
        "llm",
        3_000,
        "gpt-4o",
        "OpenAILLMService#0",
        prompt_tokens=100_000,
        completion_tokens=10_000,
        total_tokens=610_000,
        cache_read_input_tokens=500_000,
    ),
    usage(
        "llm",
        7_000,
        "gpt-4o",
        "OpenAILLMService#0",
        prompt_tokens=100_000,
        completion_tokens=10_000,
    ),
    usage("tts", 3_500, "sonic", "CartesiaTTSService#0", characters=1_000),
    usage("stt", 3_600, "nova", "LLM deepgram".replace("LLM", "STT"), audio_seconds=30),
    # EVA's log has the same tokens from a worse source.
    {
        "type": "LLMUsageMetricsData",
        "timestamp": T0_MS + 3_000,
        "model": "gpt-4o",
        "value": {"prompt_tokens": 9},
    },
)
TOLD = (
    {
        "type": "agent_handoff",
        "timestamp": T0_MS + 6_500,
        "data": {"old_agent": "desk", "new_agent": "guard"},
    },
    interruption(6_100, "program"),
    interruption(2_100, "aliens"),
    {"type": "false_interruption", "timestamp": T0_MS + 900, "data": {"resumed": True}},
    interruption(6_100, "program"),
)


def values_of(*events: dict[str, Any], prices: dict[str, Price] = MODEL) -> CallRow:
    feed = (
        Feed(Limits(prices=prices))
        .spoke("bot", 500, 1_000)
        .spoke("user", 2_000, 3_000)
        .spoke("bot", 4_000, 5_000)
        .spoke("user", 6_000, 7_000)
    )
    for event in events:
        feed.send("pipecat", event, event["timestamp"] - T0_MS)
    feed.send("pipecat", {"type": "call_ended"}, 9_000).advance(200_000)
    return feed.call()


def test_the_best_source_of_each_service_counts_and_has_its_price() -> None:
    values = values_of(*USED)
    assert [*map(to_builtins, values.uses)] == [
        {
            "kind": "LLM",
            "provider": "OpenAI",
            "model": "gpt-4o",
            "input_tokens": 200_000,
            "cached_tokens": 500_000,
            "output_tokens": 20_000,
            "cost": 1.1,
        },
        {
            "kind": "STT",
            "provider": "deepgram",
            "model": "nova",
            "audio_seconds": 30,
            "cost": 0.003,
        },
        {
            "kind": "TTS",
            "provider": "Cartesia",
            "model": "sonic",
            "characters": 1_000,
            "cost": 0.05,
        },
    ]
    assert values.cost_dollars == 1.153


@pytest.mark.parametrize(
    "prices", [{}, {**MODEL, "sonic": Price(input=1)}, {**MODEL, "gpt-4o": Price(input=2.0)}]
)
def test_without_one_price_the_cost_is_not_known(prices: dict[str, Price]) -> None:
    assert values_of(*USED, prices=prices).cost_dollars == Unscored(UnscoredReason.NO_PRICE)


def test_a_call_that_tells_nothing_has_none_of_it() -> None:
    values = values_of()
    assert (values.uses, values.cost_dollars, values.notes) == ((), None, ())


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_notes_are_in_the_order_of_time_and_of_their_turn(order: tuple[int, ...]) -> None:
    values = values_of(*(TOLD[place] for place in order), TOLD[4])
    assert [*map(to_builtins, values.notes)] == [
        {"what": "false_interruption", "at_ms": T0_MS + 900, "turn": 0, "is_resumed": True},
        {"what": "interruption", "at_ms": T0_MS + 2_100, "turn": 1, "cause": "unknown"},
        {"what": "interruption", "at_ms": T0_MS + 6_100, "turn": 2, "cause": "program"},
        {
            "what": "handoff",
            "at_ms": T0_MS + 6_500,
            "turn": 2,
            "from_agent": "desk",
            "to_agent": "guard",
        },
    ]


def test_notes_are_bounded_and_the_bound_is_counted() -> None:
    values = values_of(*(interruption(2_000 + n, "program") for n in range(150)))
    assert [each.at_ms - T0_MS for each in values.notes] == list(range(2_000, 2_100))
