"""Receives and keeps Prometheus' messages when alerts fire and end, and Alertmanager's messages about them."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.support.fakes.http_answers import Answer, Request, answering


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
            if notice.alert == alert and not notice.is_resolved and labels.items() <= notice.labels.items():
                return notice
        return None

    def pages(self, since: float = 0) -> set[str]:
        """Returns the names of the alerts that paged since then."""
        return {notice.alert for notice in list(self.all) if notice.is_page and notice.at >= since}

    def resolved(self, since: float = 0) -> set[str]:
        """Returns the names of the alerts that were said to have ended since then."""
        return {notice.alert for notice in list(self.all) if notice.is_resolved and notice.at >= since}


@contextmanager
def receiving() -> Iterator[Notices]:
    """Listens on a free port, in the place of an Alertmanager and of every service that an Alertmanager sends to."""
    notices = Notices()

    def answer(request: Request) -> Answer:
        sent = json.loads(request.body)
        if request.path.endswith("/alerts"):
            notices.all += [_notice(each) for each in sent]
        elif request.path.startswith("/pagerduty"):
            if sent["event_action"] == "trigger":
                said = sent["payload"]
                text = said["custom_details"]["text"]
                notices.paged.append(Page(time.monotonic(), sent["routing_key"], said["summary"], text))
            return Answer(202, b"{}", {"Content-Type": "application/json"})
        return Answer(200, b"ok", {"Content-Type": "text/plain"})

    with answering(answer) as notices.address:
        yield notices


def _notice(sent: dict[str, Any]) -> Notice:
    labels = dict(sent["labels"])
    ends = datetime.fromisoformat(sent["endsAt"])
    return Notice(time.monotonic(), labels.pop("alertname"), labels, sent["annotations"], ends <= datetime.now(UTC))
