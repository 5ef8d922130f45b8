"""The commands about the contract: `topics` and `schema`."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from consumers.evaluator.preflight import needs_of
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.topic_settings import topic_settings
from schemas.topic_rules import Severity, TopicFault, topic_faults
from schemas.topics import SCHEMA_NAMES, TOPICS, Topic, json_schema
from schemas.units import DAY_MS
from streamer.cli.options import BootstrapOption, ConfigOption, PrefixOption, settings_from, with_example
from streamer.cluster.topic_admin import TopicState, create_topics, topic_states
from streamer.terminal import say

TOPICS_HELP: Final = with_example(
    "Show the topic table: every topic that is read or written, and the rules it must obey. Producers place records by "
    "murmur2 of the key, as Java and aiokafka do; with librdkafka (confluent-kafka, Go, Node) set "
    "partitioner=murmur2_random.\n\nWithout a command it needs no broker.",
    "callgauge topics",
    "callgauge topics create --partitions 24 --replication-factor 3",
    "callgauge topics check",
)
CREATE_HELP: Final = with_example(
    "Make the topics that are not there yet. Existing ones are left as they are.\n\nAll get the same number of "
    "partitions, so that everything about a call has one partition number. Changing it later breaks that for calls "
    "that run then: be generous.",
    "callgauge topics create --partitions 24 --replication-factor 3",
)
CHECK_HELP: Final = with_example(
    "Compare the topics on the broker with the table: whether they are there, their partitions, how long they keep "
    "records against the longest call (max_call_duration_ms and idle_ms of the settings), cleanup, timestamps and "
    "sizes.\n\nExit code 1 when one is not as it must be; a warning alone is none. `callgauge doctor` looks at more.",
    "callgauge topics check --bootstrap kafka:9092",
)
SCHEMA_HELP: Final = with_example(
    "Print the JSON Schema of a record type; without a name, list the names.\n\nAn input record's key is the conversation "
    "id, and its partition murmur2 of the key, as Java and aiokafka place it; with librdkafka (confluent-kafka, Go, Node) "
    "set partitioner=murmur2_random.",
    "callgauge schema",
    "callgauge schema score > score.schema.json",
)

_WIDE_COLUMNS: Final = 180
"""Width at which no cell of the topic table is broken: what a file or a pipe gets."""

topics_app = typer.Typer(help=TOPICS_HELP, invoke_without_command=True)


@topics_app.callback()
def _topics(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    console = _console()
    if console.width < _WIDE_COLUMNS:
        for topic in TOPICS:
            console.print(f"[bold]{topic.name}[/bold]: {topic.direction}, {topic.what}.")
            console.print(
                f"    Key {topic.key}, value {topic.value}, partitions {topic.partitions}, kept {_kept(topic)}."
            )
        return
    table = _table("topic", "for", "key", "value", "partitions", "kept", "what")
    for topic in TOPICS:
        table.add_row(topic.name, topic.direction, topic.key, topic.value, topic.partitions, _kept(topic), topic.what)
    console.print(table)


@topics_app.command(help=CREATE_HELP)
def create(
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, max=10_000, help="Of every topic.")
    ] = 4,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", metavar="N", min=1, max=100, help="Brokers that hold each record.")
    ] = 1,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    made = asyncio.run(create_topics(settings.kafka, partitions=partitions, replication_factor=replication_factor))
    for name, is_new in made.items():
        typer.echo(f"{name}: {'made' if is_new else 'was there'}")
    _report(asyncio.run(topic_states(settings.kafka)), (), settings.kafka)


@topics_app.command(help=CHECK_HELP)
def check(bootstrap: BootstrapOption = None, topic_prefix: PrefixOption = None, config: ConfigOption = None) -> None:
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    kafka = settings.kafka
    states = asyncio.run(topic_states(kafka))
    existing = [state.topic.name for state in states if state.partitions is not None]
    known = asyncio.run(topic_settings(kafka, existing)) if existing else {}
    faults = topic_faults(known, needs_of(settings.limits))
    table = _table("topic", "partitions", "state")
    for state in states:
        told = [state.problem] if state.problem else []
        told += [_told(fault) for fault in faults if fault.topic == state.topic.name]
        partitions = "-" if state.partitions is None else str(state.partitions)
        table.add_row(state.name, partitions, "\n".join(told) or "ok")
    _console().print(table)
    if hidden := [kafka.topic(name) for name in existing if name not in known]:
        say(f"Retention and cleanup not checked: this user may not DescribeConfigs on {', '.join(hidden)}.")
    _report(states, [fault for fault in faults if fault.severity is not Severity.WARNING], kafka)


def schema(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A record type, for example score.")] = None,
) -> None:
    if name is None:
        typer.echo("\n".join(SCHEMA_NAMES))
    elif name in SCHEMA_NAMES:
        typer.echo(json.dumps(json_schema(name), indent=2))
    else:
        raise typer.BadParameter(f"{name!r} is no record type; there are {', '.join(SCHEMA_NAMES)}.")


def _report(states: tuple[TopicState, ...], faults: Sequence[TopicFault], kafka: KafkaSettings) -> None:
    """Ends with exit code 1 when a topic is not as it must be."""
    told = [f"{state.name} {state.problem}" for state in states if state.problem]
    told += [f"{kafka.topic(fault.topic)} needs {fault.setting}" for fault in faults]
    if told:
        say(f"Not as it must be: {'; '.join(told)}.")
        raise typer.Exit(1)


def _told(fault: TopicFault) -> str:
    start = "warning: " if fault.severity is Severity.WARNING else ""
    return f"{start}{fault.seen}. Set {fault.setting}."


def _kept(topic: Topic) -> str:
    if topic.cleanup_policy == "compact":
        return "newest of each key"
    return "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms // DAY_MS} days"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE_COLUMNS)
