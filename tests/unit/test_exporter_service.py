"""The exporter without a broker: records in, metrics out, and what it does with records that say nothing."""

from typing import Any, NamedTuple

from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.exporter.service import Exporter
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from tests.unit.test_exporter_active_calls import record as score
from tests.unit.test_exporter_projection import latency


class Record(NamedTuple):
    value: bytes | None
    topic: str = "scores"
    partition: int = 0
    offset: int = 0


def exporter(**settings: Any) -> tuple[Exporter, CollectorRegistry]:
    registry = CollectorRegistry()
    instruments = Instruments(registry, ["exporter"])
    made = Exporter(KafkaSettings(), ExporterSettings(**settings), instruments)
    return made, registry


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_records_become_metrics() -> None:
    role, registry = exporter()
    records = [score("c-1"), latency(1500), score("c-2", closes=True)]
    await role._take([Record(each.model_dump_json().encode()) for each in records])
    role._instruments.refresh()
    labels = {"agent": "ava", "source": "pipecat", "anchor": "vad"}
    assert sample(registry, "callgauge_turn_response_latency_seconds_sum", **labels) == 1.5
    assert sample(registry, "callgauge_calls_active", agent="ava", tenant="unknown", environment="unknown") == 0
    assert sample(registry, "callgauge_calls_active", agent="ava", tenant="acme", environment="live") == 1
    assert sample(registry, "callgauge_scores_read_total", kind="closed") == 1


async def test_what_cannot_be_read_is_counted_and_the_rest_goes_on() -> None:
    role, registry = exporter()
    odd = latency(1500, anchor=None)
    values = [None, b"", b"\xff", b"{}", b'{"name":"closed"}', odd.model_dump_json().encode()]
    await role._take([*(Record(value) for value in values), Record(score("c-1").model_dump_json().encode())])
    assert sample(registry, "callgauge_scores_refused_total") == len(values)
    assert sample(registry, "callgauge_scores_read_total", kind="fact") == 1


async def test_a_longer_record_of_a_later_version_is_read() -> None:
    role, registry = exporter()
    later = score("c-1").model_dump_json().replace("{", '{"new_field": 1, ', 1)
    await role._take([Record(later.encode())])
    assert sample(registry, "callgauge_scores_read_total", kind="fact") == 1


async def test_forgotten_calls_are_counted() -> None:
    role, registry = exporter(max_active_calls=1)
    await role._take([Record(score(name).model_dump_json().encode()) for name in ("c-1", "c-2")])
    assert sample(registry, "callgauge_calls_forgotten_total") == 1


async def test_running_calls_of_partitions_taken_away_are_dropped() -> None:
    role, registry = exporter()
    await role._take([Record(score("c-1").model_dump_json().encode(), partition=3)])
    await role.on_partitions_assigned({TopicPartition("scores", 1)})
    role._instruments.refresh()
    assert sample(registry, "callgauge_calls_active", agent="ava", tenant="unknown", environment="unknown") == 0


async def test_it_is_not_well_before_it_reads() -> None:
    role, _ = exporter()
    assert role.problems()
    role.ready.set()
    assert not role.problems()
