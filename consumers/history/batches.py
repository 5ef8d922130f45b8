"""Records of topics, whichever log they stand in, become what the store writes in one transaction."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from consumers.history.annotations import FromPeople
from consumers.history.sqlite import Batch
from consumers.store.rows import Place
from schemas.annotations import (
    ANNOTATION,
    MAX_ANNOTATION_BYTES,
    MAX_NOTE_CHARS,
    Annotation,
    ForgottenTenant,
)
from schemas.quarantine import UndecodableRecord
from schemas.rows import DECODED, RowError, StoredRow
from schemas.topics import ANNOTATIONS_TOPIC

Refused = list[tuple[Any, str]]
"""Records that cannot be kept, each with the reason in a line without its content."""


def batch_of(
    polled: Mapping[Place, tuple[str, Sequence[Any]]], redact: Callable[[str], str]
) -> tuple[Batch, Refused]:
    """The rows, transcripts and notes that the store has to write, and the records that it refuses.

    Args:
        polled: By the place where their offsets are noted, the plain name of the topic and its
            records in order, one at least.
        redact: Takes personal data out of the notes of people.
    """
    rows: list[StoredRow] = []
    transcripts: list[tuple[str, int, bytes]] = []
    annotations: list[tuple[str, Annotation]] = []
    forgotten: list[str] = []
    tenants: list[ForgottenTenant] = []
    refused: Refused = []
    for topic, record in ((topic, each) for topic, records in polled.values() for each in records):
        if isinstance(record, UndecodableRecord):
            refused.append((record, str(record)))
            continue
        conversation_id = (record.key or b"").decode("utf-8", "replace")
        try:
            if topic == ANNOTATIONS_TOPIC:
                said = _said(record, redact) if record.value else None
                if not conversation_id:
                    refused.append((record, "it has no conversation id as its key"))
                elif said is None:
                    forgotten.append(conversation_id)
                elif isinstance(said, ForgottenTenant):
                    tenants.append(said)
                else:
                    annotations.append((conversation_id, said))
            elif record.value is None:  # a mark of an evaluator
                continue
            elif topic in DECODED:
                rows.append(DECODED[topic](record.value))
            else:
                transcripts.append((conversation_id, record.timestamp, record.value))
        except (ValidationError, _UnfitError, RowError) as error:
            refused.append((record, _reason(error)))
    places: dict[Place, int] = {}
    of_people: dict[Place, int] = {}
    for place, (topic, records) in polled.items():
        kept = of_people if topic == ANNOTATIONS_TOPIC else places
        kept[place] = records[-1].offset + 1
    first_ms = min((records[0].timestamp for _, records in polled.values()), default=0)
    people = FromPeople(annotations, forgotten, tenants, of_people)
    return Batch(rows, transcripts, places, people, first_ms), refused


def _said(record: Any, redact: Callable[[str], str]) -> Annotation | ForgottenTenant:
    """Reads a record of `annotations`. Its note has no personal data then, and its moment is not
    after that of the record.

    Raises:
        ValidationError, _UnfitError: It says nothing that can be kept.
    """
    if len(record.value) > MAX_ANNOTATION_BYTES:
        raise _UnfitError(
            f"it has {len(record.value)} bytes, and {MAX_ANNOTATION_BYTES} are the most"
        )
    said = ANNOTATION.validate_json(record.value)
    at_ms = min(said.at_ms, record.timestamp)
    if isinstance(said, ForgottenTenant):
        return said.model_copy(update={"at_ms": at_ms})
    note = redact(said.note)[:MAX_NOTE_CHARS]
    return said.model_copy(update={"at_ms": at_ms, "note": note})


class _UnfitError(Exception):
    """A record of `annotations` cannot be kept, for this reason."""


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(each) for each in first['loc'])[:100]}: {first['msg']}"
