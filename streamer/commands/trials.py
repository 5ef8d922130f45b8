"""The work of the command `trials`: gathers trials from files or topics, and prints the comparison."""

import asyncio
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from consumers.runtime.process import OperatorError
from streamer.commands.moments import moment_given
from streamer.commands.printing import found_calls, total_of
from streamer.exit_codes import STOPPED_BY_SIGNAL
from streamer.offline.scored_recordings import plan_from
from streamer.offline.screen import EVENTS, RECORDS, ReadingProgress, reading_progress
from streamer.operations.repeated_calls.past import read_past_trials
from streamer.operations.repeated_calls.recordings import ReadCall, TrialPlan, trials_with_judge, trials_without_judge
from streamer.operations.repeated_calls.score_files import holds_scores, read_score_file
from streamer.quiet_libraries import quiet_libraries
from streamer.recordings.goals import goals_for
from streamer.report.drawing.numbers import counted
from streamer.settings.all_settings import Settings
from streamer.terminal import output_console, safe, say
from streamer.trials.call_folds import Trials
from streamer.trials.comparison import compared
from streamer.trials.results import error_lines, fitting, remarks, shown, trials_json, trials_table


class NothingToCompareError(OperatorError):
    """No call is a trial of a goal set; the text says why and what to do."""


def from_past_calls(settings: Settings, since: str, gathered: Trials) -> int:
    """Reads live calls; gives the number of records that could not be read."""
    since_ms = moment_given(since)
    with quiet_libraries(), _read_to_the_end(None, RECORDS) as progress:
        reading = read_past_trials(settings.kafka, since_ms, settings.console_url, gathered, progress.event)
        unreadable = asyncio.run(reading)
    if unreadable:
        say(f"{unreadable} records of a newer version, or of another program, were left out with their calls.")
    return unreadable


def from_files(
    paths: Sequence[Path],
    settings: Settings,
    goals: Path | None,
    verdicts: Path | None,
    agent: str | None,
    processes: int | None,
    gathered: Trials,
    *,
    asks_judge: bool,
) -> int:
    """Scores recordings and reads score records; gives the number of places that could not be read."""
    unread = 0
    files = [path for path in paths if holds_scores(path)]
    recorded = [path for path in paths if path not in files]
    found = found_calls(recorded)
    plan = TrialPlan(plan_from(settings, asks_judge=asks_judge), goals_for(recorded, goals), agent)
    with _read_to_the_end(total_of(found)) as progress:

        def take(call: ReadCall) -> None:
            nonlocal unread
            for sentence in call.sentences:
                say(sentence)
            unread += not call.is_read
            if call.is_call:
                gathered.add(call.trial)
                progress.call(call.events)

        for file in files:
            for sentence in read_score_file(file, gathered):
                say(sentence)
                unread += 1
        if asks_judge and found:
            trials_with_judge(found, plan, settings, verdicts, take, progress.event)
        else:
            for call in trials_without_judge(found, plan, processes):
                take(call)
    return unread


@contextmanager
def _read_to_the_end(total: int | None, counted: str = EVENTS) -> Iterator[ReadingProgress]:
    """A bar; a signal ends the command without a comparison, which would be one of other trials."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with reading_progress(total, counted) as progress:
        try:
            yield progress
        except KeyboardInterrupt:
            say(f"Stopped after {progress.events} {counted}: nothing was compared.")
            raise typer.Exit(STOPPED_BY_SIGNAL) from None


def print_comparison(gathered: Trials, wanted: Sequence[int] | None, *, as_json: bool) -> bool:
    """Prints the comparison; returns whether it has everything requested."""
    if not gathered.found:
        raise NothingToCompareError(_nothing(gathered))
    groups = compared(gathered.found)
    ks = fitting(groups, wanted)
    if as_json:
        typer.echo(json.dumps(trials_json(groups, ks, gathered.left_out), ensure_ascii=False))
    else:
        output_console().print(trials_table(groups, shown(ks, wanted)))
        for line in error_lines(groups):
            typer.echo(safe(line))
    for sentence in remarks(groups, wanted):
        say(safe(sentence))
    if gathered.left_out:
        say(f"Left out: {_left_out(gathered)}.")
    return all(k <= len(group.known) for group in groups for k in wanted or ())


def _nothing(gathered: Trials) -> str:
    seen = _left_out(gathered) or "no call at all"
    return (
        f"There is nothing to compare: expected closed calls with goals; seen: {seen}. Nothing was printed. Give recordings their "
        "goals with --goals, live calls with goals.folder or goals.reads_topic; with --from-topics look further back with --since."
    )


def _left_out(gathered: Trials) -> str:
    return ", ".join(f"{counted(count, 'call')} {reason}" for reason, count in gathered.left_out.items())
