"""The command `topics`: the topic table, and the topics of a cluster."""

import asyncio
from typing import Annotated, Final

import typer

from streamer.cli.options import BootstrapOption, ConfigOption, JsonOption, PrefixOption
from streamer.terminal import output_console, plain_table, print_document, print_line, say

_WIDE_COLUMNS: Final = 180
"""Width at which no cell of the topic table breaks."""
app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def topics(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Shows the topic table; creates and checks topics.

    The table has every topic that is read or written, and its rules. Inputs may have any number of
    partitions, and producers may place their records by any hash of the key. Topics are for Kafka:
    `callgauge serve` has none, and needs none.

    Without a command it needs no broker.

    Examples:
        callgauge topics
        callgauge topics create --partitions 24 --replication-factor 3
        callgauge topics check
    """
    from rich.text import Text

    from schemas.topics import TOPICS
    from streamer.cluster.topic_admin import kept_text

    if context.invoked_subcommand is not None:
        return
    if as_json:
        print_document([topic._asdict() for topic in TOPICS], indent=2)
        return
    console = output_console()
    if console.width < _WIDE_COLUMNS:
        for topic in TOPICS:
            console.print(
                Text(topic.name, style="bold").append(
                    f": {topic.direction}, {topic.what}.", "not bold"
                )
            )
            console.print(
                f"    Key {topic.key}, value {topic.value}, partitions {topic.partitions}, kept "
                f"{kept_text(topic)}."
            )
        return
    table = plain_table("topic", "for", "key", "value", "partitions", "kept", "what")
    for topic in TOPICS:
        table.add_row(
            topic.name,
            topic.direction,
            topic.key,
            topic.value,
            topic.partitions,
            kept_text(topic),
            topic.what,
        )
    console.print(table)


@app.command()
def create(
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="N",
            min=1,
            max=10_000,
            help="Of every topic but sequencer; otherwise as many as events or scores have, or 4.",
        ),
    ] = None,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            metavar="N",
            min=1,
            max=100,
            help="Brokers that hold each record.",
        ),
    ] = 1,
    shards: Annotated[
        int,
        typer.Option(
            "--shards", metavar="N", min=1, max=1_000, help="Sequencers that are active at a time."
        ),
    ] = 1,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Creates the topics that do not exist yet. Existing topics stay as they are.

    scores has as many partitions as events, because the scores of a call are in the partition of
    its events. A later change breaks that for the calls that run at that time: choose a generous
    number. If one of the two is there with another number, no topic is made. Plan one
    sequencer for each 7,000 running calls: several share out the partitions of events.

    Example:
        callgauge topics create --partitions 24 --replication-factor 3
    """
    from consumers.engine.limits import needs_of
    from streamer.cluster.topic_admin import create_topics, report_faults, topic_states
    from streamer.settings.listing import settings_from

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    made = asyncio.run(
        create_topics(
            settings.kafka,
            needs=needs_of(settings.limits),
            partitions=partitions,
            replication_factor=replication_factor,
            shards=shards,
        )
    )
    for name, is_new in made.items():
        print_line(f"{name}: {'made' if is_new else 'was there'}")
    report_faults(asyncio.run(topic_states(settings.kafka)), (), settings.kafka)


@app.command()
def check(
    *,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Compares the topics on the broker with the topic table.

    It checks that they exist, their partitions, retention, cleanup, timestamps and sizes. Records
    must be kept longer than the longest call lasts (max_call_duration_ms and idle_ms of the
    settings).

    Exit code 1 when a topic breaks a rule; a warning alone gives 0. `callgauge doctor` checks more.

    Example:
        callgauge topics check --bootstrap kafka:9092
    """
    from rich.text import Text

    from consumers.engine.limits import needs_of
    from consumers.runtime.kafka.connection import topic_settings
    from schemas.topics import Severity, topic_faults
    from streamer.cluster.topic_admin import faults_of, report_faults, topic_states
    from streamer.settings.listing import settings_from

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    kafka = settings.kafka
    states = asyncio.run(topic_states(kafka))
    existing = [state.topic.name for state in states if state.partitions is not None]
    known = asyncio.run(topic_settings(kafka, existing)) if existing else {}
    faults = topic_faults(known, needs_of(settings.limits))
    rows = [(state, faults_of(state, faults)) for state in states]
    if as_json:
        listed = [
            {"topic": state.name, "partitions": state.partitions, "faults": told}
            for state, told in rows
        ]
        print_document(listed, indent=2)
    else:
        table = plain_table("topic", "partitions", "state")
        for state, told in rows:
            partitions = "-" if state.partitions is None else str(state.partitions)
            table.add_row(state.name, partitions, Text("\n".join(told) or "ok"))
        output_console().print(table)
    if hidden := [kafka.topic(name) for name in existing if name not in known]:
        say(
            "Retention and cleanup not checked: this user may not DescribeConfigs on "
            f"{', '.join(hidden)}."
        )
    report_faults(
        states, [fault for fault in faults if fault.severity is not Severity.WARNING], kafka
    )
