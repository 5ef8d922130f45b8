"""Scores of calls that an observer has put on the topic, by the engine itself: what a real evaluator would write at their ends."""

from typing import Any

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import Anchor, InputSource
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, Scored, VoiceToVoiceLatency
from tests.integration.score_log import records_on
from tests.support.fakes.engine_feed import records_of


async def scored(environment: dict[str, str], call: str) -> list[AnyScoreRecord]:
    """The newest scores of a call, whose events are on the topic."""
    evaluator = PartitionEvaluator(Limits(), "test")
    records: list[AnyScoreRecord] = []
    at_ms = 0
    for record in await records_on(environment, "pipecat.events"):
        arrival: Any = admit(InputSource.PIPECAT, record, Limits())
        assert isinstance(arrival, Arrival), arrival
        if arrival.conversation_id == call:
            at_ms = record.timestamp
            records += records_of(evaluator.receive(arrival))
    records += records_of(evaluator.advance(at_ms + 3_600_000))
    return list(newest_scores(records).values())


def latencies_of(records: list[AnyScoreRecord]) -> tuple[list[float], set[Anchor | None]]:
    """Milliseconds from the user's last sound to the bot's first, in the order of the turns, and where they begin."""
    latencies = sorted((r for r in records if isinstance(r, VoiceToVoiceLatency)), key=lambda each: each.turn or 0)
    values = [each.result.value for each in latencies if isinstance(each.result, Scored)]
    return values, {each.anchor for each in latencies}
