"""What Prometheus sends when alerts fire and end: a receiver in the place of Alertmanager, which keeps everything."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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
        """Whether somebody gets up for it."""
        return self.labels["severity"] == "critical" and not self.is_resolved


@dataclass(slots=True)
class Notices:
    """All that came so far."""

    address: str = ""
    all: list[Notice] = field(default_factory=list)

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
    """Listens on a free port for what Prometheus sends to an Alertmanager."""
    notices = Notices()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            notices.all += [_notice(each) for each in sent]
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        notices.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield notices
        finally:
            server.shutdown()
            thread.join()


def _notice(sent: dict[str, Any]) -> Notice:
    labels = dict(sent["labels"])
    ends = datetime.fromisoformat(sent["endsAt"])
    return Notice(time.monotonic(), labels.pop("alertname"), labels, sent["annotations"], ends <= datetime.now(UTC))
