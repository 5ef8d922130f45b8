"""Runs a back-test over the topics, or the folder of a `serve`, and says what came out."""

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, cast

import typer
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from consumers.console.page.drawing import counted
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import (
    READ,
    WRITE,
    KafkaSettings,
    Needs,
    TopicsUnfitError,
    partition_counts,
    require_access,
)
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import finish_unless, wall_clock_ms
from schemas.log import Event, Tick
from schemas.rows import Row, encode
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC, TOPICS
from streamer.backtest.past import BacktestError, Past, PastFolder, PastTopics, Period
from streamer.backtest.rerun import MAX_EXAMPLES, Comparison, Difference, Rerun, Said, Tally
from streamer.facts import STOPPED_BY_SIGNAL, installed_version
from streamer.roles.evaluator_role import goals_of_now
from streamer.served_folder import served
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.sources.publisher import PublishError
from streamer.terminal import error_console, output_console, print_document, say
from streamer.time_bounds import moment_ms, shown_moment
from streamer.trials.versus import by_subgoal, flips_in_words, quotes

# Evaluates past traffic again with today's code and settings, and compares; on Kafka it writes to a separate topic.

RUN_HEADER: Final = "callgauge_run"
"""Header of every record that a back-test writes; its value is the id of the run."""
MAX_UNACKNOWLEDGED: Final = 1_000
"""Records on their way to the topic at a time."""

FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a client that goes on to the next partition waits for it."""
_SHOWN_EVERY: Final = 500
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

ShowProgress = Callable[[int, int, float], None]
"""Gets the partition number, the number of partitions, and the finished share of this one's time."""


@dataclass(frozen=True, slots=True)
class BacktestPlan:
    """The past to evaluate again, and how.

    Attributes:
        period: The past, in broker time.
        into: Topic of the new records, without the prefix; None writes none.
        obeys_facts: Whether the calls are those that closed in the period, with the goals that they had; otherwise those that began in
            it, and they choose.
        run_id: Identifies the records of this run.
        now_ms: Start of the command: an open silence lasts until then.
        folder: The folder of a `serve` that has the past; None for Kafka.
    """

    period: Period
    into: str | None
    obeys_facts: bool
    run_id: str
    now_ms: int
    folder: Path | None = None


@dataclass(slots=True)
class BacktestResult:
    """The outcome of a back-test.

    Attributes:
        comparison: The final scores of the log against the new ones.
        written: Records put on the topic.
        counts: What was left out, under the names of the report for programs.
        cut: Time in ms of the oldest record of each partition of the log whose older records are deleted.
    """

    comparison: Comparison = field(default_factory=Comparison)
    written: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    cut: dict[str, int] = field(default_factory=dict)


def topic_to_write(kafka: KafkaSettings, into: str) -> str:
    """The name, without the prefix, of the topic that the records go to.

    Args:
        kafka: How topics are called here.
        into: As typed, with the prefix or without.

    Raises:
        ValueError: It cannot be a topic's name, or it is a topic that others read.
    """
    name = into.removeprefix(kafka.topic_prefix)
    if not _TOPIC_NAME.fullmatch(kafka.topic(name)) or not name:
        raise ValueError(f"{into!r} is no name of a topic: letters, digits, dot, dash and underscore, at most 249")
    if name in {topic.name for topic in TOPICS}:
        raise ValueError(f"{into!r} is a topic of the running system; a back-test writes to one of its own")
    return name


async def backtest(settings: Settings, plan: BacktestPlan, show: ShowProgress) -> BacktestResult:
    """Evaluates one partition after the other; each is read once, and no consumer group knows of it.

    Args:
        settings: Today's settings; with a folder, as `served` has them.
        plan: The past, and the topic of the new records.
        show: Gets the progress.

    Raises:
        BacktestError: It cannot run as requested.
        GoalFolderError: The folder of goals cannot be read.
        KafkaUnreachableError: No broker answers, or rights are missing.
        PublishError: A record could not be written.
        TopicsUnfitError: A topic is missing.
    """
    kafka = settings.kafka
    result = BacktestResult()
    rules = settings.goal_rules(("evaluator", "judge"))
    async with (
        nullcontext() if plan.obeys_facts else goals_of_now(kafka, settings) as goals,
        _past(settings, plan) as (there, count),
        _Writer(kafka, plan) as writer,
    ):
        for number in range(count):
            show(number, count, 0.0)
            # Without the facts a call may close as late as the longest one that begins at the end of the period.
            longest_ms = settings.limits.max_call_duration_ms
            since_ms, until_ms = plan.period
            closing = plan.period if plan.obeys_facts else Period(since_ms, until_ms + longest_ms)
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
            )
            if not rerun.is_over(since_ms):
                await _evaluate(
                    rerun, there.read(number, stretch), writer, plan, begin_ms, partial(show, number, count)
                )
            result.counts += rerun.counts
            result.counts["not_over"] += rerun.open_calls
            result.counts["closed_twice"] += len(past.closed_twice)
            result.counts["unreadable_scores"] += past.unreadable
        await writer.flush()
        result.written = writer.written
        result.cut = there.cut
    show(count, count, 0.0)
    return result


async def _evaluate(
    rerun: Rerun,
    log: AsyncIterator[Event | Tick],
    writer: "_Writer",
    plan: BacktestPlan,
    begin_ms: int,
    show: Callable[[float], None],
) -> None:
    """One partition, from as long before the period as a call may last."""
    taken = 0
    async with aclosing(cast("AsyncGenerator[Event | Tick, None]", log)) as found:
        async for each in found:
            await writer.write(rerun.take(each))
            time_ms = each.known_ms if isinstance(each, Tick) else each.timestamp
            taken += 1
            if taken % _SHOWN_EVERY == 0:
                show(min(1.0, max(0.0, (time_ms - begin_ms) / (plan.period.until_ms - begin_ms))))
            if rerun.is_over(time_ms):
                break
    await writer.write(rerun.finish(plan.now_ms))


@asynccontextmanager
async def _past(settings: Settings, plan: BacktestPlan) -> AsyncIterator[tuple[Past, int]]:
    """Where the past is kept, and its number of partitions."""
    kafka, history = settings.kafka, settings.history.folder
    if plan.folder is not None and history is not None:
        yield PastFolder(plan.folder, history), 1
        return
    count = await _partitions(kafka, plan.into or "")
    async with onlooker(kafka, "backtest", auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS) as consumer:
        yield PastTopics(consumer, kafka), count


async def _partitions(kafka: KafkaSettings, into: str) -> int:
    """How many partitions there are to evaluate."""
    reads = {topic: frozenset({READ}) for topic in (EVENTS_TOPIC, SCORES_TOPIC)}
    await require_access(kafka, Needs(reads))
    counts = await partition_counts(kafka, reads)
    count = counts[EVENTS_TOPIC]
    if counts[SCORES_TOPIC] != count:
        raise BacktestError(
            f"Back-test: {kafka.topic(SCORES_TOPIC)} must have as many partitions as {kafka.topic(EVENTS_TOPIC)}, but they have "
            f"{counts[SCORES_TOPIC]} and {count}. Nothing was evaluated. `callgauge topics check` says more."
        )
    try:
        await require_access(kafka, Needs({into: frozenset({WRITE})}))
    except TopicsUnfitError as error:
        raise BacktestError(
            f"Back-test: there is no topic {kafka.topic(into)} on {kafka.bootstrap_servers} to write to, and callgauge "
            "creates none on the way. Nothing was evaluated. Create it:\n"
            f"  callgauge topics create --scores-copy {into} --partitions {count} --bootstrap {kafka.bootstrap_servers}"
            f"{f' --topic-prefix {kafka.topic_prefix}' if kafka.topic_prefix else ''}"
        ) from error
    return count


class _Writer:
    """Puts records on the topic of a back-test, in order, each with the id of the run; without a topic it writes nothing."""

    def __init__(self, kafka: KafkaSettings, plan: BacktestPlan) -> None:
        self.written = 0
        self._kafka = kafka
        self._topic = None if plan.into is None else kafka.topic(plan.into)
        self._headers = [(RUN_HEADER, plan.run_id.encode())]
        self._producer: AIOKafkaProducer | None = None
        self._sent: list[asyncio.Future[Any]] = []

    async def __aenter__(self) -> Self:
        if self._topic is None:
            return self
        self._producer = self._kafka.producer("backtest")
        try:
            await self._producer.start()
        except KafkaError as error:
            await self._producer.stop()
            raise self._kafka.unreachable(error) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._producer is not None:
            await self._producer.stop()

    async def write(self, rows: Sequence[Row]) -> None:
        """Hands rows over; waits when too many are on their way.

        Raises:
            PublishError: The broker did not take one.
        """
        producer = self._producer
        if producer is None or not rows:
            return
        try:
            for row in rows:
                key = row.conversation_id.encode()
                self._sent.append(await producer.send(self._topic, encode(row), key=key, headers=self._headers))
        except KafkaError as error:
            raise self._refused(error) from error
        if len(self._sent) >= MAX_UNACKNOWLEDGED:
            await self.flush()

    async def flush(self) -> None:
        """Waits until all that was handed over is acknowledged.

        Raises:
            PublishError: The broker did not take one.
        """
        sent, self._sent = self._sent, []
        try:
            await asyncio.gather(*sent)
        except KafkaError as error:
            raise self._refused(error) from error
        self.written += len(sent)

    def _refused(self, error: KafkaError) -> PublishError:
        return PublishError(
            f"Back-test: records could not be written to {self._topic} on {self._kafka.bootstrap_servers}: "
            f"{str(error) or type(error).__name__}. It ends here, and its output is incomplete. Check the broker "
            "and the rights on the topic, then run it again: a run has an id of its own."
        )


# The report of a back-test as tables or JSON. Pure.

_NOT_THERE: Final = "-"


def report(plan: BacktestPlan, result: BacktestResult) -> RenderableType:
    """The comparison for people: how many calls and scores differ, by name of score, and examples."""
    comparison = result.comparison
    parts: list[RenderableType] = [*_headlines(plan, comparison)]
    parts += _goal_lines(comparison)
    if comparison.tallies:
        parts += ["", _scores_table(comparison.tallies)]
    if comparison.examples:
        differing = comparison.total().differing
        shown = f"{len(comparison.examples)} of {differing}" if differing > MAX_EXAMPLES else f"{differing}"
        parts += ["", f"Differences ({shown}):", _examples_table(comparison)]
    return Group(*parts)


def report_document(plan: BacktestPlan, result: BacktestResult) -> dict[str, Any]:
    """The comparison, for a program."""
    comparison, counts = result.comparison, result.counts
    return {
        "run": plan.run_id,
        "since_ms": plan.period.since_ms,
        "until_ms": plan.period.until_ms,
        "obeys_facts": plan.obeys_facts,
        "into": plan.into,
        "records_written": result.written,
        "calls": comparison.calls.counts | {name: counts[name] for name in _LEFT_OUT_CALLS},
        "scores": comparison.total().counts,
        "scores_by_name": {name: _tally_json(tally) for name, tally in sorted(comparison.tallies.items())},
        "calls_with_other_goals": comparison.other_goals,
        "subgoals": [
            {"id": name, "won": won, "lost": lost} for name, won, lost in by_subgoal(comparison.flipped.values())
        ],
        "flipped": [
            {"conversation_id": call, "subgoals": [each._asdict() for each in found]}
            for call, found in comparison.flipped.items()
        ],
        "examples": [_example_json(example) for example in comparison.examples],
        "refused_records": counts["refused_records"],
        "unreadable_scores": counts["unreadable_scores"],
        "log_cut_at_ms": result.cut,
    }


_LEFT_OUT_CALLS: Final = ("not_over", "without_beginning", "closed_twice")
_REMARKS: Final = {
    "only_then": "{calls} of then: the log has no event of it any more, or it is refused today.",
    "refused_records": "{count} records of these calls are refused with today's code and settings.",
    "not_over": "{calls} not over yet, so not compared.",
    "without_beginning": "{calls} left out: the log does not have the beginning any more. Take a later --since.",
    "closed_twice": "{calls} left out: the conversation id was used again after the call had closed.",
    "unreadable_scores": "{count} records of scores could not be read: not ours, or of a newer version.",
}


def remarks(result: BacktestResult, into: str | None, run_id: str) -> Iterator[str]:
    """Remarks beside the differences, each a sentence; `into` is the topic that was written."""
    for partition, oldest_ms in sorted(result.cut.items()):
        yield (
            f"{partition} has nothing before {shown_moment(oldest_ms)} UTC, and more was wanted: calls that began earlier "
            "are left out or incomplete, and differences of incomplete ones say nothing of today's code. Take a later --since."
        )
    counts = {"only_then": result.comparison.calls.only_then, **result.counts}
    for name, remark in _REMARKS.items():
        if count := counts.get(name):
            yield remark.format(calls=counted(count, "call"), count=count)
    if into is not None:
        yield f"{result.written} records written to {into}, each with the header callgauge_run={run_id}."


def _headlines(plan: BacktestPlan, comparison: Comparison) -> Iterator[str]:
    since, until = (shown_moment(ms) for ms in plan.period)
    what = "closed" if plan.obeys_facts else "began"
    calls = comparison.calls
    compared = calls.equal + calls.changed
    yield f"Calls that {what} from {since} to {until} UTC, evaluated again: {compared + calls.only_now}"
    if plan.obeys_facts:
        yield "The goals of calls are those that they had; --without-facts takes today's."
    total = comparison.total()
    if compared and not total.differing:
        yield f"No difference: {total.equal} final scores of {counted(compared, 'call')} are equal."
    elif any(calls.counts.values()):
        counts = calls.counts.items()
        yield "Calls: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts if count)
    else:
        yield "There is nothing to compare: no call in this time."


def _goal_lines(comparison: Comparison) -> Iterator[str]:
    """How many calls have other goals now, how often each subgoal flipped, and the first calls that did."""
    if comparison.other_goals:
        yield f"{counted(comparison.other_goals, 'call')} with other goals than then."
    flipped = comparison.flipped
    if flipped:
        yield f"Subgoals flipped in {counted(len(flipped), 'call')}:"
    yield from (f"  {subgoal}: {won} won, {lost} lost" for subgoal, won, lost in by_subgoal(flipped.values()))
    for call, found in islice(flipped.items(), MAX_EXAMPLES):
        yield f"  {call}: {flips_in_words(found)}"
        yield from quotes(found)
    if len(flipped) > MAX_EXAMPLES:
        yield f"  and {counted(len(flipped) - MAX_EXAMPLES, 'more call')}; --json has all"


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
        table.add_row(*cells)
    return table


def said_text(said: Said | None) -> str:
    """A score in a few words.

    Example:
        >>> said_text({"result": 812.5, "anchor": "vad"})
        '812.5, anchor vad'
        >>> said_text({"result": {"outcome": "unscored", "reason": "no_user_speech"}})
        'unscored: no_user_speech'
    """
    if said is None:
        return _NOT_THERE
    return ", ".join(_field_text(name, value) for name, value in said.items()) or "there"


def _field_text(name: str, value: Any) -> str:
    if name == "result" and isinstance(value, Mapping) and "reason" in value:
        return f"{value.get('outcome')}: {value['reason']}"
    if name == "result" and not isinstance(value, (list, Mapping)):
        return f"{value}"
    return f"{name} {value if isinstance(value, str) else json.dumps(value)}"


def _tally_json(tally: Tally) -> Mapping[str, Any]:
    counts = tally.counts
    equal, changed = counts.pop("equal"), counts.pop("changed")
    return {"equal": equal, "changed": changed, "mean_absolute_difference": tally.mean_difference, **counts}


def _example_json(example: Difference) -> Mapping[str, Any]:
    conversation_id, subject, then, now = example
    return {"conversation_id": conversation_id, **subject._asdict(), "then": then, "now": now}


# `callgauge replay --from-topics`: reads the times of the options, shows a progress bar, prints the differences.


def run_backtest(
    settings: Settings,
    *,
    since: str | None,
    until: str | None,
    into: str,
    obeys_facts: bool,
    as_json: bool,
    folder: Path | None = None,
) -> None:
    """Runs a back-test and prints the result; differences are a result and no failure.

    Args:
        settings: Today's settings.
        since: Start of the period, as typed.
        until: End of the period, as typed; None is now.
        into: Topic to write to, as typed.
        obeys_facts: Whether the calls are those that closed in the period, with the goals that they had.
        as_json: One JSON object instead of tables.
        folder: The folder of a `serve` that has the past, in place of Kafka; then no record is written.

    Raises:
        typer.BadParameter: A time or the topic cannot be used.
        BacktestError: It cannot run as requested.
        typer.Exit: A signal cut it short.
    """
    plan = _plan(settings, since, until, into, obeys_facts=obeys_facts)
    if folder is not None:
        settings, plan = served(settings, folder), replace(plan, into=None, folder=folder)
    topic = None if plan.into is None else settings.kafka.topic(plan.into)
    redact = Redactor(settings.redaction).redact
    configure_logging(settings.log_format, "warning", redact=redact)  # log lines of the goal sources are no results
    result = asyncio.run(_run(settings, plan))
    if result is None:
        say(
            "Stopped."
            if topic is None
            else f"Stopped. What was written until then is in {topic} under run {plan.run_id}."
        )
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if as_json:
        print_document(report_document(plan, result))
    else:
        output_console().print(report(plan, result))
    for remark in remarks(result, topic, plan.run_id):
        say(remark)


def _plan(settings: Settings, since: str | None, until: str | None, into: str, *, obeys_facts: bool) -> BacktestPlan:
    now_ms = wall_clock_ms()
    if since is None:
        raise typer.BadParameter("--from-topics needs --since: from when on calls are evaluated again, for example 2h.")
    try:
        period = Period(moment_ms(since, now_ms), now_ms if until is None else moment_ms(until, now_ms))
        name = topic_to_write(settings.kafka, into)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    if period.since_ms >= period.until_ms:
        raise typer.BadParameter("--since must be before --until.")
    return BacktestPlan(period, name, obeys_facts, secrets.token_hex(4), now_ms)


async def _run(settings: Settings, plan: BacktestPlan) -> BacktestResult | None:
    """The result; None when a signal came first."""
    console = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console)
    with bar if console.is_terminal else nullcontext(), stop_on_signals() as stop:
        task = bar.add_task("Back-test", total=1.0)

        def show(number: int, count: int, part: float) -> None:
            text = f"partition {min(number + 1, count)}/{count}"
            bar.update(task, total=float(count), completed=number + part, description=text)

        return await finish_unless(stop, backtest(settings, plan, show))
