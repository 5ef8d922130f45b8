"""Inputs, sequencers after and beside each other, and the log that they leave, all in memory: every
step is taken by hand.

A model of the rules, not of the code of the role: a rule that loses a record, or tells a time too
early, is found here in seconds.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from schemas.closed_sets import InputSource
from schemas.log import Event, LogReader, Next, Origin, Placed, Tick, placed_in
from schemas.topics import TOPIC_BY_SOURCE
from tests.support.fakes.broker_records import BrokerRecord

Place = tuple[InputSource, int]
"""A partition of an input."""

PLACES: Final = ((InputSource.PIPECAT, 0), (InputSource.PIPECAT, 1), (InputSource.AUDIT, 0))
PARTITIONS: Final = 2
"""Partitions of the log."""
PATIENCE_MS: Final = 10_000
BEGIN_MS: Final = 1_000_000
TICK_MS: Final = 500


class Sent(NamedTuple):
    """A record that a producer sent. No other has its number."""

    number: int
    partition: int
    time_ms: int


class Input:
    """A partition of an input, as its broker has it. It may be recreated, and its oldest records
    may expire.
    """

    def __init__(self) -> None:
        self.first = 0
        self.records: list[Sent] = []
        self.answers = True


_NO_RECORD: Final = Next(0, -1), 0


class Ask(NamedTuple):
    """An answer of a broker that is not looked at yet: when it was asked, and the end by then."""

    asked_ms: int
    end: int


class World:
    """The brokers: the inputs, the log, and the time. The group gives each sequencer a higher
    generation.

    Attributes:
        sent: All that was sent, by its number, with its place in the input.
        hides: Whether an input ever gave no answer.
        newest: Of each input the newest record that the log has: its place there, and its number.
    """

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS
        self.inputs = {place: Input() for place in PLACES}
        self.hides = False
        self.log: list[list[BrokerRecord]] = [[] for _ in range(PARTITIONS)]
        self.newest = dict.fromkeys(PLACES, _NO_RECORD)
        self.group_generation = 0
        self.sent: list[tuple[Place, int, Sent]] = []

    def send(self, place: Place, partition: int) -> None:
        """A producer sends a record that belongs to this partition of the log."""
        records = self.inputs[place].records
        sent = Sent(len(self.sent), partition, self.now_ms)
        self.sent.append((place, len(records), sent))
        records.append(sent)

    def append(self, partition: int, record: BrokerRecord) -> None:
        """A record of a sequencer has come to the log."""
        self.log[partition].append(record._replace(offset=len(self.log[partition])))
        placed = placed_in(record.headers)
        if placed is not None:
            place, at = (placed.origin.source, placed.origin.partition), Next(*placed.origin[1:4:2])
            self.newest[place] = max(self.newest[place], (at, int(record.value or b"")))


class Sequencer:
    """One that follows the rules. What it has read and not appended is lost when it ends; what it
    has sent may still come.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        world.group_generation += 1
        ticks = self._ticks()
        newest = [tick for tick in ticks if tick.term == max(each.term for each in ticks)]
        self.term = max([world.group_generation, *(tick.term + 1 for tick in ticks)])
        self.known_ms = max((tick.known_ms for tick in newest), default=0)
        self._next = {
            place: max(tick.positions.get(place, Next(0, 0)) for tick in newest)
            if newest
            else Next(0, 0)
            for place in PLACES
        }
        self._read = dict(self._next)
        self._known_at = self._known_by_the_log()
        self._buffers: dict[Place, deque[tuple[Next, Sent]]] = {place: deque() for place in PLACES}
        self._seen_ms = dict.fromkeys(PLACES, 0)  # up to when each input is read
        self._appended_ms = dict.fromkeys(PLACES, 0)  # time of the last record that was sent on
        self._is_at_end = dict.fromkeys(PLACES, False)
        self._silent_ms = dict.fromkeys(PLACES, 0)
        self._looked_ms = dict.fromkeys(PLACES, world.now_ms)
        self._asked: dict[Place, Ask] = {}
        self._sending: list[deque[BrokerRecord]] = [deque() for _ in range(PARTITIONS)]
        self._told_ms = [0] * PARTITIONS
        self.is_alive = True
        self.tick()

    def _known_by_the_log(self) -> dict[Place, tuple[Next, int]]:
        """Of each input, the newest record that the log has, behind the newest tick too. Of its
        generation all may follow.
        """
        for place, (at, _) in self._world.newest.items():
            self._read[place] = max(self._read[place], Next(at.generation, 0))
        return {
            place: newest for place, newest in self._world.newest.items() if newest[0].offset >= 0
        }

    def _ticks(self) -> list[Tick]:
        """The newest tick of each partition that is not void and says where the inputs stand."""
        found = []
        for partition in self._world.log:
            reader = LogReader()
            ticks = [read for record in partition if isinstance(read := reader.read(record), Tick)]
            found += [tick for tick in ticks if self._says_places(tick)][-1:]
        return found

    def _says_places(self, tick: Tick) -> bool:
        """Whether it is more than the time of its partition between two events."""
        return bool(tick.inputs)

    # Reading.

    def ask(self, place: Place) -> None:
        """Asks for the end of an input, as of now."""
        now_ms, input_ = self._world.now_ms, self._world.inputs[place]
        if input_.answers:
            self._asked[place] = Ask(now_ms, len(input_.records))
            self._silent_ms[place] = 0
        else:
            self._silent_ms[place] += now_ms - self._looked_ms[place]
        self._looked_ms[place] = now_ms

    def take(self, place: Place, most: int) -> None:
        """Looks at the answer, and reads some records."""
        input_, answer = self._world.inputs[place], self._asked.get(place)
        if answer is None or not input_.answers:
            return
        if self._was_made_anew(place):  # an answer of before says nothing of the new one
            answer = Ask(self._world.now_ms, len(input_.records))
        at = self._read[place]
        first = max(at.offset, input_.first)
        records = input_.records[first : min(first + most, len(input_.records))]
        for offset, sent in enumerate(records, first):
            self._buffers[place].append((Next(at.generation, offset), sent))
            self._known_at[place] = max(
                self._known_at.get(place, _NO_RECORD), (Next(at.generation, offset), sent.number)
            )
        self._read[place] = Next(at.generation, first + len(records))
        self._is_at_end[place] = self._read[place].offset >= answer.end
        if self._is_at_end[place]:
            self._seen_ms[place] = max(self._seen_ms[place], self._time_of(answer))
        elif records:
            self._seen_ms[place] = max(self._seen_ms[place], records[-1].time_ms)

    def _time_of(self, answer: Ask) -> int:
        return answer.asked_ms

    def _was_made_anew(self, place: Place) -> bool:
        """Whether there is no record, or another one, where one was; then the new ones are read
        from the first on.

        A record that expired says nothing.
        """
        input_, (at, number) = self._world.inputs[place], self._known_at.get(place, _NO_RECORD)
        is_beyond = max(at.offset + 1, self._read[place].offset) > len(input_.records)
        if not is_beyond and (
            at.offset < input_.first or input_.records[at.offset].number == number
        ):
            return False
        self._read[place] = Next(self._read[place].generation + 1, 0)
        self._known_at.pop(place, None)
        return True

    # Appending.

    def _left_out(self) -> list[Place]:
        return [place for place, silent_ms in self._silent_ms.items() if silent_ms > PATIENCE_MS]

    def merge(self, most: int) -> None:
        """Sends on what no other input can have an earlier record of, by time."""
        waits_for = [place for place in PLACES if place not in self._left_out()]
        until_ms = min((self._seen_ms[place] for place in waits_for), default=self._world.now_ms)
        for _ in range(most):
            heads = [
                (buffer[0][1].time_ms, number, place)
                for number, (place, buffer) in enumerate(self._buffers.items())
                if buffer and buffer[0][1].time_ms <= until_ms
            ]
            if not heads:
                return
            place = min(heads)[-1]
            self._send_on(place, *self._buffers[place][0])
            self._buffers[place].popleft()

    def _send_on(self, place: Place, at: Next, sent: Sent) -> None:
        passed_ms = min(sent.time_ms, self._known_ms())
        if passed_ms - self._told_ms[sent.partition] >= TICK_MS:
            self._told_ms[sent.partition] = passed_ms
            tick = Tick.of(self.term, passed_ms, {}, self._names_of_left_out())
            self._sending[sent.partition].append(
                BrokerRecord(key=None, value=tick.value(), headers=[tick.header()])
            )
        origin = Origin(place[0], at.generation, place[1], at.offset, sent.time_ms)
        record = BrokerRecord(
            value=str(sent.number).encode(), headers=[Placed(self.term, origin).header()]
        )
        self._sending[sent.partition].append(record)
        self._next[place] = Next(at.generation, at.offset + 1)
        self._appended_ms[place] = max(self._appended_ms[place], sent.time_ms)

    def acknowledged(self, partition: int) -> None:
        """The next record that is on its way to a partition has come there."""
        if self._sending[partition]:
            self._world.append(partition, self._sending[partition].popleft())

    def failed(self, partition: int) -> None:
        """The next record to a partition never comes there. That ends it: later ones must not come
        without that one.
        """
        if self._sending[partition]:
            self.is_alive = False

    @property
    def _may_tick(self) -> bool:
        """Whether everything below the positions is acknowledged."""
        return not any(self._sending)

    def tick(self) -> None:
        """Sends a tick to each partition, if it may."""
        if not self._may_tick:
            return
        self.known_ms = max(self.known_ms, self._known_ms())
        self._told_ms = [self.known_ms] * PARTITIONS
        positions = {
            place: self._buffers[place][0][0] if self._buffers[place] else self._read[place]
            for place in PLACES
        }
        tick = Tick.of(self.term, self.known_ms, positions, self._names_of_left_out())
        for sending in self._sending:
            sending.append(BrokerRecord(key=None, value=tick.value(), headers=[tick.header()]))

    def _names_of_left_out(self) -> list[str]:
        return [f"{TOPIC_BY_SOURCE[source]} {partition}" for source, partition in self._left_out()]

    def _known_ms(self) -> int:
        """Up to when everything is sent on. While records of an input wait, nothing of it comes
        before the first of them.
        """
        left_out = self._left_out()
        return min((self._known_of(place) for place in PLACES if place not in left_out), default=0)

    def _known_of(self, place: Place) -> int:
        if self._buffers[place]:
            return max(self._appended_ms[place], self._buffers[place][0][1].time_ms)
        return self._seen_ms[place] if self._is_at_end[place] else self._appended_ms[place]

    def take_step(self, what: str, which: int, number: int) -> None:
        """One of its steps by its name; two numbers say how."""
        places = PLACES if number > 2 else [PLACES[which % len(PLACES)]]
        match what:
            case "end":
                self.is_alive = False
            case "round":
                self.go_round(3 + which)
            case "ask":
                for each in places:
                    self.ask(each)
            case "take":
                for each in places:
                    self.take(each, 1 + number)
            case "merge":
                self.merge(1 + 2 * number)
            case "come":
                for _ in range(1 + 2 * number):
                    self.acknowledged(which % PARTITIONS)
            case "fail":
                self.failed(which % PARTITIONS)
            case "tick":
                self.tick()
            case _:
                pass

    def go_round(self, steps: int) -> None:
        """Reads and sends on what is there, and sends a tick; so many of its steps, the later of
        which may not be taken.
        """
        for place in PLACES:
            self.ask(place)
            self.take(place, 10**6)
        self.merge(10**6)
        for partition in range(PARTITIONS):
            for _ in range(len(self._sending[partition]) if steps > partition + 3 else 1):
                self.acknowledged(partition)
        if steps > PARTITIONS + 3:
            self.tick()
        for partition in range(max(0, steps - PARTITIONS - 4)):
            self.acknowledged(partition % PARTITIONS)

    def to_the_end(self) -> None:
        """Everything, with a tick behind it."""
        self.go_round(100)
        self.go_round(100)


Act = tuple[str, int, int]


def lived(acts: Iterable[Act], kind: type[Sequencer] = Sequencer) -> World:
    """The world after these acts of producers, brokers and sequencers, and of a last sequencer that
    reads everything.

    A sequencer that is replaced while it lives is a zombie: it goes on with what it reads and
    sends. Not where an input was recreated: two who count its generations beside each other may
    come to different numbers, and that is not promised.
    """
    world = World()
    all_, may_have_zombies = [kind(world)], True
    for what, which, number in acts:
        place = PLACES[which % len(PLACES)]
        input_ = world.inputs[place]
        sequencer = all_[-1 - number % min(2, len(all_))] if which > len(PLACES) else all_[-1]
        match what:
            case "send":
                for _ in range(1 + number):
                    world.send(place, (number + which) % PARTITIONS)
            case "pass":
                world.now_ms += (1, 1, 500, 5_000, 40_000)[number % 5]
            case "anew" if (
                not input_.first
            ):  # where records expired unread, the log may have none to know the old one by
                input_.records = []
                may_have_zombies = False
            case "expire":
                input_.first = min(len(input_.records), input_.first + number)
            case "hide":
                input_.answers, world.hides = not input_.answers, True
            case "start":
                all_.append(kind(world))
            case _ if sequencer.is_alive:
                sequencer.take_step(what, which, number)
            case _:
                pass
        if not may_have_zombies:
            for each in all_[:-1]:
                each.is_alive = False
    for input_ in world.inputs.values():
        input_.answers = True
    world.now_ms += 1
    last = kind(world)
    last.to_the_end()
    return world


# The laws.


def reading(records: Sequence[BrokerRecord]) -> Iterator[tuple[LogReader, Event | Tick | None]]:
    """What a reader returns of these records, one after the other, and the reader as it is then."""
    reader = LogReader()
    for record in records:
        yield reader, reader.read(record)


def assert_each_record_once_in_its_order(world: World) -> None:
    """Of an input that was recreated only the newest: of the others what was read in time, in its
    order.
    """
    seen: dict[Place, set[int]] = {place: set() for place in PLACES}
    for number, partition in enumerate(world.log):
        last: dict[Place, tuple[int, int]] = {}
        for _, event in reading(partition):
            if not isinstance(event, Event):
                continue
            place = event.source, event.partition
            at = event.generation, event.offset
            assert at > last.get(place, (-1, -1)), f"{place}: {at} comes behind {last[place]}"
            last[place] = at
            sent = int(event.value or b"")
            assert sent not in seen[place], f"{place}: {at} comes twice"
            seen[place].add(sent)
            assert world.sent[sent] == (place, event.offset, Sent(sent, number, event.timestamp))
    for place, input_ in world.inputs.items():
        missing = [
            sent for sent in input_.records[input_.first :] if sent.number not in seen[place]
        ]
        assert not missing, f"{place}: {missing} are not in the log"


def assert_time_is_never_above_an_unread_record(world: World) -> None:
    """Unless its input was left out: up to the time that was told meanwhile. While all inputs
    answer, events are in the order of time.
    """
    late_ms = dict.fromkeys(PLACES, 0)
    for record in (record for partition in world.log for record in partition if record.key is None):
        tick = Tick.parse(record.value)
        for place in PLACES:
            if f"{TOPIC_BY_SOURCE[place[0]]} {place[1]}" in tick.left_out:
                late_ms[place] = max(late_ms[place], tick.known_ms)
    for partition in world.log:
        newest_ms = 0
        for reader, event in reading(partition):
            if not isinstance(event, Event):
                continue
            if event.timestamp >= late_ms[event.source, event.partition]:
                assert event.timestamp >= reader.known_ms, (
                    f"{event} comes behind a tick of {reader.known_ms}"
                )
            if not world.hides:
                assert event.timestamp >= newest_ms, f"{event} comes behind an event of {newest_ms}"
                newest_ms = event.timestamp


def assert_reading_may_begin_at_ticks(world: World) -> None:
    """With the same result from there on. In the end, when nobody disturbs, the newest tick is one
    of these.
    """
    for partition in world.log:
        all_ = [(reader.known_ms, reader.begin, read) for reader, read in reading(partition)]
        for first in {begin.offset for _, begin, _ in all_ if begin is not None}:
            again = [
                (reader.known_ms, reader.begin, read) for reader, read in reading(partition[first:])
            ]
            assert again == all_[first:], f"reading from {first} on gives something else"
        newest = all_[-1][1]
        assert newest is not None
        assert newest.offset == len(partition) - 1, "the newest tick says less than the log has"


def assert_laws(world: World) -> None:
    """All of them."""
    assert_each_record_once_in_its_order(world)
    assert_time_is_never_above_an_unread_record(world)
    assert_reading_may_begin_at_ticks(world)
