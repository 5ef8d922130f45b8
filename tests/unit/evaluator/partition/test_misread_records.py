"""Records that are taken and not understood are counted, and each kind of them is logged once with its remedy."""

from typing import Any

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.intake.admission import Arrival
from consumers.evaluator.partition.misread_records import MAX_KINDS, MisreadRecords
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason
from schemas.events.misread import Misread


def _arrival(what: str | None) -> Arrival:
    misread = None if what is None else Misread(MisreadReason.UNKNOWN_KIND, what, "Known kinds: a, b.")
    return Arrival(InputSource.PIPECAT, 0, 0, "call", None, b"", None, misread)


def _taken(*what: str | None) -> tuple[Any, list[Any]]:
    registry = CollectorRegistry()
    misread = MisreadRecords(Instruments(registry, ["evaluator"]))
    with capture_logs() as logs:
        for each in what:
            misread.take(_arrival(each))
    counted = registry.get_sample_value(
        "callgauge_misread_records_total", {"source": "pipecat", "reason": "unknown_kind"}
    )
    return counted, logs


def test_each_kind_is_logged_once_and_every_record_counted() -> None:
    counted, logs = _taken("x", "x", None, "y", "x")
    assert counted == 4
    assert [(line["event"], line["seen"], line["what_to_do"]) for line in logs] == [
        ("records_not_understood", "x", "Known kinds: a, b."),
        ("records_not_understood", "y", "Known kinds: a, b."),
    ]


def test_a_producer_that_makes_up_kinds_does_not_fill_the_log() -> None:
    counted, logs = _taken(*map(str, range(2 * MAX_KINDS)))
    assert (counted, len(logs)) == (2 * MAX_KINDS, MAX_KINDS)
