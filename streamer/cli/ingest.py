"""The command `ingest`: the receiver of events alone, until a signal."""

import typer

from streamer.cli.options import BootstrapOption, ConfigOption, HttpPortOption, PrefixOption

app = typer.Typer(add_completion=False)


@app.command()
def ingest(
    *,
    http_port: HttpPortOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Receives events over HTTP: webhooks and POST /events.

    It listens on port 8090 (CALLGAUGE_INGEST__PORT) of this machine (CALLGAUGE_INGEST__HOST=0.0.0.0 is every network),
    and answers when Kafka has acknowledged. /metrics, /readyz and /healthz are on the port of --http-port. `callgauge run`
    starts it beside the other roles as soon as it has a secret or a token.

    POST /webhooks/elevenlabs takes ElevenLabs' post-call webhook, and needs the secret that ElevenLabs shows when the
    webhook is made: CALLGAUGE_INGEST__ELEVENLABS_SECRET, or a file that CALLGAUGE_INGEST__ELEVENLABS_SECRET_FILE names.

    POST /events takes events of any framework: one JSON object, an array, one object a line, or CloudEvents. It needs
    `Authorization: Bearer` with CALLGAUGE_INGEST__TOKEN or the token in CALLGAUGE_INGEST__TOKEN_FILE. 202 means that Kafka
    has all events; 207 and 422 name the refused lines; after 429 and 503 send the same again later.
    `callgauge events check` explains a file of events without sending it.

    CALLGAUGE_INGEST__TENANTS_FILE names a TOML file with a table for each tenant: its token, elevenlabs_secret and
    events_per_second. The webhook of a tenant is /webhooks/elevenlabs/TENANT.

    Examples:
        CALLGAUGE_INGEST__ELEVENLABS_SECRET=wsec_... callgauge ingest --bootstrap kafka:9092
        CALLGAUGE_INGEST__TOKEN=secret callgauge ingest
        curl -H 'Authorization: Bearer secret' --json @events.json localhost:8090/events
    """
    from streamer.roles.running import run_roles
    from streamer.settings.listing import settings_from

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix, http_port=http_port)
    run_roles(settings, ("ingest",))
