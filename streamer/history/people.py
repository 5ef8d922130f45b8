"""Labels and notes of people, and deletion on request, as commands write them to the topic
`annotations`.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import typer
from aiokafka.errors import KafkaError

from consumers.engine.redaction.redactor import Redactor
from consumers.history.annotations import FromPeople
from consumers.history.search import CallSearch, Condition
from consumers.history.settings import MAX_RETENTION_DAYS
from consumers.history.sqlite import Batch, FolderInUseError, SqliteHistory
from consumers.runtime.kafka.connection import WRITE, KafkaSettings, Needs, require_access
from consumers.runtime.process import OperatorError, SetupError
from consumers.view.words import counted
from schemas.annotations import Annotation, AnyAnnotation, ForgottenTenant
from schemas.rows import Labels
from schemas.topics import ANNOTATIONS_TOPIC, SCORES_TOPIC, TOPICS, TRANSCRIPTS_TOPIC, WORDS_TOPIC
from schemas.units import DAY_MS
from streamer.history.said import annotation

ANNOTATE_NEEDS: Final = Needs({ANNOTATIONS_TOPIC: frozenset({WRITE})})
"""The rights to label a call, or to have one forgotten."""
WAIT_SECONDS: Final = 60.0
"""How long a command waits until the role that writes a folder has deleted a call there."""
LOOK_SECONDS: Final = 0.2


async def annotate(
    kafka: KafkaSettings,
    redactor: Redactor,
    conversation_id: str,
    by: str,
    label: str | None,
    note: str | None,
    labels: Labels,
    *,
    withdraws: bool,
) -> Annotation:
    """Writes what a person says of a call now to the topic, and returns it.

    Raises:
        SetupError: The label, the note or the name of the person does not fit.
        KafkaUnreachableError: No broker answers, or a right is missing.
        TopicsUnfitError: There is no such topic.
    """
    said = annotation(by, label, note, labels, redactor, withdraws=withdraws)
    await publish(kafka, [(conversation_id, said)])
    return said


async def publish(kafka: KafkaSettings, said: Sequence[tuple[str, AnyAnnotation | None]]) -> None:
    """Writes records to the topic, each with its key; None is a call that is to be forgotten.
    Returns when the broker has them.

    Raises:
        KafkaUnreachableError: No broker answers, or a right is missing.
        TopicsUnfitError: There is no such topic.
    """
    await require_access(kafka, ANNOTATE_NEEDS)
    try:
        async with kafka.producer("annotations") as producer:
            for key, value in said:
                await producer.send_and_wait(
                    kafka.topic(ANNOTATIONS_TOPIC),
                    None if value is None else value.model_dump_json().encode(),
                    key=key.encode(),
                )
    except KafkaError as error:
        raise kafka.unreachable(error) from error


# Deletion.


def require_consent(what: str, *, is_agreed: bool) -> None:
    """Asks before calls are deleted.

    Raises:
        SetupError: The answer is no, or there is no terminal to answer at.
    """
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise SetupError(
            f"This deletes {what} for good. Nothing was deleted: add --yes to delete without a question."
        )
    if not typer.confirm(f"Delete {what} for good?", err=True):
        raise SetupError("Nothing was deleted.")


class Forgetting(NamedTuple):
    """What is to be forgotten: calls by their ids, or all calls of a tenant up to now.

    Attributes:
        conversations: Ids of calls.
        tenant: The tenant; None for none.
        at_ms: Now, in epoch ms.
    """

    conversations: Sequence[str]
    tenant: str | None
    at_ms: int

    def require_fitting(self) -> None:
        """Refuses what would forget nothing, or calls that were not meant.

        Raises:
            SetupError: There is nothing to forget, an id is empty, or the tenant is none.
        """
        if not self.conversations and self.tenant is None:
            raise SetupError(
                "Give --conversation ID or --tenant NAME: without one there is nothing to forget."
            )
        if "" in self.conversations or self.tenant in {"", "unknown"}:
            raise SetupError(
                "A call needs its whole id, and a tenant its name: `unknown` stands for all calls "
                "that name none. Nothing was deleted."
            )

    @property
    def in_words(self) -> str:
        """What is to be forgotten, for a sentence."""
        calls = [f"{counted(len(self.conversations), 'call')} by id"] if self.conversations else []
        tenants = [] if self.tenant is None else [f"the calls of the tenant {self.tenant}"]
        return " and ".join((*calls, *tenants))

    def records(self) -> list[tuple[str, ForgottenTenant | None]]:
        """The records of `annotations` that say so."""
        return [
            *((each, None) for each in self.conversations),
            *((each.tenant, each) for each in self._tenants()),
        ]

    def calls_in(self, store: SqliteHistory) -> Iterator[str]:
        """The calls of these that a store has."""
        yield from (each for each in self.conversations if store.has(each))
        if self.tenant is not None:
            of_tenant = CallSearch(
                0, self.at_ms, [Condition("labels.tenant", "=", self.tenant)], most=None
            )
            yield from (str(name) for (name,) in store.values(of_tenant, ["conversation_id"]))

    def delete_in(self, store: SqliteHistory) -> None:
        """Deletes them in a store that this process writes."""
        store.write(
            Batch([], [], {}, FromPeople(forgotten=self.conversations, tenants=self._tenants()))
        )

    def _tenants(self) -> list[ForgottenTenant]:
        if self.tenant is None:
            return []
        return [ForgottenTenant(kind="forgotten_tenant", at_ms=self.at_ms, tenant=self.tenant)]


def left_in_topics() -> str:
    """How far topics allow a deletion, for a person: Kafka deletes by age, and no single record."""
    days = {topic.name: topic.retention_ms // DAY_MS for topic in TOPICS}
    return (
        "Kafka cannot delete single records: what its topics have of the calls goes when it is old "
        f"enough, if `callgauge topics create` made them after {days[WORDS_TOPIC]} days of "
        f"{WORDS_TOPIC} and after {days[SCORES_TOPIC]} of {SCORES_TOPIC} and {TRANSCRIPTS_TOPIC}."
    )


def calls_in(folder: Path, what: Forgetting) -> int:
    """How many of these calls a folder has.

    Raises:
        HistoryFolderError: The folder cannot be read.
    """
    store = SqliteHistory(folder)
    try:
        return sum(1 for _ in what.calls_in(store))
    finally:
        store.close()


def forget_in(folder: Path, what: Forgetting, *, waits: bool) -> None:
    """Deletes calls in a folder of history, or waits until the role that writes it has done so.

    Args:
        folder: The folder.
        what: The calls.
        waits: Whether a role that writes the folder has been told by the topic.

    Raises:
        FolderInUseError: Another process writes the folder, and was not told.
        OperatorError: It does not delete them in time, or the folder cannot be used.
    """
    try:
        store = SqliteHistory(folder, writes=True, retention_days=MAX_RETENTION_DAYS)
    except FolderInUseError:
        if not waits:
            raise
        _wait_for_the_role(folder, what)
        return
    try:
        what.delete_in(store)
    finally:
        store.close()


def _wait_for_the_role(folder: Path, what: Forgetting) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while there := calls_in(folder, what):
        if time.monotonic() > until:
            raise OperatorError(
                f"History: the process that writes {folder} has not deleted {there} calls after "
                f"{WAIT_SECONDS:.0f} s. The topic says that they are to be forgotten, so it will "
                "when it reads that: see its log, and callgauge_history_lag_messages."
            )
        time.sleep(LOOK_SECONDS)
