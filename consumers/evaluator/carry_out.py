"""What each effect of the engine means to this shell: one `match`."""

from collections import deque
from collections.abc import Iterable
from typing import assert_never

from consumers.engine.effects import CloseCall, Count, Effect, PublishScore, RecordFact
from consumers.runtime.registry import Instruments
from schemas.scores import AnyScoreRecord


def carry_out(effects: Iterable[Effect], outbox: deque[AnyScoreRecord], instruments: Instruments) -> None:
    """Counts what is to be counted and puts what is to be written into the outbox, in order.

    The records of a closing call stand together and last of that call: whoever writes the outbox keeps its order, and
    must not part them.

    Args:
        effects: As the engine returned them.
        outbox: Records to write to `scores`, of one partition.
        instruments: Where `Count` goes.
    """
    for effect in effects:
        match effect:
            case PublishScore(record) | RecordFact(record):
                outbox.append(record)
            case CloseCall(_, records):
                outbox.extend(records)
            case Count(metric, labels, by):
                instruments.inc(metric, labels, by)
            case _:
                assert_never(effect)
