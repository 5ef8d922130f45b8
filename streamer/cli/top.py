"""The command `top`: the running calls of one's own topics, as the demo shows them."""

import asyncio
from typing import Annotated

import typer

from streamer.cli.options import SINCE_HELP, BootstrapOption, ConfigOption, PrefixOption
from streamer.terminal import quiet_libraries

app = typer.Typer(add_completion=False)


@app.command()
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the table and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the calls as JSON and end.")] = False,
    since: Annotated[str, typer.Option(metavar="WHEN", help=SINCE_HELP)] = "10m",
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows the running calls of your topics as a table.

    It reads the topic scores from --since on, then every new record. Calls that began earlier are in the table if they have a
    record since then. A call that is over stays for 20 s. No consumer group is used. Ctrl-C ends it.

    Without a terminal, a table is printed every 5 s.

    Examples:
        callgauge top
        callgauge top --once --since 1h
        callgauge top --json --bootstrap kafka:9092
    """
    from streamer.live_calls import watch
    from streamer.settings.listing import settings_from
    from streamer.time_bounds import moment_given

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    since_ms = moment_given(since)
    with quiet_libraries():
        asyncio.run(watch(settings, since_ms, once=once or as_json, as_json=as_json))
