"""Carries out the effects of the engine: one `match`."""

from collections.abc import Callable, Iterable
from typing import assert_never

from consumers.engine.effects import CloseCall, Count, Effect, NotUnderstood, PublishScore, RecordFact, RequestVerdict
from consumers.evaluator.writing.outbox import Outbox
from consumers.runtime.registry import Instruments
from schemas.transcript import Transcript


def carry_out(
    effects: Iterable[Effect],
    outbox: Outbox,
    instruments: Instruments,
    report: Callable[[NotUnderstood], None] | None = None,
) -> None:
    """Adds counts to the metrics and records to the outbox, in order.

    The records of a closing call are one group, with the `closed` fact last: a call is closed with all its final scores and its
    transcript, or not at all.

    Args:
        effects: Effects as the engine returned them.
        outbox: Records to write, of one partition.
        instruments: Take the counts.
        report: Takes records that are not understood; None where none can be.
    """
    for effect in effects:
        match effect:
            case PublishScore(record) | RecordFact(record):
                outbox.put((record,))
            case CloseCall(conversation_id, records, transcript):
                before = () if transcript is None else (Transcript(conversation_id, transcript),)
                outbox.put((*before, *records))
            case RequestVerdict(request):
                outbox.put((request,))
            case Count(metric, labels, by):
                instruments.inc(metric, labels, by)
            case NotUnderstood():
                if report is not None:
                    report(effect)
            case _:
                assert_never(effect)
