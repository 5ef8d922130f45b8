"""Stretches of speech, of overlap and of silence. Times in epoch milliseconds. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from consumers.engine.turns.timeline import Span
from schemas.closed_sets import Speaker


class Stretch(NamedTuple):
    """Somebody speaks; times in epoch milliseconds. Where only the beginning is known both are the same."""

    speaker: Speaker
    turn: int
    start_ms: float
    end_ms: float


def in_order(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The stretches as they began."""
    return tuple(sorted(stretches, key=lambda each: (each.start_ms, each.end_ms, each.turn)))


class Interval(NamedTuple):
    """A piece of a call, in epoch milliseconds; `turn` is the one in which it began."""

    start_ms: float
    end_ms: float
    turn: int

    @property
    def length_ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


def overlaps(stretches: Sequence[Stretch], least_ms: float) -> list[Interval]:
    """Where both speak for at least so long; the turn is that of who came in."""
    users = _joined(each for each in stretches if each.speaker is Speaker.USER)
    assistants = _joined(each for each in stretches if each.speaker is Speaker.ASSISTANT)
    found, user_at, assistant_at = [], 0, 0
    while user_at < len(users) and assistant_at < len(assistants):
        user, assistant = users[user_at], assistants[assistant_at]
        second = max(user, assistant, key=lambda each: each.start_ms)
        both = Interval(second.start_ms, min(user.end_ms, assistant.end_ms), second.turn)
        if both.length_ms >= least_ms:
            found.append(both)
        if user.end_ms <= assistant.end_ms:
            user_at += 1
        else:
            assistant_at += 1
    return found


def silences(stretches: Sequence[Stretch], end_ms: float, least_ms: float) -> list[Interval]:
    """Where nobody speaks for at least so long, from the first sound to the end of the call; the turn is the one before."""
    heard = _joined(stretches)
    if not heard:
        return []
    gaps = [Interval(before.end_ms, after.start_ms, before.turn) for before, after in pairwise(heard)]
    gaps.append(Interval(heard[-1].end_ms, end_ms, heard[-1].turn))
    return [gap for gap in gaps if gap.length_ms >= least_ms]


def cut(quiet: Iterable[Interval], runs: Sequence[Span]) -> Iterator[Interval]:
    """The parts of silences outside of the runs; a run without a length cuts one in two all the same.

    Args:
        quiet: The silences, in any order.
        runs: When something ran; in order, and apart from each other.
    """
    for silence in quiet:
        start_ms = silence.start_ms
        # The run before may reach into the silence.
        for place in range(max(0, bisect_right(runs, start_ms, key=lambda run: run.start_ms) - 1), len(runs)):
            run = runs[place]
            if run.start_ms >= silence.end_ms:
                break
            if run.start_ms > start_ms:
                yield silence._replace(start_ms=start_ms, end_ms=run.start_ms)
            start_ms = max(start_ms, run.end_ms)
        if start_ms < silence.end_ms:
            yield silence._replace(start_ms=start_ms)


def _joined(stretches: Iterable[Stretch]) -> list[Interval]:
    """As pieces that do not touch, in their order; each has the turn of its last stretch."""
    pieces: list[Interval] = []
    for _, turn, start_ms, end_ms in in_order(stretches):
        if pieces and start_ms <= pieces[-1].end_ms:
            last = pieces.pop()
            pieces.append(Interval(last.start_ms, max(last.end_ms, end_ms), turn))
        else:
            pieces.append(Interval(start_ms, end_ms, turn))
    return pieces
