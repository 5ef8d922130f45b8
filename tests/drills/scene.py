"""A small installation that can be broken: sequencers, evaluators, an exporter, a judge, live
calls, Prometheus with the shipped rules, and the shipped Alertmanager.

Everything is real, and so are the windows of the rules: alerts come after minutes.
"""

import asyncio
import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from tests.integration.metrics_page import total
from tests.integration.processes import Process, started, wait_for
from tests.support.fakes.http_answers import Answer, Request, answering
from tests.support.monitoring import prometheus, shipped_alertmanager

# -- messages of Prometheus when alerts fire and end, and of Alertmanager about them
# -----------------------------------


@dataclass(frozen=True, slots=True)
class Notice:
    """One alert as it was sent.

    Attributes:
        at: When it came, on the monotonic clock.
        alert: Its name.
        labels: Its other labels.
        annotations: Its texts.
        is_resolved: Whether it says that the alert has ended.
    """

    at: float
    alert: str
    labels: dict[str, str]
    annotations: dict[str, str]
    is_resolved: bool

    @property
    def is_page(self) -> bool:
        """Whether it wakes a person."""
        return self.labels["severity"] == "critical" and not self.is_resolved


@dataclass(frozen=True, slots=True)
class Page:
    """A message of Alertmanager to the pager of a team."""

    at: float
    key: str
    summary: str
    text: str


@dataclass(slots=True)
class Notices:
    """All that came so far.

    Attributes:
        address: Where it is sent to.
        all: The alerts from Prometheus.
        paged: The pages from Alertmanager.
    """

    address: str = ""
    all: list[Notice] = field(default_factory=list)
    paged: list[Page] = field(default_factory=list)

    def page_of(self, alert: str, team: str, since: float) -> Page | None:
        """Returns the first page of this alert to this team; None if none came."""
        for page in list(self.paged):
            if page.summary.startswith(alert) and page.key == f"key-{team}" and page.at >= since:
                return page
        return None

    def first(self, alert: str, **labels: str) -> Notice | None:
        """Returns the first notice that this alert fires; None if none came."""
        for notice in list(self.all):
            if (
                notice.alert == alert
                and not notice.is_resolved
                and labels.items() <= notice.labels.items()
            ):
                return notice
        return None

    def pages(self, since: float = 0) -> set[str]:
        """Returns the names of the alerts that paged since then."""
        return {notice.alert for notice in list(self.all) if notice.is_page and notice.at >= since}

    def resolved(self, since: float = 0) -> set[str]:
        """Returns the names of the alerts that Alertmanager has reported as ended since then."""
        return {
            notice.alert for notice in list(self.all) if notice.is_resolved and notice.at >= since
        }


@contextmanager
def receiving() -> Iterator[Notices]:
    """Listens on a free port, in the place of an Alertmanager and of every service that an
    Alertmanager sends to.
    """
    notices = Notices()

    def answer(request: Request) -> Answer:
        sent = json.loads(request.body)
        if request.path.endswith("/alerts"):
            notices.all += [_notice(each) for each in sent]
        elif request.path.startswith("/pagerduty"):
            if sent["event_action"] == "trigger":
                said = sent["payload"]
                text = said["custom_details"]["text"]
                notices.paged.append(
                    Page(time.monotonic(), sent["routing_key"], said["summary"], text)
                )
            return Answer(202, b"{}", {"Content-Type": "application/json"})
        return Answer(200, b"ok", {"Content-Type": "text/plain"})

    with answering(answer) as notices.address:
        yield notices


def _notice(sent: dict[str, Any]) -> Notice:
    labels = dict(sent["labels"])
    ends = datetime.fromisoformat(sent["endsAt"])
    return Notice(
        time.monotonic(),
        labels.pop("alertname"),
        labels,
        sent["annotations"],
        ends <= datetime.now(UTC),
    )


# -- the installation
# --------------------------------------------------------------------------------------------------

PROMETHEUS: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
START_SECONDS: Final = 60
PAGE_SECONDS: Final = 30
"""From the alert to the page: Alertmanager looks at a group of which it has paged before every five
minutes, at a new one at once.
"""
SEQUENCERS: Final = 2
CALLS: Final = 8
"""Calls at a time: two of each agent."""


@dataclass(slots=True)
class Scene:
    """The running processes, and their alerts.

    Attributes:
        sequencers: The processes, to be killed or frozen. One is active, the other stands by.
        evaluators: The processes, to be killed or frozen.
        notices: Prometheus' messages.
        pages: The address of `/metrics` of each role, of the first process that has it.
    """

    environment: Mapping[str, str]
    notices: Notices
    sequencers: Sequence[Process]
    evaluators: Sequence[Process]
    pages: Mapping[str, str]

    def strike(self, number: signal.Signals, processes: Sequence[Process]) -> float:
        """Sends a signal to these processes and returns when, on the monotonic clock."""
        for process in processes:
            process.send(number)
        return time.monotonic()

    def active_sequencer(self) -> Process:
        """Waits until one of the sequencers that live is active, and returns it."""

        def active() -> Process | None:
            living = (process for process in self.sequencers if process.is_running)
            return next(
                (each for each in living if total(_page(each), "callgauge_sequencer_term")), None
            )

        return wait_for("a sequencer to be active", active, START_SECONDS)

    def rests(self, seconds: float) -> None:
        """Lets so much time pass: that nothing happens has no moment to wait for."""
        time.sleep(seconds)

    def fires(self, alert: str, within_minutes: float, since: float, **labels: str) -> Notice:
        """Waits until an alert fires, and returns its message."""
        left = since + within_minutes * 60 - time.monotonic()
        wanted = (
            f"{alert} within {within_minutes} min; sent: "
            f"{sorted({each.alert for each in self.notices.all})}"
        )
        return wait_for(wanted, lambda: self.notices.first(alert, **labels), left)

    def is_paged(self, alert: str, team: str, since: float) -> str:
        """Waits until the team's pager has a page of this alert, and returns its text."""
        wanted = (
            f"a page of {alert} to {team}; pages: {[page.summary for page in self.notices.paged]}"
        )
        return wait_for(wanted, lambda: self.notices.page_of(alert, team, since), PAGE_SECONDS).text

    def send(self, source: InputSource, values: Sequence[bytes]) -> None:
        """Writes records to an input topic."""

        async def put() -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=self.environment["CALLGAUGE_BOOTSTRAP"]
            ) as producer:
                for number, value in enumerate(values):
                    await producer.send(self._topic(source), value, key=f"c-{number}".encode())
                await producer.flush()

        asyncio.run(put())

    def delete_inputs(self) -> int:
        """Deletes all that is in the input topics, as a retention that is too short does, and
        returns how many records there were.
        """
        kafka = KafkaSettings(bootstrap_servers=self.environment["CALLGAUGE_BOOTSTRAP"])

        async def delete() -> int:
            consumer, admin = kafka.consumer("drill"), kafka.admin("drill")
            await consumer.start()
            await admin.start()
            try:
                topics = [self._topic(source) for source in TOPIC_BY_SOURCE]
                described = await admin.describe_topics(topics)
                partitions = [
                    TopicPartition(topic["topic"], each["partition"])
                    for topic in described
                    for each in topic["partitions"]
                ]
                begins, ends = (
                    await consumer.beginning_offsets(partitions),
                    await consumer.end_offsets(partitions),
                )
                await admin.delete_records(
                    {each: RecordsToDelete(before_offset=ends[each]) for each in partitions}
                )
                return int(sum(ends.values()) - sum(begins.values()))
            finally:
                await consumer.stop()
                await admin.close()

        return asyncio.run(delete())

    def _topic(self, source: InputSource) -> str:
        return self.environment["CALLGAUGE_TOPIC_PREFIX"] + TOPIC_BY_SOURCE[source]


@contextmanager
def scene(
    environment: Mapping[str, str],
    folder: Path,
    *,
    evaluators: int = 2,
    judge: Mapping[str, str] | None = None,
    traffic: Sequence[str] = (),
    sequencer: Sequence[str] = (),
) -> Iterator[Scene]:
    """Starts everything; yields when Prometheus has read every process and calls are under way.

    `sequencer` is the command of the sequencers, if it is another one.
    """
    with ExitStack() as stack:

        def role(name: str, number: int = 0) -> Process:
            log, more = folder / f"{name}-{number}.log", judge or {}
            command = sequencer if name == "sequencer" else ()
            return stack.enter_context(
                started(log, "run", "--roles", name, command=command, **{**environment, **more})
            )

        sequencing = [role("sequencer", number) for number in range(SEQUENCERS)]
        evaluating = [role("evaluator", number) for number in range(evaluators)]
        others = {"exporter": role("exporter")} | (
            {"judge": role("judge")} if judge is not None else {}
        )
        first = {"sequencer": sequencing[0], "evaluator": evaluating[0], **others}
        pages = {name: _page(process) for name, process in first.items()}
        targets = [*map(_page, [*sequencing[1:], *evaluating[1:]]), *pages.values()]
        notices = stack.enter_context(receiving())
        alertmanager = stack.enter_context(shipped_alertmanager(notices.address, folder))
        configuration = _configured(folder, targets, [notices.address, alertmanager])
        stack.enter_context(prometheus(configuration, folder))
        simulate = (
            "simulate",
            "--calls",
            str(CALLS),
            "--seed",
            "7",
            "--environment",
            "live",
            *traffic,
        )
        stack.enter_context(started(folder / "traffic.log", *simulate, **environment))
        wait_for("the watchdog", lambda: notices.first("CallgaugeWatchdog"), 4 * START_SECONDS)
        yield Scene(environment, notices, sequencing, evaluating, pages)


def _page(process: Process) -> str:
    return process.metrics(START_SECONDS)


def _configured(folder: Path, pages: Sequence[str], receivers: Sequence[str]) -> Path:
    """Writes the shipped configuration of Prometheus, with these pages, and with these receivers of
    alerts.
    """
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    configuration["rule_files"] = [str(PROMETHEUS / "rules" / "*.yml")]
    configuration["scrape_configs"] = [
        {
            "job_name": "drill",
            "static_configs": [{"targets": [urlsplit(page).netloc for page in pages]}],
        }
    ]
    targets = [urlsplit(receiver).netloc for receiver in receivers]
    configuration["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": targets}]}]}
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return file
