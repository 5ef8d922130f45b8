"""The order of a partition as its former owners wrote it, and the place in it from which a successor must read."""

import hashlib
import json
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pydantic

import consumers.engine
import schemas
from consumers.evaluator.settings import EvaluatorSettings
from schemas.order import (
    Closed,
    GoalsChosen,
    OrderDecoder,
    OrderError,
    OrderStart,
    Positions,
    Step,
    start_in,
)
from schemas.undecodable import UndecodableRecord

MAX_NOTE_CHARS: Final = 512
"""Longest commit note that is read. The broker accepts 4,096 characters, and ours has some 20."""
MAX_STARTS: Final = 4_096
"""Most starts that are remembered: eleven hours of them. Beyond that every second one is dropped, and a successor reads more than
it needs."""
UNPUBLISHED: Final = ""
"""Version of steps whose results were not published: an owner took them to catch up with one that wrote no order."""


@cache
def code_digest() -> str:
    """Returns a digest of the source of the engine and the contract, of Python and of pydantic, in hexadecimal.

    A version number is not enough, because two builds of one version may differ, above all in a checkout.
    """
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {sys.version} pydantic {pydantic.VERSION}\n".encode())
    for package in (consumers.engine, schemas):
        root = Path(str(package.__file__)).parent
        for path in sorted(path for path in root.rglob("*") if path.suffix in {".py", ".so", ".pyd"}):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def order_version(settings: EvaluatorSettings) -> str:
    """Returns the version in the starts of `order`: equal for processes that publish the same records after the same steps."""
    deciding = settings.model_dump(
        mode="json", include={"code_version", "limits", "goals", "redaction", "writes_transcripts"}
    )
    deciding["code"] = code_digest()
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


class CommitNote(NamedTuple):
    """The note beside a committed offset, for the next owner of the partition.

    Attributes:
        order: First offset of the partition of `order` that a successor must read; None in a note of a release without `order`.
        scores: First offset of `scores` that it must read if there is no order.
        is_anew: Whether the input was created again, so that it must be read from here whatever the order says.
        read: Offset after the last record of the input that was folded, for people who look at the lag.
    """

    order: int | None
    scores: int = 0
    is_anew: bool = False
    read: int = 0

    def text(self) -> str:
        """Returns the note as text for the broker."""
        return json.dumps({"anew": True} if self.is_anew else {"order": self.order, "read": self.read})

    @classmethod
    def parse(cls, text: str) -> "CommitNote | None":
        """Reads a note from the broker. Returns None if callgauge did not write it: then the offset is not ours either."""
        try:
            note = json.loads(text) if text and len(text) <= MAX_NOTE_CHARS else None
        except ValueError:
            return None
        if not isinstance(note, dict):
            return None
        order, scores = note.get("order"), note.get("scores")
        if note.get("anew") is True:
            return cls(None, is_anew=True)
        if isinstance(order, int) and order >= 0:
            return cls(order)
        return cls(None, scores) if isinstance(scores, int) and scores >= 0 else None


class PlacedStart(NamedTuple):
    """A record of `order` with a start: when it was written, the positions of the inputs before it, and its offset."""

    at_ms: int
    positions: Positions
    offset: int


class OrderStarts:
    """The starts in the order of one partition, oldest first. From the first on, every open call is in the order."""

    def __init__(self, starts: Sequence[PlacedStart], overlap_ms: int) -> None:
        """Begins with the starts of former owners.

        Args:
            starts: At least one, oldest first: those that were read, or the place where our own first one will be.
            overlap_ms: How long after its closing a call's records must still be recognised.
        """
        self._starts = deque(starts)
        self._overlap_ms = overlap_ms

    def add(self, start: PlacedStart) -> None:
        """Adds a start that was written."""
        self._starts.append(start)
        if len(self._starts) > MAX_STARTS:
            self._starts = deque(each for place, each in enumerate(self._starts) if place % 2 == 0)

    def offset_for(self, watermarks: Positions) -> int:
        """Returns the first offset of `order` that a successor needs if it reads the inputs from `watermarks`.

        From there on are the steps of every open call, and the ends of the calls that closed less than the overlap before.
        """
        starts = self._starts
        reached_ms = max((each.at_ms for each in starts if _is_below(each, watermarks)), default=starts[0].at_ms)
        while len(starts) > 1 and starts[1].at_ms <= reached_ms - self._overlap_ms and _is_below(starts[1], watermarks):
            starts.popleft()
        return starts[0].offset


def _is_below(start: PlacedStart, watermarks: Positions) -> bool:
    return all(position <= watermarks.get(source, position) for source, position in start.positions.items())


class ChosenThen(NamedTuple):
    """A goal set that calls got: its id, when the first fact about it was written to `scores`, and the calls."""

    goals_id: str
    at_ms: int
    calls: set[str]


class OrderLog:
    """The order of one partition, read in one pass before anything is folded.

    Attributes:
        starts: Its records with a start.
        closings: How often each call closes in it.
        goals: The goal sets of its calls, by digest.
        positions: By input, the offset after the last record folded in it.
        versions: Versions of its owners.
        fault: Why it cannot be used; None if it can.
    """

    def __init__(self) -> None:
        self.starts: list[PlacedStart] = []
        self.closings: Counter[str] = Counter()
        self.goals: dict[str, ChosenThen] = {}
        self.positions: Positions = {}
        self.versions: set[str] = set()
        self.fault: str | None = None
        self._records: list[tuple[OrderStart | None, bytes]] = []
        self._decoder: OrderDecoder | None = None

    def take(self, record: Any) -> None:
        """Reads the next record. Records before the first start are of no use."""
        if isinstance(record, UndecodableRecord):
            self.fault = str(record)
        if self.fault is not None or record.value is None:  # a new owner
            return
        try:
            start = start_in(record.headers)
            if start is None and self._decoder is None:
                return
            for step in self._each(start, record.value):
                if isinstance(step, Closed):
                    self.closings[step.conversation_id] += 1
                elif isinstance(step, GoalsChosen):
                    chosen = self.goals.setdefault(step.digest, ChosenThen(step.goals_id, record.timestamp, set()))
                    chosen.calls.add(step.conversation_id)
        except OrderError as error:
            self.fault = f"{record.topic}[{record.partition}]@{record.offset}: {error}"
            return
        self._records.append((start, record.value))
        if self._decoder is not None:
            self.positions = self._decoder.positions
        if start is not None:
            self.versions.add(start.version)
            self.starts.append(PlacedStart(record.timestamp, start.positions, record.offset))

    def steps(self) -> Iterator[OrderStart | Step]:
        """Returns all steps once more, in order, with each start before the steps that follow it."""
        self._decoder = None
        for start, value in self._records:
            if start is not None:
                yield start
            yield from self._each(start, value)

    def _each(self, start: OrderStart | None, value: bytes) -> Iterator[Step]:
        if self._decoder is None:
            if start is None:
                raise OrderError("reading began before a start")
            self._decoder = OrderDecoder(start)
        elif start is not None:
            self._decoder.begin(start)
        yield from self._decoder.steps(value)
