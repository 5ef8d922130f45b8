"""Text for a terminal, and libraries that keep quiet there."""

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, cast

import typer
from rich.console import Console

# Standard error: messages for a person, progress and live tables. Standard output is for results.

_PADDING: Final = re.compile(r" +$", re.MULTILINE)
FILE_COLUMNS: Final = 1_000
"""Width of results that go to a file or a pipe: a finding, an entry or a row stays on its line."""


def say(text: str) -> None:
    """Prints a message for the person on standard error."""
    typer.echo(text, err=True)


def error_console() -> Console:
    """Standard error for progress and live tables; its `is_terminal` says whether they can be shown."""
    return Console(file=sys.stderr, highlight=False)


def output_console() -> Console:
    """Standard output for tables and texts; `FILE_COLUMNS` wide and without padding unless it is a terminal."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(file=cast("IO[str]", _Unpadded()), highlight=False, width=FILE_COLUMNS)


class _Unpadded(io.TextIOBase):
    """Standard output without the blanks that a table puts behind its last column."""

    def write(self, text: str) -> int:
        return sys.stdout.write(_PADDING.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def safe(text: str) -> str:
    r"""The text on one line; a character that could control the terminal appears as its escape sequence.

    Example:
        >>> safe("a\x1b[31mb\n")
        'a\\x1b[31mb\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Silences libraries, for commands that report errors themselves.


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Turns logging off inside the block: aiokafka logs each refusal several times, and raises it too."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
