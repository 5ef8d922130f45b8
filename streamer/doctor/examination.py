"""Examines settings, broker, topics, groups and sources for what keeps scores from coming."""

import asyncio
import errno
import http.client
import socket
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import httpx2
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from rich.table import Table

from consumers.runtime.kafka.connection import (
    RIGHTS_PAGE,
    KafkaSettings,
    KafkaUnreachableError,
    explained,
    missing_rights,
    settings_of,
)
from consumers.runtime.kafka.polling import murmur2_place
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import InputSource
from schemas.events.codec import Misread, RefusedRecordError, decode, misread_of
from schemas.events.elevenlabs import AgentFailed
from schemas.events.envelope import read_envelope
from schemas.events.pipecat import ProcessorFailed
from schemas.goals.goal_set import GoalSet
from schemas.topics import (
    INPUT_TOPICS,
    JUDGE_VERDICTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    SOURCE_BY_TOPIC,
    TOPICS,
    TRANSCRIPTS_TOPIC,
)
from streamer.cluster.facts import (
    ClusterFacts,
    GroupFacts,
    LogBounds,
    administration,
    clock_facts,
    cluster_facts,
    files_group,
    group_facts,
    log_bounds,
    needs_of,
    partitions_of,
)
from streamer.cluster.readers import onlooker
from streamer.doctor.findings import (
    Finding,
    Verdict,
    broker_finding,
    clock_finding,
    counted,
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
_OURS: Final = b"callgauge_build_info"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


def start_findings(settings: Settings) -> Iterator[Finding]:
    """Checks without Kafka. It reads the files of goals, and waits for the program that uses the port of /metrics."""
    sets, finding = _goal_sets(settings)
    yield finding
    yield judge_finding(settings, sets)
    yield metrics_finding(settings)


def _goal_sets(settings: Settings) -> tuple[list[GoalSet], Finding]:
    folder = settings.goals.folder
    if folder is None:
        source = "the topic goals is read" if settings.goals.reads_topic else "none, so no call has progress"
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
    remedy = "Set OPENAI_API_KEY or judge.api_key_file." if judge.enabled else "Set judge.enabled=true."
    if settings.goals.asks_judge:
        seen = f"the evaluator asks a judge, and here {why}"
        what_to_do = f"{remedy} If the judge runs elsewhere with settings of its own, all is well."
        return Finding(check, Verdict.WARNING, seen, what_to_do)
    if judged:
        return Finding(
            check, Verdict.WARNING, f"{counted(judged, 'subgoal')} can only be judged by a model, and {why}", remedy
        )
    return Finding(check, Verdict.OK, f"off: {why}")


def metrics_finding(settings: Settings) -> Finding:
    """Whether /metrics could be served on this machine, or is served already."""
    check, host, port = "metrics address", settings.http_host, settings.http_port
    where = f"{host}:{port}"
    if error := _bind_error(host, port):
        if _answers(host, port, "/metrics", _is_ours):
            return Finding(check, Verdict.OK, f"callgauge serves /metrics on {where}")
        seen = f"`callgauge run` could not start here: {where}: {error.strerror or error}"
        what_to_do = (
            "End the program that uses the port (`ss -ltnp` names it), or set http_port; nothing to do if callgauge runs "
            "on another machine."
        )
        return Finding(check, Verdict.WARNING, seen, what_to_do)
    free = "is free on this machine" if port else "takes a free port at each start"
    return Finding(check, Verdict.OK, f"{where} {free}")


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


def _answers(host: str, port: int, path: str, fits: Callable[[http.client.HTTPResponse], bool]) -> bool:
    """Whether the answer to GET of the program there fits. GET changes nothing anywhere."""
    connection = http.client.HTTPConnection(_ANY_ADDRESS.get(host, host), port, timeout=PORT_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        return fits(connection.getresponse())
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_ours(answer: http.client.HTTPResponse) -> bool:
    """Whether it shows metrics of callgauge, or wants a token for them as callgauge does."""
    wants_token = answer.status == http.HTTPStatus.UNAUTHORIZED and "Bearer" in answer.getheader("www-authenticate", "")
    return wants_token or _OURS in answer.read()


def _takes_events(answer: http.client.HTTPResponse) -> bool:
    """Whether events may be posted at this path."""
    return answer.status == http.HTTPStatus.METHOD_NOT_ALLOWED and "POST" in answer.headers.get("allow", "")


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
    behind = {tp: found.end - max(group.read.get(tp, begins[tp]), found.start) for tp, found in bounds.items()}
    behind = {tp: count for tp, count in behind.items() if count > 0}
    lag = {f"{tp.topic}[{tp.partition}]": count for tp, count in sorted(behind.items())}
    waiting = (
        f"{counted(sum(behind.values()), 'record')} to read: {_shown(behind)}" if behind else "nothing left to read"
    )
    again = sum(group.read[tp] - offset for tp, offset in group.committed.items() if tp in bounds)
    if again:
        waiting += f"; a restart reads {counted(again, 'record')} of open calls again"
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


# Checks by the newest keys whether producers place all records of a call on one partition number.

SAMPLED_RECORDS: Final = 1_000
"""Newest records of an input whose keys are looked at, over all of its partitions: the calls of some seconds."""
LEAST_SAMPLED_RECORDS: Final = 10
"""Of each partition, however many there are."""
SAMPLE_SECONDS: Final = 5.0
"""Deadline of reading them; the keys that have arrived by then are checked."""
MAX_SHOWN_CHARS: Final = 40
"""Of a key."""

Keys = Mapping[str, Mapping[bytes, frozenset[int]]]
"""By topic and key: the partition numbers on which the key was seen."""

_ANOTHER: Final = "another hash"
_PLACE_BY_HASH: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    "murmur2": murmur2_place,
    "CRC32 (librdkafka's default)": lambda key, partitions: zlib.crc32(key) % partitions,
}
_WHAT_TO_DO: Final = (
    "Let all producers of the inputs use one hash, best murmur2 as Java and aiokafka do: with librdkafka (Python's "
    "confluent-kafka, Go, Node) set partitioner=murmur2_random."
)


async def newest_keys(
    consumer: AIOKafkaConsumer, partitions: Mapping[str, int], look: Callable[[Any], None] | None = None
) -> Keys:
    """The keys of the newest records.

    Args:
        consumer: A started one in no group; it is given other partitions.
        partitions: Of each topic, how many it has.
        look: Is called with each of these records.

    Raises:
        KafkaError: The broker refuses.
    """
    inputs = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    consumer.assign(inputs)
    starts, ends = await consumer.beginning_offsets(inputs), await consumer.end_offsets(inputs)
    for tp in inputs:
        share = max(LEAST_SAMPLED_RECORDS, SAMPLED_RECORDS // partitions[tp.topic])
        consumer.seek(tp, max(starts[tp], ends[tp] - share))
    found: dict[str, dict[bytes, set[int]]] = {topic: defaultdict(set) for topic in partitions}
    left = {tp for tp in inputs if starts[tp] < ends[tp]}
    until = time.monotonic() + SAMPLE_SECONDS
    while left and (seconds := until - time.monotonic()) > 0:
        for tp, records in (await consumer.getmany(*left, timeout_ms=max(1, int(seconds * 1_000)))).items():
            for record in records:
                if look is not None:
                    look(record)
                if record.key:
                    found[tp.topic][record.key].add(tp.partition)
        # By position, not by record: the end of a transaction has an offset and is no record.
        left = {tp for tp in left if await consumer.position(tp) < ends[tp]}
    return {topic: {key: frozenset(numbers) for key, numbers in keys.items()} for topic, keys in found.items()}


def key_findings(keys: Keys, partitions: Mapping[str, int]) -> Iterator[Finding]:
    """Whether the places of the keys fit together; nothing where there are none.

    Args:
        keys: The newest.
        partitions: Of each topic, how many it has.
    """
    places: dict[bytes, set[tuple[str, int]]] = defaultdict(set)
    for topic, found in keys.items():
        for key, numbers in found.items():
            places[key] |= {(topic, number) for number in numbers}
    if not places:
        return
    torn = {key: where for key, where in places.items() if len({number for _, number in where}) > 1}
    if torn:
        key, where = min(torn.items())
        shown = ", ".join(f"{topic}[{number}]" for topic, number in sorted(where))
        seen = (
            f"{len(torn)} of {counted(len(places), 'key')} are on more than one partition number, for example {_shown_keys(key)} on "
            f"{shown}: such a call is evaluated more than once, each time by a part of its records"
        )
        yield Finding("keys", Verdict.WRONG, seen, f"{_WHAT_TO_DO} Calls that run while it is changed stay torn.")
    hashes = {topic: _hashes(found, partitions[topic]) for topic, found in keys.items() if found}
    agreed = frozenset.intersection(*hashes.values())
    if not agreed:
        senders = "; ".join(f"{topic} by {' or '.join(sorted(names))}" for topic, names in hashes.items())
        yield Finding("keys", Verdict.WARNING, f"the inputs place keys by different hashes: {senders}", _WHAT_TO_DO)
    elif not torn:
        name = "murmur2" if "murmur2" in agreed else min(agreed)
        seen = f"the newest {counted(len(places), 'key')} of the inputs: each on one partition number, placed by {name}"
        yield Finding("keys", Verdict.OK, seen)


def _hashes(keys: Mapping[bytes, frozenset[int]], partitions: int) -> frozenset[str]:
    """The hashes that put all these keys where they are."""
    fitting = {
        name
        for name, place in _PLACE_BY_HASH.items()
        if all(numbers == {place(key, partitions)} for key, numbers in keys.items())
    }
    return frozenset(fitting or {_ANOTHER})


def _shown_keys(key: bytes) -> str:
    return ascii(key.decode("utf-8", "replace")[:MAX_SHOWN_CHARS])


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
        if error.errno == errno.EADDRINUSE and _answers(host, port, _EVENTS_PATH, _takes_events):
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


# Checks by the newest records of the inputs whether callgauge understands what producers send, and whether agents
# report errors.

MAX_KINDS: Final = 16
"""Kinds of records that one answer names for an input, the most frequent first."""


class Understanding:
    """Counts the newest records, and the ones among them that are not understood."""

    def __init__(self, source_by_topic: Mapping[str, InputSource]) -> None:
        self._source_by_topic = source_by_topic
        self._read: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._misread: Counter[tuple[str, Misread]] = Counter()
        self._errors: Counter[str] = Counter()

    def look(self, record: Any) -> None:
        """Looks at one record as the broker has it."""
        topic = record.topic
        if record.value is None or topic not in self._source_by_topic:
            return
        self._read[topic] += 1
        try:
            event = decode(self._source_by_topic[topic], record.value, read_envelope(record.headers))
        except RefusedRecordError:
            self._refused[topic] += 1
            return
        self._errors[topic] += isinstance(event, AgentFailed | ProcessorFailed)
        misread = misread_of(event)
        if misread is not None:
            self._misread[topic, misread] += 1

    def findings(self) -> Iterator[Finding]:
        """Findings about records that are refused or not understood, and about errors of agents, by input. If everything is
        understood, one says so.
        """
        for topic, count in sorted(self._refused.items()):
            seen = f"{count} of the newest {counted(self._read[topic], 'record')} of {topic} cannot be read and go to quarantine"
            yield Finding("records", Verdict.WARNING, seen, "`callgauge quarantine list` says why.")
        for (topic, misread), count in self._misread.most_common(MAX_KINDS):
            seen = f"{count} of the newest {counted(self._read[topic], 'record')} of {topic} are not understood: {misread.what}"
            yield Finding("records", Verdict.WARNING, seen, misread.what_to_do)
        for topic, count in sorted((+self._errors).items()):
            seen = (
                f"{count} of the newest {counted(self._read[topic], 'record')} of {topic} are errors that agents report"
            )
            what_to_do = "The logs of the agents say what fails. `callgauge_agent_errors_total` counts these records."
            yield Finding("records", Verdict.WARNING, seen, what_to_do)
        if self._read and not self._refused and not self._misread:
            yield Finding("records", Verdict.OK, f"the newest {counted(self._read.total(), 'record')} are understood")


# Checks everything that a running callgauge depends on. Reads only.

ANSWER_SECONDS: Final = 20.0
"""How long one check may take; then it is unknown, and the next one goes on."""

_FILES: Final = "transcripts"
"""The reader of the topic of that name, which writes the files."""


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
        async with administration(kafka) as admin:
            cluster = await cluster_facts(admin)
            yield broker_finding(cluster)
            for finding in topic_findings(cluster, kafka):
                yield finding
            for finding in await _topic_settings(admin, cluster, settings):
                yield finding
            async with onlooker(kafka, "doctor") as consumer:
                yield await _clock(consumer, cluster, kafka)
                for finding in await _keys(consumer, cluster, kafka):
                    yield finding
                groups = {"evaluator": settings.evaluator_group, "exporter": settings.exporter_group}
                if settings.transcripts.folder is not None:
                    groups[_FILES] = files_group(settings.evaluator_group)
                for reader, group_id in groups.items():
                    for finding in await _group(admin, consumer, cluster, kafka, reader, group_id):
                        yield finding
                yield await _quarantine(consumer, cluster, kafka)
            for finding in await right_findings(settings, kafka):
                yield finding
    except KafkaUnreachableError as error:
        yield Finding("broker", Verdict.WRONG, str(error), "Nothing else was looked at.")


async def _topic_settings(admin: AIOKafkaAdminClient, cluster: ClusterFacts, settings: Settings) -> list[Finding]:
    kafka = settings.kafka
    existing = {kafka.topic(topic.name): topic.name for topic in TOPICS if kafka.topic(topic.name) in cluster.topics}
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            known = await settings_of(admin, existing) if existing else {}
    except (KafkaError, TimeoutError) as error:
        return [_not_seen("topic settings", error, kafka)]
    return [
        *topic_setting_findings(known, list(existing.values()), settings),
        *replica_findings(cluster.topics, known, kafka),
    ]


async def _clock(consumer: AIOKafkaConsumer, cluster: ClusterFacts, kafka: KafkaSettings) -> Finding:
    partitions = partitions_of(_counts(cluster), _names(kafka, INPUT_TOPICS))
    if not partitions:
        return Finding(
            "clock", Verdict.UNKNOWN, "there is no input topic to read the broker's time from", "Make them first."
        )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return clock_finding(await clock_facts(consumer, partitions))
    except (KafkaError, TimeoutError) as error:
        return _not_seen("clock", error, kafka)


async def _keys(consumer: AIOKafkaConsumer, cluster: ClusterFacts, kafka: KafkaSettings) -> Sequence[Finding]:
    """Verdicts go where their question says, so it is the other inputs that producers place."""
    counts = _counts(cluster)
    names = _names(kafka, [name for name in INPUT_TOPICS if name != JUDGE_VERDICTS_TOPIC])
    partitions = {name: counts[name] for name in names if name in counts}
    if not partitions:
        return [Finding("keys", Verdict.UNKNOWN, "there is no input topic to read keys from", "Make them first.")]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            understanding = Understanding({kafka.topic(topic): source for topic, source in SOURCE_BY_TOPIC.items()})
            keys = await newest_keys(consumer, partitions, understanding.look)
            return [*key_findings(keys, partitions), *understanding.findings()]
    except (KafkaError, TimeoutError) as error:
        return [_not_seen("keys", error, kafka)]


async def _group(
    admin: AIOKafkaAdminClient,
    consumer: AIOKafkaConsumer,
    cluster: ClusterFacts,
    kafka: KafkaSettings,
    reader: str,
    group_id: str,
) -> Sequence[Finding]:
    check = f"{reader} group"
    topics = {"exporter": (SCORES_TOPIC,), _FILES: (TRANSCRIPTS_TOPIC,)}.get(reader, INPUT_TOPICS)
    partitions = partitions_of(_counts(cluster), _names(kafka, topics))
    if not partitions:
        return [Finding(check, Verdict.UNKNOWN, "the topics that it reads are not there", "Make them first.")]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            group = await group_facts(admin, group_id)
            bounds = await log_bounds(consumer, partitions)
    except (KafkaError, TimeoutError) as error:
        return [_not_seen(check, error, kafka)]
    role = "evaluator" if reader == _FILES else reader  # which writes the files too
    return list(group_findings(check, role, group, bounds, starts_at_end=reader == "exporter"))


async def _quarantine(consumer: AIOKafkaConsumer, cluster: ClusterFacts, kafka: KafkaSettings) -> Finding:
    partitions = partitions_of(_counts(cluster), _names(kafka, (QUARANTINE_TOPIC,)))
    if not partitions:
        return Finding("quarantine", Verdict.UNKNOWN, "its topic is not there", "Make it first.")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            bounds = await log_bounds(consumer, partitions)
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, recent_since_ms()))
    except (KafkaError, TimeoutError) as error:
        return _not_seen("quarantine", error, kafka)
    return quarantine_finding(bounds, {tp: None if at is None else at.offset for tp, at in found.items()})


def _counts(cluster: ClusterFacts) -> dict[str, int]:
    return {name: len(partitions) for name, partitions in cluster.topics.items()}


def _names(kafka: KafkaSettings, names: Sequence[str]) -> Iterator[str]:
    return (kafka.topic(name) for name in names)


def _not_seen(check: str, error: Exception, kafka: KafkaSettings) -> Finding:
    why = explained(error, kafka.security)
    return Finding(check, Verdict.UNKNOWN, f"the broker {why.seen}" if why.answers else why.seen, why.remedy)


# The work of the command `doctor`: findings, and how they look.

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.WRONG: "bold red",
    Verdict.UNKNOWN: "magenta",
}
_CHECK_CHARS: Final = 16


async def findings_with(
    config: Path | None, bootstrap: str | None, topic_prefix: str | None
) -> AsyncGenerator[Finding, None]:
    """The findings with these settings; mistakes in the settings are the only ones if there are any."""
    try:
        settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    except SettingsError as error:
        for mistake in error.mistakes:
            yield Finding("settings", Verdict.WRONG, mistake, "Fix it; nothing more was checked.")
        return
    async with aclosing(examine(settings)) as findings:
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
