"""Scenes on a real Kafka in which a clock would take delay for silence: sequencer and evaluator
restart, stand still, catch up, wait.

What comes out is compared with a fold of the inputs alone, by the broker's times, as if nothing had
happened: the same calls are closed for the same reasons, the same silences are dead air, the same
latencies are counted under the same agents. Calls with a silence of 2.9 or 3.1 s have 0 or 1, as
their own times say. `SCENE_SECONDS` sets how long the long stop lasts.
"""

import asyncio
import json
import os
import random
import signal
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord

from consumers.engine.limits import Limits
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import CloseReason, InputSource
from schemas.log import Event, Tick, placed_in
from schemas.rows import CallRow, Row, TurnRow, number
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC, TOPIC_BY_SOURCE
from tests.chaos.load.call_pool import CallTemplate, make_pool
from tests.chaos.load.silences import (
    LENGTHS_MS,
    LONG_MS,
    NAME_START,
    Silence,
    SilenceTimes,
    silence_name,
)
from tests.chaos.verdict.undisturbed import undisturbed
from tests.chaos.verdict.verdict import limits_of
from tests.integration.processes import Process, started
from tests.integration.score_log import closed_rows, records_on, rows_in
from tests.support.brokers.backlog import CALL_SOURCES, Sent, put_backlog
from tests.support.sequencer_process import sequencer

IDLE_SECONDS: Final = 5
"""Shorter than each stop, and longer than the longest silence of a call that goes on."""
SETTLED_SECONDS: Final = 3.0
"""How long calls go on before a stop and after it."""
DEAD_AIR_MS: Final = Limits().dead_air_ms
AGENTS: Final = ("desk", "night-desk", "clinic")
STEADY_CALLS: Final = 12
HUNG_UP_CALLS: Final = 3
ROUND_SECONDS: Final = 1.0
"""From one round of calls with a silence to the next."""
TICK_MS: Final = 500
WAIT_SECONDS: Final = 60
AWAY_SECONDS: Final = 6
"""For so long no sequencer runs between two: longer than a call may be idle."""
STOP_SECONDS: Final = 8
LONG_STOP_SECONDS: Final = float(os.environ.get("SCENE_SECONDS", "60"))
BACKLOG_MS: Final = 600_000
SIMULATED_CALLS: Final = 20
PARTITIONS: Final = 4

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.service(
        limits__idle_ms=str(IDLE_SECONDS * 1_000),
        limits__closing_grace_ms="1000",
        # so that a silence of a little more than 3 s is dead air
        limits__delivery_allowance_ms="0",
    ),
]

Start = Callable[[str], Process]


def exchange(at_ms: int) -> Iterator[tuple[int, InputSource, bytes]]:
    """A question and its answer, 0.8 s later, of which nothing is dead air: when each event is, its
    input and its bytes.
    """
    for after_ms, kind in (
        (0, "user_speech_started"),
        (400, "user_speech_stopped"),
        (1_200, "bot_speech_started"),
        (1_600, "bot_speech_stopped"),
    ):
        time_ms = at_ms + after_ms
        event = {
            "type": "speech_event",
            "timestamp": time_ms,
            "data": {"kind": kind, "timestamp": time_ms / 1_000},
        }
        yield time_ms, InputSource.PIPECAT, json.dumps(event).encode()


EXCHANGE_MS: Final = 2_000


def begun(at_ms: int, agent: str) -> tuple[int, InputSource, bytes]:
    """Only the audit log knows the agent."""
    event = {"type": "call_started", "timestamp": at_ms, "agent": agent}
    return at_ms, InputSource.AUDIT, json.dumps(event).encode()


def over(at_ms: int) -> tuple[int, InputSource, bytes]:
    event = {"type": "call_ended", "timestamp": at_ms, "reason": "goodbye"}
    return at_ms, InputSource.AUDIT, json.dumps(event).encode()


class Player:
    """Plays calls at the present, at their own pace, until nobody wants more.

    Attributes:
        names: Of the calls that have begun.
        steady: Of those that go on from the beginning to the end.
        hung_up: Of those that stop in the middle, with nothing that says so.
        is_over: Set when no further call begins and all come to an end.
    """

    def __init__(self, producer: AIOKafkaProducer, prefix: str) -> None:
        self.names: list[str] = []
        self.steady: list[str] = []
        self.hung_up: list[str] = []
        self.is_over = asyncio.Event()
        self._producer = producer
        self._prefix = prefix

    async def play_steady(self, number: int) -> None:
        name = self._begin(f"steady-{number}", self.steady)
        await self._play(name, [begun(wall_clock_ms(), AGENTS[number % len(AGENTS)])])
        while not self.is_over.is_set():
            await self._play(name, [*exchange(wall_clock_ms())], pause_ms=EXCHANGE_MS - 1_600)
        await self._play(name, [over(wall_clock_ms())])

    async def play_hung_up(self, number: int) -> None:
        name = self._begin(f"hung-up-{number}", self.hung_up)
        await self._play(name, [begun(wall_clock_ms(), AGENTS[0]), *exchange(wall_clock_ms())])

    async def play_silences(self) -> None:
        """A round of calls with a silence of each length every second."""
        async with asyncio.TaskGroup() as tasks:
            number = 0
            while not self.is_over.is_set():
                for _ in LENGTHS_MS:
                    tasks.create_task(self._play_silence(number))
                    number += 1
                await asyncio.sleep(ROUND_SECONDS)

    async def play_simulated(self, number: int, call: CallTemplate, after_seconds: float) -> None:
        """A simulated call; it ends early if it must."""
        await asyncio.sleep(after_seconds)
        name = self._begin(f"call-{number}")
        begin_ms = wall_clock_ms()
        for event in call.events:
            wait_ms = begin_ms + event.after_ms - wall_clock_ms()
            if self.is_over.is_set():
                await self._play(name, [over(wall_clock_ms())])
                return
            await asyncio.sleep(max(0, wait_ms) / 1_000)
            await self._send(
                name, InputSource(event.source), event.rendered(begin_ms // 1_000, name.encode())
            )

    async def _play_silence(self, number: int) -> None:
        name = self._begin(silence_name(number))
        silence = Silence(number)
        wait_ms: int | None = 0
        while wait_ms is not None:
            await asyncio.sleep(wait_ms / 1_000)
            source, value = silence.event(wall_clock_ms())
            await self._send(name, InputSource(source), value)
            wait_ms = silence.wait_ms

    def _begin(self, name: str, *kinds: list[str]) -> str:
        for names in (self.names, *kinds):
            names.append(name)
        return name

    async def _play(
        self, name: str, events: Iterable[tuple[int, InputSource, bytes]], pause_ms: int = 0
    ) -> None:
        for at_ms, source, value in events:
            await asyncio.sleep(max(0, at_ms - wall_clock_ms()) / 1_000)
            await self._send(name, source, value)
        await asyncio.sleep(pause_ms / 1_000)

    async def _send(self, name: str, source: InputSource, value: bytes) -> None:
        await self._producer.send(self._prefix + TOPIC_BY_SOURCE[source], value, key=name.encode())


@asynccontextmanager
async def steady_calls(
    producer: AIOKafkaProducer, environment: dict[str, str]
) -> AsyncIterator[Player]:
    """Calls that go on while the body runs; at the end all of them are over, but those that hung
    up.
    """
    player = Player(producer, environment["CALLGAUGE_TOPIC_PREFIX"])
    async with asyncio.TaskGroup() as tasks:
        for number in range(STEADY_CALLS):
            tasks.create_task(player.play_steady(number))
        for number in range(HUNG_UP_CALLS):
            tasks.create_task(player.play_hung_up(number))
        tasks.create_task(player.play_silences())
        await asyncio.sleep(SETTLED_SECONDS)
        yield player
        await asyncio.sleep(SETTLED_SECONDS)
        player.is_over.set()
    await producer.flush()


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a role in a process of its own, and returns when it works; all are killed
    at the end.
    """
    with ExitStack() as running:

        def start_one(role: str) -> Process:
            output = tmp_path / f"{role}-{time.monotonic_ns()}.log"
            process = running.enter_context(started(output, "run", "--roles", role, **environment))
            process.printed(
                {"sequencer": "sequencer_active", "evaluator": "evaluator_ready"}[role],
                WAIT_SECONDS,
            )
            return process

        yield start_one


# --- what came out, and what had to
# -----------------------------------------------------------------------------------


class Told(NamedTuple):
    """The contents of `scores` by call, each list in order.

    Attributes:
        closed: Calls, with the reason and the number of turns.
        dead_airs: Calls, and since when nobody spoke.
        counted: Calls, turns and agents of latencies, each as it was when its turn was counted.
        latencies: Calls, turns and the latencies in the end.
    """

    closed: list[tuple[str, CloseReason, str | None, int]]
    dead_airs: list[tuple[str, int]]
    counted: list[tuple[str, int, str]]
    latencies: list[tuple[str, int, float]]


def told(rows: Sequence[Row]) -> Told:
    turns = {
        (row.conversation_id, row.turn): row for row in rows if isinstance(row, TurnRow)
    }  # a call is in one partition
    closed = [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]
    return Told(
        sorted(
            (
                row.conversation_id,
                row.close_reason or CloseReason.ENDED,
                row.ended_reason,
                row.turns,
            )
            for row in closed
        ),
        sorted((call, each.since_ms) for (call, _), row in turns.items() for each in row.dead_air),
        sorted(
            (row.conversation_id, row.turn, row.labels.agent)
            for row in rows
            if isinstance(row, TurnRow) and "wait" in row.news
        ),
        sorted(
            (*turn, wait_ms)
            for turn, row in turns.items()
            if (wait_ms := number(row.wait_ms)) is not None
        ),
    )


Inputs = dict[InputSource, list[ConsumerRecord]]
"""All records of the inputs, partition by partition."""


async def inputs_of(environment: dict[str, str]) -> Inputs:
    return {
        source: await records_on(environment, TOPIC_BY_SOURCE[source]) for source in CALL_SOURCES
    }


def as_live(inputs: Inputs, limits: Limits) -> Told:
    """Returns the result of an evaluator that never stops and reads each record at its
    broker time.
    """
    arrived = sorted(
        ((source, record) for source, records in inputs.items() for record in records),
        key=lambda each: each[1].timestamp,
    )
    known_ms = arrived[0][1].timestamp
    log: list[Event | Tick] = []
    for place, (source, record) in enumerate(arrived):
        while known_ms + TICK_MS <= record.timestamp:
            known_ms += TICK_MS
            log.append(Tick.of(0, known_ms, {}))
        log.append(
            Event(
                TOPIC_BY_SOURCE[source],
                record.partition,
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                record.headers,
                source,
                0,
                0,
                place,
            )
        )
    return told(undisturbed(log, limits).rows)


async def require_as_live(environment: dict[str, str], names: Sequence[str]) -> tuple[Told, Inputs]:
    """Waits until all calls are closed, and checks that their scores are those of an evaluator that
    never stops.
    """
    assert (await closed_rows(environment, len(names), WAIT_SECONDS)).keys() == set(names)
    scores = await records_on(environment, SCORES_TOPIC)
    found = told(rows_in(each.value for each in scores))
    inputs = await inputs_of(environment)
    expected = as_live(inputs, limits_of(environment))
    assert (found.closed, found.dead_airs) == (expected.closed, expected.dead_airs)
    assert (found.counted, found.latencies) == (expected.counted, expected.latencies)
    return found, inputs


def require_silences(found: Told, inputs: Inputs, first_ms: int, last_ms: int) -> None:
    """Each call with a silence of a known length has the dead airs that its own times say, those
    inside this time too.
    """
    times = SilenceTimes()
    for records in inputs.values():
        for each in records:
            if (name := each.key.decode()).startswith(NAME_START):
                times.take(name, each.value, each.timestamp)
    dead_airs = Counter(name for name, _ in found.dead_airs)
    within: Counter[int] = Counter()
    for name, lengths_ms in times.silences_ms().items():
        count = sum(each >= DEAD_AIR_MS for each in lengths_ms)
        assert dead_airs[name] == count, times.told(name)
        came_ms = times.came_ms(name)
        within[count] += first_ms < min(came_ms) and max(came_ms) < last_ms
    assert within[0] >= 2, "calls without dead air that lie in the gap whole"
    assert within[1] >= 2, "calls with dead air that lie in the gap whole"


def require_steady(player: Player, found: Told, inputs: Inputs) -> None:
    """No call that went on has dead air or is closed as idle; each that hung up is closed so.

    Where this process had no processor for seconds, a call did not go on.
    """
    came_ms: dict[str, list[int]] = {}
    for each in chain(*inputs.values()):
        came_ms.setdefault(each.key.decode(), []).append(each.timestamp)
    went_on = {
        name
        for name in player.steady
        if max(after - before for before, after in pairwise(sorted(came_ms[name]))) < DEAD_AIR_MS
    }
    assert went_on
    assert not {name for name, _ in found.dead_airs} & went_on
    idle = {name for name, reason, *_ in found.closed if reason is CloseReason.IDLE}
    assert not idle & went_on
    assert set(player.hung_up) <= idle
    assert {agent for name, _, agent in found.counted if name in went_on} <= set(AGENTS)


async def longest_pause_ms(environment: dict[str, str]) -> int:
    """The longest time in which nothing was appended to the log."""
    stamps_ms: list[int] = sorted(
        each.timestamp for each in await records_on(environment, EVENTS_TOPIC)
    )
    return max(after - before for before, after in pairwise(stamps_ms))


# --- the scenes
# -------------------------------------------------------------------------------------------------------


async def test_a_sequencer_that_is_killed_or_stopped_and_started_again_is_no_silence(
    environment: dict[str, str], producer: AIOKafkaProducer, start: Start
) -> None:
    running = await asyncio.to_thread(start, "sequencer")
    await asyncio.to_thread(start, "evaluator")
    async with steady_calls(producer, environment) as player:
        first_ms = wall_clock_ms()
        for number in (signal.SIGKILL, signal.SIGTERM):
            await asyncio.to_thread(running.signalled, number)
            await asyncio.sleep(AWAY_SECONDS)
            running = await asyncio.to_thread(start, "sequencer")
            last_ms = wall_clock_ms()
            await asyncio.sleep(SETTLED_SECONDS)
    found, inputs = await require_as_live(environment, player.names)
    require_steady(player, found, inputs)
    require_silences(found, inputs, first_ms, last_ms)
    assert await longest_pause_ms(environment) > AWAY_SECONDS * 1_000


@pytest.mark.parametrize(
    "seconds", [STOP_SECONDS, pytest.param(LONG_STOP_SECONDS, marks=pytest.mark.long)]
)
async def test_calls_go_on_while_sequencer_and_evaluator_are_away(
    environment: dict[str, str], producer: AIOKafkaProducer, start: Start, seconds: float
) -> None:
    running = [await asyncio.to_thread(start, role) for role in ("sequencer", "evaluator")]
    async with steady_calls(producer, environment) as player:
        first_ms = wall_clock_ms()
        for process in running:
            await asyncio.to_thread(process.signalled, signal.SIGTERM)
        await asyncio.sleep(seconds)
        last_ms = wall_clock_ms()
        for role in ("sequencer", "evaluator"):
            await asyncio.to_thread(start, role)
    found, inputs = await require_as_live(environment, player.names)
    require_steady(player, found, inputs)
    require_silences(found, inputs, first_ms, last_ms)
    assert await longest_pause_ms(environment) > seconds * 1_000


class Line:
    """A call told by hand, at times of the past: its records, one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[Sent] = []

    def put(self, events: Iterable[tuple[int, InputSource, bytes]]) -> None:
        partition = zlib.crc32(self.name.encode()) % PARTITIONS
        self.sent += [
            Sent(source, self.name, value, partition, at_ms) for at_ms, source, value in events
        ]


def line_of(name: str, begin_ms: int, *pauses_ms: int, ends: bool = True) -> Line:
    """A call with an exchange before, between and after these pauses."""
    line = Line(name)
    line.put([begun(begin_ms, AGENTS[0])])
    at_ms = begin_ms + 100
    for pause_ms in (0, *pauses_ms):
        at_ms += pause_ms
        line.put(exchange(at_ms))
        at_ms += EXCHANGE_MS
    line.put([over(at_ms)] if ends else [])
    return line


def silence_line(number: int, begin_ms: int) -> Line:
    line, silence, at_ms = Line(silence_name(number)), Silence(number), begin_ms
    wait_ms: int | None = 0
    while wait_ms is not None:
        at_ms += wait_ms
        source, value = silence.event(at_ms)
        line.put([(at_ms, InputSource(source), value)])
        wait_ms = silence.wait_ms
    return line


def simulated_line(number: int, begin_ms: int, call: CallTemplate) -> Line:
    line = Line(f"call-{number}")
    line.put(
        (
            begin_ms + each.after_ms,
            InputSource(each.source),
            each.rendered(begin_ms // 1_000, line.name.encode()),
        )
        for each in call.events
    )
    return line


def backlog_lines(begin_ms: int, limits: Limits) -> list[Line]:
    """Calls of ten minutes, all over by the end: simulated ones, those with a silence, and those
    that are quiet for minutes.
    """
    rng = random.Random(7)  # noqa: S311  # a reproducible backlog, nothing secret
    pool = make_pool(7, SIMULATED_CALLS)
    quiet_ms = limits.idle_ms - 20_000
    return [
        *(
            simulated_line(number, begin_ms + rng.randrange(BACKLOG_MS - call.duration_ms), call)
            for number, call in enumerate(pool)
        ),
        *(silence_line(number, begin_ms + number * BACKLOG_MS // 41) for number in range(40)),
        line_of("on-hold", begin_ms + 5_000, quiet_ms),
        line_of("hung-up", begin_ms + 7_000, ends=False),
        line_of("back-after-idle", begin_ms + 9_000, limits.idle_ms + 20_000),
    ]


@pytest.mark.service(partitions=PARTITIONS, limits__delivery_allowance_ms="0")
async def test_a_backlog_of_ten_minutes_tells_what_was_told_live(
    environment: dict[str, str], bootstrap: str, topic_prefix: str, start: Start
) -> None:
    lines = backlog_lines(wall_clock_ms() - BACKLOG_MS - 20_000, limits_of(environment))
    records = sorted((each for line in lines for each in line.sent), key=lambda each: each.at_ms)
    await asyncio.to_thread(put_backlog, bootstrap, topic_prefix, records)
    for role in ("evaluator", "sequencer"):
        await asyncio.to_thread(start, role)
    found, _ = await require_as_live(environment, [line.name for line in lines])
    reasons = {name: reason for name, reason, *_ in found.closed}
    assert reasons["on-hold"] is CloseReason.ENDED
    assert reasons["hung-up"] is reasons["back-after-idle"] is CloseReason.IDLE
    dead_airs = Counter(name for name, _ in found.dead_airs)
    for place in range(40):
        assert dead_airs[silence_name(place)] == (LENGTHS_MS[place % len(LENGTHS_MS)] == LONG_MS)


@pytest.mark.service(limits__closing_grace_ms="1000", limits__delivery_allowance_ms="0")
@pytest.mark.parametrize("seconds", [6, pytest.param(20, marks=pytest.mark.long)])
async def test_an_input_that_is_read_later_than_the_others_takes_no_agent_from_a_latency(
    environment: dict[str, str],
    producer: AIOKafkaProducer,
    start: Start,
    tmp_path: Path,
    seconds: float,
) -> None:
    """The agent of a call stands in the audit log alone, which the sequencer gets up to so many
    seconds later.
    """
    behind = {"topic": TOPIC_BY_SOURCE[InputSource.AUDIT], "seconds": seconds}
    bootstrap, prefix = environment["CALLGAUGE_BOOTSTRAP"], environment["CALLGAUGE_TOPIC_PREFIX"]
    with sequencer(tmp_path / "sequencer.log", bootstrap, prefix, behind=behind) as running:
        await asyncio.to_thread(running.term)
        await asyncio.to_thread(start, "evaluator")
        player = Player(producer, prefix)
        played_seconds = 3 * seconds + 4
        async with asyncio.TaskGroup() as tasks:
            for number, call in enumerate(make_pool(3, SIMULATED_CALLS)):
                after_seconds = played_seconds * number / SIMULATED_CALLS
                tasks.create_task(player.play_simulated(number, call, after_seconds))
            for number in range(STEADY_CALLS):
                tasks.create_task(player.play_steady(number))
            tasks.create_task(player.play_silences())
            await asyncio.sleep(played_seconds)
            player.is_over.set()
        await producer.flush()
        found, inputs = await require_as_live(environment, player.names)
    assert len(found.counted) > STEADY_CALLS
    assert "unknown" not in {agent for *_, agent in found.counted}
    require_steady(player, found, inputs)
    late_ms = [
        record.timestamp - placed.origin.time_ms
        for record in await records_on(environment, EVENTS_TOPIC)
        if (placed := placed_in(record.headers)) is not None
        and placed.origin.source is InputSource.PIPECAT
    ]
    assert max(late_ms) > 800 * seconds, "the others waited for it"
