"""The cost of events over HTTP, on a real Kafka: the wait of a webhook for its answer, and events/s
of one core.

Processor time is that of the ingest process alone, taken from the kernel. The answer of a webhook
is timed by its sender, so the broker and the sender take turns with it on the same cores.
"""

import re
import time
from pathlib import Path
from typing import Final

import httpx

from tests.benchmarks.evaluator_cost import READY_SECONDS, create_topics, environment
from tests.benchmarks.figures import Figures, say
from tests.integration.processes import Process, started, wait_for
from tests.support.webhooks import SECRET, delivery, entry, record_of_a_call, signature_header

PREFIX: Final = "bench.ingest."
TOKEN: Final = "token-of-the-bench"  # noqa: S105 - a secret of a measurement
WEBHOOKS: Final = 300
TURNS_OF_A_CALL: Final = 10
EVENTS_A_BATCH: Final = 200
BATCHES: Final = 100
CALLS: Final = 50
SETTINGS: Final = {
    "CALLGAUGE_INGEST__PORT": "0",
    "CALLGAUGE_INGEST__TOKEN": TOKEN,
    "CALLGAUGE_INGEST__ELEVENLABS_SECRET": SECRET,
    "CALLGAUGE_INGEST__EVENTS_PER_SECOND": "1000000",
}


def measure_ingest(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures webhooks one after the other, then batches of events one after the other."""
    create_topics(bootstrap, PREFIX)
    say(
        f"over HTTP, {WEBHOOKS} webhooks of {TURNS_OF_A_CALL} turns; {BATCHES} batches of "
        f"{EVENTS_A_BATCH} events"
    )
    with started(
        folder / "ingest.log",
        "run",
        "--roles",
        "ingest",
        **environment(bootstrap, PREFIX),
        **SETTINGS,
    ) as process:
        address = wait_for(
            lambda: f"its address in:\n{process.text}", lambda: _address_in(process), READY_SECONDS
        )
        with httpx.Client(base_url=address, timeout=READY_SECONDS) as client:
            _send_webhook(client, -1)  # connects, and finds the partitions
            waits_ms = sorted(_send_webhook(client, number) for number in range(WEBHOOKS))
            figures.add(
                "webhook_ms_p50",
                waits_ms[len(waits_ms) // 2],
                "webhook to acknowledgement, median",
                "ms",
            )
            figures.add(
                "webhook_ms_p99",
                waits_ms[len(waits_ms) * 99 // 100],
                "webhook to acknowledgement, p99",
                "ms",
            )
            _send_batch(client, -1)
            before_seconds = process.processor_seconds
            for number in range(BATCHES):
                _send_batch(client, number)
            seconds = process.processor_seconds - before_seconds
    events = BATCHES * EVENTS_A_BATCH
    figures.add(
        "ingest_us_per_event", seconds / events * 1e6, "POST /events, processor time", "us/event"
    )
    say(f"  {events / seconds:,.0f} events/s of one core")


def _address_in(process: Process) -> str | None:
    found = re.search(r"ingest_listens.*?(http://[\d.]+:\d+)", process.text)
    return None if found is None else found[1]


def _send_webhook(client: httpx.Client, number: int) -> float:
    """Sends the record of one call; returns the time to its answer, in ms."""
    now_s = int(time.time())
    talk = [
        entry(role, f"Words of turn {turn}.", 3 * turn + offset, waited)
        for turn in range(TURNS_OF_A_CALL)
        for role, offset, waited in (("user", 0, None), ("agent", 2, 1.5))
    ]
    body = delivery(
        "post_call_transcription", record_of_a_call(f"conv_{number}", now_s - 60, *talk), now_s
    )
    header = {"elevenlabs-signature": signature_header(body, now_s)}
    begin = time.perf_counter()
    answer = client.post("/webhooks/elevenlabs", content=body, headers=header)
    wait_ms = (time.perf_counter() - begin) * 1_000
    assert answer.text == "accepted\n", answer.text
    return wait_ms


def _send_batch(client: httpx.Client, number: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    kinds = (
        "user_speech_started",
        "user_speech_stopped",
        "bot_speech_started",
        "bot_speech_stopped",
    )
    events = [
        {
            "conversation_id": f"c{(number + place) % CALLS}",
            "type": "speech_event",
            "timestamp": now_ms,
            "data": {"kind": kinds[place % 4], "timestamp": now_ms / 1_000},
        }
        for place in range(EVENTS_A_BATCH)
    ]
    answer = client.post("/events", json=events, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 202, answer.text
