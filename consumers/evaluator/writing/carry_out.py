"""Carries out the effects of the engine: one `match`."""

from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

from consumers.engine.effects import CloseCall, Count, Effect, NotUnderstood, PublishScore, RecordFact, RequestVerdict
from consumers.evaluator.writing.outbox import Group
from consumers.runtime.registry import Instruments
from schemas.transcript import Transcript


class TakesGroups(Protocol):
    """Where groups of records go, in order."""

    def put(self, group: Group, /) -> None:
        """Takes one group."""


def carry_out(
    effects: Iterable[Effect],
    outbox: TakesGroups,
    instruments: Instruments | None,
    report: Callable[[NotUnderstood], None] | None = None,
) -> int:
    """Adds counts to the metrics and records to the outbox, in order.

    The records of a closing call are one group, with the `closed` fact last: a call is closed with all its final scores and its
    transcript, or not at all.

    Args:
        effects: Effects as the engine returned them.
        outbox: Records to write, of one partition.
        instruments: Take the counts; None where another owner has counted them.
        report: Takes records that are not understood; None where none can be.

    Returns:
        The number of groups.
    """
    groups = 0
    for effect in effects:
        match effect:
            case PublishScore(record) | RecordFact(record):
                outbox.put((record,))
                groups += 1
            case CloseCall(conversation_id, records, transcript):
                before = () if transcript is None else (Transcript(conversation_id, transcript),)
                outbox.put((*before, *records))
                groups += 1
            case RequestVerdict(request):
                outbox.put((request,))
                groups += 1
            case Count(metric, labels, by):
                if instruments is not None:
                    instruments.inc(metric, labels, by)
            case NotUnderstood():
                if report is not None:
                    report(effect)
            case _:
                assert_never(effect)
    return groups
