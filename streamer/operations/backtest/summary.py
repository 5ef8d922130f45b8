"""The report of a back-test as tables or JSON. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.scores.records import SCHEMA_VERSION
from streamer.operations.backtest.comparison import MAX_EXAMPLES, Comparison, Difference, Said, Tally
from streamer.operations.backtest.run import BacktestPlan, BacktestResult
from streamer.terminal import safe
from streamer.time_bounds import shown_moment

_NOT_THERE: Final = "-"


def report(plan: BacktestPlan, result: BacktestResult) -> RenderableType:
    """The comparison for people: how many calls and scores differ, by name of score, and examples."""
    comparison = result.comparison
    parts: list[RenderableType] = [Text(line) for line in _headlines(plan, comparison)]
    if comparison.tallies:
        parts += ["", _scores_table(comparison.tallies)]
    if comparison.examples:
        total = comparison.total()
        differing = total.changed + total.only_then + total.only_now
        shown = f"{len(comparison.examples)} of {differing}" if differing > MAX_EXAMPLES else f"{differing}"
        parts += ["", Text(f"Differences ({shown}):"), _examples_table(comparison)]
    return Group(*parts)


def report_json(plan: BacktestPlan, result: BacktestResult) -> str:
    """The comparison as one line of JSON."""
    comparison = result.comparison
    total = comparison.total()
    return json.dumps(
        {
            "run": plan.run_id,
            "since_ms": plan.period.since_ms,
            "until_ms": plan.period.until_ms,
            "obeys_facts": plan.obeys_facts,
            "into": plan.into,
            "records_written": result.written,
            "calls": {
                "equal": comparison.equal_calls,
                "changed": comparison.changed_calls,
                "only_then": comparison.only_then,
                "only_now": comparison.only_now,
                "not_over": result.open_calls,
                "without_beginning": result.without_beginning,
                "closed_twice": result.closed_twice,
                "of_older_schema": result.older,
            },
            "scores": {"equal": total.equal, "changed": total.changed, "only_then": total.only_then,
                       "only_now": total.only_now},
            "scores_by_name": {name: _tally_json(tally) for name, tally in sorted(comparison.tallies.items())},
            "examples": [_example_json(example) for example in comparison.examples],
            "refused_records": result.refused,
            "unreadable_scores": result.unreadable,
            "inputs_cut_at_ms": result.cut,
        }
    )  # fmt: skip


def remarks(result: BacktestResult, into: str, run_id: str) -> Iterator[str]:
    """Remarks beside the differences, each a sentence."""
    for partition, oldest_ms in sorted(result.cut.items()):
        yield (
            f"{partition} has nothing before {shown_moment(oldest_ms)} UTC, and more was wanted: calls that began earlier "
            "are left out or incomplete, and differences of incomplete ones say nothing of today's code. Take a later --since."
        )
    if result.comparison.only_then:
        yield f"{_calls(result.comparison.only_then)} of then: the inputs have no record of it any more, or it is refused today."
    if result.refused:
        yield f"{result.refused} records of these calls are refused with today's code and settings."
    if result.open_calls:
        yield f"{_calls(result.open_calls)} not over yet, so not compared."
    if result.without_beginning:
        yield (
            f"{_calls(result.without_beginning)} left out: `order` does not have the beginning, or the inputs do not have it any more. "
            "Take a later --since, or --without-facts, which goes by broker time."
        )
    if result.closed_twice:
        yield f"{_calls(result.closed_twice)} left out: the conversation id was used again after the call had closed."
    if result.older:
        yield (
            f"{_calls(result.older)} left out: scores of a schema version before {SCHEMA_VERSION} were written of them, and a "
            "back-test compares only with scores of its own."
        )
    if result.unreadable:
        yield f"{result.unreadable} records of scores could not be read: not ours, or of a newer version."
    yield f"{result.written} records written to {into}, each with the header callgauge_run={run_id}."


def _headlines(plan: BacktestPlan, comparison: Comparison) -> Iterator[str]:
    since, until = (shown_moment(ms) for ms in plan.period)
    what = "closed" if plan.obeys_facts else "began"
    calls = comparison.equal_calls + comparison.changed_calls
    yield f"Calls that {what} from {since} to {until} UTC, evaluated again: {calls + comparison.only_now}"
    if plan.obeys_facts:
        yield "The order of records and the goals of calls are those of the log."
    total = comparison.total()
    if calls and total.is_same:
        yield f"No difference: {total.equal} final scores of {_calls(calls)} are equal."
    elif calls or comparison.only_then or comparison.only_now:
        rows = (
            ("equal", comparison.equal_calls), ("changed", comparison.changed_calls),
            ("only then", comparison.only_then), ("only now", comparison.only_now),
        )  # fmt: skip
        yield "Calls: " + ", ".join(f"{number} {name}" for name, number in rows if number)
    else:
        yield "There is nothing to compare: no call in this time."


def _scores_table(tallies: Mapping[str, Tally]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("final score")
    for column in ("equal", "changed", "mean change", "only then", "only now"):
        table.add_column(column, justify="right")
    for name, tally in sorted(tallies.items()):
        mean = tally.mean_difference
        shown_mean = _NOT_THERE if mean is None else f"±{mean:.3f}".rstrip("0").rstrip(".")
        numbers = (tally.equal, tally.changed, shown_mean, tally.only_then, tally.only_now)
        table.add_row(name, *(str(number) for number in numbers))
    return table


def _examples_table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("conversation", "turn", "final score", "then", "now"):
        table.add_column(column, overflow="fold")
    for example in comparison.examples:
        subject = example.subject
        name = f"{subject.name} {subject.place}" if subject.place and subject.name != "dead_air" else subject.name
        turn = _NOT_THERE if subject.turn is None else str(subject.turn)
        cells = (example.conversation_id, turn, name, said_text(example.then), said_text(example.now))
        table.add_row(*(Text(safe(cell)) for cell in cells))
    return table


def said_text(said: Said | None) -> str:
    """A score in a few words.

    Example:
        >>> said_text({"result": {"outcome": "scored", "value": 812.5}, "anchor": "vad"})
        '812.5, anchor vad'
        >>> said_text({"result": {"outcome": "unscored", "reason": "no_user_speech"}})
        'unscored: no_user_speech'
    """
    if said is None:
        return _NOT_THERE
    return ", ".join(_field_text(name, value) for name, value in said.items()) or "there"


def _field_text(name: str, value: Any) -> str:
    if name == "result" and isinstance(value, Mapping):
        if value.get("outcome") == "scored":
            return f"{value['value']}"
        return f"{value.get('outcome')}: {value.get('reason')}"
    return f"{name} {value if isinstance(value, str) else json.dumps(value)}"


def _tally_json(tally: Tally) -> Mapping[str, Any]:
    return {
        "equal": tally.equal,
        "changed": tally.changed,
        "mean_absolute_difference": tally.mean_difference,
        "only_then": tally.only_then,
        "only_now": tally.only_now,
    }


def _example_json(example: Difference) -> Mapping[str, Any]:
    return {
        "conversation_id": example.conversation_id,
        "name": example.subject.name,
        "turn": example.subject.turn,
        "place": example.subject.place,
        "then": example.then,
        "now": example.now,
    }


def _calls(number: int) -> str:
    return f"{number} call{'' if number == 1 else 's'}"
