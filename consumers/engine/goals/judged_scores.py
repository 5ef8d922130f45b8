"""The judged scores of one call: its goal progress, and the ratings of its texts."""

from consumers.engine.effects import Effect
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.goals.goal_progress import GoalProgress
from consumers.engine.judging.open_questions import MAX_KEPT_VERDICTS
from consumers.engine.judging.ratings import Ratings
from consumers.engine.judging.text_judges import TextJudges
from consumers.engine.records.revisions import Cause, Revisions
from consumers.engine.records.score_values import GoalValues
from consumers.engine.turns.live_call import LiveCall, LiveChanges
from schemas.judging import JudgeVerdict
from schemas.scores.all_records import AnyScoreRecord


class JudgedScores:
    """Passes the events of a call on to its goal progress and its text judges; a call may have neither. Effects are appended to
    `out`.

    Attributes:
        is_any: Whether the call has goals or text judges.
    """

    __slots__ = (
        "_chosen",
        "_conversation_id",
        "_early_verdicts",
        "_goals",
        "_parts",
        "_revisions",
        "_texts",
        "is_any",
    )

    def __init__(self, conversation_id: str, chosen: ChosenGoals, revisions: Revisions, ratings: Ratings) -> None:
        self._conversation_id = conversation_id
        self._chosen = chosen
        self._revisions = revisions
        self._goals: GoalProgress | None = None
        self._early_verdicts: list[tuple[JudgeVerdict, int]] = []
        self._parts: list[GoalProgress | TextJudges] = []
        self._texts: TextJudges | None = None
        if chosen.rules.text_judges:
            self._texts = TextJudges(conversation_id, chosen.rules, revisions, ratings)
            self._parts.append(self._texts)
        self.is_any = bool(self._parts)

    @property
    def awaits_verdicts(self) -> bool:
        """Whether a question is open."""
        return any(part.awaits_verdicts for part in self._parts)

    def started(self, goals_id: str | None, agent: str, live: LiveCall, broker_ms: int, out: list[Effect]) -> None:
        """Folds a `call_started`: the first one with a goal set decides the set of the call.

        Args:
            goals_id: Id of the goal set it names.
            agent: The agent of the call as known now.
            live: The call's turns.
            broker_ms: Broker time of its record.
            out: Effects.
        """
        if self._goals is None:
            goal_set = self._chosen.choose(self._conversation_id, goals_id, agent)
            if goal_set is not None:
                self._goals = self._chosen.progress(self._conversation_id, goal_set, self._revisions)
                self._parts.append(self._goals)
                self.is_any = True
                self._goals.announce(broker_ms, out)
                for verdict, came_ms in self._early_verdicts:
                    self._goals.fold(verdict, live, came_ms, out)
                self._early_verdicts.clear()
        for part in self._parts:
            part.set_agent(agent)

    def follow(self, live: LiveCall, changes: LiveChanges, time_ms: int, broker_ms: int, out: list[Effect]) -> None:
        """Judges the turns that were left or changed."""
        for part in self._parts:
            part.follow(live, changes, time_ms, broker_ms, out)

    def fold(self, verdict: JudgeVerdict, live: LiveCall, broker_ms: int, out: list[Effect]) -> None:
        """Folds a verdict. A reader that is behind may read it before the event that names the goals."""
        if self._goals is None and len(self._early_verdicts) < MAX_KEPT_VERDICTS:
            self._early_verdicts.append((verdict, broker_ms))
        for part in self._parts:
            part.fold(verdict, live, broker_ms, out)

    def reached(self, live: LiveCall, now_ms: int, out: list[Effect]) -> None:
        """Expires the verdicts whose deadline broker time `now_ms` has reached, asks the questions that waited until then, and finds a
        stall.
        """
        for part in self._parts:
            part.reached(live, now_ms, out)

    def finish(self, live: LiveCall, time_ms: int | None, broker_ms: int, out: list[Effect], *, asks: bool) -> None:
        """Judges every turn of a call that is over. `asks` says whether judges can still answer."""
        for part in self._parts:
            part.finish(live, time_ms, broker_ms, out, asks=asks)

    def next_wakeup(self, due_ms: int, *, is_over: bool) -> int:
        """Broker time of the next decision that silence can make; `due_ms` is the call's own, which no longer counts if it
        `is_over`.
        """
        times_ms = [time_ms for part in self._parts if (time_ms := part.next_wakeup_ms)]
        return min(times_ms if is_over and times_ms else [due_ms, *times_ms])

    def final_records(self, cause: Cause) -> list[AnyScoreRecord]:
        """Scores that change at the end of the call."""
        if self._texts is not None:
            self._texts.give_up()
        return [] if self._goals is None else self._goals.final_records(cause)

    def goal_values(self, *, is_over: bool) -> GoalValues | None:
        """The goals' values of the whole call, so far or at its end; None without goals."""
        return None if self._goals is None else self._goals.values(is_over=is_over)
