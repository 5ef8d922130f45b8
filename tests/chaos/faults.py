"""What is done to the fleet and its broker, and when: drawn from a seed before the run begins."""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple


class Fault(StrEnum):
    """A kind of harm, in the words of the log."""

    KILL = "kill -9"
    TERMINATE = "SIGTERM"
    FREEZE = "SIGSTOP"
    JOIN = "join"
    LEAVE = "leave"
    BROKER_TERMINATED = "broker SIGTERM"
    BROKER_KILLED = "broker kill -9"


BROKER_FAULTS: Final = frozenset({Fault.BROKER_TERMINATED, Fault.BROKER_KILLED})

USUAL: Final = (
    *[Fault.KILL] * 4,
    *[Fault.FREEZE] * 3,
    *[Fault.TERMINATE] * 2,
    Fault.JOIN,
    Fault.LEAVE,
    Fault.BROKER_TERMINATED,
    Fault.BROKER_KILLED,
)
"""Drawn from as from a pack of cards, so that a long run has every kind in this proportion."""
_LEAST_SPACING: Final = 0.3
"""Of the mean: two faults may overlap, but not all of them."""


class Planned(NamedTuple):
    """A fault and when it is due, in seconds since the faults began."""

    at_seconds: float
    fault: Fault


def planned(
    seed: int, *, seconds: float, mean_spacing_seconds: float, pack: Sequence[Fault] = USUAL
) -> Iterator[Planned]:
    """The faults of a run, in order. The first round has each kind once, so that a short run has them all.

    Args:
        seed: Decides all of them.
        pack: What is drawn from, again and again.
        seconds: How long faults go on.
        mean_spacing_seconds: Of the waits between two of them; they are exponential above a least one.
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
            deck = list(pack)
            rng.shuffle(deck)
        yield Planned(at_seconds, deck.pop())
