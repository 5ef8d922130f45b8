"""Compares `events` with the inputs, and with the inputs alone: whoever folds the log is right only
if the log is. Pure.

Every record of an input that is admitted stands in the log once, in the partition of its key, after
those that came before it on its input. Nothing else stands there. Time that a tick tells is never
above a record that is not in the log yet. And a silence of a known length is dead air or is not, as
the broker's times on the inputs say.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka.partitioner import murmur2

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.log import Event, LogError, LogReader, Tick
from schemas.rows import TurnRow, decode
from tests.chaos.load.silences import NAME_START, SilenceTimes
from tests.chaos.verdict.checker import Coordinates, Findings
from tests.chaos.verdict.deleted_records import Deletion, Excuse
from tests.chaos.verdict.topic_reader import ReadRecord

LOG, TIME, SILENCE, REFUSED = "log", "time", "silence", "refused"
"""The names under which findings are counted."""
MOST_EARLY: Final = 10_000
"""So many records of a partition that come after the known time are looked at."""


@dataclass(slots=True)
class InputRecord:
    """A record of an input topic as it was read back."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Entries:
    """What the log has of one input partition, a number each in every column; small, because there
    are millions.
    """

    def __init__(self) -> None:
        self.generations = array("I")
        self.offsets = array("q")
        self.times_ms = array("q")
        self.digests = array("Q")
        self.places = array("H")

    def take(self, event: Event, place: int) -> None:
        """One more event, of this partition of the log."""
        self.generations.append(event.generation)
        self.offsets.append(event.offset)
        self.times_ms.append(event.timestamp)
        self.digests.append(digest_of(event.key, event.value))
        self.places.append(place)

    def add(self, other: "Entries") -> None:
        """Those of another partition of the log."""
        for name in ("generations", "offsets", "times_ms", "digests", "places"):
            getattr(self, name).extend(getattr(other, name))

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Generation, offset, time, digest and partition of the log of each."""
        return zip(
            self.generations, self.offsets, self.times_ms, self.digests, self.places, strict=True
        )


class Early(NamedTuple):
    """An event in the log behind a tick whose time is above it."""

    source: InputSource
    partition: int
    offset: int
    time_ms: int
    known_ms: int
    left_out: tuple[str, ...]


@dataclass(slots=True)
class Log:
    """One partition of the log, or several of them, as its readers see it.

    Attributes:
        entries: By input and partition number, the events.
        early: Events that come behind a time above them.
        repeats: Events that were there already.
        void: Records of former sequencers behind their successor's.
        fault: Why it cannot be read further; None if it can.
    """

    entries: dict[tuple[InputSource, int], Entries] = field(default_factory=dict)
    early: list[Early] = field(default_factory=list)
    repeats: int = 0
    void: int = 0
    fault: str | None = None

    def read(self, records: Iterable[ReadRecord], number: int) -> Iterator[Event | Tick]:
        """Takes the records of a partition, and yields its events and ticks."""
        reader = LogReader()
        left_out: tuple[str, ...] = ()
        for record in records:
            try:
                found = reader.read(record)
            except LogError as error:
                self.fault = f"events[{number}]@{record.offset}: {error}"
                break
            if isinstance(found, Tick):
                left_out = found.left_out
            elif found is not None:
                if found.timestamp < reader.known_ms and len(self.early) < MOST_EARLY:
                    where = found.source, found.partition, found.offset
                    self.early.append(Early(*where, found.timestamp, reader.known_ms, left_out))
                self.entries.setdefault((found.source, found.partition), Entries()).take(
                    found, number
                )
            if found is not None:
                yield found
        self.repeats, self.void = reader.repeats, reader.void

    def add(self, other: "Log") -> None:
        """Another partition."""
        for place, entries in other.entries.items():
            self.entries.setdefault(place, Entries()).add(entries)
        self.early += other.early
        self.repeats += other.repeats
        self.void += other.void
        self.fault = self.fault or other.fault


def digest_of(key: bytes | None, value: bytes | None) -> int:
    """A number that stands for the bytes of a record."""
    hashed = hashlib.blake2b(
        len(key or b"").to_bytes(4, "big") + (key or b"") + (value or b""), digest_size=8
    )
    return int.from_bytes(hashed.digest(), "big")


@dataclass(slots=True)
class InputFindings:
    """What one input partition, or several of them, says.

    Attributes:
        findings: What is wrong with the log.
        refused: Coordinates of records that belong in quarantine.
        silences: Times of the calls with a silence of a known length.
        admitted: Records that belong in the log.
        unread: Of them, those that were deleted before they were read.
    """

    findings: Findings = field(default_factory=Findings)
    refused: set[Coordinates] = field(default_factory=set)
    silences: SilenceTimes = field(default_factory=SilenceTimes)
    admitted: int = 0
    unread: int = 0

    def add(self, other: "InputFindings") -> None:
        """Those of another input partition."""
        self.findings.add(other.findings)
        self.refused |= other.refused
        self.silences.add(other.silences)
        self.admitted += other.admitted
        self.unread += other.unread


def input_compared(
    source: InputSource,
    lives: Sequence[Iterable[InputRecord]],
    entries: Entries,
    limits: Limits,
    partitions: int,
    deletions: Sequence[Deletion] = (),
) -> InputFindings:
    """Compares one input partition with what the log has of it.

    Args:
        source: The input.
        lives: The records of the partition, of each time that its topic was made, in order.
        entries: What the log has of it.
        limits: Bounds of the evaluators.
        partitions: Of the log.
        deletions: Records of the partition that may not have been read.
    """
    result = InputFindings()
    note = result.findings.note
    by_place: dict[tuple[int, int], tuple[int, int, int]] = {}
    for generation, offset, time_ms, digest, place in entries.rows():
        if (generation, offset) in by_place:
            note(
                "duplicate", LOG, f"{source} generation {generation} @{offset} is in the log twice"
            )
        by_place[generation, offset] = time_ms, digest, place
    generations = sorted({generation for generation, _ in by_place})
    reached = -1
    for made, records in enumerate(lives):
        for record in records:
            where = f"{record.topic}[{record.partition}]@{record.offset}" + (
                f" of life {made}" if made else ""
            )
            content = record.timestamp, digest_of(record.key, record.value)
            found = [
                each
                for each in generations
                if by_place.get((each, record.offset), ())[:2] == content
            ]
            is_admitted = isinstance(admit(source, record, limits), Arrival)
            is_unread = any(
                each.made == made and each.first <= record.offset < each.end for each in deletions
            )
            if is_admitted:
                result.admitted += 1
            elif not is_unread:
                result.refused.add((record.topic, record.partition, record.offset))
            if is_admitted and not found:
                result.unread += is_unread
                if not is_unread:
                    note("missing", LOG, f"{where} is not in the log")
            if is_admitted and (name := (record.key or b"").decode()).startswith(NAME_START):
                result.silences.take(name, record.value or b"", record.timestamp)
                if not found:
                    result.silences.lost.add(name)
            for each in found[1:]:
                note(
                    "duplicate",
                    LOG,
                    f"{where} is in the log as of generation {found[0]} and of {each}",
                )
            for each in found:
                place = by_place.pop((each, record.offset))[2]
                if place != place_of(record.key or b"", partitions):
                    note(
                        "wrong",
                        LOG,
                        f"{where} is in partition {place} of the log, expected that of its key",
                    )
            if found and found[0] < reached:
                note("wrong", LOG, f"{where} is of generation {found[0]}, after {reached}")
            reached = max([reached, *found[:1]])
    for generation, offset in by_place:
        note(
            "wrong",
            LOG,
            f"{source} generation {generation} @{offset} is in the log, and never was on its input "
            "as it is there",
        )
    return result


def place_of(key: bytes, partitions: int) -> int:
    """The partition of the log of a key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def times_compared(
    early: Iterable[Early], topic_of: Callable[[InputSource], str], excuses: Sequence[Excuse]
) -> Findings:
    """Known time is never above a record that comes later, unless no reader could see
    that record.
    """
    findings = Findings()
    for each in early:
        topic = topic_of(each.source)
        is_left_out = any(topic in name for name in each.left_out)
        if not is_left_out and not any(excuse.has(topic, each.time_ms) for excuse in excuses):
            what = (
                f"{topic}[{each.partition}]@{each.offset} of {each.time_ms} comes behind a tick "
                f"that knows all up to {each.known_ms}"
            )
            findings.note("wrong", TIME, f"{what}, {each.known_ms - each.time_ms} ms later")
    return findings


def silences_compared(
    times: SilenceTimes,
    dead_airs: Mapping[str, int],
    dead_air_ms: int,
    is_excused: Callable[[int], bool],
) -> Findings:
    """Each call with a silence of a known length has as many dead airs as its times on the inputs
    say.

    Args:
        times: What the inputs say.
        dead_airs: By call, how many `scores` has; calls without any are not there.
        dead_air_ms: The silence that is dead air.
        is_excused: Whether records of this broker time may have been hidden.
    """
    findings = Findings()
    for name, silences_ms in sorted(times.silences_ms().items()):
        found, count = dead_airs.get(name, 0), sum(each >= dead_air_ms for each in silences_ms)
        if found != count and not any(map(is_excused, times.came_ms(name))):
            what = (
                f"{name} has {found} dead airs, expected {count}; its records came in ms (its "
                f"events were): {times.told(name)}"
            )
            findings.note("wrong" if found > count else "missing", SILENCE, what)
    return findings


def dead_airs_in(scores: Iterable[bytes]) -> Counter[str]:
    """How many dead airs each call with a silence of a known length has; rows of a turn repeat
    them.
    """
    rows = (decode(value) for value in scores if b'"dead_air":' in value)
    found = {
        (row.conversation_id, each.number)
        for row in rows
        if isinstance(row, TurnRow)
        for each in row.dead_air
    }
    return Counter(name for name, _ in found if name.startswith(NAME_START))


def refused_compared(
    refused: Iterable[Coordinates], quarantined: frozenset[Coordinates]
) -> Findings:
    """Every record that belongs in quarantine is there."""
    wanted = set(refused)
    findings = Findings(refused=len(wanted))
    for topic, partition, offset in sorted(wanted - quarantined):
        findings.note(
            "missing",
            REFUSED,
            f"{topic}[{partition}]@{offset} was to be refused and is not in quarantine",
        )
    return findings
