"""Checks goal sets and says in words what they ask for."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import structs, to_builtins

from consumers.view.words import check_in_words, counted, expected_call
from schemas.goals.goal_set import (
    ExpectedOutput,
    ExpectedParameter,
    ExpectedToolCall,
    GoalSet,
    seen,
)
from schemas.rows import NO_TURN_JUDGED, CallRow, ExpectedTool, Goals, SubgoalResult, Unscored
from streamer.goals.files import FileMistake, GoalFile, GoalFolderError, goal_files_of
from streamer.terminal import say

if TYPE_CHECKING:
    from streamer.offline.scoring import RecordedScoring


# Goal sets in plain words: their contents, and how each subgoal is checked.


def set_in_words(goals: GoalSet) -> Iterator[str]:
    """The set as lines: a heading, and one indented line for each part."""
    agents = f"for calls of {', '.join(goals.agents)}" if goals.agents else "for calls that name it"
    yield f"{goals.id}: {agents}, up to {goals.max_turns} turns, digest {goals.digest}"
    width = max(len(subgoal.id) for subgoal in goals.subgoals)
    for subgoal in goals.subgoals:
        how = (
            f"by a judge: {subgoal.details}"
            if subgoal.is_judged
            else f"by code: {check_in_words(subgoal.check)}"
        )
        yield f"  {subgoal.id:<{width}}  {how}"
        if isinstance(subgoal.turn, int):
            yield (
                f"  {'':<{width}}  turn {subgoal.turn} is for scores of traces; a call may reach "
                "it in any turn"
            )
    for call in goals.expected_tool_calls:
        yield f"  expected tool call: {_call_in_words(call)}"


def _call_in_words(call: ExpectedToolCall) -> str:
    arguments = ", ".join(
        f"{each.name}{_value_in_words(each)}" for each in call.expected_parameters
    )
    output = (
        "" if call.expected_output is None else f", output{_value_in_words(call.expected_output)}"
    )
    # Files count turns as agent-inspect does, from 0; everything that people read has the greeting
    # as turn 0.
    if isinstance(call.turn, int) and call.turn >= 0:
        return f"{call.tool}({arguments}){output}, in turn {call.turn + 1} (index {call.turn})"
    return f"{call.tool}({arguments}){output}, left out, because it names no turn"


def _value_in_words(expected: ExpectedParameter | ExpectedOutput) -> str:
    return (
        f"={seen(expected.value)}"
        if expected.check is None
        else f" as a judge sees it: {expected.check}"
    )


# The work of the command `goals`: reads goal files, tries them on calls, and shows them.


def tried_on(path: Path, sets: Sequence[GoalSet]) -> "list[RecordedScoring]":
    """The recorded calls that have one of the goal sets, scored against it without a judge."""
    # These bring the engine, which reading goals does not need.
    from streamer.offline.scoring import plan_from, scored
    from streamer.recordings.reader import RecordedGoals, read_recordings
    from streamer.settings.listing import settings_from

    plan = plan_from(settings_from(None), RecordedGoals(sets))
    tried = [scored(recorded, plan) for recorded in read_recordings(path)]
    for sentence in chain.from_iterable(scoring.lacks for scoring in tried):
        say(sentence)
    # a sentence has named the others
    return [scoring for scoring in tried if scoring.goal_set is not None]


def tried_lines(scoring: "RecordedScoring") -> Iterator[str]:
    """How far a recorded call comes in its goal set: a line for each subgoal and each expected tool
    call.
    """
    yield (
        f"call {scoring.call.conversation_id}, goals "
        f"{'' if scoring.goal_set is None else scoring.goal_set.id}:"
    )
    yield from (f"  {name}: {_state(subgoal)}" for name, subgoal in _subgoals(scoring))
    yield from (
        f"  expected tool call {expected_call(found)}" for found in _expected_tools(scoring)
    )


def _goals(scoring: "RecordedScoring") -> Goals | None:
    """How far the call came in the end."""
    calls = [row for row in scoring.rows if isinstance(row, CallRow)]
    return calls[-1].goals if calls else None


def _subgoals(scoring: "RecordedScoring") -> Iterator[tuple[str, SubgoalResult | None]]:
    """The name of each subgoal and what became of it."""
    goals = _goals(scoring)
    found = dict(enumerate(() if goals is None else goals.subgoals))
    for place, subgoal in enumerate(() if scoring.goal_set is None else scoring.goal_set.subgoals):
        yield subgoal.id, found.get(place)


def _expected_tools(scoring: "RecordedScoring") -> tuple[ExpectedTool, ...]:
    """The expected tool calls, each with whether it was made."""
    goals = _goals(scoring)
    return () if goals is None else goals.expected_tools


def set_document(
    files: Sequence[GoalFile], mistakes: Sequence[FileMistake], tried: "Sequence[RecordedScoring]"
) -> dict[str, Any]:
    """The result for a program; a file with a mistake in it has no goal set."""
    return {
        "files": [
            {
                "path": str(file.path),
                "goal_sets": [placed.goals.model_dump(mode="json") for placed in file.sets],
            }
            for file in files
        ],
        "mistakes": [
            {"path": str(each.path), "line": each.line, "text": each.text} for each in mistakes
        ],
        "calls": [
            {
                "conversation_id": scoring.call.conversation_id,
                "goal_set": None if scoring.goal_set is None else scoring.goal_set.id,
                "subgoals": [
                    {
                        "id": name,
                        "state": _state(subgoal),
                        "reached_turn": None if subgoal is None else subgoal.reached_turn,
                    }
                    for name, subgoal in _subgoals(scoring)
                ],
                "expected_tool_calls": [
                    to_builtins(structs.asdict(found)) for found in _expected_tools(scoring)
                ],
            }
            for scoring in tried
        ],
    }


def _state(subgoal: SubgoalResult | None) -> str:
    if subgoal is None or subgoal.result == NO_TURN_JUDGED:
        return "not looked at: the call has no turn with an answer"
    if subgoal.reached_turn is not None:
        return f"reached in turn {subgoal.reached_turn}"
    return (
        f"not known ({subgoal.result.reason.value})"
        if isinstance(subgoal.result, Unscored)
        else "not reached"
    )


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
