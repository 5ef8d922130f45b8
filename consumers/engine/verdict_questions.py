"""What a call has asked the judges and still waits for: one question for each subgoal, turn and input."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from consumers.engine.goal_rules import GoalRules
from consumers.engine.tool_correctness import Finding, ToolQuestion
from schemas.goals import GoalSet
from schemas.judging import (
    MAX_TRANSCRIPT_CHARS,
    MAX_TRANSCRIPT_ITEMS,
    PROMPT_VERSIONS,
    GoalSetRef,
    Judged,
    JudgeKind,
    JudgeRequest,
    JudgeVerdict,
    TranscriptItem,
    Unjudged,
    Votes,
    transcript_chars,
)
from schemas.scores import UnscoredReason

MAX_KEPT_VERDICTS: Final = 2_000
"""Verdicts of a call that are kept for when their question is asked (again): 20 turns have some 100."""
MAX_VALUE_CHARS: Final = 4_000
"""What a judge sees of an argument or an answer that it is to check."""

About = tuple[int, int] | ToolQuestion
"""A turn and a subgoal's place in the goal set, or a tool call's value."""


class Question(NamedTuple):
    """One that is open.

    Attributes:
        about: What it is about.
        input_hash: The turn's input when it was asked; of a tool call, nothing.
        request: As it was put to the judge.
    """

    about: About
    input_hash: str
    request: JudgeRequest


class Answer(NamedTuple):
    """What became of a question: what it was about, on which input, and what was found."""

    about: About
    input_hash: str
    finding: bool | UnscoredReason
    votes: Votes


class VerdictQuestions:
    """The open questions of one call, by request id. A question that was asked is asked again only on another input."""

    def __init__(self, conversation_id: str, goal_set: GoalSet, rules: GoalRules) -> None:
        self.agent = "unknown"
        self._conversation_id = conversation_id
        self._goal_set = goal_set
        self._ref = GoalSetRef(id=goal_set.id, digest=goal_set.digest)
        self._rules = rules
        self._open: dict[str, Question] = {}
        self._verdicts: OrderedDict[str, tuple[int, JudgeVerdict]] = OrderedDict()
        self._tool_findings: dict[str, bool | UnscoredReason] = {}

    @property
    def open(self) -> Iterator[JudgeRequest]:
        """What is asked and not answered, in the order of asking."""
        return (question.request for question in self._open.values())

    @property
    def next_deadline_ms(self) -> int | None:
        """Broker time at which the next of them is not waited for any more."""
        return min((question.request.deadline_ms for question in self._open.values()), default=None)

    def tool_finding(self, question: ToolQuestion) -> Finding:
        """What a judge said about a value of a tool call."""
        return self._tool_findings.get(_tool_key(question))

    def ask(
        self, about: About, input_hash: str, transcript: tuple[TranscriptItem, ...], broker_ms: int | None
    ) -> JudgeRequest | Answer | None:
        """A question is to be answered.

        Args:
            about: What it is about.
            input_hash: The turn's input.
            transcript: What the judge reads.
            broker_ms: The broker's time; None when it is too late to ask anybody.

        Returns:
            The request to send; None when it is asked already; or the answer, where it is known, or it is known that there
            will be none.
        """
        if not self._rules.asks_judge:
            return self._unanswered(about, input_hash, UnscoredReason.JUDGE_DISABLED)
        if len(transcript) > MAX_TRANSCRIPT_ITEMS or transcript_chars(transcript) > MAX_TRANSCRIPT_CHARS:
            return self._unanswered(about, input_hash, UnscoredReason.TOO_LONG)
        rules = self._rules
        if isinstance(about, ToolQuestion):
            turn, subgoal_id, subgoal = about.turn, f"tool-{about.expected}-{about.parameter or 'answer'}", _put(about)
        else:
            turn, place = about
            subgoal_id, subgoal = self._goal_set.subgoals[place].id, self._goal_set.subgoals[place].details
        request = JudgeRequest(
            conversation_id=self._conversation_id,
            kind=JudgeKind.SUBGOAL,
            turn=turn,
            goal_set=self._ref,
            subgoal_id=subgoal_id,
            subgoal=subgoal,
            user_instruction=self._goal_set.user_instruction,
            transcript=transcript,
            trials=rules.trials,
            stops_early=rules.stops_early,
            retry_waves=rules.retry_waves,
            prompt_version=PROMPT_VERSIONS[JudgeKind.SUBGOAL],
            asked_at_ms=broker_ms or 0,
            deadline_ms=(broker_ms or 0) + rules.verdict_deadline_ms,
            agent=self.agent,
        )
        name = request.request_id
        if name in self._open:
            return None
        taken_ms, verdict = self._verdicts.get(name, (0, None))
        # It was answered before: the input is again what it was, or a replay reads the answer first.
        if verdict is not None and (broker_ms is None or taken_ms < request.deadline_ms):
            known = _finding(verdict)
            if known is not None:
                return self._answer(about, input_hash, known, verdict.votes)
        if broker_ms is None:
            return self._unanswered(about, input_hash, UnscoredReason.CALL_CUT_OFF)
        self._open[name] = Question(about, input_hash, request)
        return request

    def take(self, verdict: JudgeVerdict, broker_ms: int) -> Answer | None:
        """A verdict; None when it answers nothing that is open, or came too late."""
        self._verdicts.setdefault(verdict.request_id, (broker_ms, verdict.model_copy(update={"answers": ()})))
        if len(self._verdicts) > MAX_KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        question = self._open.get(verdict.request_id)
        finding = _finding(verdict)
        if question is None or finding is None or broker_ms >= question.request.deadline_ms:
            return None
        return self._answered(verdict.request_id, finding, verdict.votes)

    def expire(self, now_ms: int) -> list[Answer]:
        """Broker time has reached `now_ms`: what is not waited for any more."""
        late = [name for name, question in self._open.items() if question.request.deadline_ms <= now_ms]
        return [self._answered(name, UnscoredReason.DEADLINE, Votes()) for name in late]

    def give_up(self) -> list[Answer]:
        """The call is closed before the answers could come."""
        return [self._answered(name, UnscoredReason.CALL_CUT_OFF, Votes()) for name in list(self._open)]

    def forget_unless(self, inputs: Mapping[int, str]) -> None:
        """Questions about turns whose input is none of these any more are not waited for."""
        for name, question in list(self._open.items()):
            if inputs.get(question.request.turn) != question.input_hash:
                del self._open[name]

    def _unanswered(self, about: About, input_hash: str, reason: UnscoredReason) -> Answer:
        return self._answer(about, input_hash, reason, Votes())

    def _answered(self, name: str, finding: bool | UnscoredReason, votes: Votes) -> Answer:  # noqa: FBT001  # a verdict is data
        question = self._open.pop(name)
        return self._answer(question.about, question.input_hash, finding, votes)

    def _answer(self, about: About, input_hash: str, finding: bool | UnscoredReason, votes: Votes) -> Answer:  # noqa: FBT001  # as above
        if isinstance(about, ToolQuestion):
            self._tool_findings[_tool_key(about)] = finding
        return Answer(about, input_hash, finding, votes)


def _finding(verdict: JudgeVerdict) -> bool | UnscoredReason | None:
    match verdict.result:
        case Judged(is_completed=is_completed):
            return is_completed
        case Unjudged(reason=reason):
            return UnscoredReason(reason.value)
    return None


def _tool_key(question: ToolQuestion) -> str:
    return "\x00".join((str(question.turn), question.parameter or "", question.check, _json(question.value)))


def _put(question: ToolQuestion) -> str:
    """A tool question in plain words, as a subgoal of its turn."""
    what = "the answer" if question.parameter is None else f"the argument {question.parameter!r}"
    return (
        f"In turn {question.turn} the assistant used the tool {question.call.tool!r}, and {what} of that use is as it must "
        f"be. It must be so: {question.check} It is: {_json(question.value)}"
    )


def _json(value: object) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)[:MAX_VALUE_CHARS]
    return str(value)[:MAX_VALUE_CHARS]
