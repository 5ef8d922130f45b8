"""The list of commands. A command's module is imported when the command is asked for, so `--help` stays quick.

Each command is the module of its name in this folder. The module has `app`, a Typer application; the docstrings of its
functions are the help texts.
"""

import re
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from streamer.version import installed_version

COMMANDS: Final = {
    "demo": "Shows callgauge at work, without any set-up.",
    "run": "Runs the evaluator, the exporter, the judge and, if it is set up, the receiver of events.",
    "ingest": "Receives events over HTTP: ElevenLabs' webhooks and POST /events.",
    "replay": "Plays recorded calls, or evaluates past traffic again.",
    "tail": "Sends a run of EVA to the topics while EVA writes it.",
    "simulate": "Sends simulated calls to the topics in real time.",
    "context": "Prints EVA's metric context of recorded calls.",
    "score": "Scores recorded calls and prints the score records.",
    "report": "Writes one HTML page about recorded calls.",
    "transcript": "Writes transcripts of recorded calls in ElevenLabs' format.",
    "schema": "Prints the JSON Schema of a record type.",
    "settings": "Lists every setting, its value, and where the value comes from.",
    "doctor": "Checks settings, broker, topics and consumer groups.",
    "topics": "Shows the topic table; creates and checks topics.",
    "quarantine": "Shows refused records, and puts them back after a fix.",
    "goals": "Checks goal files.",
    "events": "Checks events of a bot without sending them.",
}
"""Each command and the first sentence of its help."""

_EXAMPLES: Final = re.compile(r"Examples?:\n")


class _LazyCommands(TyperGroup):
    """Lists the commands by their names and first sentences; imports only the one that is run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = {name: TyperCommand(name, help=summary) for name, summary in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Finds the command that the arguments begin with, and imports it."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if name is None or listed is None else loaded(name), rest


def loaded(name: str) -> Any:
    """Imports a command; the docstrings of it and of its subcommands become their help texts."""
    command: Any = typer.main.get_command(import_module(f"streamer.cli.{name}").app)
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = help_text(each.help)
    return command


def help_text(docstring: str) -> str:
    """A docstring as help: each paragraph is one line for the terminal to wrap; examples keep their lines."""
    paragraphs = docstring.split("\n\n")
    return "\n\n".join(each if _EXAMPLES.match(each) else " ".join(each.split()) for each in paragraphs)


app = typer.Typer(
    name="callgauge",
    cls=_LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a defect must look like one
    rich_markup_mode="rich",
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"callgauge {installed_version()}")
        raise typer.Exit


@app.callback()
def callgauge(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Evaluates voice-agent calls while they run. `callgauge demo` shows it without any set-up."""
