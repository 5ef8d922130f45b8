"""JSON in files of recordings: whole documents, lines, and the errors for other content."""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import OperatorError

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read; a wire-level line is a whole call, and an hour of speech is about 2 MB."""
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Largest JSON document that is read; an audit log carries every prompt of its call."""

MAX_SHOWN_CHARS = 80
"""Bound of the part of a wrong value that a message shows."""

_NOT_READ = "This call is not read and reading stops here; calls before it were read."


class RecordingError(OperatorError):
    """A recording cannot be read; nothing of the call was played.

    Attributes:
        what: The step that failed.
        where: File, and line where there is one.
        expected: The expected content.
        seen: The found content without personal data: a reader of the message may have no right to read the call.
        consequence: The consequence.
        remedy: The remedy.
    """

    def __init__(
        self, *, what: str, where: str, expected: str, seen: str, remedy: str, consequence: str = _NOT_READ
    ) -> None:
        seen = Redactor().redact(seen)
        super().__init__()
        self.what = what
        self.where = where
        self.expected = expected
        self.seen = seen
        self.consequence = consequence
        self.remedy = remedy

    def __str__(self) -> str:
        """The five parts."""
        return f"{self.where}: {self.what}:\n  expected {self.expected}; seen {self.seen}.\n  {self.consequence}\n  {self.remedy}"


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, unpacked when the name says so.

    Raises:
        RecordingError: The file cannot be read, or a line is blank or too long.
    """
    for number, text in raw_lines_of(path):
        require_text(text, f"{path}:{number}")
        yield number, text


def raw_lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """As `lines_of`, blank lines included.

    Raises:
        RecordingError: The file cannot be read any further, or a line is too long.
    """
    number = 0
    try:
        with path.open("rb") as stored:
            # A gzip file is no IO[bytes] to the type checker; both read bytes by line, which is all that is used.
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=stored)) if path.name.endswith(".gz") else stored
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    raise shape_error(f"{path}:{number}", f"a line of at most {MAX_LINE_BYTES:,} bytes", "a longer one")
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(
            what="the file cannot be read",
            where=f"{path}:{number + 1}",
            expected="a readable file" + (" in gzip format" if path.name.endswith(".gz") else ""),
            seen=str(error) or type(error).__name__,
            remedy="Check permissions, and that the file was copied whole.",
        ) from error


def require_text(text: bytes, where: str) -> None:
    """Refuses a blank line.

    Raises:
        RecordingError: The line is blank.
    """
    if not text.strip():
        raise shape_error(where, "a JSON object", "a blank line")


def read_document(path: Path) -> dict[str, Any]:
    """A file that is one JSON object.

    Raises:
        RecordingError: The file cannot be read, or is no JSON object.
    """
    return _an_object(read_json(path), str(path))


def read_json(path: Path) -> object:
    """A file that is one JSON value, unpacked when the name says so.

    Raises:
        RecordingError: It cannot be read, is too large, or is no JSON.
    """
    is_packed = path.name.endswith(".gz")
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_DOCUMENT_BYTES:
            raise shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", f"{size_bytes:,} bytes")
        text = _unpacked(path) if is_packed else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(
            what="the file cannot be read",
            where=str(path),
            expected="a readable file" + (" in gzip format" if is_packed else ""),
            seen=str(error) or type(error).__name__,
            remedy="Check permissions, and that the record was copied whole.",
        ) from error
    return _value(text, str(path))


def _unpacked(path: Path) -> bytes:
    """No more of it than may be read: a small file can hold a large one."""
    with gzip.open(path) as file:
        text = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(text) > MAX_DOCUMENT_BYTES:
        raise shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", "more, unpacked")
    return text


def object_in(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RecordingError: It is no JSON object.
    """
    return _an_object(_value(text, where), where)


def _value(text: bytes, where: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_nothing, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are ValueErrors; deep nesting is the other
        raise RecordingError(
            what="this is not JSON",
            where=where,
            expected="a JSON object",
            seen=str(error),
            remedy="Repair or remove the line yourself: leaving it out silently would play a different call.",
        ) from error
    return value


def _an_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise shape_error(where, "a JSON object", kind_of(value))
    return value


def _nothing(_word: str) -> None:
    """NaN and infinity, which Python's own writer puts into JSON, are no values; the intake reads them in the same way."""


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None  # 1e999 would read as infinity, which JSON cannot write again


def kind_of(value: object) -> str:
    """The name of a JSON type, for messages."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    if value is None:
        return "nothing"
    return "an empty text" if value == "" else names[type(value)]


def shown(value: object, key: str = "") -> str:
    """The beginning of a JSON value for a message, without personal data.

    Args:
        value: The value.
        key: Its key: ten digits under `phone` are a telephone number.
    """
    redactor = Redactor()
    if isinstance(value, dict) and value:
        # Names of keys and no values. They are cut only when redacted: half a number is not known for one.
        return "an object with " + redactor.beginning(", ".join(value), MAX_SHOWN_CHARS)
    if isinstance(value, dict | list) or value is None:
        return kind_of(value)
    if isinstance(value, str):
        return repr(redactor.beginning(value, MAX_SHOWN_CHARS, key))
    return redactor.beginning(json.dumps(value), MAX_SHOWN_CHARS, key)


def shape_error(where: str, expected: str, seen: str) -> RecordingError:
    """The error for JSON of another shape than expected."""
    return RecordingError(
        what="the recording has another shape",
        where=where,
        expected=expected,
        seen=seen,
        remedy="Compare with docs/sources/recordings.md.",
    )
