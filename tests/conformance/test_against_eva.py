"""The context of damaged calls beside EVA's own processor, which computes that of the same files.

The conformance data have its results for some hundred calls; here are as many others as one likes.
`EVA_DIR` names a checkout of EVA, which is on no package index.
"""

import copy
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.engine.evaluator import context_of
from tests.benchmarks.peer_cost import BESIDE_EVA, NO_EVA, PROGRAMS
from tests.conformance.test_contexts import differences, plain
from tests.support.calls.wire_calls import (
    STREAMS,
    arrivals_of,
    in_random_order,
    in_time_order,
    wire_calls,
)
from tests.support.conformance_data import conformance
from tests.support.environments import python_with
from tests.support.required_tools import MISSING

Json = dict[str, Any]

FILES: Final = ("calls.jsonl.gz", "hostile_calls.jsonl.gz", "eva_histories.jsonl.gz")
CALLS: Final = int(os.environ.get("EXAMPLES", "400"))
TEXTS: Final = (
    "",
    "  ",
    "...",
    "-",
    "I'm sorry, I encountered an error processing your request.",
    "été straße İ",
    "[pause]",
    "[user interrupts] hi",
    "one two three four five six seven eight",
)
ROLES: Final = ("simulated_user", "elevenlabs_user", "framework_agent", "pipecat_agent")
REASONS: Final = ("goodbye", "inactivity_timeout", "error", None)


def _drop(events: list[Json], at: int, rng: random.Random) -> None:
    del events[at : at + rng.randint(1, 6)]


def _cut(events: list[Json], at: int, rng: random.Random) -> None:
    del events[slice(at, None) if rng.random() < 0.5 else slice(at)]


def _repeat(events: list[Json], at: int, rng: random.Random) -> None:
    events.insert(rng.randint(0, len(events)), copy.deepcopy(events[at]))


def _move(events: list[Json], at: int, rng: random.Random) -> None:
    events.insert(rng.randint(0, len(events) - 1), events.pop(at))


def _shift(events: list[Json], at: int, rng: random.Random) -> None:
    by_ms = rng.choice((-5_000, -500, -20, -1, 1, 20, 500, 5_000))
    for event in events[at : at + rng.randint(1, 12)]:
        shifted = int(float(event.get("timestamp") or 0)) + by_ms
        event["timestamp"] = str(shifted) if isinstance(event.get("timestamp"), str) else shifted


def _reword(events: list[Json], at: int, rng: random.Random) -> None:
    event, text = events[at], rng.choice(TEXTS)
    if isinstance(event.get("value"), str):
        event["value"] = text
    for name in {"frame", "text"} & set(event.get("data") or ()):
        event["data"][name] = text


def _sound(events: list[Json], at: int, rng: random.Random) -> None:
    event = events[at]
    if "user" in event:
        event["user"] = rng.choice((event["user"], *ROLES))
    if "audio_timestamp" in event:
        event["audio_timestamp"] += rng.choice((-2, -0.001, 0, 0.5))
        event["event_type"] = rng.choice((event["event_type"], "audio_start", "audio_end"))


DAMAGES: Final[tuple[Callable[[list[Json], int, random.Random], None], ...]] = (
    _drop,
    _cut,
    _repeat,
    _move,
    _shift,
    _reword,
    _sound,
)


def damaged(call: Json, rng: random.Random) -> Json:
    """A copy of a call with up to a dozen faults in its streams; EVA numbers the caller's events,
    so they are numbered again.
    """
    call = copy.deepcopy({name: value for name, value in call.items() if name != "expected"})
    for _ in range(rng.choice((1, 1, 2, 3, 5, 12))):
        events = call[rng.choice(STREAMS)]
        if events:
            rng.choice(DAMAGES)(events, rng.randrange(len(events)), rng)
    call["pipeline_type"] = rng.choice((call["pipeline_type"],) * 5 + ("cascade", "s2s"))
    call["conversation_ended_reason"] = rng.choice(REASONS)
    for number, event in enumerate(call["user_sim"] or (), 1):
        if "sequence" in event:
            event["sequence"] = number
    return call


@pytest.fixture
def eva() -> Iterator[Callable[[Json], Json | None]]:
    """EVA's context of a call; None where EVA fails."""
    folder = Path(os.environ.get("EVA_DIR") or os.devnull)
    if not (folder / "src" / "eva").is_dir():
        pytest.skip(f"{MISSING}{NO_EVA}")
    command = [python_with(*BESIDE_EVA), "-W", "ignore", PROGRAMS / "eva_processor.py", folder]
    with subprocess.Popen(
        [*map(str, command), "contexts"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def context(call: Json) -> Json | None:
            asked.write(json.dumps(call) + "\n")
            asked.flush()
            answer: Json | None = json.loads(answers.readline())
            return answer

        yield context
        asked.close()


@pytest.mark.long
def test_damaged_calls_have_the_context_of_eva(eva: Callable[[Json], Json | None]) -> None:
    calls = [call for name in FILES for call in wire_calls(conformance(name))]
    fields = [name for name in calls[0]["expected"] if name != "is_audio_native"]
    rng = random.Random(CALLS)  # noqa: S311  # the same calls each time, nothing secret
    compared, wrong = 0, []
    for number in range(CALLS):
        call = damaged(rng.choice(calls), rng)
        expected = eva({**call, "fields": fields}) if call["audit"] else None
        if expected is None:
            continue
        compared += 1
        order = in_random_order(call, number) if number % 2 else in_time_order(call)
        context = context_of(
            arrivals_of(call, order), call["pipeline_type"], call["conversation_ended_reason"]
        )
        found = differences({**call, "expected": expected}, plain(context))
        wrong += [f"call {number} of {call['id']}: {each}"[:600] for each in found]
    assert compared > CALLS / 2
    assert wrong == [], f"{len(wrong)} fields differ"
