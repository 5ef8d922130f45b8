"""agent-inspect's scorers on finished traces: progress, AUC, PPT, success, tools, pass@k. They yield the votes that they need."""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, NamedTuple, TypeVar

from consumers.engine.goals.curve import PLACES, area_under, sum_in_numpy_order
from consumers.engine.goals.questions import grade_of
from schemas.judging import PLACES as PLACES_OF_TEMPLATES
from schemas.judging import places_in

# The errors that agent-inspect ends with, by their class names and internal codes; the wording is ours.
#
# What it leaves unwrapped (TypeError, IndexError, KeyError, a plain ValueError) is raised here as such.


class Code(StrEnum):
    """The last four digits of an internal code; the first two are the component's."""

    INVALID_VOTE = "0000"
    UNREADABLE_GRADE = "0003"
    NOTHING_JUDGED = "0004"
    NO_PROGRESS = "0005"
    AREA_FAILED = "0006"
    TOO_FEW_VALID_ANSWERS = "0007"
    MISSING_VALUE = "0008"
    INVALID_VALUE = "0009"
    PER_TURN_FAILED = "0012"


EVALUATION = "05"
ANALYSIS = "08"


class EvaluationError(Exception):
    """A metric could not be computed."""

    def __init__(self, code: Code, message: str) -> None:
        self.internal_code = EVALUATION + code
        super().__init__(message)


class InvalidInputValueError(ValueError):
    """The input of a metric is not usable."""

    def __init__(self, code: Code, message: str, component: str = EVALUATION) -> None:
        self.internal_code = component + code
        super().__init__(message)


# The input of agent-inspect, and the errors that stop it before a request is sent.
#
# Fields are typed Any where it takes any value and fails, if at all, when it uses it.

TEMPLATE = "template_subgoal"
USER_TASK = "userTask"


class Argument(NamedTuple):
    """One argument of a tool call that was made."""

    name: str
    value: Any


class Step(NamedTuple):
    """One step of the agent inside a turn: usually a tool call, with the tokens it cost."""

    tool: Any = None
    arguments: Sequence[Argument] | None = ()
    output: Any = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class Turn(NamedTuple):
    """One user input with the agent's response and the steps in between."""

    user_text: Any
    assistant_text: Any
    steps: Sequence[Step] | None = ()
    latency_ms: float | None = None


class Subgoal(NamedTuple):
    """A subgoal in plain words; `turn` counts for static conversations only, from zero, and is compared as it is."""

    details: str
    turn: Any = None
    type: Any = None


class Required(NamedTuple):
    """The expected argument or output: equal to `value`, or as `check` says to a judge."""

    value: Any = None
    check: str | None = None


class ExpectedCall(NamedTuple):
    """A tool call that should be made in the turn with the index `turn`, from zero."""

    tool: Any
    parameters: Sequence[tuple[str, Required]] | None = None
    output: Required | None = None
    turn: Any = None


class CheckedValue(NamedTuple):
    """An argument or the output of a tool call that was made, which a judge checks.

    Attributes:
        name: The argument; None for the output.
        check: The condition, in plain words.
        value: The value; empty when the argument is missing.
        step: The tool call.
    """

    name: str | None
    check: str
    value: Any
    step: Step


def require_texts(turns: Sequence[Turn]) -> None:
    """Every one of these turns needs both its texts.

    Raises:
        InvalidInputValueError: 050008 when one has none.
    """
    for number, turn in enumerate(turns, 1):
        if not turn.user_text:
            raise InvalidInputValueError(Code.MISSING_VALUE, f"Turn {number} has no user text.")
        if not turn.assistant_text:
            raise InvalidInputValueError(Code.MISSING_VALUE, f"Turn {number} has no assistant text.")


def require_judgeable(turns: Sequence[Turn], subgoal: Subgoal) -> None:
    """All that must hold before a subgoal is judged on these turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has no text or the subgoal no details.
        TypeError: A text is not a string, or a tool call has None for its arguments.
    """
    require_texts(turns)
    if not subgoal.details:
        raise InvalidInputValueError(Code.MISSING_VALUE, "A subgoal has no details to judge by.")
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn.user_text, str) or not isinstance(turn.assistant_text, str):
            raise TypeError(f"A text of turn {number} is not a string.")
        if any(step.tool and step.arguments is None for step in turn.steps or ()):
            raise TypeError(f"A tool call of turn {number} has None for its arguments.")


def require_fillable(config: Mapping[str, Any], user_instruction: str | None) -> None:
    """A prompt template of one's own may name only existing values.

    Raises:
        KeyError: It asks for another value, or for the user's instruction when there is none.
    """
    template = config.get(TEMPLATE)
    if template is None:
        return
    has_instruction = bool(user_instruction and user_instruction.strip())
    for place in places_in(template):
        if place not in PLACES_OF_TEMPLATES or (place == USER_TASK and not has_instruction):
            raise KeyError(place)


# agent-inspect's observed values of a trace: latencies, tokens of the agent, tool calls. Nothing is judged.


def total_latency_ms(turns: Sequence[Turn]) -> float:
    """Sum of the turns' latencies; 0 without turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has none.
    """
    missing = [number for number, turn in enumerate(turns, 1) if turn.latency_ms is None]
    if missing:
        raise InvalidInputValueError(Code.MISSING_VALUE, f"Turns without a latency: {missing}.")
    total_ms = 0.0  # one by one: from Python 3.12 on sum() corrects for lost bits
    for turn in turns:
        total_ms += turn.latency_ms or 0.0
    return round(total_ms, PLACES)


def average_latency_ms(turns: Sequence[Turn]) -> float:
    """The rounded total divided by the number of turns; 0 without turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has none.
    """
    total_ms = total_latency_ms(turns)
    return round(total_ms / len(turns), PLACES) if turns else 0.0


def input_tokens(turns: Sequence[Turn]) -> int:
    """Input tokens of all steps. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return sum(step.input_tokens or 0 for step in _steps(turns))


def output_tokens(turns: Sequence[Turn]) -> int:
    """Output tokens of all steps. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return sum(step.output_tokens or 0 for step in _steps(turns))


def reasoning_tokens(turns: Sequence[Turn]) -> int:
    """Reasoning tokens of all steps. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return sum(step.reasoning_tokens or 0 for step in _steps(turns))


def total_tokens(turns: Sequence[Turn]) -> int:
    """Tokens of all three kinds. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return input_tokens(turns) + output_tokens(turns) + reasoning_tokens(turns)


def tool_call_count(turns: Sequence[Turn]) -> int:
    """Steps that name a tool. Raises TypeError when a turn has None for its steps."""
    count = 0
    for turn in turns:
        if turn.steps is None:
            raise TypeError("A turn has None for its steps.")
        count += sum(bool(step.tool and step.tool.strip()) for step in turn.steps)
    return count


def _steps(turns: Sequence[Turn]) -> list[Step]:
    steps: list[Step] = []
    for number, turn in enumerate(turns, 1):
        if not turn.steps:
            raise InvalidInputValueError(Code.MISSING_VALUE, f"Turn {number} has no steps.")
        steps += turn.steps
    return steps


# agent-inspect's numbers of a whole progress curve, AUC and PPT, and of success; defaults and errors included.


class Score(NamedTuple):
    """A number with the progress values that it was computed from, by agent-inspect's names."""

    value: float
    sub_scores: dict[str, float]


def progress_of(flags: Sequence[bool]) -> float:
    """The share of completed subgoals.

    Raises:
        InvalidInputValueError: 050004 when there are none.
    """
    if not flags:
        raise InvalidInputValueError(Code.NOTHING_JUDGED, "No subgoal was judged, so there is no progress to compute.")
    return round(sum(map(bool, flags)) / len(flags), PLACES)


def success_of(progress: float) -> Score:
    """1 when the progress is 1 exactly, else 0. Progress is rounded before, so 19,999 of 20,000 subgoals succeed."""
    return Score(int(progress == 1), {"progress_score": progress})


def auc_of(progress: Sequence[float]) -> float:
    """Area under the curve through these values, which start at turn 1 and span the whole width whatever their number.

    Raises:
        InvalidInputValueError: 050005 when there are none.
        EvaluationError: 050006 when there is only one, or one is no number.
    """
    if not progress:
        raise InvalidInputValueError(Code.NO_PROGRESS, "There is no progress to compute an AUC of.")
    try:
        return round(area_under(progress), PLACES)
    except (TypeError, ValueError) as error:
        raise EvaluationError(Code.AREA_FAILED, f"The AUC could not be computed: {error}") from error


def ppt_of(progress: Sequence[float]) -> float:
    """The highest progress divided by the number of the turn that reached it first; not rounded.

    Raises:
        InvalidInputValueError: 050005 when there are none.
        EvaluationError: 050012 when one is no number.
    """
    if not progress:
        raise InvalidInputValueError(Code.NO_PROGRESS, "There is no progress to compute a PPT of.")
    try:
        highest = max(progress)
        return highest / (list(progress).index(highest) + 1)
    except TypeError as error:
        raise EvaluationError(Code.PER_TURN_FAILED, f"The PPT could not be computed: {error}") from error


def auc_of_conversation(progress: Sequence[float]) -> Score:
    """The AUC of the values that judging a conversation returned, one per turn.

    Raises:
        EvaluationError: 050005 when there are none.
        ValueError: There is only one.
    """
    sub_scores = _by_turn(progress)
    return Score(round(area_under(progress), PLACES), sub_scores)


def ppt_of_conversation(progress: Sequence[float]) -> Score:
    """The PPT of the values that judging a conversation returned, rounded.

    Raises:
        EvaluationError: 050005 when there are no values.
    """
    sub_scores = _by_turn(progress)
    return Score(round(ppt_of(progress), PLACES), sub_scores)


def success_at_final_turn(progress: Sequence[float]) -> Score:
    """Whether the last value that judging a conversation returned is 1.

    Raises:
        EvaluationError: 050005 when there are no values.
    """
    sub_scores = _by_turn(progress)
    return Score(success_of(progress[-1]).value, sub_scores)


def _by_turn(progress: Sequence[float]) -> dict[str, float]:
    if not progress:
        raise EvaluationError(Code.NO_PROGRESS, "The judging of the conversation gave no progress.")
    return {f"Turn_{number}_progress_score": value for number, value in enumerate(progress, 1)}


# One question to agent-inspect's judge: how large its vote is, and the verdict or the error that follows from it.
#
# Nothing is asked here. A scorer is a generator: it yields ballots one by one, in agent-inspect's order, and is sent
# their votes.

TRIALS = "num_judge_trials"
STOPS_EARLY = "optimize_judge_trials"
RETRY_WAVES = "max_retry_judge_trials"
KEEPS_COMPLETIONS = "include_judge_explanation"

Config = Mapping[str, Any]
"""Settings under agent-inspect's own keys. A key that is there counts, even when it holds None."""


class Ballot(NamedTuple):
    """One question to the judge and the size of its vote.

    Attributes:
        turn_index: The judge reads the conversation up to the turn with this index, from zero.
        place: Place of the subgoal in the sample; of a checked value, its number among the questions of the trace.
        about: The subgoal, or the value of a tool call that is checked.
        trials: Most answers to ask for; odd.
        stops_early: Whether asking ends once a majority is certain.
        retry_waves: How often invalid answers are asked again when it does not.
        reads_instruction: Whether the judge reads the user's instruction.
    """

    turn_index: int
    place: int
    about: Subgoal | CheckedValue
    trials: int
    stops_early: bool
    retry_waves: int
    reads_instruction: bool = False


class Vote(NamedTuple):
    """The end of a vote: the majority, None if the vote failed; and the completions that were kept on the way."""

    is_complete: bool | None
    completions: tuple[str, ...] = ()


Result = TypeVar("Result")
Asking = Generator[Ballot, Vote, Result]


class _Subject(NamedTuple):
    turn_index: int
    place: int
    about: Subgoal | CheckedValue
    reads_instruction: bool = False


def voted_on_subgoal(
    index: int, place: int, subgoal: Subgoal, config: Config, *, reads_instruction: bool = False
) -> Asking[Vote]:
    """A vote as subgoals are judged: both ways of voting, by `config`. Raises as `voted_on_value`."""
    subject = _Subject(index, place, subgoal, reads_instruction)
    stops_early = bool(config.get(STOPS_EARLY, False))
    return (yield from _voted(subject, config.get(TRIALS, 5), config.get(RETRY_WAVES, 5), stops_early=stops_early))


def voted_on_value(index: int, place: int, value: CheckedValue, config: Config) -> Asking[Vote]:
    """A vote as a tool's argument or output is checked: it always stops early, whatever `config` says.

    Raises:
        EvaluationError: 050000 when the number of trials is even or not positive, or an answer stays invalid after the last
            retry; 050007 when a vote that stops early can no longer be decided.
        TypeError: A setting is no number. It shows only when the setting is needed.
    """
    return (yield from _voted(_Subject(index, place, value), config.get(TRIALS, 5), 0, stops_early=True))


def _voted(subject: _Subject, trials: Any, retry_waves: Any, *, stops_early: bool) -> Asking[Vote]:
    if trials <= 0 or trials % 2 == 0:
        raise EvaluationError(Code.INVALID_VOTE, f"A vote needs an odd, positive number of trials; it was {trials}.")
    if not isinstance(trials, int):
        raise TypeError(f"A number of trials is a whole number; it was {trials!r}.")
    can_retry = isinstance(retry_waves, int | float)
    waves = max(0, math.ceil(retry_waves)) if can_retry else 0
    vote = yield Ballot(
        subject.turn_index, subject.place, subject.about, int(trials), stops_early, waves, subject.reads_instruction
    )
    if vote.is_complete is not None:
        return vote
    if stops_early:
        raise EvaluationError(Code.TOO_FEW_VALID_ANSWERS, "Too many answers of the judge were invalid for a majority.")
    if not can_retry:
        raise TypeError(f"A number of retry waves is a number; it was {retry_waves!r}.")
    raise EvaluationError(Code.INVALID_VOTE, "An answer of the judge stayed invalid to the last retry.")


def grade_parsed(completion: str) -> int:
    """The grade in a completion: 1 for complete, 0 for incomplete.

    Raises:
        EvaluationError: 050003 when there is none that counts.
    """
    grade = grade_of(completion)
    if grade is None:
        raise EvaluationError(Code.UNREADABLE_GRADE, "The judge's answer does not end with a grade.")
    return int(grade)


# agent-inspect's tool correctness: which of the expected tool calls were made in the turns that they name.


class ExpectedFound(NamedTuple):
    """One expected call: whether it was made, and why it counts as made or not, in sentences."""

    expected: ExpectedCall
    is_made: bool
    explanations: tuple[str, ...]


class ToolCorrectness(NamedTuple):
    """The share of expected calls that were made, and each of them in the order of judging."""

    score: float
    found: tuple[ExpectedFound, ...]


def tool_correctness(
    turns: Sequence[Turn], expected_calls: Sequence[ExpectedCall], config: Config
) -> Asking[ToolCorrectness]:
    """Looks for every expected call in its turn. One that names no turn of the conversation is left out silently.

    A tool call that was made may serve several expected ones, and further calls and arguments cost nothing.

    Raises:
        InvalidInputValueError: 050004 when all were left out; 050008 when a turn in reach has no text or an expected call
            no tool; 050009 when something is to be both equal to a value and checked by a judge.
        EvaluationError: A vote failed: 050000 or 050007.
        TypeError: The turn has None for its steps, or a step None for the arguments that are looked for.
    """
    questions = count()
    found = []
    for index in range(len(turns)):
        for expected in expected_calls:
            if expected.turn == index:
                require_texts(turns[: index + 1])
                if not expected.tool:
                    raise InvalidInputValueError(Code.MISSING_VALUE, "An expected tool call names no tool.")
                search = _Search(index, expected, config, questions)
                is_made = yield from search.is_made(turns[index].steps)
                found.append(ExpectedFound(expected, is_made, search.summary(is_made=is_made)))
    return ToolCorrectness(progress_of([each.is_made for each in found]), tuple(found))


@dataclass(slots=True)
class _Search:
    """The search for one expected call in its turn. `_reasons` are of the tool calls that were compared."""

    _index: int
    _expected: ExpectedCall
    _config: Config
    _questions: "count[int]"
    _reasons: list[str] = field(default_factory=list)

    def is_made(self, steps: Sequence[Step] | None) -> Asking[bool]:
        if steps is None:
            raise TypeError("The turn has None for its steps.")
        for step in [step for step in steps if step.tool is not None]:
            if self._expected.tool.strip() == step.tool.strip() and (yield from self._is_as_expected(step)):
                return True
        return False

    def summary(self, *, is_made: bool) -> tuple[str, ...]:
        """A sentence about the call, then those about its parts."""
        made = "was made as expected" if is_made else "was not made as expected"
        missing = () if self._reasons or is_made else ("No call of this tool is in the turn.",)
        return (f"The call of {self._expected.tool!r} in turn {self._index + 1} {made}.", *missing, *self._reasons)

    def _is_as_expected(self, step: Step) -> Asking[bool]:
        # Everything is looked at, and every judge asked, even when it has failed already. Of a repeated name the last counts.
        found = {}
        for name, required in self._expected.parameters or ():
            found[name] = yield from self._is_argument_right(name, required, step)
        output = self._expected.output
        is_output_right = output is None or (yield from self._is_right(None, output, step.output, step))
        return all(found.values()) and is_output_right

    def _is_argument_right(self, name: str, required: Required, step: Step) -> Asking[bool]:
        _require_one_way(required)
        if step.arguments is None:
            raise TypeError("A tool call has None for its arguments.")
        for argument in step.arguments:
            if argument.name.strip() == name.strip():
                return (yield from self._is_right(name, required, argument.value, step))
        if required.check is not None:
            return (yield from self._is_right(name, required, "", step))
        self._reasons.append(f"The argument {name!r} is missing.")
        return False

    def _is_right(self, name: str | None, required: Required, value: Any, step: Step) -> Asking[bool]:
        _require_one_way(required)
        what = "output" if name is None else f"argument {name!r}"
        if required.check is None:
            is_equal = bool(value == required.value)
            if is_equal:
                self._reasons.append(f"The {what} is {value!r}, as expected.")
            else:
                self._reasons.append(f"The {what} is {value!r}; expected is {required.value!r}.")
            return is_equal
        checked = CheckedValue(name, required.check, value, step)
        vote = yield from voted_on_value(self._index, next(self._questions), checked, self._config)
        verdict = "complies" if vote.is_complete else "does not comply"
        self._reasons.append(f"By the judge, the {what} {verdict} with {required.check!r}.")
        self._reasons += vote.completions if self._config.get(KEEPS_COMPLETIONS, False) else ()
        return bool(vote.is_complete)


def _require_one_way(required: Required) -> None:
    if required.value is not None and required.check is not None:
        raise InvalidInputValueError(
            Code.INVALID_VALUE, "A value is given and a check too; only one of them is possible."
        )


# agent-inspect's judging of subgoals: turn by turn for calls that are played freely, once each for scripted ones.

MAX_TURNS = "max_turns"
KEEPS_VALIDATIONS = "include_validation_results"


class Validation(NamedTuple):
    """The verdict on one subgoal.

    Attributes:
        subgoal: The subgoal.
        is_completed: The verdict.
        completions: The judge's completions behind it, if they are asked for.
        turn_index: Index of the turn after which it was judged, from zero.
        place: Place of the subgoal in the sample.
    """

    subgoal: Subgoal
    is_completed: bool
    completions: tuple[str, ...]
    turn_index: int
    place: int


class TurnProgress(NamedTuple):
    """Progress after one turn.

    `explained` holds subgoals completed earlier, in that order, then all that were judged in this turn; `validations`
    the same, but only on the last entry and only when asked for.
    """

    progress: float
    explained: tuple[Validation, ...]
    validations: tuple[Validation, ...] | None


class StaticProgress(NamedTuple):
    """Progress of a scripted conversation and the verdicts behind it, in the order of judging."""

    progress: float
    validations: tuple[Validation, ...]

    @property
    def success(self) -> Score:
        """Whether every subgoal that was judged is completed."""
        return success_of(self.progress)


def progress_through_turns(
    turns: Sequence[Turn],
    subgoals: Sequence[Subgoal],
    config: Config,
    user_instruction: str | None = None,
) -> Asking[list[TurnProgress]]:
    """Judges every open subgoal after every turn, up to `max_turns` of them; a shorter call repeats its last progress.

    Raises:
        InvalidInputValueError: 050004 without subgoals; 050008 when a turn in reach has no text or a subgoal no details.
        EvaluationError: A vote failed: 050000 or 050007.
        IndexError: There are no turns.
        KeyError: The prompt template of `config` names a missing value.
        TypeError: `max_turns` is no whole number, or a value of the trace does not fit into a prompt.
    """
    max_turns = config.get(MAX_TURNS, 20)
    reached = min(max_turns, len(turns))
    pending = list(enumerate(subgoals))
    completed: list[Validation] = []
    judged: list[Validation] = []
    entries: list[TurnProgress] = []
    for index in range(reached):
        completed += [each for each in judged if each.is_completed]
        judged = []
        for place, subgoal in pending:
            require_judgeable(turns[: index + 1], subgoal)
            require_fillable(config, user_instruction)
            judged.append((yield from _validated(index, place, subgoal, config, is_dynamic=True)))
        for each in judged:
            if each.is_completed:  # the first that is equal leaves: of two equal ones it may be the other
                del pending[[subgoal for _, subgoal in pending].index(each.subgoal)]
        known = (*completed, *judged)
        entries.append(TurnProgress(progress_of([each.is_completed for each in known]), known, None))
    if max_turns > reached:
        entries += [entries[-1]] * (max_turns - reached)
    if entries and config.get(KEEPS_VALIDATIONS, False):
        entries[-1] = entries[-1]._replace(validations=(*completed, *judged))
    return entries


def static_progress(turns: Sequence[Turn], subgoals: Sequence[Subgoal], config: Config) -> Asking[StaticProgress]:
    """Judges each subgoal once, after the turn it names; one that names no turn of the conversation is left out silently.

    Raises:
        InvalidInputValueError: 050004 when all were left out; 050008 as for `progress_through_turns`.
        EvaluationError: A vote failed: 050000 or 050007.
        TypeError: A value of the trace does not fit into a prompt.
    """
    validations = []
    for index in range(len(turns)):
        for place, subgoal in enumerate(subgoals):
            if subgoal.turn == index:
                require_judgeable(turns[: index + 1], subgoal)
                validations.append((yield from _validated(index, place, subgoal, config, is_dynamic=False)))
    return StaticProgress(progress_of([each.is_completed for each in validations]), tuple(validations))


def _validated(index: int, place: int, subgoal: Subgoal, config: Config, *, is_dynamic: bool) -> Asking[Validation]:
    vote = yield from voted_on_subgoal(index, place, subgoal, config, reads_instruction=is_dynamic)
    completions = vote.completions if config.get(KEEPS_COMPLETIONS, False) else ()
    return Validation(subgoal, bool(vote.is_complete), completions, index, place)


# agent-inspect's statistics of a judge's votes: the expected progress of one conversation and its deviation.


class JudgeStatistics(NamedTuple):
    """Both None when there are no subgoals."""

    expectation: float | None
    std: float | None


def judge_statistics(completions_by_subgoal: Sequence[Sequence[str]]) -> JudgeStatistics:
    """Expected progress and its standard deviation when each subgoal is completed as often as the judge said so.

    Completions without a grade are left out, which usually makes the numbers of votes unequal.

    Raises:
        InvalidInputValueError: 080008 when a subgoal has no completions or none with a grade; 080009 when subgoals have
            different numbers of votes.
    """
    if not completions_by_subgoal:
        return JudgeStatistics(None, None)
    if not all(completions_by_subgoal):
        raise InvalidInputValueError(Code.MISSING_VALUE, "A subgoal has no completions of a judge.", ANALYSIS)
    votes = [
        [grade for completion in completions if (grade := grade_of(completion)) is not None]
        for completions in completions_by_subgoal
    ]
    if len({len(of_subgoal) for of_subgoal in votes}) > 1:
        raise InvalidInputValueError(Code.INVALID_VALUE, "The subgoals have different numbers of votes.", ANALYSIS)
    if not votes[0]:
        raise InvalidInputValueError(Code.MISSING_VALUE, "No completion of the judge has a grade.", ANALYSIS)
    shares = [sum(of_subgoal) / len(of_subgoal) for of_subgoal in votes]
    count = len(shares)
    variance = sum_in_numpy_order([share * (1 - share) for share in shares]) / count**2
    return JudgeStatistics(sum_in_numpy_order(shares) / count, math.sqrt(variance))


# agent-inspect's pass@k and pass^k: what repeated trials of one task say about its success.

K_VALUE = "k_value"
NO_OF_TRIALS = "no_of_trials"


def pass_at_k(success_scores: Sequence[float], config: Mapping[str, Any]) -> float:
    """How likely one of k trials succeeds.

    Raises:
        EvaluationError: 050009 when the settings make no sense or there are fewer scores than trials.
        TypeError: The scores do not add up to a whole number.
    """
    trials, k, successes = _counted(success_scores, config)
    if successes == 0:
        return 0.0
    if trials - successes < k:
        return 1.0
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


def pass_hat_k(success_scores: Sequence[float], config: Mapping[str, Any]) -> float:
    """How likely all of k trials succeed. More scores than trials can make it exceed 1.

    Raises:
        EvaluationError: 050009 as for `pass_at_k`.
        TypeError: The scores do not add up to a whole number, and to k or more.
    """
    trials, k, successes = _counted(success_scores, config)
    if successes < k:
        return 0.0
    return math.comb(successes, k) / math.comb(trials, k)


def _counted(success_scores: Sequence[float], config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Trials, k and the sum of all the scores that were given."""
    trials = config.get(NO_OF_TRIALS)
    k = config.get(K_VALUE, trials)
    if not trials or k <= 0 or trials <= 0 or k > trials:
        raise EvaluationError(Code.INVALID_VALUE, f"k must be between 1 and the number of trials; k {k} of {trials}.")
    if trials > len(success_scores):
        raise EvaluationError(Code.INVALID_VALUE, f"There are {len(success_scores)} scores of {trials} trials.")
    return trials, k, sum(success_scores)
