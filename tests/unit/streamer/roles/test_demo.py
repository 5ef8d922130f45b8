"""The demo as a person starts it: a process of its own, with and without a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from schemas.topics import TOPICS
from streamer.roles.embedded_broker import PARTITIONS, embedded_broker
from tests.support.patience import patient

ROOT = Path(__file__).parents[4]
DEMO = [sys.executable, "-m", "streamer.cli.main", "demo", "--http-port", "0", "--calls", "2"]
START_SECONDS = 60  # a bound, not a goal: the machine may be busy


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CALLGAUGE_", "OPENAI_"))}
    return {**kept, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}


def test_without_a_terminal_it_prints_lines_and_ends_by_itself() -> None:
    ended = subprocess.run(
        [*DEMO, "--seconds", "1.5"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=patient(START_SECONDS),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert "keeps nothing" in lines[0]
    assert re.fullmatch(r"Metrics: http://127\.0\.0\.1:\d+/metrics", lines[1])
    assert [line for line in lines if line.startswith("1 calls running, 0 over")]
    assert re.match(r"Over: [12] calls began, 0 ended, \d+ events were sent", lines[-1])
    assert "\x1b" not in ended.stdout


def test_on_a_terminal_it_shows_the_calls_and_ctrl_c_ends_it_in_two_seconds() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(DEMO, cwd=ROOT, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        try:
            seen = read_until(ours, b"running", START_SECONDS, after=b"status")
            found = re.search(rb"http://127\.0\.0\.1:\d+/metrics", seen)
            assert found is not None
            with urllib.request.urlopen(found[0].decode(), timeout=patient(5)) as page:  # noqa: S310  # an address on loopback that we started
                metrics = page.read().decode()
            assert "callgauge_calls_started_total" in metrics
            assert "callgauge_events_total" in metrics
            began_seconds = time.monotonic()
            demo.send_signal(signal.SIGINT)
            seen = read_until(ours, b"events were sent", 10)
            assert demo.wait(patient(10)) == 0
            assert time.monotonic() - began_seconds < patient(2)
            assert b"Traceback" not in seen
        finally:
            demo.kill()
            os.close(ours)


def read_until(terminal: int, wanted: bytes, seconds: float, after: bytes = b"") -> bytes:
    """What the terminal shows, up to and with `wanted` somewhere after the first `after`."""
    seen = b""
    deadline_seconds = time.monotonic() + patient(seconds)
    while wanted not in seen.partition(after)[2] if after else wanted not in seen:
        left_seconds = deadline_seconds - time.monotonic()
        assert left_seconds > 0, seen
        if select.select([terminal], [], [], left_seconds)[0]:
            seen += os.read(terminal, 65_536)
    return seen


def test_the_embedded_broker_has_every_topic_from_the_start() -> None:
    from confluent_kafka.admin import AdminClient

    names = [topic.name for topic in TOPICS]
    with embedded_broker(names) as bootstrap:
        found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=patient(10)).topics
    assert {name: len(found[name].partitions) for name in names} == dict.fromkeys(names, PARTITIONS)
