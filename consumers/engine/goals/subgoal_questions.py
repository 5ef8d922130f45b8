"""Makes the questions to judges about subgoals and about values of tool calls."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from consumers.engine.goals.tool_correctness import Finding, ToolQuestion
from consumers.engine.judging.open_questions import Answer
from consumers.engine.judging.rules import GoalRules
from consumers.engine.redaction.call_redaction import CallRedactor
from consumers.engine.redaction.redactor import Redactor
from schemas.goals.goal_set import GoalSet
from schemas.judging import (
    MAX_EXPLANATION_CHARS,
    MAX_RAW_ANSWER_CHARS,
    GoalSetRef,
    Judged,
    JudgeKind,
    JudgeRequest,
    TranscriptItem,
    TrialAnswer,
    prompt_version,
)
from schemas.scores.all_records import UnscoredReason
from schemas.wire import MAX_TEXT_CHARS

AT_RISK: Final = 5
"""Priority of a call that is stuck, of 0 to 9: someone may still want to step in."""
MAX_VALUE_CHARS: Final = 4_000
"""Longest argument or answer in a question about it."""

About = tuple[int, int] | ToolQuestion
"""A turn and a subgoal's place in the goal set, or a value of a tool call."""


class SubgoalQuestions:
    """Makes the requests of one call, and remembers the findings about tool calls.

    Attributes:
        agent: The agent whose budget pays for the judges' work.
        priority: Urgency of questions; higher for a call at risk.
    """

    def __init__(self, conversation_id: str, goal_set: GoalSet, rules: GoalRules, redactor: CallRedactor) -> None:
        self.agent = "unknown"
        self.priority = 0
        self._conversation_id = conversation_id
        self._goal_set = goal_set
        self._ref = GoalSetRef(id=goal_set.id, digest=goal_set.digest)
        self._rules = rules
        self._redactor = redactor
        self._redacted: dict[str, str] = {}
        self._found: dict[str, bool | UnscoredReason] = {}

    def request(self, about: About, transcript: tuple[TranscriptItem, ...], broker_ms: int) -> JudgeRequest:
        """The request for a question."""
        if isinstance(about, ToolQuestion):
            turn, subgoal_id, subgoal = (
                about.turn,
                f"tool-{about.expected}-{about.parameter or 'answer'}",
                in_words(about, self._redactor),
            )
        else:
            turn, place = about
            asked = self._goal_set.subgoals[place]
            subgoal_id, subgoal = asked.id, self._redacted_text(asked.details)
        rules, instruction = self._rules, self._goal_set.user_instruction
        template = None if isinstance(about, ToolQuestion) else rules.template_subgoal
        return JudgeRequest(
            conversation_id=self._conversation_id, kind=JudgeKind.SUBGOAL, turn=turn, goal_set=self._ref,
            subgoal_id=subgoal_id, subgoal=subgoal, user_instruction=None if instruction is None else self._redacted_text(instruction),
            transcript=transcript, trials=rules.trials, stops_early=rules.stops_early,
            retry_waves=rules.retry_waves, prompt_version=prompt_version(template), template=template, asked_at_ms=broker_ms,
            deadline_ms=broker_ms + rules.verdict_deadline_ms, agent=self.agent, priority=self.priority,
        )  # fmt: skip

    def _redacted_text(self, text: str) -> str:
        """A text of the goal set without personal data, as in the transcript that judges compare it with."""
        redacted = self._redacted.get(text)
        if redacted is None:
            redacted = self._redacted[text] = self._redactor.beginning(text, MAX_TEXT_CHARS)
        return redacted

    def redacted(self, trials: Iterable[TrialAnswer]) -> tuple[TrialAnswer, ...] | None:
        """The trials of a verdict for a record, without personal data; None if there are none."""
        texts = self._redactor.beginning
        return (
            tuple(
                trial.model_copy(
                    update={
                        "explanation": texts(trial.explanation, MAX_EXPLANATION_CHARS),
                        "raw": None if trial.raw is None else texts(trial.raw, MAX_RAW_ANSWER_CHARS),
                    }
                )
                for trial in trials
            )
            or None
        )

    def found(self, question: ToolQuestion) -> Finding:
        """The known finding about a value of a tool call."""
        return self._found.get(_key(question))

    def find(self, answer: Answer[About]) -> bool | UnscoredReason:
        """The finding in an answer; one about a tool call is remembered."""
        result = answer.result
        if isinstance(result, Judged):
            finding: bool | UnscoredReason = result.is_completed
        else:
            finding = result if isinstance(result, UnscoredReason) else UnscoredReason.INVALID_ANSWERS
        if isinstance(answer.about, ToolQuestion):
            self._found[_key(answer.about)] = finding
        return finding


def turn_of(about: About) -> int:
    """The turn of a question."""
    return about.turn if isinstance(about, ToolQuestion) else about[0]


def _key(question: ToolQuestion) -> str:
    return "\x00".join((str(question.turn), question.parameter or "", question.check, _json(question.value)))


def in_words(question: ToolQuestion, redactor: CallRedactor | Redactor) -> str:
    """A question about a tool call in plain words, as a subgoal of its turn."""
    found = redactor.redact_value({question.parameter or "": question.value})
    value = next(iter(found.values()))
    what = "the answer" if question.parameter is None else f"the argument {question.parameter!r}"
    return (
        f"In turn {question.turn} the assistant used the tool {question.call.tool!r}, and {what} of that use is as it must "
        f"be. It must be so: {redactor.redact(question.check)} It is: {_json(value)}"
    )


def _json(value: object) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)[:MAX_VALUE_CHARS]
    return str(value)[:MAX_VALUE_CHARS]
