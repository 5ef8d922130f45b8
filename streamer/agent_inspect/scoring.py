"""Scores finished traces with agent-inspect's scorers, and asks the judge what they need."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from consumers.engine import agent_inspect as observed
from consumers.engine.agent_inspect import (
    AgentTurn,
    Asking,
    Ballot,
    EvaluationError,
    InvalidInputValueError,
    NumericalScore,
    PlainSubgoal,
    SubGoalValidationResult,
    Validation,
    Vote,
    area_of,
    auc_of,
    judge_statistics,
    pass_at_k,
    pass_hat_k,
    per_turn_of,
    ppt_of,
    progress_of,
    progress_through_turns,
    static_validations,
    success_at_end_of,
    success_from,
    tool_correctness,
)
from consumers.engine.goals.checks import TurnFacts
from consumers.engine.goals.questions import in_words
from consumers.engine.goals.text_judges import transcript_of
from consumers.engine.goals.tool_correctness import ToolQuestion
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompts import question_of, read_answer
from consumers.judge.settings import AnswerForm
from schemas.closed_sets import JudgeKind, UnjudgedReason
from schemas.judging import (
    MAX_RETRY_WAVES,
    MAX_TRIALS,
    Judged,
    JudgeRequest,
    JudgeVerdict,
    TranscriptItem,
    Unjudged,
    prompt_version,
)
from schemas.wire import MAX_TEXT_CHARS
from streamer.agent_inspect.traces import (
    TEMPLATE,
    TraceDocument,
    TraceFiles,
    read_samples,
    trace_in,
)
from streamer.facts import Scorer
from streamer.offline.call_work import Done, Reading
from streamer.offline.judge_in_process import JudgeInProcess, side_by_side
from streamer.recordings.elements import Element
from streamer.recordings.files import RecordingError
from streamer.settings.all_settings import Settings

# Makes the questions to the judge about a trace: with callgauge's own prompt or the user's
# template, and without personal data.

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

    def __init__(
        self, document: TraceDocument, agent: str, patience_ms: int, redactor: Redactor
    ) -> None:
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
            raise NotJudgedError(
                f"at most {MAX_TRIALS} trials and {MAX_RETRY_WAVES} retry waves are possible"
            )
        instruction = self._document.user_instruction if ballot.reads_instruction else None
        # As in agent-inspect, a template is for subgoals of dynamic conversations.
        template = self._document.options.template_subgoal if ballot.reads_instruction else None
        try:
            request = JudgeRequest(
                conversation_id=self._document.trace_id,
                kind=JudgeKind.SUBGOAL,
                turn=ballot.turn_index + 1,
                subgoal_id=_id_of(ballot),
                subgoal=self._subgoal(ballot),
                user_instruction=self._redacted(instruction)
                if instruction and instruction.strip()
                else None,
                transcript=self._transcript(ballot),
                trials=ballot.trials,
                stops_early=ballot.stops_early,
                retry_waves=ballot.retry_waves,
                prompt_version=prompt_version(template),
                template=template,
                asked_at_ms=_BEFORE_ANY_DEADLINE_MS,
                deadline_ms=_BEFORE_ANY_DEADLINE_MS + self._patience_ms,
                agent=self._agent,
            )
        # ids and options are checked: only bounds of length remain
        except ValidationError as error:
            raise NotJudgedError(UnjudgedReason.TOO_LONG) from error
        if request.is_too_large:
            raise NotJudgedError(UnjudgedReason.TOO_LONG)
        return request

    def prompt(self, ballot: Ballot, form: AnswerForm) -> str:
        """The whole prompt of a ballot, rules and question, as the judge sends it. Raises as
        `request`.
        """
        question = question_of(self.request(ballot), form)
        return f"{question.system}\n\n{question.user}"

    def _subgoal(self, ballot: Ballot) -> str:
        about = ballot.about
        return (
            in_words(about, self._redactor)
            if isinstance(about, ToolQuestion)
            else self._redacted(about.details)
        )

    def _transcript(self, ballot: Ballot) -> tuple[TranscriptItem, ...]:
        # as in agent-inspect, the tool call is all that the judge reads
        if isinstance(ballot.about, ToolQuestion):
            facts = TurnFacts("", "", (ballot.about.call,))
            return transcript_of(ballot.turn_index + 1, facts, self._redactor)
        turns = self._document.turns or ()
        for number in range(len(self._items) + 1, ballot.turn_index + 2):
            self._items.append(transcript_of(number, _facts(turns[number - 1]), self._redactor))
        return tuple(item for items in self._items[: ballot.turn_index + 1] for item in items)

    def _redacted(self, text: str) -> str:
        return self._redactor.beginning(text, MAX_TEXT_CHARS)


def _id_of(ballot: Ballot) -> str:
    """Name of the question within its turn; two subgoals with the same text are two questions."""
    return f"{'tool' if isinstance(ballot.about, ToolQuestion) else 'subgoal'}-{ballot.place + 1}"


def _facts(turn: AgentTurn) -> TurnFacts:
    calls = tuple(step.call for step in turn.steps or () if step.tool)
    return TurnFacts(str(turn.user_text), str(turn.assistant_text), calls)


# agent-inspect's scorers on one document. Their results are its dataclasses, here and as JSON.
#
# Each error that one of its scorers ends with is the result of that scorer. Progress over turns is
# judged once, for all four scorers that need it; agent-inspect judges again for each.

Json = Any

_OBSERVED: Final[Mapping[Scorer, Callable[[Any], float]]] = {
    Scorer.TOTAL_LATENCY: observed.total_latency_ms,
    Scorer.AVERAGE_LATENCY: observed.average_latency_ms,
    Scorer.INPUT_TOKENS: lambda turns: observed.tokens(turns, "input"),
    Scorer.OUTPUT_TOKENS: lambda turns: observed.tokens(turns, "output"),
    Scorer.REASONING_TOKENS: lambda turns: observed.tokens(turns, "reasoning"),
    Scorer.TOKENS: lambda turns: observed.tokens(turns, "input", "output", "reasoning"),
    Scorer.TOOL_CALLS: observed.tool_call_count,
}
_ENDS = (
    EvaluationError,
    InvalidInputValueError,
    NotJudgedError,
    TypeError,
    IndexError,
    KeyError,
    ValueError,
)
"""Its own errors, and those that it lets through; and a question without a verdict."""

PromptOf = Callable[[Ballot], str]


def is_static(document: TraceDocument) -> bool:
    """Whether a subgoal names its turn by a number: then the conversation is scripted."""
    return any(isinstance(subgoal.turn, int) for subgoal in document.subgoals)


class TraceScores:
    """Asks for the verdicts on one trace, and gives the scores that follow. Each may end with one
    of agent-inspect's errors.
    """

    def __init__(self, document: TraceDocument, prompt_of: PromptOf) -> None:
        """Asks nothing yet.

        Args:
            document: The trace with its sample.
            prompt_of: The prompt of a ballot, for `include_prompt_sent_to_llmj`.
        """
        self._document = document
        self._turns: Any = document.turns  # without any, scorers end as agent-inspect's do
        self._prompt_of = prompt_of

    def progress(self) -> Asking[list[NumericalScore]]:
        """`ProgressScore`: each subgoal judged once, after the turn that it names; a
        list of one.
        """
        document = self._document
        found = yield from static_validations(self._turns, document.subgoals, document.options)
        verdicts = [self._verdict(each, is_dynamic=False) for each in found]
        return [
            NumericalScore(
                progress_of(each.is_completed for each in found),
                None,
                _explanations(found),
                verdicts,
            )
        ]

    def progress_through_turns(self) -> Asking[list[NumericalScore]]:
        """`ProgressScoresThroughTurns`: the progress after each turn."""
        document, curve = self._document, []
        instruction = document.user_instruction
        entries = yield from progress_through_turns(
            self._turns, document.subgoals, document.options, instruction
        )
        for entry in entries:
            verdicts = None
            if entry.validations is not None:
                verdicts = [self._verdict(each, is_dynamic=True) for each in entry.validations]
            curve.append(
                NumericalScore(entry.progress, None, _explanations(entry.explained), verdicts)
            )
        return curve

    def tools(self) -> Asking[list[NumericalScore]]:
        """`ToolCorrectnessMetric`; a list of one."""
        # without any, it ends as agent-inspect's does
        expected: Any = self._document.expected_calls
        found = yield from tool_correctness(self._turns, expected, self._document.options)
        explained = [{each.expected.tool: list(each.explanations)} for each in found]
        return [NumericalScore(progress_of(each.is_made for each in found), None, explained)]

    def observed(self, scorer: Scorer) -> NumericalScore:
        """What a trace shows without a judge: latencies, tokens, tool calls."""
        return NumericalScore(_OBSERVED[scorer](self._turns))

    def _verdict(self, each: Validation, *, is_dynamic: bool) -> SubGoalValidationResult:
        ballot = Ballot(
            each.turn_index,
            each.place,
            each.subgoal,
            1,
            stops_early=True,
            retry_waves=0,
            reads_instruction=is_dynamic,
        )
        keeps_prompt = self._document.options.include_prompt_sent_to_llmj
        prompt = self._prompt_of(ballot) if keeps_prompt else None
        return SubGoalValidationResult(each.is_completed, _explained(each), each.subgoal, prompt)


_OfJudged = Mapping[Scorer, Callable[[Sequence[NumericalScore]], Json]]
_OF_STATIC: Final[_OfJudged] = {
    Scorer.PROGRESS: itemgetter(0),
    Scorer.SUCCESS: lambda judged: success_from(judged[0]),
}
_OF_CURVE: Final[_OfJudged] = {
    Scorer.THROUGH_TURNS: list,
    Scorer.AUC: area_of,
    Scorer.PPT: per_turn_of,
    Scorer.SUCCESS_AT_END: success_at_end_of,
}
_OF_TOOLS: Final[_OfJudged] = {Scorer.TOOLS: itemgetter(0)}


def default_scorers(document: TraceDocument) -> tuple[Scorer, ...]:
    """The scorers of a document for which none are named. Tool correctness is computed if calls are
    expected.
    """
    judged = _OF_STATIC if is_static(document) else _OF_CURVE
    return (*judged, *_OF_TOOLS) if document.expected_calls else (*judged,)


def metrics_of(
    document: TraceDocument, scorers: Iterable[Scorer], prompt_of: PromptOf
) -> Asking[dict[str, Json]]:
    """The results of these scorers by class name; an error in place of a result that a scorer ends
    with.

    Args:
        document: The trace with its sample.
        scorers: The scorers; each question is asked once for all of them.
        prompt_of: The prompt of a ballot, for `include_prompt_sent_to_llmj`.
    """
    scores = TraceScores(document, prompt_of)
    named = list(dict.fromkeys(scorers))
    results = {
        scorer: _or_error(partial(scores.observed, scorer))
        for scorer in named
        if scorer in _OBSERVED
    }
    statistics: _OfJudged = {Scorer.STATISTICS: _statistics_of}
    of_static, of_curve = (statistics, {}) if is_static(document) else ({}, statistics)
    for results_of, judging in (
        ({**_OF_STATIC, **of_static}, scores.progress),
        ({**_OF_CURVE, **of_curve}, scores.progress_through_turns),
        (_OF_TOOLS, scores.tools),
    ):
        wanted = [scorer for scorer in named if scorer in results_of]
        try:
            judged = (yield from judging()) if wanted else []
        except _ENDS as error:
            results |= dict.fromkeys(wanted, encoded_error(error))
        else:
            results |= {scorer: _or_error(partial(results_of[scorer], judged)) for scorer in wanted}
    return {scorer.value: results[scorer] for scorer in named}


def known_metrics_of(document: TraceDocument) -> dict[str, Json]:
    """The results that follow from results, as agent-inspect's static helpers compute them; nobody
    is asked.
    """
    known, results = document.known, {}
    if "progress_scores" in known:
        values = known["progress_scores"]
        results["AUC"] = _or_error(lambda: NumericalScore(auc_of(values)))
        results["PPT"] = _or_error(lambda: NumericalScore(ppt_of(values)))
    if "progress_score" in known:
        results["SuccessScore"] = _or_error(
            lambda: success_from(NumericalScore(known["progress_score"]))
        )
    if "validation_results" in known:
        listed = known["validation_results"]
        results["ProgressScore"] = _or_error(lambda: NumericalScore(progress_of(_flags(listed))))
        results["SuccessScore"] = _or_error(
            lambda: success_from(NumericalScore(progress_of(_flags(listed))))
        )
        if any("explanations" in each for each in listed if isinstance(each, Mapping)):
            results["StatisticAnalysis"] = _or_error(lambda: _statistics(listed))
    if "success_scores" in known:
        values, config = known["success_scores"], msgspec.structs.asdict(document.options)
        results["PassAtK"] = _or_error(lambda: NumericalScore(pass_at_k(values, config)))
        results["PassHatK"] = _or_error(lambda: NumericalScore(pass_hat_k(values, config)))
    return results


def encoded_error(error: Exception) -> Json:
    """The error that a scorer ends with: class, agent-inspect's internal code or the reason if
    there is one, and our words.
    """
    told: dict[str, Json] = {"error": type(error).__name__.replace("NotJudgedError", "NotJudged")}
    if isinstance(error, EvaluationError | InvalidInputValueError):
        told["internal_code"] = error.internal_code
    if isinstance(error, NotJudgedError):
        told["reason"] = error.reason
    return told | {"message": str(error)}


def _or_error(compute: Callable[[], Json]) -> Json:
    try:
        return compute()
    except (*_ENDS, AttributeError) as error:
        return encoded_error(error)


def _encoded(value: object) -> Json:
    """A dataclass as JSON; any other value that JSON does not have as its text."""
    if isinstance(value, NumericalScore | SubGoalValidationResult | PlainSubgoal):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return str(value)


def _flags(validation_results: Iterable[Any]) -> list[bool]:
    return [
        bool(each["is_completed"] if isinstance(each, Mapping) else each)
        for each in validation_results
    ]


def _statistics(validation_results: Iterable[Mapping[str, Any]]) -> Json:
    # The first explanation of a subgoal is a summary; the others are completions.
    expectation, std = judge_statistics(
        [list(each["explanations"])[1:] for each in validation_results], _grade_in
    )
    return {"judge_expectation": expectation, "judge_std": std}


def _grade_in(completion: str) -> bool | None:
    """The grade as agent-inspect reads it; of an answer by JSON schema its own."""
    answer = read_answer(JudgeKind.SUBGOAL, "grade", completion) or read_answer(
        JudgeKind.SUBGOAL, "structured", completion
    )
    return None if answer is None else answer.grade


def _statistics_of(judged: Sequence[NumericalScore]) -> Json:
    """`StatisticAnalysis` of the verdicts behind the last of these."""
    explained = judged[-1].explanations or []
    return _statistics(
        [{"explanations": texts} for subgoal in explained for texts in subgoal.values()]
    )


def _explanations(validations: Iterable[Validation]) -> list[Json]:
    return [{each.subgoal.details: _explained(each)} for each in validations]


def _explained(each: Validation) -> list[str]:
    verdict = "is completed" if each.is_completed else "is not completed"
    return [
        f"After turn {each.turn_index + 1} the subgoal {verdict}: {each.subgoal.details}",
        *each.completions,
    ]


# Scores traces of agent-inspect side by side, with the judge role's machinery, in the order of the
# traces.

_VOTE_FAILED: Final = frozenset(
    {
        UnjudgedReason.INVALID_ANSWERS,
        UnjudgedReason.REFUSED,
        UnjudgedReason.REJECTED,
        UnjudgedReason.UNAVAILABLE,
    }
)
"""Answers that agent-inspect counts as invalid, until its vote fails."""


@dataclass(frozen=True, slots=True)
class TracePlan:
    """How traces are scored.

    Attributes:
        settings: Judge, deadlines and redaction.
        scorers: The scorers for each trace; empty for those that fit it.
        asks_judge: Whether a judge is asked.
        verdicts: File of kept verdicts; None keeps none.
        agent: The agent whose budget pays.
        options: Options under agent-inspect's names, for all traces that do not set them.
    """

    settings: Settings
    scorers: Sequence[Scorer] = ()
    asks_judge: bool = False
    verdicts: Path | None = None
    agent: str = "unknown"
    options: Mapping[str, object] = field(default_factory=dict)


def score_traces(
    files: TraceFiles, samples_path: Path | None, plan: TracePlan, reading: Reading
) -> None:
    """Scores all traces and prints each in its order.

    Args:
        files: The traces.
        samples_path: Samples for traces without their own; None for none.
        plan: How they are scored.
        reading: Gets each trace's line, and counts the questions to the judge.

    Raises:
        RecordingError: The samples cannot be read.
        VerdictFileError: The file of verdicts cannot be used.
        SetupError: A judge is asked, and a setting of it is missing.
        OperatorError: The judge answers nothing.
    """
    settings = plan.settings
    samples = read_samples(samples_path)
    template = settings.goals.template_subgoal
    options = plan.options if template is None else {TEMPLATE: template, **plan.options}
    if Scorer.STATISTICS in plan.scorers:  # it reads the completions of the verdicts
        options = {"include_judge_explanation": True, **options}
    redactor = Redactor(settings.redaction)
    # The completions of its judge are a part of agent-inspect's results.
    judge_settings = settings.judge.model_copy(update={"keeps_raw_answers": True})

    async def scored(element: Element | RecordingError, judge: JudgeInProcess | None) -> Done[str]:
        try:
            if isinstance(element, RecordingError):
                raise element
            document = trace_in(element, samples, options)
        except RecordingError as error:
            return Done(None, (str(error),), is_read=False)
        if document.known:
            return _output(document, known_metrics_of(document), ())
        questions = TraceQuestions(
            document, plan.agent, settings.goals.verdict_deadline_ms, redactor
        )
        asking = metrics_of(
            document,
            plan.scorers or default_scorers(document),
            lambda ballot: questions.prompt(ballot, judge_settings.answer_form),
        )
        unjudged: list[str] = []
        proceed: Callable[[], Ballot] = partial(next, asking)
        while True:
            try:
                ballot = proceed()
            except StopIteration as ended:
                return _output(document, ended.value, unjudged)
            try:
                vote = _vote(await _verdict(judge, questions.request(ballot)))
                reading.event()
                proceed = partial(asking.send, vote)
            except NotJudgedError as error:
                proceed = partial(asking.throw, error)
                unjudged.append(error.reason)

    def show(done: Done[str]) -> None:
        reading.add(done, done.result or "")

    side_by_side(
        iter(files),
        scored,
        show,
        settings,
        judge_settings if plan.asks_judge else None,
        plan.verdicts,
    )


async def _verdict(judge: JudgeInProcess | None, request: JudgeRequest) -> JudgeVerdict:
    if judge is None:
        raise NotJudgedError(UnjudgedReason.JUDGE_DISABLED)
    return await judge.answer_whatever_the_rate(request)


def _vote(verdict: JudgeVerdict) -> Vote:
    completions = tuple(answer.raw for answer in verdict.answers if answer.raw)
    match verdict.result:
        case Judged(is_completed=is_completed):
            return Vote(is_completed, completions)
        case Unjudged(reason=reason) if reason not in _VOTE_FAILED:
            raise NotJudgedError(reason)
    return Vote(None, completions)


def _output(
    document: TraceDocument, metrics: dict[str, Json], unjudged: Sequence[str]
) -> Done[str]:
    told = (
        f"Trace {document.trace_id}: the judge gave no verdict "
        f"({', '.join(dict.fromkeys(unjudged))}), so scorers that need "
        "it have none."
    )
    line = json.dumps({"id": document.trace_id, "metrics": metrics}, default=_encoded) + "\n"
    return Done(line, (told,) if unjudged else ())
