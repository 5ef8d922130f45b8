"""One tenant at its allowed rate, readers of one long page and searches of a large history, at
once: calls of another tenant are whole.

The noisy tenant breaks no rule. It begins ever new calls as fast as it may, and one of its calls
has very many turns; others read the page of that call and search in past calls. Beside it a quiet
tenant has some calls, and each of them must get the scores that it gets alone.
"""

import http.client
import itertools
import json
import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from aiokafka import ConsumerRecord
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from consumers.history.sqlite import Batch, SqliteHistory
from consumers.runtime.process import wall_clock_ms
from schemas.rows import CallRow, Labels, Row, TurnRow, decode
from streamer.notebook import score
from streamer.sources.http.receiving import NEW_CALL_EVENTS
from streamer.sources.replay import WireEvent, in_time_order, renamed, seconds_to_now, shifted
from streamer.sources.simulator.plan import CallKind
from streamer.sources.simulator.traffic import simulate_call
from tests.integration.metrics_page import page, total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import records_on
from tests.integration.test_bad_input import final_rows
from tests.integration.test_ingest import listening
from tests.support.patience import patient

Json = dict[str, Any]

QUIET, NOISY = "quiet", "noisy"
TOKENS: Final = {QUIET: "token-of-the-quiet-tenant", NOISY: "token-of-the-noisy-tenant"}
KINDS: Final[tuple[CallKind, ...]] = ("cascade", "phone", "audio_llm")
NOISE: Final = {"agent": "noise", "pipeline_type": "s2s"}
"""What the calls of the noisy tenant say of themselves. No call of the quiet one is of that
pipeline, so delays are told apart.
"""
WORDS: Final = "badge"
"""Said in every past call, so that each search finds as many as it may."""
NO_ANSWER: Final = 0
"""The connection ended without an answer: the server closes one that was idle for long, or is too
slow.
"""
COME_AGAIN: Final = {http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE, NO_ANSWER}
"""After these a sender sends the same again."""
LONGEST_PAUSE_SECONDS: Final = 1.0
"""Before somebody who was refused comes again, whatever the answer asks for: people
press reload.
"""
SENDERS: Final = 4
"""Connections of the quiet tenant, each with calls of its own."""
LAST_EVENTS: Final = 30
"""Of a call, that come together: what ends a call may be some events before its last one."""
GRACE_MS: Final = "1500"


class Load(NamedTuple):
    """How much of everything comes at once.

    Attributes:
        seconds: How long, on a machine that keeps up.
        events_per_second: Events that the noisy tenant may send; it begins as many calls as that
            allows.
        turns: Turns of its long call.
        readers: Readers of the pages of that call, one page after the other.
        searches: Searches among past calls, one after the other.
        past_calls: Calls in history.
        quiet_calls: Calls of the quiet tenant that run beside it.
        rounds: Times that each of them gets events; in between it is silent.
    """

    seconds: float
    events_per_second: int
    turns: int
    readers: int
    searches: int
    past_calls: int
    quiet_calls: int
    rounds: int


SHORT: Final = Load(
    seconds=15,
    events_per_second=150,
    turns=150,
    readers=4,
    searches=2,
    past_calls=5_000,
    quiet_calls=8,
    rounds=4,
)
LONG: Final = Load(
    seconds=float(os.environ.get("NOISY_SECONDS", "600")),
    events_per_second=500,
    turns=900,
    readers=60,
    searches=30,
    past_calls=200_000,
    quiet_calls=50,
    rounds=30,
)
"""For a quiet machine. NOISY_SECONDS sets another duration."""

SHORT_SERVICE: Final = pytest.mark.service(
    partitions=1,
    ingest__port="0",
    console__port="0",
    limits__closing_grace_ms=GRACE_MS,
    limits__max_open_calls="300",
)
"""Fewer calls may be open than the noisy tenant begins while a call of the quiet one is silent: the
new ones make room first.
"""
LONG_SERVICE: Final = pytest.mark.service(
    ingest__port="0", console__port="0", limits__closing_grace_ms=GRACE_MS
)


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """With a history, and a place for the file of tenants."""
    return environment | {
        "CALLGAUGE_INGEST__TENANTS_FILE": str(tmp_path / "tenants.toml"),
        "CALLGAUGE_HISTORY__FOLDER": str(tmp_path / "history"),
    }


def write_tenants(environment: Mapping[str, str], load: Load) -> None:
    """The quiet tenant may send a whole call at once; the noisy one is at its rate with its new
    calls and one more event.
    """
    rates = {QUIET: 1_000_000, NOISY: load.events_per_second + 1}
    Path(environment["CALLGAUGE_INGEST__TENANTS_FILE"]).write_text(
        "".join(
            f'[{name}]\ntoken = "{TOKENS[name]}"\nevents_per_second = {rate}\n'
            for name, rate in rates.items()
        )
    )


def write_past_calls(folder: Path, count: int) -> None:
    """Past calls of the noisy tenant as history keeps them: when they began, why they ended, what
    was said.
    """
    (sample,) = score("sample")
    labels = Labels(agent="noise", tenant=NOISY)
    with closing(SqliteHistory(folder, writes=True)) as store:
        for first in range(0, count, 1_000):
            at_ms = wall_clock_ms()
            names = [f"past-{number}" for number in range(first, min(first + 1_000, count))]
            rows = [
                structs.replace(
                    sample.call,
                    conversation_id=name,
                    known_ms=at_ms,
                    first_known_ms=at_ms,
                    labels=labels,
                )
                for name in names
            ]
            said = [
                json.dumps(
                    [
                        {
                            "role": "user",
                            "time_in_call_secs": 1,
                            "message": f"I lost my {WORDS} in {name}",
                        }
                    ]
                ).encode()
                for name in names
            ]
            store.write(
                Batch(
                    rows, [(name, at_ms, each) for name, each in zip(names, said, strict=True)], {}
                )
            )


class Client:
    """One that asks one server, with one connection, and counts the statuses of the answers."""

    def __init__(self, address: str) -> None:
        self._place = urlsplit(address).netloc
        self._client = http.client.HTTPConnection(self._place, timeout=120)
        self.pause_seconds = 0.0
        self.statuses: Counter[int | str] = Counter()
        self.seconds: list[float] = []

    def close(self) -> None:
        self._client.close()

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """The status of the answer."""
        begin = time.monotonic()
        try:
            self._client.request("GET" if body is None else "POST", path, body, dict(headers or {}))
            answer = self._client.getresponse()
            answer.read()
            status, self.pause_seconds = (
                answer.status,
                float(answer.headers.get("retry-after", LONGEST_PAUSE_SECONDS)),
            )
        except (OSError, http.client.HTTPException) as error:
            self._client.close()  # the next request opens another connection
            self.statuses[type(error).__name__] += 1
            status, self.pause_seconds = NO_ANSWER, LONGEST_PAUSE_SECONDS
        else:
            self.statuses[status] += 1
        self.seconds.append(time.monotonic() - begin)
        return status

    def post(self, events: Sequence[Json], tenant: str) -> None:
        """Sends events until they are accepted, as a sender does."""
        until = time.monotonic() + patient(120)
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {TOKENS[tenant]}",
            "idempotency-key": uuid.uuid4().hex,
        }
        while (
            status := self.ask("/events", json.dumps(events).encode(), headers)
        ) != http.client.ACCEPTED:
            assert status in COME_AGAIN, (status, self.statuses, events[:1])
            assert time.monotonic() < until, f"refused all the time: {self.statuses}"
            time.sleep(min(self.pause_seconds, LONGEST_PAUSE_SECONDS))

    def ask_until(self, over: threading.Event, paths: Sequence[str]) -> None:
        """Asks for these pages again and again; refused, it comes again soon."""
        while not over.is_set():
            for path in paths:
                if self.ask(path) != http.client.OK:
                    over.wait(min(self.pause_seconds, LONGEST_PAUSE_SECONDS))

    def probe_until(self, over: threading.Event) -> None:
        """Asks whether the process lives, as an orchestrator does."""
        while not over.is_set():
            self.ask("/healthz")
            over.wait(0.5)


def event(call: str, kind: str, at_ms: int, **more: Any) -> Json:
    return {"conversation_id": call, "type": kind, "timestamp": at_ms, **more}


def long_call(name: str, turns: int) -> Iterator[Json]:
    """A call that goes on, with some hundred characters and one use of a tool in each turn."""
    begin_ms = wall_clock_ms() - turns * 4_000
    words = "a word of many " * 14
    yield event(name, "call_started", begin_ms, **NOISE)
    for turn in range(turns):
        at_ms = begin_ms + turn * 4_000
        for kind, seen_ms in (
            ("user_speech_started", at_ms + 100),
            ("user_speech_stopped", at_ms + 1_000),
        ):
            yield event(
                name, "speech_event", seen_ms, data={"kind": kind, "timestamp": seen_ms / 1_000}
            )
        yield event(name, "user_message", at_ms + 1_000, data={"content": f"{words}{turn}"})
        used = {"tool_call_id": f"tool-{turn}", "function_name": "look_up"}
        for kind, seen_ms, more in (
            ("function_call_started", at_ms + 1_200, {"arguments": {"text": words}}),
            ("function_call_completed", at_ms + 1_500, {"result": {"text": words}}),
        ):
            yield event(name, "function_call_event", seen_ms, data={"kind": kind, **used, **more})
        for kind, seen_ms in (
            ("bot_speech_started", at_ms + 2_000),
            ("bot_speech_stopped", at_ms + 3_000),
        ):
            yield event(
                name, "speech_event", seen_ms, data={"kind": kind, "timestamp": seen_ms / 1_000}
            )
        yield event(name, "assistant_message", at_ms + 3_000, data={"content": f"{words}{turn}"})


def posted(name: str, each: WireEvent) -> Json:
    """An event of a simulated call as it is sent over HTTP."""
    stream = "user_sim" if each.source == "elevenlabs" else each.source
    return {**json.loads(each.value), "conversation_id": name, "stream": stream}


def quiet_calls(count: int) -> list[list[WireEvent]]:
    calls = []
    for number in range(count):
        call = simulate_call(
            70 + number, start_ms=0, kind=KINDS[number % len(KINDS)], tenant=QUIET
        ).call
        calls.append(
            list(
                in_time_order(
                    renamed(shifted(call, seconds_to_now(call, wall_clock_ms(), None)), "x")
                )
            )
        )
    return calls


def parts(call: Sequence[WireEvent], count: int) -> list[Sequence[WireEvent]]:
    """The events of a call in so many parts, in their order."""
    last = len(call) - LAST_EVENTS
    edges = [*(last * number // (count - 1) for number in range(count)), len(call)]
    return [call[begin:end] for begin, end in itertools.pairwise(edges)]


def post_part(client: Client, name: str, part: Sequence[WireEvent]) -> None:
    """Sends a part of a call of the quiet tenant. Its start goes ahead: what comes before it counts
    for nobody.
    """
    events = [posted(name, each) for each in part]
    is_first = events[0].get("type") == "call_started"
    for several in (events[:1], events[1:]) if is_first else (events,):
        if several:
            client.post(several, QUIET)


def paced(seconds: float, count: int) -> Iterator[int]:
    """Numbers, at equal distances in time; each comes as soon as it can if its time has passed."""
    begin = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begin + seconds * number / count - time.monotonic()))
        yield number


def make_noise(client: Client, load: Load, of_long_call: str) -> None:
    """Begins as many new calls as its rate allows, and goes on with the long one, so that its page
    changes.
    """
    new_calls = max(1, load.events_per_second // (1 + NEW_CALL_EVENTS) - 1)
    for second in paced(load.seconds, round(load.seconds)):
        new = [
            event(
                f"noise-{second}-{number}-{uuid.uuid4().hex[:8]}",
                "call_started",
                wall_clock_ms(),
                **NOISE,
            )
            for number in range(new_calls)
        ]
        client.post(
            [
                *new,
                event(
                    of_long_call,
                    "user_message",
                    wall_clock_ms(),
                    data={"content": f"still here {second}"},
                ),
            ],
            NOISY,
        )


def go_on_quietly(client: Client, load: Load, calls: Mapping[int, Sequence[WireEvent]]) -> None:
    """Some calls of the quiet tenant, by number: one after the other gets its next events."""
    of_calls = [(number, parts(call, load.rounds)) for number, call in calls.items()]
    for place in paced(load.seconds, load.rounds * len(calls)):
        part, which = divmod(place, len(calls))
        number, of_call = of_calls[which]
        post_part(client, f"beside-{number}", of_call[part])


def console_of(text: str) -> str:
    found = re.search(r"console_listens.*?(http://[\d.]+:\d+)", text)
    assert found is not None, text
    return found[1]


def statuses_of(clients: Sequence[Client]) -> dict[int | str, int]:
    return dict(sum((each.statuses for each in clients), Counter[int | str]()))


DELAY: Final = "callgauge_event_to_score_seconds_bucket"


def delays(metrics: str) -> Counter[float]:
    """Of the scores of the quiet tenant, how many took at most so many seconds, from the broker's
    time of the event to counted.
    """
    lines = "\n".join(line for line in page(metrics).splitlines() if line.startswith(DELAY))
    found: Counter[float] = Counter()
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            if sample.labels["pipeline"] != NOISE["pipeline_type"]:
                found[float(sample.labels["le"])] += int(sample.value)
    return found


def at_most(counted: Mapping[float, int], share: float) -> float:
    """The edge that this share of the delays does not exceed."""
    number = max(counted.values())
    return next(edge for edge, count in sorted(counted.items()) if count >= share * number)


def percentile(values: Sequence[float], share: float) -> float:
    return (
        sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
    )


async def records_of_the_quiet(
    environment: Mapping[str, str], load: Load
) -> list[tuple[ConsumerRecord, Row]]:
    """What `scores` has of the calls of the quiet tenant; there are very many of the other one."""
    keys = {
        f"{kind}-{number}".encode()
        for kind in ("alone", "beside")
        for number in range(load.quiet_calls)
    }
    found = await records_on(environment, "scores")
    return [(each, decode(each.value)) for each in found if each.value and each.key in keys]


def is_first_latency(row: Row) -> bool:
    return isinstance(row, TurnRow) and "wait" in row.news


def first_latencies(records: Sequence[tuple[ConsumerRecord, Row]]) -> list[int]:
    """Of each turn, milliseconds from the broker's time of the event that showed its latency to its
    row.
    """
    return [
        record.timestamp - each.known_ms
        for record, each in records
        if isinstance(each, TurnRow) and is_first_latency(each)
    ]


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(SHORT, marks=SHORT_SERVICE, id="short"),
        pytest.param(LONG, marks=(pytest.mark.long, LONG_SERVICE), id="long"),
    ],
)
async def test_a_tenant_within_its_rights_changes_nothing_for_another(
    environment: dict[str, str], tmp_path: Path, load: Load
) -> None:
    write_tenants(environment, load)
    write_past_calls(tmp_path / "history", load.past_calls)
    calls = quiet_calls(load.quiet_calls)
    with started(tmp_path / "run.log", "run", **environment) as process, ExitStack() as clients:
        ingest = listening(process)
        console = console_of(process.printed("console_listens"))

        def counted(name: str) -> float:
            return total(ingest.metrics, name, tenant=QUIET)

        def client(address: str) -> Client:
            return clients.enter_context(closing(Client(address)))

        noisy, quiet = client(ingest.address), [client(ingest.address) for _ in range(SENDERS)]
        readers = [client(console) for _ in range(load.readers)]
        searchers = [client(console) for _ in range(load.searches)]
        prober = client(ingest.metrics)
        for number, call in enumerate(calls):
            post_part(quiet[0], f"alone-{number}", call)
        wait_for(
            "the calls alone", lambda: counted("callgauge_calls_ended_total") == len(calls), 60
        )
        latencies = counted("callgauge_turns_final_total")
        assert latencies > load.quiet_calls
        of_long_call = list(long_call("long", load.turns))
        for first in range(0, len(of_long_call), load.events_per_second):
            noisy.post(of_long_call[first : first + load.events_per_second], NOISY)
        wait_for("the long call", lambda: readers[0].ask("/calls/long") == http.client.OK, 60)
        before = delays(ingest.metrics)

        over = threading.Event()
        search = (f"/past?since=30d&text={WORDS}", f"/past?since=30d&text=lost+{WORDS}+past")
        with ThreadPoolExecutor(2 + SENDERS + load.readers + load.searches) as pool:
            try:
                beside = [
                    pool.submit(each.ask_until, over, ("/calls/long", "/report/long"))
                    for each in readers
                ]
                beside += [pool.submit(each.ask_until, over, search) for each in searchers]
                beside.append(pool.submit(prober.probe_until, over))
                work = [pool.submit(make_noise, noisy, load, "long")]
                for number, sender in enumerate(quiet):
                    its = {each: calls[each] for each in range(number, len(calls), SENDERS)}
                    work.append(pool.submit(go_on_quietly, sender, load, its))
                for each in work:
                    each.result()
            finally:
                over.set()
            for each in beside:
                each.result()
        wait_for(
            "the quiet calls", lambda: counted("callgauge_calls_ended_total") == 2 * len(calls), 120
        )
        restarts = total(ingest.metrics, "callgauge_role_restarts_total")
        by_seconds = delays(ingest.metrics) - before
        finals = counted("callgauge_turns_final_total")
        firsts = counted("callgauge_turn_response_latency_seconds_count") + counted(
            "callgauge_turns_overlapped_total"
        )
        text = process.text
        assert process.is_running
    records = await records_of_the_quiet(environment, load)
    waited_ms = first_latencies(
        [each for each in records if each[1].conversation_id.startswith("beside-")]
    )
    print(
        f"\n{load}\n"
        f"quiet tenant: {statuses_of(quiet)}, slowest answer "
        f"{max(max(each.seconds) for each in quiet):.2f} s\n"
        f"its latencies, from the broker's time to the record: p50 {percentile(waited_ms, 0.5)} "
        "ms, "
        f"p99 {percentile(waited_ms, 0.99)} ms, at most {max(waited_ms, default=0)} ms, of "
        f"{len(waited_ms)}; "
        f"counted for it, with those of the calls alone: {firsts:.0f}\n"
        f"its scores, from the broker's time to counted: p50 <= {at_most(by_seconds, 0.5)} s, "
        f"p99 <= {at_most(by_seconds, 0.99)} s, all <= {at_most(by_seconds, 1)} s, of "
        f"{max(by_seconds.values())}\n"
        f"noisy tenant: {dict(noisy.statuses)}; readers: {statuses_of(readers)}; searches: "
        f"{statuses_of(searchers)}\n"
        f"/healthz: {dict(prober.statuses)}, slowest {max(prober.seconds):.2f} s, "
        f"over 1 s {sum(each > 1 for each in prober.seconds)} of {len(prober.seconds)}\n"
        f"restarts of roles: {restarts:.0f}"
    )
    assert (restarts, [sign for sign in ("Traceback", "role_failed") if sign in text]) == (0, []), (
        text[-6_000:]
    )
    for asked in (readers, searchers):
        answers = {each for each in statuses_of(asked) if isinstance(each, int)}
        assert {http.client.OK} <= answers <= {http.client.OK, http.client.SERVICE_UNAVAILABLE}
    unchanged([each for _, each in records], load)
    assert finals == 2 * latencies
    if load is LONG:
        assert firsts == sum(map(is_first_latency, (each for _, each in records)))
        assert at_most(by_seconds, 0.99) <= 1.0
        assert percentile(waited_ms, 0.99) < 1_000
        assert max(prober.seconds) < 1.0


def unchanged(rows: Sequence[Row], load: Load) -> None:
    """Each call of the quiet tenant is closed once, and has the rows that it got alone."""
    closings = [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]
    closed = Counter(row.conversation_id for row in closings)
    assert [name for name, times in closed.items() if times > 1] == [], "a call is closed once"
    why = {row.conversation_id: row.close_reason for row in closings}
    numbers = range(load.quiet_calls)
    assert [why.get(f"beside-{each}") for each in numbers] == [
        why.get(f"alone-{each}") for each in numbers
    ]
    finals = final_rows(list(rows))
    for each in numbers:
        assert finals[f"beside-{each}"] == finals[f"alone-{each}"]
        assert len(finals[f"beside-{each}"]) > 3
