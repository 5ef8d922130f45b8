"""Observers, and the sender alone, while the broker is away: no bot waits, nothing is lost within
the bound, and beyond it the loss is reported.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from aiokafka.errors import KafkaConnectionError
from callgauge_send import Call

from schemas.closed_sets import InputSource
from schemas.events.codec import UnrecognizedEvent, decode
from schemas.events.pipecat import EventsDropped
from tests.chaos.cluster import cluster as clusters
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.cluster.proxy import Way
from tests.integration.score_log import records_on
from tests.integration.test_livekit_observer import BESIDE, NEWEST, SESSION, figures_of
from tests.support.brokers.kafka_broker import NoBrokerError
from tests.support.brokers.topic_changes import create_topics
from tests.support.environments import python_with
from tests.support.observers import LIVEKIT, PYTHONPATH, SEND
from tests.support.patience import patient
from tests.support.required_tools import MISSING
from tests.tidy.source_tree import ROOT

pytestmark = pytest.mark.kafka

TOPIC: Final = "pipecat.events"
PLAYED: Final = "played"
EVENTS_OF_A_TURN: Final = 17
TURNS_OF_TEN_MINUTES: Final = 240
"""4,080 events: more than a call of ten minutes has."""
MOST_GROWN_MB: Final = 250.0
"""Of a process whose 200 calls have 2,000 events each waiting."""
PIECE_MS: Final = 20.0
"""Sound that a bot sends at a time. It stutters if its event loop computes for longer without
turning.
"""
BLOCKED_MS: Final = 200.0
"""Longest time for which the loop may stop for any reason, but for want of a processor."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with clusters.running(tmp_path_factory.mktemp("cluster"), 1) as running:
            yield running
    except NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")


def fleet(
    cluster: Cluster, name: str, *options: str, is_observed: bool = True
) -> "subprocess.Popen[str]":
    """A process with bots that reach the broker through a door of the proxy."""
    environment = {
        "PYTHONPATH": PYTHONPATH,
        "CALLGAUGE_BOOTSTRAP": cluster.bootstrap_through("left"),
        "CALLGAUGE_TOPIC_PREFIX": f"{name}.",
    }
    python = [sys.executable, "-W", "ignore", "-m", "tests.support.pipecat_bots.fleet"]
    command = [*python, *(["--observed"] if is_observed else []), "--silent", "--name", name]
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def livekit_session(cluster: Cluster, name: str, *options: str) -> "subprocess.Popen[str]":
    """A call of a real LiveKit session whose observer reaches the broker through a door of the
    proxy.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (SEND, LIVEKIT))),
        "CALLGAUGE_TOPIC_PREFIX": f"{name}.",
        "CALLGAUGE_BOOTSTRAP": cluster.bootstrap_through("left"),
    }
    python = python_with("livekit-agents", NEWEST, *BESIDE)
    return subprocess.Popen(
        [str(python), "-W", "ignore", str(SESSION), name, *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def many_senders(cluster: Cluster, name: str, *options: str) -> "subprocess.Popen[str]":
    """A process with 200 calls that send at a steady rate through a door of the proxy."""
    environment = {
        "PYTHONPATH": PYTHONPATH,
        "CALLGAUGE_BOOTSTRAP": cluster.bootstrap_through("left"),
        "CALLGAUGE_TOPIC_PREFIX": f"{name}.",
    }
    command = [sys.executable, "-m", "tests.support.many_senders", "--name", name, *options]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )


async def require_all_there_once(cluster: Cluster, name: str, figures: Mapping[str, Any]) -> None:
    """Checks that each event of `many_senders` is on the topic, in the order of its call, and none
    was lost or told as lost.
    """
    assert (figures["lost"], figures["is_whole"]) == (0, True), figures
    calls = await events(cluster, name)
    assert sum(map(len, calls.values())) == figures["sent"] + 2 * len(calls)
    for told in calls.values():
        numbers = [event["data"]["n"] for event in told[1:-1]]
        assert numbers == sorted(numbers)
        assert [told[0]["type"], told[-1]["type"]] == ["call_started", "call_ended"]
    assert figures["longest_send_ms"] < BLOCKED_MS


def require_no_delay(cluster: Cluster, observed: Mapping[str, float], *options: str) -> None:
    """Checks that bots with an observer are in time as the same bots without one are, but for less
    than a piece of sound.

    pipecat itself computes half as much again for any observer, which these bots feel because they
    all speak at the same moment.
    """
    output, _ = fleet(cluster, "unobserved", *options, is_observed=False).communicate(
        timeout=patient(120)
    )
    alone = json.loads(output.splitlines()[-1])
    assert observed["busy_max_ms"] < 1.5 * alone["busy_max_ms"] + PIECE_MS, (observed, alone)
    assert observed["delay_max_ms"] < alone["delay_max_ms"] + BLOCKED_MS, (observed, alone)


async def events(cluster: Cluster, name: str) -> dict[str, list[dict[str, Any]]]:
    """The events on the topic by call, each once."""
    through = {"CALLGAUGE_BOOTSTRAP": cluster.bootstrap_through("right")}
    found: dict[tuple[bytes, bytes, bytes], dict[str, Any]] = {}
    for record in await records_on(through, f"{name}.{TOPIC}"):
        headers = dict(record.headers)
        assert not isinstance(decode(InputSource.PIPECAT, record.value), UnrecognizedEvent)
        found[record.key, headers["ce_source"], headers["ce_id"]] = json.loads(record.value)
    by_call: dict[str, list[dict[str, Any]]] = {}
    for (key, _, _), event in found.items():
        by_call.setdefault(key.decode(), []).append(event)
    return by_call


async def make_topic(cluster: Cluster, name: str) -> None:
    """Makes the topic, once the broker answers through the door that no test shuts: its listeners
    open one after the other.
    """
    until = time.monotonic() + patient(30)
    while True:
        try:
            await create_topics(cluster.bootstrap_through("right"), {f"{name}.{TOPIC}": 4})
        except KafkaConnectionError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def wait_for_an_event(cluster: Cluster, name: str) -> None:
    """Waits until the broker has an event of the call: its sender is connected."""
    until = time.monotonic() + patient(60)
    while not await events(cluster, name):
        assert time.monotonic() < until, f"no event of {name}"
        await asyncio.sleep(0.05)


async def test_a_broker_that_is_away_at_the_start_costs_nothing(cluster: Cluster) -> None:
    await make_topic(cluster, "start")
    cluster.proxy.change("left", Way.REFUSED)
    bots = fleet(cluster, "start", "--bots", "20", "--turns", "20", "--pause", "0.5")
    time.sleep(6)  # noqa: ASYNC251 - the outage itself
    cluster.proxy.change("left", Way.OPEN)
    output, _ = bots.communicate(timeout=patient(120))
    figures = json.loads(output.splitlines()[-1])
    assert figures["lost"] == 0
    require_no_delay(cluster, figures, "--bots", "20", "--turns", "6", "--pause", "0.5")
    calls = await events(cluster, "start")
    assert len(calls) == 20
    for told in calls.values():
        assert [told[0]["type"], told[-1]["type"]] == ["call_started", "call_ended"]
        assert len(told) == 20 * EVENTS_OF_A_TURN + 2


async def test_a_record_that_the_topic_does_not_take_is_lost_alone(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap_through("right")
    await create_topics(bootstrap, {f"small.{TOPIC}": 1}, {"max.message.bytes": "20000"})
    calls = [
        Call(conversation_id=name, bootstrap_servers=bootstrap, topic_prefix="small.")
        for name in ("a", "b")
    ]
    for number in range(100):
        for call in calls:
            text = "ü" * 15_000 if (call, number) == (calls[0], 50) else f"word {number}"
            call.send("tts_text", data={"frame": text})
    for call in calls:
        await call.end("goodbye")
        async with asyncio.timeout(patient(30)):
            await call.outbox.is_empty.wait()
    assert [dict(call.lost) for call in calls] == [{"words": 1}, {}]
    told = await events(cluster, "small")
    every_word = [f"word {number}" for number in range(100)]
    for name, words in ("a", every_word[:50] + every_word[51:]), ("b", every_word):
        assert [
            event["data"]["frame"] for event in told[name] if event["type"] == "tts_text"
        ] == words
    (dropped,) = [event["data"] for event in told["a"] if event["type"] == "events_dropped"]
    assert dropped == {"words": 1}


@pytest.mark.long
@pytest.mark.parametrize("way", [Way.REFUSED, Way.HOLE])
async def test_half_a_minute_without_a_broker_loses_nothing(cluster: Cluster, way: Way) -> None:
    name = f"away-{way}"
    await make_topic(cluster, name)
    bots = fleet(cluster, name, "--bots", "50", "--turns", "30", "--pause", "1.5")
    time.sleep(8)  # noqa: ASYNC251 - the outage itself
    cluster.proxy.change("left", way)
    time.sleep(30)  # noqa: ASYNC251 - as above
    cluster.proxy.change("left", Way.OPEN)
    output, _ = bots.communicate(timeout=patient(180))
    figures = json.loads(output.splitlines()[-1])
    assert figures["lost"] == 0
    require_no_delay(cluster, figures, "--bots", "50", "--turns", "5", "--pause", "1.5")
    calls = await events(cluster, name)
    assert {len(told) for told in calls.values()} == {30 * EVENTS_OF_A_TURN + 2}
    assert len(calls) == 50


async def test_ten_minutes_without_a_broker_lose_metrics_alone_and_say_so(cluster: Cluster) -> None:
    await make_topic(cluster, "long")
    cluster.proxy.change("left", Way.REFUSED)
    bots = fleet(
        cluster,
        "long",
        "--bots",
        "4",
        "--turns",
        str(TURNS_OF_TEN_MINUTES),
        "--pause",
        "0.02",
        "--linger",
        "15",
    )
    assert bots.stdout is not None
    assert bots.stdout.readline().strip() == PLAYED  # ten minutes of events, sent in seconds
    cluster.proxy.change("left", Way.OPEN)
    output, _ = bots.communicate(timeout=patient(180))
    calls = await events(cluster, "long")
    assert len(calls) == 4
    happened = TURNS_OF_TEN_MINUTES * EVENTS_OF_A_TURN + 2
    lost = 0
    for told in calls.values():
        dropped = [
            EventsDropped.model_validate(event)
            for event in told
            if event["type"] == "events_dropped"
        ]
        counts = {what.value: count for record in dropped for what, count in record.dropped()}
        assert counts.keys() == {"metrics"}
        in_call = sum(count for record in dropped for _, count in record.dropped())
        assert in_call == happened - (len(told) - len(dropped))
        assert (
            len([event for event in told if event["type"] == "speech_event"])
            == TURNS_OF_TEN_MINUTES * 6
        )
        lost += in_call
    assert json.loads(output.splitlines()[-1])["lost"] == lost > 0


@pytest.mark.parametrize("outage", ["frozen", "killed"])
async def test_a_livekit_session_loses_nothing_while_its_broker_is_frozen_or_killed(
    cluster: Cluster, outage: str
) -> None:
    await make_topic(cluster, outage)
    turns = 20 if outage == "killed" else 8
    session = livekit_session(cluster, outage, "--turns", str(turns), "--pause", "1.5")
    time.sleep(5)  # noqa: ASYNC251 - the outage itself
    if outage == "killed":
        cluster.nodes[0].take_down(signal.SIGKILL)
        time.sleep(20)  # noqa: ASYNC251 - as above
        assert cluster.nodes[0].attend()
    else:
        cluster.proxy.change("left", Way.HOLE)
        time.sleep(15)  # noqa: ASYNC251 - as above
        cluster.proxy.change("left", Way.OPEN)
    output, errors = session.communicate(timeout=patient(120))
    (figures,) = figures_of(
        subprocess.CompletedProcess([], session.returncode, output, errors)
    ).values()
    assert (figures["lost"], figures["is_whole"]) == ({}, True)
    if outage == "killed":
        assert "callgauge: events cannot be sent to killed.pipecat.events" in errors
    cluster.wait_until_it_answers()
    (told,) = (await events(cluster, outage)).values()
    kinds = [event["data"]["kind"] for event in told if event["type"] == "speech_event"]
    assert kinds.count("user_speech_stopped") == turns
    assert kinds.count("bot_speech_stopped") == turns - 1  # the model fails once
    assert [told[0]["type"], told[-1]["type"]] == ["call_started", "call_ended"]


async def test_a_livekit_session_whose_broker_is_gone_ends_and_says_what_is_lost(
    cluster: Cluster,
) -> None:
    await make_topic(cluster, "gone")
    # A sender that is connected knows of an outage when its request has had its time, 10 s; three
    # such turns take nearly twice that.
    session = livekit_session(cluster, "gone", "--turns", "3", "--pause", "5.0")
    await wait_for_an_event(cluster, "gone")
    cluster.proxy.change("left", Way.REFUSED)
    try:
        # without a bound the end waits for ever
        output, errors = session.communicate(timeout=patient(120))
    finally:
        cluster.proxy.change("left", Way.OPEN)
    (figures,) = figures_of(
        subprocess.CompletedProcess([], session.returncode, output, errors)
    ).values()
    assert not figures["is_whole"]
    assert len(figures["e2e_ms"]) == 3
    assert "callgauge: events cannot be sent to gone.pipecat.events" in errors
    told = re.search(r"callgauge: (\d+) events of call gone were not acknowledged", errors)
    assert told is not None
    assert int(told[1]) > 0


@pytest.mark.parametrize(
    ("rate", "seconds", "before_seconds", "away_seconds", "least_sent"),
    [(2_000, 10, 4, 3, 0), pytest.param(10_000, 60, 15, 30, 590_000, marks=pytest.mark.long)],
)
async def test_thousands_of_events_a_second_survive_a_while_without_a_broker(
    cluster: Cluster,
    rate: int,
    seconds: int,
    before_seconds: int,
    away_seconds: int,
    least_sent: int,
) -> None:
    name = f"some-{rate}"
    await make_topic(cluster, name)
    senders = many_senders(cluster, name, "--rate", f"{rate}", "--seconds", f"{seconds}")
    time.sleep(before_seconds)  # noqa: ASYNC251 - the outage itself
    cluster.proxy.change("left", Way.REFUSED)
    time.sleep(away_seconds)  # noqa: ASYNC251 - as above
    cluster.proxy.change("left", Way.OPEN)
    output, _ = senders.communicate(timeout=patient(300))
    figures = json.loads(output.splitlines()[-1])
    assert figures["sent"] > least_sent
    assert figures["grown_mb"] < MOST_GROWN_MB
    await require_all_there_once(cluster, name, figures)
