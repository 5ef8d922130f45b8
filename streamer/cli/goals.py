"""The command `goals`: the contents of goal files, and every mistake in them."""

from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import JsonOption
from streamer.terminal import print_document, print_line, say

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def goals() -> None:
    """Checks goal files.

    A goal set says what a call is for, and how each subgoal is checked. Files are YAML or JSON;
    `callgauge schema goals` prints the schema. agent-inspect's samples and EVA's dataset records
    are accepted too.

    Example:
        callgauge goals check goals/*.yaml
    """


@app.command()
def check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files (.yaml, .yml, .json, .jsonl), or folders of them."
        ),
    ],
    *,
    call: Annotated[
        Path | None,
        typer.Option(
            "--call",
            metavar="PATH",
            help="A recorded call, or `sample`: which subgoals it reaches, and when.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Reads goal files and prints their contents.

    It prints the subgoals, whether code or a judge checks each, and the expected tool calls. The
    evaluator reads the files in the same way. No broker is needed.

    Every mistake is printed with its line. Exit code 1 when there is one.

    With --call a recorded call is scored against the goals, without a judge: each subgoal has the
    turn that reaches it, and each expected tool call that was not made as expected the reason.

    Examples:
        callgauge goals check goals/
        callgauge goals check rebooking.yaml --call sample
        callgauge goals check rebooking.yaml airline_dataset.jsonl
    """
    from consumers.view.words import counted
    from streamer.goals.check import files_of, set_document, set_lines, tried_lines, tried_on
    from streamer.goals.files import doubles_in, read_goal_file

    files = [read_goal_file(path) for path in files_of(paths)]
    mistakes = [*(mistake for file in files for mistake in file.mistakes), *doubles_in(files)]
    if as_json:
        tried = (
            []
            if call is None or mistakes
            else tried_on(call, [each.goals for file in files for each in file.sets])
        )
        print_document(set_document(files, mistakes, tried), indent=2)
        if mistakes or not files:
            raise typer.Exit(1)
        return
    for file in files:
        if not file.mistakes:
            for line in set_lines(file):
                print_line(line)
    for mistake in mistakes:
        say(f"{mistake}.")
    if mistakes:
        unused = (
            " A file with a mistake in it is not used at all."
            if any(file.mistakes for file in files)
            else ""
        )
        say(f"{counted(len(mistakes), 'mistake')} in {counted(len(files), 'file')}.{unused}")
        raise typer.Exit(1)
    if not files:
        say("There is no goal file: expected one that ends with .yaml, .yml, .json or .jsonl.")
        raise typer.Exit(1)
    if call is not None:
        for scoring in tried_on(call, [placed.goals for file in files for placed in file.sets]):
            for line in tried_lines(scoring):
                print_line(line)
