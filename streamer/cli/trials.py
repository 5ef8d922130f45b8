"""The command `trials`: repeated calls of each goal set, compared."""

import asyncio
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from consumers.runtime.errors import OperatorError
from streamer.cli.exit_codes import STOPPED_BY_SIGNAL
from streamer.cli.options import (
    PATHS_HELP,
    SINCE_HELP,
    AgentOption,
    BootstrapOption,
    ConfigOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    PrefixOption,
    ProcessesOption,
    VerdictsOption,
    moment_given,
    require_judge,
)
from streamer.cli.printing import found_calls, total_of
from streamer.cli.settings_options import settings_from
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

_SINCE: Final = "1d"

app = typer.Typer(add_completion=False)


class NothingToCompareError(OperatorError):
    """No call is a trial of a goal set; the text says why and what to do."""


@app.command()
def trials(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help=f"{PATHS_HELP} Files of score records, as `callgauge score` prints them, too."
        ),
    ] = None,
    *,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k",
            metavar="N",
            min=1,
            help="k of pass@k and pass^k; may be repeated. 1, 3 and 5 unless given; the success is that of 1.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    verdicts: VerdictsOption = None,
    agent: AgentOption = None,
    processes: ProcessesOption = None,
    from_topics: Annotated[
        bool, typer.Option("--from-topics", help="Compare past live calls, as the topic scores has them.")
    ] = False,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help=f"{SINCE_HELP} {_SINCE} unless given.")] = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Compares repeated calls: pass@k, judges, errors.

    A trial is one call. Calls with the same goal set, in the same version, are compared with each other: how many succeed,
    how far they get, pass@k (how likely one of k calls succeeds) and pass^k (how likely all of k calls succeed).

    Judges agree as often as a vote of the judge says what the majority of its verdict says. A call whose success nobody knows
    is a trial without a score: it counts in neither.

    Below the table are the errors: subgoals that are missed most, the turn in which calls stall (the first turn after their
    last progress), and tools that fail up to that turn; each with calls to look at.

    PATH holds recordings, which are scored as by `callgauge score`, or score records. With --from-topics, calls that closed
    since then are read from the topic scores in no consumer group, and console_url makes the links to their pages.

    Exit code 1 when something could not be read, when k is above the number of trials, or when there is nothing to compare;
    the other results are printed all the same.

    Examples:
        callgauge trials output/my-run --goals goals/
        callgauge trials output/my-run --goals goals/ --judge on --k 1 --k 5 --json > trials.json
        callgauge trials monday.jsonl tuesday.jsonl
        callgauge trials --from-topics --since 2h
    """
    _require_fitting(paths, since, bootstrap, topic_prefix, from_topics=from_topics)
    require_judge(verdicts, judge)
    if from_topics and (goals is not None or judge is JudgeSwitch.ON or agent is not None or processes is not None):
        raise typer.BadParameter("Live calls are scored already: leave out --goals, --judge, --agent and --processes.")
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    gathered = Trials()
    if from_topics:
        unread = _from_topics(settings, since or _SINCE, gathered)
    else:
        unread = _from_files(paths or [], settings, goals, judge, verdicts, agent, processes, gathered)
    is_complete = _print(gathered, k, as_json=as_json)
    if unread or not is_complete:
        raise typer.Exit(1)


def _require_fitting(
    paths: Sequence[Path] | None, since: str | None, bootstrap: str | None, prefix: str | None, *, from_topics: bool
) -> None:
    if from_topics and paths:
        raise typer.BadParameter("--from-topics reads live calls: leave the paths out, or leave --from-topics out.")
    if not from_topics and not paths:
        raise typer.BadParameter("Name recordings or files of score records, or use --from-topics.")
    if not from_topics and (since or bootstrap or prefix):
        raise typer.BadParameter("--since, --bootstrap and --topic-prefix are for --from-topics: leave them out.")


def _from_topics(settings: Settings, since: str, gathered: Trials) -> int:
    """Reads live calls; gives the number of records that could not be read."""
    since_ms = moment_given(since)
    with quiet_libraries(), _read_to_the_end(None, RECORDS) as progress:
        reading = read_past_trials(settings.kafka, since_ms, settings.console_url, gathered, progress.event)
        unreadable = asyncio.run(reading)
    if unreadable:
        say(f"{unreadable} records of a newer version, or of another program, were left out with their calls.")
    return unreadable


def _from_files(
    paths: Sequence[Path],
    settings: Settings,
    goals: Path | None,
    judge: JudgeSwitch,
    verdicts: Path | None,
    agent: str | None,
    processes: int | None,
    gathered: Trials,
) -> int:
    """Scores recordings and reads score records; gives the number of places that could not be read."""
    unread = 0
    files = [path for path in paths if holds_scores(path)]
    recorded = [path for path in paths if path not in files]
    found = found_calls(recorded)
    asks_judge = judge is JudgeSwitch.ON
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


def _print(gathered: Trials, wanted: Sequence[int] | None, *, as_json: bool) -> bool:
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
