"""The records of `order`: the steps in which the owners of a partition folded its inputs.

State and output of a partition are a function of the inputs and of these steps. The writer of a partition adds one record to each
transaction: the steps since the record before, up to the last step that decided something. A record of `order` that begins a
stretch says in its header where the inputs stood, so reading can begin there. Pure: steps in, bytes out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.closed_sets import InputSource

START_HEADER: Final = "callgauge-start"
"""Header of a record with which reading may begin."""
WRITER_HEADER: Final = "callgauge-writer"
"""Header of a mark, a record without a value: the id of the producer with which the owner that begins there writes."""
SOURCES: Final = (InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.AUDIT, InputSource.JUDGE)
"""The inputs by their numbers in a step. Only the end of the list may grow."""

_TIME: Final = 0
_EVICTED: Final = 1
_CLOSED: Final = 2
_GOALS: Final = 3
_RENUMBERED: Final = 4
_FIRST_FOLD: Final = 5
"""Numbers that begin a step. From the last on: twice the number of the input, plus 1 if the record opened a call, whose id follows,
plus 2 x the number of inputs for each offset without a record before it."""
_FOLDS: Final = 2 * len(SOURCES)
_FORMAT: Final = 1

Positions = Mapping[InputSource, int]
"""By input, the offset after the last folded record."""


class OrderError(ValueError):
    """A record of `order` cannot be read: it is damaged, or another version wrote it in another format."""


class Fold(NamedTuple):
    """A record was folded, or refused, or belonged to a closed call. `opened` is the call that it opened, if it opened one."""

    source: InputSource
    offset: int
    opened: str | None = None


class TimePassed(NamedTuple):
    """Silence was decided up to this broker time."""

    now_ms: int


class Evicted(NamedTuple):
    """The next record opened a call although too many were open, so this one began to close."""

    conversation_id: str


class Closed(NamedTuple):
    """The call closed: its `closed` fact is in the same transaction."""

    conversation_id: str


class GoalsChosen(NamedTuple):
    """The next step gave the call a goal set: its fact is in the same transaction."""

    conversation_id: str
    goals_id: str
    digest: str


class Renumbered(NamedTuple):
    """The revisions of a call go on from this one, because its values were published once again. If records of it are lost, it
    counts no value for the first time any more: a former owner may have.
    """

    conversation_id: str
    least_revision: int
    counts: bool = True


Step = Fold | TimePassed | Evicted | Closed | GoalsChosen | Renumbered

_Count = Annotated[int, Field(ge=0)]


class OrderStart(BaseModel):
    """The state of reading before a record of `order`.

    Attributes:
        version: Version of the code and the settings that decide what is published.
        positions: By input, the offset after the last folded record.
        time_ms: Broker time up to which silence was decided.
        writer: Id of the producer that wrote it; None if the record does not say.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str
    positions: dict[InputSource, _Count]
    time_ms: int
    writer: str | None = None

    def header(self) -> tuple[str, bytes]:
        """Returns it as a header of a record."""
        return START_HEADER, self.model_dump_json().encode()


def writer_in(headers: Sequence[tuple[str, bytes]]) -> str | None:
    """Returns the id of the producer that a mark names; None without one."""
    return next((value.decode("utf-8", "replace") for name, value in headers if name == WRITER_HEADER), None)


def start_in(headers: Sequence[tuple[str, bytes]]) -> OrderStart | None:
    """Returns the start in the headers of a record; None without one.

    Raises:
        OrderError: It has another form.
    """
    for name, value in headers:
        if name == START_HEADER:
            try:
                return OrderStart.model_validate_json(value)
            except ValidationError as error:
                raise OrderError(f"the header {START_HEADER} has another form than this version reads") from error
    return None


class OrderEncoder:
    """Writes steps as bytes. A record that follows the one before it in its topic takes one byte.

    Attributes:
        positions: By input, the offset after the last folded record.
        time_ms: Latest broker time up to which silence was decided.
    """

    def __init__(self, positions: Positions, time_ms: int) -> None:
        self.positions = {source: positions.get(source, 0) for source in SOURCES}
        self.time_ms = time_ms
        self._steps = bytearray()

    def __len__(self) -> int:
        """Bytes of the steps that were not taken."""
        return len(self._steps)

    def fold(self, source: InputSource, offset: int, opened: str | None = None) -> None:
        """Notes that a record was folded, and the call that it opened. Offsets of an input ascend."""
        passed = offset - self.positions[source]
        if passed < 0:
            raise ValueError(f"{source}@{offset} comes after {self.positions[source] - 1}")
        self.positions[source] = offset + 1
        if not passed and opened is None:  # nearly always
            self._steps.append(_FIRST_FOLD + 2 * _NUMBERS[source])
        elif opened is None:
            _put(self._steps, _FIRST_FOLD + 2 * _NUMBERS[source] + _FOLDS * passed)
        else:
            self._put_texts(_FIRST_FOLD + 2 * _NUMBERS[source] + 1 + _FOLDS * passed, opened)

    def pass_time(self, now_ms: int) -> None:
        """Notes that silence was decided up to this time."""
        by_ms = now_ms - self.time_ms
        self.time_ms = max(self.time_ms, now_ms)
        self._steps.append(_TIME)
        _put(self._steps, 2 * by_ms if by_ms >= 0 else -2 * by_ms - 1)

    def evict(self, conversation_id: str) -> None:
        """Notes that a call begins to close for the next record, which opens another."""
        self._put_texts(_EVICTED, conversation_id)

    def close(self, conversation_id: str) -> None:
        """Notes that a call closed."""
        self._put_texts(_CLOSED, conversation_id)

    def choose_goals(self, conversation_id: str, goals_id: str, digest: str) -> None:
        """Notes the goal set that the next step gave to a call."""
        self._put_texts(_GOALS, conversation_id, goals_id, digest)

    def renumber(self, step: Renumbered) -> None:
        """Notes that the revisions of a call go on from another number, and whether its values still count."""
        self._put_texts(_RENUMBERED, step.conversation_id)
        _put(self._steps, 2 * step.least_revision + step.counts)

    def take(self) -> bytes:
        """Returns the steps since the last call."""
        taken = bytes(self._steps)
        self._steps.clear()
        return taken

    def _put_texts(self, number: int, *texts: str) -> None:
        _put(self._steps, number)
        for text in texts:
            encoded = text.encode()
            _put(self._steps, len(encoded))
            self._steps += encoded


def order_value(steps: bytes) -> bytes:
    """Returns the value of a record of `order` with these steps."""
    return bytes((_FORMAT,)) + steps


class OrderDecoder:
    """Reads steps back: the records of a partition of `order`, one after the other, from one with a start.

    Attributes:
        positions: By input, the offset after the last folded record.
        time_ms: Latest broker time up to which silence was decided.
    """

    def __init__(self, start: OrderStart) -> None:
        self.positions = {source: start.positions.get(source, 0) for source in SOURCES}
        self.time_ms = start.time_ms

    def begin(self, start: OrderStart) -> None:
        """Goes on at a later start, of the same owner or of another.

        Raises:
            OrderError: It is before the steps so far.
        """
        for source in SOURCES:
            position = start.positions.get(source, 0)
            if position < self.positions[source]:
                raise OrderError(f"an owner began at {source}@{position}, before the end of the one before it")
            self.positions[source] = position
        self.time_ms = start.time_ms

    def steps(self, value: bytes) -> Iterator[Step]:
        """Returns the steps of the next record.

        Raises:
            OrderError: It is damaged, or of another format.
        """
        if not value or value[0] != _FORMAT:
            raise OrderError(f"its format is {value[0] if value else 'empty'}, and this version reads {_FORMAT}")
        try:
            yield from self._steps(value)
        except (IndexError, UnicodeDecodeError) as error:
            raise OrderError("its steps are cut off") from error

    def _steps(self, value: bytes) -> Iterator[Step]:
        at, end, positions = 1, len(value), self.positions
        while at < end:
            number = value[at]
            at += 1
            if number > 0x7F:
                number, at = _number(value, at - 1)
            if number >= _FIRST_FOLD:
                passed, place = divmod(number - _FIRST_FOLD, _FOLDS)
                source = SOURCES[place >> 1]
                offset = positions[source] + passed
                positions[source] = offset + 1
                opened = None
                if place & 1:
                    opened, at = _text(value, at)
                yield Fold(source, offset, opened)
            elif number == _TIME:
                twice, at = _number(value, at)
                now_ms = self.time_ms + (-(twice + 1) // 2 if twice & 1 else twice // 2)
                self.time_ms = max(self.time_ms, now_ms)
                yield TimePassed(now_ms)
            else:
                conversation_id, at = _text(value, at)
                if number == _EVICTED:
                    yield Evicted(conversation_id)
                elif number == _CLOSED:
                    yield Closed(conversation_id)
                elif number == _GOALS:
                    goals_id, at = _text(value, at)
                    digest, at = _text(value, at)
                    yield GoalsChosen(conversation_id, goals_id, digest)
                else:
                    twice, at = _number(value, at)
                    yield Renumbered(conversation_id, twice >> 1, bool(twice & 1))


_NUMBERS: Final = {source: number for number, source in enumerate(SOURCES)}


def _put(into: bytearray, number: int) -> None:
    """Adds a number in groups of seven bits, the lowest first; all but the last have the eighth bit."""
    while number > 0x7F:
        into.append(number & 0x7F | 0x80)
        number >>= 7
    into.append(number)


def _number(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while value[at] > 0x7F:
        number |= (value[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | value[at] << shift, at + 1


def _text(value: bytes, at: int) -> tuple[str, int]:
    size, at = _number(value, at)
    end = at + size
    if end > len(value):
        raise IndexError
    return value[at:end].decode(), end
