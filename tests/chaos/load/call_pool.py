"""Simulated calls as templates: rendered once, played many times at other times and under other
names, at the price of one bytes formatting per event.

Where a call's bytes hold a time is not guessed: the call is rendered twice, a known number of
seconds apart, and what differs is a time. A template that could not reproduce the second rendering
would be an error at once.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_args

from schemas.events.simulator import Source
from streamer.sources.replay import compact_json, renamed, shifted
from streamer.sources.simulator.plan import CallKind
from streamer.sources.simulator.traffic import SimulatedCall, simulate_call

T0_SECONDS: Final = 1_790_000_000
"""When every template begins; only its distance to the playing counts."""
APART_SECONDS: Final = 77_777
"""Between the two renderings. Every digit from the fifth on differs in some event, minutes and
hours included.
"""
JOINED_SHARE: Final = 1 / 3
"""Simulated calls last 43 to 145 s. So many are two in a row, which makes one to four minutes."""
_NAME: Final = "<conversation>"
_PAUSE_SECONDS: Final = 2

_TIMES = re.compile(
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|(?<!\d)\d{10}(?=\d{3}(?!\d)|(?:\.\d+)?(?!\d))"
)
KINDS: tuple[CallKind, ...] = get_args(CallKind)


class Rendered(NamedTuple):
    """One event of a call that begins at `T0_SECONDS`: when it is produced, on which topic, and its
    bytes.
    """

    arrival_ms: int
    source: Source
    value: bytes


class EventTemplate(NamedTuple):
    """One event of a call, to be played at any whole second.

    Attributes:
        after_ms: When it is produced, since the call began.
        source: Which input topic carries it.
        pattern: Its bytes, with a place for each time.
        seconds: Each time, in whole seconds since the call began, in the order of the places.
        is_iso: For each time whether it is written as a date; None when none is, which is nearly
            always.
        has_name: Whether the conversation id is in it.
        is_end: Whether it says that the call is over.
    """

    after_ms: int
    source: Source
    pattern: bytes
    seconds: tuple[int, ...]
    is_iso: tuple[bool, ...] | None
    has_name: bool
    is_end: bool

    def rendered(self, begin_seconds: int, name: bytes) -> bytes:
        """The event of a call that began then, under that name."""
        if self.is_iso is None:
            value = self.pattern % tuple([begin_seconds + second for second in self.seconds])
        else:
            times = (begin_seconds + second for second in self.seconds)
            value = self.pattern % tuple(
                _iso(time) if is_iso else b"%d" % time
                for time, is_iso in zip(times, self.is_iso, strict=True)
            )
        return value.replace(_NAME.encode(), name) if self.has_name else value


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """A call: its events in the order in which they are produced."""

    events: tuple[EventTemplate, ...]

    @property
    def duration_ms(self) -> int:
        """From its first event to its last."""
        return self.events[-1].after_ms


def make_pool(seed: int, size: int, kinds: Sequence[CallKind] = KINDS) -> list[CallTemplate]:
    """So many distinct calls, of each of these kinds in turn."""
    rng = random.Random(f"pool {seed}")  # noqa: S311 - play, not secrets
    pool = []
    for number in range(size):
        kind = kinds[number % len(kinds)]
        seeds = [rng.getrandbits(40) for _ in range(2 if rng.random() < JOINED_SHARE else 1)]
        pool.append(call_template(seeds, kind))
    return pool


def call_template(seeds: Sequence[int], kind: CallKind | None) -> CallTemplate:
    """The simulated call of a seed, or those of several seeds in a row as one call."""
    first = _rendered(seeds, kind, T0_SECONDS)
    second = _rendered(seeds, kind, T0_SECONDS + APART_SECONDS)
    return CallTemplate(tuple(_template(*pair) for pair in zip(first, second, strict=True)))


def _rendered(
    seeds: Sequence[int], kind: CallKind | None, begin_seconds: int
) -> Iterator[Rendered]:
    """One simulated call, or several in a row as one: only the first begins and only
    the last ends.
    """
    sequence = 0
    for place, seed in enumerate(seeds):
        simulated = simulate_call(seed, start_ms=T0_SECONDS * 1_000, kind=kind)
        call = renamed(shifted(simulated.call, begin_seconds - T0_SECONDS), _NAME)
        last_ms = 0
        highest = 0
        for event in SimulatedCall(call, simulated.delivery, simulated.features).wire_events():
            last_ms = event.arrival_ms
            value = event.value
            if event.source == "elevenlabs":
                highest = max(highest, event.sequence)
                value = _numbered(value, sequence)
            says = event.event_name
            is_inner = (says == "call_started" and place > 0) or (
                _is_end(value) and place < len(seeds) - 1
            )
            if not is_inner:
                yield Rendered(event.arrival_ms, event.source, value)
        sequence += highest
        begin_seconds = last_ms // 1_000 + _PAUSE_SECONDS


def _numbered(value: bytes, after: int) -> bytes:
    event: dict[str, Any] = json.loads(value)
    if "sequence" not in event or not after:
        return value
    event["sequence"] += after
    return compact_json(event)


def _is_end(value: bytes) -> bool:
    return b'"type":"call_ended"' in value or b'"state":"session_ended"' in value


def _template(first: Rendered, second: Rendered) -> EventTemplate:
    pieces: list[bytes] = []
    seconds: list[int] = []
    is_iso: list[bool] = []
    end = 0
    for found in _TIMES.finditer(first.value):
        text, moved = found.group(), second.value[found.start() : found.end()]
        if text == moved:
            continue  # a number that is no time
        is_date = b"T" in text
        pieces += [first.value[end : found.start()].replace(b"%", b"%%")]
        seconds.append((_seconds_of_iso(text) if is_date else int(text)) - T0_SECONDS)
        is_iso.append(is_date)
        end = found.end()
    tail = first.value[end:].replace(b"%", b"%%")
    slots = [b"%b" if any(is_iso) else b"%d"] * len(pieces)
    pattern = b"".join(piece + slot for piece, slot in zip(pieces, slots, strict=True)) + tail
    template = EventTemplate(
        after_ms=first.arrival_ms - T0_SECONDS * 1_000,
        source=first.source,
        pattern=pattern,
        seconds=tuple(seconds),
        is_iso=tuple(is_iso) if any(is_iso) else None,
        has_name=_NAME.encode() in first.value,
        is_end=_is_end(first.value),
    )
    if template.rendered(T0_SECONDS + APART_SECONDS, _NAME.encode()) != second.value:
        raise ValueError(f"the template of {first.value!r} does not give {second.value!r}")
    return template


def _seconds_of_iso(text: bytes) -> int:
    return int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp())


@lru_cache(maxsize=4_096)
def _iso(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19].encode()
