"""A piece of a partition's journal, as it travels beside the scores that its steps decided. Pure: values in, bytes out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Step = tuple[str | None, int]
"""A topic and the offset of the folded record; or None and the broker time that the engine reached; or `CLOSE_SOME`."""
CLOSE_SOME: Final[Step] = (None, -1)
"""A step of closing calls that are over."""

PIECE_HEADER: Final = "callgauge-journal"
"""Header with the description of a piece. Its record of `scores` has no value, so readers of scores skip it as they skip marks."""
STEPS_HEADER: Final = "callgauge-steps"
"""Header with the steps of a piece."""

_TIME: Final = 0
_CLOSE_SOME: Final = 1
_FIRST_TOPIC: Final = 2
"""Numbers that begin a step: of time, of closing, and of a record of the first topic."""

_Count = Annotated[int, Field(ge=0)]
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class JournalPlace(BaseModel):
    """A moment in a journal.

    Attributes:
        journal_id: Unique id of the journal.
        steps: Number of steps before it.
        groups: Number of groups of records that these decided.
        written: Number of groups that were written by then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    journal_id: _Id
    steps: _Count
    groups: _Count
    written: _Count


class Piece(BaseModel):
    """The steps up to the last record of one transaction, from the end of the piece before.

    Attributes:
        journal_id: Unique id of the journal.
        first_step: Number of steps before the piece.
        steps: Number of its steps.
        positions: By topic, the offset after the last record folded before the piece.
        time_ms: Latest broker time that the engine reached before the piece.
        first_group: Number of groups of records in earlier pieces.
        checks: Checksum of each group of the transaction.
        left: Groups that the last step decided and that come with the next piece.
        scores: Number of records of `scores` in the transaction.
        encoded: The steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    journal_id: _Id
    first_step: _Count
    steps: _Count
    positions: Mapping[str, _Count]
    time_ms: int
    first_group: _Count
    checks: tuple[_Count, ...]
    left: _Count
    scores: _Count
    encoded: bytes = b""

    def headers(self) -> list[tuple[str, bytes]]:
        """Returns the piece as headers of a record."""
        text = self.model_dump_json(exclude={"encoded"}).encode()
        return [(PIECE_HEADER, text), (STEPS_HEADER, self.encoded)]

    def each_step(self) -> list[Step]:
        """Returns its steps, in order.

        Raises:
            ValueError: Its bytes are no steps, or not as many as it says.
        """
        steps = list(_decoded(self.encoded, self.positions, self.time_ms))
        if len(steps) != self.steps:
            raise ValueError(f"{len(steps)} steps instead of {self.steps}")
        return steps


def piece_in(headers: Sequence[tuple[str, bytes]]) -> Piece | None:
    """Reads the piece in the headers of a record without a value; None if none is there.

    Raises:
        ValueError: It has another form than this version writes.
    """
    found = dict(headers)
    if PIECE_HEADER not in found:
        return None
    try:
        piece = Piece.model_validate_json(found[PIECE_HEADER])
    except ValidationError as error:
        raise ValueError("a piece of the journal has another form than this version writes") from error
    return piece.model_copy(update={"encoded": found.get(STEPS_HEADER, b"")})


def encoded(steps: Sequence[Step], positions: Mapping[str, int], time_ms: int) -> bytes:
    """Returns the steps as bytes; a record that follows the one before it in its topic takes one.

    Args:
        steps: The steps.
        positions: By topic, the offset after the last record folded before them.
        time_ms: Latest broker time that the engine reached before them.

    Raises:
        ValueError: The offsets of a topic do not ascend.
    """
    index_by_topic = {topic: index for index, topic in enumerate(sorted(positions))}
    places = dict(positions)
    into = bytearray()
    for topic, value in steps:
        if (topic, value) == CLOSE_SOME:
            into.append(_CLOSE_SOME)
        elif topic is None:
            by_ms, time_ms = value - time_ms, value
            into.append(_TIME)
            _put(into, 2 * by_ms if by_ms >= 0 else -2 * by_ms - 1)
        else:
            passed = value - places[topic]
            if passed < 0:
                raise ValueError(f"{topic}@{value} comes after {places[topic] - 1}")
            places[topic] = value + 1
            _put(into, _FIRST_TOPIC + index_by_topic[topic] + len(places) * passed)
    return bytes(into)


def _decoded(text: bytes, positions: Mapping[str, int], time_ms: int) -> Iterator[Step]:
    topics = sorted(positions)
    places = dict(positions)
    numbers = _numbers(text)
    for number in numbers:
        if number == _CLOSE_SOME:
            yield CLOSE_SOME
        elif number == _TIME:
            twice = next(numbers, None)
            if twice is None:
                raise ValueError("the last step has no time")
            time_ms += twice // 2 if twice % 2 == 0 else -(twice + 1) // 2
            yield None, time_ms
        else:
            if not topics:
                raise ValueError("a record of no topic")
            passed, index = divmod(number - _FIRST_TOPIC, len(topics))
            topic = topics[index]
            offset = places[topic] + passed
            places[topic] = offset + 1
            yield topic, offset


def _put(into: bytearray, number: int) -> None:
    """Adds a number in groups of seven bits, the lowest first; all but the last have the eighth bit."""
    while number > 0x7F:
        into.append(number & 0x7F | 0x80)
        number >>= 7
    into.append(number)


def _numbers(text: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in text:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("the last number is cut off")
