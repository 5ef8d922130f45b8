"""Carries out the effects of the engine: one `match`."""

from collections.abc import Callable, Iterable
from typing import assert_never

from consumers.engine.effects import (
    CloseCall,
    Count,
    Effect,
    NotUnderstood,
    OpenCall,
    PublishScore,
    RequestVerdict,
)
from consumers.evaluator.writing.outbox import Written
from consumers.runtime.registry import Instruments
from schemas.order import OrderEncoder
from schemas.scores.all_records import GoalsFact
from schemas.transcript import Transcript


def carry_out(
    effects: Iterable[Effect],
    order: OrderEncoder,
    instruments: Instruments,
    report: Callable[[NotUnderstood], None],
) -> list[Written]:
    """Adds counts to the metrics, notes goals and ends of calls in the order, and returns the records to write.

    Args:
        effects: Effects of one step, as the engine returned them.
        order: The steps, this one included.
        instruments: Take the counts.
        report: Takes records that are not understood.

    Returns:
        The records in order. The `closed` fact of a call comes after all its final records and its transcript.
    """
    records: list[Written] = []
    for effect in effects:
        match effect:
            case PublishScore(record):
                records.append(record)
                if isinstance(record, GoalsFact):
                    order.choose_goals(record.conversation_id, record.goal_set.id, record.digest)
            case CloseCall(conversation_id, closing, transcript):
                if transcript is not None:
                    records.append(Transcript(conversation_id, transcript))
                records += closing
                order.close(conversation_id)
            case RequestVerdict(request):
                records.append(request)
            case Count(metric, labels, by):
                instruments.inc(metric, labels, by)
            case NotUnderstood():
                report(effect)
            case OpenCall():
                pass
            case _:
                assert_never(effect)
    return records
