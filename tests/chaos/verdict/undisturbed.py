"""What `scores` must hold in the end: the records of one partition, read back from the topics and evaluated once, in
peace, by one fresh engine.

This is the only place of the chaos run that knows the engine. Its clock is the log's: each record comes at the time the
broker gave it, the four inputs merged by that, and silence is judged at those moments. At the end of the log time goes on
until every call is closed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import CloseCall, Effect, PublishScore
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.scores.records import AnyScoreRecord

END_OF_TIME_MS: Final = 2**53
"""Far behind every deadline."""


@dataclass(slots=True)
class InputRecord:
    """A record of an input topic as it was read back."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The results of the undisturbed run.

    Attributes:
        records: Everything published, in order.
        refused: Topic, partition and offset of records that belong in quarantine.
    """

    records: tuple[AnyScoreRecord, ...]
    refused: frozenset[tuple[str, int, int]]


Inputs = Mapping[InputSource, Sequence[InputRecord]]
"""The records of one partition number on each input, in order of their offsets."""


def undisturbed(inputs: Inputs, limits: Limits) -> Undisturbed:
    """Evaluates one partition number."""
    evaluator = PartitionEvaluator(limits, "undisturbed")
    records: list[AnyScoreRecord] = []
    refused: set[tuple[str, int, int]] = set()
    for time_ms, source, record in _in_order(inputs):
        _keep(evaluator.advance(time_ms), records)
        arrival = admit(source, record, limits)
        if isinstance(arrival, Arrival):
            _keep(evaluator.receive(arrival), records)
        else:
            refused.add((record.topic, record.partition, record.offset))
    _keep(evaluator.advance(END_OF_TIME_MS), records)
    while evaluator.next_wakeup() is not None:  # a close that takes several steps
        _keep(evaluator.advance(END_OF_TIME_MS), records)
    return Undisturbed(tuple(records), frozenset(refused))


def _in_order(inputs: Inputs) -> list[tuple[int, InputSource, InputRecord]]:
    """All records in the order in which the broker took them, each with its time.

    A topic keeps its own order, even against its times.
    """
    keyed = []
    for rank, (source, records) in enumerate(inputs.items()):
        latest_ms = 0
        for record in records:
            latest_ms = max(latest_ms, record.timestamp)
            keyed.append((latest_ms, rank, record.offset, source, record))
    keyed.sort(key=lambda item: item[:3])
    return [(time_ms, source, record) for time_ms, _, _, source, record in keyed]


def _keep(effects: Iterable[Effect], records: list[AnyScoreRecord]) -> None:
    for effect in effects:
        match effect:
            case PublishScore(record):
                records.append(record)
            case CloseCall(_, closing):
                records += closing
