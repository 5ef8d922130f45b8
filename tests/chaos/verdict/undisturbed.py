"""What `scores` must hold in the end: the records of one partition, read back from the topics and evaluated once, in
peace, by one fresh engine.

This is the only place of the chaos run that knows the engine. Its clock is the log's: each record comes at the time the
broker gave it, the four inputs merged by that, and silence is judged at those moments. At the end of the log time goes on
until every call is closed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import CloseCall, Effect, PublishScore, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource
from schemas.judging import JudgeRequest
from schemas.scores.records import AnyScoreRecord
from schemas.transcript import Transcript

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
        transcripts: Those of the calls that closed.
        questions: Those to judges.
    """

    records: tuple[AnyScoreRecord, ...]
    refused: frozenset[tuple[str, int, int]]
    transcripts: tuple[Transcript, ...] = ()
    questions: tuple[JudgeRequest, ...] = ()


Inputs = Mapping[InputSource, Sequence[InputRecord]]
"""The records of one partition number on each input, in order of their offsets."""


def undisturbed(inputs: Inputs, limits: Limits, rules: GoalRules | None = None) -> Undisturbed:
    """Evaluates one partition number."""
    evaluator = PartitionEvaluator(limits, "undisturbed", ChosenGoals(None, rules), writes_transcripts=True)
    effects: list[Effect] = []
    refused: set[tuple[str, int, int]] = set()
    for time_ms, source, record in _in_order(inputs):
        effects += evaluator.advance(time_ms)
        arrival = admit(source, record, limits)
        if isinstance(arrival, Arrival):
            effects += evaluator.receive(arrival)
        else:
            refused.add((record.topic, record.partition, record.offset))
    effects += evaluator.advance(END_OF_TIME_MS)
    while evaluator.next_wakeup() is not None:  # a close that takes several steps
        effects += evaluator.advance(END_OF_TIME_MS)
    records: list[AnyScoreRecord] = []
    transcripts: list[Transcript] = []
    questions: list[JudgeRequest] = []
    for effect in effects:
        match effect:
            case PublishScore(score):
                records.append(score)
            case RequestVerdict(question):
                questions.append(question)
            case CloseCall(conversation_id, closing, transcript):
                records += closing
                transcripts += [Transcript(conversation_id, transcript)] if transcript is not None else []
    return Undisturbed(tuple(records), frozenset(refused), tuple(transcripts), tuple(questions))


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
