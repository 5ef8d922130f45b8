"""The command `goals`: the contents of goal files, and every mistake in them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.goals.goal_set import GoalSet
from schemas.scores.all_records import SubgoalScore, Unscored
from streamer.cli.options import JsonOption
from streamer.goals.files import FileMistake, GoalFile, GoalFolderError, doubles_in, goal_files_of, read_goal_file
from streamer.goals.words import set_in_words
from streamer.terminal import safe, say

if TYPE_CHECKING:
    from streamer.offline.scoring import RecordedScoring

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def goals() -> None:
    """Checks goal files.

    A goal set says what a call is for, and how each subgoal is checked. Files are YAML or JSON; `callgauge schema goals`
    prints the schema. agent-inspect's samples and EVA's dataset records are accepted too.

    Example:
        callgauge goals check goals/*.yaml
    """


@app.command()
def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files (.yaml, .yml, .json, .jsonl), or folders of them.")
    ],
    *,
    call: Annotated[
        Path | None,
        typer.Option(
            "--call", metavar="PATH", help="A recorded call, or `sample`: which subgoals it reaches, and when."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Reads goal files and prints their contents.

    It prints the subgoals, whether code or a judge checks each, and the expected tool calls. The evaluator reads the
    files in the same way. No broker is needed.

    Every mistake is printed with its line. Exit code 1 when there is one.

    With --call a recorded call is scored against the goals, without a judge, and each subgoal has the turn that reaches it.

    Examples:
        callgauge goals check goals/
        callgauge goals check rebooking.yaml --call sample
        callgauge goals check rebooking.yaml airline_dataset.jsonl
    """
    files = [read_goal_file(path) for path in _files_of(paths)]
    mistakes = [*(mistake for file in files for mistake in file.mistakes), *doubles_in(files)]
    if as_json:
        tried = (
            [] if call is None or mistakes else _tried_on(call, [each.goals for file in files for each in file.sets])
        )
        typer.echo(json.dumps(_document(files, mistakes, tried), indent=2))
        if mistakes or not files:
            raise typer.Exit(1)
        return
    for file in files:
        if not file.mistakes:
            for line in _lines(file):
                typer.echo(safe(line))
    for mistake in mistakes:
        say(safe(f"{mistake}."))
    if mistakes:
        unused = " A file with a mistake in it is not used at all." if any(file.mistakes for file in files) else ""
        say(f"{_counted(len(mistakes), 'mistake')} in {_counted(len(files), 'file')}.{unused}")
        raise typer.Exit(1)
    if not files:
        say("There is no goal file: expected one that ends with .yaml, .yml, .json or .jsonl.")
        raise typer.Exit(1)
    if call is not None:
        for scoring in _tried_on(call, [placed.goals for file in files for placed in file.sets]):
            for line in _tried_lines(scoring):
                typer.echo(safe(line))


def _tried_on(path: Path, sets: Sequence[GoalSet]) -> "list[RecordedScoring]":
    """The recorded calls that have one of the goal sets, scored against it without a judge."""
    # These bring the engine, which reading goals does not need.
    from streamer.cli.settings_options import settings_from
    from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
    from streamer.recordings.goals import RecordedGoals

    settings = settings_from(None)
    scored: list[RecordedScoring] = []
    scorings = scorings_of([path], plan_from(settings, asks_judge=False), RecordedGoals(sets), None)
    score_all(scorings, settings, scored.append, lambda: None, asks_judge=False)
    return [scoring for scoring in scored if scoring.goal_set is not None]  # a sentence has named the others


def _tried_lines(scoring: "RecordedScoring") -> Iterator[str]:
    yield f"call {scoring.call.conversation_id}, goals {'' if scoring.goal_set is None else scoring.goal_set.id}:"
    yield from (f"  {subgoal}: {_state(score)}" for subgoal, score in _subgoals(scoring))


def _subgoals(scoring: "RecordedScoring") -> Iterator[tuple[str, SubgoalScore | None]]:
    """The id of each subgoal and its final score; None for a call without an answer."""
    scores = {record.index: record for record in scoring.final_records() if isinstance(record, SubgoalScore)}
    for index, subgoal in enumerate(() if scoring.goal_set is None else scoring.goal_set.subgoals):
        yield subgoal.id, scores.get(index)


def _document(
    files: Sequence[GoalFile], mistakes: Sequence[FileMistake], tried: "Sequence[RecordedScoring]"
) -> dict[str, Any]:
    """The result for a program; a file with a mistake in it has no goal set."""
    return {
        "files": [
            {"path": str(file.path), "goal_sets": [placed.goals.model_dump(mode="json") for placed in file.sets]}
            for file in files
        ],
        "mistakes": [{"path": str(each.path), "line": each.line, "text": each.text} for each in mistakes],
        "calls": [
            {
                "conversation_id": scoring.call.conversation_id,
                "goal_set": None if scoring.goal_set is None else scoring.goal_set.id,
                "subgoals": [
                    {
                        "id": subgoal,
                        "state": _state(score),
                        "reached_turn": None if score is None else score.reached_turn,
                    }
                    for subgoal, score in _subgoals(scoring)
                ],
            }
            for scoring in tried
        ],
    }


def _state(score: SubgoalScore | None) -> str:
    if score is None:
        return "not looked at: the call has no turn with an answer"
    if score.reached_turn is not None:
        return f"reached in turn {score.reached_turn}"
    return f"not known ({score.result.reason.value})" if isinstance(score.result, Unscored) else "not reached"


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    """The given files, and the goal files of the given folders."""
    for path in paths:
        if path.is_dir():
            try:
                yield from goal_files_of(path)
            except GoalFolderError as error:
                raise typer.BadParameter(str(error)) from error
        else:
            yield path


def _lines(file: GoalFile) -> Iterator[str]:
    yield f"{file.path}: {_counted(len(file.sets), 'goal set')}"
    for placed in file.sets:
        yield from (f"  {line}" for line in set_in_words(placed.goals))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
