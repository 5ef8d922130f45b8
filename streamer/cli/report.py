"""The command `report`: recorded calls through the live engine, as one HTML page."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streamer.cli.options import (
    PATHS_HELP,
    AgentOption,
    BootstrapOption,
    CallsOption,
    ConfigOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    PrefixOption,
    ServedOption,
    SinceADayOption,
    VerdictsOption,
    require_judge,
    require_one_kind,
    since_in_words,
)
from streamer.facts import installed_version
from streamer.terminal import quiet_libraries, say

if TYPE_CHECKING:  # brought when the command runs
    from consumers.view.calls import ReportedCall
    from streamer.settings.all_settings import Settings

MOST_CALLS: Final = 500
"""Calls of one page: each takes some 100 kB in the browser."""
app = typer.Typer(add_completion=False)


@app.command()
def report(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help=PATHS_HELP)] = None,
    *,
    from_topics: CallsOption = None,
    since: SinceADayOption = None,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The page; a file there is replaced."),
    ] = Path("callgauge-report.html"),
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    verdicts: VerdictsOption = None,
    agent: AgentOption = None,
    config: ConfigOption = None,
) -> None:
    """Writes one HTML page about recorded calls.

    It shows who spoke when, how long the caller waited in each turn and why, goals, scores and the
    texts. Calls with goals are compared with each other, as by `callgauge trials`. No broker is
    needed. The page is one file for any browser: it loads nothing and runs no script.

    Personal data is redacted in all texts, by the settings. Goals, judge and scores are those of
    `callgauge score`. A call that cannot be read is named and left out, and the exit code is 1.

    With --from-topics the page is about calls of the topics, as far as they have come: their events
    are read there as `callgauge call` does, and their scores are those of the evaluator.

    Examples:
        callgauge report sample
        callgauge report records/1.1.2 -o report.html
        callgauge report calls.jsonl.gz --goals goals/ -o report.html
        callgauge report --from-topics 9f2c41 -o report.html
    """
    from consumers.engine.redaction.redactor import Redactor
    from consumers.view.words import counted
    from streamer.offline.call_work import Done, found_calls, places_of, reading, score_each
    from streamer.offline.own_values import OwnMeasures
    from streamer.offline.scoring import RecordedScoring, plan_from
    from streamer.recordings.reader import goals_for
    from streamer.report import page
    from streamer.result_file import require_place
    from streamer.settings.listing import settings_from
    from streamer.summaries import reported_call

    require_judge(verdicts, judge)
    require_one_kind(paths, from_topics, since, bootstrap, topic_prefix)
    if from_topics and (goals is not None or judge is JudgeSwitch.ON or agent is not None):
        raise typer.BadParameter(
            "Calls of the topics are scored already: leave out --goals, --judge and --agent."
        )
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if from_topics:
        require_place(output)
        live = _of_topics(settings, from_topics, since, folder)
        _write(output, page(live, [], installed_version()), len(live))
        return
    paths = paths or []
    plan = plan_from(settings, goals_for(paths, goals), agent, asks_judge=judge is JudgeSwitch.ON)
    require_place(output)
    redactor = Redactor(settings.redaction)
    places = places_of(found_calls(paths))
    calls: list[ReportedCall] = []
    own = OwnMeasures(settings.measures)
    with reading(stopped="no page was written") as read:

        def collect(done: "Done[ReportedCall]") -> None:
            read.add(done)
            if done.result is not None:
                calls.append(done.result)

        def shape(scoring: RecordedScoring) -> "ReportedCall":
            return reported_call(scoring, f"c{len(calls) + 1}", redactor, own.of(scoring))

        score_each(
            islice(places, MOST_CALLS), plan, shape, collect, settings, read, verdicts=verdicts
        )
        left_out = sum(1 for _ in places)
    if not calls:
        read.require_all()
        say("There is no call to report, so no page was written.")
        raise typer.Exit(1)
    notes = (
        [f"{counted(left_out, 'further call')} left out: a page has {MOST_CALLS} at most."]
        if left_out
        else []
    )
    _write(output, page(calls, notes, installed_version()), len(calls))
    read.require_all()


def _write(place: Path, text: str, calls: int) -> None:
    from consumers.view.words import counted
    from streamer.result_file import written_whole

    with written_whole(place) as beside:
        beside.write_text(text, encoding="utf-8")
    say(f"Report of {counted(calls, 'call')}, {len(text.encode()):,} bytes: {place}")


def _of_topics(
    settings: "Settings", ids: Sequence[str], since: str | None, folder: Path | None
) -> "list[ReportedCall]":
    from streamer.one_call import the_call
    from streamer.time_bounds import moment_given

    since_ms = None if since is None else moment_given(since)
    calls: list[ReportedCall] = []
    with quiet_libraries():
        for number, wanted in enumerate(ids[:MOST_CALLS], 1):
            found = asyncio.run(the_call(settings, wanted, since_ms, since_in_words(since), folder))
            for sentence in found.remarks:
                say(f"Call {found.rows.call.conversation_id}: {sentence}")
            calls.append(found.reported(f"c{number}"))
    return calls
