"""The exporter role sends final scores of a real broker to an OTLP receiver, also to one that
refuses for a while.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from schemas.rows import CallRow, Row, TurnRow
from streamer.sources.simulator.traffic import simulate_call
from tests.integration.metrics_page import total
from tests.integration.processes import Process, ran, started, wait_for
from tests.integration.score_log import closings_of, newest_rows, written_rows
from tests.support.fakes.http_answers import Answer, Request, answering

pytestmark = pytest.mark.service(limits__closing_grace_ms="1500")

CALLS: Final = 3
SENT: Final = "callgauge_otlp_events_total"
BEGIN_MS: Final = 1_790_000_000_000

Event = dict[str, Any]


class Receiver:
    """An OTLP/HTTP endpoint. While `refusal` has a status, it takes nothing and answers that, with
    `retry_after`.
    """

    def __init__(self) -> None:
        self.refusal: int | None = None
        self.refusals_left: int | None = None
        self.retry_after: str | None = None
        self.refused_at: list[float] = []
        self.events: list[Event] = []
        self._lock = threading.Lock()

    def answer(self, body: bytes) -> int:
        """Takes the body or refuses it; the body must be OpenTelemetry's."""
        request = ExportLogsServiceRequest.FromString(body)
        assert request.SerializeToString() == body, "nothing in it is unknown"
        with self._lock:
            if self.refusal is not None and self.refusals_left != 0:
                self.refused_at.append(time.monotonic())
                self.refusals_left = None if self.refusals_left is None else self.refusals_left - 1
                return self.refusal
            for resource in request.resource_logs:
                for scope in resource.scope_logs:
                    for record in scope.log_records:
                        assert record.event_name == "gen_ai.evaluation.result"
                        self.events.append(
                            {
                                a.key: getattr(a.value, a.value.WhichOneof("value") or "")
                                for a in record.attributes
                            }
                        )
        return 200


@contextmanager
def receiving(receiver: Receiver) -> Iterator[str]:
    """Serves the receiver; gives the address of its logs."""

    def answer(request: Request) -> Answer:
        status = receiver.answer(request.body)
        retried = receiver.retry_after is not None and status != 200
        content = ExportLogsServiceResponse().SerializeToString()
        return Answer(
            status, content, {"Retry-After": receiver.retry_after or ""} if retried else {}
        )

    with answering(answer) as address:
        yield f"{address}/v1/logs"


@contextmanager
def roles(
    environment: dict[str, str], folder: Path, endpoint: str
) -> Iterator[tuple[Process, str]]:
    """An evaluator and, in a process of its own, an exporter that sends to the endpoint; gives it
    and its metrics.
    """
    otlp = {
        **environment,
        "CALLGAUGE_OTLP__ENDPOINT": endpoint,
    }
    with (
        started(folder / "exporter.log", "run", "--roles", "exporter", **otlp) as exporter,
        started(
            folder / "evaluator.log", "run", "--roles", "sequencer,evaluator", **environment
        ) as evaluator,
    ):
        for process in (exporter, evaluator):
            process.metrics()
        yield exporter, exporter.metrics()


def play(environment: dict[str, str], folder: Path, *seeds: int) -> None:
    """Puts simulated calls onto the topics, as fast as it goes."""
    path = folder / f"calls-{seeds[0]}.jsonl"
    with path.open("w") as file:
        for seed in seeds:
            call = simulate_call(seed, start_ms=BEGIN_MS, kind="cascade").call
            streams = {"audit": call.audit, "pipecat": call.pipecat, "user_sim": call.elevenlabs}
            file.write(json.dumps({"id": f"c{seed}", **streams, "control": call.control}) + "\n")
    ran("replay", str(path), "--speed", "max", **environment)


async def closed_calls(environment: dict[str, str], count: int) -> list[Row]:
    """The newest rows, when so many calls have closed."""
    while True:
        rows = await written_rows(environment)
        if len(closings_of(rows)) == count:
            return newest_rows(rows)


def values_in(events: list[Event], name: str) -> Counter[tuple[Any, ...]]:
    """The scores of this name in the events: call, turn, value."""
    key, value = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value"
    return Counter(
        (event["gen_ai.conversation.id"], event.get("callgauge.turn"), event[value])
        for event in events
        if event[key] == name and value in event
    )


def latencies_on_the_topic(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (row.conversation_id, row.turn, row.wait_ms)
        for row in rows
        if isinstance(row, TurnRow) and isinstance(row.wait_ms, float)
    )


async def test_a_receiver_that_refuses_for_a_while_gets_every_final_score_once(
    environment: dict[str, str], tmp_path: Path
) -> None:
    receiver = Receiver()
    receiver.refusal, receiver.refusals_left = 503, 2
    with (
        receiving(receiver) as endpoint,
        roles(environment, tmp_path, endpoint) as (exporter, metrics),
    ):
        play(environment, tmp_path, *range(CALLS))
        rows = await closed_calls(environment, CALLS)
        expected = latencies_on_the_topic(rows)
        assert len(expected) > CALLS
        wait_for(
            lambda: f"{len(receiver.events)} events\n{exporter.text}",
            lambda: (
                values_in(receiver.events, "voice_to_voice_latency_ms").total() >= expected.total()
            ),
            60,
        )
        wait_for(
            "the count of them",
            lambda: total(metrics, SENT, outcome="sent") == len(receiver.events),
            10,
        )
        assert total(metrics, SENT) == total(metrics, SENT, outcome="sent"), (
            "nothing failed or was dropped"
        )
    assert values_in(receiver.events, "voice_to_voice_latency_ms") == expected
    speeds = Counter(
        (row.conversation_id, None, score.result)
        for row in rows
        if isinstance(row, CallRow)
        for name, score in row.eva.items()
        if name == "eva_response_speed" and isinstance(score.result, float)
    )
    assert values_in(receiver.events, "eva_response_speed") == speeds
    first, second = receiver.refused_at
    assert second - first > 0.7, "the second attempt waits a second, less some jitter"


async def test_a_receiver_that_wants_no_requests_gets_few_and_metrics_do_not_wait_for_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    receiver = Receiver()
    receiver.refusal, receiver.retry_after = 429, "3600"
    with receiving(receiver) as endpoint, roles(environment, tmp_path, endpoint) as (_, metrics):
        for seed in range(CALLS):
            play(environment, tmp_path, seed)
            await closed_calls(environment, seed + 1)
        wait_for(
            "the latencies",
            lambda: total(metrics, "callgauge_turn_response_latency_seconds_count") > 0,
            30,
        )
        wait_for("the first refusal", lambda: total(metrics, SENT, outcome="failed") > 0, 30)
        gaps = [
            later - earlier
            for earlier, later in zip(receiver.refused_at, receiver.refused_at[1:], strict=False)
        ]
        assert all(gap > 0.9 for gap in gaps), "each refused request is followed by a pause"
        receiver.refusal = None
        play(environment, tmp_path, 7)
        rows = await closed_calls(environment, CALLS + 1)
        last = max(closings_of(rows), key=lambda row: row.known_ms)
        expected = latencies_on_the_topic(
            [row for row in rows if row.conversation_id == last.conversation_id]
        )
        wait_for(
            "the scores of the next call",
            lambda: expected <= values_in(receiver.events, "voice_to_voice_latency_ms"),
            60,
        )
        wait_for(
            "no event with another outcome",
            lambda: (
                total(metrics, SENT)
                == sum(total(metrics, SENT, outcome=each) for each in ("sent", "failed"))
            ),
            60,
        )
