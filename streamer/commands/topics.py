"""The work of the command `topics`: the topic table, and the faults of topics."""

from collections.abc import Sequence

import typer
from rich.table import Table

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.topics import Severity, Topic, TopicFault
from schemas.units import DAY_MS, HOUR_MS
from streamer.cluster.topic_admin import TopicState
from streamer.terminal import say


def report_faults(states: tuple[TopicState, ...], faults: Sequence[TopicFault], kafka: KafkaSettings) -> None:
    """Ends with exit code 1 when a topic is not as it must be."""
    faulty = [f"{state.name} {state.problem}" for state in states if state.problem]
    faulty += [f"{kafka.topic(fault.topic)} needs {fault.setting}" for fault in faults]
    if faulty:
        say(f"Not as it must be: {'; '.join(faulty)}.")
        raise typer.Exit(1)


def faults_of(state: TopicState, faults: Sequence[TopicFault]) -> list[str]:
    """The faults of one topic in words, each with its remedy."""
    missing = [state.problem] if state.problem else []
    return [*missing, *(_remedy(fault) for fault in faults if fault.topic == state.topic.name)]


def _remedy(fault: TopicFault) -> str:
    start = "warning: " if fault.severity is Severity.WARNING else ""
    return f"{start}{fault.seen}. Set {fault.setting}."


def kept_text(topic: Topic) -> str:
    """How long a topic keeps its records, in words."""
    if topic.cleanup_policy == "compact":
        return "newest of each key"
    if 0 <= topic.retention_ms < DAY_MS:
        return f"{topic.retention_ms // HOUR_MS} h"
    return "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms // DAY_MS} days"


def topic_table(*columns: str) -> Table:
    """An empty table with these columns."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
