"""Examines settings, broker, topics, groups and sources for what keeps scores from coming."""

import asyncio
import http.client
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from pydantic import SecretStr, ValidationError
from rich.table import Table

from consumers.runtime.kafka.connection import (
    KafkaUnreachableError,
    explained,
    settings_of,
)
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.process import OperatorError, wall_clock_ms
from schemas.goals.goal_set import GoalSet
from schemas.topics import (
    EVENTS_TOPIC,
    INPUT_TOPICS,
    JUDGE_VERDICTS_TOPIC,
    SCORES_TOPIC,
    SEQUENCER_TOPIC,
    TOPICS,
    TRANSCRIPTS_TOPIC,
    duration,
)
from streamer.cluster.facts import (
    FILES_GROUP,
    ClusterFacts,
    GroupFacts,
    LogBounds,
    cluster_facts,
    group_facts,
    log_bounds,
    partitions_of,
)
from streamer.doctor.findings import (
    Finding,
    Verdict,
    broker_finding,
    counted,
    settings_findings,
    topic_findings,
    topic_setting_findings,
)
from streamer.facts import installed_version
from streamer.goals.files import GoalFolderError, doubles_in, goal_files_of, read_goal_file
from streamer.roles.state import ProcessState, deciding_settings
from streamer.settings.all_settings import Settings, SettingsError
from streamer.settings.listing import settings_from

# Goals and the judge, what running roles say of themselves, and quarantine.

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
ANSWERS_WITHIN_SECONDS: Final = 2.0
"""How long a process may take to say its state."""
MAX_STATE_BYTES: Final = 1_048_576
"""How much of an answer is read; a full state has 100 kB."""
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "callgauge_sequencer_refused_total": (
        "records refused for their bytes",
        "See why: `callgauge quarantine list`.",
    ),
    "callgauge_quarantined_total": ("records refused", "See why: `callgauge quarantine list`."),
    "callgauge_misread_records_total": (
        "records not understood",
        "What is not understood has a line of its own.",
    ),
    "callgauge_agent_errors_total": (
        "records with an error of an agent",
        "The logs of the agents say what fails.",
    ),
    "callgauge_ingest_events_refused_total": (
        "posted events refused",
        "The log of the ingest role names each kind once, with what to do: events_refused.",
    ),
    "callgauge_ingest_requests_total": (
        "requests refused",
        "The log of the ingest role says more.",
    ),
}
"""Counters that show a fault of a producer: what they count, and the remedy."""
_GAUGES: Final[Mapping[str, tuple[str, int, str]]] = {
    "callgauge_sequencer_known_behind_seconds": (
        "seconds behind is what the log knows: no silence after that is decided yet",
        60,
        "Its log says what it waits for; with a backlog it comes closer by itself.",
    ),
    "callgauge_sequencer_inputs_left_out": (
        "input partitions give no answer",
        0,
        "See to the brokers that lead them: silences are decided without them.",
    ),
    "callgauge_sequencer_clock_difference_seconds": (
        "seconds between its machine's clock and the brokers': silences are judged by the brokers'",
        1,
        "Set all clocks by NTP.",
    ),
    "callgauge_sequencer_lag_messages": (
        "records to append to the log, of",
        100_000,
        "Nothing if it comes closer; else see its log and its processor.",
    ),
}
"""Gauges that show that a role is behind: what they count, the most that is well, and
the remedy.
"""
_REFUSED_REQUESTS: Final = ("unreadable", "unauthorized", "too_large", "limited", "too_slow")
"""Outcomes of requests of which nothing is accepted, and which come from the sender."""
MAX_VALUE_CHARS: Final = 40
"""Characters of the value of a setting that is named."""
MAX_KINDS: Final = 16
"""Kinds of events that are named, the first ones that were not understood."""


def goals_and_finding(settings: Settings) -> tuple[list[GoalSet], Finding]:
    """The goal sets of the folder, and what is to say of them."""
    folder = settings.goals.folder
    if folder is None:
        source = (
            "the topic goals is read"
            if settings.goals.reads_topic
            else "goals.folder is not set here; a role that runs may have goals of its own"
        )
        return [], Finding("goals", Verdict.OK, source)
    try:
        files = [read_goal_file(path) for path in goal_files_of(folder)]
    except GoalFolderError as error:
        return [], Finding(
            "goals", Verdict.WRONG, f"{error} The evaluator would not start", "Set goals.folder."
        )
    good = [file for file in files if not file.mistakes]
    sets = [placed.goals for file in good for placed in file.sets]
    broken = [str(file.path) for file in files if file.mistakes]
    seen = f"{counted(len(sets), 'goal set')} in {folder}"
    if broken or (doubles := [str(each) for each in doubles_in(good)]):
        fault = f"broken and not used: {', '.join(broken)}" if broken else "; ".join(doubles)
        return sets, Finding(
            "goals", Verdict.WARNING, f"{seen}; {fault}", f"See `callgauge goals check {folder}`."
        )
    if not sets:
        return sets, Finding(
            "goals", Verdict.WARNING, f"no goal file in {folder}", "Put goal files there."
        )
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
            check,
            Verdict.WARNING,
            f"{counted(judged, 'subgoal')} can only be judged by a model, and {why}",
            remedy,
        )
    return Finding(check, Verdict.OK, f"off: {why}")


async def process_findings(settings: Settings, address: str, *, is_named: bool) -> list[Finding]:
    """What the process says that listens at an address of /metrics.

    Args:
        settings: Of this command; their token opens `/state`.
        address: Such as `127.0.0.1:8080`, or with `http://`.
        is_named: Whether somebody says that roles run there.
    """
    answer = await asyncio.to_thread(answer_of, address, "/state", settings.http_token)
    if answer is None:
        seen = f"no role answers at {address}"
        what_to_do = (
            "Name where roles run to hear what they know: --roles-at HOST:PORT, with the port of "
            "/metrics."
        )
        return [Finding("roles", Verdict.WRONG if is_named else Verdict.UNKNOWN, seen, what_to_do)]
    return list(state_findings(settings, address, *answer, wall_clock_ms()))


def state_findings(
    settings: Settings, address: str, status: int, body: bytes, now_ms: int
) -> Iterator[Finding]:
    """What a process says of itself.

    Args:
        settings: Of this command.
        address: Where it listens.
        status: Of its answer at `/state`.
        body: The answer.
        now_ms: The time now, in epoch milliseconds.
    """
    if status == http.HTTPStatus.UNAUTHORIZED:
        yield Finding(
            "roles",
            Verdict.UNKNOWN,
            f"{address} wants another token",
            "Set http_token as the roles have it.",
        )
        return
    try:
        state = ProcessState.model_validate_json(body)
    except ValidationError:
        what_to_do = (
            "Set http_port, or end the program: `ss -ltnp` names it. Nothing, if no role is to run "
            "there."
        )
        yield Finding("roles", Verdict.WARNING, f"another program answers at {address}", what_to_do)
        return
    since = f"since it started {duration(max(0, now_ms - state.started_ms))} ago"
    who = f"{', '.join(state.roles)} at {address}"
    if state.problems:
        yield Finding(
            "roles", Verdict.WRONG, f"{who}: {'; '.join(state.problems)}", "Its log says more."
        )
    else:
        yield Finding(
            "roles",
            Verdict.OK,
            f"{who}, version {state.version}: every part does its work, {since}",
        )
    if state.version != (ours := installed_version()):
        seen = f"{who} has version {state.version}, this command {ours}"
        yield Finding("version", Verdict.WARNING, seen, "Look with the version of the roles.")
    own = deciding_settings(settings)
    if differing := [name for name in own if state.settings.get(name, own[name]) != own[name]]:
        told = ", ".join(
            f"{name} is {_short(state.settings[name])}, here {_short(own[name])}"
            for name in differing[:MAX_SHOWN]
        )
        what_to_do = (
            "Give this command the settings of what runs, or what it says of them is of others; on "
            "Kafka all roles need the same."
        )
        yield Finding(
            "settings", Verdict.WARNING, f"at {address} {told}{_more(len(differing))}", what_to_do
        )
    for name, (what, what_to_do) in _COUNTERS.items():
        counts = Counter(state.counts.get(name, {}))
        if name == "callgauge_ingest_requests_total":
            counts = Counter(
                {
                    labels: count
                    for labels, count in counts.items()
                    if labels.endswith(_REFUSED_REQUESTS)
                }
            )
        if total := counts.total():
            most = ", ".join(
                f"{labels.strip() or 'in all'} {count}"
                for labels, count in counts.most_common(MAX_SHOWN)
            )
            yield Finding(
                "counters",
                Verdict.WARNING,
                f"{total} {what} {since}: {most}{_more(len(counts))}",
                what_to_do,
            )
    for name, (what, allowed, what_to_do) in _GAUGES.items():
        for labels, reading in state.gauges.get(name, {}).items():
            if abs(reading) > allowed:
                yield Finding(
                    "log",
                    Verdict.WARNING,
                    f"{who}: {reading:.0f} {what} {labels}".rstrip(),
                    what_to_do,
                )
    for kind, what_to_do in list(state.not_understood.items())[:MAX_KINDS]:
        yield Finding("records", Verdict.WARNING, f"not understood {since}: {kind}", what_to_do)


def _short(value: object) -> str:
    """A setting in a line with others."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]} …"


def answer_of(address: str, path: str, token: SecretStr | None = None) -> tuple[int, bytes] | None:
    """Status and body of the answer to GET, which changes nothing anywhere; None without one."""
    place = urlsplit(address if "//" in address else f"//{address}").netloc
    headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
    try:
        with closing(
            http.client.HTTPConnection(place, timeout=ANSWERS_WITHIN_SECONDS)
        ) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_STATE_BYTES)
    except (OSError, ValueError, http.client.HTTPException):
        return None


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
    """Checks whether a role reads all of its partitions, its lag, and whether records were deleted
    before it read them.

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
        seen = (
            f"deleted before it was done with them: {counted(sum(lost.values()), 'record')}, "
            f"{_shown(lost)}"
        )
        what_to_do = (
            "They are lost; raise retention.ms so that it is longer than any outage. An evaluator "
            "that starts now goes on with the oldest that are there."
        )
        yield Finding(check, Verdict.WRONG, seen, what_to_do)
    begins = {tp: found.end if starts_at_end else found.start for tp, found in bounds.items()}
    behind = {
        tp: found.end - max(group.committed.get(tp, begins[tp]), found.start)
        for tp, found in bounds.items()
    }
    behind = {tp: count for tp, count in behind.items() if count > 0}
    lag = {f"{tp.topic}[{tp.partition}]": count for tp, count in sorted(behind.items())}
    waiting = (
        f"{counted(sum(behind.values()), 'record')} to read: {_shown(behind)}"
        if behind
        else "nothing left to read"
    )
    start = f"Start `callgauge run --roles {role}`."
    if group.state == "Dead" and not group.committed:
        seen, what_to_do = (
            "this group has never read",
            f"{start} If it runs, its group has another name: check the settings.",
        )
        yield Finding(check, Verdict.WARNING, seen, what_to_do, lag)
    elif group.members == 0:
        yield Finding(
            check, Verdict.WARNING, f"no process reads ({group.state}); {waiting}", start, lag
        )
    elif group.state != "Stable":
        seen = (
            f"its {counted(group.members, 'member')} reassign the partitions ({group.state}); "
            f"{waiting}"
        )
        what_to_do = (
            "Look again in half a minute; if it goes on, a member dies again and again: see its "
            "log."
        )
        yield Finding(check, Verdict.WARNING, seen, what_to_do, lag)
    else:
        yield _assignment_finding(check, group, set(bounds), waiting, lag)


def _assignment_finding(
    check: str,
    group: GroupFacts,
    expected: set[TopicPartition],
    waiting: str,
    lag: Mapping[str, int],
) -> Finding:
    have = Counter(group.assigned)
    seen = (
        f"{counted(group.members, 'member')}, {len(have.keys() & expected)} of {len(expected)} "
        f"partitions assigned; {waiting}"
    )
    if foreign := have.keys() - expected:
        topics = ", ".join(sorted({tp.topic for tp in foreign})[:MAX_SHOWN])
        what_to_do = "Give this installation a group of its own, or check the topic prefix."
        return Finding(
            check,
            Verdict.WRONG,
            f"{seen}; it also reads {topics}, so others use its name",
            what_to_do,
            lag,
        )
    if missing := expected - have.keys():
        names = _named(sorted(missing))
        return Finding(
            check,
            Verdict.WRONG,
            f"{seen}; no process reads {names}",
            "Restart its members: they see the new topics.",
            lag,
        )
    return Finding(check, Verdict.OK, seen, lag=lag)


def _shown(counts: Mapping[TopicPartition, int]) -> str:
    """The largest few, and how many more there are."""
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    largest_lags = ", ".join(
        f"{tp.topic}[{tp.partition}] {count}" for tp, count in largest[:MAX_SHOWN]
    )
    return largest_lags + _more(len(largest))


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{tp.topic}[{tp.partition}]" for tp in partitions[:MAX_SHOWN]) + _more(
        len(partitions)
    )


def _more(count: int) -> str:
    return f" and {count - MAX_SHOWN} more" if count > MAX_SHOWN else ""


# Whether producers send anything.

SILENT_MS: Final = 600_000
"""An input without an event for so long is told: its producers may be down, or no call runs."""


def silence_finding(
    bounds: Mapping[TopicPartition, LogBounds], heard: Collection[TopicPartition]
) -> Finding:
    """Whether events come.

    Args:
        bounds: The partitions of the inputs.
        heard: Those that have a record of the last `SILENT_MS`.
    """
    check = "producers"
    used = {tp.topic for tp, found in bounds.items() if found.end > found.start}
    recent = {tp.topic for tp in heard}
    if not used:
        seen = (
            f"no event in {', '.join(sorted({tp.topic for tp in bounds}))}: none was sent, or "
            "retention took them"
        )
        what_to_do = (
            "Start a producer, or `callgauge simulate`; check the address and topic prefix that "
            "producers have."
        )
        return Finding(check, Verdict.WARNING, seen, what_to_do)
    if silent := sorted(used - recent):
        seen = f"no event in {', '.join(silent)} for {duration(SILENT_MS)} or longer"
        what_to_do = (
            "Nothing if no call runs that writes there. Else see the log, address and topic prefix "
            "of its producers."
        )
        return Finding(check, Verdict.WARNING, seen, what_to_do)
    return Finding(
        check,
        Verdict.OK,
        f"events came in the last {duration(SILENT_MS)} in {', '.join(sorted(recent))}",
    )


# Checks everything that a running callgauge depends on. Reads only.

FETCH_BYTES: Final = 65_536
"""What the broker sends of a partition at a time: a few records are looked at."""
ANSWER_SECONDS: Final = 20.0
"""How long one check may take; then it is unknown, and the next one goes on."""
_PRODUCED_TOPICS: Final = tuple(name for name in INPUT_TOPICS if name != JUDGE_VERDICTS_TOPIC)
"""Verdicts come from the judge: that they are missing is not reported."""


class _View(NamedTuple):
    """A cluster that answers, and the two clients that look at it."""

    settings: Settings
    admin: AIOKafkaAdminClient
    consumer: AIOKafkaConsumer
    cluster: ClusterFacts

    def partitions(self, *topics: str) -> Mapping[str, int]:
        """By full name, how many partitions these topics of the topic table have; without those
        that are not there.
        """
        names = map(self.settings.kafka.topic, topics)
        return {name: self.cluster.topics[name] for name in names if name in self.cluster.topics}


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
    existing = {
        kafka.topic(topic.name): topic.name for topic in TOPICS if kafka.topic(topic.name) in topics
    }
    known = await settings_of(view.admin, existing) if existing else {}
    return topic_setting_findings(known, list(existing.values()), view.settings)


async def _producers(view: _View, partitions: Mapping[str, int]) -> Iterable[Finding]:
    inputs = partitions_of(partitions, partitions)
    found = await view.consumer.offsets_for_times(
        dict.fromkeys(inputs, wall_clock_ms() - SILENT_MS)
    )
    heard = [tp for tp, at in found.items() if at is not None]
    return [silence_finding(await log_bounds(view.consumer, inputs), heard)]


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
    yield _Check("producers", _PRODUCED_TOPICS, _producers)
    yield _of_group("sequencer", settings.group("sequencer"), (SEQUENCER_TOPIC,), "sequencer")
    yield _of_group("evaluator", settings.group("evaluator"), (EVENTS_TOPIC,), "evaluator")
    yield _of_group("exporter", settings.group("exporter"), (SCORES_TOPIC,), "exporter")
    if settings.transcripts.folder is not None:
        group_id = settings.group(FILES_GROUP)  # of the evaluators, which write the files too
        yield _of_group("transcripts", group_id, (TRANSCRIPTS_TOPIC,), "evaluator")


async def examine(
    settings: Settings, roles_at: Sequence[str] = ()
) -> AsyncGenerator[Finding, None]:
    """Runs every check, one after the other; a check that cannot run is a finding too.

    Args:
        settings: The settings of the roles.
        roles_at: Where roles run: the addresses of their /metrics. Otherwise the one of the
            settings is asked.
    """
    for finding in settings_findings(settings):
        yield finding
    sets, of_goals = await asyncio.to_thread(goals_and_finding, settings)
    yield of_goals
    yield judge_finding(settings, sets)
    host, port = _ANY_ADDRESS.get(settings.http_host, settings.http_host), settings.http_port
    # 0 is another one at each start
    name = f"[{host}]" if ":" in host else host
    ours = [f"{name}:{port}"] if port else []
    for address in roles_at or ours:
        for finding in await process_findings(settings, address, is_named=bool(roles_at)):
            yield finding
    kafka = settings.kafka
    try:
        async with kafka.administration("doctor") as admin:
            cluster = await cluster_facts(admin)
            yield broker_finding(cluster)
            for finding in topic_findings(cluster, kafka):
                yield finding
            async with onlooker(kafka, "doctor", max_partition_fetch_bytes=FETCH_BYTES) as consumer:
                view = _View(settings, admin, consumer, cluster)
                for check in _checks(settings):
                    for finding in await _made(check, view):
                        yield finding
    except KafkaUnreachableError as error:
        yield Finding("broker", Verdict.WRONG, str(error), "Nothing else was looked at.")


async def _made(check: _Check, view: _View) -> Iterable[Finding]:
    """The findings of a check, or the one that it could not be made."""
    partitions = view.partitions(*check.topics)
    if check.topics and not partitions:
        seen = f"not there: {', '.join(map(view.settings.kafka.topic, check.topics))}"
        return [
            Finding(
                check.name,
                Verdict.UNKNOWN,
                seen,
                "`callgauge topics create` makes what is missing.",
            )
        ]
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
    config: Path | None,
    bootstrap: str | None,
    topic_prefix: str | None,
    folder: Path | None = None,
    roles_at: Sequence[str] = (),
) -> AsyncGenerator[Finding, None]:
    """The findings with these settings, of Kafka or of the folder of a `serve`; mistakes in the
    settings are the only ones if there are any.
    """
    try:
        settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    except SettingsError as error:
        for mistake in error.mistakes:
            yield Finding("settings", Verdict.WRONG, mistake, "Fix it; nothing more was checked.")
        return
    if folder is None:
        found = examine(settings, roles_at)
    else:
        from streamer.doctor.folder import examine_folder

        found = examine_folder(settings, folder)
    async with aclosing(found) as findings:
        async for finding in findings:
            yield finding


async def tell_all(
    findings: AsyncGenerator[Finding, None], tell: Callable[[Finding], None]
) -> Counter[Verdict]:
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
    table.add_row(finding.verdict.value, finding.check, finding.text)
    return table


def summary(verdicts: Counter[Verdict]) -> str:
    """The number of findings of each verdict, as a sentence."""
    if not verdicts.keys() - {Verdict.OK}:
        return "All is well."
    counted = [f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict]]
    return f"{', '.join(counted)}."
