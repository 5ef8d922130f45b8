"""Checks by the newest records of the inputs whether callgauge understands what producers send, and whether agents report errors."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from schemas.closed_sets import InputSource
from schemas.events.codec import Misread, RefusedRecordError, decode, misread_of
from schemas.events.elevenlabs import AgentFailed
from schemas.events.envelope import read_envelope
from schemas.events.pipecat import ProcessorFailed
from streamer.operations.doctor.findings import Finding, Verdict, counted

MAX_KINDS: Final = 16
"""Kinds of records that one answer names for an input, the most frequent first."""


class Understanding:
    """Counts the newest records, and the ones among them that are not understood."""

    def __init__(self, source_by_topic: Mapping[str, InputSource]) -> None:
        """Starts without any record.

        Args:
            source_by_topic: The input of each topic, by its name on this cluster.
        """
        self._source_by_topic = source_by_topic
        self._read: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._misread: Counter[tuple[str, Misread]] = Counter()
        self._errors: Counter[str] = Counter()

    def look(self, record: Any) -> None:
        """Looks at one record as the broker has it."""
        topic = record.topic
        if record.value is None or topic not in self._source_by_topic:
            return
        self._read[topic] += 1
        try:
            event = decode(self._source_by_topic[topic], record.value, read_envelope(record.headers))
        except RefusedRecordError:
            self._refused[topic] += 1
            return
        self._errors[topic] += isinstance(event, AgentFailed | ProcessorFailed)
        misread = misread_of(event)
        if misread is not None:
            self._misread[topic, misread] += 1

    def findings(self) -> Iterator[Finding]:
        """Findings about records that are refused or not understood, and about errors of agents, by input. If everything is
        understood, one says so.
        """
        for topic, count in sorted(self._refused.items()):
            yield Finding(
                "records", Verdict.WARNING,
                f"{count} of the newest {counted(self._read[topic], 'record')} of {topic} cannot be read and go to quarantine",
                "`callgauge quarantine list` says why.",
            )  # fmt: skip
        for (topic, misread), count in self._misread.most_common(MAX_KINDS):
            yield Finding(
                "records", Verdict.WARNING,
                f"{count} of the newest {counted(self._read[topic], 'record')} of {topic} are not understood: {misread.what}",
                misread.what_to_do,
            )  # fmt: skip
        for topic, count in sorted((+self._errors).items()):
            yield Finding(
                "records", Verdict.WARNING,
                f"{count} of the newest {counted(self._read[topic], 'record')} of {topic} are errors that agents report",
                "The logs of the agents say what fails. `callgauge_agent_errors_total` counts these records.",
            )  # fmt: skip
        if self._read and not self._refused and not self._misread:
            yield Finding("records", Verdict.OK, f"the newest {counted(self._read.total(), 'record')} are understood")
