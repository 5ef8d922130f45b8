"""The story of the demo, as data: who calls whom, which version is deployed when, and what the last
24 hours were like. Pure: times in, calls and steps out.
"""

import asyncio
import heapq
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from consumers.engine.limits import Price
from schemas.units import HOUR_MS, MS_PER_SECOND
from streamer.sources.replay import PlayedCall
from streamer.sources.simulator.profile import USUAL, Incident, IncidentName, with_incidents
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call, simulated_traffic

IN_TROUBLE: Final = "internet-outage"
"""The agent of which a bad version is deployed, beside three agents without trouble."""
GOOD, BAD = "v1", "v2"
"""Its versions."""
TRIED_BY: Final = "airline-rebooking"
"""The agent of which a bad version was tried in the last two days: v2 above has no call before it
is deployed.
"""
USUAL_VERSION, TRIED = "v4", "v5"
"""Its versions."""
ENVIRONMENT: Final = "demo"


class Step(NamedTuple):
    """One step of the story.

    Attributes:
        at_seconds: When it comes, in seconds after the beginning.
        version: The version of `IN_TROUBLE` that takes calls which begin from then on.
        trouble: What calls of its bad version suffer from then on, those that have begun too; None
            for nothing.
        sentence: What a person is told.
        view: Where it is seen: what follows the address of the page.
    """

    at_seconds: int
    version: str
    trouble: IncidentName | None
    sentence: str
    view: str = f"?agent={IN_TROUBLE}"


STORY: Final = (
    Step(0, GOOD, None, f"All agents are well. {BAD} of {IN_TROUBLE} comes in 25 s.", ""),
    Step(25, BAD, "llm_slow", f"{BAD} of {IN_TROUBLE} is deployed. Its answers come 5 s late."),
    Step(75, BAD, "agent_mute", f"{BAD} gives no answer any more, and its callers hang up."),
    Step(150, GOOD, "agent_mute", f"{BAD} is rolled back: new calls get {GOOD}."),
    Step(
        260,
        GOOD,
        None,
        f"{IN_TROUBLE} is well again. Its versions are compared, as those of {TRIED_BY}.",
        "versions",
    ),
)
"""For a visitor of three to five minutes."""


async def tell(
    say: Callable[[Step], None],
    began_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Says each step of the story when it is due, and one that is late at once.

    Args:
        say: Called with the step.
        began_seconds: When the story began, by the clock.
        clock: Seconds, monotonic.
        sleep: Waits for seconds.
    """
    for step in STORY:
        while (left_seconds := began_seconds + step.at_seconds - clock()) > 0:
            await sleep(left_seconds)
        say(step)


# The calls of the story.

STAGGER_MS: Final = 5_000
"""From the first call of a line to that of the next one."""


class PhoneLine(NamedTuple):
    """A line on which one call follows the other.

    Attributes:
        agent: Who answers.
        tenant: Whose agent it is.
        version: Of the agent; None for the one that the story says.
    """

    agent: str
    tenant: str
    version: str | None = None


LINES: Final = (
    PhoneLine(IN_TROUBLE, "fjordnet"),
    PhoneLine(TRIED_BY, "larkwing", USUAL_VERSION),
    PhoneLine(IN_TROUBLE, "fjordnet-business"),
    PhoneLine("pharmacy-refill", "birchwood", "v2"),
    PhoneLine(IN_TROUBLE, "fjordnet"),
    PhoneLine("library-desk", "city-library", "v3"),
)
"""The first lines of the demo; more are the same again."""


def live_calls(
    seed: int, concurrent_calls: int, began_ms: int, story_ms: int
) -> Iterator[PlayedCall]:
    """The calls of the demo in the order in which they start, made lazily and without an end.

    Args:
        seed: Decides all calls.
        concurrent_calls: Number of lines.
        began_ms: When the first call starts, in epoch ms.
        story_ms: When the story begins; calls from before are those of its first step.
    """
    lines = (
        _calls_of(
            line,
            place * STAGGER_MS,
            seed=seed + place,
            concurrent_calls=len(range(place, concurrent_calls, len(LINES))),
            began_ms=began_ms,
            story_ms=story_ms,
        )
        for place, line in enumerate(LINES[:concurrent_calls])
    )
    return heapq.merge(*lines, key=lambda call: call.start_offset_ms)


def _calls_of(
    line: PhoneLine,
    later_ms: int,
    *,
    seed: int,
    concurrent_calls: int,
    began_ms: int,
    story_ms: int,
) -> Iterator[PlayedCall]:
    for call in simulated_traffic(
        seed,
        concurrent_calls=concurrent_calls,
        start_ms=began_ms + later_ms,
        of_start=partial(_as_deployed, line, story_ms),
        agents=(line.agent,),
        tenant=line.tenant,
        environment=ENVIRONMENT,
    ):
        yield replace(call, start_offset_ms=call.start_offset_ms + later_ms)


def _as_deployed(line: PhoneLine, story_ms: int, start_ms: int) -> Mapping[str, Any]:
    """The version that a call which starts then gets, and how well that does."""
    since_seconds = (start_ms - story_ms) / MS_PER_SECOND
    deployed = [step.version for step in STORY if step.at_seconds <= since_seconds]
    version = line.version or (deployed or [GOOD])[-1]
    is_bad = line.version is None and version == BAD
    profile_of = with_incidents(USUAL, troubles_from(story_ms) if is_bad else ())
    return {"version": version, "profile_of": profile_of}


def troubles_from(story_ms: int) -> list[Incident]:
    """The troubles of the bad version, if the story begins at this epoch millisecond."""
    times_ms = [story_ms + step.at_seconds * MS_PER_SECOND for step in STORY]
    return [
        Incident(step.trouble, IN_TROUBLE, begins_ms, ends_ms)
        for step, begins_ms, ends_ms in zip(STORY, times_ms, [*times_ms[1:], None], strict=True)
        if step.trouble is not None
    ]


# The last two days.


class EarlierCalls(NamedTuple):
    """Calls of the last two days.

    Attributes:
        agent: Who answered.
        tenant: Whose agent it was.
        version: Its version.
        calls: How many.
        hours_ago: Before how many hours the first and the last of them began, at most and at least.
        troubles: What they suffered from.
    """

    agent: str
    tenant: str
    version: str
    calls: int
    hours_ago: tuple[int, int] = (50, 1)
    troubles: tuple[IncidentName, ...] = ()


LAST_DAYS: Final = (
    EarlierCalls(TRIED_BY, "larkwing", USUAL_VERSION, 45),
    EarlierCalls(TRIED_BY, "larkwing-holidays", USUAL_VERSION, 35),
    EarlierCalls(TRIED_BY, "larkwing", TRIED, 25, (9, 4), ("tts_slow",)),
    EarlierCalls(TRIED_BY, "larkwing", TRIED, 8, (5, 4), ("agent_mute",)),
    EarlierCalls(
        TRIED_BY, "larkwing-holidays", TRIED, 17, (9, 4), ("tts_slow", "tool_backend_fails")
    ),
    EarlierCalls(IN_TROUBLE, "fjordnet", GOOD, 30),
    EarlierCalls("pharmacy-refill", "birchwood", "v2", 20),
    EarlierCalls("library-desk", "city-library", "v3", 20),
)
"""The bad version was tried for some hours: slower, for one tenant without its tools, for the other
mute at last.
"""


def last_days(seed: int, now_ms: int) -> Iterator[SimulatedCall]:
    """The calls of the last two days, in the order in which they began, made lazily.

    Args:
        seed: Decides all calls.
        now_ms: The present, in epoch ms.
    """
    rng = random.Random(f"yesterday {seed}")  # noqa: S311 - play, not secrets
    begun = sorted(
        (now_ms - round(rng.uniform(*lot.hours_ago) * HOUR_MS), place)
        for place, lot in enumerate(LAST_DAYS)
        for _ in range(lot.calls)
    )
    for start_ms, place in begun:
        lot = LAST_DAYS[place]
        yield simulate_call(
            rng.getrandbits(40),
            start_ms=start_ms,
            agents=(lot.agent,),
            tenant=lot.tenant,
            environment=ENVIRONMENT,
            version=lot.version,
            profile_of=with_incidents(USUAL, [Incident(name) for name in lot.troubles]),
        )


# What the models of the simulated agents cost.

PRICES: Final = {
    "gpt-4.1-mini": Price(input=0.4, cached=0.1, output=1.6),
    "gpt-realtime": Price(input=4, output=16),
    "nova-3": Price(audio_minute=0.008),
    "ink-whisper": Price(audio_minute=0.004),
    "sonic-3": Price(characters=40),
}
"""In US dollars, of the size that such models cost; your own are `limits.prices`."""
