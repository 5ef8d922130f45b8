"""What the topics have of a call, for tests of the console: its records on the inputs, and its scores."""

from collections.abc import Iterable, Sequence

from consumers.console.watched import WatchedCall
from consumers.engine.admission import Arrival
from consumers.engine.evaluator import NO_LIMITS, PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.scores.records import AnyScoreRecord
from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.traffic import BrokerRecord
from tests.properties.evaluation import EveryCall
from tests.support.calls.log_records import logged
from tests.support.fakes.engine_feed import records_of

Input = tuple[InputSource, BrokerRecord]


def inputs_of(arrivals: Iterable[Arrival]) -> list[Input]:
    """The records of the inputs that became these arrivals."""
    return [(each.source, _record(each)) for each in arrivals]


def _record(arrival: Arrival) -> BrokerRecord:
    topic, key = TOPIC_BY_SOURCE[arrival.source], arrival.conversation_id.encode()
    return BrokerRecord(topic, arrival.offset, arrival.broker_time_ms, key, arrival.value)


def scores_of(arrivals: Sequence[Arrival]) -> list[AnyScoreRecord]:
    """The scores of a call, time passing as its records arrive, up to its close."""
    evaluator = PartitionEvaluator(NO_LIMITS, "test", ChosenGoals(EveryCall(), GoalRules()), writes_transcripts=False)
    scores = []
    for arrival in arrivals:
        scores += records_of(evaluator.advance(arrival.broker_time_ms))
        scores += records_of(evaluator.receive(arrival))
    while (wakeup_ms := evaluator.next_wakeup()) is not None:
        scores += records_of(evaluator.advance(wakeup_ms))
    return scores


def watched(
    conversation_id: str, inputs: Iterable[Input], scores: Iterable[AnyScoreRecord] = (), limits: Limits = NO_LIMITS
) -> WatchedCall:
    """A call with these records read."""
    call = WatchedCall(conversation_id, limits, Redactor())
    for record in logged(inputs):
        call.take_event(record)
    for score in scores:
        call.take_score(score.model_dump_json().encode())
    return call
