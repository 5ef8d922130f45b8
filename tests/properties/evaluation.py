"""Drives a partition evaluator through arrivals, and names the results, so that two runs can be
compared.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from msgspec import to_builtins

from consumers.engine.admission import Arrival
from consumers.engine.effects import Count, Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import TURN_JUDGES
from schemas.goals.goal_set import GoalSet
from schemas.rows import STAGE_NEWS, CallRow, GoalsRow, NotApplicable, Row, TurnRow, kind_of, number
from tests.support.fakes.engine_feed import Json, closings_of, rows_of

LIMITS = Limits()
LONG_AFTER_MS = 24 * 3_600_000
GOALS = GoalSet.model_validate(
    {
        "id": "goals",
        "subgoals": [
            {
                "id": "said",
                "details": "a word",
                "check": {"kind": "says", "speaker": "user", "pattern": "[aeiou]"},
            },
            {"id": "used", "details": "a tool", "check": {"kind": "tool_called", "tool": "rebook"}},
            {
                "id": "found",
                "details": "in time",
                "check": {
                    "kind": "within",
                    "turns": 2,
                    "check": {"kind": "tool_result", "tool": "Get_Order", "outcome": "success"},
                },
            },
            {
                "id": "never",
                "details": "not said",
                "check": {
                    "kind": "not",
                    "check": {"kind": "says", "speaker": "assistant", "pattern": "sorry"},
                },
            },
            {"id": "judged", "details": "judged by nobody here", "check": {"kind": "judge"}},
        ],
        "expected_tool_calls": [{"tool": "rebook", "turn": 0}],
    }
)
RULES = GoalRules(stall_turns=10**6, stall_ms=10**12)  # when a call is stuck is a matter of arrival


class EveryCall:
    """Every call that says anything of itself has the same goals."""

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet:
        del goals_id, agent
        return GOALS


def fresh(limits: Limits = LIMITS) -> PartitionEvaluator:
    """An evaluator that has seen nothing."""
    return PartitionEvaluator(
        limits, "test", ChosenGoals(EveryCall(), RULES), writes_transcripts=True
    )


def fold(evaluator: PartitionEvaluator, arrivals: Iterable[Arrival]) -> list[Effect]:
    """All arrivals, one by one, time standing still between them."""
    return [effect for arrival in arrivals for effect in evaluator.receive(arrival)]


def taken_over(arrivals: Sequence[Arrival], limits: Limits = LIMITS) -> PartitionEvaluator:
    """A later owner, which has folded these records of one call again, silently."""
    evaluator = fresh(limits)
    evaluator.is_silent = True
    for arrival in arrivals:
        evaluator.receive(arrival)
    evaluator.speak()
    return evaluator


def run(arrivals: Sequence[Arrival], limits: Limits = LIMITS) -> list[Effect]:
    """A fresh evaluator, all arrivals, then silence until every call has closed."""
    evaluator = fresh(limits)
    effects = fold(evaluator, arrivals)
    effects += evaluator.advance(end_of(arrivals))
    assert evaluator.open_calls == ()
    return effects


def outcomes_of(evaluator: PartitionEvaluator) -> list[Count]:
    """The counts of events by outcome, drained; other counts, as of skewed clocks, say nothing of
    that.
    """
    return [count for count in evaluator.drain_counts() if count.metric == "callgauge_events_total"]


def end_of(arrivals: Sequence[Arrival]) -> int:
    """A broker time at which every call of these arrivals has closed."""
    return max(arrival.broker_time_ms for arrival in arrivals) + LONG_AFTER_MS


def renumbered(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same records with the offsets of their present order."""
    return [replace(arrival, offset=place) for place, arrival in enumerate(arrivals)]


# What rows say that follows from the events alone, in whatever order and by whomever they are
# folded.

Subject = tuple[str, int | None]
"""What a row is of: `turn` with its number, `call`, or `goals`."""

_HOW: Final = frozenset(
    {
        "revision",
        "known_ms",
        "first_known_ms",
        "last_known_ms",
        "news",
        "code_version",
        "labels",
        "status",
        "first_place",
        "last_place",
    }
)
"""Fields that say how or when a value was found."""
_BY_SILENCE: Final = frozenset({"dead_air", "dead_airs", "dead_air_turns", "waiting"})
"""Fields of decisions by silence, which are made when time passes."""


def subject_of(row: Row) -> Subject:
    """What a row is of."""
    return kind_of(row), row.turn if isinstance(row, TurnRow) else None


def newest(rows: Iterable[Row]) -> dict[Subject, Row]:
    """By subject: the last row."""
    return {subject_of(row): row for row in rows}


def newest_turns(rows: Iterable[Row]) -> dict[int, TurnRow]:
    """By number: the last row of each turn that there is."""
    last = {row.turn: row for row in rows if isinstance(row, TurnRow)}
    return {turn: row for turn, row in last.items() if row.status != "withdrawn"}


def closing_of_one(effects: Iterable[Effect]) -> CallRow:
    """The closed row of the only call, which is the last thing that is said of it."""
    (closed,) = closings_of(effects)
    assert rows_of(effects)[-1] is closed
    return closed


def final_state(effects: Sequence[Effect]) -> dict[Subject, Json]:
    """By subject: what is known of the only call after its close, without decisions by silence."""
    return final_values(rows_of(effects))


def final_values(rows: Sequence[Row]) -> dict[Subject, Json]:
    """As `final_state`, of all rows of the only call: it closes once, and they end with that."""
    assert sum(isinstance(row, CallRow) and row.state == "closed" for row in rows) == 1
    assert isinstance(rows[-1], CallRow)
    assert rows[-1].state == "closed"
    last = newest(rows)
    return {subject: lasting(row) for subject, row in last.items() if holds(row)}


def holds(row: Row) -> bool:
    """Whether it is not of a turn that there is not."""
    return not (isinstance(row, TurnRow) and row.status == "withdrawn")


def lasting(row: Row) -> Json:
    """The content of a row that follows from the events alone. Which of two end events came first
    is a matter of arrival, so not why a call closed.
    """
    said: Json = {
        name: part for name, part in to_builtins(row).items() if name not in _HOW | _BY_SILENCE
    }
    if isinstance(row, CallRow):
        said["labels"] = to_builtins(row.labels)
        for by_silence in ("close_reason", "outcome", "in_vain_ms"):
            said.pop(by_silence, None)
        said.get("errors", {}).pop("known_ms", None)
    return said


def assert_counted(rows: Iterable[Row]) -> None:
    """The revisions of the rows of one call never fall, and all that counts counts once, by when it
    is known.

    However many evaluators wrote them.
    """
    last: dict[Subject, Row] = {}
    counted: Counter[tuple[Subject, str]] = Counter()
    for row in rows:
        subject = subject_of(row)
        before = last.get(subject)
        assert before is None or before.revision <= row.revision, (
            f"{subject} goes back to an older revision"
        )
        last[subject] = row
        if isinstance(row, GoalsRow):
            continue
        if isinstance(row, TurnRow):
            is_same = before is not None and _said(before) == _said(row)
            assert row.news or not is_same or row.revision % 2, (
                f"{subject} is restated: {row} {before}"
            )
        counted.update((subject, name) for name in row.news)
        unknown = {name for name in due_news(row) if not counted[subject, name]}
        assert not unknown, f"{subject} has not counted {unknown}"
    twice = {each for each, number in counted.items() if number > 1 and each[1] != "wait_revised"}
    assert not twice


def _said(row: Row) -> Json:
    return {
        name: part
        for name, part in to_builtins(row).items()
        if name not in {"revision", "known_ms", "news"}
    }


def due_news(row: TurnRow | CallRow) -> set[str]:
    """What must have counted by now, as the row is."""
    if isinstance(row, CallRow):
        goals = row.goals
        return {
            "started",
            *(["closed"] if row.state == "closed" else []),
            *(["errors"] if row.errors is not None else []),
            *(["goals"] if goals is not None else []),
            *(
                f"subgoal.{place}"
                for place, each in enumerate(goals.subgoals if goals else ())
                if each.reached_turn is not None
            ),
        }
    if row.status == "withdrawn":
        return set()
    scores: Json = {name: getattr(row, name) for name in ("turn_taking", *TURN_JUDGES)}
    return {
        *(["wait"] if number(row.wait_ms) is not None else []),
        *(["estimate_error"] if row.estimate_error is not None else []),
        *(
            name
            for name, score in scores.items()
            if score is not None and number(score.result) is not None
        ),
        *(STAGE_NEWS + each.stage for each in row.stages),
        *(f"dead_air.{each.number}" for each in row.dead_air),
        *(f"tool.{each.index}" for each in row.tools),
        *(
            ["turn"]
            if row.turn >= 1
            and row.outcome is not None
            and not isinstance(row.wait_ms, NotApplicable)
            else []
        ),
    }


def lives_of(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each call."""
    calls: dict[str, list[Row]] = {}
    for row in rows:
        calls.setdefault(row.conversation_id, []).append(row)
    return list(calls.values())


def rows_of_calls(effects: Iterable[Effect]) -> dict[str, list[Json]]:
    """By conversation: everything written to `scores`, without the places in the log, which other
    records move.
    """
    by_call: dict[str, list[Json]] = {}
    for row in rows_of(effects):
        plain = {
            name: part
            for name, part in to_builtins(row).items()
            if name not in {"revision", "first_place", "last_place"}
        }
        by_call.setdefault(row.conversation_id, []).append(plain)
    return by_call
