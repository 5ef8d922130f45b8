"""An evaluator's page of metrics and its memory, as an operator sees them."""

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.evaluators.fleet import Evaluator
from tests.support.patience import patient

LAG_MESSAGES = "callgauge_consumer_lag_messages"
LAG_SECONDS = "callgauge_consumer_lag_seconds"
OPEN_CALLS = "callgauge_calls_open"
ANSWER_SECONDS = 10.0
"""An evaluator that is busy answers between two batches."""

Sample = tuple[dict[str, str], float]


class PageError(Exception):
    """An evaluator does not show its metrics."""


def samples(evaluator: Evaluator, name: str) -> list[Sample]:
    """Every series of a metric: labels and value."""
    address = evaluator.metrics_address
    try:
        text = httpx.get(address or "", timeout=patient(ANSWER_SECONDS)).raise_for_status().text
    except httpx.HTTPError as error:
        raise PageError(f"evaluator {evaluator.number} does not show {address}: {type(error).__name__}") from error
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def total(evaluator: Evaluator, name: str, **labels: str) -> float:
    """Sum over the series that carry these labels."""
    return sum(value for found, value in samples(evaluator, name) if labels.items() <= found.items())


def partitions_of(evaluator: Evaluator) -> set[int]:
    """The partition numbers it has now."""
    return {int(labels["partition"]) for labels, _ in samples(evaluator, LAG_MESSAGES)}


def resident_bytes(evaluator: Evaluator) -> int:
    """Memory of its process now."""
    status = Path(f"/proc/{evaluator.process_id}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.M)
    return int(found[1]) * 1_024 if found else 0
