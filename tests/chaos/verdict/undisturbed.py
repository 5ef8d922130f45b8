"""What `scores` must hold in the end: the records of one partition of the log, folded once, in
peace, by one fresh engine.

This is the only place of the chaos run that knows the engine. Time is told by the log's ticks
alone. At the end of the log time goes on until every call is closed. That the log is right is not
known here: `log_check` compares it with the inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, PublishRow, PublishTranscript, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.judging import JudgeRequest
from schemas.log import Event, Tick
from schemas.rows import Row
from schemas.transcript import Transcript

END_OF_TIME_MS: Final = 2**53
"""Far behind every deadline."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The results of the undisturbed run.

    Attributes:
        rows: Those of turns and calls, in order.
        transcripts: Those of the calls that closed.
        questions: Those to judges.
    """

    rows: tuple[Row, ...]
    transcripts: tuple[Transcript, ...] = ()
    questions: tuple[JudgeRequest, ...] = ()


def undisturbed(
    log: Iterable[Event | Tick], limits: Limits, rules: GoalRules | None = None, partition: int = 0
) -> Undisturbed:
    """Folds one partition of the log.

    Args:
        log: Its events and ticks, without repeats and without what is void.
        limits: Bounds of the evaluators.
        rules: Their rules of judging.
        partition: Its number.
    """
    evaluator = PartitionEvaluator(
        limits,
        "undisturbed",
        ChosenGoals(None, rules),
        writes_transcripts=True,
        partition=partition,
    )
    effects: list[Effect] = []
    known_ms = place = 0
    for each in log:
        place = each.place
        if isinstance(each, Tick):
            if each.gap_ms:
                evaluator.pass_gap(each.known_ms - each.gap_ms, each.known_ms)
            known_ms = max(known_ms, each.known_ms)
            effects += evaluator.advance(known_ms, place)
            continue
        arrival = admit(each.source, each, limits)
        if isinstance(arrival, Arrival):
            arrival.offset = place
            effects += evaluator.receive(arrival)
    effects += evaluator.advance(END_OF_TIME_MS, place + 1)
    while evaluator.next_wakeup() is not None:  # a close that takes several steps
        effects += evaluator.advance(END_OF_TIME_MS, place + 1)
    rows: list[Row] = []
    transcripts: list[Transcript] = []
    questions: list[JudgeRequest] = []
    for effect in effects:
        match effect:
            case PublishRow(row):
                rows.append(row)
            case RequestVerdict(question):
                questions.append(question)
            case PublishTranscript(conversation_id, value):
                transcripts.append(Transcript(conversation_id, value))
    return Undisturbed(tuple(rows), tuple(transcripts), tuple(questions))
