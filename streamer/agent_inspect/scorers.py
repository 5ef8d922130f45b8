"""agent-inspect's scorers on one document, and their results in the encoding of its dataclasses.

Each error that one of its scorers ends with is the result of that scorer. Progress over turns is judged once, for all four scorers
that need it; agent-inspect judges anew for each.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from consumers.engine import agent_inspect as observed
from consumers.engine.agent_inspect import (
    Asking,
    Ballot,
    EvaluationError,
    InvalidInputValueError,
    Score,
    StaticProgress,
    ToolCorrectness,
    TurnProgress,
    Validation,
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
from streamer.agent_inspect.documents import TraceDocument
from streamer.agent_inspect.options import KEEPS_PROMPTS
from streamer.agent_inspect.questions import NotJudgedError
from streamer.agent_inspect.scorer_names import Scorer

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


def default_scorers(document: TraceDocument) -> tuple[Scorer, ...]:
    """The scorers of a document for which none are named.

    A subgoal that names a turn by its number is of a static conversation. Tool correctness is computed if calls are expected.
    """
    is_static = any(isinstance(subgoal.turn, int) for subgoal in document.subgoals)
    judged = _STATIC if is_static else _DYNAMIC
    return (*judged, Scorer.TOOLS) if document.expected_calls else judged


def metrics_of(document: TraceDocument, scorers: Iterable[Scorer], prompt_of: PromptOf) -> Asking[dict[str, Json]]:
    """The results of these scorers by class name.

    Args:
        document: The trace with its sample.
        scorers: The scorers; each question is asked once for all of them.
        prompt_of: The prompt of a ballot, for `include_prompt_sent_to_llmj`.
    """
    named = list(dict.fromkeys(scorers))
    results: dict[str, Json] = {}
    encode = _Encoder(document, prompt_of)
    turns: Any = document.turns
    if any(scorer in _STATIC for scorer in named):
        try:
            static = yield from static_progress(turns, document.subgoals, document.config)
            results |= {Scorer.PROGRESS: encode.progress(static), Scorer.SUCCESS: encode.success(static)}
        except _ENDS as error:
            results |= dict.fromkeys(_STATIC, encoded_error(error))
    if any(scorer in _DYNAMIC for scorer in named):
        try:
            config, instruction = document.config, document.user_instruction
            entries = yield from progress_through_turns(turns, document.subgoals, config, instruction)
            results |= encode.through_turns(entries)
        except _ENDS as error:
            results |= dict.fromkeys(_DYNAMIC, encoded_error(error))
    if Scorer.TOOLS in named:
        try:
            expected: Any = document.expected_calls
            results[Scorer.TOOLS] = encode.tools((yield from tool_correctness(turns, expected, document.config)))
        except _ENDS as error:
            results[Scorer.TOOLS] = encoded_error(error)
    for scorer, measure in _OBSERVED.items():
        results[scorer] = _or_error(partial(measure, turns)) if scorer in named else None
    return {scorer.value: results[scorer] for scorer in named}


def known_metrics_of(document: TraceDocument) -> dict[str, Json]:
    """The results that follow from results, as agent-inspect's static helpers compute them; nobody is asked."""
    known, results = document.known, {}
    if "progress_scores" in known:
        values = known["progress_scores"]
        results["AUC"] = _or_error(lambda: encoded_score(auc_of(values)))
        results["PPT"] = _or_error(lambda: encoded_score(ppt_of(values)))
    if "progress_score" in known:
        results["SuccessScore"] = _or_error(lambda: _encoded(success_of(known["progress_score"])))
    if "validation_results" in known:
        listed = known["validation_results"]
        results["ProgressScore"] = _or_error(lambda: encoded_score(progress_of(_flags(listed))))
        results["SuccessScore"] = _or_error(lambda: _encoded(success_of(progress_of(_flags(listed)))))
        if any("explanations" in each for each in listed if isinstance(each, Mapping)):
            results["StatisticAnalysis"] = _or_error(lambda: _statistics(listed))
    if "success_scores" in known:
        values, config = known["success_scores"], document.config
        results["PassAtK"] = _or_error(lambda: encoded_score(pass_at_k(values, config)))
        results["PassHatK"] = _or_error(lambda: encoded_score(pass_hat_k(values, config)))
    return results


def encoded_score(
    score: float,
    sub_scores: Mapping[str, float] | None = None,
    explanations: list[Json] | None = None,
    validation_results: list[Json] | None = None,
) -> Json:
    """The fields of a `NumericalScore`."""
    return {
        "score": score,
        "sub_scores": sub_scores,
        "explanations": explanations,
        "validation_results": validation_results,
    }


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


def _encoded(score: Score, explanations: list[Json] | None = None) -> Json:
    return encoded_score(score.value, score.sub_scores, explanations)


def _flags(validation_results: Iterable[Any]) -> list[bool]:
    return [bool(each["is_completed"] if isinstance(each, Mapping) else each) for each in validation_results]


def _statistics(validation_results: Iterable[Mapping[str, Any]]) -> Json:
    # The first explanation of a subgoal is a summary; the others are completions.
    found = judge_statistics([list(each["explanations"])[1:] for each in validation_results])
    return {"judge_expectation": found.expectation, "judge_std": found.std}


class _Encoder:
    def __init__(self, document: TraceDocument, prompt_of: PromptOf) -> None:
        self._keeps_prompts = bool(document.config.get(KEEPS_PROMPTS, False))
        self._prompt_of = prompt_of

    def progress(self, result: StaticProgress) -> Json:
        validations = [self._validation(each, is_dynamic=False) for each in result.validations]
        return encoded_score(result.progress, None, _explanations(result.validations), validations)

    def success(self, result: StaticProgress) -> Json:
        return _encoded(result.success, _explanations(result.validations))

    def through_turns(self, entries: list[TurnProgress]) -> dict[str, Json]:
        values = [entry.progress for entry in entries]
        explained = [_explanations(entry.explained) for entry in entries]
        curve = []
        for entry, explanations in zip(entries, explained, strict=True):
            validations = None
            if entry.validations is not None:
                validations = [self._validation(each, is_dynamic=True) for each in entry.validations]
            curve.append(encoded_score(entry.progress, None, explanations, validations))
        last = explained[-1] if explained else None
        return {
            Scorer.THROUGH_TURNS: curve,
            Scorer.AUC: _or_error(lambda: _encoded(auc_of_conversation(values), explained)),
            Scorer.PPT: _or_error(lambda: _encoded(ppt_of_conversation(values), explained)),
            Scorer.SUCCESS_AT_END: _or_error(lambda: _encoded(success_at_final_turn(values), last)),
        }

    def tools(self, result: ToolCorrectness) -> Json:
        return encoded_score(
            result.score, explanations=[{each.expected.tool: list(each.explanations)} for each in result.found]
        )

    def _validation(self, each: Validation, *, is_dynamic: bool) -> Json:
        ballot = Ballot(
            each.turn_index, each.place, each.subgoal, 1, stops_early=True, retry_waves=0, reads_instruction=is_dynamic
        )
        return {
            "is_completed": each.is_completed,
            "explanations": _explained(each),
            "sub_goal": {"details": each.subgoal.details, "type": each.subgoal.type, "turn": each.subgoal.turn},
            "prompt_sent_to_llmj": self._prompt_of(ballot) if self._keeps_prompts else None,
        }


def _explanations(validations: Iterable[Validation]) -> list[Json]:
    return [{each.subgoal.details: _explained(each)} for each in validations]


def _explained(each: Validation) -> list[str]:
    verdict = "is completed" if each.is_completed else "is not completed"
    return [f"After turn {each.turn_index + 1} the subgoal {verdict}: {each.subgoal.details}", *each.completions]
