"""Evaluators with one thing broken, so that the checker can show that it would notice.

`python -m tests.chaos.evaluators.altered without KIND run ...`

Each is the real command with one part replaced before it starts. `tests/chaos/canaries` has the situation for each in which it must
go wrong.
"""

import asyncio
import importlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from consumers.evaluator import takeover
from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import PublishedCalls, Replay
from consumers.evaluator.writer import Writer
from schemas.closed_sets import InputSource
from schemas.order import Closed, Fold, TimePassed
from schemas.scores.records import SCORE_RECORD
from schemas.topics import ORDER_TOPIC
from tests.chaos.evaluators import stepped_clock

HESITANT: Final = "hesitant-"
"""How the id of a call begins whose records the first evaluator that has some does not write at once."""
HESITATES, HAS_WRITTEN = "canary: hesitates", "canary: has written, or could not"
"""Printed before it hesitates, and when that is over."""
FROZEN_SECONDS: Final = 5.0
"""It hesitates until it was frozen for so long."""
UNREAD_OFFSETS: Final = 12
"""How much of `order` before its mark an evaluator that does not read to the end leaves out: a transaction takes two offsets."""


def _hesitant() -> None:
    """There is time to freeze an evaluator between deciding and writing."""
    write: Callable[..., Awaitable[None]] = Writer._write
    mark = Path(os.environ[stepped_clock.FILE]).with_name("hesitated")

    async def hesitant(self: Writer, decided: Any) -> None:
        records = [record for decisions in decided.values() for decision in decisions for record in decision.records]
        is_about_one = any(getattr(record, "conversation_id", "").startswith(HESITANT) for record in records)
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
    make: Callable[..., None] = Writer.__init__

    def plain(self: Writer, *arguments: Any) -> None:
        make(self, *arguments)
        _replace(self, "_is_transactional", by=False)

    _replace(Writer, "__init__", plain)
    begin: Callable[..., None] = takeover.Takeover.__init__

    def without_claims(self: takeover.Takeover, *arguments: Any) -> None:
        begin(self, *arguments)
        _replace(self, "_claims", by=None)

    _replace(takeover.Takeover, "__init__", without_claims)


def _without_watermark() -> None:
    """The position is committed, as if no call were open."""
    _replace(Partition, "offsets_to_commit", lambda self: dict(self.next_offsets))


def _without_clock() -> None:
    """The wall clock counts as the time, even when it steps."""
    clock: Any = importlib.import_module("consumers.runtime.kafka.broker_clock")
    make: Callable[..., None] = clock.BrokerClock.__init__

    def wall() -> Any:
        now_ms = time.time_ns() // 1_000_000
        return clock.Reading(now_ms, now_ms)

    _replace(clock.BrokerClock, "__init__", lambda self, instruments: make(self, instruments, wall))
    _replace(clock.BrokerClock, "correct", lambda _: False)


def _without_order() -> None:
    """A successor takes the records as they come, silently and as far as the order goes, and not in that order."""
    ends_by_replay: dict[Replay, dict[InputSource, int]] = {}
    times_ms: dict[Replay, int] = {}

    def as_they_come(self: Replay) -> bool:
        if self not in ends_by_replay:
            ends_by_replay[self], times_ms[self] = _extent(self)
        for source, end in ends_by_replay[self].items():
            waiting = self._waiting[source]
            while waiting and waiting[0].offset < end:
                self._fold(Fold(source, waiting[0].offset, (waiting[0].key or b"").decode("utf-8", "replace")))
        if any(self.positions[source] < end for source, end in ends_by_replay[self].items()):
            return False
        self.time_ms = max(self.time_ms, times_ms[self])
        self._evaluator.pass_time(self.time_ms)
        return True

    _replace(Replay, "go_on", as_they_come)


def _extent(replay: Replay) -> tuple[dict[InputSource, int], int]:
    """Where the order ends on each input, and in time; tells the evaluator which calls are closed by then."""
    ends: dict[InputSource, int] = {}
    time_ms = 0
    for step in replay._steps:
        match step:
            case Fold(source, offset, _):
                ends[source] = offset + 1
            case TimePassed(now_ms):
                time_ms = now_ms
            case Closed(conversation_id):
                replay._evaluator.has_closed(conversation_id)
            case _:
                pass
    return ends, time_ms


def _without_end() -> None:
    """The end of the order is not read: what was folded and published last is folded and published once more."""
    read: Callable[..., Awaitable[None]] = vars(takeover)["read_back"]

    async def too_little(
        kafka: Any, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], takes: Any
    ) -> None:
        if topic == kafka.topic(ORDER_TOPIC):
            ends = {number: max(starts[number], end - UNREAD_OFFSETS) for number, end in ends.items()}
        await read(kafka, topic, starts, ends, takes)

    _replace(takeover, "read_back", too_little)


def _without_versions() -> None:
    """A record of `scores` that this version cannot read whole is passed over, even if it says that a call is closed."""
    take: Callable[[PublishedCalls, Any], None] = PublishedCalls.take

    def blind(self: PublishedCalls, record: Any) -> None:
        try:
            SCORE_RECORD.validate_json(record.value or b"")
        except ValidationError:
            return
        take(self, record)

    _replace(PublishedCalls, "take", blind)


KINDS: Final[Mapping[str, Callable[[], None]]] = {
    "transactions": _without_transactions,
    "fencing": _without_transactions,
    "watermark": _without_watermark,
    "order": _without_order,
    "end": _without_end,
    "versions": _without_versions,
    "clock": _without_clock,
}
"""By the missing protection."""
CIRCUMSTANCES: Final[Mapping[str, Callable[[], None]]] = {"fencing": _hesitant}
"""What a canary has beside the broken part, so that the part matters."""


def _replace(owner: Any, name: str, by: Any) -> None:
    getattr(owner, name)  # a missing line cannot be broken: better to fail here than to break nothing
    setattr(owner, name, by)
