"""The list of commands. A command's module is imported when the command is asked for, so `--help`
stays quick.

Each command is the module of its name in this folder. The module has `app`, a Typer application;
the docstrings of its functions are the help texts. It imports what options and help need. A
function imports its work when it runs, so the help of a command is quick too.
"""

import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from consumers.runtime.process import OperatorError
from streamer.facts import READER_GONE, installed_version

GROUPS: Final = {
    "live": {
        "demo": "Shows callgauge at work, without any set-up.",
        "serve": "Runs everything on this machine, without Kafka.",
        "run": "Runs the roles: sequencer, evaluator, console and others.",
        "top": "Shows the running calls as a table, the worst first.",
        "call": "Shows one call: its waits, turns, tools and words.",
        "history": "Finds past calls by what happened in them.",
        "mcp": "Answers an assistant's questions about calls.",
        "simulate": "Sends simulated calls, in real time.",
    },
    "recorded": {
        "report": "Writes one HTML page about recorded calls.",
        "score": "Scores recorded calls and prints their rows.",
        "trials": "Compares repeated calls: pass@k, judges, errors.",
        "replay": "Plays recorded calls, or evaluates past traffic again.",
        "transcript": "Writes transcripts in ElevenLabs' format.",
        "context": "Prints the metric context of calls, in EVA's fields.",
    },
    "operate": {
        "settings": "Lists every setting, its value and its origin.",
        "doctor": "Checks settings, broker, topics and consumer groups.",
        "topics": "Shows the topic table; creates and checks topics.",
        "goals": "Checks goal files.",
        "events": "Checks events of a bot without sending them.",
        "quarantine": "Shows refused records, and puts them back after a fix.",
        "schema": "Prints the JSON Schema of a record type.",
        "deploy-files": "Writes alert rules, dashboards, runbooks and the chart.",
    },
}
"""Commands by their purpose, each with the first sentence of its help. The list fits a terminal of
24 rows and 80 columns.
"""
COMMANDS: Final = {name: summary for group in GROUPS.values() for name, summary in group.items()}
_HEAD: Final = "Usage: callgauge COMMAND [OPTIONS]; COMMAND --help explains it (--version, -h)\n"
_NO_COMMAND: Final = 2
_GROUP_CHARS: Final = max(map(len, GROUPS))
_NAME_CHARS: Final = max(map(len, COMMANDS))

_OF_THE_PARSER: Final = "Value error, "
"""The words that pydantic, with which typer reads values, puts before the text of an error."""
_KINDS: Final = {"str": "TEXT", "Path": "PATH", "int": "N", "float": "N"}
"""What stands for a value in the help, by the type that the code gives it; an option can have a
word of its own.
"""
_EXAMPLES: Final = re.compile(r"Examples?:\n")


class _LazyCommands(TyperGroup):
    """Lists the commands by their names and first sentences; imports only the one that is run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = {
            name: TyperCommand(name, help=summary) for name, summary in COMMANDS.items()
        }

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands: a line each, by purpose, so that it fits a terminal of 24
        rows.
        """
        formatter.write(_HEAD)
        for group, commands in GROUPS.items():
            for place, (name, summary) in enumerate(commands.items()):
                heading = "" if place else group
                formatter.write(f"{heading:<{_GROUP_CHARS}} {name:<{_NAME_CHARS}}  {summary}\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Finds the command that the arguments begin with, and imports it."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if name is None or listed is None else loaded(name), rest

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Reads the options before the command; `--help` and `--version` print here."""
        with _quiet_without_reader(), _told_visibly():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; if the reader of its output goes away, as `head` does, it ends without
        a word.
        """
        with _quiet_without_reader(), _told_visibly():
            try:
                return super().invoke(ctx)
            except OperatorError as error:
                if error.is_away and _takes_folder(ctx.invoked_subcommand):
                    from streamer.served_folder import hint_of_served

                    error.add_note(hint_of_served())
                raise


@contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """Flushes the output at the end of the block, or ends the command quietly if nobody reads it
    any more.

    Raises:
        Exit: Nobody reads the output.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest of the buffer
        raise typer.Exit(READER_GONE) from None
    except SystemExit as ended:
        # rich ends the process with 1 in its handler
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        raise typer.Exit(READER_GONE) from None


@contextmanager
def _told_visibly() -> Iterator[None]:
    """Errors about the command line repeat names of files, and anybody may have named them."""
    try:
        yield
    except TyperException as error:
        from consumers.runtime.visible import visible

        told = {name: visible(text) for name, text in vars(error).items() if isinstance(text, str)}
        vars(error).update({name: text.removeprefix(_OF_THE_PARSER) for name, text in told.items()})
        raise


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLERR)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def loaded(name: str) -> Any:
    """Imports a command; the docstrings of it and of its subcommands become their help texts, which
    name no type of Python.
    """
    command: Any = typer.main.get_command(
        import_module(f"streamer.cli.{name.replace('-', '_')}").app
    )
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = help_text(each.help)
        each.get_params = partial(_with_kinds, each.get_params)
    return command


def _takes_folder(name: str) -> bool:
    """Whether a command, or one of its own, reads what `serve` keeps. The others are for Kafka."""
    command = loaded(name)
    commands = (command, *getattr(command, "commands", {}).values())
    return any(each.name == "folder" for one in commands for each in one.params)


def _with_kinds(parameters: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    """The parameters of a command, each with the word that stands for its value in the help."""
    found = parameters(context)
    for each in found:
        each.display_type_rich = partial(_kind, each)
    return found


def _kind(parameter: Any, ctx: Any) -> str:
    """`TEXT` for an option that takes one, the choices of one that has some, nothing for one that
    is there or not. The name of an argument says enough.
    """
    if parameter.param_type_name == "argument" or parameter.is_flag:
        return ""
    shown = str(parameter.metavar or parameter.display_type(ctx)).strip("<>")
    return _KINDS.get(shown.removeprefix("list[").removesuffix("]"), shown)


def help_text(docstring: str) -> str:
    """A docstring as help: each paragraph is one line for the terminal to wrap; examples keep their
    lines.
    """
    paragraphs = docstring.split("\n\n")
    return "\n\n".join(
        each if _EXAMPLES.match(each) else " ".join(each.split()) for each in paragraphs
    )


app = typer.Typer(
    name="callgauge",
    cls=_LazyCommands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # a defect must look like one
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"callgauge {installed_version()}")
        raise typer.Exit


@app.callback()
def callgauge(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and end.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Evaluates voice-agent calls while they run. `callgauge demo` shows it without any set-up."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(_NO_COMMAND)
