"""The command `context`: the `MetricContext` of each call."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import (
    PATHS_HELP,
    ArrivalOption,
    BootstrapOption,
    CallsOption,
    ConfigOption,
    PrefixOption,
    ProcessesOption,
    ServedOption,
    SinceADayOption,
    require_one_kind,
    since_in_words,
)
from streamer.terminal import print_document, quiet_libraries

app = typer.Typer(add_completion=False)


@app.command()
def context(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help=PATHS_HELP)] = None,
    *,
    arrival: ArrivalOption = None,
    processes: ProcessesOption = None,
    from_topics: CallsOption = None,
    since: SinceADayOption = None,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Prints the metric context of calls, in EVA's fields.

    The calls go through the engine event by event. Each gives one line of JSON, {"id": ...,
    "turns_by": ..., "context": {...}}. Where a simulated caller hears the call, turns_by is `eva`,
    and the context is that of EVA's own processor. Every other call has the turns that its bot
    heard, numbered as in its scores: turn 0 is the greeting, turn 1 begins with the caller's first
    words. turns_by is `bot` then, and `unknown` says why a field is missing, or known in part.

    A whole run of EVA is one PATH. Many calls are read on all cores; the lines are in the order of
    the calls, and the same as from one core. A call that cannot be read is named and left out, and
    the exit code is 1.

    With --from-topics it is a call of the topics as far as it has come, redacted by the settings.

    Examples:
        callgauge context calls.jsonl.gz > contexts.jsonl
        callgauge context output/my-run > contexts.jsonl
        callgauge context records/1.1.2 --arrival 7
        callgauge context --from-topics 9f2c41
    """
    require_one_kind(paths, from_topics, since, bootstrap, topic_prefix)
    if not from_topics:
        from streamer.cli.score import print_eva

        print_eva(paths or [], "context", arrival, processes)
        return
    from streamer.one_call import context_of
    from streamer.settings.listing import settings_from
    from streamer.time_bounds import moment_given

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    since_ms = None if since is None else moment_given(since)
    with quiet_libraries():
        for wanted in from_topics:
            print_document(
                asyncio.run(context_of(settings, wanted, since_ms, since_in_words(since), folder))
            )
