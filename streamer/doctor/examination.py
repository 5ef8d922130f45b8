"""Examines settings, broker, topics, groups and sources for what keeps scores from coming."""

import asyncio
import errno
import http.client
import socket
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from rich.table import Table

from consumers.log.stretches import newest_tick
from consumers.runtime.kafka.connection import (
    RIGHTS_PAGE,
    KafkaSettings,
    KafkaUnreachableError,
    explained,
    missing_rights,
    settings_of,
)
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.process import OperatorError, wall_clock_ms
from schemas.closed_sets import InputSource
from schemas.events.codec import Misread, RefusedRecordError, StructuredModeError, decode, misread_of
from schemas.events.elevenlabs import AgentFailed
from schemas.events.envelope import read_envelope
from schemas.events.pipecat import ProcessorFailed
from schemas.goals.goal_set import GoalSet
from schemas.topics import (
    EVENTS_TOPIC,
    INPUT_TOPICS,
    JUDGE_VERDICTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    SEQUENCER_TOPIC,
    SOURCE_BY_TOPIC,
    TOPICS,
    TRANSCRIPTS_TOPIC,
    duration,
)
from streamer.cluster.facts import (
    FILES_GROUP,
    ClockFacts,
    ClusterFacts,
    GroupFacts,
    LogBounds,
    clock_facts,
    cluster_facts,
    group_facts,
    log_bounds,
    needs_of,
    partitions_of,
)
from streamer.doctor.findings import (
    Finding,
    Verdict,
    broker_finding,
    clock_findings,
    counted,
    log_findings,
    replica_findings,
    settings_findings,
    topic_findings,
    topic_setting_findings,
)
from streamer.goals.files import GoalFolderError, doubles_in, goal_files_of, read_goal_file
from streamer.settings.all_settings import IngestSettings, Settings, SettingsError
from streamer.settings.listing import settings_from
from streamer.sources.monitor import LiveCalls, LookError

# The checks of `callgauge doctor` for things that `run` would stumble over: goals, the judge, the address of
# /metrics, and quarantine.

RECENT_MS: Final = 3_600_000
"""Refused records of the last hour are a fault that lasts, or one that somebody should know of."""
PORT_ANSWER_SECONDS: Final = 2.0
"""How long the program may take to answer that listens on the address of /metrics or of `ingest`."""
MAX_PAGE_BYTES: Final = 16_777_216
"""How much of /metrics is read; a full page has 5 MB."""
_OURS: Final = b"callgauge_build_info"
_STARTED: Final = "process_start_time_seconds"
_READERS: Final[Mapping[str, str]] = {
    "callgauge_sequencer_events_total": "the sequencer here has refused nothing",
    "callgauge_events_total": "the evaluator here has refused and misread nothing, and no agent reported an error",
}
"""Counters that every page of these roles has, and what it means if none of `_COUNTERS` has counted there."""
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "callgauge_sequencer_refused_total": ("refused for their bytes", "See why: `callgauge quarantine list`."),
    "callgauge_quarantined_total": ("refused", "See why: `callgauge quarantine list`."),
    "callgauge_misread_records_total": (
        "not understood",
        "The log of the evaluator names them: records_not_understood.",
    ),
    "callgauge_agent_errors_total": ("with an error of an agent", "The logs of the agents say what fails."),
}
"""Counters of a sequencer or an evaluator that show a fault of a producer: what they count, and the remedy."""
_OF_INGEST: Final = "callgauge_ingest_requests_total"
_REFUSED_EVENTS: Final = "callgauge_ingest_events_refused_total"
_REFUSED_REQUESTS: Final = frozenset({"unreadable", "unauthorized", "too_large", "limited", "too_slow"})
"""Outcomes of requests of which nothing is accepted, and which come from the sender."""
_READ_FROM_PAGE: Final = (_STARTED, *_READERS, *_COUNTERS, _OF_INGEST, _REFUSED_EVENTS)
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


def start_findings(settings: Settings) -> Iterator[Finding]:
    """Checks without Kafka. It reads the files of goals, and waits for the program that uses the port of /metrics."""
    sets, finding = goals_and_finding(settings)
    yield finding
    yield judge_finding(settings, sets)
    yield from metrics_findings(settings)


def goals_and_finding(settings: Settings) -> tuple[list[GoalSet], Finding]:
    """The goal sets of the folder, and what is to say of them."""
    folder = settings.goals.folder
    if folder is None:
        source = (
            "the topic goals is read"
            if settings.goals.reads_topic
            else "none, so only simulated calls and the sample have progress"
        )
        return [], Finding("goals", Verdict.OK, source)
    try:
        files = [read_goal_file(path) for path in goal_files_of(folder)]
    except GoalFolderError as error:
        return [], Finding("goals", Verdict.WRONG, f"{error} The evaluator would not start", "Set goals.folder.")
    good = [file for file in files if not file.mistakes]
    sets = [placed.goals for file in good for placed in file.sets]
    broken = [str(file.path) for file in files if file.mistakes]
    seen = f"{counted(len(sets), 'goal set')} in {folder}"
    if broken or (doubles := [str(each) for each in doubles_in(good)]):
        fault = f"broken and not used: {', '.join(broken)}" if broken else "; ".join(doubles)
        return sets, Finding("goals", Verdict.WARNING, f"{seen}; {fault}", f"See `callgauge goals check {folder}`.")
    if not sets:
        return sets, Finding("goals", Verdict.WARNING, f"no goal file in {folder}", "Put goal files there.")
    return sets, Finding("goals", Verdict.OK, seen)


def judge_finding(settings: Settings, sets: list[GoalSet]) -> Finding:
    """Whether a model judges, and whether somebody waits for it.

    Args:
        settings: Of the roles.
        sets: The goals that are known here.
    """
    check, judge = "judge", settings.judge
    judged = sum(subgoal.is_judged for goals in sets for subgoal in goals.subgoals)
    if judge.is_on:
        return Finding(check, Verdict.OK, f"on: {judge.model} at {judge.base_url}")
    why = "it has no key" if judge.enabled else "judge.enabled is false"
    remedy = "Set OPENAI_API_KEY or judge.api_key." if judge.enabled else "Set judge.enabled=true."
    if settings.goals.asks_judge:
        seen = f"the evaluator asks a judge, and here {why}"
        what_to_do = f"{remedy} If the judge runs elsewhere with settings of its own, all is well."
        return Finding(check, Verdict.WARNING, seen, what_to_do)
    if judged:
        return Finding(
            check, Verdict.WARNING, f"{counted(judged, 'subgoal')} can only be judged by a model, and {why}", remedy
        )
    return Finding(check, Verdict.OK, f"off: {why}")


def metrics_findings(settings: Settings) -> Iterator[Finding]:
    """Whether /metrics could be served on this machine, or is served already, and then what its evaluator counts."""
    check, host, port = "metrics address", settings.http_host, settings.http_port
    where = f"{host}:{port}"
    if not (error := _bind_error(host, port)):
        free = "is free on this machine" if port else "takes a free port at each start"
        yield Finding(check, Verdict.OK, f"{where} {free}")
        return
    answer = answer_of(host, port, "/metrics", settings.http_token)
    if answer is not None and answer.is_of_metrics:
        yield Finding(check, Verdict.OK, f"callgauge serves /metrics on {where}")
        yield from counter_findings(answer.body.decode("utf-8", "replace"), wall_clock_ms())
        return
    seen = f"`callgauge run` could not start here: {where}: {error.strerror or error}"
    what_to_do = (
        "End the program that uses the port (`ss -ltnp` names it), or set http_port; nothing to do if callgauge runs "
        "on another machine."
    )
    yield Finding(check, Verdict.WARNING, seen, what_to_do)


def counter_findings(page: str, now_ms: int) -> Iterator[Finding]:
    """Reports what a sequencer and an evaluator have refused or not understood since their start, and what a receiver of events has
    refused; nothing if the page is of other roles.

    Args:
        page: /metrics in the text format.
        now_ms: The time now, in epoch milliseconds.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTERS}
    events, requests, is_of_ingest = Counter[str](), Counter[str](), False
    started_ms, readers = now_ms, dict[str, None]()
    wanted = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(_READ_FROM_PAGE))
    for sample in (sample for family in text_string_to_metric_families(wanted) for sample in family.samples):
        if sample.name == _STARTED:
            started_ms = int(sample.value * 1_000)
        elif sample.name in counts:
            counts[sample.name][" ".join(sample.labels.values())] += int(sample.value)
        elif sample.name == _REFUSED_EVENTS:
            events[sample.labels.get("tenant", "")] += int(sample.value)
        elif sample.name == _OF_INGEST:
            is_of_ingest = True
            if (outcome := sample.labels.get("outcome", "")) in _REFUSED_REQUESTS:
                requests[" ".join(filter(None, (sample.labels.get("tenant", ""), outcome)))] += int(sample.value)
        elif sample.name in _READERS:
            readers[sample.name] = None
    since = f"since it started {duration(max(0, now_ms - started_ms))} ago"
    if is_of_ingest:
        yield from _ingest_findings(events, requests, since)
    if not readers:
        return
    for name, (what, what_to_do) in _COUNTERS.items():
        if total := counts[name].total():
            most = ", ".join(f"{labels} {count}" for labels, count in counts[name].most_common(MAX_SHOWN) if count)
            seen = f"{counted(total, 'record')} {what} {since}: {most}{_more(sum(map(bool, counts[name].values())))}"
            yield Finding("counters", Verdict.WARNING, seen, what_to_do)
    if not any(map(Counter.total, counts.values())):
        calm = "; ".join(_READERS[name] for name in readers)
        yield Finding("counters", Verdict.OK, f"{calm} {since}")


def _ingest_findings(events: Counter[str], requests: Counter[str], since: str) -> Iterator[Finding]:
    """What the receiver of events has refused: senders that read no answer do not know it."""
    check = "ingest refusals"
    for what, counts in (("posted event", events), ("request", requests)):
        if total := counts.total():
            most = ", ".join(f"{name or 'everybody'} {count}" for name, count in counts.most_common(MAX_SHOWN) if count)
            seen = f"{counted(total, what)} refused {since}: {most}{_more(sum(map(bool, counts.values())))}"
            what_to_do = "The log of the ingest role names each kind once, with what to do: events_refused."
            yield Finding(check, Verdict.WARNING, seen, what_to_do)
    if not events.total() and not requests.total():
        yield Finding(check, Verdict.OK, f"no event and no request was refused {since}")


def quarantine_finding(
    bounds: Mapping[TopicPartition, LogBounds], recent: Mapping[TopicPartition, int | None]
) -> Finding:
    """Whether records were refused lately.

    Args:
        bounds: The partitions of the topic.
        recent: The first offset of the last `RECENT_MS` by partition; None without a record since then.
    """
    kept = sum(each.end - each.start for each in bounds.values())
    lately = sum(bounds[tp].end - offset for tp, offset in recent.items() if offset is not None)
    if lately:
        seen = f"{counted(lately, 'record')} refused in the last hour, {kept} kept in all"
        return Finding("quarantine", Verdict.WARNING, seen, "See why: `callgauge quarantine list`.")
    return Finding("quarantine", Verdict.OK, f"nothing refused in the last hour, {kept} kept in all")


def recent_since_ms() -> int:
    """The time from which refused records are recent, in epoch milliseconds."""
    return wall_clock_ms() - RECENT_MS


def _bind_error(host: str, port: int) -> OSError | None:
    """Why nobody can listen there now."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listener does
            probe.bind((host, port))
    except OSError as error:
        return error
    return None


class Answer(NamedTuple):
    """The answer of the program that listens at an address."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_of_metrics(self) -> bool:
        """Whether it shows metrics of callgauge, or wants a token for them as callgauge does."""
        wants_token = self.status == http.HTTPStatus.UNAUTHORIZED and "Bearer" in self.headers.get(
            "www-authenticate", ""
        )
        return wants_token or _OURS in self.body

    @property
    def takes_events(self) -> bool:
        """Whether events may be posted at this path."""
        return self.status == http.HTTPStatus.METHOD_NOT_ALLOWED and "POST" in self.headers.get("allow", "")


def answer_of(host: str, port: int, path: str, token: SecretStr | None = None) -> Answer | None:
    """The answer to GET, which changes nothing anywhere; None without one."""
    connection = http.client.HTTPConnection(_ANY_ADDRESS.get(host, host), port, timeout=PORT_ANSWER_SECONDS)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read(MAX_PAGE_BYTES))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


# The checks of a consumer group in `callgauge doctor`: members, lag and lost records. Pure.

MAX_SHOWN: Final = 5
"""Partitions named in a line; JSON has them all."""


def group_findings(
    check: str,
    role: str,
    group: GroupFacts,
    bounds: Mapping[TopicPartition, LogBounds],
    *,
    starts_at_end: bool,
) -> Iterator[Finding]:
    """Checks whether a role reads all of its partitions, its lag, and whether records were deleted before it read them.

    Args:
        check: Names the group.
        role: Name of the role, as in `callgauge run --roles`.
        group: The group.
        bounds: Every partition that it should read.
        starts_at_end: Whether it begins at the end of a partition without a committed offset.
    """
    lost = {
        tp: found.start - group.committed[tp]
        for tp, found in bounds.items()
        if group.committed.get(tp, found.start) < found.start
    }
    if lost:
        seen = f"deleted before it was done with them: {counted(sum(lost.values()), 'record')}, {_shown(lost)}"
        what_to_do = (
            "They are lost; raise retention.ms so that it is longer than any outage. An evaluator that starts now goes on "
            "with the oldest that are there."
        )
        yield Finding(check, Verdict.WRONG, seen, what_to_do)
    moved = [tp for tp, offset in group.committed.items() if tp in bounds and offset > bounds[tp].end]
    if moved:
        seen = f"it committed offsets beyond the end of {_named(moved)}: they were made anew"
        what_to_do = "Nothing, when you made them anew: an evaluator goes on from their beginning. Else see what deleted records."
        yield Finding(check, Verdict.WARNING, seen, what_to_do)
    begins = {tp: found.end if starts_at_end else found.start for tp, found in bounds.items()}
    behind = {tp: found.end - max(group.committed.get(tp, begins[tp]), found.start) for tp, found in bounds.items()}
    behind = {tp: count for tp, count in behind.items() if count > 0}
    lag = {f"{tp.topic}[{tp.partition}]": count for tp, count in sorted(behind.items())}
    waiting = (
        f"{counted(sum(behind.values()), 'record')} to read: {_shown(behind)}" if behind else "nothing left to read"
    )
    start = f"Start `callgauge run --roles {role}`."
    if group.state == "Dead" and not group.committed:
        seen, what_to_do = (
            "this group has never read",
            f"{start} If it runs, its group has another name: check the settings.",
        )
        yield Finding(check, Verdict.WARNING, seen, what_to_do, lag)
    elif group.members == 0:
        yield Finding(check, Verdict.WARNING, f"nobody reads ({group.state}); {waiting}", start, lag)
    elif group.state != "Stable":
        seen = f"its {counted(group.members, 'member')} share out the partitions anew ({group.state}); {waiting}"
        what_to_do = "Look again in half a minute; if it goes on, a member dies again and again: see its log."
        yield Finding(check, Verdict.WARNING, seen, what_to_do, lag)
    else:
        yield _assignment_finding(check, group, set(bounds), waiting, lag)


def _assignment_finding(
    check: str, group: GroupFacts, expected: set[TopicPartition], waiting: str, lag: Mapping[str, int]
) -> Finding:
    have = Counter(group.assigned)
    seen = f"{counted(group.members, 'member')}, {len(have.keys() & expected)} of {len(expected)} partitions assigned; {waiting}"
    if foreign := have.keys() - expected:
        topics = ", ".join(sorted({tp.topic for tp in foreign})[:MAX_SHOWN])
        what_to_do = "Give this installation a group of its own, or check the topic prefix."
        return Finding(check, Verdict.WRONG, f"{seen}; it also reads {topics}, so others use its name", what_to_do, lag)
    if missing := expected - have.keys():
        names = _named(sorted(missing))
        return Finding(
            check, Verdict.WRONG, f"{seen}; nobody reads {names}", "Restart its members: they see the topics anew.", lag
        )
    return Finding(check, Verdict.OK, seen, lag=lag)


def _shown(counts: Mapping[TopicPartition, int]) -> str:
    """The largest few, and how many more there are."""
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    largest_lags = ", ".join(f"{tp.topic}[{tp.partition}] {count}" for tp, count in largest[:MAX_SHOWN])
    return largest_lags + _more(len(largest))


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{tp.topic}[{tp.partition}]" for tp in partitions[:MAX_SHOWN]) + _more(len(partitions))


def _more(count: int) -> str:
    return f" and {count - MAX_SHOWN} more" if count > MAX_SHOWN else ""


# A sample of what producers sent in the last hour.

SAMPLED_RECORDS: Final = 1_000
"""Records of an input that are looked at, over all of its partitions, spread over the last hour."""
LEAST_SAMPLED_RECORDS: Final = 10
"""Of each partition, however many there are."""
SAMPLES: Final = 12
"""Places of the hour at which records are read: one in five minutes."""
SAMPLE_FETCH_BYTES: Final = 65_536
"""What the broker sends of a partition at a time; a megabyte for a few records of each place would be too much."""
SAMPLE_SECONDS: Final = 10.0
"""Deadline of reading them, the newest first; what has arrived by then is checked."""


def sampled_offsets(begin: int, end: int, most: int) -> list[range]:
    """The offsets to look at between two: all, or pieces at even distances, the newest first.

    Example:
        >>> sampled_offsets(0, 1_000, 4), sampled_offsets(7, 9, 4), sampled_offsets(9, 9, 4)
        ([range(999, 1000), range(749, 750), range(499, 500), range(249, 250)], [range(7, 9)], [])
    """
    if end - begin <= most:
        return [range(begin, end)] if begin < end else []
    pieces = min(SAMPLES, most)
    lasts = (begin + (end - begin) * number // pieces for number in range(pieces, 0, -1))
    return [range(last - most // pieces, last) for last in lasts]


async def look_at_sample(
    consumer: AIOKafkaConsumer, partitions: Mapping[str, int], look: Callable[[Any], None]
) -> None:
    """Looks at records spread over the last hour; of a topic that has none since then, at its newest records.

    Args:
        consumer: A started one in no group; it is given other partitions.
        partitions: Of each topic, how many it has.
        look: Is called with each of these records.

    Raises:
        KafkaError: The broker refuses.
    """
    inputs = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    consumer.assign(inputs)
    bounds = await log_bounds(consumer, inputs)
    recent = await consumer.offsets_for_times(dict.fromkeys(inputs, recent_since_ms()))
    pieces: dict[TopicPartition, list[range]] = {}
    active = {tp.topic for tp, at in recent.items() if at is not None}
    for tp, each in bounds.items():
        share = max(LEAST_SAMPLED_RECORDS, SAMPLED_RECORDS // partitions[tp.topic])
        newest = each.end if tp.topic in active else each.end - share
        pieces[tp] = sampled_offsets(max(each.start, recent[tp].offset if recent[tp] else newest), each.end, share)
    until = time.monotonic() + SAMPLE_SECONDS
    for place in range(SAMPLES):
        piece = {tp: of_tp[place] for tp, of_tp in pieces.items() if place < len(of_tp)}
        for tp, offsets in piece.items():
            consumer.seek(tp, offsets.start)
        while piece and (seconds := until - time.monotonic()) > 0:
            for tp, records in (await consumer.getmany(*piece, timeout_ms=max(1, int(seconds * 1_000)))).items():
                for record in (record for record in records if record.offset < piece[tp].stop):
                    look(record)
            # By position, not by record: the end of a transaction has an offset and is no record.
            piece = {tp: of_tp for tp, of_tp in piece.items() if await consumer.position(tp) < of_tp.stop}


# The checks of `ingest` and `monitor` in `callgauge doctor`: secrets, addresses, rights on the input topics, and
# ElevenLabs' API.

LOOK_SECONDS: Final = 20.0
"""How long ElevenLabs may take for the list of calls."""
_EVENTS_PATH: Final = "/events"


async def source_findings(settings: Settings) -> AsyncIterator[Finding]:
    """Checks both roles without Kafka: their settings, the address of `ingest`, and whether ElevenLabs lets the monitor in."""
    for finding in secret_findings(settings):
        yield finding
    if settings.ingest.is_on:
        yield await asyncio.to_thread(address_finding, settings)
    if settings.monitor.is_on:
        yield await reach_finding(settings)


async def right_findings(settings: Settings, kafka: KafkaSettings) -> Sequence[Finding]:
    """Checks by the broker's own answer, without a record, whether this user may write the topics of the two roles."""
    switches = {"ingest": settings.ingest.is_on, "monitor": settings.monitor.is_on}
    return [await _right_finding(role, settings, kafka) for role, is_on in switches.items() if is_on]


def secret_findings(settings: Settings) -> Iterator[Finding]:
    """Yields the senders that each role accepts. The settings refuse a wrong secret earlier."""
    ingest, monitor = settings.ingest, settings.monitor
    if ingest.is_on:
        yield Finding("ingest", Verdict.OK, _receives(ingest))
    else:
        seen = "off: there is no token for POST /events, no secret of ElevenLabs' webhook and no file of tenants"
        yield Finding("ingest", Verdict.OK, seen)
    if not monitor.is_on:
        yield Finding("monitor", Verdict.OK, "off: there is no key of ElevenLabs' API")
        return
    agents = f"the calls of {counted(len(monitor.agents), 'agent')}" if monitor.agents else "the calls of all agents"
    yield Finding("monitor", Verdict.OK, f"follows {agents} at {monitor.base_url}")


def address_finding(settings: Settings) -> Finding:
    """Whether `ingest` could listen now on this machine, or listens already."""
    host, port = settings.ingest.host, settings.ingest.port
    where = f"{host}:{port}"
    if port and port == settings.http_port and _overlap(host, settings.http_host):
        seen = f"{where} is also the address of /metrics, so the later of the two cannot start"
        return Finding("ingest address", Verdict.WRONG, seen, "Set ingest.port or http_port to another port.")
    if error := _bind_error(host, port):
        answer = answer_of(host, port, _EVENTS_PATH) if error.errno == errno.EADDRINUSE else None
        if answer is not None and answer.takes_events:
            return Finding("ingest address", Verdict.OK, f"a receiver of events listens on {where}")
        seen = f"nobody can listen on {where}: {error.strerror or error}"
        what_to_do = "End the program that uses the port (`ss -ltnp` names it), or set ingest.host and ingest.port."
        return Finding("ingest address", Verdict.WRONG, seen, what_to_do)
    free = "is free on this machine" if port else "takes a free port at each start"
    return Finding("ingest address", Verdict.OK, f"{where} {free}")


async def reach_finding(settings: Settings) -> Finding:
    """Whether ElevenLabs lists calls for the key. Whether the key may also follow one shows only while a call runs."""
    check = "monitor reach"
    try:
        async with asyncio.timeout(LOOK_SECONDS), httpx2.AsyncClient() as client:
            calls = await LiveCalls(settings.monitor, client).look(time.time())
    except (LookError, TimeoutError) as error:
        seen = str(error) or f"ElevenLabs does not answer within {LOOK_SECONDS:g} s"
        seen = f"{seen}, so no call is followed"
        what_to_do = (
            "Check monitor.api_key and that it may write agents, monitor.agents, monitor.base_url, and the network."
        )
        return Finding(check, Verdict.WRONG, seen, what_to_do)
    return Finding(check, Verdict.OK, f"ElevenLabs accepts the key; {counted(len(calls), 'call')} in progress")


async def _right_finding(role: str, settings: Settings, kafka: KafkaSettings) -> Finding:
    check = f"{role} rights"
    needs = needs_of((role,), settings)
    names = ", ".join(kafka.topic(name) for name in needs.operations)
    try:
        missing = await missing_rights(kafka, needs)
    except (KafkaError, KafkaUnreachableError, TimeoutError) as error:
        return Finding(check, Verdict.UNKNOWN, f"the broker does not say what this user may do ({error})")
    if missing:
        seen = f"{kafka.security.who} lacks rights: {'; '.join(missing)}"
        what_to_do = f"Give it these, for example with `kafka-acls.sh --add`; {RIGHTS_PAGE}"
        return Finding(check, Verdict.WRONG, seen, what_to_do)
    return Finding(check, Verdict.OK, f"{kafka.security.who} may write to {names}")


def _receives(ingest: IngestSettings) -> str:
    senders = ingest.senders()
    tokens = sum(sender.token is not None for sender in senders.values())
    secrets = sum(sender.elevenlabs_secret is not None for sender in senders.values())
    events = f"POST /events has {counted(tokens, 'token')}" if tokens else "POST /events is off, without a token"
    webhook = f"ElevenLabs' webhook has {counted(secrets, 'secret')}" if secrets else "ElevenLabs' webhook is off"
    return f"{events}; {webhook}"


def _overlap(one: str, other: str) -> bool:
    return one == other or one in _ANY_ADDRESS or other in _ANY_ADDRESS


# Checks by that sample whether producers send anything, whether callgauge understands it, and whether agents report
# errors.

SILENT_MS: Final = 600_000
"""An input without an event for so long is told: its producers may be down, or no call runs."""
MAX_KINDS: Final = 16
"""Kinds of records that one answer names for an input, the most frequent first."""


class Understanding:
    """Counts the records of the sample, and the ones among them that are not understood."""

    def __init__(self, source_by_topic: Mapping[str, InputSource]) -> None:
        self._source_by_topic = source_by_topic
        self._read: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._misread: Counter[tuple[str, Misread]] = Counter()
        self._errors: Counter[str] = Counter()
        self._newest_ms: dict[str, int] = {}

    def look(self, record: Any) -> None:
        """Looks at one record as the broker has it."""
        topic = record.topic
        if record.value is None or topic not in self._source_by_topic:
            return
        self._read[topic] += 1
        self._newest_ms[topic] = max(record.timestamp, self._newest_ms.get(topic, 0))
        source = self._source_by_topic[topic]
        try:
            try:
                event = decode(source, record.value, read_envelope(record.headers))
            except StructuredModeError as found:
                event = decode(source, found.value, read_envelope(found.headers))
        except RefusedRecordError:
            self._refused[topic] += 1
            return
        self._errors[topic] += isinstance(event, AgentFailed | ProcessorFailed)
        misread = misread_of(event)
        if misread is not None:
            self._misread[topic, misread] += 1

    def findings(self, now_ms: int) -> Iterator[Finding]:
        """Whether events come, which records are refused or not understood, and errors of agents, by input.

        Args:
            now_ms: The time now, in epoch milliseconds.
        """
        yield self._silence(now_ms)
        for topic, count in sorted(self._refused.items()):
            seen = f"{self._of(topic, count)} cannot be read and go to quarantine"
            yield Finding("records", Verdict.WARNING, seen, "`callgauge quarantine list` says why.")
        for (topic, misread), count in self._misread.most_common(MAX_KINDS):
            seen = f"{self._of(topic, count)} are not understood: {misread.what}"
            yield Finding("records", Verdict.WARNING, seen, misread.what_to_do)
        for topic, count in sorted((+self._errors).items()):
            what_to_do = (
                "The logs of the agents say what fails. `callgauge_calls_with_agent_errors_total` says whose they are."
            )
            seen = f"{self._of(topic, count)} are errors that agents report"
            yield Finding("records", Verdict.WARNING, seen, what_to_do)
        if self._read and not self._refused and not self._misread:
            seen = f"all {counted(self._read.total(), 'record')} looked at are understood"
            yield Finding("records", Verdict.OK, seen)

    def _of(self, topic: str, count: int) -> str:
        return f"{count} of {counted(self._read[topic], 'record')} looked at in {topic}"

    def _silence(self, now_ms: int) -> Finding:
        if not self._newest_ms:
            seen = f"no event in {', '.join(sorted(self._source_by_topic))}: none was sent, or retention took them"
            what_to_do = (
                "Start a producer, or `callgauge simulate`; check the address and topic prefix that producers have."
            )
            return Finding("producers", Verdict.WARNING, seen, what_to_do)
        ages = {topic: max(0, now_ms - newest_ms) for topic, newest_ms in sorted(self._newest_ms.items())}
        if silent := {topic: age for topic, age in ages.items() if age >= SILENT_MS}:
            seen = "; ".join(f"no event in {topic} for {duration(age - age % 60_000)}" for topic, age in silent.items())
            what_to_do = "Nothing if no call runs that writes there. Else see the log, address and topic prefix of its producers."
            return Finding("producers", Verdict.WARNING, seen, what_to_do)
        seen = ", ".join(f"{duration(age - age % 1_000)} ago in {topic}" for topic, age in ages.items())
        return Finding("producers", Verdict.OK, f"the last event came {seen}")


# Checks everything that a running callgauge depends on. Reads only.

ANSWER_SECONDS: Final = 20.0
"""How long one check may take; then it is unknown, and the next one goes on."""
_PRODUCED_TOPICS: Final = tuple(name for name in INPUT_TOPICS if name != JUDGE_VERDICTS_TOPIC)
"""Verdicts come from the judge: nobody is told that they are missing."""


class _View(NamedTuple):
    """A cluster that answers, and the two clients that look at it."""

    settings: Settings
    admin: AIOKafkaAdminClient
    consumer: AIOKafkaConsumer
    cluster: ClusterFacts

    def partitions(self, *topics: str) -> Mapping[str, int]:
        """By full name, how many partitions these topics of the topic table have; without those that are not there."""
        names = map(self.settings.kafka.topic, topics)
        return {name: len(self.cluster.topics[name]) for name in names if name in self.cluster.topics}


class _Check(NamedTuple):
    """A question to the cluster.

    Attributes:
        name: Name of the check, for the finding that it could not be made.
        topics: The topics that it looks at; without any of them it is not made.
        look: Asks, and makes the findings.
    """

    name: str
    topics: Sequence[str]
    look: Callable[[_View, Mapping[str, int]], Awaitable[Iterable[Finding]]]


async def _topic_settings(view: _View, _: Mapping[str, int]) -> Iterable[Finding]:
    kafka, topics = view.settings.kafka, view.cluster.topics
    existing = {kafka.topic(topic.name): topic.name for topic in TOPICS if kafka.topic(topic.name) in topics}
    known = await settings_of(view.admin, existing) if existing else {}
    of_settings = topic_setting_findings(known, list(existing.values()), view.settings)
    return [*of_settings, *replica_findings(topics, known, kafka)]


async def _clock(view: _View, partitions: Mapping[str, int]) -> Iterable[Finding]:
    clocks: defaultdict[int, list[ClockFacts]] = defaultdict(list)
    for tp, clock in (await clock_facts(view.consumer, partitions_of(partitions, partitions))).items():
        clocks[view.cluster.topics[tp.topic][tp.partition].leader].append(clock)
    return clock_findings(clocks)


async def _log(view: _View, partitions: Mapping[str, int]) -> Iterable[Finding]:
    kafka = view.settings.kafka
    ticks = {tp: await newest_tick(view.consumer, tp) for tp in partitions_of(partitions, [kafka.topic(EVENTS_TOPIC)])}
    inputs = {kafka.topic(topic): source for topic, source in SOURCE_BY_TOPIC.items()}
    bounds = await log_bounds(view.consumer, partitions_of(partitions, inputs))
    ends = {(inputs[tp.topic], tp.partition): found.end for tp, found in bounds.items()}
    return log_findings(ticks, ends, wall_clock_ms())


async def _producers(view: _View, partitions: Mapping[str, int]) -> Iterable[Finding]:
    kafka = view.settings.kafka
    sources = {kafka.topic(topic): SOURCE_BY_TOPIC[topic] for topic in _PRODUCED_TOPICS}
    understanding = Understanding(sources)
    await look_at_sample(view.consumer, partitions, understanding.look)
    return understanding.findings(wall_clock_ms())


async def _quarantine(view: _View, partitions: Mapping[str, int]) -> Iterable[Finding]:
    all_of_it = partitions_of(partitions, partitions)
    bounds = await log_bounds(view.consumer, all_of_it)
    found = await view.consumer.offsets_for_times(dict.fromkeys(all_of_it, recent_since_ms()))
    return [quarantine_finding(bounds, {tp: None if at is None else at.offset for tp, at in found.items()})]


def _of_group(reader: str, group_id: str, topics: Sequence[str], role: str) -> _Check:
    check = f"{reader} group"

    async def look(view: _View, partitions: Mapping[str, int]) -> Iterable[Finding]:
        group = await group_facts(view.admin, group_id)
        bounds = await log_bounds(view.consumer, partitions_of(partitions, partitions))
        return group_findings(check, role, group, bounds, starts_at_end=role == "exporter")

    return _Check(check, topics, look)


def _checks(settings: Settings) -> Iterator[_Check]:
    """The questions to a cluster that answers, in their order."""
    yield _Check("topic settings", (), _topic_settings)
    yield _Check("clock", (EVENTS_TOPIC,), _clock)
    yield _Check("producers", _PRODUCED_TOPICS, _producers)
    yield _of_group("sequencer", settings.group("sequencer"), (SEQUENCER_TOPIC,), "sequencer")
    yield _Check("log", (EVENTS_TOPIC, *INPUT_TOPICS), _log)
    yield _of_group("evaluator", settings.group("evaluator"), (EVENTS_TOPIC,), "evaluator")
    yield _of_group("exporter", settings.group("exporter"), (SCORES_TOPIC,), "exporter")
    if settings.transcripts.folder is not None:
        group_id = settings.group(FILES_GROUP)  # of the evaluators, which write the files too
        yield _of_group("transcripts", group_id, (TRANSCRIPTS_TOPIC,), "evaluator")
    yield _Check("quarantine", (QUARANTINE_TOPIC,), _quarantine)


async def examine(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Runs every check, one after the other; a check that cannot run is a finding too.

    Args:
        settings: The settings of the roles.
    """
    for finding in settings_findings(settings):
        yield finding
    for finding in await asyncio.to_thread(lambda: list(start_findings(settings))):
        yield finding
    async for finding in source_findings(settings):
        yield finding
    kafka = settings.kafka
    try:
        async with kafka.administration("doctor") as admin:
            cluster = await cluster_facts(admin)
            yield broker_finding(cluster)
            for finding in topic_findings(cluster, kafka):
                yield finding
            async with onlooker(kafka, "doctor", max_partition_fetch_bytes=SAMPLE_FETCH_BYTES) as consumer:
                view = _View(settings, admin, consumer, cluster)
                for check in _checks(settings):
                    for finding in await _made(check, view):
                        yield finding
            for finding in await right_findings(settings, kafka):
                yield finding
    except KafkaUnreachableError as error:
        yield Finding("broker", Verdict.WRONG, str(error), "Nothing else was looked at.")


async def _made(check: _Check, view: _View) -> Iterable[Finding]:
    """The findings of a check, or the one that it could not be made."""
    partitions = view.partitions(*check.topics)
    if check.topics and not partitions:
        seen = f"not there: {', '.join(map(view.settings.kafka.topic, check.topics))}"
        return [Finding(check.name, Verdict.UNKNOWN, seen, "`callgauge topics create` makes what is missing.")]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return list(await check.look(view, partitions))
    except OperatorError as error:
        return [Finding(check.name, Verdict.WRONG, str(error))]
    except (KafkaError, TimeoutError) as error:
        why = explained(error, view.settings.kafka.security)
        seen = f"the broker {why.seen}" if why.answers else why.seen
        return [Finding(check.name, Verdict.UNKNOWN, seen, why.remedy)]


# The work of the command `doctor`: findings, and how they look.

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.WRONG: "bold red",
    Verdict.UNKNOWN: "magenta",
}
_CHECK_CHARS: Final = 16


async def findings_with(
    config: Path | None, bootstrap: str | None, topic_prefix: str | None, folder: Path | None = None
) -> AsyncGenerator[Finding, None]:
    """The findings with these settings, of Kafka or of the folder of a `serve`; mistakes in the settings are the only ones if there are
    any.
    """
    try:
        settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    except SettingsError as error:
        for mistake in error.mistakes:
            yield Finding("settings", Verdict.WRONG, mistake, "Fix it; nothing more was checked.")
        return
    if folder is None:
        found = examine(settings)
    else:
        from streamer.doctor.folder import examine_folder

        found = examine_folder(settings, folder)
    async with aclosing(found) as findings:
        async for finding in findings:
            yield finding


async def tell_all(findings: AsyncGenerator[Finding, None], tell: Callable[[Finding], None]) -> Counter[Verdict]:
    """Tells each finding as soon as it is there, and counts the verdicts."""
    verdicts: Counter[Verdict] = Counter()
    async with aclosing(findings):  # the reader of our output may go away in the middle of it
        async for finding in findings:
            tell(finding)
            verdicts[finding.verdict] += 1
    return verdicts


def finding_line(finding: Finding) -> Table:
    """A finding as a line of three columns: verdict, check, text."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=max(map(len, Verdict)), no_wrap=True, style=_STYLES[finding.verdict])
    table.add_column(width=_CHECK_CHARS, overflow="fold")
    table.add_column(overflow="fold")
    text = finding.seen
    if finding.what_to_do:
        text += f". {finding.what_to_do}" if not finding.seen.endswith((".", "?")) else f" {finding.what_to_do}"
    table.add_row(finding.verdict.value, finding.check, text)
    return table


def summary(verdicts: Counter[Verdict]) -> str:
    """The number of findings of each verdict, as a sentence."""
    if not verdicts.keys() - {Verdict.OK}:
        return "All is well."
    counted = [f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict]]
    return f"{', '.join(counted)}."
