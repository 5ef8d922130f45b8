"""The rows of calls, as the engine makes them: for tests of everything that reads rows."""

from collections.abc import Iterable, Iterator, Sequence

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect, PublishRow
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.rows import CallRow, GoalsRow, Row, ToolUse, TurnRow
from streamer.recordings.files import RecordedCall
from streamer.sources.simulator.traffic import simulate_call
from tests.golden.calls import arrivals_of_recorded
from tests.properties.evaluation import EveryCall, end_of

START_MS = 1_790_000_000_000


def rows_in_steps(
    arrivals: Sequence[Arrival], goals: ChosenGoals | None = None, limits: Limits | None = None
) -> Iterator[Row]:
    """The rows of calls, step by step as their records come, and with the close of each."""
    for effect in effects_in_steps(PartitionEvaluator(limits or Limits(), "test", goals), arrivals):
        if isinstance(effect, PublishRow):
            yield effect.row


def effects_in_steps(
    evaluator: PartitionEvaluator, arrivals: Sequence[Arrival]
) -> Iterator[Effect]:
    """What the engine decides about calls, time passing as their records come, and with the close
    of each.
    """
    for arrival in arrivals:
        yield from evaluator.advance(arrival.broker_time_ms)
        yield from evaluator.receive(arrival)
    now_ms = end_of(arrivals)
    yield from evaluator.advance(now_ms)
    # deadlines of its questions, and then its close
    while (wakeup_ms := evaluator.next_wakeup()) is not None:
        now_ms = max(now_ms + 1, wakeup_ms)
        yield from evaluator.advance(now_ms)


def rows_of_simulated(seed: int, *, has_goals: bool = False, start_ms: int = START_MS) -> list[Row]:
    """All rows of a simulated call."""
    goals = ChosenGoals(EveryCall(), GoalRules(asks_judge=False)) if has_goals else None
    return list(
        rows_in_steps(arrivals_of_recorded(simulate_call(seed, start_ms=start_ms).call), goals)
    )


def rows_of_recorded(call: RecordedCall, goals: ChosenGoals | None = None) -> list[Row]:
    """All rows of a recorded call."""
    return list(rows_in_steps(arrivals_of_recorded(call), goals))


def newest(rows: Iterable[Row]) -> tuple[CallRow, list[TurnRow], GoalsRow | None]:
    """What a reader of one call has in the end: the row of the call, those of its turns in order,
    and its goals.
    """
    call: CallRow | None = None
    goals: GoalsRow | None = None
    turns: dict[int, TurnRow] = {}
    for row in rows:
        match row:
            case TurnRow():
                turns[row.turn] = row
            case CallRow():
                call = row
            case GoalsRow():
                goals = row
    assert call is not None
    return call, [turns[number] for number in sorted(turns)], goals


def turns_of(rows: Iterable[Row]) -> dict[int, TurnRow]:
    """The newest row of each turn that there is, in order."""
    found = {row.turn: row for row in rows if isinstance(row, TurnRow)}
    return {number: row for number, row in sorted(found.items()) if row.status != "withdrawn"}


def call_of(rows: Iterable[Row]) -> CallRow:
    """The newest row of the call."""
    return [row for row in rows if isinstance(row, CallRow)][-1]


def tools_of(rows: Iterable[Row]) -> list[ToolUse]:
    """All uses of tools, in order."""
    return [use for row in turns_of(rows).values() for use in row.tools]
