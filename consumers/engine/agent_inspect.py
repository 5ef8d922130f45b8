"""agent-inspect's scorers on finished traces: progress, AUC, PPT, success, tools, pass@k. They
yield the votes that they need.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from consumers.engine.goals.checks import CalledTool
from consumers.engine.goals.curve import PLACES, area_under, sum_in_numpy_order
from consumers.engine.goals.questions import grade_of
from consumers.engine.goals.tool_correctness import ToolQuestion
from schemas.judging import PLACES as PLACES_OF_TEMPLATES
from schemas.judging import places_in

# The errors that agent-inspect ends with, by their class names and internal codes; the wording is
# ours.
#
# What crashes it (TypeError, IndexError, KeyError, a plain ValueError) ends a scorer here too,
# mostly in Python's words.

MISSING_VALUE: Final = "050008"
NO_PROGRESS: Final = "050005"


class CodedError(Exception):
    """An error with agent-inspect's internal code: two digits of a component, four of the error."""

    def __init__(self, internal_code: str, message: str) -> None:
        self.internal_code = internal_code
        super().__init__(message)


class EvaluationError(CodedError):
    """A metric could not be computed."""


class InvalidInputValueError(CodedError, ValueError):
    """The input of a metric is not usable."""


# The input of agent-inspect, in the form of its dataclasses as JSON, and the errors that stop it
# before a request is sent.
#
# A field that is missing has its default there.

USER_TASK = "userTask"


class Options(msgspec.Struct, frozen=True):
    """The options of its scorers, under its names and with its defaults."""

    num_judge_trials: int = 5
    optimize_judge_trials: bool = False
    max_retry_judge_trials: int = 5
    max_turns: int = 20
    include_judge_explanation: bool = False
    include_validation_results: bool = False
    include_prompt_sent_to_llmj: bool = False
    template_subgoal: str | None = None
    k_value: int | None = None
    no_of_trials: int | None = None


class Argument(msgspec.Struct, frozen=True):
    """One argument of a tool call that was made."""

    name: str
    value: Any = None


class AgentStep(
    msgspec.Struct,
    frozen=True,
    rename={
        "arguments": "tool_input_args",
        "output": "tool_output",
        "input_tokens": "input_token_consumption",
        "output_tokens": "output_token_consumption",
        "reasoning_tokens": "reasoning_token_consumption",
    },
):
    """One step of the agent inside a turn: usually a tool call, with the tokens it cost."""

    tool: str | None = None
    arguments: Sequence[Argument] | None = None
    output: Any = None
    input_tokens: int | float | None = None
    output_tokens: int | float | None = None
    reasoning_tokens: int | float | None = None

    @property
    def call(self) -> CalledTool:
        """The tool call. A trace does not say whether a tool failed; an output may."""
        arguments = {argument.name: argument.value for argument in self.arguments or ()}
        return CalledTool(
            str(self.tool), arguments, self.output, None if self.output is None else True
        )


class Response(msgspec.Struct, frozen=True):
    """What the agent answered."""

    response: str | None = None


class AgentTurn(
    msgspec.Struct,
    frozen=True,
    rename={
        "user_text": "agent_input",
        "response": "agent_response",
        "latency_ms": "latency_in_ms",
    },
):
    """One user input with the agent's response and the steps in between."""

    user_text: str | None = None
    response: Response | str | None = None
    steps: Sequence[AgentStep] | None = None
    latency_ms: int | float | None = None

    @property
    def assistant_text(self) -> str | None:
        """The text of the response."""
        return self.response.response if isinstance(self.response, Response) else self.response


@dataclass(frozen=True, slots=True)
class PlainSubgoal:
    """A subgoal in plain words; `turn` counts for static conversations only, from zero, and is
    compared as it is.
    """

    details: str
    turn: Any = None
    type: Any = None


class Required(msgspec.Struct, frozen=True):
    """The expected argument or output: equal to `value`, or as `check` says to a judge."""

    value: Any = None
    check: str | None = None


class Parameter(Required, frozen=True, kw_only=True):
    """An expected argument."""

    name: str


class ExpectedCall(
    msgspec.Struct,
    frozen=True,
    rename={"parameters": "expected_parameters", "output": "expected_output"},
):
    """A tool call that should be made in the turn with the index `turn`, from zero."""

    tool: str | None = None
    parameters: Sequence[Parameter] | None = None
    output: Required | None = None
    turn: Any = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One finished trace with its sample, as agent-inspect's scorers take them.

    Attributes:
        trace_id: Its id.
        turns: The turns; None where agent-inspect has None.
        subgoals: The sample's subgoals.
        expected_calls: The sample's expected tool calls; None where agent-inspect has None.
        user_instruction: The caller's instruction; None if there is none.
        options: The options.
        known: Results in place of a trace, by name.
    """

    trace_id: str
    turns: Sequence[AgentTurn] | None = None
    subgoals: Sequence[PlainSubgoal] = ()
    expected_calls: Sequence[ExpectedCall] | None = None
    user_instruction: str | None = None
    options: Options = Options()  # noqa: RUF009  # it never changes
    known: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """Whether a subgoal names its turn by a number: then the conversation is scripted."""
        return any(isinstance(subgoal.turn, int) for subgoal in self.subgoals)


def require_texts(turns: Sequence[AgentTurn]) -> None:
    """Every one of these turns needs both its texts.

    Raises:
        InvalidInputValueError: 050008 when one has none.
    """
    for number, turn in enumerate(turns, 1):
        if not turn.user_text:
            raise InvalidInputValueError(MISSING_VALUE, f"Turn {number} has no user text.")
        if not turn.assistant_text:
            raise InvalidInputValueError(MISSING_VALUE, f"Turn {number} has no assistant text.")


def require_judgeable(turns: Sequence[AgentTurn], subgoal: PlainSubgoal) -> None:
    """All that must hold before a subgoal is judged on these turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has no text or the subgoal no details.
        TypeError: A tool call has None for its arguments.
    """
    require_texts(turns)
    if not subgoal.details:
        raise InvalidInputValueError(MISSING_VALUE, "A subgoal has no details to judge by.")
    if any(step.tool and step.arguments is None for turn in turns for step in turn.steps or ()):
        raise TypeError("A tool call has None for its arguments.")


def require_fillable(template: str | None, user_instruction: str | None) -> None:
    """A prompt template of one's own may name only existing values.

    Raises:
        KeyError: It asks for another value, or for the user's instruction when there is none.
    """
    has_instruction = bool(user_instruction and user_instruction.strip())
    for place in places_in(template or ""):
        if place not in PLACES_OF_TEMPLATES or (place == USER_TASK and not has_instruction):
            raise KeyError(place)


# agent-inspect's observed values of a trace: latencies, tokens of the agent, tool calls. Nothing is
# judged.


def total_latency_ms(turns: Sequence[AgentTurn]) -> float:
    """Sum of the turns' latencies; 0 without turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has none.
    """
    missing = [number for number, turn in enumerate(turns, 1) if turn.latency_ms is None]
    if missing:
        raise InvalidInputValueError(MISSING_VALUE, f"Turns without a latency: {missing}.")
    total_ms = 0.0  # one by one: from Python 3.12 on sum() corrects for lost bits
    for turn in turns:
        total_ms += turn.latency_ms or 0.0
    return round(total_ms, PLACES)


def average_latency_ms(turns: Sequence[AgentTurn]) -> float:
    """The rounded total divided by the number of turns; 0 without turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has none.
    """
    total_ms = total_latency_ms(turns)
    return round(total_ms / len(turns), PLACES) if turns else 0.0


def tokens(turns: Sequence[AgentTurn], *kinds: Literal["input", "output", "reasoning"]) -> float:
    """Tokens of these kinds of all steps. Raises InvalidInputValueError 050008 when a turn has no
    steps.
    """
    return sum(getattr(step, f"{kind}_tokens") or 0 for kind in kinds for step in _steps(turns))


def tool_call_count(turns: Sequence[AgentTurn]) -> int:
    """Steps that name a tool. Raises TypeError when a turn has None for its steps."""
    steps: Any = [turn.steps for turn in turns]
    return sum(bool(step.tool and step.tool.strip()) for of_turn in steps for step in of_turn)


def _steps(turns: Sequence[AgentTurn]) -> list[AgentStep]:
    steps: list[AgentStep] = []
    for number, turn in enumerate(turns, 1):
        if not turn.steps:
            raise InvalidInputValueError(MISSING_VALUE, f"Turn {number} has no steps.")
        steps += turn.steps
    return steps


# agent-inspect's numbers of a whole progress curve, AUC and PPT, and of success; defaults and
# errors included.


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
    sub_goal: PlainSubgoal
    prompt_sent_to_llmj: str | None = None


@dataclass(frozen=True, slots=True)
class NumericalScore:
    """A result of agent-inspect's scorers, with its fields.

    Attributes:
        score: The number.
        sub_scores: The progress that it was computed from, by name; None where agent-inspect has
            None.
        explanations: Of subgoals and tool calls, each as an object with one key and a list of
            texts; of `AUC` and `PPT` such a list for each turn; None where agent-inspect has None.
        validation_results: The verdicts, with `include_validation_results` on the last turn; of
            static scores always. None otherwise.

    Example:
        >>> NumericalScore(0.5)
        NumericalScore(score=0.5, sub_scores=None, explanations=None, validation_results=None)
    """

    score: float
    sub_scores: dict[str, float] | None = None
    explanations: list[Any] | None = None
    validation_results: list[SubGoalValidationResult] | None = None


def progress_of(verdicts: Iterable[bool]) -> float:
    """The share of completed subgoals.

    Raises:
        InvalidInputValueError: 050004 when there are none.
    """
    flags = list(verdicts)
    if not flags:
        raise InvalidInputValueError(
            "050004", "No subgoal was judged, so there is no progress to compute."
        )
    return round(sum(map(bool, flags)) / len(flags), PLACES)


def success_from(progress: NumericalScore) -> NumericalScore:
    """1 when the progress is 1 exactly, else 0. Progress is rounded before, so 19,999 of 20,000
    subgoals succeed.
    """
    return NumericalScore(
        int(progress.score == 1), {"progress_score": progress.score}, progress.explanations
    )


def auc_of(progress: Sequence[float]) -> float:
    """Area under the curve through these values, which start at turn 1 and span the whole width
    whatever their number.

    Raises:
        InvalidInputValueError: 050005 when there are none.
        EvaluationError: 050006 when there is only one, or one is no number.
    """
    if not progress:
        raise InvalidInputValueError(NO_PROGRESS, "There is no progress to compute an AUC of.")
    try:
        return round(area_under(progress), PLACES)
    except (TypeError, ValueError) as error:
        raise EvaluationError("050006", f"The AUC could not be computed: {error}") from error


def ppt_of(progress: Sequence[float]) -> float:
    """The highest progress divided by the number of the turn that reached it first; not rounded.

    Raises:
        InvalidInputValueError: 050005 when there are none.
        EvaluationError: 050012 when one is no number.
    """
    if not progress:
        raise InvalidInputValueError(NO_PROGRESS, "There is no progress to compute a PPT of.")
    try:
        highest = max(progress)
        return highest / (list(progress).index(highest) + 1)
    except TypeError as error:
        raise EvaluationError("050012", f"The PPT could not be computed: {error}") from error


def of_curve(
    number: Callable[[Sequence[float]], float], curve: Sequence[NumericalScore]
) -> NumericalScore:
    """A number of a conversation that was judged, rounded: with `area_under` the AUC of its
    progress after each turn, with `ppt_of` the PPT.

    Raises:
        EvaluationError: 050005 when there is no progress.
        ValueError: There is no area, because there is only one turn.
    """
    sub_scores = _by_turn(curve)
    rounded = round(number(list(sub_scores.values())), PLACES)
    return NumericalScore(rounded, sub_scores, [each.explanations for each in curve])


def success_at_end_of(curve: Sequence[NumericalScore]) -> NumericalScore:
    """Whether the last progress of a conversation that was judged is 1. Raises EvaluationError
    050005 when there is none.
    """
    sub_scores = _by_turn(curve)
    return NumericalScore(success_from(curve[-1]).score, sub_scores, curve[-1].explanations)


def _by_turn(curve: Sequence[NumericalScore]) -> dict[str, float]:
    if not curve:
        raise EvaluationError(NO_PROGRESS, "The judging of the conversation gave no progress.")
    return {f"Turn_{number}_progress_score": each.score for number, each in enumerate(curve, 1)}


# One question to agent-inspect's judge: how large its vote is, and the verdict or the error that
# follows from it.
#
# Nothing is asked here. A scorer is a generator: it yields ballots one by one, in agent-inspect's
# order, and is sent their votes.


class Ballot(NamedTuple):
    """One question to the judge and the size of its vote.

    Attributes:
        turn_index: The judge reads the conversation up to the turn with this index, from zero.
        place: Place of the subgoal in the sample; of a checked value, its number among the
            questions of the trace.
        about: The subgoal, or the value of a tool call that is checked.
        trials: Most answers to ask for; odd.
        stops_early: Whether asking ends once a majority is certain.
        retry_waves: How often invalid answers are asked again when it does not.
        reads_instruction: Whether the judge reads the user's instruction.
    """

    turn_index: int
    place: int
    about: PlainSubgoal | ToolQuestion
    trials: int
    stops_early: bool
    retry_waves: int
    reads_instruction: bool = False


class Vote(NamedTuple):
    """The end of a vote: the majority, None if the vote failed; the completions that were kept on
    the way; and the whole prompt, if it is wanted.
    """

    is_complete: bool | None
    completions: tuple[str, ...] = ()
    prompt: str | None = None


Result = TypeVar("Result")
Asking = Generator[Ballot, Vote, Result]


def voted(ballot: Ballot) -> Asking[Vote]:
    """The vote on a question.

    Raises:
        EvaluationError: 050000 when the number of trials is even or not positive, or an answer
            stays invalid after the last retry; 050007 when a vote that stops early can no longer be
            decided.
    """
    if ballot.trials <= 0 or ballot.trials % 2 == 0:
        told = f"A vote needs an odd, positive number of trials; it was {ballot.trials}."
        raise EvaluationError("050000", told)
    vote = yield ballot
    if vote.is_complete is not None:
        return vote
    if ballot.stops_early:
        raise EvaluationError(
            "050007", "Too many answers of the judge were invalid for a majority."
        )
    raise EvaluationError("050000", "An answer of the judge stayed invalid to the last retry.")


# agent-inspect's tool correctness: which of the expected tool calls were made in the turns that
# they name.


def tool_correctness(trace: Trace) -> Asking[list[NumericalScore]]:
    """Looks for every expected call in its turn; gives a list of one. An expected call that names no
    turn of the conversation is left out silently.

    A tool call that was made may serve several expected ones, and further calls and arguments cost
    nothing. Every judge is asked, also about a call that is wrong in another part already.

    Raises:
        InvalidInputValueError: 050004 when no call is expected in a turn of the conversation; 050008
            when a turn in reach has no text or an expected call no tool; 050009 when something is to
            be both equal to a value and checked by a judge.
        EvaluationError: A vote failed: 050000 or 050007.
        TypeError: The turn has None for its steps, or a step None for the arguments that are looked
            for.
    """
    # without any, it ends as agent-inspect's does
    turns: Any = trace.turns
    expected_calls: Any = trace.expected_calls
    questions = count()
    made: list[bool] = []
    explained: list[Any] = []
    for index in range(len(turns)):
        for expected in expected_calls:
            if expected.turn == index:
                require_texts(turns[: index + 1])
                if not expected.tool:
                    raise InvalidInputValueError(
                        MISSING_VALUE, "An expected tool call names no tool."
                    )
                search = _Search(index, expected, trace.options, questions)
                made.append((yield from search.is_made(expected.tool.strip(), turns[index].steps)))
                explained.append({expected.tool: search.explanations(is_made=made[-1])})
    return [NumericalScore(progress_of(made), None, explained)]


@dataclass(slots=True)
class _Search:
    """The search for one expected call in its turn. `_reasons` are of the tool calls that were
    compared.
    """

    _index: int
    _expected: ExpectedCall
    _options: Options
    _questions: "count[int]"
    _reasons: list[str] = field(default_factory=list)

    def is_made(self, tool: str, steps: Any) -> Asking[bool]:
        for step in [step for step in steps if step.tool is not None]:
            if tool == step.tool.strip() and (yield from self._is_as_expected(step)):
                return True
        return False

    def explanations(self, *, is_made: bool) -> list[str]:
        """A sentence about the call, then those about its parts."""
        made = "was made as expected" if is_made else "was not made as expected"
        missing = () if self._reasons or is_made else ("No call of this tool is in the turn.",)
        about = f"The call of {self._expected.tool!r} in turn {self._index + 1} {made}."
        return [about, *missing, *self._reasons]

    def _is_as_expected(self, step: AgentStep) -> Asking[bool]:
        # Everything is looked at, and every judge asked, even when it has failed already. Of a
        # repeated name the last counts.
        found: dict[str | None, bool] = {}
        for required in self._expected.parameters or ():
            _require_one_way(required)
            arguments: Any = step.arguments
            values = [
                each.value for each in arguments if each.name.strip() == required.name.strip()
            ]
            if values or required.check is not None:
                value = values[0] if values else ""
                is_right = yield from self._is_right(required.name, required, value, step)
                found[required.name] = is_right
            else:
                self._reasons.append(f"The argument {required.name!r} is missing.")
                found[required.name] = False
        if (output := self._expected.output) is not None:
            _require_one_way(output)
            found[None] = yield from self._is_right(None, output, step.output, step)
        return all(found.values())

    def _is_right(
        self, name: str | None, required: Required, value: Any, step: AgentStep
    ) -> Asking[bool]:
        what = "output" if name is None else f"argument {name!r}"
        if required.check is None:
            is_equal = bool(value == required.value)
            than = "as expected" if is_equal else f"expected is {required.value!r}"
            self._reasons.append(f"The {what} is {value!r}{', ' if is_equal else '; '}{than}.")
            return is_equal
        question = ToolQuestion(self._index + 1, 0, 0, name, required.check, value, step.call)
        number, trials = next(self._questions), self._options.num_judge_trials
        vote = yield from voted(
            Ballot(self._index, number, question, trials, stops_early=True, retry_waves=0)
        )
        verdict = "complies" if vote.is_complete else "does not comply"
        self._reasons.append(f"By the judge, the {what} {verdict} with {required.check!r}.")
        self._reasons += vote.completions if self._options.include_judge_explanation else ()
        return bool(vote.is_complete)


def _require_one_way(required: Required) -> None:
    if required.value is not None and required.check is not None:
        raise InvalidInputValueError(
            "050009", "A value is given and a check too; only one of them is possible."
        )


# agent-inspect's judging of subgoals: turn by turn for calls that are played freely, once each for
# scripted ones.


def progress_through_turns(trace: Trace) -> Asking[list[NumericalScore]]:
    """Judges every open subgoal after every turn, up to `max_turns` of them; a shorter call repeats
    its last progress.

    Each entry explains the subgoals that were completed earlier, in that order, then all that were
    judged in its turn.

    Raises:
        InvalidInputValueError: 050004 without subgoals; 050008 when a turn in reach has no text or
            a subgoal no details.
        EvaluationError: A vote failed: 050000 or 050007.
        IndexError: There are no turns.
        KeyError: The prompt template names a missing value.
    """
    turns: Any = trace.turns  # without any, it ends as agent-inspect's does
    options = trace.options
    pending = list(enumerate(trace.subgoals))
    completed: list[SubGoalValidationResult] = []
    judged: list[SubGoalValidationResult] = []
    curve: list[NumericalScore] = []
    for index in range(min(options.max_turns, len(turns))):
        completed += [each for each in judged if each.is_completed]
        judged = []
        for place, subgoal in pending:
            require_judgeable(turns[: index + 1], subgoal)
            require_fillable(options.template_subgoal, trace.user_instruction)
            judged.append((yield from _judged(index, place, subgoal, options, is_dynamic=True)))
        for each in judged:
            # the first that is equal leaves: of two equal ones it may be the other
            if each.is_completed:
                del pending[[subgoal for _, subgoal in pending].index(each.sub_goal)]
        curve.append(_progress([*completed, *judged]))
    if options.max_turns > len(curve):
        curve += [curve[-1]] * (options.max_turns - len(curve))
    if curve and options.include_validation_results:
        curve[-1] = replace(curve[-1], validation_results=[*completed, *judged])
    return curve


def static_progress(trace: Trace) -> Asking[list[NumericalScore]]:
    """Judges each subgoal once, after the turn it names; gives a list of one, with its verdicts. A
    subgoal that names no turn of the conversation is left out silently.

    Raises:
        InvalidInputValueError: 050004 when none is judged, 050008 as for `progress_through_turns`.
        EvaluationError: A vote failed: 050000 or 050007.
    """
    turns: Any = trace.turns
    judged = []
    for index in range(len(turns)):
        for place, subgoal in enumerate(trace.subgoals):
            if subgoal.turn == index:
                require_judgeable(turns[: index + 1], subgoal)
                judged.append(
                    (yield from _judged(index, place, subgoal, trace.options, is_dynamic=False))
                )
    return [replace(_progress(judged), validation_results=judged)]


def _progress(judged: Sequence[SubGoalValidationResult]) -> NumericalScore:
    explained = [{each.sub_goal.details: each.explanations} for each in judged]
    return NumericalScore(progress_of(each.is_completed for each in judged), None, explained)


def _judged(
    index: int, place: int, subgoal: PlainSubgoal, options: Options, *, is_dynamic: bool
) -> Asking[SubGoalValidationResult]:
    stops_early, waves = options.optimize_judge_trials, max(0, options.max_retry_judge_trials)
    vote = yield from voted(
        Ballot(index, place, subgoal, options.num_judge_trials, stops_early, waves, is_dynamic)
    )
    verdict = "is completed" if vote.is_complete else "is not completed"
    explanations = [f"After turn {index + 1} the subgoal {verdict}: {subgoal.details}"]
    explanations += vote.completions if options.include_judge_explanation else ()
    return SubGoalValidationResult(bool(vote.is_complete), explanations, subgoal, vote.prompt)


# agent-inspect's statistics of a judge's votes: the expected progress of one conversation and its
# deviation.


def judge_statistics(
    completions_by_subgoal: Sequence[Sequence[Any]],
    grade_in: Callable[[Any], bool | None] = grade_of,
) -> tuple[float, float] | tuple[None, None]:
    """Expected progress and its standard deviation when each subgoal is completed as often as the
    judge said so; None without subgoals.

    Completions without a grade are left out, which usually makes the numbers of votes unequal.

    Args:
        completions_by_subgoal: The judge's completions on each subgoal.
        grade_in: Reads the grade of a completion; None for one without.

    Raises:
        InvalidInputValueError: 080008 when a subgoal has no completions or none with a grade;
            080009 when subgoals have different numbers of votes.
    """
    if not completions_by_subgoal:
        return None, None
    if not all(completions_by_subgoal):
        raise InvalidInputValueError("080008", "A subgoal has no completions of a judge.")
    votes = [
        [grade for completion in completions if (grade := grade_in(completion)) is not None]
        for completions in completions_by_subgoal
    ]
    if len({len(of_subgoal) for of_subgoal in votes}) > 1:
        raise InvalidInputValueError("080009", "The subgoals have different numbers of votes.")
    if not votes[0]:
        raise InvalidInputValueError("080008", "No completion of the judge has a grade.")
    shares = [sum(of_subgoal) / len(of_subgoal) for of_subgoal in votes]
    count = len(shares)
    variance = sum_in_numpy_order([share * (1 - share) for share in shares]) / count**2
    return sum_in_numpy_order(shares) / count, math.sqrt(variance)


# agent-inspect's pass@k and pass^k: what repeated trials of one task say about its success.


def pass_at_k(success_scores: Sequence[float], trials: int | None, k: int | None = None) -> float:
    """How likely one of k trials succeeds.

    Raises:
        EvaluationError: 050009 when the settings make no sense or there are fewer scores than
            trials.
        TypeError: The scores do not add up to a whole number.
    """
    trials, k, successes = _counted(success_scores, trials, k)
    if successes == 0:
        return 0.0
    if trials - successes < k:
        return 1.0
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


def pass_hat_k(success_scores: Sequence[float], trials: int | None, k: int | None = None) -> float:
    """How likely all of k trials succeed. More scores than trials can make it exceed 1.

    Raises:
        EvaluationError: 050009 as for `pass_at_k`.
        TypeError: The scores do not add up to a whole number, and to k or more.
    """
    trials, k, successes = _counted(success_scores, trials, k)
    if successes < k:
        return 0.0
    return math.comb(successes, k) / math.comb(trials, k)


def _counted(
    success_scores: Sequence[float], trials: int | None, k: int | None
) -> tuple[int, int, Any]:
    """Trials, k, which is all of them unless it is given, and the sum of all scores."""
    k = trials if k is None else k
    if not trials or not k or k <= 0 or trials <= 0 or k > trials:
        raise EvaluationError(
            "050009", f"k must be between 1 and the number of trials; k {k} of {trials}."
        )
    if trials > len(success_scores):
        raise EvaluationError(
            "050009", f"There are {len(success_scores)} scores of {trials} trials."
        )
    return trials, k, sum(success_scores)
