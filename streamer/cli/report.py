"""The command `report`: recorded calls through the live engine, as one HTML page."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from streamer.cli.options import (
    AgentOption,
    ConfigOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    PathsArgument,
    VerdictsOption,
    require_judge,
)
from streamer.facts import installed_version
from streamer.terminal import say

MOST_CALLS: Final = 500
"""Calls of one page: each takes some 100 kB in the browser."""
app = typer.Typer(add_completion=False)


@app.command()
def report(
    paths: PathsArgument,
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The page; a file there is replaced."),
    ] = Path("callgauge-report.html"),
    html: Annotated[Path | None, typer.Option("--html", hidden=True, help="The former name of --output.")] = None,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    verdicts: VerdictsOption = None,
    agent: AgentOption = None,
    config: ConfigOption = None,
) -> None:
    """Writes one HTML page about recorded calls.

    It shows who spoke when, how long the user waited in each turn and why, progress, scores and the texts. Calls with goals
    are compared with each other, as by `callgauge trials`. No broker is needed. The page is one file for any browser: it
    loads nothing and runs no script.

    Personal data is redacted in all texts, by the settings. Goals, judge and scores are those of `callgauge score`. A call that
    cannot be read is named and left out, and the exit code is 1.

    Examples:
        callgauge report sample
        callgauge report records/1.1.2 -o report.html
        callgauge report calls.jsonl.gz --goals goals/ -o report.html
    """
    from consumers.console.page.calls import ReportedCall
    from consumers.console.page.drawing import counted
    from consumers.engine.redaction.redactor import Redactor
    from streamer.offline.call_work import Done, found_calls, places_of, reading, score_each
    from streamer.offline.scoring import RecordedScoring, plan_from
    from streamer.recordings.reader import goals_for
    from streamer.report import page, reported_call, require_place, write_page
    from streamer.settings.listing import settings_from

    require_judge(verdicts, judge)
    place = html or output
    settings = settings_from(config)
    plan = plan_from(settings, goals_for(paths, goals), agent, asks_judge=judge is JudgeSwitch.ON)
    require_place(place)
    redactor = Redactor(settings.redaction)
    places = places_of(found_calls(paths))
    calls: list[ReportedCall] = []
    with reading(stopped="no page was written") as read:

        def take(done: Done[ReportedCall]) -> None:
            read.add(done)
            if done.result is not None:
                calls.append(done.result)

        def shape(scoring: RecordedScoring) -> ReportedCall:
            return reported_call(scoring, f"c{len(calls) + 1}", redactor)

        score_each(islice(places, MOST_CALLS), plan, shape, take, settings, read, verdicts=verdicts)
        left_out = sum(1 for _ in places)
    if not calls:
        read.require_all()
        say("There is no call to report, so no page was written.")
        raise typer.Exit(1)
    notes = [f"{counted(left_out, 'further call')} left out: a page has {MOST_CALLS} at most."] if left_out else []
    text = page(calls, notes, installed_version())
    write_page(place, text)
    say(f"Report of {counted(len(calls), 'call')}, {len(text.encode()):,} bytes: {place}")
    read.require_all()
