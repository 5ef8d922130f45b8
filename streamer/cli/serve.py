"""The command `serve`: everything on this machine, in one process, without Kafka."""

from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import ConfigOption

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="PATH",
            help="Where calls are kept; the data folder of this user unless given.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65_535,
            help="Port of everything, 8070 unless given; 0 takes a free one.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on, 127.0.0.1 unless given; 0.0.0.0 is every network.",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Runs everything on this machine, without Kafka.

    One process and one port: pages of the calls at /, /metrics for Prometheus, POST /events for
    events of any framework, /v1/traces for OTLP, webhooks of ElevenLabs, and the API. It prints the
    address of the page, and a line that sends a first call.

    An acknowledged event is on the disk. After a crash the next start continues the calls that
    were open, and nothing counts twice. One process writes a folder.

    Events need a token, which is made at the first start and printed. Pages need none on this
    machine; at any other address they need the same token. `callgauge run` does all this on Kafka,
    for many machines.

    Examples:
        callgauge serve
        callgauge serve --folder calls --port 9000
        CALLGAUGE_INGEST__TOKEN=$(openssl rand -hex 16) callgauge serve --host 0.0.0.0
    """
    from streamer.roles.serving_command import run_serve
    from streamer.settings.listing import settings_from

    run_serve(settings_from(config), folder, host, port)
