"""Records that are taken and not understood are counted, and each kind of them is logged once with its remedy."""

from typing import Any

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.effects import NotUnderstood
from consumers.evaluator.partition import MAX_KINDS, MisreadRecords
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason
from schemas.events.codec import Misread


def _report(what: str) -> NotUnderstood:
    return NotUnderstood(InputSource.PIPECAT, "call", Misread(MisreadReason.UNKNOWN_KIND, what, "Known kinds: a, b."))


def _taken(*what: str) -> tuple[Any, list[Any]]:
    registry = CollectorRegistry()
    misread = MisreadRecords(Instruments(registry, ["evaluator"]))
    with capture_logs() as logs:
        for each in what:
            misread.take(_report(each))
    counted = registry.get_sample_value(
        "callgauge_misread_records_total", {"source": "pipecat", "reason": "unknown_kind"}
    )
    return counted, logs


def test_each_kind_is_logged_once_and_every_record_counted() -> None:
    counted, logs = _taken("x", "x", "y", "x")
    assert counted == 4
    assert [(line["event"], line["seen"], line["what_to_do"]) for line in logs] == [
        ("records_not_understood", "x", "Known kinds: a, b."),
        ("records_not_understood", "y", "Known kinds: a, b."),
    ]


def test_a_producer_that_makes_up_kinds_does_not_fill_the_log() -> None:
    counted, logs = _taken(*map(str, range(2 * MAX_KINDS)))
    assert (counted, len(logs)) == (2 * MAX_KINDS, MAX_KINDS)
