"""The command `top`: the running calls of one's own topics, as the demo shows them."""

import asyncio
from functools import partial
from typing import Annotated

import typer

from schemas.closed_sets import SortKey
from streamer.cli.options import (
    SINCE_HELP,
    BootstrapOption,
    ConfigOption,
    CsvOption,
    ParquetOption,
    PrefixOption,
    ServedOption,
    wants_table,
)
from streamer.terminal import quiet_libraries

app = typer.Typer(add_completion=False)


@app.command()
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the table and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the calls as JSON and end.")
    ] = False,
    as_csv: CsvOption = False,
    parquet: ParquetOption = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only calls of this agent; may be given several times."),
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only calls of this tenant.")
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only calls in this environment.")
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="Only calls in trouble.")] = False,
    sort: Annotated[
        SortKey,
        typer.Option(
            help="The order: the worst first, the longest quiet, the slowest, the oldest, by agent."
        ),
    ] = "trouble",
    since: Annotated[str, typer.Option(metavar="WHEN", help=SINCE_HELP)] = "10m",
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows the running calls as a table, the worst first.

    The calls in trouble come first, the worst at the top, with the reason in words: the agent does
    not answer, the caller waits in silence, slow answers, a tool that fails, no progress,
    interruptions. Healthy calls follow as far as there is room; the others are counted by agent.
    The first line says how old the newest score is.

    It reads the topic scores from --since on, then every new record; with --folder those of
    `callgauge serve`. Calls that began earlier are in the table if they have a record since then. A
    call that is over stays for 20 s. No consumer group is used. Ctrl-C ends it.

    Without a terminal, a table is printed every 5 s.

    Examples:
        callgauge top
        callgauge top --bad --environment production
        callgauge top --once --since 1h --sort began
        callgauge top --bad --csv > trouble.csv
        callgauge top --json --bootstrap kafka:9092
        callgauge top --folder calls
    """
    from schemas.scores.running import WantedCalls
    from streamer.live_calls import Shows, print_json, print_once, print_rows, show_live, watch
    from streamer.settings.listing import settings_from
    from streamer.time_bounds import moment_given

    show: Shows = print_once if once else show_live
    if as_json:
        show = print_json
    if wants_table(as_csv, parquet, as_json):
        from streamer.tables import require_parquet

        if parquet is not None:
            require_parquet(parquet)
        show = partial(print_rows, parquet)
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    since_ms = moment_given(since)
    wanted = WantedCalls(
        frozenset(agent or ()),
        frozenset(tenant or ()),
        frozenset(environment or ()),
        only_bad=bad,
        sort=sort,
    )
    with quiet_libraries():
        asyncio.run(watch(settings, since_ms, wanted, show, folder))
