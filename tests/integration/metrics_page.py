"""Reads a `/metrics` page as Prometheus would."""

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import patient


def address_in(text: str) -> str | None:
    """The address of the page that a command printed; None if it has not yet."""
    found = re.search(r"http://[\d.]+:\d+/metrics", text)
    return None if found is None else found.group()


def page(address: str, accept: str = "text/plain") -> str:
    """The page as text."""
    return httpx.get(address, headers={"Accept": accept}, timeout=patient(10)).raise_for_status().text


def total(address: str, name: str, **labels: str) -> float:
    """Sum over all series of `name` that carry these labels; 0 if there is none."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page(address))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
