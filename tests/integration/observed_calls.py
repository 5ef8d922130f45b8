"""Rows of calls that an observer has put on the topic, by the engine itself: what a real evaluator
would write at their ends.
"""

from typing import Any

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import Anchor, InputSource
from schemas.rows import Row
from tests.integration.score_log import newest_rows, records_on
from tests.support.calls.rows_of_calls import turns_of
from tests.support.fakes.engine_feed import rows_of


async def scored(environment: dict[str, str], call: str) -> list[Row]:
    """The newest rows of a call, whose events are on the topic."""
    evaluator = PartitionEvaluator(Limits(), "test")
    rows: list[Row] = []
    at_ms = 0
    for record in await records_on(environment, "pipecat.events"):
        arrival: Any = admit(InputSource.PIPECAT, record, Limits())
        assert isinstance(arrival, Arrival), arrival
        if arrival.conversation_id == call:
            at_ms = record.timestamp
            rows += rows_of(evaluator.receive(arrival))
    rows += rows_of(evaluator.advance(at_ms + 3_600_000))
    return newest_rows(rows)


def latencies_of(rows: list[Row]) -> tuple[list[float], set[Anchor | None]]:
    """Milliseconds from the user's last sound to the bot's first, in the order of the turns, and
    where they begin.
    """
    turns = [turn for turn in turns_of(rows).values() if turn.wait_ms is not None]
    values = [turn.wait_ms for turn in turns if isinstance(turn.wait_ms, float)]
    return values, {turn.anchor for turn in turns}
