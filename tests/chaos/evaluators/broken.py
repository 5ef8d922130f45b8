"""Sequencers and evaluators with one thing broken, so that the checker can show that it would
notice.

`python -m tests.chaos.evaluators.altered without KIND run ...`

Each is the real command with one part replaced before it starts. `tests/chaos/canaries` has the
situation for each in which it must go wrong.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

from aiokafka import TopicPartition

from consumers.evaluator import takeover
from consumers.evaluator.decisions import Outgoing
from consumers.evaluator.partition import Partition, Recovery
from consumers.evaluator.takeover import PublishedCalls
from consumers.evaluator.writer import Writer
from consumers.sequencer import appending
from consumers.sequencer.appending import LogWriter
from schemas.log import Origin, Tick
from schemas.rows import RowError, decode
from tests.chaos.evaluators import stepped_clock

HESITANT: Final = "hesitant-"
"""How the id of a call begins whose records the first evaluator that has some does not write at
once.
"""
HESITATES, HAS_WRITTEN = "canary: hesitates", "canary: has written, or could not"
"""Printed before it hesitates, and when that is over."""
FROZEN_SECONDS: Final = 5.0
"""It hesitates until it was frozen for so long."""

DROPS_EACH: Final = 20
"""A sequencer that drops records drops each of this number."""
AHEAD_MS: Final = 2_000
"""How far ahead a sequencer tells time that does."""


def _hesitant() -> None:
    """There is time to freeze an evaluator between deciding and writing."""
    write: Callable[..., Awaitable[None]] = Writer._write
    mark = Path(os.environ[stepped_clock.FILE]).with_name("hesitated")

    async def hesitant(self: Writer, decided: Any) -> None:
        records = [record for decision in decided for record in decision.records]
        is_about_one = any(
            getattr(record, "conversation_id", "").startswith(HESITANT) for record in records
        )
        if not is_about_one or mark.exists():
            await write(self, decided)
            return
        mark.touch()
        print(HESITATES, flush=True)
        try:
            await _frozen()
            await write(self, decided)
        finally:
            print(HAS_WRITTEN, flush=True)

    _replace(Writer, "_write", hesitant)


async def _frozen() -> None:
    """Returns when this process goes on after it was frozen."""
    seen_at = time.monotonic()
    while time.monotonic() - seen_at < FROZEN_SECONDS:
        seen_at = time.monotonic()
        await asyncio.sleep(0.1)


def _without_transactions() -> None:
    """Scores are written one by one. Nothing more is broken: fencing is compared with this."""

    async def start(self: Writer) -> None:
        self._producer = self._kafka.producer("evaluator")
        await self._producer.start()

    async def one_by_one(self: Writer, records: Sequence[Outgoing]) -> set[int]:
        assert self._producer is not None, "it is started"
        sent = [
            await self._producer.send(
                each.topic, each.value, key=each.key, partition=each.partition, headers=each.headers
            )
            for each in records
        ]
        await asyncio.gather(*sent)
        return set()

    _replace(Writer, "start", start)
    _replace(Writer, "_transaction", one_by_one)

    async def unclaimed(*_: Any) -> dict[int, int]:
        return {}

    async def ends(
        self: takeover.Takeover, reader: Any, numbers: Iterable[int], _: str
    ) -> dict[int, int]:
        found = await reader.end_offsets(
            [TopicPartition(self._scores, number) for number in numbers]
        )
        return {tp.partition: end for tp, end in found.items()}

    _replace(takeover.Takeover, "claim", unclaimed)
    _replace(takeover.Takeover, "_end", ends)


def _without_first() -> None:
    """The row says that a successor need fold nothing again, as if no call were open."""
    first: Callable[[Partition], Any] = Partition._first

    def nothing(self: Partition) -> Any:
        return first(self)._replace(offset=self.next_offset, known_ms=self._reader.known_ms)

    _replace(Partition, "_first", nothing)


def _without_place() -> None:
    """A successor writes what it decides before the place, which a former owner has written."""
    start: Callable[[Partition, Recovery], None] = Partition.start

    def from_the_first(self: Partition, recovery: Recovery) -> None:
        start(self, recovery._replace(place=recovery.start))

    _replace(Partition, "start", from_the_first)


def _without_closed() -> None:
    """A successor knows of the calls that closed since the first record that it folds, and of no
    others.
    """
    begin: Callable[..., None] = takeover.Takeover.__init__

    def without_overlap(self: takeover.Takeover, *arguments: Any) -> None:
        begin(self, *arguments)
        _replace(self, "_overlap_ms", by=0)

    _replace(takeover.Takeover, "__init__", without_overlap)


def _without_versions() -> None:
    """A row that this version cannot read whole is passed over, even if it says that a call is
    closed.
    """
    take: Callable[[PublishedCalls, Any], None] = PublishedCalls.read_record

    def blind(self: PublishedCalls, record: Any) -> None:
        try:
            decode(record.value or b"")
        except RowError:
            return
        take(self, record)

    _replace(PublishedCalls, "read_record", blind)


def _without_records() -> None:
    """A sequencer drops a record now and then."""
    append: Callable[..., Awaitable[None]] = LogWriter.append
    seen = count(1)

    async def some(self: LogWriter, records: Iterable[tuple[Any, Any]], known_ms: int) -> None:
        await append(self, [each for each in records if next(seen) % DROPS_EACH], known_ms)

    _replace(LogWriter, "append", some)


def _without_sequence() -> None:
    """A sequencer lets a record overtake the one before it on its input."""
    append: Callable[..., Awaitable[None]] = LogWriter.append

    async def overtaken(self: LogWriter, records: Iterable[tuple[Any, Any]], known_ms: int) -> None:
        moved = list(records)
        for place, (before, after) in enumerate(pairwise(moved)):
            if before[0] is after[0]:
                moved[place : place + 2] = after, before
                break
        await append(self, moved, known_ms)

    _replace(LogWriter, "append", overtaken)


def _without_known() -> None:
    """A sequencer tells time ahead of what it has appended."""
    tick: Callable[..., Awaitable[Any]] = LogWriter.tick

    async def ahead(self: LogWriter, each: Tick) -> Any:
        return await tick(self, each.model_copy(update={"known_ms": each.known_ms + AHEAD_MS}))

    _replace(LogWriter, "tick", ahead)


def _without_generations() -> None:
    """A sequencer does not say that an input was recreated: readers take its records for those that
    were there before.
    """
    origin: Callable[..., Origin] = vars(appending)["Origin"]

    def of_the_first(source: Any, _: int, *place: Any) -> Origin:
        return origin(source, 0, *place)

    _replace(appending, "Origin", of_the_first)


KINDS: Final[Mapping[str, Callable[[], None]]] = {
    "transactions": _without_transactions,
    "fencing": _without_transactions,
    "first": _without_first,
    "place": _without_place,
    "closed": _without_closed,
    "versions": _without_versions,
    "records": _without_records,
    "sequence": _without_sequence,
    "known": _without_known,
    "generations": _without_generations,
}
"""By the missing protection."""
CIRCUMSTANCES: Final[Mapping[str, Callable[[], None]]] = {"fencing": _hesitant}
"""What a canary has beside the broken part, so that the part matters."""


def _replace(owner: Any, name: str, by: Any) -> None:
    # a missing line cannot be broken: better to fail here than to break nothing
    getattr(owner, name)
    setattr(owner, name, by)
