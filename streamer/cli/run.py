"""The command `run`: roles in one process, until a signal."""

from typing import Annotated

import typer

from schemas.closed_sets import ROLE_NAMES
from streamer.cli.options import BootstrapOption, ConfigOption, HttpPortOption, PrefixOption

app = typer.Typer(add_completion=False)


@app.command()
def run(
    *,
    roles: Annotated[
        str | None,
        typer.Option(
            "--roles",
            metavar="NAMES",
            help=f"On Kafka, which of {', '.join(ROLE_NAMES)}, separated "
            "by commas. Without it all, "
            "but history, measures, ingest and "
            "monitor only if they have a folder, a token, a secret or a key.",
        ),
    ] = None,
    http_port: HttpPortOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Runs the roles: sequencer, evaluator, console and others.

    On Kafka, one process runs all roles, or those of --roles: it puts events in order, writes
    scores, serves /metrics, and shows the page of calls. On one machine `callgauge serve` does the
    same without Kafka.

    The sequencer puts the events of all inputs into one order, the topic `events`; one is active,
    others stand by. The evaluator rebuilds calls from there and writes scores. The exporter turns
    scores into metrics. The judge asks a model the questions of the evaluator. Console serves the
    page of the calls that run; its address is printed. History keeps past calls if
    CALLGAUGE_HISTORY__FOLDER names a folder; `callgauge history --help` explains it. Measures calls
    your own functions on the rows of calls if CALLGAUGE_MEASURES__FOLDER names a folder. Ingest
    receives events over HTTP on port 8090: POST /events and OTLP with CALLGAUGE_INGEST__TOKEN,
    ElevenLabs' webhook with CALLGAUGE_INGEST__ELEVENLABS_SECRET; CALLGAUGE_INGEST__TENANTS_FILE
    names a TOML file with a table for each tenant. 202 means that Kafka has all events; 207 and 422
    name the refused ones; after 429 and 503 send the same again later.

    Monitor follows live calls of ElevenLabs agents; it needs CALLGAUGE_MONITOR__API_KEY, and runs
    in one process only. All roles run in one process until Ctrl-C or SIGTERM.

    /metrics has the metrics of all of them. /readyz says whether every role does its work, /healthz
    whether the process needs a restart; a broker that is down needs none. A role that fails after
    it has worked is started again, and the log says why.

    The first signal lets the roles finish, which may take 10 s; a second one ends the process
    immediately.

    Every setting is an environment variable, CALLGAUGE_ and its name, and a line of a TOML file.
    The command line wins over the environment, and the environment over the file. `callgauge
    settings` lists all of them.

    Examples:
        callgauge run --bootstrap kafka:9092
        CALLGAUGE_LIMITS__IDLE_MS=120000 callgauge run --roles evaluator
        CALLGAUGE_GOALS__FOLDER=goals OPENAI_API_KEY=... callgauge run
        callgauge run --config callgauge.toml
    """
    from streamer.roles.running import roles_named, run_roles
    from streamer.settings.listing import settings_from

    settings = settings_from(
        config, bootstrap=bootstrap, topic_prefix=topic_prefix, http_port=http_port
    )
    run_roles(settings, roles_named(roles, settings))
