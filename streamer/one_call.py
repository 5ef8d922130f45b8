"""One call from the topics, as text."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import TopicPartition
from pydantic import ValidationError

from consumers.console.page.drawing import duration, expected_call, in_words, not_judged, outcome
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.process import OperatorError
from schemas.scores.live_view import newest_scores
from schemas.scores.records import (
    SCORE_RECORD,
    AnyScoreRecord,
    CallRecord,
    CallValues,
    ClosedFact,
    DeadAirFact,
    GoalsFact,
    InterruptionFact,
    Scored,
    StallFact,
    SubgoalScore,
    TextRating,
    ToolUseFact,
    TurnOutcome,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from schemas.topics import SCORES_TOPIC, TRANSCRIPTS_TOPIC
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from schemas.units import to_seconds
from streamer.cluster.readers import onlooker, records_so_far
from streamer.facts import is_wanted
from streamer.time_bounds import shown_moment

# Finds one call on the topics: its score records and its transcript. It uses no consumer group, so it disturbs no
# other reader.

MAX_CALLS: Final = 20
"""Calls kept whose ids end in the same way: as many as a person chooses from."""
MAX_RECORDS: Final = 50_000
"""Records kept of one call: a call of two hours has a tenth."""


@dataclass(slots=True)
class FoundCalls:
    """The calls that were found, and their records.

    Attributes:
        records: Score records by conversation id, in the order of the topic.
        transcripts: Transcripts by conversation id.
        unreadable: Records of another program or of a newer version.
    """

    records: dict[str, list[AnyScoreRecord]] = field(default_factory=dict)
    transcripts: dict[str, tuple[TranscriptTurn, ...]] = field(default_factory=dict)
    unreadable: int = 0


async def find_calls(kafka: KafkaSettings, wanted: str, since_ms: int) -> FoundCalls:
    """Looks for the calls whose id is the wanted text, or ends with it.

    Args:
        kafka: The cluster.
        wanted: A conversation id, or its end; with less than `ids.LEAST_CHARS` characters only a whole id is found.
        since_ms: Older records are not looked at.

    Raises:
        KafkaUnreachableError: No broker answers, or it refuses.
        TopicsUnfitError: A topic does not exist.
    """
    found = FoundCalls()
    async for call, value in _records(kafka, SCORES_TOPIC, since_ms):
        if not is_wanted(call, wanted) or (call not in found.records and len(found.records) >= MAX_CALLS):
            continue
        records = found.records.setdefault(call, [])
        try:
            if len(records) < MAX_RECORDS:
                records.append(SCORE_RECORD.validate_json(value))
        except ValidationError:
            found.unreadable += 1
    if found.records:
        async for call, value in _records(kafka, TRANSCRIPTS_TOPIC, since_ms):
            if call in found.records:
                try:
                    found.transcripts[call] = TRANSCRIPT.validate_json(value)
                except ValidationError:
                    found.unreadable += 1
    exact = found.records.get(wanted)
    if exact is not None:  # another id may end with it
        found.records = {wanted: exact}
    return found


async def _records(kafka: KafkaSettings, name: str, since_ms: int) -> AsyncIterator[tuple[str, Any]]:
    counts = await partition_counts(kafka, [name])
    topic = kafka.topic(name)
    partitions = [TopicPartition(topic, number) for number in range(counts[name])]
    async with onlooker(kafka, "call", auto_offset_reset="earliest") as consumer:
        async for record in records_so_far(consumer, partitions, since_ms):
            if isinstance(record.key, bytes) and record.value is not None:
                yield record.key.decode("utf-8", "replace"), record.value


# One call as text or JSON: its answers turn by turn, things of note, goals, and the transcript. Pure.


def call_lines(
    call: str, records: Sequence[AnyScoreRecord], transcript: Sequence[TranscriptTurn] | None
) -> Iterator[str]:
    """The lines of a call.

    Args:
        call: Its conversation id.
        records: Its score records in the order of the topic, at least one.
        transcript: Its transcript; None if there is none.
    """
    newest = list(newest_scores(records).values())
    yield from _head(call, newest)
    yield from ("", "Turns:")
    yield from (f"  turn {turn}: {'; '.join(remarks)}" for turn, remarks in sorted(_turns(newest).items()))
    yield from _goals(newest)
    yield from _ratings(newest)
    if transcript is None:
        yield from (
            "",
            "There is no transcript: the call is not over, or transcripts are off, or it is older than --since.",
        )
        return
    yield from ("", "Transcript:")
    for each in transcript:
        yield from (f"  {_clock(each.time_in_call_secs)}  {line}" for line in _spoken(each))


def call_document(
    call: str, records: Sequence[AnyScoreRecord], transcript: Sequence[TranscriptTurn] | None
) -> dict[str, Any]:
    """The call for a program: the newest revision of each record; `transcript` is null if there is none."""
    return {
        "conversation_id": call,
        "records": [record.model_dump(mode="json") for record in newest_scores(records).values()],
        "transcript": None if transcript is None else [turn.model_dump(mode="json") for turn in transcript],
    }


def _head(call: str, newest: Sequence[AnyScoreRecord]) -> Iterator[str]:
    labels = newest[-1].labels if newest else None
    if labels is not None:
        names = {"agent": labels.agent, "tenant": labels.tenant, "environment": labels.environment}
        yield f"{call}: " + ", ".join(f"{name} {value}" for name, value in names.items() if value != "unknown")
    first_ms = min((record.caused_at_ms for record in newest), default=0)
    closed = next((record for record in newest if isinstance(record, ClosedFact)), None)
    if closed is None:
        yield f"  since {shown_moment(first_ms)} UTC, not over"
    else:
        reason = closed.ended_reason or in_words(closed.reason)
        began_ms = first_ms if closed.began_at_ms is None else closed.began_at_ms
        long = "" if closed.ended_at_ms is None else f"{duration(closed.ended_at_ms - began_ms)} long, "
        yield f"  {shown_moment(began_ms)} UTC, {long}{closed.turns} turns, ended: {reason}"


def _turns(newest: Sequence[AnyScoreRecord]) -> dict[int, list[str]]:
    """The known values of each turn, its wait first."""
    remarks: defaultdict[int, list[str]] = defaultdict(list)
    rows = {record.turn: record for record in newest if isinstance(record, TurnValues) and record.turn is not None}
    for turn, row in rows.items():
        if turn > 0:
            remarks[turn].append(_wait(row.voice_to_voice_ms, row.anchor))
        if row.outcome is TurnOutcome.INTERRUPTED:
            remarks[turn].append("its answer was interrupted by the user")
    for record in newest:
        if isinstance(record, VoiceToVoiceLatency) and record.turn is not None and record.turn not in rows:
            remarks[record.turn].append(_wait(record.result, record.anchor))
        elif record.turn is not None and (remark := _remark(record)) is not None:
            remarks[record.turn].append(remark)
    return remarks


def _wait(result: object, anchor: str | None) -> str:
    if isinstance(result, Scored):
        by = f" ({anchor})" if anchor else ""
        if result.value < 0:
            return f"the agent began {to_seconds(-result.value):.2f} s before the user had finished{by}"
        return f"answered after {to_seconds(result.value):.2f} s{by}"
    return f"no latency ({result.reason.value})" if isinstance(result, Unscored) else "no latency"


def _remark(record: CallRecord) -> str | None:
    match record:
        case InterruptionFact():
            return record.in_words
        case DeadAirFact():
            return f"dead air over {to_seconds(record.threshold_ms):g} s"
        case ToolUseFact():
            # A log that gives both ends of a use one time says nothing of how long it took.
            took = f" in {to_seconds(record.duration_ms):.2f} s" if record.duration_ms else ""
            return f"{record.tool}: {record.outcome.value}{took}"
        case StallFact():
            return f"no subgoal since turn {record.since_turn}"
    return None


def _goals(newest: Sequence[AnyScoreRecord]) -> Iterator[str]:
    goals = next((record.goal_set for record in newest if isinstance(record, GoalsFact)), None)
    if goals is None:
        return
    scores = {record.index: record for record in newest if isinstance(record, SubgoalScore)}
    reached = sum(record.reached_turn is not None for record in scores.values())
    yield from ("", f"Goals {goals.id}: {reached} of {len(goals.subgoals)} reached")
    for index, subgoal in enumerate(goals.subgoals):
        score = scores.get(index)
        if score is not None and score.reached_turn is not None:
            state = f"reached in turn {score.reached_turn}"
        elif score is not None and isinstance(score.result, Unscored):
            state = f"not known ({score.result.reason.value})"
        else:
            state = "not reached"
        yield f"  {subgoal.id}: {state}"
    whole = next((record for record in newest if isinstance(record, CallValues)), None)
    for found in (whole and whole.expected_tool_calls) or ():
        yield f"  expected tool call {expected_call(found)}"


def _ratings(newest: Sequence[AnyScoreRecord]) -> Iterator[str]:
    """Yields the ratings of the whole call by text judges, each with the dimensions that they could not judge."""
    whole = next((record for record in newest if isinstance(record, CallValues)), None)
    rated = (
        {} if whole is None else {name: getattr(whole, name) for name in ("faithfulness", "conversation_progression")}
    )
    judged = {name: rating for name, rating in rated.items() if isinstance(rating, TextRating)}
    if judged:
        yield from ("", "Judged:")
    for name, rating in judged.items():
        left_out = f"; {not_judged(rating.not_applicable)}" if rating.not_applicable else ""
        yield f"  {in_words(name)} up to turn {rating.through_turn}: {outcome(name, rating.result)}{left_out}"


def _spoken(entry: TranscriptTurn) -> Iterator[str]:
    if entry.message:
        yield f"{entry.role}: {entry.message}{' [interrupted]' if entry.interrupted else ''}"
    for call in entry.tool_calls:
        yield f"{entry.role}: uses {call.tool_name}"


def _clock(seconds: int) -> str:
    return f"{seconds // 60}:{seconds % 60:02}"


# The work of the command `call`: finds the one call that is meant.


def only_call(found: FoundCalls, wanted: str, since: str) -> str:
    """The one call that was found.

    Raises:
        OperatorError: There is none, or there are several.
    """
    names = [name for name, records in found.records.items() if records]
    if len(names) == 1:
        return names[0]
    if names:
        more = " or more" if len(names) == MAX_CALLS else ""
        listed = "".join(f"\n  {name}" for name in names)
        raise OperatorError(f"{len(names)}{more} calls end with {wanted!r}; give more of the id:{listed}")
    raise OperatorError(
        f"No call with the id {wanted!r} has a score since {since}. Look further back with --since 7d, or check the topic "
        "prefix; `callgauge doctor` checks whether anything arrives."
    )
