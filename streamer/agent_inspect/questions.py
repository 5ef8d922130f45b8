"""Makes the questions to the judge about a trace: with callgauge's own prompt or the user's template, and without personal data."""

from typing import Final

from pydantic import ValidationError

from consumers.engine.agent_inspect import Ballot, CheckedValue, Step, Turn
from consumers.engine.goals.checks import CalledTool, TurnFacts
from consumers.engine.goals.questions import in_words
from consumers.engine.goals.text_judges import transcript_of
from consumers.engine.goals.tool_correctness import ToolQuestion
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompts import AnswerForm, question_of
from schemas.closed_sets import JudgeKind, UnjudgedReason
from schemas.judging import MAX_RETRY_WAVES, MAX_TRIALS, JudgeRequest, TranscriptItem, prompt_version
from schemas.wire import MAX_TEXT_CHARS
from streamer.agent_inspect.documents import TraceDocument

_BEFORE_ANY_DEADLINE_MS: Final = 0
"""Questions are asked when their turn comes; the judge counts their deadline from then on."""


class NotJudgedError(Exception):
    """The judge gives no verdict for a reason that agent-inspect does not know, such as a budget.

    Attributes:
        reason: The reason.
    """

    def __init__(self, reason: UnjudgedReason | str) -> None:
        super().__init__(f"The judge gives no verdict: {reason}.")
        self.reason = str(reason)


class TraceQuestions:
    """Makes the requests of one trace. Each turn is redacted once."""

    def __init__(self, document: TraceDocument, agent: str, patience_ms: int, redactor: Redactor) -> None:
        """Starts without a question.

        Args:
            document: The trace.
            agent: The agent whose budget pays.
            patience_ms: Time that the judge has for each question.
            redactor: Redacts texts of the trace and its sample.
        """
        self._document = document
        self._agent = agent
        self._patience_ms = patience_ms
        self._redactor = redactor
        self._items: list[tuple[TranscriptItem, ...]] = []

    def request(self, ballot: Ballot) -> JudgeRequest:
        """The request for a ballot.

        Raises:
            NotJudgedError: The question is larger than any judge of callgauge reads.
        """
        if ballot.trials > MAX_TRIALS or ballot.retry_waves > MAX_RETRY_WAVES:
            raise NotJudgedError(f"at most {MAX_TRIALS} trials and {MAX_RETRY_WAVES} retry waves are possible")
        instruction = self._document.user_instruction if ballot.reads_instruction else None
        # As in agent-inspect, a template is for subgoals of dynamic conversations.
        template = self._document.template if ballot.reads_instruction else None
        try:
            request = JudgeRequest(
                conversation_id=self._document.trace_id, kind=JudgeKind.SUBGOAL, turn=ballot.turn_index + 1,
                subgoal_id=_id_of(ballot), subgoal=self._subgoal(ballot),
                user_instruction=self._redacted(instruction) if instruction and instruction.strip() else None,
                transcript=self._transcript(ballot), trials=ballot.trials, stops_early=ballot.stops_early,
                retry_waves=ballot.retry_waves, prompt_version=prompt_version(template), template=template,
                asked_at_ms=_BEFORE_ANY_DEADLINE_MS, deadline_ms=_BEFORE_ANY_DEADLINE_MS + self._patience_ms,
                agent=self._agent,
            )  # fmt: skip
        except ValidationError as error:  # ids and options are checked: only bounds of length remain
            raise NotJudgedError(UnjudgedReason.TOO_LONG) from error
        if request.is_too_large:
            raise NotJudgedError(UnjudgedReason.TOO_LONG)
        return request

    def prompt(self, ballot: Ballot, form: AnswerForm) -> str:
        """The whole prompt of a ballot, rules and question, as the judge sends it. Raises as `request`."""
        question = question_of(self.request(ballot), form)
        return f"{question.system}\n\n{question.user}"

    def _subgoal(self, ballot: Ballot) -> str:
        about = ballot.about
        if not isinstance(about, CheckedValue):
            return self._redacted(about.details)
        turn = ballot.turn_index + 1
        call = _called(about.step)
        return in_words(ToolQuestion(turn, ballot.place, 0, about.name, about.check, about.value, call), self._redactor)

    def _transcript(self, ballot: Ballot) -> tuple[TranscriptItem, ...]:
        if isinstance(ballot.about, CheckedValue):  # as in agent-inspect, the tool call is all that the judge reads
            facts = TurnFacts("", "", (_called(ballot.about.step),))
            return transcript_of(ballot.turn_index + 1, facts, self._redactor)
        turns = self._document.turns or ()
        for number in range(len(self._items) + 1, ballot.turn_index + 2):
            self._items.append(transcript_of(number, _facts(turns[number - 1]), self._redactor))
        return tuple(item for items in self._items[: ballot.turn_index + 1] for item in items)

    def _redacted(self, text: str) -> str:
        return self._redactor.beginning(text, MAX_TEXT_CHARS)


def _id_of(ballot: Ballot) -> str:
    """Name of the question within its turn; two subgoals with the same text are two questions."""
    return f"{'tool' if isinstance(ballot.about, CheckedValue) else 'subgoal'}-{ballot.place + 1}"


def _facts(turn: Turn) -> TurnFacts:
    calls = tuple(_called(step) for step in turn.steps or () if step.tool)
    return TurnFacts(str(turn.user_text), str(turn.assistant_text), calls)


def _called(step: Step) -> CalledTool:
    arguments = {argument.name: argument.value for argument in step.arguments or ()}
    # A trace does not say whether a tool failed; an output may.
    return CalledTool(str(step.tool), arguments, step.output, None if step.output is None else True)
