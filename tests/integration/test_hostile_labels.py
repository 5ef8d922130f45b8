"""Ten thousand agents with hostile names: the page of a real exporter stays small, and is read in
time while scores stream in.
"""

import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

import httpx
import pytest
from confluent_kafka import Producer

from consumers.runtime.settings import MAX_SERIES
from schemas.closed_sets import Anchor, Speaker
from schemas.rows import STAGE_NEWS, Labels, StageLatency, TurnRow, encode
from schemas.scores.latency_stages import Stage, StageSource
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import started, wait_for
from tests.support.held_loop import times_slower
from tests.support.patience import patient

pytestmark = pytest.mark.kafka

AGENTS: Final = 10_000
STAGES_EVERY: Final = 10
"""One call of so many has a row with stages, of which each is a histogram: some fifty would fill
the page.
"""
RECORDS_PER_SECOND: Final = 500
PAGE_SECONDS: Final = 0.5
"""Processor time for a page."""
OPENMETRICS: Final = {
    "accept": "application/openmetrics-text; version=1.0.0",
    "accept-encoding": "gzip",
}
HOSTILE: Final = ('"', "\\", "\n", "\x00", "{", "}", ",", "=", "é", "\u202e", "🎧", " ")


def name(rng: random.Random, kind: str, number: int) -> str:
    """A name of up to 120 characters, full of characters with a meaning on the page."""
    return f"{kind}{number}" + "".join(rng.choices(HOSTILE, k=rng.randrange(100)))


def row_of(rng: random.Random, number: int) -> TurnRow:
    """A turn of a call of an unknown agent: a wait, an interruption, and now and then
    all stages.
    """
    agent, tenant, environment = (
        name(rng, label, number) for label in ("agent", "tenant", "environment")
    )
    stages = (
        ()
        if number % STAGES_EVERY
        else tuple(StageLatency(each, 300.0, StageSource.PIPECAT) for each in Stage)
    )
    return TurnRow(
        conversation_id=f"c-{number}",
        turn=1,
        known_ms=time.time_ns() // 1_000_000,
        labels=Labels(agent=agent, tenant=tenant, environment=environment),
        news=("wait", "interruption.assistant", *(STAGE_NEWS + each.stage for each in stages)),
        wait_ms=float(rng.randrange(4000)),
        anchor=Anchor.VAD,
        wait_source="pipecat",
        interruptions=(Speaker.ASSISTANT,),
        stages=stages,
    )


class Scores:
    """Writes such calls to `scores`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._producer = Producer(
            {"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"], "linger.ms": 20}
        )
        self._topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores"
        self._rng = random.Random(7)  # noqa: S311 - the same names at each run
        self.records = 0
        self._calls = 0

    def send(self, calls: int) -> None:
        """Writes the rows of so many calls of new agents."""
        for _ in range(calls):
            row = row_of(self._rng, self._calls)
            self._producer.produce(self._topic, encode(row), row.conversation_id.encode())
            self.records += 1
            self._calls += 1
            self._producer.poll(0)
        self._producer.flush()

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Writes calls for the length of the block, at a steady pace."""
        ends = Event()

        def stream() -> None:
            while not ends.wait(0.1):
                self.send(RECORDS_PER_SECOND // 20)

        thread = Thread(target=stream)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


def series_of(page: str) -> list[str]:
    """Lines of the page that are series; a name cannot make a line of its own."""
    lines = [line for line in page.split("\n") if line and not line.startswith("#")]
    assert all(re.match(r"(callgauge|process|python)_\w+(\{.*\})? \S+", line) for line in lines)
    return lines


def test_hostile_names_of_ten_thousand_agents_leave_the_page_small_and_quick(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with started(tmp_path / "log", "run", "--roles", "exporter", **environment) as exporter:
        address = exporter.metrics()
        wait_for(lambda: exporter.text, lambda: "exporter_ready" in exporter.text, 30)
        scores = Scores(environment)
        scores.send(AGENTS)
        wait_for(
            "the scores to be read",
            lambda: total(address, "callgauge_scores_read_total") >= scores.records,
            120,
        )

        before = exporter.processor_seconds
        pages = [answer_of(address, OPENMETRICS) for _ in range(3)]
        spent = (exporter.processor_seconds - before) / len(pages)
        assert {page.headers["content-encoding"] for page in pages} == {"gzip"}
        assert len(series_of(pages[0].text)) <= MAX_SERIES
        assert total(address, "callgauge_label_overflow_total", label="agent") > AGENTS / 2
        assert total(address, "callgauge_scores_refused_total") == 0
        assert spent <= PAGE_SECONDS * times_slower()

        with scores.streaming(), httpx.Client() as client:
            for _ in range(5):
                client.get(address, headers=OPENMETRICS, timeout=patient(30)).raise_for_status()
        print(f"page: {spent:.2f} s of processor time; {len(pages[0].text)} characters")
