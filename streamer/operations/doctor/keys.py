"""Checks by the newest keys whether producers place all records of a call on one partition number."""

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.kafka.polling import murmur2_place
from streamer.operations.doctor.findings import Finding, Verdict, counted

SAMPLED_RECORDS: Final = 1_000
"""Newest records of an input whose keys are looked at, over all of its partitions: the calls of some seconds."""
LEAST_SAMPLED_RECORDS: Final = 10
"""Of each partition, however many there are."""
SAMPLE_SECONDS: Final = 5.0
"""Deadline of reading them; the keys that have arrived by then are checked."""
MAX_SHOWN_CHARS: Final = 40
"""Of a key."""

Keys = Mapping[str, Mapping[bytes, frozenset[int]]]
"""By topic and key: the partition numbers on which the key was seen."""

_ANOTHER: Final = "another hash"
_PLACE_BY_HASH: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    "murmur2": murmur2_place,
    "CRC32 (librdkafka's default)": lambda key, partitions: zlib.crc32(key) % partitions,
}
_WHAT_TO_DO: Final = (
    "Let all producers of the inputs use one hash, best murmur2 as Java and aiokafka do: with librdkafka (Python's "
    "confluent-kafka, Go, Node) set partitioner=murmur2_random."
)


async def newest_keys(
    consumer: AIOKafkaConsumer, partitions: Mapping[str, int], look: Callable[[Any], None] | None = None
) -> Keys:
    """The keys of the newest records.

    Args:
        consumer: A started one in no group; it is given other partitions.
        partitions: Of each topic, how many it has.
        look: Is called with each of these records.

    Raises:
        KafkaError: The broker refuses.
    """
    inputs = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    consumer.assign(inputs)
    starts, ends = await consumer.beginning_offsets(inputs), await consumer.end_offsets(inputs)
    for tp in inputs:
        share = max(LEAST_SAMPLED_RECORDS, SAMPLED_RECORDS // partitions[tp.topic])
        consumer.seek(tp, max(starts[tp], ends[tp] - share))
    found: dict[str, dict[bytes, set[int]]] = {topic: defaultdict(set) for topic in partitions}
    left = {tp for tp in inputs if starts[tp] < ends[tp]}
    until = time.monotonic() + SAMPLE_SECONDS
    while left and (seconds := until - time.monotonic()) > 0:
        for tp, records in (await consumer.getmany(*left, timeout_ms=max(1, int(seconds * 1_000)))).items():
            for record in records:
                if look is not None:
                    look(record)
                if record.key:
                    found[tp.topic][record.key].add(tp.partition)
        # By position, not by record: the end of a transaction has an offset and is no record.
        left = {tp for tp in left if await consumer.position(tp) < ends[tp]}
    return {topic: {key: frozenset(numbers) for key, numbers in keys.items()} for topic, keys in found.items()}


def key_findings(keys: Keys, partitions: Mapping[str, int]) -> Iterator[Finding]:
    """Whether the places of the keys fit together; nothing where there are none.

    Args:
        keys: The newest.
        partitions: Of each topic, how many it has.
    """
    places: dict[bytes, set[tuple[str, int]]] = defaultdict(set)
    for topic, found in keys.items():
        for key, numbers in found.items():
            places[key] |= {(topic, number) for number in numbers}
    if not places:
        return
    torn = {key: where for key, where in places.items() if len({number for _, number in where}) > 1}
    if torn:
        key, where = min(torn.items())
        shown = ", ".join(f"{topic}[{number}]" for topic, number in sorted(where))
        yield Finding(
            "keys", Verdict.WRONG,
            f"{len(torn)} of {counted(len(places), 'key')} are on more than one partition number, for example {_shown(key)} on "
            f"{shown}: such a call is evaluated more than once, each time by a part of its records",
            f"{_WHAT_TO_DO} Calls that run while it is changed stay torn.",
        )  # fmt: skip
    hashes = {topic: _hashes(found, partitions[topic]) for topic, found in keys.items() if found}
    agreed = frozenset.intersection(*hashes.values())
    if not agreed:
        senders = "; ".join(f"{topic} by {' or '.join(sorted(names))}" for topic, names in hashes.items())
        yield Finding("keys", Verdict.WARNING, f"the inputs place keys by different hashes: {senders}", _WHAT_TO_DO)
    elif not torn:
        name = "murmur2" if "murmur2" in agreed else min(agreed)
        yield Finding(
            "keys", Verdict.OK,
            f"the newest {counted(len(places), 'key')} of the inputs: each on one partition number, placed by {name}",
        )  # fmt: skip


def _hashes(keys: Mapping[bytes, frozenset[int]], partitions: int) -> frozenset[str]:
    """The hashes that put all these keys where they are."""
    fitting = {
        name
        for name, place in _PLACE_BY_HASH.items()
        if all(numbers == {place(key, partitions)} for key, numbers in keys.items())
    }
    return frozenset(fitting or {_ANOTHER})


def _shown(key: bytes) -> str:
    return ascii(key.decode("utf-8", "replace")[:MAX_SHOWN_CHARS])
