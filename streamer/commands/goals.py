"""The work of the command `goals`: reads goal files, tries them on calls, and shows them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from schemas.goals.goal_set import GoalSet
from schemas.scores.records import SubgoalScore, Unscored
from streamer.goals.files import FileMistake, GoalFile, GoalFolderError, goal_files_of
from streamer.goals.words import set_in_words
from streamer.report.drawing.numbers import counted

if TYPE_CHECKING:
    from streamer.offline.scoring import RecordedScoring


def tried_on(path: Path, sets: Sequence[GoalSet]) -> "list[RecordedScoring]":
    """The recorded calls that have one of the goal sets, scored against it without a judge."""
    # These bring the engine, which reading goals does not need.
    from streamer.commands.settings_options import settings_from
    from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
    from streamer.recordings.goals import RecordedGoals

    settings = settings_from(None)
    scored: list[RecordedScoring] = []
    scorings = scorings_of([path], plan_from(settings, asks_judge=False), RecordedGoals(sets), None)
    score_all(scorings, settings, scored.append, lambda: None, asks_judge=False)
    return [scoring for scoring in scored if scoring.goal_set is not None]  # a sentence has named the others


def tried_lines(scoring: "RecordedScoring") -> Iterator[str]:
    """How far a recorded call comes in its goal set: a line for each subgoal."""
    yield f"call {scoring.call.conversation_id}, goals {'' if scoring.goal_set is None else scoring.goal_set.id}:"
    yield from (f"  {subgoal}: {_state(score)}" for subgoal, score in _subgoals(scoring))


def _subgoals(scoring: "RecordedScoring") -> Iterator[tuple[str, SubgoalScore | None]]:
    """The id of each subgoal and its final score; None for a call without an answer."""
    scores = {record.index: record for record in scoring.final_records() if isinstance(record, SubgoalScore)}
    for index, subgoal in enumerate(() if scoring.goal_set is None else scoring.goal_set.subgoals):
        yield subgoal.id, scores.get(index)


def set_document(
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


def files_of(paths: Sequence[Path]) -> Iterator[Path]:
    """The given files, and the goal files of the given folders."""
    for path in paths:
        if path.is_dir():
            try:
                yield from goal_files_of(path)
            except GoalFolderError as error:
                raise typer.BadParameter(str(error)) from error
        else:
            yield path


def set_lines(file: GoalFile) -> Iterator[str]:
    """The goal sets of a file in words."""
    yield f"{file.path}: {counted(len(file.sets), 'goal set')}"
    for placed in file.sets:
        yield from (f"  {line}" for line in set_in_words(placed.goals))
