"""The page of all commands, from their own help: what each one does, its options, its examples."""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple

import typer

from streamer.cli.app import GROUPS, loaded

OFTEN: Final = 3
"""An option of so many commands, with the same words, is described once for all of them."""
_EXAMPLES: Final = ("Examples:\n", "Example:\n")


class Parameter(NamedTuple):
    """One argument or option as the page shows it.

    Attributes:
        name: `--since WHEN`, or the word that stands for an argument.
        meaning: Its help, with the default.
    """

    name: str
    meaning: str


class Command(NamedTuple):
    """One command, or one command of a command.

    Attributes:
        name: As it is called: `history find`.
        summary: What it does, in a sentence.
        details: The paragraph behind the summary; empty if there is none.
        usage: How it is called; empty if only its own commands can be.
        parameters: Its arguments and options, in the order of its help.
        examples: Lines for a shell.
    """

    name: str
    summary: str
    details: str
    usage: str
    parameters: Sequence[Parameter]
    examples: Sequence[str]


def command_list() -> Iterator[str]:
    """All commands in the groups of `callgauge --help`, a line for each group."""
    for group, names in GROUPS.items():
        links = (
            f"[`{each.name}`](#callgauge-{each.name.replace(' ', '-')})"
            for each in _commands_of(names)
        )
        yield from ("", f"**{group.capitalize()}**: {', '.join(links)}")


def common_options() -> Iterator[str]:
    """The arguments and options that many commands have, each once."""
    yield from ("", "| option | meaning |", "|---|---|", *map(_row, _common()))


def command_sections() -> Iterator[str]:
    """A section for each command, in the same groups."""
    for group, names in GROUPS.items():
        yield from ("", f"## {group.capitalize()}")
        for command in _commands_of(names):
            yield from _section(command)


def _section(command: Command) -> Iterator[str]:
    yield from ("", f"### `callgauge {command.name}`", "", command.summary)
    if command.details:
        yield from ("", command.details)
    if not command.usage:
        return
    yield from ("", f"    {command.usage}")
    common = _common()
    if own := [each for each in command.parameters if each not in common]:
        yield from ("", "| option | meaning |", "|---|---|", *map(_row, own))
    if shared := [f"`{each.name}`" for each in command.parameters if each in common]:
        yield from ("", f"Also {', '.join(shared)}.")
    yield from ("", *(f"    {line}" for line in command.examples))


def _row(parameter: Parameter) -> str:
    return "| `{}` | {} |".format(*(part.replace("|", "\\|") for part in parameter))


def _commands_of(names: Container[str]) -> list[Command]:
    return [each for each in _commands() if each.name.split()[0] in names]


@cache
def _commands() -> Sequence[Command]:
    """Every command, each in front of its own commands."""
    found: list[Command] = []
    for names in GROUPS.values():
        for name in names:
            command = loaded(name)
            found.append(_read(command, name))
            parts = getattr(command, "commands", {})
            found.extend(_read(part, f"{name} {own}") for own, part in parts.items())
    return found


@cache
def _common() -> Sequence[Parameter]:
    counts = Counter(each for command in _commands() for each in command.parameters)
    return [each for each, count in counts.items() if count >= OFTEN]


def _read(command: Any, name: str) -> Command:
    context = typer.Context(command, info_name=name)
    texts = command.help.split("\n\n")
    examples = next(text for text in texts if text.startswith(_EXAMPLES))
    parameters = [each for each in command.get_params(context) if "--help" not in each.opts]
    is_run = not hasattr(command, "commands") or command.invoke_without_command
    arguments = [_usage(each) for each in parameters if each.param_type_name == "argument"]
    return Command(
        name,
        texts[0],
        "" if texts[1] == examples else texts[1],
        " ".join(("callgauge", name, *arguments, "[OPTIONS]")) if is_run else "",
        [_parameter(each, context) for each in parameters],
        [line.strip() for line in examples.splitlines()[1:]],
    )


def _word(argument: Any) -> str:
    """The placeholder of an argument, such as `FILE`."""
    return str(argument.metavar or argument.name.upper()).removesuffix("...").strip("[]")


def _usage(argument: Any) -> str:
    word = _word(argument) + ("..." if argument.nargs < 0 else "")
    return word if argument.required else f"[{word}]"


def _parameter(each: Any, context: typer.Context) -> Parameter:
    meaning = each.help or ""
    if each.param_type_name == "argument":
        return Parameter(_word(each), meaning)
    if each.required:
        meaning += " Required."
    elif each.default not in (None, False):
        default = each.default.value if isinstance(each.default, Enum) else each.default
        meaning += f" Default: `{default}`."
    return Parameter(f"{', '.join(each.opts)} {each.display_type_rich(context)}".strip(), meaning)
