"""Folds the score records of many calls at once, and makes a trial of each call that closes. Pure, and bounded."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from schemas.goals.goal_set import GoalSet
from schemas.scores.records import AnyScoreRecord
from streamer.trials.trial import CallFold, Trial

MAX_TRIALS: Final = 50_000
"""Trials that are compared at once, some 3 kB each; further calls are left out and counted."""
MAX_OPEN_CALLS: Final = 20_000
"""Calls that are followed at once until they close, some 20 kB each; further ones are left out and counted."""

NO_GOALS: Final = "without goals"
NOT_CLOSED: Final = "not over"
BEGAN_BEFORE: Final = "began before --since"
TOO_MANY: Final = "over the limit"
DAMAGED: Final = "with records that cannot be read"


class Trials:
    """The trials so far. Equal goal sets are kept once.

    Attributes:
        found: In the order in which they were added.
        left_out: Calls that are no trials, by reason.
    """

    def __init__(self) -> None:
        """Begins without a trial."""
        self.found: list[Trial] = []
        self.left_out: Counter[str] = Counter()
        self._sets: dict[str, GoalSet] = {}

    def add(self, trial: Trial | None) -> None:
        """Adds one call; None is a call without goals."""
        if trial is None:
            self.left_out[NO_GOALS] += 1
        elif len(self.found) == MAX_TRIALS:
            self.left_out[TOO_MANY] += 1
        else:
            self.found.append(replace(trial, goal_set=self._sets.setdefault(trial.version, trial.goal_set)))


class CallFolds:
    """The calls whose records come mixed, until each closes."""

    def __init__(self, trials: Trials, place_of: Callable[[str], str], since_ms: int = 0) -> None:
        """Begins without a call.

        Args:
            trials: Gets the trial of each call that closes.
            place_of: The place of a call by its id, as `Trial.place`.
            since_ms: Calls that closed before this are no trials, and records before it may be missing; 0 for neither.
        """
        self._trials = trials
        self._place_of = place_of
        self._since_ms = since_ms
        self._folds: dict[str, CallFold] = {}
        self._damaged: set[str] = set()

    def take(self, conversation_id: str, record: AnyScoreRecord) -> None:
        """Folds one record. Records of an id after its `closed` are another call."""
        fold = self._folds.get(conversation_id)
        if fold is None:
            if len(self._folds) == MAX_OPEN_CALLS:
                self._trials.left_out[TOO_MANY] += record.name == "closed"
                return
            fold = self._folds[conversation_id] = CallFold()
        fold.take(record)
        if fold.closed_at_ms is None:
            return
        del self._folds[conversation_id]
        is_damaged = conversation_id in self._damaged
        self._damaged.discard(conversation_id)
        if fold.closed_at_ms < self._since_ms:
            return
        if is_damaged:
            self._trials.left_out[DAMAGED] += 1
            return
        trial = fold.trial(conversation_id, self._place_of(conversation_id))
        if trial is None and self._since_ms and not fold.has_start:
            self._trials.left_out[BEGAN_BEFORE] += 1
        else:
            self._trials.add(trial)

    def damage(self, conversation_id: str) -> None:
        """Notes that a record of this call cannot be read: without it the call would be another one."""
        if len(self._damaged) < MAX_OPEN_CALLS:
            self._damaged.add(conversation_id)

    def damage_open_calls(self) -> None:
        """Notes that a record cannot be read and can be of any open call."""
        for conversation_id in self._folds:
            self.damage(conversation_id)

    def end(self) -> None:
        """Counts the calls that did not close."""
        if self._folds:
            self._trials.left_out[NOT_CLOSED] += len(self._folds)
        self._folds.clear()
