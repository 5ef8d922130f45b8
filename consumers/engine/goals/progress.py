"""Progress of a call towards its goals: subgoals as verdicts and checks reach them, and stalls."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.goals.checks import CheckPlan, CheckState, SubgoalChecks
from consumers.engine.goals.curve import ProgressCurve
from consumers.engine.goals.questions import (
    AT_RISK,
    MAX_KEPT_VERDICTS,
    AskedAbout,
    AskingBudget,
    OpenQuestions,
    QuestionOutcome,
    SteadyWords,
    SubgoalQuestions,
    turn_of,
    value_in_words,
)
from consumers.engine.goals.text_judges import JudgedTurns, Ratings, TextJudges, facts_of
from consumers.engine.goals.tool_correctness import Difference, ToolCorrectness, ToolQuestion
from consumers.engine.limits import GoalRules
from consumers.engine.rows import CallRows
from consumers.engine.sources.facts import Started
from consumers.engine.turns.live import LiveCall, LiveChanges
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import ChoosesGoals, GoalSet
from schemas.judging import JudgeRequest, JudgeVerdict, TrialAnswer, Votes
from schemas.rows import (
    NO_TURN_JUDGED,
    Goals,
    GoalsRow,
    Stall,
    SubgoalResult,
    ToolDifference,
    Unscored,
    Value,
)

# Finds stalls: no further subgoal for too many turns or too long, while some are open. Each stall
# is published once.


class Stalls:
    """Follows one call. A stall is named by the turn of the last progress, 0 without any.

    Attributes:
        is_stuck: Whether no subgoal was reached since the last published stall.
    """

    def __init__(self, rules: GoalRules, rows: CallRows) -> None:
        self.is_stuck = False
        self._rules = rules
        self._rows = rows
        self._moved_ms: int | None = None
        self._numbers: dict[int, int] = {}

    def begins(self, broker_ms: int) -> None:
        """Starts the clock: there is a turn to judge."""
        if self._moved_ms is None:
            self._moved_ms = broker_ms

    def moved(self, broker_ms: int) -> None:
        """Starts the clock again: a subgoal was reached, or is not reached any more."""
        self._moved_ms = broker_ms
        self.is_stuck = False

    def pass_gap(self, until_ms: int) -> None:
        """Starts the clock again, if it runs: until then no events were taken."""
        if self._moved_ms is not None:
            self._moved_ms = max(self._moved_ms, until_ms)

    def due_at_ms(self, since_turn: int) -> int | None:
        """Broker time at which the call is stuck if no subgoal is reached; None when this stall is
        published already.
        """
        if self._moved_ms is None or since_turn in self._numbers:
            return None
        return self._moved_ms + self._rules.stall_ms

    def look_at_turns(self, since_turn: int, last_turn: int, known_ms: int) -> None:
        """Publishes the stall, if too many turns have passed."""
        if last_turn - since_turn >= self._rules.stall_turns:
            self._publish(since_turn, "turns", known_ms)

    def look_at_time(self, since_turn: int, now_ms: int) -> None:
        """Publishes the stall, if too much time has passed."""
        due_at_ms = self.due_at_ms(since_turn)
        if due_at_ms is not None and due_at_ms <= now_ms:
            self._publish(since_turn, "seconds", due_at_ms)

    def _publish(self, since_turn: int, by: Literal["turns", "seconds"], known_ms: int) -> None:
        goals = self._rows.call.goals
        if since_turn in self._numbers or goals is None:
            return
        self._numbers[since_turn] = number = len(self._numbers) + 1
        self.is_stuck = True
        self._rows.set_goals(known_ms, stalls=(*goals.stalls, Stall(since_turn, by)))
        self._rows.count(None, f"stall.{number}")


# Judges a call against its goals, turn by turn while it runs: subgoals reached, speed of progress,
# stalls.
#
# A turn is judged when the call has left it, and again only if its words or tools, or those of a
# turn before, change. Code makes the checks by code; for the others the call asks the judges, once
# the words are steady, and goes on.

LOOKED_AT_AGAIN = 3
"""Turns before the newest whose texts may come late. Older turns change only by a replay, which is
noticed.
"""


MAX_SHOWN_CHARS: Final = 200
"""Longest text of an expected or a seen value in the row: a set expects up to 100 calls."""


class _Verdict(NamedTuple):
    input_hash: str
    finding: bool | UnscoredReason
    votes: Votes
    trials: tuple[TrialAnswer, ...]


class GoalProgress:
    """Judges one call against its goal set."""

    def __init__(
        self,
        conversation_id: str,
        goal_set: GoalSet,
        plan: CheckPlan,
        rules: GoalRules,
        rows: CallRows,
    ) -> None:
        self.goal_set = goal_set
        self._plan = plan
        self._rules = rules = rules.of(goal_set)
        self._rows = rows
        self._checks = SubgoalChecks(plan)
        self._curve = ProgressCurve(len(goal_set.subgoals), goal_set.max_turns)
        self._tools = ToolCorrectness(goal_set.expected_tool_calls)
        self._asking = SubgoalQuestions(conversation_id, goal_set, rules, rows.redactor)
        self._questions: OpenQuestions[AskedAbout] = OpenQuestions(
            keeps_trials=rules.include_judge_explanation
        )
        self._places = {subgoal.id: place for place, subgoal in enumerate(goal_set.subgoals)}
        self._turns = JudgedTurns(rows.redactor, asks_judge=rules.asks_judge)
        self._verdicts: dict[int, dict[int, _Verdict]] = {}
        self._undecidable: dict[int, UnscoredReason] = {}
        self._words = SteadyWords(rules)
        self._published_subgoals: set[int] = set()
        self._last = 0
        self._seen_turn = 0
        self._seen: tuple[bool | None, int] = (None, 0)
        self._is_over, self._asks = False, True
        self._stalls = Stalls(rules, rows)

    def pass_gap(self, until_ms: int) -> None:
        """Notes that no events were taken until then."""
        self._stalls.pass_gap(until_ms)

    @property
    def next_wakeup_ms(self) -> int | None:
        """Broker time of the next deadline of a verdict, question or stall; None without any."""
        stall_ms = self._stalls.due_at_ms(self._since()) if self._is_open else None
        times_ms = [self._questions.next_deadline_ms, self._words.ask_at_ms, stall_ms]
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    @property
    def awaits_verdicts(self) -> bool:
        """Whether a question is open."""
        return self._questions.next_deadline_ms is not None

    def announce(self, known_ms: int) -> None:
        """Publishes the goal set: from now on it is the call's."""
        goal_set, rows = self.goal_set, self._rows
        unknown = SubgoalResult(NO_TURN_JUDGED)
        by_judge = sum(subgoal.is_judged for subgoal in goal_set.subgoals)
        goals = Goals(goal_set.id, goal_set.digest, (unknown,) * len(goal_set.subgoals), by_judge)
        rows.set_call(known_ms, goals=goals)
        rows.set_goals_row(
            GoalsRow(
                conversation_id=rows.call.conversation_id,
                revision=rows.revision,
                digest=goal_set.digest,
                goal_set=goal_set.model_dump(mode="json"),
            )
        )
        rows.count(None, "goals")

    def follow(
        self, live: LiveCall, changes: LiveChanges | None, broker_ms: int, out: list[Effect]
    ) -> None:
        """Judges the turns that were left, and those that changed. Texts are compared when a turn
        is left, or without `changes`.
        """
        current = live.turn
        seen = (live.is_simulated, live.history.replays.elements)
        others = () if changes is None else changes.with_tools
        has_moved = (
            changes is None
            or current != self._seen_turn
            or any(1 <= turn < current for turn in others)
        )
        if self._is_over or not has_moved:
            return
        first = min([self._last + 1 - LOOKED_AT_AGAIN, *others]) if seen == self._seen else 0
        self._seen_turn, self._seen = current, seen
        self._look(live, max(0, first), max(0, current - 1), broker_ms, out)

    def finish(self, live: LiveCall, broker_ms: int, out: list[Effect], *, asks: bool) -> None:
        """Judges every turn of a call that is over, the last one too. `asks` says whether judges
        can still answer.
        """
        self._is_over = True
        self._asks = asks
        last = live.turn
        while last > 0 and not self._says_anything(live, last):
            last -= 1
        self._look(live, 0, last, broker_ms, out)

    def fold(
        self, verdict: JudgeVerdict, live: LiveCall, broker_ms: int, out: list[Effect]
    ) -> None:
        """Applies a verdict. The next questions are about the turns as they are now."""
        self.follow(live, None, broker_ms, out)
        answer = self._questions.fold(verdict, broker_ms)
        if answer is not None:
            self._settle([answer], broker_ms, out)

    def reached(self, live: LiveCall, now_ms: int, out: list[Effect]) -> None:
        """Expires the verdicts whose deadline broker time `now_ms` has reached, asks about turns
        whose words are steady by then, and finds a stall.
        """
        late = self._questions.expire(now_ms)
        is_due = self._words.ask_at_ms is not None and self._words.ask_at_ms <= now_ms
        if is_due:  # words may have come since the turn was left
            self.follow(live, None, now_ms, out)
        if late or is_due:
            self._settle(late, now_ms, out)
        if self._is_open:
            self._stalls.look_at_time(self._since(), now_ms)

    def set_agent(self, agent: str) -> None:
        """Sets the agent whose budget pays for the judges' work."""
        self._asking.agent = agent

    def give_up(self, known_ms: int) -> None:
        """Sets the scores that change at the end of the call; subgoals without a verdict by now get
        a reason instead.
        """
        self._apply(self._questions.give_up())
        self._asks = False
        self._ask(0)
        self._published_subgoals.update(range(len(self.goal_set.subgoals)))
        self._publish_changes(known_ms)

    def publish_values(self, known_ms: int, *, is_over: bool) -> None:
        """Sets the values of the whole call, so far or at its end."""
        goals = self._rows.call.goals
        if goals is None:
            return
        if self.goal_set.expected_tool_calls:
            tools = None
            if is_over:
                tools = self._tools.at_end(self._last)
            elif self._last:
                tools = self._tools.at(self._last)
            called_in: dict[str, dict[int, None]] = {}
            for turn, facts in sorted(self._turns.facts.items()):
                for call in facts.calls:
                    called_in.setdefault(call.tool.strip(), {})[turn] = None
            expected = tuple(
                self._tools.found(self._last, called_in, self._in_words, is_over=is_over)
            )
            self._rows.set_goals(known_ms, tool_correctness=tools, expected_tools=expected)
        if is_over:
            reasons = [
                each.result.reason for each in goals.subgoals if isinstance(each.result, Unscored)
            ]
            now = self._curve.now
            self._rows.set_goals(
                known_ms,
                success_final_turn=None if now is None else now.success,
                unscored_subgoals=dict(sorted(Counter(reasons).items())),
            )

    def _in_words(self, difference: Difference) -> ToolDifference:
        name, required, redactor = difference.parameter, difference.required, self._rows.redactor
        if required.check is None:
            expected = value_in_words(name, required.value, redactor, MAX_SHOWN_CHARS)
        else:
            expected = redactor.beginning(required.check, MAX_SHOWN_CHARS)
        is_there, value = difference.is_there, difference.value
        seen = value_in_words(name, value, redactor, MAX_SHOWN_CHARS) if is_there else None
        return ToolDifference(name, expected, seen)

    # Turns.

    def _look(
        self, live: LiveCall, first: int, last: int, broker_ms: int, out: list[Effect]
    ) -> None:
        if last >= 1:
            self._stalls.begins(broker_ms)
        first = 0 if 0 not in self._turns.facts else min(first, last + 1)
        other_words = self._turns.look(live, first, last)
        changed = [
            turn
            for turn in range(first, last + 1)
            if self._is_news(turn, has_other_words=turn in other_words)
        ]
        self._words.changed(changed, broker_ms)
        for turn in range(last + 1, self._last + 1):
            self._drop(turn, broker_ms)
        if not changed and last == self._last and not self._is_over:
            return
        self._curve.remove_from(last + 1)
        self._tools.forget_from(last + 1)
        self._last = last
        first_changed = min(changed, default=last + 1)
        self._turns.hash_from(first_changed, last, self.goal_set.digest)
        for turn in range(max(1, first_changed), last + 1):
            self._curve.set_input(turn, self._turns.inputs[turn])
        results = self._checks.results(is_over=self._is_over)
        undecidable = self._checks.undecidable()
        self._undecidable = {
            self._places[subgoal]: each.reason for subgoal, each in undecidable.items()
        }
        for subgoal, result in results.items():
            reached_at = result.turn if result.state is CheckState.REACHED else None
            self._curve.know(self._places[subgoal], reached_at, undecidable.get(subgoal))
        self._questions.forget_unless(
            lambda about, input_hash: self._turns.inputs.get(turn_of(about)) == input_hash
        )
        self._settle([], broker_ms, out)

    def _is_news(self, turn: int, *, has_other_words: bool) -> bool:
        """Shows the turn to the checks by code; returns whether its words, tools or
        times differ.
        """
        if turn < 1:
            return has_other_words
        facts = self._turns.facts[turn]
        if has_other_words:
            self._tools.look(turn, facts.calls, self._asking.found)
        return self._checks.set_turn(turn, facts)

    def _drop(self, turn: int, known_ms: int) -> None:
        """Drops a turn that does not exist any more."""
        if not self._turns.drop(turn):
            return
        self._checks.drop_turn(turn)
        if turn in self._rows.turns:
            self._rows.set_turn(turn, known_ms, progress=None)

    def _says_anything(self, live: LiveCall, turn: int) -> bool:
        facts = facts_of(live, range(turn, turn + 1))[turn]
        return bool(facts.user_words or facts.assistant_words or facts.calls)

    # Questions.

    def _settle(
        self, answers: list[QuestionOutcome[AskedAbout]], broker_ms: int, out: list[Effect]
    ) -> None:
        """Applies answers, asks the next questions, and publishes the changed scores."""
        before = self._curve.reached_at
        self._apply(answers)
        requests = self._ask(broker_ms)
        out.extend([RequestVerdict(request) for request in requests])
        if self._curve.reached_at != before:
            self._stalls.moved(broker_ms)
        self._publish_changes(broker_ms)
        if self._is_open:
            self._stalls.look_at_turns(self._since(), self._last, broker_ms)

    def _apply(self, answers: list[QuestionOutcome[AskedAbout]]) -> None:
        looked_at = set()
        for answer in answers:
            finding = self._asking.find(answer)
            if isinstance(answer.about, ToolQuestion):
                looked_at.add(answer.about.turn)
                continue
            turn, place = answer.about
            if not self._curve.fold(turn, place, finding, answer.input_hash):
                continue
            self._verdicts.setdefault(place, {})[turn] = _Verdict(
                answer.input_hash, finding, answer.votes, answer.trials
            )
        for turn in looked_at & self._turns.facts.keys():
            self._tools.look(turn, self._turns.facts[turn].calls, self._asking.found)

    def _ask(self, broker_ms: int) -> list[JudgeRequest]:
        """Asks all open questions; known answers may open further ones. Returns the requests to
        send.
        """
        requests: list[JudgeRequest] = []
        budget = AskingBudget()
        now_ms = None if self._is_over or not self._asks else broker_ms
        while True:
            abouts: list[AskedAbout] = [
                *self._curve.open_questions(),
                *self._tools.open_questions(),
            ]
            abouts = self._words.steady(abouts, turn_of, now_ms)
            asked = [self._put(about, broker_ms, budget) for about in abouts]
            requests += [each for each in asked if isinstance(each, JudgeRequest)]
            answers = [each for each in asked if isinstance(each, QuestionOutcome)]
            if not answers:
                return requests
            self._apply(answers)

    def _put(
        self, about: AskedAbout, broker_ms: int, budget: AskingBudget
    ) -> JudgeRequest | QuestionOutcome[AskedAbout] | None:
        turn = turn_of(about)
        self._asking.priority = AT_RISK if self._stalls.is_stuck else 0
        input_hash = self._turns.inputs[turn]
        if not self._rules.asks_judge:
            return QuestionOutcome(about, input_hash, UnscoredReason.JUDGE_DISABLED)
        if self._questions.is_open(about, input_hash):
            return None
        if budget.is_spent:  # the next turn or answer considers it again, if one comes
            return (
                None
                if self._asks
                else QuestionOutcome(about, input_hash, UnscoredReason.CALL_CUT_OFF)
            )
        transcript = budget.transcript(
            self._turns.transcripts.get(number, ()) for number in range(turn + 1)
        )
        request = self._asking.request(about, transcript, broker_ms)
        return self._questions.ask(about, input_hash, request, is_late=not self._asks)

    def _current_verdict(self, place: int) -> "_Verdict | None":
        """The newest verdict on a subgoal whose input is current."""
        verdicts = self._verdicts.get(place, {})
        current = [
            turn
            for turn, verdict in verdicts.items()
            if verdict.input_hash == self._turns.inputs.get(turn)
        ]
        return verdicts[max(current)] if current else None

    def _unknown(self, place: int) -> UnscoredReason | None:
        if place in self._undecidable:
            return self._undecidable[place]
        standing = self._current_verdict(place)
        return (
            standing.finding
            if standing is not None and isinstance(standing.finding, UnscoredReason)
            else None
        )

    # Rows.

    def _publish_changes(self, known_ms: int) -> None:
        """Sets the progress after each turn, and the subgoals; those that were never reached are
        set at the end.
        """
        curve, rows = self._curve, self._rows
        for turn in range(1, curve.turns + 1):
            progress = curve.at(turn)
            if progress is not None:
                rows.set_turn(turn, known_ms, progress=progress)
        reached_at = dict(enumerate(curve.reached_at))
        self._published_subgoals.update(
            place for place, turn in reached_at.items() if turn is not None
        )
        if rows.call.goals is None or not self._published_subgoals:
            return
        subgoals = list(rows.call.goals.subgoals)
        for place in self._published_subgoals:
            subgoals[place] = self._subgoal(place)
        rows.set_goals(known_ms, subgoals=tuple(subgoals))
        for place in sorted(self._published_subgoals):
            if reached_at[place] is not None:
                rows.count(None, f"subgoal.{place}")

    def _subgoal(self, place: int) -> SubgoalResult:
        reached_turn, standing = self._curve.reached_at[place], self._current_verdict(place)
        result: Value
        if reached_turn is not None:
            result = 1.0
        elif reason := self._unknown(place):
            result = Unscored(reason)
        else:
            result = 0.0 if self._last else NO_TURN_JUDGED
        if standing is None:
            return SubgoalResult(result, reached_turn)
        trials = tuple(
            trial.model_dump(mode="json") for trial in self._asking.redacted(standing.trials)
        )
        return SubgoalResult(
            result, reached_turn, standing.votes.complete, standing.votes.incomplete, trials
        )

    # Stalls.

    @property
    def _is_open(self) -> bool:
        if self._is_over or self._last > self.goal_set.max_turns:  # later turns reach nothing
            return False
        left = [place for place, turn in enumerate(self._curve.reached_at) if turn is None]
        # one that cannot be judged may have been reached: then nobody knows of a stall
        return bool(left) and not any(map(self._unknown, left))

    def _since(self) -> int:
        return max((turn for turn in self._curve.reached_at if turn is not None), default=0)


# Chooses the goal set of a call, and makes the part that judges the call against it.

MAX_PLANS: Final = 200
"""Goal sets whose checks are kept ready; a fleet of agents has some tens. Checks of any other set
are made again when needed.
"""


class ChosenGoals:
    """Goals of the calls of one partition number.

    Attributes:
        rules: Rules of judging.
        source: Gives goal sets.
        logged: By call, the goal set that it got in the past; then the source is not asked. None
            where calls choose.
    """

    def __init__(self, source: ChoosesGoals | None = None, rules: GoalRules | None = None) -> None:
        """Without a source no call has goals."""
        self.rules = rules or GoalRules()
        self.source = source
        self.logged: Mapping[str, GoalSet] | None = None
        self._plans: OrderedDict[str, CheckPlan] = OrderedDict()

    def choose(
        self, conversation_id: str, goals_id: str | None, agent: str | None
    ) -> GoalSet | None:
        """The goal set for a call of this agent, or the one that the call names; None
        without any.
        """
        if self.logged is not None:
            return self.logged.get(conversation_id)
        return None if self.source is None else self.source.choose(goals_id, agent)

    def progress(self, conversation_id: str, goal_set: GoalSet, rows: CallRows) -> GoalProgress:
        """The part that judges a call against a goal set."""
        plan = self._plans.get(goal_set.digest)
        if plan is None:
            plan = self._plans[goal_set.digest] = CheckPlan(goal_set)
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return GoalProgress(conversation_id, goal_set, plan, self.rules, rows)


# The judged scores of one call: its goal progress, and the ratings of its texts.


class JudgedScores:
    """Passes the events of a call on to its goal progress and its text judges; a call may have
    neither. Effects are appended to `out`.

    Attributes:
        is_any: Whether the call has goals or text judges.
        seen_turn: Turn of the call when it was followed last; -1 before. In the same turn only
            changed uses of tools count.
        wakeup_ms: Broker time of the next deadline of a verdict, question or stall; None without
            any.
    """

    def __init__(
        self, conversation_id: str, chosen: ChosenGoals, rows: CallRows, ratings: Ratings
    ) -> None:
        self._conversation_id = conversation_id
        self._chosen = chosen
        self._rows = rows
        self._goals: GoalProgress | None = None
        self._early_verdicts: list[tuple[JudgeVerdict, int]] = []
        self._parts: list[GoalProgress | TextJudges] = []
        self._texts: TextJudges | None = None
        if chosen.rules.text_judges:
            self._texts = TextJudges(conversation_id, chosen.rules, rows, ratings)
            self._parts.append(self._texts)
        self.is_any = bool(self._parts)
        self.seen_turn = -1
        self.wakeup_ms: int | None = None

    @property
    def awaits_verdicts(self) -> bool:
        """Whether a question is open."""
        return any(part.awaits_verdicts for part in self._parts)

    def started(
        self, event: Started, agent: str, live: LiveCall, broker_ms: int, out: list[Effect]
    ) -> None:
        """Folds a `call_started`: the first one with a goal set decides the set of the call.

        Args:
            event: What it says.
            agent: The agent of the call as known now.
            live: The call's turns.
            broker_ms: Broker time of its record.
            out: Effects.
        """
        if self._goals is None:
            goal_set = self._chosen.choose(self._conversation_id, event.goals, agent)
            if goal_set is not None:
                self._goals = self._chosen.progress(self._conversation_id, goal_set, self._rows)
                self._parts.append(self._goals)
                self.is_any = True
                self.seen_turn = -1
                self._goals.announce(broker_ms)
                if self._texts is not None:
                    self._texts.set_instruction(goal_set.user_instruction)
                for verdict, came_ms in self._early_verdicts:
                    self._goals.fold(verdict, live, came_ms, out)
                self._early_verdicts.clear()
                self._plan()
        if self._texts is not None:
            self._texts.started(event)
        for part in self._parts:
            part.set_agent(agent)

    def follow(
        self, live: LiveCall, changes: LiveChanges, broker_ms: int, out: list[Effect]
    ) -> None:
        """Judges the turns that were left or changed."""
        self.seen_turn = live.turn
        for part in self._parts:
            part.follow(live, changes, broker_ms, out)
        self._plan()

    def fold(
        self, verdict: JudgeVerdict, live: LiveCall, broker_ms: int, out: list[Effect]
    ) -> None:
        """Folds a verdict. A reader that is behind may read it before the event that names the
        goals.
        """
        if self._goals is None and len(self._early_verdicts) < MAX_KEPT_VERDICTS:
            self._early_verdicts.append((verdict, broker_ms))
        for part in self._parts:
            part.fold(verdict, live, broker_ms, out)
        self._plan()

    def reached(self, live: LiveCall, now_ms: int, out: list[Effect]) -> None:
        """Expires the verdicts whose deadline broker time `now_ms` has reached, asks the questions
        that waited until then, and finds a stall.
        """
        for part in self._parts:
            part.reached(live, now_ms, out)
        self._plan()

    def pass_gap(self, until_ms: int) -> None:
        """Notes that no events were taken until then, so that nothing which did not happen is a
        stall.
        """
        if self._goals is not None:
            self._goals.pass_gap(until_ms)
            self._plan()

    def finish(self, live: LiveCall, broker_ms: int, out: list[Effect], *, asks: bool) -> None:
        """Judges every turn of a call that is over. `asks` says whether judges can still answer."""
        for part in self._parts:
            part.finish(live, broker_ms, out, asks=asks)
        self._plan()

    def _plan(self) -> None:
        self.wakeup_ms = min(
            (time_ms for part in self._parts if (time_ms := part.next_wakeup_ms)), default=None
        )

    def give_up(self, known_ms: int) -> None:
        """Sets what changes at the end of the call: no verdict can come any more."""
        if self._texts is not None:
            self._texts.give_up()
        if self._goals is not None:
            self._goals.give_up(known_ms)

    def publish_values(self, known_ms: int, *, is_over: bool) -> None:
        """Sets the goals' values of the whole call, so far or at its end."""
        if self._goals is not None:
            self._goals.publish_values(known_ms, is_over=is_over)
