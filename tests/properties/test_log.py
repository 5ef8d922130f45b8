"""The log that sequencers leave, whatever happens to them and to the inputs, and what is caught if
one breaks a rule.
"""

import random
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from schemas.log import Next, Tick
from tests.properties.sequencing import (
    Act,
    Ask,
    Place,
    Sent,
    Sequencer,
    World,
    assert_each_record_once_in_its_order,
    assert_laws,
    assert_reading_may_begin_at_ticks,
    assert_time_is_never_above_an_unread_record,
    lived,
)
from tests.support.laws import examples

WHAT: Final = [
    *["send", "pass", "round"] * 4,
    *["start", "ask", "take", "merge", "come", "tick"] * 2,
    *["end", "anew", "expire", "hide", "fail"],
]


def acts(seed: int) -> list[Act]:
    """Many acts, most of which do something: lists that Hypothesis draws are short, or begin with
    what does nothing.
    """
    draw = random.Random(seed)  # noqa: S311  # a reproducible order, nothing secret
    return [
        (draw.choice(WHAT), draw.randint(0, 7), draw.randint(0, 4))
        for _ in range(draw.randint(5, 120))
    ]


def shortest(acts: list[Act], fails: Callable[[list[Act]], bool]) -> list[Act]:
    """The acts without those that are not needed to fail."""
    size = len(acts) // 2
    while size:
        place = 0
        while place < len(acts):
            rest = acts[:place] + acts[place + size :]
            if fails(rest):
                acts = rest
            else:
                place += size
        size //= 2
    return acts


def _breaks_a_law(acts: list[Act]) -> bool:
    try:
        assert_laws(lived(acts))
    except AssertionError:
        return True
    return False


@examples(times=10)
@given(st.integers(0, 2**40).map(acts))
def test_every_record_comes_once_in_its_order_and_time_is_never_ahead(acts: list[Act]) -> None:
    world = lived(acts)
    try:
        assert_laws(world)
    except AssertionError as error:
        error.add_note(f"The shortest acts that break a law: {shortest(acts, _breaks_a_law)}")
        raise
    event(f"{min(3, sum(what == 'start' for what, *_ in acts))} successors or more")


# What is caught. Each of these breaks one rule.


class Overtakes(Sequencer):
    """Lets a record overtake the one before it."""

    def acknowledged(self, partition: int) -> None:
        sending = self._sending[partition]
        if len(sending) > 1 and sending[0].key and sending[1].key:
            sending.rotate(-1)
        super().acknowledged(partition)


class Drops(Sequencer):
    """Leaves one record out, and goes on behind it."""

    def _send_on(self, place: Place, at: Next, sent: Sent) -> None:
        if sent.number:
            super()._send_on(place, at, sent)


class TicksAhead(Sequencer):
    """Says that what is still on its way is in the log."""

    @property
    def _may_tick(self) -> bool:
        return True


class TakesAnOldEndForNew(Sequencer):
    """Takes an end for true as of when it looks at the answer, as a process does that was frozen in
    between.
    """

    def _time_of(self, answer: Ask) -> int:
        del answer
        return self._world.now_ms


class TellsTheTimeOfWhatItHasRead(Sequencer):
    """Tells a time although it has not sent on all records of before it."""

    def tick(self) -> None:
        self.known_ms = max(self.known_ms, min(self._seen_ms.values()))
        super().tick()


class DoesNotMerge(Sequencer):
    """Sends on one input after the other."""

    def merge(self, most: int) -> None:
        for place, buffer in self._buffers.items():
            for _ in range(min(most, len(buffer))):
                self._send_on(place, *buffer[0])
                buffer.popleft()


class BelievesTimeOfOnePartition(Sequencer):
    """Takes the time that is told between the events of one partition for that of all."""

    def _known_by_the_log(self) -> dict[Place, tuple[Next, int]]:
        ticks = [
            Tick.parse(record.value)
            for partition in self._world.log
            for record in partition
            if not record.key
        ]
        self.known_ms = max([self.known_ms, *(tick.known_ms for tick in ticks)])
        return super()._known_by_the_log()


class BeginsAtAnyTick(Sequencer):
    """Begins at the newest tick, which may be that of one who was replaced, and void."""

    def _ticks(self) -> list[Tick]:
        ticks = [
            [Tick.parse(record.value) for record in partition if not record.key]
            for partition in self._world.log
        ]
        return [newest for each in ticks for newest in each[-1:]]


class GoesOnAfterAFailure(Sequencer):
    """Appends what is behind a record that could not be appended."""

    def failed(self, partition: int) -> None:
        if self._sending[partition]:
            self._sending[partition].popleft()


class KnowsNoGenerations(Sequencer):
    """Takes an input that was recreated for the old one."""

    def _was_made_anew(self, place: Place) -> bool:
        del place
        return False


class LooksAtNothingBehindTheTick(Sequencer):
    """Does not look whether the newest record of an input that the log has is the one that the
    input has there.
    """

    def _known_by_the_log(self) -> dict[Place, tuple[Next, int]]:
        return {}


ONCE: Final = assert_each_record_once_in_its_order
TIME: Final = assert_time_is_never_above_an_unread_record
BEGIN: Final = assert_reading_may_begin_at_ticks
FIRST_TICKS: Final[list[Act]] = [("come", 0, 4), ("come", 1, 4)]
BROKEN: Final[list[tuple[type[Sequencer], Callable[[World], None], list[Act]]]] = [
    (Overtakes, ONCE, [("send", 4, 1)]),
    (Drops, ONCE, [("send", 4, 1)]),
    (TicksAhead, ONCE, [("send", 3, 4), ("round", 0, 2), ("tick", 3, 4), ("come", 0, 4)]),
    (
        TakesAnOldEndForNew,
        TIME,
        [
            *FIRST_TICKS,
            *[
                ("ask", 0, 3),
                ("send", 0, 1),
                ("pass", 0, 2),
                ("take", 0, 0),
                ("take", 1, 0),
                ("take", 2, 0),
            ],
            *[
                ("merge", 0, 4),
                ("come", 0, 4),
                ("come", 1, 4),
                ("tick", 0, 0),
                ("come", 0, 1),
                ("come", 1, 1),
            ],
        ],
    ),
    (
        TellsTheTimeOfWhatItHasRead,
        TIME,
        [
            *FIRST_TICKS,
            ("send", 0, 0),
            ("pass", 0, 0),
            ("ask", 0, 3),
            ("take", 0, 3),
            ("tick", 0, 0),
            ("come", 0, 1),
        ],
    ),
    (DoesNotMerge, TIME, [("send", 4, 3), ("pass", 6, 1), ("send", 3, 4)]),
    (BeginsAtAnyTick, ONCE, [("send", 5, 0), ("start", 0, 2), ("round", 1, 4), ("round", 5, 1)]),
    (
        BelievesTimeOfOnePartition,
        TIME,
        [
            *[*FIRST_TICKS, ("send", 0, 0), ("pass", 0, 2), ("pass", 0, 2), ("send", 0, 1)],
            *[("ask", 0, 3), ("take", 0, 3), ("merge", 0, 4), ("come", 1, 4)],
        ],
    ),
    (
        GoesOnAfterAFailure,
        ONCE,
        [
            *[("hide", 1, 0), ("hide", 7, 3), ("round", 5, 0), ("send", 6, 3)],
            *[("round", 0, 4), ("fail", 3, 2), ("round", 4, 0)],
        ],
    ),
    (KnowsNoGenerations, BEGIN, [("send", 3, 2), ("round", 2, 3), ("anew", 6, 1)]),
    (KnowsNoGenerations, ONCE, [("send", 0, 2), ("round", 7, 3), ("anew", 0, 0), ("send", 0, 2)]),
    (
        LooksAtNothingBehindTheTick,
        ONCE,
        [("send", 3, 1), ("round", 2, 3), ("anew", 3, 0), ("send", 3, 3)],
    ),
]


@pytest.mark.parametrize(
    ("kind", "law", "acts"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_sequencer_that_breaks_a_rule_is_caught(
    kind: type[Sequencer], law: Callable[[World], None], acts: list[Act]
) -> None:
    assert_laws(lived(acts))
    with pytest.raises(AssertionError):
        law(lived(acts, kind))
