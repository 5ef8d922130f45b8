"""Mistakes of a new user, on a real broker: refused with coordinates and a reason, without harm to
other calls.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Producer

from consumers.engine.limits import Limits
from consumers.runtime.kafka.batches import MAX_UNPACKED_BATCH_BYTES
from consumers.runtime.process import wall_clock_ms
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, GoalsRow, Row
from streamer.sources.replay import in_time_order, renamed, seconds_to_now, shifted
from streamer.sources.simulator.traffic import simulate_call
from tests.chaos.verdict.checker import said
from tests.integration.metrics_page import page, total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import closed_rows, newest_rows, written_rows
from tests.support.brokers.record_bytes import Written
from tests.support.brokers.record_bytes import batch as record_batch
from tests.support.brokers.topic_changes import configure_topic
from tests.support.patience import patient

MAX_RECORD_BYTES = 12_000_000
TOPICS = {"pipecat": "pipecat.events", "elevenlabs": "elevenlabs.events", "audit": "audit.events"}


def line(**fields: object) -> bytes:
    return json.dumps(
        {"type": "tts_text", "timestamp": wall_clock_ms(), "data": {"frame": "hello"}, **fields}
    ).encode()


def refused_records() -> dict[str, tuple[str, bytes | None, bytes | None]]:
    """Reason and fault: topic, key, value. Those with a key belong to the good call, and must not
    be felt in it.
    """
    now = wall_clock_ms()
    audio = {
        "event_type": "audio_start",
        "timestamp": now,
        "user": "assistant",
        "audio_timestamp": now / 1000,
    }
    return {
        "undecodable: broken JSON": ("pipecat", b"good", b'{"type": "tts_text", "timest'),
        "undecodable: not UTF-8": ("audit", b"good", b"\xff\xfe\x00"),
        "invalid_event: a list": ("audit", b"good", b"[1, 2]"),
        "undecodable: no value": ("pipecat", b"good", None),
        "undecodable: nested too deep": (
            "pipecat",
            b"good",
            b'{"type":"tts_text","data":' + b"[" * 5_000,
        ),
        "invalid_event: not a number": (
            "pipecat",
            b"good",
            b'{"type":"tts_text","timestamp":NaN,"data":{"frame":"x"}}',
        ),
        "undecodable: half a surrogate": (
            "pipecat",
            b"good",
            b'{"type":"tts_text","data":{"frame":"\\ud800"}}',
        ),
        "invalid_event: a deep text": (
            "pipecat",
            b"good",
            b'{"type":"tts_text","timestamp":1,"data":' + b"[" * 150 + b"]" * 150 + b"}",
        ),
        "invalid_event: time is null": ("pipecat", b"good", line(timestamp=None)),
        "invalid_event: a time of 400 digits": ("pipecat", b"good", line(timestamp=10**400)),
        "invalid_event: a sound at NaN": (
            "elevenlabs",
            b"good",
            json.dumps({**audio, "audio_timestamp": float("nan")}).encode(),
        ),
        "invalid_event: no text": ("pipecat", b"good", line(data={})),
        "invalid_event: a wrong type": ("pipecat", b"good", line(data={"frame": 7})),
        "invalid_event: no time": ("pipecat", b"good", b'{"type":"tts_text","data":{"frame":"x"}}'),
        "invalid_event: an infinite time": ("pipecat", b"good", line(timestamp=1e300)),
        "invalid_event: an infinite sound": (
            "elevenlabs",
            b"good",
            json.dumps({**audio, "audio_timestamp": 1e307}).encode(),
        ),
        "unknown_role: nobody we know": (
            "elevenlabs",
            b"good",
            json.dumps({**audio, "user": "robot"}).encode(),
        ),
        "text_too_long: a whole book": ("pipecat", b"good", line(data={"frame": "x" * 40_000})),
        "time_out_of_bounds: seconds for milliseconds": (
            "pipecat",
            b"good",
            line(timestamp=now // 1000),
        ),
        "time_out_of_bounds: true is 1": ("pipecat", b"good", line(timestamp=True)),
        "time_out_of_bounds: 1970": ("pipecat", b"good", line(timestamp=0)),
        "time_out_of_bounds: before 1970": ("pipecat", b"good", line(timestamp=-now)),
        "time_out_of_bounds: the year 3000": (
            "pipecat",
            b"good",
            line(timestamp=32_503_680_000_000),
        ),
        "empty_key: no key": ("pipecat", None, line()),
        "empty_key: an empty key": ("pipecat", b"", line()),
        "empty_key: an endless key": ("pipecat", b"k" * 5_000, line()),
        "record_too_large: ten megabytes": (
            "pipecat",
            b"good",
            line(data={"frame": "x" * 10_000_000}),
        ),
    }


UNFIT = 5
"""Of them, those that the sequencer refuses: it does not read values."""
MOST_EVENTS = Limits().max_events_per_call
ENDLESS = MOST_EVENTS + 18_000

pytestmark = pytest.mark.service(partitions=1)


@pytest.fixture
async def environment(environment: dict[str, str]) -> dict[str, str]:
    """Whose topic of pipecat takes records that are too large for us."""
    name = f"{environment['CALLGAUGE_TOPIC_PREFIX']}pipecat.events"
    await configure_topic(
        environment["CALLGAUGE_BOOTSTRAP"], name, max_message_bytes=str(MAX_RECORD_BYTES)
    )
    # Events after the end of a call must come within its grace, on a busy machine too.
    environment["CALLGAUGE_LIMITS__CLOSING_GRACE_MS"] = str(round(1_000 * patient(1)))
    return environment


@asynccontextmanager
async def producer(environment: dict[str, str]) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        max_request_size=MAX_RECORD_BYTES,
        linger_ms=5,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def put_quickly(environment: dict[str, str], records: Iterable[tuple[str, bytes, bytes]]) -> None:
    """Writes topics, keys and values to partition 0, with a client that takes a few microseconds
    for each.
    """
    settings = {"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"], "linger.ms": 20}
    client = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
    for topic, key, value in records:
        client.produce(topic, value, key, partition=0)
    assert client.flush(patient(60)) == 0


async def quarantined(environment: dict[str, str], number: int) -> list[QuarantineRecord]:
    """The first `number` records of the quarantine topic."""
    consumer = AIOKafkaConsumer(
        f"{environment['CALLGAUGE_TOPIC_PREFIX']}quarantine",
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async with asyncio.timeout(patient(20)):
            return [
                QuarantineRecord.model_validate_json((await consumer.getone()).value)
                for _ in range(number)
            ]
    finally:
        await consumer.stop()


OF_SILENCES = (
    *("dead_air", "dead_airs", "dead_air_turns", "waiting"),
    *("first_known_ms", "last_known_ms"),
)
"""Fields of what the broker's time decides as the call goes: sent in a burst, two calls need not
agree on it.
"""


def final_rows(rows: list[Row]) -> dict[str, list[dict[str, Any]]]:
    """The final rows of each call, turn by turn and the call last, without its id and its places in
    the log.
    """
    finals: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(
        newest_rows(rows),
        key=lambda row: (isinstance(row, CallRow), getattr(row, "turn", None) or 0),
    ):
        if not isinstance(row, GoalsRow):
            what = {
                name: value
                for name, value in said(row, is_one_log=False).items()
                if name not in OF_SILENCES
            }
            finals.setdefault(row.conversation_id, []).append(what)
    return finals


async def test_bad_records_are_refused_and_a_good_call_goes_on(
    service: tuple[Process, str], environment: dict[str, str]
) -> None:
    process, address = service
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    bad = refused_records()
    good = simulate_call(5, start_ms=0, kind="cascade").call
    good = shifted(good, seconds_to_now(good, wall_clock_ms(), None))
    events = list(in_time_order(renamed(good, "good")))
    async with producer(environment) as client:
        for event in in_time_order(renamed(good, "alone")):
            await client.send_and_wait(
                f"{prefix}{TOPICS[event.source]}", event.value, key=b"alone", partition=0
            )
        waiting = list(bad.values())
        for event in events:
            if waiting:
                source, key, value = waiting.pop()
                await client.send_and_wait(
                    f"{prefix}{TOPICS[source]}", value=value, key=key, partition=0
                )
            odd_headers = [
                ("ce_sequence", b"\xffnine"),
                ("nonsense", b"\xfe"),
                ("ce_type", b"\xff"),
            ]
            await client.send_and_wait(
                f"{prefix}{TOPICS[event.source]}",
                event.value,
                key=b"good",
                partition=0,
                headers=odd_headers,
            )
    assert not waiting, "the good call is long enough to have every bad record between its events"
    wait_for(
        "the good calls to be closed",
        lambda: total(address, "callgauge_calls_ended_total") == 2,
        30,
    )

    finals = final_rows(await written_rows(environment))
    assert finals["good"] == finals["alone"]
    assert sum(isinstance(each.get("wait_ms"), float) for each in finals["good"]) > 2
    records = await quarantined(environment, len(bad))
    assert sorted(record.reason.value for record in records) == sorted(
        what.split(":")[0] for what in bad
    )
    for record in records:
        assert record.topic.startswith(prefix)
        assert f"[0]@{record.offset}" in record.message()
        assert "constrained" not in record.message(), "in the words of who wrote the event"
        assert all(
            (record.what, record.expected_and_seen, record.what_happens_now, record.what_to_do)
        )
        assert len(record.message()) < 1_000, (
            "a message is for a person; the bytes stay where they are"
        )
    by_their_bytes = total(address, "callgauge_sequencer_refused_total")
    assert (by_their_bytes, total(address, "callgauge_quarantined_total")) == (
        UNFIT,
        len(bad) - UNFIT,
    )
    assert total(address, "callgauge_events_total", outcome="folded") == 2 * len(events)
    assert total(address, "callgauge_calls_started_total") == 2
    assert process.is_running
    assert "record_quarantined" in process.text
    assert "Traceback" not in process.text


async def test_an_endless_call_is_closed_and_what_follows_only_counted(
    service: tuple[Process, str], environment: dict[str, str]
) -> None:
    process, address = service
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}pipecat.events"
    put_quickly(environment, ((topic, b"endless", line()) for _ in range(ENDLESS)))
    wait_for(
        "all records to be read",
        lambda: total(address, "callgauge_events_total", source="pipecat") == ENDLESS,
        90,
    )
    assert total(address, "callgauge_events_total", outcome="folded") == MOST_EVENTS
    assert total(address, "callgauge_events_total", outcome="after_close") == ENDLESS - MOST_EVENTS
    assert total(address, "callgauge_limits_hit_total", limit="events") == 1
    wait_for(
        "its end",
        lambda: total(address, "callgauge_calls_ended_total", outcome="limit_events") == 1,
        10,
    )
    assert process.is_running


ODD_NAME = b"\xff\xfe"
CODECS = (1, 2, 3, 4)


async def send_as_it_is(client: AIOKafkaProducer, topic: str, raw: bytes) -> None:
    """Sends the bytes of a batch with one record, which the client's own builder would
    not write.
    """
    batch = client.create_batch()
    batch._buffer, batch._relative_offset = raw, 1
    batch.close()
    await (await client.send_batch(batch, topic, partition=0))


def oddly_named(key: bytes, value: bytes, codec: int) -> bytes:
    """A batch of one record with a header whose name is not UTF-8."""
    record = Written(key, value, [("zz", b"v")])
    return record_batch(
        0,
        [record],
        codec,
        changed=lambda body: body.replace(b"zz", ODD_NAME),
        now_ms=wall_clock_ms(),
    )


def bomb(codec: int) -> bytes:
    """A batch of one record that is small on the wire and not when it is unpacked."""
    return record_batch(
        0, [Written(b"bomb", bytes(MAX_UNPACKED_BATCH_BYTES))], codec, now_ms=wall_clock_ms()
    )


def one_call_ended(address: str) -> Callable[[], bool]:
    return lambda: total(address, "callgauge_calls_ended_total") == 1


def folded_at_least(address: str, events: int) -> Callable[[], bool]:
    return lambda: total(address, "callgauge_events_total", outcome="folded") >= events


async def test_what_the_client_cannot_decode_is_set_aside_and_all_else_is_read(
    environment: dict[str, str], tmp_path: Path
) -> None:
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    call = simulate_call(5, start_ms=0, kind="cascade").call
    events = list(in_time_order(shifted(call, seconds_to_now(call, wall_clock_ms(), None))))
    for run, key in enumerate((b"before", b"after a restart")):
        with started(tmp_path / f"run-{run}.log", "run", **environment) as process:
            address = process.metrics()
            async with producer(environment) as client:
                for codec in CODECS if run == 0 else ():
                    await send_as_it_is(client, f"{prefix}pipecat.events", bomb(codec))
                    await send_as_it_is(client, f"{prefix}scores", bomb(codec))
                    await send_as_it_is(
                        client, f"{prefix}scores", oddly_named(b"first", b'{"row":0}', codec)
                    )
                for place, event in enumerate(events):
                    raw = oddly_named(key, event.value, CODECS[place % len(CODECS)])
                    await send_as_it_is(client, f"{prefix}{TOPICS[event.source]}", raw)
            wait_for("the call to be closed", one_call_ended(address), 30)
            # After the restart that may be the first call, which an exporter that did not commit
            # counts again.
            wait_for("all events", folded_at_least(address, len(events)), 30)
            assert total(address, "callgauge_events_total", outcome="folded") == len(events)
            if run == 0:
                assert total(address, "callgauge_scores_refused_total") == 2 * len(CODECS)
                assert total(
                    address, "callgauge_sequencer_refused_total", reason="undecodable"
                ) == len(CODECS)
            assert total(address, "callgauge_poll_failures_total") == 0
            assert "Traceback" not in process.text
    records = await quarantined(environment, len(CODECS))
    assert [(record.offset, record.last_offset) for record in records] == [
        (n, None) for n in range(len(CODECS))
    ]
    assert all("too large when it is unpacked" in record.what for record in records)


EVENTS_LOOP, REPLAYS_LOOP = 60_000, 10_000
"""Each reaches its limit: 50,000 events, and a million elements that are folded again, some
thousand at each event.
"""
SOON_SECONDS = 60.0


def looping_events(now: int) -> dict[str, tuple[str, Callable[[int], bytes]]]:
    """Endless events of a broken producer: the expected close reason, the topic, and the n-th
    event.
    """

    def tool(n: int) -> bytes:
        kind = "tool_response" if n % 2 else "tool_call"
        return json.dumps(
            {"message_type": kind, "timestamp": str(now + n), "value": {"tool": "look"}}
        ).encode()

    def backwards(n: int) -> bytes:
        at_ms = now - n
        kind = "audio_end" if n % 2 else "audio_start"
        audio = {
            "event_type": kind,
            "timestamp": at_ms,
            "user": "simulated_user",
            "audio_timestamp": at_ms / 1_000,
        }
        return json.dumps(audio).encode()

    def flip(n: int) -> bytes:
        if n < 1_000:
            return tool(n)
        started = {
            "type": "call_started",
            "timestamp": now,
            "pipeline_type": ("s2s", "cascade")[n % 2],
        }
        return json.dumps(started).encode()

    return {
        "limit_events": ("audit", tool),
        "limit_replays": ("elevenlabs", backwards),
        "limit_replays of another kind": ("audit", flip),
    }


async def test_calls_that_loop_at_the_default_limits_do_not_keep_a_good_call_waiting(
    environment: dict[str, str], tmp_path: Path
) -> None:
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    loops = looping_events(wall_clock_ms())
    good = simulate_call(5, start_ms=0, kind="cascade").call
    good = renamed(shifted(good, seconds_to_now(good, wall_clock_ms(), None)), "good")
    events = list(in_time_order(good))

    def records() -> Iterator[tuple[str, bytes, bytes]]:
        for place, (key, (source, event)) in enumerate(loops.items()):
            for n in range(EVENTS_LOOP if key == "limit_events" else REPLAYS_LOOP):
                yield f"{prefix}{TOPICS[source]}", key.encode(), event(n)
            for n in range(place, len(events), len(loops)):
                yield f"{prefix}{TOPICS[events[n].source]}", b"good", events[n].value

    put_quickly(environment, records())
    with started(tmp_path / "run.log", "run", **environment) as process:
        address = process.metrics()
        wait_for(
            "every call to be closed",
            lambda: total(address, "callgauge_calls_ended_total") == 1 + len(loops),
            SOON_SECONDS,
        )
        assert process.is_running
    closed = await closed_rows(environment, 1 + len(loops), SOON_SECONDS)
    ends = {name: row.close_reason for name, row in closed.items()}
    assert ends == {"good": "session_ended"} | {key: key.partition(" ")[0] for key in loops}


async def test_what_is_new_or_repeated_is_counted_and_harms_nothing(
    service: tuple[Process, str], environment: dict[str, str]
) -> None:
    _, address = service
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    speech = {
        "type": "user_speech",
        "timestamp": wall_clock_ms(),
        "sequence": 1,
        "data": {"text": "hi"},
    }
    async with producer(environment) as client:
        for _ in range(3):
            await client.send_and_wait(
                f"{prefix}elevenlabs.events", json.dumps(speech).encode(), key=b"c", partition=0
            )
        for value in (line(type="brand_new"), line(shade="blue", weight=3)):
            await client.send_and_wait(f"{prefix}pipecat.events", value, key=b"c", partition=0)
    wait_for("all of it", lambda: total(address, "callgauge_events_total") == 5, 20)
    assert total(address, "callgauge_events_total", outcome="repeated", source="elevenlabs") == 2
    assert total(address, "callgauge_events_total", outcome="unknown", source="pipecat") == 1
    assert total(address, "callgauge_unknown_fields_total", source="pipecat") == 2
    assert total(address, "callgauge_quarantined_total") == 0


ODD_KEYS = ("ключ 😀", "k" * 256, "\r\n\x1b[31mred", '"};{', " ", "\x00\x07")
"""The one with NUL last: the page shows the newest call as the exemplar of a count."""
ODD_HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("ce_sequence", b"abc")],
    [("ce_sequence", b"9" * 5_000), ("ce_source", b"\xff")],
    [("ce_id", None), ("ce_source", None), ("ce_sequence", None), ("ce_type", None)],
    [("", b""), ("ключ", "é".encode("latin-1"))],
]


def odd_records() -> list[tuple[str, str, bytes]]:
    """Unexpected values that nothing forbids: source, outcome, value."""
    now = wall_clock_ms()
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    speech = {"type": "user_speech", "timestamp": now, "data": {"text": "hi"}}
    tool = {"message_type": "tool_call", "timestamp": str(now), "value": {"tool": "\x00look"}}
    new = {"type": "brand_new", "timestamp": now}
    answers: list[object] = [["error"], {"code": 500}, None, float("nan"), deep]
    no_sequences: list[object] = ["ten", [1], {}, True, 1e300]
    events: list[tuple[str, str, object]] = [
        *(
            ("elevenlabs", "unknown", {**new, "sequence": sequence, "provider": []})
            for sequence in no_sequences
        ),
        (
            "elevenlabs",
            "folded",
            {"type": "call_started", "timestamp": now, "sequence": [1], "agent": "a\x00\n"},
        ),
        ("elevenlabs", "folded", {**speech, "sequence": 10**4_000}),
        ("elevenlabs", "folded", {**speech, "sequence": "ten"}),
        ("elevenlabs", "folded", {**speech, "sequence": -1, "more": float("inf"), "deep": deep}),
        (
            "elevenlabs",
            "folded",
            {**speech, "timestamp": f"{now}.5", "data": {"text": "\x00\x1b[2J\u202e"}},
        ),
        *(
            ("audit", "folded", value)
            for answer in answers
            for value in (
                tool,
                {
                    **tool,
                    "message_type": "tool_response",
                    "value": {"tool": "\x00look", "response": {"status": answer}},
                },
            )
        ),
    ]
    return [(source, outcome, json.dumps(value).encode()) for source, outcome, value in events]


async def test_what_is_odd_but_readable_is_taken(
    service: tuple[Process, str], environment: dict[str, str]
) -> None:
    process, address = service
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    odd = odd_records()
    over = json.dumps({"type": "call_ended", "timestamp": wall_clock_ms()}).encode()
    async with producer(environment) as client:
        for place, key in enumerate(ODD_KEYS):
            headers = ODD_HEADERS[place % len(ODD_HEADERS)]
            for source, _, value in [*odd, ("audit", "folded", over)]:
                topic = f"{prefix}{TOPICS[source]}"
                await client.send_and_wait(
                    topic, value, key=key.encode(), partition=0, headers=headers
                )
    wait_for(
        "all calls to be closed",
        lambda: total(address, "callgauge_calls_ended_total") == len(ODD_KEYS),
        20,
    )
    for outcome in ("folded", "unknown"):
        expected = [what for _, what, _ in [*odd, ("audit", "folded", over)]].count(outcome) * len(
            ODD_KEYS
        )
        assert total(address, "callgauge_events_total", outcome=outcome) == expected
    assert total(address, "callgauge_quarantined_total") == 0
    assert {row.conversation_id for row in await written_rows(environment)} == set(ODD_KEYS)
    openmetrics = page(address, "application/openmetrics-text; version=1.0.0")
    assert "\x00" not in openmetrics, (
        "one NUL makes Prometheus refuse the page, and everybody is blind"
    )
    assert "Traceback" not in process.text
