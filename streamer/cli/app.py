"""Every command of `callgauge` in one place, and the simplest ones: `context`, and the version."""

import json
import sys
from typing import Annotated, Final

import typer

from streamer.cli.doctor import DOCTOR_HELP, doctor
from streamer.cli.goals import goals_app
from streamer.cli.options import ArrivalOption, PathsArgument, with_example
from streamer.cli.quarantine import quarantine_app
from streamer.cli.report import REPORT_HELP, report
from streamer.cli.score import SCORE_HELP, score
from streamer.cli.service import DEMO_HELP, RUN_HELP, demo, run
from streamer.cli.topics import SCHEMA_HELP, schema, topics_app
from streamer.cli.traffic import REPLAY_HELP, SIMULATE_HELP, replay, simulate
from streamer.cli.transcript import TRANSCRIPT_HELP, transcript
from streamer.offline.contexts import contexts_of
from streamer.offline.screen import reading_progress, tell_refused
from streamer.version import installed_version

CONTEXT_HELP: Final = with_example(
    "Stream recorded calls through the engine, event by event, and print what it made of each: one line of JSON per "
    'call, {"id": ..., "context": {...}}.\n\nNo broker is needed. The context is EVA\'s, field by field.',
    "callgauge context calls.jsonl.gz > contexts.jsonl",
    "callgauge context records/1.1.2 --arrival 7",
)

app = typer.Typer(
    name="callgauge",
    help="Evaluates voice-agent calls while they run. `callgauge demo` shows it without any set-up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a fault nobody foresaw should look like one
    rich_markup_mode="rich",
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"callgauge {installed_version()}")
        raise typer.Exit


@app.callback()
def _callgauge(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def context(paths: PathsArgument, *, arrival: ArrivalOption = None) -> None:
    with reading_progress() as progress:
        for result in contexts_of(paths, arrival_seed=arrival, on_event=progress.event):
            progress.calls += 1
            sys.stdout.write(json.dumps({"id": result.conversation_id, "context": result.context}) + "\n")
            tell_refused(result.conversation_id, result.refused)
    sys.stdout.flush()


app.command(help=DEMO_HELP)(demo)
app.command(help=RUN_HELP)(run)
app.command(help=REPLAY_HELP)(replay)
app.command(help=SIMULATE_HELP)(simulate)
app.command(help=CONTEXT_HELP)(context)
app.command(help=SCORE_HELP)(score)
app.command(help=REPORT_HELP)(report)
app.command(help=TRANSCRIPT_HELP)(transcript)
app.add_typer(topics_app, name="topics")
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(goals_app, name="goals")
app.command(help=SCHEMA_HELP)(schema)
app.command(help=DOCTOR_HELP)(doctor)
