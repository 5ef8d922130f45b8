"""What a person says of a call, checked and without personal data."""

import getpass

from pydantic import ValidationError

from consumers.engine.redaction.redactor import Redactor
from consumers.log.file import DecidedRecord
from consumers.runtime.process import SetupError, wall_clock_ms
from schemas.annotations import MAX_NOTE_CHARS, Annotation, AnyAnnotation
from schemas.rows import Labels
from schemas.topics import ANNOTATIONS_TOPIC


def this_user() -> str:
    """The name of the user of this machine.

    Raises:
        SetupError: It has none, as in a container with a user of its own.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise SetupError(
            "The user of this machine has no name: say with --by who you are. Nothing was written."
        ) from None


def record_in_log(key: str, said: AnyAnnotation | None) -> DecidedRecord:
    """What a person says of a call, as the log in a file has it; None is a call that is to be
    forgotten.
    """
    return DecidedRecord(
        ANNOTATIONS_TOPIC, key.encode(), b"" if said is None else said.model_dump_json().encode()
    )


def annotation(
    by: str,
    label: str | None,
    note: str | None,
    labels: Labels,
    redactor: Redactor,
    *,
    withdraws: bool = False,
) -> Annotation:
    """What a person says of a call now, without personal data of the caller.

    Raises:
        SetupError: The label, the note or the name of the person does not fit.
    """
    redacted = redactor.redact(note or "")
    try:
        return Annotation(
            by=by,
            at_ms=wall_clock_ms(),
            label=label,
            note=redacted,
            is_withdrawn=withdraws or (note == "" and label is None),
            agent=labels.agent,
            tenant=labels.tenant,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise SetupError(
            f"{'.'.join(map(str, first['loc'])) or 'annotation'}: {first['msg']}. A label is one "
            "word of lower-case letters, digits, - and _, as in false-alarm; a note has at most "
            f"{MAX_NOTE_CHARS} characters. Nothing was written."
        ) from None
