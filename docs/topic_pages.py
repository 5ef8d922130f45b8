"""The topics of the topic table with who reads and writes them: as a table, and as an AsyncAPI
document, which FastStream makes.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import yaml
from faststream.specification import AsyncAPI
from prometheus_client import CollectorRegistry
from pydantic import WithJsonSchema

from consumers.engine.redaction.redactor import Redactor
from consumers.exporter.service import Exporter
from consumers.exporter.settings import ExporterSettings
from consumers.judge.service import JudgeWorker
from consumers.judge.settings import JudgeSettings
from consumers.measures.files import MeasureSettings
from consumers.measures.service import MeasuresRole
from consumers.runtime.kafka.connection import READ, WRITE, KafkaSettings
from consumers.runtime.kafka.polling import GroupReader
from consumers.runtime.registry import Instruments
from schemas.closed_sets import ROLE_NAMES
from schemas.json_schemas import ROWS, TYPES
from schemas.topics import TOPICS, Topic, duration
from streamer.cluster.facts import needs_of
from streamer.facts import installed_version
from streamer.one_call import context_in_topics
from streamer.roles.transcript_files import TranscriptFiler, TranscriptFiles
from streamer.settings.all_settings import Settings

_TYPES_BESIDE: Final = {
    "pipecat.events": ("control-event",),
    "audit.events": ("control-event",),
    "elevenlabs.events": ("agent-event", "agent-record", "control-event"),
    "scores": ("call-row", "goals-row"),
    "events": (
        *(
            "pipecat-event",
            "simulator-event",
            "agent-event",
            "agent-record",
            "audit-event",
            "control-event",
        ),
        *("judge-verdict", "tick"),
    ),
}
"""Types of records that a topic has besides the one of the topic table."""
_COMMANDS: Final = {
    ("annotations", WRITE): ("console", "`callgauge call`", "`callgauge history forget`"),
    ("annotations", READ): ("`callgauge call`", "`callgauge report`"),
    ("words", READ): ("`callgauge call`", "`report --from-topics`"),
    ("scores.own", READ): ("`callgauge call`", "`report --from-topics`"),
    ("events", READ): (
        "`callgauge call`",
        "`context` and `replay --from-topics`",
        "`quarantine replay`",
    ),
}
"""Other programs that do this with a topic. The console asks for the right only at the first label,
so it is none of its needs.
"""
_KAFKA: Final = KafkaSettings(bootstrap_servers="localhost")
"""The server that the document names."""


def topic_lines() -> Iterator[str]:
    """The lines of the table."""
    yield from (
        "| topic | what is in it | key | value | written by | read by | kept for |",
        "|---|---|---|---|---|---|---|",
    )
    for topic in TOPICS:
        values = ", ".join(f"`{name}`" if name in TYPES else name for name in _values(topic))
        writers, readers = _roles(topic, WRITE), _roles(topic, READ)
        kept = (
            "ever, the newest of each key"
            if topic.cleanup_policy == "compact"
            else duration(topic.retention_ms)
        )
        yield (
            f"| `{topic.name}` | {topic.what} | {topic.key} | {values} | {writers} | {readers} | "
            f"{kept} |"
        )


def asyncapi() -> str:
    """The AsyncAPI document, as YAML. callgauge receives inputs and goal sets, and sends the rest.

    What roles read with FastStream is shown by the very subscribers that read it, as channels named
    `topic:role`: FastStream keeps one operation of a channel. What is written, and what aiokafka
    reads, FastStream does not know, so the topic table declares it.
    """
    broker = _KAFKA.broker("topics")
    for topic in TOPICS:
        message = _either([_shown(name) for name in _values(topic) if name in TYPES])
        if topic.direction == "output":
            broker.publisher(topic.name, schema=message, title=topic.name)
        else:
            broker.subscriber(topic.name, title=topic.name)(_taking(message))
    specification = AsyncAPI(
        broker,
        *(reader.broker for reader in asyncio.run(_readers())),
        title="callgauge",
        version=installed_version(),
        description="The topics of callgauge.",
    )
    document = _referring(yaml.safe_load(specification.to_specification().to_yaml()))
    document["components"]["schemas"] |= _components()
    about = {topic.name: _description(topic) for topic in TOPICS}
    for channel in document["channels"].values():
        channel["description"] = about[channel["address"]]
    for message in document["components"]["messages"].values():
        del message["correlationId"]  # FastStream's own header, which our records do not have
    return yaml.safe_dump(
        document, allow_unicode=True, width=120
    )  # sorted: FastStream's order differs between processes


async def _readers() -> tuple[GroupReader[Any], ...]:
    """The FastStream readers of the roles. They can be made only while an event loop runs."""
    instruments = Instruments(CollectorRegistry(), ["exporter", "judge", "evaluator"])
    measures = MeasuresRole(
        _KAFKA,
        MeasureSettings(),
        instruments,
        group_id="",
        redactor=Redactor(),
        context_of=partial(context_in_topics, Settings()),
    )
    return (
        Exporter(_KAFKA, ExporterSettings(), instruments).reader,
        JudgeWorker(_KAFKA, JudgeSettings(), instruments, group_id="").reader,
        TranscriptFiler(_KAFKA, "", TranscriptFiles(Path(), packs=False), instruments).reader,
        measures.reader,
    )


def _description(topic: Topic) -> str:
    return (
        f"{topic.what[:1].upper()}{topic.what[1:]}. Key: {topic.key}. Written by: "
        f"{_roles(topic, WRITE)}. Read by: {_roles(topic, READ)}. Partitions: {topic.partitions}."
    )


def _values(topic: Topic) -> tuple[str, ...]:
    beside = _TYPES_BESIDE.get(topic.name, ())
    return beside if beside and topic.value not in TYPES else (topic.value, *beside)


def _roles(topic: Topic, operation: str) -> str:
    """The roles that do this with the topic if everything is switched on, and who does
    it outside.
    """
    settings = Settings(
        goals={"reads_topic": True, "asks_judge": True},
        transcripts={"folder": "transcripts"},
        measures={"folder": "measures"},
    )
    roles: list[str] = [
        role
        for role in ROLE_NAMES
        if operation in needs_of([role], settings).operations.get(topic.name, ())
    ]
    roles += _COMMANDS.get((topic.name, operation), ())
    is_yours = topic.direction == "input" and topic.name in _TYPES_BESIDE
    if operation == WRITE and (
        is_yours or (topic.direction == "reference" and topic.value in TYPES)
    ):
        roles.append("your producers")
    return ", ".join(roles) or ("none" if operation == WRITE else "your own consumers")


_COMPONENT: Final = "#/components/schemas/{name}"
_OF_A_ROW: Final = "x-row"


def _shown(name: str) -> Any:
    """The type of a message for FastStream, which knows no structs: of a row, a note that
    `_referring` replaces. pydantic would look for a reference among its own schemas.
    """
    if name not in ROWS:
        return TYPES[name]
    return Annotated[dict[str, Any], WithJsonSchema({_OF_A_ROW: TYPES[name].__name__})]


def _referring(part: Any) -> Any:
    """A part of the document, with references to what `_components` adds."""
    if isinstance(part, list):
        return [_referring(each) for each in part]
    if not isinstance(part, dict):
        return part
    if _OF_A_ROW in part:
        return {"$ref": _COMPONENT.format(name=part[_OF_A_ROW])}
    return {name: _referring(each) for name, each in part.items()}


def _components() -> dict[str, Any]:
    """The schemas of the rows and of their parts."""
    types = [TYPES[name] for name in sorted(ROWS)]
    _, components = msgspec.json.schema_components(types, ref_template=_COMPONENT)
    return dict(components)


def _either(types: list[Any]) -> Any:
    either: Any = types[0] if types else bytes
    for each in types[1:]:
        either = either | each
    return either


def _taking(message: Any) -> Any:
    """A handler of such messages, as FastStream reads it."""

    async def take(message: Any) -> None: ...

    take.__annotations__["message"] = message
    return take
