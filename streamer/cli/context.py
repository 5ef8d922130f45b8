"""The command `context`: recorded calls through the engine, and EVA's metric context of each."""

import typer

from streamer.cli.options import ArrivalOption, PathsArgument, ProcessesOption

app = typer.Typer(add_completion=False)


@app.command()
def context(paths: PathsArgument, *, arrival: ArrivalOption = None, processes: ProcessesOption = None) -> None:
    """Prints EVA's metric context of recorded calls.

    The calls go through the engine event by event. Each gives one line of JSON, {"id": ..., "context": {...}}; the
    context has EVA's fields. No broker is needed. A call without EVA's events has no turns in it; `callgauge score`
    measures them.

    A whole run of EVA is one PATH. Many calls are read on all cores; the lines are in the order of the calls, and the
    same as from one core. A call that cannot be read is named and left out, and the exit code is 1.

    Examples:
        callgauge context calls.jsonl.gz > contexts.jsonl
        callgauge context output/my-run > contexts.jsonl
        callgauge context records/1.1.2 --arrival 7
    """
    from streamer.cli.score import print_eva

    print_eva(paths, "context", arrival, processes)
