"""Chooses the goal set of a recorded call, for `callgauge score --goals`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from consumers.runtime.process import OperatorError
from schemas.goals.goal_set import GoalSet
from streamer.goals.files import doubles_in, goal_files_of, read_goal_file
from streamer.goals.index import GoalIndex
from streamer.recordings.files.places import is_sample, without_trial
from streamer.recordings.recorded_call import RecordedCall

_MOST_LINES: Final = 10
_SAMPLE_GOALS: Final = Path(__file__).parent / "sample" / "goals.yaml"


class GoalFilesError(OperatorError):
    """Goal files have mistakes or no goals; the text names them and the remedy."""


class RecordedGoals:
    """Goal sets for recorded calls."""

    def __init__(self, sets: Iterable[GoalSet]) -> None:
        """Keeps the sets.

        Args:
            sets: Their ids differ, and no two are for the same agent.
        """
        kept = tuple(sets)
        self._index = GoalIndex(kept)
        self._only = kept[0] if len(kept) == 1 else None

    def of(self, call: RecordedCall) -> GoalSet | None:
        """The set that the recording names; otherwise the set with the call's id, that of its agent, or the only one."""
        started = next((event for event in call.control if event.get("type") == "call_started"), {})
        named, agent = started.get("goals"), started.get("agent")
        if isinstance(named, str):
            return self._index.named(named)
        found = self._index.named(call.conversation_id) or self._index.named(without_trial(call.conversation_id))
        if found is None and isinstance(agent, str):
            found = self._index.of_agent(agent)
        return found or self._only


def goals_for(paths: Sequence[Path], goals: Path | None) -> RecordedGoals | None:
    """Goal sets for the calls at these paths; None if nobody has named any. The sample has its own.

    Raises:
        GoalFilesError: There is a mistake in one, or there is no goal set.
        GoalFolderError: The folder cannot be read.
    """
    if goals is None and all(map(is_sample, paths)):
        goals = _SAMPLE_GOALS
    return None if goals is None else read_recorded_goals(goals)


def read_recorded_goals(path: Path) -> RecordedGoals:
    """Reads a file of goals, or a folder of them.

    Raises:
        GoalFilesError: There is a mistake in one, or there is no goal set.
        GoalFolderError: The folder cannot be read.
    """
    files = [read_goal_file(each) for each in (goal_files_of(path) if path.is_dir() else (path,))]
    mistakes = [*(mistake for file in files for mistake in file.mistakes), *doubles_in(files)]
    if mistakes:
        lines = [f"  {mistake}." for mistake in mistakes[:_MOST_LINES]]
        if len(mistakes) > _MOST_LINES:
            lines.append(f"  `callgauge goals check {path}` tells all {len(mistakes)} mistakes.")
        raise GoalFilesError("\n".join(["The goals cannot be used, so no call was scored:", *lines]))
    sets = [placed.goals for file in files for placed in file.sets]
    if not sets:
        raise GoalFilesError(
            f"{path}: there is no goal file in this folder: expected one that ends with .yaml, .yml, .json or .jsonl. No "
            "call was scored."
        )
    return RecordedGoals(sets)
