"""`callgauge replay --from-topics`: reads the times of the options, shows a progress bar, prints the differences."""

import asyncio
import secrets
from contextlib import nullcontext

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import finish_unless, wall_clock_ms
from streamer.exit_codes import STOPPED_BY_SIGNAL
from streamer.operations.backtest.past import Period
from streamer.operations.backtest.run import BacktestPlan, BacktestResult, backtest, topic_to_write
from streamer.operations.backtest.summary import remarks, report, report_json
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import error_console, output_console, say
from streamer.time_bounds import moment_ms


def run_backtest(
    settings: Settings, *, since: str | None, until: str | None, into: str, obeys_facts: bool, as_json: bool
) -> None:
    """Runs a back-test and prints the result; differences are a result and no failure.

    Args:
        settings: Today's settings.
        since: Start of the period, as typed.
        until: End of the period, as typed; None is now.
        into: Topic to write to, as typed.
        obeys_facts: Whether records are folded in the order of the log, and goals taken from it.
        as_json: One JSON object instead of tables.

    Raises:
        typer.BadParameter: A time or the topic cannot be used.
        BacktestError: It cannot run as requested.
        typer.Exit: A signal cut it short.
    """
    plan = _plan(settings, since, until, into, obeys_facts=obeys_facts)
    redact = Redactor(settings.redaction).redact
    configure_logging(settings.log_format, "warning", redact=redact)  # log lines of the goal sources are no results
    result = asyncio.run(_run(settings, plan))
    if result is None:
        say(f"Stopped. What was written until then is in {settings.kafka.topic(plan.into)} under run {plan.run_id}.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if as_json:
        typer.echo(report_json(plan, result))
    else:
        output_console().print(report(plan, result))
    for remark in remarks(result, settings.kafka.topic(plan.into), plan.run_id):
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
