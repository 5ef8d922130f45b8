"""Scores finished traces with agent-inspect's scorers, and asks the judge what they need."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from consumers.engine import agent_inspect as observed
from consumers.engine.agent_inspect import (
    Asking,
    Ballot,
    CheckedValue,
    EvaluationError,
    InvalidInputValueError,
    Score,
    Step,
    Turn,
    Validation,
    Vote,
    auc_of,
    auc_of_conversation,
    judge_statistics,
    pass_at_k,
    pass_hat_k,
    ppt_of,
    ppt_of_conversation,
    progress_of,
    progress_through_turns,
    static_progress,
    success_at_final_turn,
    success_of,
    tool_correctness,
)
from consumers.engine.goals.checks import CalledTool, TurnFacts
from consumers.engine.goals.questions import in_words
from consumers.engine.goals.text_judges import transcript_of
from consumers.engine.goals.tool_correctness import ToolQuestion
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompts import question_of
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
from streamer.agent_inspect.traces import KEEPS_PROMPTS, PlacedTrace, TraceDocument, TraceFiles, read_samples
from streamer.facts import Scorer
from streamer.offline.call_work import Done, Reading
from streamer.offline.judge_in_process import JudgeInProcess, side_by_side
from streamer.recordings.files import RecordingError
from streamer.settings.all_settings import Settings

# Makes the questions to the judge about a trace: with callgauge's own prompt or the user's template, and without
# personal data.

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


# agent-inspect's scorers on one document. Their results are its dataclasses, here and as JSON.
#
# Each error that one of its scorers ends with is the result of that scorer. Progress over turns is judged once, for
# all four scorers that need it; agent-inspect judges anew for each.

Json = Any

_STATIC: Final = (Scorer.PROGRESS, Scorer.SUCCESS)
_DYNAMIC: Final = (Scorer.THROUGH_TURNS, Scorer.AUC, Scorer.PPT, Scorer.SUCCESS_AT_END)
_OBSERVED: Final[Mapping[Scorer, Callable[[Any], float]]] = {
    Scorer.TOTAL_LATENCY: observed.total_latency_ms,
    Scorer.AVERAGE_LATENCY: observed.average_latency_ms,
    Scorer.INPUT_TOKENS: observed.input_tokens,
    Scorer.OUTPUT_TOKENS: observed.output_tokens,
    Scorer.REASONING_TOKENS: observed.reasoning_tokens,
    Scorer.TOKENS: observed.total_tokens,
    Scorer.TOOL_CALLS: observed.tool_call_count,
}
_ENDS = (EvaluationError, InvalidInputValueError, NotJudgedError, TypeError, IndexError, KeyError, ValueError)
"""Its own errors, and those that it lets through; and a question without a verdict."""

PromptOf = Callable[[Ballot], str]


@dataclass(frozen=True, slots=True)
class SubGoal:
    """A subgoal of the sample, under agent-inspect's name."""

    details: str
    type: Any = None
    turn: Any = None


@dataclass(frozen=True, slots=True)
class SubGoalValidationResult:
    """The verdict on one subgoal.

    Attributes:
        is_completed: The verdict.
        explanations: A summary, and then the judge's completions with `include_judge_explanation`.
        sub_goal: The subgoal.
        prompt_sent_to_llmj: The whole prompt, with `include_prompt_sent_to_llmj`; otherwise None.
    """

    is_completed: bool
    explanations: list[str]
    sub_goal: SubGoal
    prompt_sent_to_llmj: str | None = None


@dataclass(frozen=True, slots=True)
class NumericalScore:
    """A result of agent-inspect's scorers, with its fields.

    Attributes:
        score: The number.
        sub_scores: The progress that it was computed from, by name; None where agent-inspect has None.
        explanations: Of subgoals and tool calls, each as an object with one key and a list of texts; of `AUC` and `PPT` such a list for
            each turn; None where agent-inspect has None.
        validation_results: The verdicts, with `include_validation_results` on the last turn; of static scores always. None otherwise.

    Example:
        >>> NumericalScore(0.5)
        NumericalScore(score=0.5, sub_scores=None, explanations=None, validation_results=None)
    """

    score: float
    sub_scores: dict[str, float] | None = None
    explanations: list[Any] | None = None
    validation_results: list[SubGoalValidationResult] | None = None


def is_static(document: TraceDocument) -> bool:
    """Whether a subgoal names its turn by a number: then the conversation is scripted."""
    return any(isinstance(subgoal.turn, int) for subgoal in document.subgoals)


def default_scorers(document: TraceDocument) -> tuple[Scorer, ...]:
    """The scorers of a document for which none are named. Tool correctness is computed if calls are expected."""
    judged = _STATIC if is_static(document) else _DYNAMIC
    return (*judged, Scorer.TOOLS) if document.expected_calls else judged


class TraceScores:
    """Asks for the verdicts on one trace, and gives the scores that follow. Each may end with one of agent-inspect's errors."""

    def __init__(self, document: TraceDocument, prompt_of: PromptOf) -> None:
        """Asks nothing yet.

        Args:
            document: The trace with its sample.
            prompt_of: The prompt of a ballot, for `include_prompt_sent_to_llmj`.
        """
        self._document = document
        self._turns: Any = document.turns  # without any, scorers end as agent-inspect's do
        self._keeps_prompts = bool(document.config.get(KEEPS_PROMPTS, False))
        self._prompt_of = prompt_of

    def progress(self) -> Asking[NumericalScore]:
        """`ProgressScore`: each subgoal judged once, after the turn that it names."""
        document = self._document
        found = yield from static_progress(self._turns, document.subgoals, document.config)
        verdicts = [self._verdict(each, is_dynamic=False) for each in found.validations]
        return NumericalScore(found.progress, None, _explanations(found.validations), verdicts)

    def progress_through_turns(self) -> Asking[list[NumericalScore]]:
        """`ProgressScoresThroughTurns`: the progress after each turn."""
        document, curve = self._document, []
        instruction = document.user_instruction
        entries = yield from progress_through_turns(self._turns, document.subgoals, document.config, instruction)
        for entry in entries:
            verdicts = None
            if entry.validations is not None:
                verdicts = [self._verdict(each, is_dynamic=True) for each in entry.validations]
            curve.append(NumericalScore(entry.progress, None, _explanations(entry.explained), verdicts))
        return curve

    def tools(self) -> Asking[NumericalScore]:
        """`ToolCorrectnessMetric`."""
        expected: Any = self._document.expected_calls  # without any, it ends as agent-inspect's does
        found = yield from tool_correctness(self._turns, expected, self._document.config)
        explained = [{each.expected.tool: list(each.explanations)} for each in found.found]
        return NumericalScore(found.score, None, explained)

    def observed(self, scorer: Scorer) -> NumericalScore:
        """What a trace shows without a judge: latencies, tokens, tool calls."""
        return NumericalScore(_OBSERVED[scorer](self._turns))

    def _verdict(self, each: Validation, *, is_dynamic: bool) -> SubGoalValidationResult:
        ballot = Ballot(
            each.turn_index, each.place, each.subgoal, 1, stops_early=True, retry_waves=0, reads_instruction=is_dynamic
        )
        subgoal = SubGoal(each.subgoal.details, each.subgoal.type, each.subgoal.turn)
        prompt = self._prompt_of(ballot) if self._keeps_prompts else None
        return SubGoalValidationResult(each.is_completed, _explained(each), subgoal, prompt)


def area_of(curve: Sequence[NumericalScore]) -> NumericalScore:
    """`AUC` of a conversation that was judged."""
    return _of_curve(auc_of_conversation([each.score for each in curve]), [each.explanations for each in curve])


def per_turn_of(curve: Sequence[NumericalScore]) -> NumericalScore:
    """`PPT` of a conversation that was judged."""
    return _of_curve(ppt_of_conversation([each.score for each in curve]), [each.explanations for each in curve])


def success_at_end_of(curve: Sequence[NumericalScore]) -> NumericalScore:
    """`SuccessScoreFinalTurn` of a conversation that was judged."""
    return _of_curve(success_at_final_turn([each.score for each in curve]), curve[-1].explanations if curve else None)


def success_from(progress: NumericalScore) -> NumericalScore:
    """`SuccessScore`, which takes over the explanations of the progress."""
    return _of_curve(success_of(progress.score), progress.explanations)


def _of_curve(score: Score, explanations: list[Any] | None) -> NumericalScore:
    return NumericalScore(score.value, score.sub_scores, explanations)


def metrics_of(document: TraceDocument, scorers: Iterable[Scorer], prompt_of: PromptOf) -> Asking[dict[str, Json]]:
    """The results of these scorers by class name; an error in place of a result that a scorer ends with.

    Args:
        document: The trace with its sample.
        scorers: The scorers; each question is asked once for all of them.
        prompt_of: The prompt of a ballot, for `include_prompt_sent_to_llmj`.
    """
    named = list(dict.fromkeys(scorers))
    results: dict[str, Json] = {}
    scores = TraceScores(document, prompt_of)
    static: tuple[Scorer, ...] = _STATIC
    dynamic: tuple[Scorer, ...] = _DYNAMIC
    if is_static(document):
        static = (*_STATIC, Scorer.STATISTICS)
    else:
        dynamic = (*_DYNAMIC, Scorer.STATISTICS)
    if any(scorer in static for scorer in named):
        try:
            progress = yield from scores.progress()
            results |= {Scorer.PROGRESS: progress, Scorer.SUCCESS: success_from(progress)}
            if Scorer.STATISTICS in static:
                results[Scorer.STATISTICS] = _or_error(partial(_statistics_of, [progress]))
        except _ENDS as error:
            results |= dict.fromkeys(static, encoded_error(error))
    if any(scorer in dynamic for scorer in named):
        try:
            curve = yield from scores.progress_through_turns()
            results[Scorer.THROUGH_TURNS] = curve
            results[Scorer.AUC] = _or_error(partial(area_of, curve))
            results[Scorer.PPT] = _or_error(partial(per_turn_of, curve))
            results[Scorer.SUCCESS_AT_END] = _or_error(partial(success_at_end_of, curve))
            if Scorer.STATISTICS in dynamic:
                results[Scorer.STATISTICS] = _or_error(partial(_statistics_of, curve))
        except _ENDS as error:
            results |= dict.fromkeys(dynamic, encoded_error(error))
    if Scorer.TOOLS in named:
        try:
            results[Scorer.TOOLS] = yield from scores.tools()
        except _ENDS as error:
            results[Scorer.TOOLS] = encoded_error(error)
    results |= {scorer: _or_error(partial(scores.observed, scorer)) for scorer in named if scorer in _OBSERVED}
    return {scorer.value: results[scorer] for scorer in named}


def known_metrics_of(document: TraceDocument) -> dict[str, Json]:
    """The results that follow from results, as agent-inspect's static helpers compute them; nobody is asked."""
    known, results = document.known, {}
    if "progress_scores" in known:
        values = known["progress_scores"]
        results["AUC"] = _or_error(lambda: NumericalScore(auc_of(values)))
        results["PPT"] = _or_error(lambda: NumericalScore(ppt_of(values)))
    if "progress_score" in known:
        results["SuccessScore"] = _or_error(lambda: success_from(NumericalScore(known["progress_score"])))
    if "validation_results" in known:
        listed = known["validation_results"]
        results["ProgressScore"] = _or_error(lambda: NumericalScore(progress_of(_flags(listed))))
        results["SuccessScore"] = _or_error(lambda: success_from(NumericalScore(progress_of(_flags(listed)))))
        if any("explanations" in each for each in listed if isinstance(each, Mapping)):
            results["StatisticAnalysis"] = _or_error(lambda: _statistics(listed))
    if "success_scores" in known:
        values, config = known["success_scores"], document.config
        results["PassAtK"] = _or_error(lambda: NumericalScore(pass_at_k(values, config)))
        results["PassHatK"] = _or_error(lambda: NumericalScore(pass_hat_k(values, config)))
    return results


def encoded_error(error: Exception) -> Json:
    """The error that a scorer ends with: class, agent-inspect's internal code or the reason if there is one, and our words."""
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
    if isinstance(value, NumericalScore | SubGoalValidationResult | SubGoal):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return str(value)


def _flags(validation_results: Iterable[Any]) -> list[bool]:
    return [bool(each["is_completed"] if isinstance(each, Mapping) else each) for each in validation_results]


def _statistics(validation_results: Iterable[Mapping[str, Any]]) -> Json:
    # The first explanation of a subgoal is a summary; the others are completions.
    found = judge_statistics([list(each["explanations"])[1:] for each in validation_results])
    return {"judge_expectation": found.expectation, "judge_std": found.std}


def _statistics_of(judged: Sequence[NumericalScore]) -> Json:
    """`StatisticAnalysis` of the verdicts behind the last of these."""
    explained = judged[-1].explanations or []
    return _statistics([{"explanations": texts} for subgoal in explained for texts in subgoal.values()])


def _explanations(validations: Iterable[Validation]) -> list[Json]:
    return [{each.subgoal.details: _explained(each)} for each in validations]


def _explained(each: Validation) -> list[str]:
    verdict = "is completed" if each.is_completed else "is not completed"
    return [f"After turn {each.turn_index + 1} the subgoal {verdict}: {each.subgoal.details}", *each.completions]


# Scores traces of agent-inspect side by side, with the judge role's machinery, in the order of the traces.

_VOTE_FAILED: Final = frozenset(
    {UnjudgedReason.INVALID_ANSWERS, UnjudgedReason.REFUSED, UnjudgedReason.REJECTED, UnjudgedReason.UNAVAILABLE}
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


def score_traces(files: TraceFiles, samples_path: Path | None, plan: TracePlan, reading: Reading) -> None:
    """Scores all traces and prints each in its order.

    Args:
        files: The traces.
        samples_path: Samples for traces without their own; None for none.
        plan: How they are scored.
        reading: Gets each trace's line, and counts the questions to the judge.

    Raises:
        RecordingError: The samples cannot be read.
        VerdictFileError: The file of verdicts cannot be used.
        NoJudgeError: A judge is asked, and a setting of it is missing.
        JudgeFailedError: The judge answers nothing.
    """
    settings = plan.settings
    samples = read_samples(samples_path)
    redactor = Redactor(settings.redaction)
    # The completions of its judge are a part of agent-inspect's results.
    judge_settings = settings.judge.model_copy(update={"keeps_raw_answers": True})

    async def scored(placed: PlacedTrace | RecordingError, judge: JudgeInProcess | None) -> Done[str]:
        try:
            if isinstance(placed, RecordingError):
                raise placed
            document = placed.read(samples, plan.options)
        except RecordingError as error:
            return Done(None, (str(error),), is_read=False)
        if document.known:
            return _output(document, known_metrics_of(document), ())
        questions = TraceQuestions(document, plan.agent, settings.goals.verdict_deadline_ms, redactor)
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

    side_by_side(iter(files), scored, show, settings, judge_settings if plan.asks_judge else None, plan.verdicts)


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


def _output(document: TraceDocument, metrics: dict[str, Json], unjudged: Sequence[str]) -> Done[str]:
    told = (
        f"Trace {document.trace_id}: the judge gave no verdict ({', '.join(dict.fromkeys(unjudged))}), so scorers that need "
        "it have none."
    )
    line = json.dumps({"id": document.trace_id, "metrics": metrics}, default=_encoded) + "\n"
    return Done(line, (told,) if unjudged else ())
