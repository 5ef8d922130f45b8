"""What `scores` must hold in the end: the records of one partition, read back from the topics and evaluated once, in
peace, by one fresh engine.

This is the only place of the chaos run that knows the engine. Its clock is the log's: each record comes at the time the
broker gave it, the four inputs merged by that, and silence is judged at those moments. At the end of the log time goes on
until every call is closed.

An evaluator at work reads its inputs in other orders: after a crash one topic may be minutes behind another. What that may
change is answered here too, by evaluating single calls in such orders.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from consumers.engine.effects import CloseCall, Effect, PublishScore, RecordFact
from consumers.engine.intake import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from schemas.codec import InputSource
from schemas.scores import AnyScoreRecord, DeadAirFact

END_OF_TIME_MS: Final = 2**53
"""Far behind every deadline."""
_BEHIND_MS: Final = (300, 1_000, 3_000, 10_000, 60_000)
"""How far behind the others a topic may be read: a poll, a backlog of a moment, and one of a whole call."""


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
    """What came out of the peaceful run.

    Attributes:
        records: Everything published, in order.
        refused: Topic, partition and offset of what belongs in quarantine.
    """

    records: tuple[AnyScoreRecord, ...]
    refused: frozenset[tuple[str, int, int]]


Inputs = Mapping[InputSource, Sequence[InputRecord]]
"""The records of one partition number on each input, in order of their offsets."""


def undisturbed(inputs: Inputs, limits: Limits) -> Undisturbed:
    """Evaluates one partition number.

    Args:
        inputs: Its records.
        limits: Those of the evaluators.
    """
    return _evaluated(inputs, limits, {})


def silences_by_order(inputs: Inputs, conversation_id: str, limits: Limits) -> list[frozenset[int]]:
    """Since when one call was silent (dead air), in each of many orders in which its topics may be read.

    Args:
        inputs: The records of its partition number.
        conversation_id: The call.
        limits: Those of the evaluators.
    """
    key = conversation_id.encode()
    own = {source: [record for record in records if record.key == key] for source, records in inputs.items()}
    used = [source for source, records in own.items() if records]
    some = [late for number in range(1, len(used)) for late in combinations(used, number)]
    orders: list[dict[InputSource, int]] = [{}, *(dict.fromkeys(late, ms) for late in some for ms in _BEHIND_MS)]
    return [
        frozenset(
            record.silent_since_ms
            for record in _evaluated(own, limits, behind_ms).records
            if isinstance(record, DeadAirFact)
        )
        for behind_ms in orders
    ]


def _evaluated(inputs: Inputs, limits: Limits, behind_ms: Mapping[InputSource, int]) -> Undisturbed:
    evaluator = PartitionEvaluator(limits, "undisturbed")
    records: list[AnyScoreRecord] = []
    refused: set[tuple[str, int, int]] = set()
    hindmost_ms = max(behind_ms.values(), default=0)
    for read_ms, source, record in _in_order(inputs, behind_ms):
        # What every input is known up to: what is read now, less what the hindmost one is behind.
        _keep(evaluator.advance(read_ms - hindmost_ms), records)
        arrival = admit(source, record, limits)
        if isinstance(arrival, Arrival):
            _keep(evaluator.receive(arrival), records)
        else:
            refused.add((record.topic, record.partition, record.offset))
    _keep(evaluator.advance(END_OF_TIME_MS), records)
    return Undisturbed(tuple(records), frozenset(refused))


def _in_order(inputs: Inputs, behind_ms: Mapping[InputSource, int]) -> list[tuple[int, InputSource, InputRecord]]:
    """All records in the order in which the broker took them; a topic's own order stands whatever its times say.

    With each its time, later by as much as its topic is read behind the others.
    """
    keyed = []
    for rank, (source, records) in enumerate(inputs.items()):
        latest_ms = 0
        for record in records:
            latest_ms = max(latest_ms, record.timestamp)
            keyed.append((latest_ms + behind_ms.get(source, 0), rank, record.offset, source, record))
    keyed.sort(key=lambda item: item[:3])
    return [(read_ms, source, record) for read_ms, _, _, source, record in keyed]


def _keep(effects: Iterable[Effect], records: list[AnyScoreRecord]) -> None:
    for effect in effects:
        match effect:
            case PublishScore(record) | RecordFact(record):
                records.append(record)
            case CloseCall(_, closing):
                records += closing
