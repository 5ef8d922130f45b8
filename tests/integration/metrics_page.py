"""Reads a `/metrics` page as Prometheus would."""

import re
import time
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import patient

# A client of its own for each request would read all certificates each time; a connection that is
# kept would outlive its test.
_CLIENT: Final = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def address_in(text: str) -> str | None:
    """The address of the page that a command printed; None if it has not yet."""
    found = re.search(r"http://[\d.]+:\d+/metrics", text)
    return None if found is None else found.group()


def answer_of(
    address: str, headers: dict[str, str] | None = None, seconds: float = 10
) -> httpx.Response:
    """A server's answer to GET, with any status."""
    limit_seconds = patient(seconds)
    until_seconds = time.monotonic() + limit_seconds
    while True:
        try:
            return _CLIENT.get(address, headers=headers, timeout=limit_seconds)
        except httpx.RemoteProtocolError:
            # Our server ends an answer after ANSWER_SECONDS, which do not grow with the load of the
            # machine.
            if time.monotonic() > until_seconds:
                raise


def page(address: str, accept: str = "text/plain") -> str:
    return answer_of(address, {"Accept": accept}).raise_for_status().text


def total(address: str, name: str, **labels: str) -> float:
    """Sum over all series of `name` that carry these labels; 0 if there is none."""
    lines = [
        line for line in page(address).splitlines() if line.startswith(name)
    ]  # to parse the whole page takes longest
    return sum(
        sample.value
        for family in text_string_to_metric_families("\n".join(lines))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
