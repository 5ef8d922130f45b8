"""The command `context`: recorded calls through the engine, and EVA's metric context of each."""

import json
import sys

import typer

from streamer.cli.options import ArrivalOption, PathsArgument
from streamer.offline.contexts import contexts_of
from streamer.offline.screen import reading_progress, tell_refused

app = typer.Typer(add_completion=False)


@app.command()
def context(paths: PathsArgument, *, arrival: ArrivalOption = None) -> None:
    """Prints EVA's metric context of recorded calls.

    The calls go through the engine event by event. Each gives one line of JSON, {"id": ..., "context": {...}}; the
    context has EVA's fields. No broker is needed.

    Examples:
        callgauge context calls.jsonl.gz > contexts.jsonl
        callgauge context records/1.1.2 --arrival 7
    """
    with reading_progress() as progress:
        for result in contexts_of(paths, arrival_seed=arrival, on_event=progress.event):
            progress.calls += 1
            sys.stdout.write(json.dumps({"id": result.conversation_id, "context": result.context}) + "\n")
            tell_refused(result.conversation_id, result.refused)
    sys.stdout.flush()
