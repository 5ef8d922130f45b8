"""Runs a back-test over the topics, or the folder of a `serve`, and says what came out."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from consumers.console.page.drawing import counted
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import (
    READ,
    KafkaSettings,
    Needs,
    partition_counts,
    require_access,
)
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import finish_unless, wall_clock_ms
from consumers.store.changes import changes_json, remark_on_chance
from schemas.log import Event, Tick
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC
from streamer.backtest.past import BacktestError, Past, PastFolder, PastTopics
from streamer.backtest.rerun import MAX_EXAMPLES, Rerun, RerunComparison
from streamer.changes import changes_table
from streamer.facts import STOPPED_BY_SIGNAL, installed_version
from streamer.history.comparison import ComparedPeriod
from streamer.offline.own_values import OwnMeasures
from streamer.roles.evaluator_role import goals_of_now
from streamer.served_folder import served
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import error_console, output_console, print_document, say
from streamer.time_bounds import moment_ms, shown_moment
from streamer.trials.versus import by_subgoal, flips_in_words, quotes

# Evaluates past traffic again with today's code and settings, and compares. Nothing is written.

FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a client that goes on to the next partition
waits for it.
"""
_SHOWN_EVERY: Final = 500

ShowProgress = Callable[[int, int, float], None]
"""Gets the partition number, the number of partitions, and the finished share of this
one's time.
"""


@dataclass(frozen=True, slots=True)
class BacktestPlan:
    """The past to evaluate again, and how.

    Attributes:
        period: The past, in broker time.
        obeys_facts: Whether the calls are those that closed in the period, with the goals that they
            had; otherwise those that began in it, and they choose.
        now_ms: Start of the command: an open silence lasts until then.
        folder: The folder of a `serve` that has the past; None for Kafka.
    """

    period: ComparedPeriod
    obeys_facts: bool
    now_ms: int
    folder: Path | None = None


@dataclass(slots=True)
class BacktestResult:
    """The outcome of a back-test.

    Attributes:
        comparison: The final scores of the log against the new ones.
        counts: What was left out, under the names of the report for programs.
        cut: Time in ms of the oldest record of each partition of the log whose older records are
            deleted.
    """

    comparison: RerunComparison = field(default_factory=RerunComparison)
    counts: Counter[str] = field(default_factory=Counter)
    cut: dict[str, int] = field(default_factory=dict)


async def backtest(settings: Settings, plan: BacktestPlan, show: ShowProgress) -> BacktestResult:
    """Evaluates one partition after the other; each is read once, and no consumer group knows of
    it.

    Args:
        settings: Today's settings; with a folder, as `served` has them.
        plan: The past.
        show: Gets the progress.

    Raises:
        BacktestError: It cannot run as requested.
        GoalFolderError: The folder of goals cannot be read.
        KafkaUnreachableError: No broker answers, or rights are missing.
        TopicsUnfitError: A topic is missing.
    """
    kafka = settings.kafka
    result = BacktestResult()
    rules = settings.goal_rules(("evaluator", "judge"))
    own = OwnMeasures(settings.measures)
    async with (
        nullcontext() if plan.obeys_facts else goals_of_now(kafka, settings) as goals,
        _past(settings, plan) as (there, count),
    ):
        for number in range(count):
            show(number, count, 0.0)
            # Without the facts a call may close as late as the longest one that begins at the end
            # of the period.
            longest_ms = settings.limits.max_call_duration_ms
            since_ms, until_ms = plan.period
            closing = (
                plan.period if plan.obeys_facts else ComparedPeriod(since_ms, until_ms + longest_ms)
            )
            past = await there.calls(number, closing, longest_ms)
            begin_ms = since_ms - longest_ms - settings.limits.idle_ms
            stretch = await there.begin(number, begin_ms)
            rerun = Rerun(
                limits=settings.all_limits,
                code_version=installed_version(),
                period=plan.period,
                past=past.by_id,
                obeys_facts=plan.obeys_facts,
                comparison=result.comparison,
                folds_all=past.has_evicted,
                partition=number,
                cut_ms=stretch.cut_ms,
                left_out=frozenset(past.closed_twice),
                goals=ChosenGoals(goals, rules),
                redactor=Redactor(settings.redaction),
                own=own,
            )
            if not rerun.is_over(since_ms):
                await _evaluate(
                    rerun, there.read(number, stretch), plan, begin_ms, partial(show, number, count)
                )
            result.counts += rerun.counts
            result.counts["not_over"] += rerun.open_calls
            result.counts["closed_twice"] += len(past.closed_twice)
            result.counts["unreadable_scores"] += past.unreadable
        result.cut = there.cut
    show(count, count, 0.0)
    return result


async def _evaluate(
    rerun: Rerun,
    log: AsyncIterator[Event | Tick],
    plan: BacktestPlan,
    begin_ms: int,
    show: Callable[[float], None],
) -> None:
    """One partition, from as long before the period as a call may last."""
    taken = 0
    async with aclosing(cast("AsyncGenerator[Event | Tick, None]", log)) as found:
        async for each in found:
            rerun.fold_record(each)
            time_ms = each.known_ms if isinstance(each, Tick) else each.timestamp
            taken += 1
            if taken % _SHOWN_EVERY == 0:
                show(min(1.0, max(0.0, (time_ms - begin_ms) / (plan.period.until_ms - begin_ms))))
            if rerun.is_over(time_ms):
                break
    rerun.finish(plan.now_ms)


@asynccontextmanager
async def _past(settings: Settings, plan: BacktestPlan) -> AsyncIterator[tuple[Past, int]]:
    """Where the past is kept, and its number of partitions."""
    kafka, history = settings.kafka, settings.history.folder
    if plan.folder is not None and history is not None:
        yield PastFolder(plan.folder, history), 1
        return
    count = await _partitions(kafka)
    async with onlooker(
        kafka, "backtest", auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS
    ) as consumer:
        yield PastTopics(consumer, kafka), count


async def _partitions(kafka: KafkaSettings) -> int:
    """How many partitions there are to evaluate."""
    reads = {topic: frozenset({READ}) for topic in (EVENTS_TOPIC, SCORES_TOPIC)}
    await require_access(kafka, Needs(reads))
    counts = await partition_counts(kafka, reads)
    count = counts[EVENTS_TOPIC]
    if counts[SCORES_TOPIC] != count:
        raise BacktestError(
            f"Back-test: {kafka.topic(SCORES_TOPIC)} must have as many partitions as "
            f"{kafka.topic(EVENTS_TOPIC)}, but they have "
            f"{counts[SCORES_TOPIC]} and {count}. Nothing was evaluated. `callgauge topics check` "
            "says more."
        )
    return count


# The report of a back-test as tables or JSON. Pure.

_NOT_THERE: Final = "-"


def report(plan: BacktestPlan, result: BacktestResult) -> RenderableType:
    """The comparison for people: how many calls and values differ, the measures of calls that do,
    and examples.
    """
    comparison = result.comparison
    parts: list[RenderableType] = [*_headlines(plan, comparison), *_goal_lines(comparison)]
    if changes := comparison.changes():
        calls = comparison.calls["equal"] + comparison.calls["changed"]
        parts += ["", changes_table(changes, (calls, calls), ("then", "now"))]
        parts += [text for text in [remark_on_chance(changes)] if text]
    if comparison.examples:
        counts = ", ".join(f"{name} {count}" for name, count in comparison.differing.most_common())
        parts += [
            "",
            f"Values that differ: {counts}. The first of them:",
            _examples_table(comparison),
        ]
    return Group(*parts)


def report_document(plan: BacktestPlan, result: BacktestResult) -> dict[str, Any]:
    """The comparison, for a program."""
    comparison, counts = result.comparison, result.counts
    return {
        "since_ms": plan.period.since_ms,
        "until_ms": plan.period.until_ms,
        "obeys_facts": plan.obeys_facts,
        "calls": {**comparison.calls, **{name: counts[name] for name in _LEFT_OUT_CALLS}},
        "equal_values": comparison.equal_values,
        "differing_values": dict(comparison.differing),
        "measures": changes_json(comparison.changes()),
        "calls_with_other_goals": comparison.other_goals,
        "subgoals": [
            {"id": name, "won": won, "lost": lost}
            for name, won, lost in by_subgoal(comparison.flipped.values())
        ],
        "flipped": [
            {"conversation_id": call, "subgoals": [each._asdict() for each in found]}
            for call, found in comparison.flipped.items()
        ],
        "examples": [each._asdict() for each in comparison.examples],
        "refused_records": counts["refused_records"],
        "unreadable_scores": counts["unreadable_scores"],
        "log_cut_at_ms": result.cut,
    }


_LEFT_OUT_CALLS: Final = ("not_over", "without_beginning", "closed_twice")
_REMARKS: Final = {
    "only_then": "{calls} of then: the log has no event of it any more, or it is refused today.",
    "refused_records": "{count} records of these calls are refused with today's code and settings.",
    "not_over": "{calls} not over yet, so not compared.",
    "without_beginning": (
        "{calls} left out: the log does not have the beginning any more. Take a later --since."
    ),
    "closed_twice": (
        "{calls} left out: the conversation id was used again after the call had closed."
    ),
    "unreadable_scores": (
        "{count} records of scores could not be read: not ours, or of a newer version."
    ),
}


def remarks(result: BacktestResult) -> Iterator[str]:
    """Remarks beside the differences, each a sentence."""
    for partition, oldest_ms in sorted(result.cut.items()):
        yield (
            f"{partition} has nothing before {shown_moment(oldest_ms)} UTC, and more was wanted: "
            "calls that began earlier "
            "are left out or incomplete, and differences of incomplete ones say nothing of today's "
            "code. Take a later --since."
        )
    counts = {"only_then": result.comparison.calls["only_then"], **result.counts}
    for name, remark in _REMARKS.items():
        if count := counts.get(name):
            yield remark.format(calls=counted(count, "call"), count=count)


def _headlines(plan: BacktestPlan, comparison: RerunComparison) -> Iterator[str]:
    since, until = (shown_moment(ms) for ms in plan.period)
    what = "closed" if plan.obeys_facts else "began"
    calls = comparison.calls
    compared = calls["equal"] + calls["changed"]
    yield (
        f"Calls that {what} from {since} to {until} UTC, evaluated again: "
        f"{compared + calls['only_now']}"
    )
    if plan.obeys_facts:
        yield "The goals of calls are those that they had; --without-facts takes today's."
    if compared and not comparison.differing:
        yield (
            f"No difference: {comparison.equal_values} final values of {counted(compared, 'call')} "
            "are equal."
        )
    elif calls.total():
        yield "Calls: " + ", ".join(
            f"{count} {name.replace('_', ' ')}" for name, count in calls.items() if count
        )
    else:
        yield "There is nothing to compare: no call in this time."


def _goal_lines(comparison: RerunComparison) -> Iterator[str]:
    """How many calls have other goals now, how often each subgoal flipped, and the first calls that
    did.
    """
    if comparison.other_goals:
        yield f"{counted(comparison.other_goals, 'call')} with other goals than then."
    flipped = comparison.flipped
    if flipped:
        yield f"Subgoals flipped in {counted(len(flipped), 'call')}:"
    yield from (
        f"  {subgoal}: {won} won, {lost} lost"
        for subgoal, won, lost in by_subgoal(flipped.values())
    )
    for call, found in islice(flipped.items(), MAX_EXAMPLES):
        yield f"  {call}: {flips_in_words(found)}"
        yield from quotes(found)
    if len(flipped) > MAX_EXAMPLES:
        yield f"  and {counted(len(flipped) - MAX_EXAMPLES, 'more call')}; --json has all"


def _examples_table(comparison: RerunComparison) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("conversation", "turn", "value", "then", "now"):
        table.add_column(column, overflow="fold")
    for example in comparison.examples:
        table.add_row(*(_NOT_THERE if value is None else str(value) for value in example))
    return table


# `callgauge replay --from-topics`: reads the times of the options, shows a progress bar, prints the
# differences.


def run_backtest(
    settings: Settings,
    *,
    since: str | None,
    until: str | None,
    obeys_facts: bool,
    as_json: bool,
    folder: Path | None = None,
) -> None:
    """Runs a back-test and prints the result; differences are a result and no failure.

    Args:
        settings: Today's settings.
        since: Start of the period, as typed.
        until: End of the period, as typed; None is now.
        obeys_facts: Whether the calls are those that closed in the period, with the goals that they
            had.
        as_json: One JSON object instead of tables.
        folder: The folder of a `serve` that has the past, in place of Kafka.

    Raises:
        typer.BadParameter: A time cannot be used.
        BacktestError: It cannot run as requested.
        typer.Exit: A signal cut it short.
    """
    plan = _plan(since, until, obeys_facts=obeys_facts)
    if folder is not None:
        settings, plan = served(settings, folder), replace(plan, folder=folder)
    redact = Redactor(settings.redaction).redact
    # log lines of the goal sources are no results
    configure_logging(settings.log_format, "warning", redact=redact)
    result = asyncio.run(_run(settings, plan))
    if result is None:
        say("Stopped.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if as_json:
        print_document(report_document(plan, result))
    else:
        output_console().print(report(plan, result))
    for remark in remarks(result):
        say(remark)


def _plan(since: str | None, until: str | None, *, obeys_facts: bool) -> BacktestPlan:
    now_ms = wall_clock_ms()
    if since is None:
        raise typer.BadParameter(
            "--from-topics needs --since: from when on calls are evaluated again, for example 2h."
        )
    until_ms = now_ms if until is None else moment_ms(until, now_ms)
    period = ComparedPeriod(moment_ms(since, now_ms), until_ms)
    if period.since_ms >= period.until_ms:
        raise typer.BadParameter("--since must be before --until.")
    return BacktestPlan(period, obeys_facts, now_ms)


async def _run(settings: Settings, plan: BacktestPlan) -> BacktestResult | None:
    """The result; None when a signal came first."""
    console = error_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console)
    with bar if console.is_terminal else nullcontext(), stop_on_signals() as stop:
        task = bar.add_task("Back-test", total=1.0)

        def show(number: int, count: int, part: float) -> None:
            text = f"partition {min(number + 1, count)}/{count}"
            bar.update(task, total=float(count), completed=number + part, description=text)

        return await finish_unless(stop, backtest(settings, plan, show))
