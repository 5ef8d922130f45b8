"""Records on another partition than their key's hash gives: counted by source, logged once, and nothing more."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.runtime.kafka.polling import Placement, murmur2_place
from consumers.runtime.registry import Instruments
from schemas.topics import JUDGE_VERDICTS_TOPIC, SOURCE_BY_TOPIC
from tests.support.fakes.evaluator_fakes import AUDIT, PIPECAT, Record

PARTITIONS = 6
KEYS = [f"call-{number}".encode() for number in range(30)]
HASHES_IN_JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"abc": 479470107,
}
"""As in the tests of Kafka's own Utils.murmur2."""


class Client:
    """Knows every topic, but for the unknown one."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return None if topic == "unknown" else set(range(PARTITIONS))


class Looking:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        sources = SOURCE_BY_TOPIC | {"unknown": SOURCE_BY_TOPIC[PIPECAT]}
        self.placement = Placement(sources, Instruments(self.registry, ["evaluator"]))

    def look(self, *runs: Sequence[Record]) -> None:
        self.placement.look(runs, Client())

    def counted(self, source: str) -> float | None:
        return self.registry.get_sample_value("callgauge_misplaced_records_total", {"source": source})


def run_of(topic: str, number: int, keys: Sequence[bytes | None]) -> list[Record]:
    return [Record(topic, offset, key=key, partition=number) for offset, key in enumerate(keys)]


@pytest.mark.parametrize(("key", "hashed"), HASHES_IN_JAVA.items())
def test_places_are_those_of_java(key: bytes, hashed: int) -> None:
    assert murmur2_place(key, PARTITIONS) == (hashed & 0x7FFFFFFF) % PARTITIONS


def test_what_lies_where_its_key_says_is_not_counted() -> None:
    looking = Looking()
    with capture_logs() as logged:
        for number in range(PARTITIONS):
            here = [key for key in KEYS if murmur2_place(key, PARTITIONS) == number]
            looking.look(run_of(PIPECAT, number, here * 2)) if here else None
    assert (looking.counted("pipecat"), logged) == (0, [])


def test_each_record_elsewhere_counts_for_its_source_and_the_first_is_logged() -> None:
    looking = Looking()
    here = next(key for key in KEYS if murmur2_place(key, PARTITIONS) == 2)
    elsewhere = next(key for key in KEYS if murmur2_place(key, PARTITIONS) == 5)
    with capture_logs() as logged:
        for _ in range(2):
            looking.look(
                run_of(PIPECAT, 2, [here, elsewhere, here, elsewhere]), run_of(AUDIT, 2, [here]),
            )  # fmt: skip
    assert [looking.counted(source) for source in ("pipecat", "audit")] == [4, 0]
    (told,) = logged
    assert (told["event"], told["record"]) == ("record_misplaced", f"{PIPECAT}[2]@1")
    assert (told["conversation_id"], told["expected"]) == (
        elsewhere.decode(), "partition 5 of 6, by murmur2 of the key",
    )  # fmt: skip


@pytest.mark.parametrize("topic", [JUDGE_VERDICTS_TOPIC, "unknown"])
def test_verdicts_and_topics_that_the_client_does_not_know_yet_are_not_looked_at(topic: str) -> None:
    looking = Looking()
    with capture_logs() as logged:
        looking.look(run_of(topic, 0, KEYS))
    assert (looking.counted("pipecat"), logged) == (0, [])


def test_a_record_without_a_key_belongs_nowhere() -> None:
    looking = Looking()
    looking.look(run_of(PIPECAT, 0, [None, b""]))
    assert looking.counted("pipecat") == 0
