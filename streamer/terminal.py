"""The one way to a terminal: what commands print goes through here, so no text of others controls
what shows it.
"""

import io
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, cast

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from consumers.runtime.visible import visible

# Standard error: messages for a person, progress and live tables. Standard output is for results.

_PADDING: Final = re.compile(r" +$", re.MULTILINE)
_FORGED_BREAK: Final = re.compile(r"\n(?! )")
_UNSEEN_IN_JSON: Final = re.compile(r"[^ -~\n]")
HANGING: Final = 2
"""How much further to the right a line goes on that does not fit."""
LEAST_COLUMNS: Final = 20
"""Room for the words of a line, however narrow the terminal is."""
FILE_COLUMNS: Final = 1_000
"""Width of results that go to a file or a pipe: a finding, an entry or a row stays on its line."""


def say(text: object) -> None:
    """Prints a message for the person on standard error; a line that continues it begins with a
    blank.
    """
    typer.echo(visible(_FORGED_BREAK.sub(r"\\n", str(text)), "\n"), err=True)


def print_line(line: object = "") -> None:
    """Prints one line of the result on standard output."""
    typer.echo(visible(str(line)))


def print_wrapped(line: str) -> None:
    """Prints one line of the result. On a terminal, what does not fit goes on below it, further to
    the right; no word is broken that fits on a line.
    """
    console = output_console()
    text, indent = visible(line).lstrip(), len(line) - len(line.lstrip())
    if not console.is_terminal or indent + cell_len(text) <= console.width:
        print_line(line)
        return
    room = max(LEAST_COLUMNS, console.width - indent - HANGING)
    first, *others = Text(text).wrap(console, room, overflow="fold")
    print_line(" " * indent + first.plain.rstrip())
    for each in others:
        print_line(" " * (indent + HANGING) + each.plain.rstrip())


def print_lines(text: str, *, ends: bool = True) -> None:
    """Prints a text whose line breaks count, for example a record as it was sent; `ends` it with
    one more.
    """
    typer.echo(visible(text, "\n"), nl=ends)


def print_document(document: object, *, indent: int | None = None) -> None:
    """Prints a value as JSON."""
    print_json(json.dumps(document, indent=indent, ensure_ascii=False))


def print_json(text: str) -> None:
    """Prints JSON that is written already."""
    typer.echo(visible_json(text))


def visible_json(text: str) -> str:
    r"""JSON with JSON's own escape for each character that cannot be seen, so a program reads the
    same values from it.

    Example:
        >>> visible_json('{"said": "\u202eno"}')
        '{"said": "\\u202eno"}'
    """
    return _UNSEEN_IN_JSON.sub(lambda found: _as_json(found.group()), text)


def _as_json(char: str) -> str:
    if char.isprintable():
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class Screen(Console):
    """A console for texts of others: a `str` is one line without markup; line breaks count in a
    `Text` only.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Makes a text of a plain string, when it is measured as well as when it is shown."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields what is written; only rich's own control sequences are not escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, "\n"))


def error_console() -> Screen:
    """Standard error for progress and live tables; its `is_terminal` says whether they can be
    shown.
    """
    return Screen(stderr=True)


def output_console() -> Screen:
    """Standard output for tables and texts; `FILE_COLUMNS` wide and without padding unless it is a
    terminal.
    """
    console = Screen()
    if console.is_terminal:
        return console
    return Screen(file=cast("IO[str]", _Unpadded()), width=FILE_COLUMNS)


def plain_table(*columns: str) -> Table:
    """An empty table without lines around it, with these columns."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


class _Unpadded(io.TextIOBase):
    """Standard output without the blanks that a table puts behind its last column."""

    def write(self, text: str) -> int:
        return sys.stdout.write(_PADDING.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


# Silences libraries, for commands that report errors themselves.


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Turns logging off inside the block: aiokafka logs each refusal several times, and raises it
    too.
    """
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
