"""The records of `events`, the log of all events of a call in one order: what their headers say,
and the ticks that tell time.

Only the sequencer writes the log. A record has the bytes that its producer sent and
the producer's headers, and one header of ours: who appended it, and where it came from. A tick is a
record without a key: up to which time every input is read, and where each stands. Pure: bytes in,
values out.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE

PLACED_HEADER: Final = "callgauge-placed"
"""Header of an event: its origin, packed."""
TICK_HEADER: Final = "callgauge-tick"
"""Header of a tick: the term, packed. So a reader who looks for the newest tick decodes
no event.
"""
REPLAY_OF_HEADER: Final = "callgauge_replay_of"
"""Header of a record that was put back from quarantine: where it was refused first, however often
it came back.
"""
OUR_HEADERS: Final = (PLACED_HEADER, TICK_HEADER)
"""Headers that a producer may not bring with it: the sequencer takes them off."""

SOURCES: Final = (InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.AUDIT, InputSource.JUDGE)
"""The inputs by their numbers in a header. Only the end of the list may grow."""
_NUMBER_OF: Final = {source: number for number, source in enumerate(SOURCES)}

_FORMAT: Final = 1
_PLACED: Final = struct.Struct(">BBIIIQq")
_TERM: Final = struct.Struct(">BI")

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of a record. A producer may send one without a value."""


class LogError(ValueError):
    """A record of the log cannot be read: somebody else wrote it, or another version did in another
    format.
    """


class Origin(NamedTuple):
    """Where an event came from.

    Attributes:
        source: The input.
        generation: How often that partition of the input was recreated, as far as the sequencer has
            seen.
        partition: Partition number there.
        offset: Offset there.
        time_ms: The broker's time of the record there.
    """

    source: InputSource
    generation: int
    partition: int
    offset: int
    time_ms: int


class Placed(NamedTuple):
    """What the header of an event says: the term of the sequencer that appended it, and
    its origin.
    """

    term: int
    origin: Origin

    def header(self) -> tuple[str, bytes]:
        """The header as the log has it."""
        source, generation, partition, offset, time_ms = self.origin
        packed = _PLACED.pack(
            _FORMAT, _NUMBER_OF[source], self.term, generation, partition, offset, time_ms
        )
        return PLACED_HEADER, packed


class Next(NamedTuple):
    """Where an input partition stands: its generation, and the offset of the next record to append.

    Two of them compare as the log orders them: an event before this place is in the log already.
    """

    generation: int
    offset: int


Positions = Mapping[tuple[InputSource, int], Next]
"""By input and partition number, where it stands. A partition that is missing has no record in the
log yet.
"""
Times = Mapping[tuple[InputSource, int], int]
"""By input and partition number, the time of the record before that place, in epoch ms, as the
record has it; missing or 0 if it is not known.
"""

_Offset = Annotated[int, Field(ge=0)]


class Tick(BaseModel):
    """Tells time, in each partition of the log.

    Between two events of a backlog it tells time alone: that much of it lies between them, though
    they are appended at once.

    Attributes:
        term: Term of the sequencer. A record of a lower term behind it is void.
        known_ms: Broker time up to which every input is read, those left out not counted: no event
            before it will come.
        inputs: By input and there by partition number, its generation, the offset of the next
            record to append, and how long before `known_ms` the record before that came (it is
            shorter than the time): all before it is in the log, in front of this tick. None if
            nothing is known of that record; empty if it tells time alone.
        left_out: Input partitions that have given no answer for too long, so that time goes on
            without them: topic and partition.
        gap_ms: For how long before it no events were taken, as while a machine sleeps: silence in
            that time is none. Below 0, time goes back by so much: the clock that told it was ahead.
        place: Offset in the log, once it is read there.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    term: Annotated[int, Field(ge=0)]
    known_ms: int
    inputs: dict[InputSource, dict[int, tuple[_Offset, _Offset, int | None]]]
    left_out: tuple[str, ...] = ()
    gap_ms: int = 0
    place: Annotated[SkipJsonSchema[int], Field(exclude=True)] = 0

    @classmethod
    def of(
        cls,
        term: int,
        known_ms: int,
        positions: Positions,
        left_out: Iterable[str] = (),
        times_ms: Times | None = None,
    ) -> "Tick":
        """Makes a tick of positions by input and partition.

        Example:
            >>> audit = InputSource.AUDIT, 0
            >>> tick = Tick.of(3, 1_000, {audit: Next(0, 7)}, times_ms={audit: 980})
            >>> tick.positions
            {(<InputSource.AUDIT: 'audit'>, 0): Next(generation=0, offset=7)}
            >>> tick.times_ms[audit]
            980
            >>> Tick.parse(tick.value()) == tick
            True
        """
        inputs: dict[InputSource, dict[int, tuple[int, int, int | None]]] = {}
        for (source, partition), place in positions.items():
            time_ms = (times_ms or {}).get((source, partition), 0)
            before_ms = known_ms - time_ms if time_ms else None
            inputs.setdefault(source, {})[partition] = (*place, before_ms)
        return cls(term=term, known_ms=known_ms, inputs=inputs, left_out=tuple(left_out))

    @property
    def positions(self) -> dict[tuple[InputSource, int], Next]:
        """Where each input partition stands."""
        return {
            (source, partition): Next(generation, offset)
            for source, places in self.inputs.items()
            for partition, (generation, offset, _) in places.items()
        }

    @property
    def times_ms(self) -> dict[tuple[InputSource, int], int]:
        """The time of the record before that place, by input partition; those that are known."""
        return {
            (source, partition): self.known_ms - before_ms
            for source, places in self.inputs.items()
            for partition, (_, _, before_ms) in places.items()
            if before_ms is not None
        }

    def value(self) -> bytes:
        """The record's value."""
        return self.model_dump_json(exclude_defaults=True).encode()

    def header(self) -> tuple[str, bytes]:
        """The record's header."""
        return TICK_HEADER, _TERM.pack(_FORMAT, self.term)

    @classmethod
    def parse(cls, value: bytes | None) -> "Tick":
        """Reads the value of a tick.

        Raises:
            LogError: It is none.
        """
        try:
            return cls.model_validate_json(value or b"")
        except ValidationError as error:
            raise LogError(
                f"expected a tick of format {_FORMAT}, saw {(value or b'')[:80]!r}"
            ) from error


def placed_in(headers: Headers) -> Placed | None:
    """What the headers of a record of the log say; None if it is no event.

    Raises:
        LogError: The header cannot be read.

    Example:
        >>> placed = Placed(3, Origin(InputSource.AUDIT, 0, 1, 7, 1_000))
        >>> placed_in([placed.header()]) == placed
        True
    """
    numbers = _numbers(PLACED_HEADER, _PLACED, headers)
    if numbers is None:
        return None
    _, number, term, *place = numbers
    return Placed(term, Origin(_source(number), *place))


def tick_term(headers: Headers) -> int | None:
    """The term of a tick; None if the record is no tick.

    Raises:
        LogError: The header cannot be read.
    """
    numbers = _numbers(TICK_HEADER, _TERM, headers)
    return None if numbers is None else numbers[1]


def _numbers(name: str, form: struct.Struct, headers: Headers) -> tuple[int, ...] | None:
    """The numbers of a header of ours, the format first; None without that header."""
    for header, packed in headers:
        if header == name:
            if packed is None or len(packed) != form.size or packed[0] != _FORMAT:
                raise LogError(
                    f"{name}: expected format {_FORMAT} in {form.size} bytes, saw "
                    f"{(packed or b'')[:40]!r}"
                )
            return form.unpack(packed)
    return None


def _source(number: int) -> InputSource:
    try:
        return SOURCES[number]
    except IndexError:
        raise LogError(
            f"{PLACED_HEADER}: expected an input below {len(SOURCES)}, saw {number}"
        ) from None


class OutgoingRecord(NamedTuple):
    """One event on its way into the log; the key is the conversation's id."""

    source: InputSource
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


class Event(NamedTuple):
    """An event of the log as its input had it, with the fields of a Kafka record, so that it is
    decoded as on its input.

    Attributes:
        topic: Name of the input in the topic table.
        partition: Partition number there.
        offset: Offset there.
        timestamp: The broker's time there, in ms since 1970.
        key: The key: the conversation's id.
        value: The bytes that the producer sent.
        headers: The producer's headers.
        source: The input.
        generation: Generation of that partition.
        term: Term of the sequencer.
        place: Offset in the log.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    source: InputSource
    generation: int
    term: int
    place: int


class Begin(NamedTuple):
    """A tick at which reading may begin.

    Attributes:
        offset: Its offset in the log.
        known_ms: The time that it tells.
    """

    offset: int
    known_ms: int


class LogRecord(Protocol):
    """The fields of a record that matter here, as aiokafka's record has them."""

    @property
    def offset(self) -> int:
        """Offset in the log."""

    @property
    def key(self) -> bytes | None:
        """The conversation's id; None of a tick."""

    @property
    def value(self) -> bytes | None:
        """The event, or the tick."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The producer's headers, and ours."""


class LogReader:
    """Reads one partition of the log: drops repeats and what is void, and knows the time. State is
    a function of the records given.

    Another one may begin at `begin` and returns the same from there on, because that tick says all
    that this one knows. Not every tick does: a sequencer begins at the newest tick that it finds,
    and the one before it may have appended more since. Until the new one has appended that again,
    its ticks say less than what is in front of them, and a reader who began there would take the
    repeats for events.

    Attributes:
        known_ms: Broker time up to which everything is in the log in front of here; 0 before the
            first tick.
        term: Highest term so far; -1 before the first record.
        begin: Newest tick at which another reader may begin; None before the first.
        repeats: Events that were in the log already.
        void: Records of a sequencer whose successor had written already.
    """

    def __init__(self) -> None:
        self.known_ms = 0
        self.term = -1
        self.begin: Begin | None = None
        self.repeats = 0
        self.void = 0
        # by number of the input and of its partition
        self._next: dict[tuple[int, int], tuple[int, int]] = {}

    def read(self, record: LogRecord) -> Event | Tick | None:
        """Takes the next record; returns what it is, None if it is a repeat, or void.

        Raises:
            LogError: It cannot be read.
        """
        numbers = _numbers(PLACED_HEADER, _PLACED, record.headers)
        if numbers is None:
            return self._tick(record)
        _, number, term, generation, partition, offset, time_ms = numbers
        if term < self.term:
            self.void += 1
            return None
        self.term = term
        source, place = _source(number), (number, partition)
        known = self._next.get(place, _NOTHING)
        if (generation, offset) < known:
            if generation < known[0]:  # all that follows it would be dropped, too, in silence
                raise LogError(
                    f"expected generation {known[0]} of {source}[{partition}] or a later one, saw "
                    f"{generation}: its sequencer does not know that the input was recreated"
                )
            self.repeats += 1
            return None
        self._next[place] = generation, offset + 1
        headers = [each for each in record.headers if each[0] != PLACED_HEADER]
        return Event(
            TOPIC_BY_SOURCE[source],
            partition,
            offset,
            time_ms,
            record.key,
            record.value,
            headers,
            source,
            generation,
            term,
            record.offset,
        )

    def _tick(self, record: LogRecord) -> Tick | None:
        term = tick_term(record.headers)
        if term is None:
            raise LogError("expected an event or a tick, saw a record with neither header")
        if term < self.term:
            self.void += 1
            return None
        tick = Tick.parse(record.value)
        positions = {
            (_NUMBER_OF[source], partition): (generation, offset)
            for source, places in tick.inputs.items()
            for partition, (generation, offset, _) in places.items()
        }
        says_all = tick.known_ms >= self.known_ms and all(
            reached <= positions.get(place, _NOTHING) for place, reached in self._next.items()
        )
        self.term = term
        if says_all:
            self.begin = Begin(record.offset, tick.known_ms)
        self.known_ms = max(self.known_ms, tick.known_ms)
        for place, reached in positions.items():
            self._next[place] = max(reached, self._next.get(place, reached))
        return tick.model_copy(update={"place": record.offset})


_NOTHING: Final = (0, 0)
"""Place of an input partition without a record in the log."""
