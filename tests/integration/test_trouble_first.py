"""Two hundred calls of two tenants on a real Kafka: the few in trouble are on the screen at once,
above all others.
"""

import asyncio
import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from consumers.engine.limits import Limits
from consumers.runtime.process import wall_clock_ms
from streamer.live_calls import CallsOnScreen, calls_document
from streamer.settings.all_settings import Settings
from streamer.sources.publisher import publish_calls
from streamer.sources.replay import PlayedCall
from streamer.sources.simulator.profile import HEALTHY, Incident, IncidentName, with_incidents
from streamer.sources.simulator.traffic import simulated_traffic
from tests.integration.processes import Process, ended

HEALTHY_CALLS: Final = 190
SECONDS: Final = 45
ROWS: Final = 25
LOOKS_SECONDS: Final = 0.25
CALM: Final = replace(HEALTHY, features={})
REASONS: Final[Mapping[IncidentName, set[str]]] = {
    "agent_mute": {"mute", "silent"},
    "llm_slow": {"silent", "very_slow", "slow"},
}


def troubled(name: IncidentName, tenant: str, start_ms: int) -> list[PlayedCall]:
    """Five calls whose agent has this trouble from the start."""
    return list(
        simulated_traffic(
            len(name),
            concurrent_calls=5,
            start_ms=start_ms,
            kind="cascade",
            limit=5,
            tenant=tenant,
            environment="live",
            profile_of=with_incidents(CALM, [Incident(name)]),
        )
    )


def known_from_ms(row: Mapping[str, Any]) -> int:
    """When its trouble could be known: the silence has become dead air, or the answer was there
    (broker time in epoch ms).
    """
    known_ms: int = row["call"]["known_ms"]
    if "waiting" not in row["call"]:
        return known_ms
    since_ms: int = row["call"]["waiting"]["since_ms"]
    return since_ms + Limits().dead_air_ms


@pytest.mark.service(partitions=4)
@pytest.mark.parametrize("most_seconds", [math.inf, pytest.param(5.0, marks=pytest.mark.long)])
async def test_each_bad_call_is_among_the_first_rows(
    service: tuple[Process, str], environment: dict[str, str], most_seconds: float
) -> None:
    """Within five seconds, on a machine that does nothing else."""
    del service
    settings = Settings(
        bootstrap=environment["CALLGAUGE_BOOTSTRAP"],
        topic_prefix=environment["CALLGAUGE_TOPIC_PREFIX"],
    )
    start_ms = wall_clock_ms()
    bad: dict[IncidentName, list[PlayedCall]] = {
        "agent_mute": troubled("agent_mute", "acme", start_ms),
        "llm_slow": troubled("llm_slow", "bolt", start_ms),
    }
    due = {call.conversation_id: name for name, calls in bad.items() for call in calls}
    healthy = [
        simulated_traffic(
            7 + number,
            concurrent_calls=HEALTHY_CALLS // 2,
            start_ms=start_ms,
            limit=HEALTHY_CALLS // 2,
            tenant=tenant,
            environment="live",
            profile_of=with_incidents(CALM, []),
        )
        for number, tenant in enumerate(("acme", "bolt"))
    ]

    def traffic() -> Iterable[PlayedCall]:
        return heapq.merge(*bad.values(), *healthy, key=lambda call: call.start_offset_ms)

    watched = CallsOnScreen(start_ms)
    reading = asyncio.create_task(watched.read(settings.kafka))
    playing = asyncio.create_task(
        publish_calls(settings, "test", traffic, 1.0, show=lambda progress: None, seconds=SECONDS)
    )
    waits: dict[str, float] = {}
    misplaced: list[tuple[str, str]] = []
    most_running = 0
    while not playing.done():
        await asyncio.sleep(LOOKS_SECONDS)
        document = calls_document(watched, wall_clock_ms())
        rows: list[dict[str, Any]] = document["calls"]
        most_running = max(most_running, document["calls_running"])
        is_quiet = ""
        for row in rows:
            if not row["troubles"]:
                is_quiet = row["call"]["conversation_id"]
            elif is_quiet:
                misplaced.append((is_quiet, row["call"]["conversation_id"]))
        for row in rows[:ROWS]:
            name, key = due.get(row["call"]["conversation_id"]), row["call"]["conversation_id"]
            if name is not None and {each["kind"] for each in row["troubles"]} & REASONS[name]:
                waits.setdefault(key, (document["at_ms"] - known_from_ms(row)) / 1000)
    reading.cancel()
    await asyncio.gather(reading, playing, return_exceptions=True)
    assert len(due) == 10
    assert waits.keys() == due.keys()
    print(
        f"{len(due)} bad calls of {most_running} running: shown {min(waits.values()):.2f} to "
        f"{max(waits.values()):.2f} s after"
    )
    assert misplaced == []
    assert most_running > 0.8 * HEALTHY_CALLS
    assert max(waits.values()) <= most_seconds
    table = (await asyncio.to_thread(ended, "top", "--once", **environment)).out
    assert "in trouble" in table.splitlines()[0]
