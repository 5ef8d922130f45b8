"""The command `events`: what callgauge makes of events, before they are sent."""

from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import JsonOption
from streamer.terminal import print_document, print_line

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def events() -> None:
    """Checks events of a bot without sending them.

    Example:
        callgauge events check events.jsonl
    """


@app.command()
def check(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|-", help="Events, spans or calls, as for `score`; - reads standard input."
        ),
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Reads events as `score` and the other commands do, and prints what callgauge makes of them.

    It prints which events are understood, which are refused and why, and which results a call does
    not have, each with the event that is missing. Of a call with a simulated caller it says what
    EVA's rules miss, and what becomes of the call without it. No broker is needed, and nothing is
    sent.

    Exit code 1 when an event is refused or not understood, a time looks like seconds, or a stage
    took longer than the sounds allow.

    Examples:
        callgauge events check events.jsonl
        my-bot --print-events | callgauge events check -
    """
    from streamer.event_check import finding_lines, findings_document, findings_in

    findings = findings_in(path)
    if as_json:
        print_document(findings_document(findings), indent=2)
    else:
        for line in finding_lines(findings):
            print_line(line)
    faults = len(findings.refused) + findings.not_understood.total() + len(findings.in_seconds)
    if faults or findings.contradicted:
        raise typer.Exit(1)
