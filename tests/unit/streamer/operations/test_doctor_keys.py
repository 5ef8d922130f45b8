"""The doctor checks the newest keys: one partition number for a call, and one hash for all inputs."""

import zlib
from collections.abc import Callable, Mapping

import pytest

from consumers.runtime.kafka.polling import murmur2_place
from streamer.doctor.examination import key_findings
from streamer.doctor.findings import Finding, Verdict

PIPECAT, ELEVENLABS, AUDIT = "x.pipecat.events", "x.elevenlabs.events", "x.audit.events"
PARTITIONS = dict.fromkeys((PIPECAT, ELEVENLABS, AUDIT), 6)
Place = Callable[[bytes, int], int]


def crc32(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions


def first_byte(key: bytes, partitions: int) -> int:
    return sum(key) % partitions


def keys_placed(place: Place, calls: range, partitions: int = 6) -> dict[bytes, frozenset[int]]:
    keys = [f"call-{call}".encode() for call in calls]
    return {key: frozenset([place(key, partitions)]) for key in keys}


def found_in(
    pipecat: Mapping[bytes, frozenset[int]], audit: Mapping[bytes, frozenset[int]], partitions: int = 6
) -> list[Finding]:
    keys = {PIPECAT: pipecat, ELEVENLABS: {}, AUDIT: audit}
    return list(key_findings(keys, dict.fromkeys(PARTITIONS, partitions)))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(murmur2_place, "murmur2", id="Java"),
        pytest.param(crc32, "CRC32 (librdkafka's default)", id="librdkafka"),
        pytest.param(first_byte, "another hash", id="a hash that nobody knows"),
    ],
)
def test_any_hash_is_fine_if_all_use_it(place: Place, name: str) -> None:
    (finding,) = found_in(keys_placed(place, range(40)), keys_placed(place, range(20, 60)))
    assert (finding.verdict, finding.seen) == (
        Verdict.OK, f"the newest 60 keys of the inputs: each on one partition number, placed by {name}",
    )  # fmt: skip


def test_one_key_on_two_numbers_is_wrong_and_named() -> None:
    torn, hashes = found_in(keys_placed(crc32, range(20)), keys_placed(murmur2_place, range(20)))
    assert torn.verdict is Verdict.WRONG
    differ = [key for key in keys_placed(crc32, range(20)) if crc32(key, 6) != murmur2_place(key, 6)]
    example = min(differ)
    assert torn.seen.startswith(f"{len(differ)} of 20 keys are on more than one partition number, for example '")
    assert f"'{example.decode()}' on {AUDIT}[{murmur2_place(example, 6)}], {PIPECAT}[{crc32(example, 6)}]" in torn.seen
    assert "partitioner=murmur2_random" in torn.what_to_do
    assert hashes.verdict is Verdict.WARNING


def test_different_hashes_are_told_though_no_key_was_seen_twice() -> None:
    (finding,) = found_in(keys_placed(crc32, range(20)), keys_placed(murmur2_place, range(20, 40)))
    assert (finding.verdict, finding.seen) == (
        Verdict.WARNING,
        f"the inputs place keys by different hashes: {PIPECAT} by CRC32 (librdkafka's default); {AUDIT} by murmur2",
    )


def test_one_key_on_two_numbers_of_one_input_is_wrong_too() -> None:
    """A bot that was restarted with another client does this, or a round robin."""
    finding, *_ = found_in({b"call": frozenset([1, 4])}, {})
    assert finding.verdict is Verdict.WRONG
    assert f"'call' on {PIPECAT}[1], {PIPECAT}[4]" in finding.seen


def test_with_one_partition_there_is_nothing_to_tell_apart() -> None:
    (finding,) = found_in(keys_placed(crc32, range(9), 1), keys_placed(murmur2_place, range(9), 1), partitions=1)
    assert finding.verdict is Verdict.OK


def test_without_keys_there_is_nothing_to_say() -> None:
    assert found_in({}, {}) == []


def test_a_key_is_shown_without_what_a_terminal_obeys() -> None:
    finding, *_ = found_in({b"\x1b[31m\r\n" + b"k" * 99: frozenset([1, 4])}, {})
    assert "'\\x1b[31m\\r\\n" in finding.seen
    assert "k" * 60 not in finding.seen
