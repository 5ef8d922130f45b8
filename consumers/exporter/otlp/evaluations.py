"""Turns the final scores of a closed call into evaluation events. Pure.

A log cannot be revised, so nothing of a call is an event before its `closed` record: the newest revisions are final then. A
value that does not apply is no event; one that is not known is an event with its reason as `error.type`.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from schemas import evaluation_event as names
from schemas.scores.all_records import (
    AnyScoreRecord,
    CallValues,
    ClosedFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SubgoalScore,
    TurnValues,
)
from schemas.scores.newest_scores import Subject, is_withdrawn

MAX_CALLS: Final = 10_000
"""Running calls whose scores are kept; beyond them the call that has been quiet for longest is forgotten and counted."""
MAX_RECORDS_PER_CALL: Final = 2_000
"""Scores kept of one call: a call of 500 turns has some 1,100. Further ones are left out and counted."""
_KEPT: Final = (TurnValues, CallValues, ProgressScore, SubgoalScore)

Attributes = Mapping[str, str | int | float]


class Evaluation(NamedTuple):
    """One event: when the score was made, in epoch milliseconds, and its attributes."""

    time_ms: int
    attributes: Attributes


class FinalScores:
    """The newest scores of running calls, until each call closes.

    Attributes:
        left_out: Number of score records that did not fit into the bounds.
    """

    def __init__(self) -> None:
        """Starts with no call. Scores from before the start of the process are not known."""
        self.left_out = 0
        self._calls: OrderedDict[str, dict[Subject, AnyScoreRecord]] = OrderedDict()

    def take(self, record: AnyScoreRecord) -> list[Evaluation]:
        """Keeps a score record; gives the events of its call if it closes the call."""
        call = record.conversation_id
        if isinstance(record, ClosedFact):
            kept = self._calls.pop(call, {})
            return [event for each in kept.values() if not is_withdrawn(each) for event in _evaluations(each)]
        if not isinstance(record, _KEPT):
            return []
        scores = self._calls.setdefault(call, {})
        self._calls.move_to_end(call)
        subject = (record.name, record.turn, record.index)
        last = scores.get(subject)
        if last is None and len(scores) >= MAX_RECORDS_PER_CALL:
            self.left_out += 1
        elif last is None or last.revision <= record.revision:
            scores[subject] = record
        if len(self._calls) > MAX_CALLS:
            self.left_out += len(self._calls.popitem(last=False)[1])
        return []


def _evaluations(record: AnyScoreRecord) -> Iterator[Evaluation]:
    for name, result, more in _results(record):
        if result is None or isinstance(result, NotApplicable):
            continue
        outcome = _without_none(more)
        if isinstance(result, Scored):
            outcome[names.SCORE_VALUE] = float(result.value)
        else:
            outcome[names.ERROR_TYPE] = result.reason.value
        yield Evaluation(record.caused_at_ms, {names.EVALUATION_NAME: name, **outcome, **_about(record)})


def _results(record: AnyScoreRecord) -> Iterator[tuple[str, Result | None, Mapping[str, str | float | None]]]:
    match record:
        case TurnValues():
            anchor = {names.ANCHOR: None if record.anchor is None else record.anchor.value}
            yield "voice_to_voice_latency_ms", record.voice_to_voice_ms, anchor
            if (timing := record.turn_taking) is not None:
                yield (
                    "turn_taking",
                    timing.result,
                    {names.ANCHOR: None if timing.anchor is None else timing.anchor.value},
                )
            for name, rating in (("conciseness", record.conciseness), ("speakability", record.speakability)):
                yield name, None if rating is None else rating.result, {}
        case CallValues():
            for eva_name, score in record.eva.items():
                eva_anchor = None if score.anchor is None else score.anchor.value
                yield eva_name, score.result, {names.NORMALIZED: score.normalized, names.ANCHOR: eva_anchor}
            yield "tool_correctness", record.tool_correctness, {}
            yield "success", record.success_final_turn, _label(record.success_final_turn, "success", "failure")
            for name, rating in (
                ("faithfulness", record.faithfulness),
                ("conversation_progression", record.conversation_progression),
            ):
                yield name, None if rating is None else rating.result, {}
        case ProgressScore():
            yield "progress", record.result, {}
        case SubgoalScore():
            label = _label(record.result, "reached", "open")
            yield "subgoal", record.result, {names.SUBGOAL_ID: record.subgoal_id, **label}


def _label(result: Result | None, one: str, zero: str) -> dict[str, str | float | None]:
    """The word for a score that is 1 or 0."""
    return {names.SCORE_LABEL: (one if result.value else zero) if isinstance(result, Scored) else None}


def _about(record: AnyScoreRecord) -> Attributes:
    labels = record.labels
    return _without_none(
        {
            names.CONVERSATION_ID: record.conversation_id,
            names.AGENT_NAME: labels.agent,
            names.TENANT: labels.tenant,
            names.ENVIRONMENT: labels.environment,
            names.TURN: record.turn,
            names.REVISION: record.revision,
            names.RECORD_ID: record.record_id,
            names.CODE_VERSION: record.code_version,
        }
    )


def _without_none(values: Mapping[str, str | int | float | None]) -> dict[str, str | int | float]:
    return {name: value for name, value in values.items() if value is not None}
