"""Hostile records on every input and hostile bodies over HTTP, with good calls among them: nothing
breaks, and no good call changes.
"""

import http.client
import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from consumers.runtime.process import wall_clock_ms
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow
from schemas.topics import TOPIC_BY_SOURCE
from streamer.sources.replay import WireEvent, in_time_order, renamed, seconds_to_now, shifted
from streamer.sources.simulator.plan import CallKind
from streamer.sources.simulator.traffic import simulate_call
from tests.integration.metrics_page import page, total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import records_on, written_rows
from tests.integration.test_bad_input import final_rows
from tests.integration.test_ingest import listening
from tests.support.calls.hostile import GOOD, Hostile
from tests.support.patience import patient
from tests.support.webhooks import SECRET

SERVICE: Final[dict[str, Any]] = {
    "partitions": 1,
    "ingest__port": "0",
    "console__port": "0",
    "goals__folder": "goals",
}
LONG = (pytest.mark.long, pytest.mark.service(**SERVICE, limits__closing_grace_ms="30000"))
"""Among so many hostile records, seconds pass between the last events of a good call, and a call
that ends must wait for them.
"""

pytestmark = pytest.mark.service(**SERVICE, limits__closing_grace_ms="1500")

OF_GOOD, OF_HOSTILE = "token-of-the-good-tenant", "token-of-the-hostile-tenant"
SENDERS: Final = 4
KINDS: Final[tuple[CallKind, ...]] = ("cascade", "phone", "cascade", "s2s")
OVER_KAFKA: Final = (0, 1)
"""The good calls that come over Kafka; the others come over HTTP."""
STATUSES: Final = {200, 202, 207, 400, 401, 413, 415, 422}
GOALS: Final = """
id: everything
agents: [airline, desk, airline-rebooking]
subgoals:
  - {id: said, details: a word, check: {kind: says, speaker: assistant, pattern: "[aeiou]"}}
  - {id: used, details: a tool, check: {kind: tool_called, tool: find_booking}}
  - {id: soon, details: in time, check: {kind: within, turns: 2, check: {kind: tool_result, tool: find_booking, outcome: success}}}
"""

Call = tuple[WireEvent, ...]


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """With two tenants, goals, and a history."""
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(
        f'[good]\ntoken = "{OF_GOOD}"\nevents_per_second = 1000000\n'
        f'[hostile]\ntoken = "{OF_HOSTILE}"\nelevenlabs_secret = "{SECRET}"\nevents_per_second = '
        "1000000\n"
    )
    (tmp_path / "goals").mkdir()
    (tmp_path / "goals" / "everything.yaml").write_text(GOALS)
    return environment | {
        "CALLGAUGE_INGEST__TENANTS_FILE": str(tenants),
        "CALLGAUGE_GOALS__FOLDER": str(tmp_path / "goals"),
        "CALLGAUGE_HISTORY__FOLDER": str(tmp_path / "history"),
    }


class Feed:
    """Writes records to partition 0 of the inputs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
        self._settings = {"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"]}
        self._client = Producer({**self._settings, "linger.ms": 5, "message.max.bytes": 2_000_000})

    def put(self, topic: str, key: bytes | None, value: bytes | None, headers: Any = ()) -> None:
        while True:
            try:
                self._client.produce(
                    f"{self._prefix}{topic}", value, key, partition=0, headers=list(headers)
                )
                break
            except BufferError:
                self._client.poll(0.1)
        self._client.poll(0)

    def put_event(self, name: str, event: WireEvent) -> None:
        self.put(f"{event.source}.events", name.encode(), event.value)

    def done(self) -> None:
        assert self._client.flush(60) == 0

    def written(self) -> int:
        """Records that the inputs hold."""
        client = Consumer({**self._settings, "group.id": "counts"})
        try:
            places = (
                TopicPartition(f"{self._prefix}{name}", 0) for name in TOPIC_BY_SOURCE.values()
            )
            return sum(client.get_watermark_offsets(place)[1] for place in places)
        finally:
            client.close()


class Sender:
    """Posts with one connection, and counts the statuses of the answers."""

    def __init__(self, address: str) -> None:
        self._client = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        self.statuses: Counter[int] = Counter()

    def close(self) -> None:
        self._client.close()

    def post(self, path: str, body: bytes, token: str, headers: Mapping[str, str]) -> None:
        self._client.request("POST", path, body, {**headers, "authorization": f"Bearer {token}"})
        answer = self._client.getresponse()
        text = answer.read()
        assert answer.status in STATUSES, (answer.status, text, path, headers, body[:2_000])
        self.statuses[answer.status] += 1

    def post_event(self, name: str, event: WireEvent) -> None:
        stream = "user_sim" if event.source == "elevenlabs" else event.source
        body = json.dumps(
            {**json.loads(event.value), "conversation_id": name, "stream": stream}
        ).encode()
        before = self.statuses[202]
        self.post("/events", body, OF_GOOD, {"content-type": "application/json"})
        assert self.statuses[202] == before + 1, body


def among(
    hostile: Iterator[Any],
    count: int,
    take: Callable[[Any], None],
    good: list[tuple[str, WireEvent]],
    take_good: Callable[[str, WireEvent], None],
) -> None:
    """Takes the hostile ones between the good events at equal distances: the first and the last one
    are good.
    """
    every = max(1, count // len(good))
    for name, event in good[:-1]:
        take_good(name, event)
        for each in itertools.islice(hostile, every):
            take(each)
    for each in hostile:
        take(each)
    take_good(*good[-1])


def events_of(
    name: str, calls: Mapping[int, Call], numbers: tuple[int, ...]
) -> list[tuple[str, WireEvent]]:
    """The events of these calls in turns, so that they go on at the same time."""
    of_calls = [[(f"{name}-{number}", event) for event in calls[number]] for number in numbers]
    return [
        each for several in itertools.zip_longest(*of_calls) for each in several if each is not None
    ]


def begins(sender: Sender, name: str, calls: Mapping[int, Call]) -> None:
    """The first events of calls, over HTTP: the tenant that sends the first event of a call owns
    it.
    """
    # the server closes a connection that was idle for so long; the next request opens another one
    sender.close()
    for each, event in events_of(name, calls, tuple(calls))[: len(calls)]:
        sender.post_event(each, event)


@pytest.mark.parametrize(
    ("bodies", "records"), [(800, 4_000), pytest.param(2_000, 400_000, marks=LONG, id="long")]
)
async def test_nothing_hostile_breaks_anything_or_changes_a_good_call(
    environment: dict[str, str], tmp_path: Path, bodies: int, records: int
) -> None:
    calls: dict[int, Call] = {}
    for number, kind in enumerate(KINDS):
        call = simulate_call(40 + number, start_ms=0, kind=kind).call
        calls[number] = tuple(
            in_time_order(renamed(shifted(call, seconds_to_now(call, wall_clock_ms(), None)), "x"))
        )
    feed = Feed(environment)
    over_http = tuple(set(calls) - set(OVER_KAFKA))

    def are_read(metrics: str) -> bool:
        # What its bytes alone make unfit is not in the log, so the evaluator does not count it.
        return (
            total(metrics, "callgauge_sequencer_refused_total")
            + total(metrics, "callgauge_events_total")
            == feed.written()
        )

    with started(tmp_path / "run.log", "run", **environment) as process, ExitStack() as connections:
        ingest = listening(process)
        senders = [
            connections.enter_context(closing(Sender(ingest.address))) for _ in range(SENDERS)
        ]
        begins(senders[0], "alone", calls)
        for name, event in events_of("alone", calls, OVER_KAFKA)[len(OVER_KAFKA) :]:
            feed.put_event(name, event)
        for name, event in events_of("alone", calls, over_http)[len(over_http) :]:
            senders[0].post_event(name, event)
        feed.done()
        wait_for(
            "the calls alone",
            lambda: total(ingest.metrics, "callgauge_calls_ended_total") == len(calls),
            60,
        )
        begins(senders[0], GOOD, calls)

        def over_kafka() -> None:
            among(
                Hostile(0, wall_clock_ms).records(records),
                records,
                lambda each: feed.put(TOPIC_BY_SOURCE[each.source], *each[1:]),
                events_of(GOOD, calls, OVER_KAFKA)[len(OVER_KAFKA) :],
                feed.put_event,
            )
            feed.done()

        def of_hostile(sender: Sender) -> Callable[[Any], None]:
            return lambda each: sender.post(each.path, each.body, OF_HOSTILE, each.headers)

        def over_http_by(number: int) -> None:
            sender, count = senders[number], bodies // SENDERS
            hostile = Hostile(1 + number, wall_clock_ms).bodies(count)
            if number == 0:
                among(
                    hostile,
                    count,
                    of_hostile(sender),
                    events_of(GOOD, calls, over_http)[len(over_http) :],
                    sender.post_event,
                )
            else:
                for each in hostile:
                    of_hostile(sender)(each)

        with ThreadPoolExecutor(1 + SENDERS) as pool:
            work = [
                pool.submit(over_kafka),
                *(pool.submit(over_http_by, number) for number in range(SENDERS)),
            ]
            for each in work:
                each.result()
        wait_for(
            "every record to have its outcome",
            lambda: are_read(ingest.metrics),
            30 + records / 1_000,
        )
        await good_calls_are_unchanged(environment, calls, process)
        list(text_string_to_metric_families(page(ingest.metrics)))
        statuses = sum((sender.statuses for sender in senders), Counter[int]())
        print(f"{sum(statuses.values())} bodies: {dict(statuses)}; {feed.written()} records")
        assert process.is_running
        unbroken(process)
        process.send(signal.SIGKILL)
    with started(tmp_path / "successor.log", "run", **environment) as successor:
        metrics = listening(successor).metrics
        feed.put_event("last", calls[0][0])
        feed.done()
        wait_for(
            "the successor to go on",
            lambda: total(metrics, "callgauge_events_total", outcome="folded") >= 1,
            120,
        )
        await good_calls_are_unchanged(environment, calls, successor)
        unbroken(successor)
    for record in await records_on(environment, "quarantine"):
        assert len(QuarantineRecord.model_validate_json(record.value).message()) < 1_000


async def good_calls_are_unchanged(
    environment: dict[str, str], calls: Mapping[int, Call], process: Process
) -> None:
    assert process.is_running
    names = {f"{kind}-{number}" for kind in ("alone", GOOD) for number in calls}
    end = time.monotonic() + patient(60)
    while True:
        rows = await written_rows(environment)
        closings = Counter(
            row.conversation_id
            for row in rows
            if isinstance(row, CallRow) and row.state == "closed"
        )
        if names <= set(closings) or time.monotonic() > end:
            break
    assert names <= set(closings)
    assert set(closings.values()) == {1}, "a call is closed once"
    finals = final_rows([row for row in rows if row.conversation_id in names])
    for number in calls:
        assert finals[f"{GOOD}-{number}"] == finals[f"alone-{number}"]
        assert len(finals[f"{GOOD}-{number}"]) > 3


def unbroken(process: Process) -> None:
    for sign in ("Traceback", "role_failed", "batch_failed", "Error("):
        assert sign not in process.text, process.text[max(0, process.text.index(sign) - 3_000) :][
            :6_000
        ]
