"""The faults of the fleet and its broker, with their times: drawn from a seed before the run
begins.
"""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple


class Fault(StrEnum):
    """A kind of harm, in the words of the log; `fault_kinds.HARM` has the function of each one."""

    KILL = "kill -9"
    TERMINATE = "SIGTERM"
    FREEZE = "SIGSTOP"
    JOIN = "join"
    LEAVE = "leave"
    NEWER = "newer version"
    TWINS = "twins"
    SEQUENCER_KILLED = "sequencer kill -9"
    SEQUENCER_TERMINATED = "sequencer SIGTERM"
    SEQUENCER_FROZEN = "sequencer SIGSTOP"
    SEQUENCERS_KILLED = "all sequencers kill -9"
    SEQUENCER_JOINS = "sequencer joins"
    STRANGER = "stranger in the group"
    CLOCK_FORWARD = "clock steps forward"
    CLOCK_BACK = "clock steps back"
    SLOW = "slow network"
    HOLE = "black hole"
    ONE_WAY = "one-way network"
    HALF_OPEN = "half-open connections"
    CUT = "connections cut"
    REFUSED = "connections refused"
    HEAVY_CLOSE = "heavy close"
    DELETED_READ = "deleted, all read"
    DELETED_UNREAD = "deleted, not read"
    PARTITIONS_ADDED = "partitions added"
    INPUT_REMADE = "input recreated"
    INPUT_REMADE_LARGER = "input recreated larger"
    OPEN_TRANSACTION = "open transaction of a stranger"
    BROKER_TERMINATED = "broker SIGTERM"
    BROKER_KILLED = "broker kill -9"
    COORDINATOR_MOVED = "coordinator moves"
    OUT_OF_SIGHT = "brokers out of sight"
    LEADER_CUT_OFF = "leader of an input cut off"


SEVERAL_BROKERS: Final = frozenset(
    {Fault.COORDINATOR_MOVED, Fault.OUT_OF_SIGHT, Fault.LEADER_CUT_OFF}
)
"""Faults that need more than one."""
ONCE: Final = frozenset({Fault.PARTITIONS_ADDED})
"""Faults that a run has once at most."""
_OFTEN: Final = {
    Fault.KILL: 4,
    Fault.FREEZE: 3,
    Fault.TERMINATE: 2,
    Fault.SEQUENCER_KILLED: 3,
    Fault.SEQUENCER_FROZEN: 2,
}

ON_SEVERAL: Final = tuple(fault for fault in Fault for _ in range(_OFTEN.get(fault, 1)))
"""Drawn from as from a pack of cards, so that a long run has every kind in this proportion."""
USUAL: Final = tuple(fault for fault in ON_SEVERAL if fault not in SEVERAL_BROKERS)
"""The same for one broker."""
_LEAST_SPACING: Final = 0.3
"""Of the mean: two faults may overlap, but not all of them."""


class Planned(NamedTuple):
    """A fault and when it is due, in seconds since the faults began."""

    at_seconds: float
    fault: Fault


def planned(
    seed: int, *, seconds: float, mean_spacing_seconds: float, pack: Sequence[Fault] = USUAL
) -> Iterator[Planned]:
    """The faults of a run, in order. The first round has each kind once, so that a short run has
    them all.

    Args:
        seed: Decides all of them.
        pack: The faults to draw from, again and again.
        seconds: How long faults go on.
        mean_spacing_seconds: Of the waits between two of them; they are exponential above a least
            one.
    """
    rng = random.Random(f"faults {seed}")  # noqa: S311 - play, not secrets
    deck = sorted(set(pack))
    rng.shuffle(deck)
    at_seconds = 0.0
    while True:
        least = mean_spacing_seconds * _LEAST_SPACING
        at_seconds += least + rng.expovariate(1 / (mean_spacing_seconds - least))
        if at_seconds >= seconds:
            return
        if not deck:
            deck = [fault for fault in pack if fault not in ONCE]
            rng.shuffle(deck)
        yield Planned(at_seconds, deck.pop())
