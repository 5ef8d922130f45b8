"""What people say of calls: the records of the topic `annotations`.

The key is the conversation id. A record without a value says that the call is to be forgotten.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from schemas.wire import MAX_NAME_CHARS, MAX_TIME_MS

MAX_LABEL_CHARS: Final = 40
"""Longest label: it stands in tables and addresses."""
MAX_NOTE_CHARS: Final = 2_000
"""Longest note: a page of text."""
MAX_ANNOTATION_BYTES: Final = 32_768
"""Largest record that is read: the longest texts, four bytes a character, twice."""

LABEL_PATTERN: Final = rf"^[a-z0-9][a-z0-9_-]{{0,{MAX_LABEL_CHARS - 1}}}$"
"""A label needs no quotes anywhere."""

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Label = Annotated[str, Field(pattern=LABEL_PATTERN)]


class _AnnotationModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    at_ms: Annotated[int, Field(ge=0, le=MAX_TIME_MS)]


class Annotation(_AnnotationModel):
    """A label of a person for a call, with a note about it or without, or a note alone.

    Of the records of one person for one label of a call, and of those of one person without a
    label, the last one counts: it replaces or withdraws those before it.

    Attributes:
        by: The person.
        at_ms: When they said it, in epoch ms.
        label: One word of lower-case letters, digits, `-` and `_`; None for a note alone.
        note: What they write about it, without personal data of the caller; may be empty beside a
            label.
        is_withdrawn: Whether they take it back.
        agent: The agent of the call; `unknown` if it is not.
        tenant: Whose call it is; likewise.
    """

    kind: Literal["annotation"] = "annotation"
    by: Name
    label: Label | None = None
    note: Annotated[str, Field(max_length=MAX_NOTE_CHARS)] = ""
    is_withdrawn: bool = False
    agent: Name = "unknown"
    tenant: Name = "unknown"

    @model_validator(mode="after")
    def _says_something(self) -> "Annotation":
        if self.label is None and not self.note and not self.is_withdrawn:
            raise ValueError("a label, a note or both are needed")
        return self

    @property
    def words(self) -> str:
        """The label and the note, as far as they are there, in one line.

        >>> Annotation(at_ms=0, by="anna", label="false-alarm", note="the caller was on hold").words
        'false-alarm: the caller was on hold'
        """
        return ": ".join(each for each in (self.label, " ".join(self.note.split())) if each)


class ForgottenTenant(_AnnotationModel):
    """All calls of a tenant are to be forgotten that have a record from before this moment. The key
    is the tenant.

    Attributes:
        at_ms: The moment, in epoch ms of broker time.
        tenant: Whose calls.
    """

    kind: Literal["forgotten_tenant"]
    tenant: Name


AnyAnnotation = Annotated[Annotation | ForgottenTenant, Field(discriminator="kind")]
ANNOTATION: Final[TypeAdapter[Annotation | ForgottenTenant]] = TypeAdapter(AnyAnnotation)
