"""The gauges of an evaluator on `/metrics`, read at each scrape."""

from collections.abc import Callable, Mapping

from consumers.evaluator.ownership.assignment import Assignment
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.units import to_seconds


def read_gauges(
    instruments: Instruments,
    assignment: Assignment,
    settings: EvaluatorSettings,
    sources: Mapping[str, InputSource],
) -> None:
    """Registers every gauge of the evaluator. `sources` has the input of each topic, by its name on this cluster."""
    group_id = settings.group_id
    readers: dict[str, Callable[[], dict[tuple[str, ...], float]]] = {
        "callgauge_calls_open": lambda: {
            (): float(sum(len(owned.partition.open_calls) for owned in assignment.owned.values()))
        },
        "callgauge_consumer_lag_messages": lambda: assignment.lag_messages(group_id),
        "callgauge_consumer_lag_seconds": lambda: assignment.lag_seconds(group_id),
        "callgauge_watermark_lag_messages": lambda: assignment.watermark_lag_messages(group_id),
        "callgauge_input_records_waiting": lambda: {(): float(assignment.waiting_records)},
        "callgauge_scores_unwritten": lambda: {(): float(assignment.unwritten_records)},
        "callgauge_source_last_event_timestamp_seconds": lambda: {
            (sources[topic].value,): to_seconds(time_ms) for topic, time_ms in assignment.newest_records_ms().items()
        },
    }
    for name, reader in readers.items():
        instruments.read_gauge(name, reader)
    instruments.before_scrape(assignment.count_events)
