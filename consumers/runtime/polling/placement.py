"""Checks that records are on the partition that murmur2 of their key gives, so that all inputs of a call have one number."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import structlog
from aiokafka.partitioner import murmur2

from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource

MAX_KEYS_REMEMBERED: Final = 32_768
"""Most keys whose partition is cached, some 6 MB. Hashing a key takes as long as twenty look-ups."""

log = structlog.get_logger()


class KnowsPartitions(Protocol):
    """The part of the client that is used here; it never waits for the broker."""

    def partitions_for_topic(self, topic: str) -> Collection[int] | None: ...


@lru_cache(maxsize=MAX_KEYS_REMEMBERED)
def murmur2_place(key: bytes, partitions: int) -> int:
    """Returns the partition number that the default partitioner of Java and aiokafka gives a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


class Placement:
    """Counts records on other partitions. They are no error by themselves: another hash is fine if all inputs use it."""

    def __init__(self, source_by_topic: Mapping[str, InputSource], instruments: Instruments) -> None:
        self._sources = {topic: source for topic, source in source_by_topic.items() if source is not InputSource.JUDGE}
        self._instruments = instruments
        self._logged: set[InputSource] = set()

    def look(self, runs: Sequence[Sequence[Any]], client: KnowsPartitions) -> None:
        """Checks polled records. Each run is of one topic and one partition."""
        partitions_of: dict[str, int] = {}
        for run in runs:
            topic, number = run[0].topic, run[0].partition
            source = self._sources.get(topic)
            if source is None:
                continue
            if topic not in partitions_of:
                partitions_of[topic] = len(client.partitions_for_topic(topic) or ())
            partitions = partitions_of[topic]
            if not partitions:
                continue
            keys = {record.key for record in run}
            if elsewhere := {key for key in keys if key and murmur2_place(key, partitions) != number}:
                found = [record for record in run if record.key in elsewhere]
                self._instruments.inc("callgauge_misplaced_records_total", (source.value,), len(found))
                self._log_once(source, f"{topic}[{number}]@{found[0].offset}", found[0].key, partitions)

    def _log_once(self, source: InputSource, where: str, key: bytes, partitions: int) -> None:
        if source in self._logged:
            return
        self._logged.add(source)
        log.warning(
            "record_misplaced",
            record=where,
            conversation_id=key.decode("utf-8", "replace"),
            expected=f"partition {murmur2_place(key, partitions)} of {partitions}, by murmur2 of the key",
            what_happens_now="It is evaluated where it is. If another input of its call is placed by another hash, the call "
            "is evaluated twice, by halves. This source is not logged again; callgauge_misplaced_records_total counts it.",
            what_to_do="Let all producers place records by one hash: in librdkafka (Python's confluent-kafka, Go, Node) set "
            "partitioner=murmur2_random. `callgauge doctor` says whether the inputs agree.",
        )
