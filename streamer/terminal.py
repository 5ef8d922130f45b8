"""Standard error: messages for a person, progress and live tables. Standard output is for results."""

import sys

import typer
from rich.console import Console


def say(text: str) -> None:
    """Tells the person something, on standard error: standard output is for results."""
    typer.echo(text, err=True)


def error_console() -> Console:
    """Standard error as a terminal for progress and live tables; knows when it is none."""
    return Console(file=sys.stderr, highlight=False)
