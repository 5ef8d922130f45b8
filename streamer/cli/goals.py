"""The command `goals`: what files of goals hold, and every mistake in them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from streamer.cli.options import with_example
from streamer.goals.files import GoalFile, GoalFolderError, doubles_in, goal_files_of, read_goal_file
from streamer.goals.words import set_in_words
from streamer.operations.quarantine.screen import safe
from streamer.terminal import say

GOALS_HELP: Final = with_example(
    "Look at goal sets: what calls are for, and how it is checked.\n\nThe format is YAML or JSON; `callgauge schema goals` "
    "prints its schema. agent-inspect's samples and EVA's dataset records are read as they are.",
    "callgauge goals check goals/*.yaml",
)
CHECK_HELP: Final = with_example(
    "Read files of goals as the evaluator would, and print what they hold: the subgoals, whether code or a judge checks "
    "each, and the tool calls that are expected.\n\nEvery mistake is told with its line. Exit code 1 when there is one. No "
    "broker is needed.",
    "callgauge goals check goals/",
    "callgauge goals check rebooking.yaml airline_dataset.jsonl",
)

goals_app = typer.Typer(help=GOALS_HELP, no_args_is_help=True)


@goals_app.callback()
def _goals() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@goals_app.command(help=CHECK_HELP)
def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files (.yaml, .yml, .json, .jsonl), or folders of them.")
    ],
) -> None:
    files = [read_goal_file(path) for path in _files_of(paths)]
    for file in files:
        if not file.mistakes:
            for line in _told(file):
                typer.echo(safe(line))
    mistakes = [*(mistake for file in files for mistake in file.mistakes), *doubles_in(files)]
    for mistake in mistakes:
        say(safe(f"{mistake}."))
    if mistakes:
        unused = " A file with a mistake in it is not used at all." if any(file.mistakes for file in files) else ""
        say(f"{_counted(len(mistakes), 'mistake')} in {_counted(len(files), 'file')}.{unused}")
        raise typer.Exit(1)
    if not files:
        say("There is no goal file: expected one that ends with .yaml, .yml, .json or .jsonl.")
        raise typer.Exit(1)


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    """The files themselves, and those of the folders."""
    for path in paths:
        if path.is_dir():
            try:
                yield from goal_files_of(path)
            except GoalFolderError as error:
                raise typer.BadParameter(str(error)) from error
        else:
            yield path


def _told(file: GoalFile) -> Iterator[str]:
    yield f"{file.path}: {_counted(len(file.sets), 'goal set')}"
    for placed in file.sets:
        yield from (f"  {line}" for line in set_in_words(placed.goals))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
