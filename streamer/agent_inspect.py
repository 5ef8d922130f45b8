"""Finished traces in agent-inspect's formats: read from files, and scored with its scorers, which
ask the judge what they need.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from consumers.engine import agent_inspect as observed
from consumers.engine.agent_inspect import (
    AgentTurn,
    Asking,
    Ballot,
    CodedError,
    ExpectedCall,
    NumericalScore,
    Options,
    PlainSubgoal,
    SubGoalValidationResult,
    Trace,
    Vote,
    auc_of,
    judge_statistics,
    of_curve,
    pass_at_k,
    pass_hat_k,
    ppt_of,
    progress_of,
    progress_through_turns,
    static_progress,
    success_at_end_of,
    success_from,
    tool_correctness,
)
from consumers.engine.goals.checks import TurnFacts
from consumers.engine.goals.curve import area_under
from consumers.engine.goals.questions import in_words
from consumers.engine.goals.text_judges import transcript_of
from consumers.engine.goals.tool_correctness import ToolQuestion
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompts import question_of, read_answer
from consumers.judge.settings import AnswerForm
from schemas.closed_sets import JudgeKind, UnjudgedReason
from schemas.goals.goal_set import TOOL_KEYS, ToolStringError, tool_calls_of
from schemas.judging import (
    MAX_RETRY_WAVES,
    MAX_TRIALS,
    Judged,
    JudgeRequest,
    TemplateError,
    TranscriptItem,
    Unjudged,
    check_template,
    prompt_version,
)
from schemas.wire import MAX_NAME_CHARS, MAX_TEXT_CHARS
from streamer.facts import Scorer
from streamer.offline.call_work import Done, Reading
from streamer.offline.judge_in_process import JudgeInProcess, side_by_side
from streamer.recordings.elements import Element, elements_in
from streamer.recordings.files import (
    UNREADABLE,
    RecordingError,
    kind_of,
    shape_error,
    shown,
    unpacked,
    unreadable_file,
)
from streamer.recordings.places import RecordedPath, name_of
from streamer.settings.all_settings import Settings

# Options of agent-inspect's scorers, under its names.

OPTIONS: Final = Options.__struct_fields__
"""Options that scorers read."""
TEMPLATE: Final = "template_subgoal"
_OTHER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "include_entire_prompt_in_validation_result": "include_prompt_sent_to_llmj",
        "templates_subgoal": TEMPLATE,
    }
)
"""Names in agent-inspect's documentation, by which its code knows nothing."""


def options_in(given: Iterable[str]) -> dict[str, Any]:
    """Options as a person types them, each a name and a JSON value, by name.

    Raises:
        ValueError: There is no such option, or the value is no JSON.

    Example:
        >>> options_in(["max_turns=8", "optimize_judge_trials=true"])
        {'max_turns': 8, 'optimize_judge_trials': True}
    """
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = _OTHER_NAMES.get(name, name)
        if not equals or name not in OPTIONS:
            raise ValueError(f"expected NAME=VALUE with one of {', '.join(OPTIONS)}; seen {text!r}")
        if name == TEMPLATE:
            raise ValueError(
                f"a template has many lines: name its file in the setting goals.{TEMPLATE}, as "
                "file:PATH"
            )
        try:
            options[name] = json.loads(value)
            msgspec.convert({name: options[name]}, Options)
        except ValueError as error:  # msgspec's too
            raise ValueError(
                f"expected a number, true, false or null for {name}; seen {value!r}"
            ) from error
    return options


def config_in(value: object, where: str) -> Mapping[str, Any]:
    """Reads the options of a trace.

    Raises:
        RecordingError: There is no such option, or the template cannot be used.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise shape_error(where, "an object with agent-inspect's options", kind_of(value))
    config = {_OTHER_NAMES.get(name, name): each for name, each in value.items()}
    unknown = next((name for name in config if name not in OPTIONS), None)
    if unknown is not None:
        raise shape_error(where, f"some of {', '.join(OPTIONS)}", repr(unknown))
    template = config.get(TEMPLATE)
    if isinstance(template, str):
        try:
            check_template(template)
        except TemplateError as error:
            raise shape_error(
                f"{where}.{TEMPLATE}", f"a template that the judge can use: {error}", "another"
            ) from error
    return config


# Reads agent-inspect's own objects from JSON: a trace, the sample it belongs to, and the options of
# its scorers.
#
# agent-inspect has no file format, so the form is that of its dataclasses as JSON, under the names
# of its parameters. Only the shape is checked: our scorers fail where agent-inspect's fail.

KNOWN_RESULTS: Final = ("progress_scores", "progress_score", "validation_results", "success_scores")
"""Results that a line may have in place of a trace, as agent-inspect's static helpers take them."""


Samples = Mapping[str, Mapping[str, Any]]
"""agent-inspect's samples by id, for traces that name theirs."""


def samples_by_id(samples: Iterable[tuple[str, Mapping[str, Any]]]) -> Samples:
    """Samples, each given with its place for messages.

    Raises:
        RecordingError: One has no id, or two have the same.
    """
    by_id: dict[str, Mapping[str, Any]] = {}
    for where, sample in samples:
        name = sample.get("id")
        if not isinstance(name, str | int) or name == "":
            raise shape_error(where, '"id" of the sample as a text or a number', kind_of(name))
        if str(name) in by_id:
            raise shape_error(
                where, "an id of its own for each sample", f"{shown(str(name))} twice"
            )
        by_id[str(name)] = sample
    return by_id


def document_in(
    line: Mapping[str, Any],
    where: str,
    fallback_id: str,
    samples: Samples,
    options: Mapping[str, Any],
) -> Trace:
    """Reads one trace.

    Args:
        line: `agent_trace`, or its `turns` themselves; `evaluation_data_sample`; perhaps `id` and
            `config`.
        where: Its place, for messages.
        fallback_id: Its id if neither it nor its sample has one.
        samples: For traces without a sample of their own.
        options: For options that its own `config` does not have.

    Raises:
        RecordingError: It has another shape.
    """
    own_options = config_in(line.get("config"), f"{where}: config")
    config = _read(Options, {**options, **own_options}, f"{where}: config")
    known = {name: line[name] for name in KNOWN_RESULTS if name in line}
    if known:
        return Trace(_id(line.get("id"), where) or fallback_id, options=config, known=known)
    trace = line if "turns" in line else line.get("agent_trace")
    if not isinstance(trace, Mapping) or "turns" not in trace:
        raise shape_error(where, '"agent_trace" as an object with the list "turns"', kind_of(trace))
    own_id = _id(line.get("id"), where)
    sample = line.get("evaluation_data_sample")
    if sample is None:
        named = _id(line.get("data_sample_id"), where) or own_id or ""
        if named not in samples:
            raise shape_error(
                where,
                '"evaluation_data_sample", or the id of a sample in --goals',
                f"the id {shown(named)}, which names none of {len(samples)} samples",
            )
        sample = samples[named]
    if not isinstance(sample, Mapping):
        raise shape_error(where, '"evaluation_data_sample" as an object', kind_of(sample))
    where_sample = f"{where}: evaluation_data_sample"
    instruction, subgoals, calls = _parts_of(sample, where_sample)
    return Trace(
        own_id or _id(sample.get("id"), where_sample) or fallback_id,
        _read(tuple[AgentTurn, ...] | None, trace["turns"], f"{where}: turns"),
        subgoals,
        _expected_calls(calls, f"{where_sample}: expected tool calls"),
        instruction,
        config,
    )


def _id(value: object, where: str) -> str | None:
    if value is None:
        return None
    name = str(value) if isinstance(value, str | int) else ""
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise shape_error(
            where, f'"id" of 1 to {MAX_NAME_CHARS} printable characters', shown(value)
        )
    return name


def _parts_of(
    sample: Mapping[str, Any], where: str
) -> tuple[str | None, tuple[PlainSubgoal, ...], Any]:
    """Instruction, subgoals and expected calls: of an `EvaluationSample`, or of an entry of the
    data files.
    """
    if "sub_goals" in sample:
        instruction, subgoals = sample.get("user_instruction"), sample["sub_goals"]
        calls = sample.get("expected_tool_calls")
    else:
        metadata = sample.get("metadata")
        if not isinstance(metadata, Mapping) or "subgoals" not in metadata:
            raise shape_error(
                where, 'the list "sub_goals", or "metadata" with "subgoals"', "neither"
            )
        spoken = sample.get("input")
        first = spoken[0] if isinstance(spoken, list) and spoken else None
        instruction = first.get("content") if isinstance(first, Mapping) else None
        subgoals = metadata["subgoals"]
        calls = next((metadata[key] for key in TOOL_KEYS if key in metadata), None)
    return (
        _read(str | None, instruction, f"{where}: the user's instruction"),
        _read(tuple[PlainSubgoal, ...], subgoals, f"{where}: subgoals"),
        calls,
    )


def _expected_calls(value: object, where: str) -> tuple[ExpectedCall, ...] | None:
    if value is None:
        return None
    calls: list[Any] = []
    for each in _read(list[Any], value, where):
        if isinstance(each, Mapping) and "tool" in each:
            calls.append(each)
            continue
        try:
            calls += tool_calls_of(each)
        except ToolStringError as error:
            raise shape_error(
                where, "an expected tool call as agent-inspect writes it", str(error)
            ) from error
    read: tuple[ExpectedCall, ...] = _read(tuple[ExpectedCall, ...], calls, where)
    return read


def _read(kind: Any, value: object, where: str) -> Any:
    """The value as one of these, with names of types and no value in the error."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "").replace(" | ", " or ")
        expected, is_type, seen = text.removeprefix("Expected ").partition(", got ")
        if not is_type:
            expected, seen = "all its fields", expected
        raise shape_error(where, expected, seen) from error


# Reads traces from files and folders, and samples from a file of their own, as recordings are read.

REMEDY: Final = "The form of traces is described in docs/sources/agent-inspect.md."
"""Of an error in a trace; other recordings have another form."""


def _elements_of_all(files: Iterable[Path]) -> Iterator[Element | RecordingError]:
    """The traces in their order; an error for the rest of a file that cannot be read further."""
    for file in files:
        try:
            yield from _elements_of(file)
        except RecordingError as error:
            error.consequence = f"The traces before it were read; the rest of {file} is left out."
            yield error


def trace_in(element: Element, samples: Samples, options: Mapping[str, Any]) -> Trace:
    """Reads a trace, with these options where it has none of its own.

    Raises:
        RecordingError: It is no trace, or has no sample.
    """
    at = element.at
    stem = name_of(at.path)
    try:
        line = _object_of(element, "a trace as an object")
        return document_in(
            line, str(at), f"{stem}:{at.number}" if at.number else stem, samples, options
        )
    except RecordingError as error:
        error.consequence = "This trace is left out; the others are not concerned."
        error.remedy = REMEDY
        raise


def read_samples(path: Path | None) -> Samples:
    """Reads agent-inspect's samples: a list, one object, or one per line.

    Raises:
        RecordingError: The file cannot be read, or a sample has no id of its own.
    """
    try:
        found = () if path is None else _elements_of(path)
        return samples_by_id(
            (str(each.at), _object_of(each, "a sample as an object")) for each in found
        )
    except RecordingError as error:
        error.consequence = "Nothing was scored."
        error.remedy = REMEDY
        raise


def _elements_of(path: Path) -> Iterator[Element]:
    try:
        with unpacked(path) as file:
            yield from elements_in(file, path)
    except UNREADABLE as error:
        raise unreadable_file(path, str(path), error) from error


def _object_of(element: Element, expected: str) -> Mapping[str, Any]:
    if isinstance(element.value, RecordingError):
        raise element.value
    if not isinstance(element.value, Mapping):
        raise shape_error(str(element.at), expected, kind_of(element.value))
    return element.value


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

    def __init__(self, trace: Trace, agent: str, patience_ms: int, redactor: Redactor) -> None:
        self._trace = trace
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
        instruction = self._trace.user_instruction if ballot.reads_instruction else None
        # As in agent-inspect, a template is for subgoals of dynamic conversations.
        template = self._trace.options.template_subgoal if ballot.reads_instruction else None
        try:
            request = JudgeRequest(
                conversation_id=self._trace.trace_id,
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
        turns = self._trace.turns or ()
        for number in range(len(self._items) + 1, ballot.turn_index + 2):
            self._items.append(transcript_of(number, _facts(turns[number - 1]), self._redactor))
        return tuple(item for items in self._items[: ballot.turn_index + 1] for item in items)

    def _redacted(self, text: str) -> str:
        return self._redactor.beginning(text, MAX_TEXT_CHARS)


def prompt_of(request: JudgeRequest, form: AnswerForm) -> str:
    """The whole prompt of a question, with its rules, as the judge sends it."""
    question = question_of(request, form)
    return f"{question.system}\n\n{question.user}"


def _id_of(ballot: Ballot) -> str:
    """Name of the question within its turn; two subgoals with the same text are two questions."""
    return f"{'tool' if isinstance(ballot.about, ToolQuestion) else 'subgoal'}-{ballot.place + 1}"


def _facts(turn: AgentTurn) -> TurnFacts:
    calls = tuple(step.call for step in turn.steps or () if step.tool)
    return TurnFacts(str(turn.user_text), str(turn.assistant_text), calls)


# agent-inspect's scorers on one trace. Their results are its dataclasses, here and as JSON.
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
_ENDS = (CodedError, NotJudgedError, TypeError, IndexError, KeyError, ValueError)
"""Its own errors, and those that it lets through; and a question without a verdict."""

_OfJudged = Mapping[Scorer, Callable[[Sequence[NumericalScore]], Json]]
_OF_STATIC: Final[_OfJudged] = {
    Scorer.PROGRESS: itemgetter(0),
    Scorer.SUCCESS: lambda judged: success_from(judged[0]),
}
_OF_CURVE: Final[_OfJudged] = {
    Scorer.THROUGH_TURNS: list,
    Scorer.AUC: partial(of_curve, area_under),
    Scorer.PPT: partial(of_curve, ppt_of),
    Scorer.SUCCESS_AT_END: success_at_end_of,
}
_OF_TOOLS: Final[_OfJudged] = {Scorer.TOOLS: itemgetter(0)}


def default_scorers(trace: Trace) -> tuple[Scorer, ...]:
    """The scorers of a trace for which none are named. Tool correctness is computed if calls are
    expected.
    """
    judged = _OF_STATIC if trace.is_static else _OF_CURVE
    return (*judged, *_OF_TOOLS) if trace.expected_calls else (*judged,)


def metrics_of(trace: Trace, scorers: Iterable[Scorer]) -> Asking[dict[str, Json]]:
    """The results of these scorers by class name; an error in place of a result that a scorer ends
    with. Each question is asked once for all of them.
    """
    named = list(dict.fromkeys(scorers))
    results = {
        scorer: _or_error(partial(_observed, scorer, trace))
        for scorer in named
        if scorer in _OBSERVED
    }
    statistics: _OfJudged = {Scorer.STATISTICS: _statistics_of}
    of_static, of_curve = (statistics, {}) if trace.is_static else ({}, statistics)
    for results_of, judging in (
        ({**_OF_STATIC, **of_static}, static_progress),
        ({**_OF_CURVE, **of_curve}, progress_through_turns),
        (_OF_TOOLS, tool_correctness),
    ):
        wanted = [scorer for scorer in named if scorer in results_of]
        try:
            judged = (yield from judging(trace)) if wanted else []
        except _ENDS as error:
            results |= dict.fromkeys(wanted, encoded_error(error))
        else:
            results |= {scorer: _or_error(partial(results_of[scorer], judged)) for scorer in wanted}
    return {scorer.value: results[scorer] for scorer in named}


def _observed(scorer: Scorer, trace: Trace) -> NumericalScore:
    """What a trace shows without a judge."""
    return NumericalScore(_OBSERVED[scorer](trace.turns))


def known_metrics_of(trace: Trace) -> dict[str, Json]:
    """The results that follow from results, as agent-inspect's static helpers compute them; nobody
    is asked.
    """
    known, results = trace.known, {}
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
        given = known["success_scores"], trace.options.no_of_trials, trace.options.k_value
        results["PassAtK"] = _or_error(lambda: NumericalScore(pass_at_k(*given)))
        results["PassHatK"] = _or_error(lambda: NumericalScore(pass_hat_k(*given)))
    return results


def encoded_error(error: Exception) -> Json:
    """The error that a scorer ends with: class, agent-inspect's internal code or the reason if
    there is one, and our words.
    """
    told: dict[str, Json] = {"error": type(error).__name__.replace("NotJudgedError", "NotJudged")}
    if isinstance(error, CodedError):
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


def score_traces(
    paths: Sequence[Path],
    samples_path: Path | None,
    settings: Settings,
    reading: Reading,
    *,
    scorers: Sequence[Scorer] = (),
    options: Mapping[str, object] | None = None,
    asks_judge: bool = False,
    verdicts: Path | None = None,
    agent: str = "unknown",
) -> None:
    """Scores all traces below some paths and prints each in its order.

    Args:
        paths: Files and folders of traces.
        samples_path: Samples for traces without their own; None for none.
        settings: Judge, deadlines and redaction.
        reading: Gets each trace's line, and counts the questions to the judge.
        scorers: The scorers for each trace; empty for those that fit it.
        options: Options under agent-inspect's names, for all traces that do not set them.
        asks_judge: Whether a judge is asked.
        verdicts: File of kept verdicts; None keeps none.
        agent: The agent whose budget pays.

    Raises:
        RecordingError: There is no file at one of the paths, or the samples cannot be read.
        VerdictFileError: The file of verdicts cannot be used.
        SetupError: A judge is asked, and a setting of it is missing.
        OperatorError: The judge answers nothing.
    """
    files = [file for path in paths for file in RecordedPath(path).files]
    samples = read_samples(samples_path)
    template = settings.goals.template_subgoal
    usual: Mapping[str, object] = options or {}
    if template is not None:
        usual = {TEMPLATE: template, **usual}
    if Scorer.STATISTICS in scorers:  # it reads the completions of the verdicts
        usual = {"include_judge_explanation": True, **usual}
    redactor, patience_ms = Redactor(settings.redaction), settings.goals.verdict_deadline_ms
    # The completions of its judge are a part of agent-inspect's results.
    judge_settings = settings.judge.model_copy(update={"keeps_raw_answers": True})

    async def scored(element: Element | RecordingError, judge: JudgeInProcess | None) -> Done[str]:
        try:
            if isinstance(element, RecordingError):
                raise element
            trace = trace_in(element, samples, usual)
        except RecordingError as error:
            return Done(None, (str(error),), is_read=False)
        if trace.known:
            return _output(trace, known_metrics_of(trace), ())
        questions = TraceQuestions(trace, agent, patience_ms, redactor)
        asking = metrics_of(trace, scorers or default_scorers(trace))
        unjudged: list[str] = []
        proceed: Callable[[], Ballot] = partial(next, asking)
        while True:
            try:
                ballot = proceed()
            except StopIteration as ended:
                return _output(trace, ended.value, unjudged)
            try:
                request = questions.request(ballot)
                vote = await _vote(judge, request)
                if trace.options.include_prompt_sent_to_llmj:
                    vote = vote._replace(prompt=prompt_of(request, judge_settings.answer_form))
                reading.event()
                proceed = partial(asking.send, vote)
            except NotJudgedError as error:
                proceed = partial(asking.throw, error)
                unjudged.append(error.reason)

    def show(done: Done[str]) -> None:
        reading.add(done, done.result or "")

    asked = judge_settings if asks_judge else None
    side_by_side(_elements_of_all(files), scored, show, settings, asked, verdicts)


async def _vote(judge: JudgeInProcess | None, request: JudgeRequest) -> Vote:
    if judge is None:
        raise NotJudgedError(UnjudgedReason.JUDGE_DISABLED)
    verdict = await judge.answer_whatever_the_rate(request)
    completions = tuple(answer.raw for answer in verdict.answers if answer.raw)
    match verdict.result:
        case Judged(is_completed=is_completed):
            return Vote(is_completed, completions)
        case Unjudged(reason=reason) if reason not in _VOTE_FAILED:
            raise NotJudgedError(reason)
    return Vote(None, completions)


def _output(trace: Trace, metrics: dict[str, Json], unjudged: Sequence[str]) -> Done[str]:
    told = (
        f"Trace {trace.trace_id}: the judge gave no verdict "
        f"({', '.join(dict.fromkeys(unjudged))}), so scorers that need it have none."
    )
    line = json.dumps({"id": trace.trace_id, "metrics": metrics}, default=_encoded) + "\n"
    return Done(line, (told,) if unjudged else ())
