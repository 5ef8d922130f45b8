"""Questions to judges about subgoals: their time, their deadline, and the votes on them."""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from consumers.engine.goals.tool_correctness import Finding, ToolQuestion
from consumers.engine.limits import GoalRules
from consumers.engine.redaction.redactor import CallRedactor, Redactor
from schemas.closed_sets import JudgeKind, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.judging import (
    MAX_EXPLANATION_CHARS,
    MAX_RAW_ANSWER_CHARS,
    MAX_TRANSCRIPT_ITEMS,
    GoalSetRef,
    Judged,
    JudgeRequest,
    JudgeVerdict,
    TranscriptItem,
    TrialAnswer,
    Unjudged,
    VerdictResult,
    Votes,
    prompt_version,
    transcript_chars,
)
from schemas.wire import MAX_TEXT_CHARS

# The open questions of a call to its judges. A question asked again on the same input gets the
# earlier answer.

MAX_KEPT_VERDICTS: Final = 2_000
"""Verdicts of a call that are kept until their question is asked (again): 20 turns have
some 100.
"""

About = TypeVar("About")


class QuestionOutcome(NamedTuple, Generic[About]):
    """The end of a question.

    Attributes:
        about: Subject of the question.
        input_hash: Hash of its input, as the asker named it.
        result: The verdict, or the reason for having none.
        votes: Votes of the verdict.
        trials: Its trials, if they are kept.
    """

    about: About
    input_hash: str
    result: VerdictResult | UnscoredReason
    votes: Votes = Votes()
    trials: tuple[TrialAnswer, ...] = ()


class _Open(NamedTuple, Generic[About]):
    about: About
    input_hash: str
    request: JudgeRequest


class OpenQuestions(Generic[About]):
    """The questions of one call, by request id."""

    def __init__(self, *, keeps_trials: bool = False) -> None:
        """Starts without open questions.

        Args:
            keeps_trials: Whether answers have the trials of their verdicts.
        """
        self._keeps_trials = keeps_trials
        self._open: dict[str, _Open[About]] = {}
        self._verdicts: OrderedDict[str, tuple[int, JudgeVerdict]] = OrderedDict()

    @property
    def abouts(self) -> Iterator[About]:
        """Subjects of the open questions."""
        return (question.about for question in self._open.values())

    @property
    def next_deadline_ms(self) -> int | None:
        """Broker time of the next deadline; None when no question is open."""
        return min((question.request.deadline_ms for question in self._open.values()), default=None)

    def is_open(self, about: About, input_hash: str) -> bool:
        """Whether this question on this input is open, so that it need not be written again."""
        return any(
            question.about == about and question.input_hash == input_hash
            for question in self._open.values()
        )

    def ask(
        self, about: About, input_hash: str, request: JudgeRequest, *, is_late: bool
    ) -> JudgeRequest | QuestionOutcome[About] | None:
        """Asks a question.

        Args:
            about: Subject of the question.
            input_hash: Hash of the input it is asked on.
            request: The question.
            is_late: Whether the call is closing, so that no answer can come any more.

        Returns:
            The request to send; None when it is open already; or the answer, if it is known or
            cannot come.
        """
        if request.is_too_large:
            return QuestionOutcome(about, input_hash, UnscoredReason.TOO_LONG)
        name = request.request_id
        if name in self._open:
            return None
        known = self._verdicts.get(name)
        # The input has returned to an earlier state, or a replay reads the answer first.
        if known is not None and (is_late or known[0] < request.deadline_ms):
            return _answer(about, input_hash, known[1])
        if is_late:
            return QuestionOutcome(about, input_hash, UnscoredReason.CALL_CUT_OFF)
        self._open[name] = _Open(about, input_hash, request)
        return request

    def fold(self, verdict: JudgeVerdict, broker_ms: int) -> QuestionOutcome[About] | None:
        """The answer that a verdict gives; None when no open question matches, or the deadline has
        passed.
        """
        if not self._keeps_trials:
            verdict = verdict.model_copy(update={"answers": ()})
        self._verdicts.setdefault(verdict.request_id, (broker_ms, verdict))
        if len(self._verdicts) > MAX_KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        question = self._open.get(verdict.request_id)
        if question is None or broker_ms >= question.request.deadline_ms:
            return None
        del self._open[verdict.request_id]
        return _answer(question.about, question.input_hash, verdict)

    def expire(self, now_ms: int) -> list[QuestionOutcome[About]]:
        """Answers without a verdict for the questions whose deadline broker time has reached."""
        return self._drop(
            lambda question: question.request.deadline_ms <= now_ms, UnscoredReason.DEADLINE
        )

    def give_up(self) -> list[QuestionOutcome[About]]:
        """Answers without a verdict for all open questions, at the close."""
        return self._drop(lambda _: True, UnscoredReason.CALL_CUT_OFF)

    def forget_unless(self, is_wanted: Callable[[About, str], bool]) -> None:
        """Drops the questions on inputs that are outdated."""
        for name, question in list(self._open.items()):
            if not is_wanted(question.about, question.input_hash):
                del self._open[name]

    def _drop(
        self, is_dropped: Callable[[_Open[About]], bool], reason: UnscoredReason
    ) -> list[QuestionOutcome[About]]:
        dropped = {name: question for name, question in self._open.items() if is_dropped(question)}
        for name in dropped:
            del self._open[name]
        return [
            QuestionOutcome(question.about, question.input_hash, reason)
            for question in dropped.values()
        ]


def _answer(about: About, input_hash: str, verdict: JudgeVerdict) -> QuestionOutcome[About]:
    result: VerdictResult | UnscoredReason = verdict.result
    if isinstance(result, Unjudged):
        # a judge's reasons are among those of scores, by value
        result = UnscoredReason(result.reason.value)
    return QuestionOutcome(about, input_hash, result, verdict.votes, verdict.answers)


# Bounds the work of asking judges in one step: each question carries the call up to its turn, and
# there can be many.

MAX_WORK_PER_STEP: Final = 50_000
"""Transcript entries that one step may put into questions, some 0.3 s of work. Further questions
wait until the call leaves the next turn or the next answer comes. Only a text that changes long
afterwards asks for more: about every turn since.
"""
_WORK_OF_A_QUESTION: Final = 100
_CHARS_OF_AN_ENTRY: Final = 64
"""Characters that cost as much to read as one entry."""


class AskingBudget:
    """Counts the work that one step may still spend on questions."""

    def __init__(self) -> None:
        self._left = MAX_WORK_PER_STEP

    @property
    def is_spent(self) -> bool:
        """Whether the next question must wait."""
        return self._left <= 0

    def transcript(self, turns: Iterable[tuple[TranscriptItem, ...]]) -> tuple[TranscriptItem, ...]:
        """The turns as the transcript of a question that is asked now."""
        items = tuple(islice(chain.from_iterable(turns), MAX_TRANSCRIPT_ITEMS))
        self._left -= (
            _WORK_OF_A_QUESTION + len(items) + transcript_chars(items) // _CHARS_OF_AN_ENTRY
        )
        return items


# Turns a judge's answers to one question into one verdict: reads grades, and votes in waves.
#
# Voting is a state machine without I/O: it says how many identical requests to send now, and takes
# their answers.

_GRADE = re.compile(r"GRADE\s*:\s*([CPI])", re.IGNORECASE)
_VOTES = {"C": True, "I": False}


def grade_of(text: str | None) -> bool | None:
    r"""The grade that a judge's free text ends with, read as agent-inspect reads it; None when
    there is none.

    The word and the letter may have any case to be found, but only an upper-case C (complete) or I
    (incomplete) counts. Of the grades on the last line the first one decides, also when it does not
    count.

    >>> grade_of("The booking was confirmed.\nGRADE: C")
    True
    >>> grade_of("GRADE: C\nbecause the booking was confirmed") is None
    True
    """
    if text is None:
        return None
    last_line_starts = text.removesuffix("\n").rfind("\n") + 1
    for found in _GRADE.finditer(text):
        if found.start(1) >= last_line_starts:
            return _VOTES.get(found[1])
    return None


class VoteFailure(StrEnum):
    """Why a vote ended without a verdict: an answer stayed invalid to the last retry; no majority
    can be reached.
    """

    RETRIES_EXHAUSTED = "retries_exhausted"
    TOO_FEW_VALID = "too_few_valid"


class Voting:
    """One question asked an odd number of times; the majority decides. Two ways, both
    agent-inspect's.

    - With `stops_early`, a wave has only as many requests as could still decide the vote. An
      invalid answer uses up its trial and is not asked again; the majority is one of all trials,
      not of the valid answers.
    - Without it, all trials are asked at once and then the invalid ones again, up to `retry_waves`
      times. One that stays invalid fails the whole vote, even when the others have decided it.

    Inside a wave the order of the answers makes no difference.

    Attributes:
        votes_complete: Valid answers so far that say complete.
        votes_incomplete: Valid answers so far that say incomplete.
        votes_invalid: Invalid answers so far, including those that were asked again.
    """

    def __init__(self, trials: int, *, stops_early: bool, retry_waves: int = 5) -> None:
        """Starts with nothing asked.

        Args:
            trials: Times the question may be asked; odd, so that there is no tie.
            stops_early: Which of the two ways.
            retry_waves: Times that invalid answers are asked for again; without effect when the
                vote stops early.

        Raises:
            ValueError: `trials` is even or not positive, or `retry_waves` is negative.
        """
        if trials <= 0 or trials % 2 == 0:
            raise ValueError(
                "A vote needs an odd number of trials, 1 or more, so that it cannot tie; it was "
                f"{trials}."
            )
        if retry_waves < 0:
            raise ValueError(f"A vote can be retried 0 times or more; it was {retry_waves}.")
        self._majority = trials // 2 + 1
        self._stops_early = stops_early
        self._trials_left = trials
        self._pending = trials
        self._retries_left = retry_waves
        self.votes_complete = 0
        self.votes_incomplete = 0
        self.votes_invalid = 0
        self.failure: VoteFailure | None = None

    @property
    def next_wave(self) -> int:
        """Number of requests to send now; 0 when the vote is decided or has failed."""
        if self.failure is not None or self.verdict is not None:
            return 0
        if not self._stops_early:
            return self._pending
        # No more than the remaining trials: beyond them the vote has failed.
        return self._majority - max(self.votes_complete, self.votes_incomplete)

    @property
    def verdict(self) -> bool | None:
        """The majority's verdict, True for complete; None while it is open and when the vote has
        failed.
        """
        if self.failure is not None:
            return None
        if self._stops_early:
            if self._majority in (self.votes_complete, self.votes_incomplete):
                return self.votes_complete == self._majority
            return None
        return None if self._pending else self.votes_complete > self.votes_incomplete

    def fold(self, answers: Sequence[bool | None]) -> None:
        """Count the answers of the wave that `next_wave` asked for, in any order; None is an
        invalid one.

        Raises:
            ValueError: There are more or fewer answers than were asked for.
        """
        wave = self.next_wave
        if len(answers) != wave:
            raise ValueError(f"The vote asked for {wave} answers and got {len(answers)}.")
        self.votes_complete += answers.count(True)
        self.votes_incomplete += answers.count(False)
        invalid = answers.count(None)
        self.votes_invalid += invalid
        if self._stops_early:
            self._trials_left -= wave
            leading = max(self.votes_complete, self.votes_incomplete)
            if leading + self._trials_left < self._majority:
                self.failure = VoteFailure.TOO_FEW_VALID
            return
        self._pending = invalid
        if invalid and self._retries_left == 0:
            self.failure = VoteFailure.RETRIES_EXHAUSTED
        self._retries_left -= 1


# Makes the questions to judges about subgoals and about values of tool calls.

AT_RISK: Final = 5
"""Priority of a call that is stuck, of 0 to 9: someone may still want to step in."""
MAX_VALUE_CHARS: Final = 4_000
"""Longest argument or answer in a question about it."""

AskedAbout = tuple[int, int] | ToolQuestion
"""A turn and a subgoal's place in the goal set, or a value of a tool call."""


class SubgoalQuestions:
    """Makes the requests of one call, and remembers the findings about tool calls.

    Attributes:
        agent: The agent whose budget pays for the judges' work.
        priority: Urgency of questions; higher for a call at risk.
    """

    def __init__(
        self, conversation_id: str, goal_set: GoalSet, rules: GoalRules, redactor: CallRedactor
    ) -> None:
        self.agent = "unknown"
        self.priority = 0
        self._conversation_id = conversation_id
        self._goal_set = goal_set
        self._ref = GoalSetRef(id=goal_set.id, digest=goal_set.digest)
        self._rules = rules
        self._redactor = redactor
        self._redacted: dict[str, str] = {}
        self._found: dict[str, bool | UnscoredReason] = {}

    def request(
        self, about: AskedAbout, transcript: tuple[TranscriptItem, ...], broker_ms: int
    ) -> JudgeRequest:
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
            conversation_id=self._conversation_id,
            kind=JudgeKind.SUBGOAL,
            turn=turn,
            goal_set=self._ref,
            subgoal_id=subgoal_id,
            subgoal=subgoal,
            user_instruction=None if instruction is None else self._redacted_text(instruction),
            transcript=transcript,
            trials=rules.trials,
            stops_early=rules.stops_early,
            retry_waves=rules.retry_waves,
            prompt_version=prompt_version(template),
            template=template,
            asked_at_ms=broker_ms,
            deadline_ms=broker_ms + rules.verdict_deadline_ms,
            agent=self.agent,
            priority=self.priority,
        )

    def _redacted_text(self, text: str) -> str:
        """A text of the goal set without personal data, as in the transcript that judges compare it
        with.
        """
        redacted = self._redacted.get(text)
        if redacted is None:
            redacted = self._redacted[text] = self._redactor.beginning(text, MAX_TEXT_CHARS)
        return redacted

    def redacted(self, trials: Iterable[TrialAnswer]) -> list[TrialAnswer]:
        """The trials of a verdict for a row, without personal data."""
        texts = self._redactor.beginning
        return [
            trial.model_copy(
                update={
                    "explanation": texts(trial.explanation, MAX_EXPLANATION_CHARS),
                    "raw": None if trial.raw is None else texts(trial.raw, MAX_RAW_ANSWER_CHARS),
                }
            )
            for trial in trials
        ]

    def found(self, question: ToolQuestion) -> Finding:
        """The known finding about a value of a tool call."""
        return self._found.get(_key(question))

    def find(self, answer: QuestionOutcome[AskedAbout]) -> bool | UnscoredReason:
        """The finding in an answer; one about a tool call is remembered."""
        result = answer.result
        if isinstance(result, Judged):
            finding: bool | UnscoredReason = result.is_completed
        else:
            finding = (
                result if isinstance(result, UnscoredReason) else UnscoredReason.INVALID_ANSWERS
            )
        if isinstance(answer.about, ToolQuestion):
            self._found[_key(answer.about)] = finding
        return finding


def turn_of(about: AskedAbout) -> int:
    """The turn of a question."""
    return about.turn if isinstance(about, ToolQuestion) else about[0]


def _key(question: ToolQuestion) -> str:
    return "\x00".join(
        (str(question.turn), question.parameter or "", question.check, _json(question.value))
    )


def in_words(question: ToolQuestion, redactor: CallRedactor | Redactor) -> str:
    """A question about a tool call in plain words, as a subgoal of its turn."""
    value = redacted_argument(question.parameter, question.value, redactor)
    what = "the answer" if question.parameter is None else f"the argument {question.parameter!r}"
    return (
        f"In turn {question.turn} the assistant used the tool {question.call.tool!r}, and {what} "
        f"of that use is as it must be. It must be so: {redactor.redact(question.check)} It is: "
        f"{_json(value)}"
    )


def redacted_argument(parameter: str | None, value: Any, redactor: CallRedactor | Redactor) -> Any:
    """The value of an argument, or an answer (None), without personal data. The name of an argument
    explains its value.
    """
    found = redactor.redact_value({parameter or "": value})
    return next(iter(found.values())) if isinstance(found, dict) else found


def value_in_words(
    parameter: str | None, value: Any, redactor: CallRedactor | Redactor, most: int
) -> str:
    """An argument, or an answer (None), as JSON without personal data, of at most so many
    characters.
    """
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > most:  # cut, it is no JSON any more, so it is redacted as text
        return redactor.beginning(text, most)
    redacted = redacted_argument(parameter, value, redactor)
    return (
        text if redacted == value else json.dumps(redacted, ensure_ascii=False, default=str)[:most]
    )


def _json(value: object) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)[:MAX_VALUE_CHARS]
    return str(value)[:MAX_VALUE_CHARS]


# Holds questions back until the words that they are about have been the same for a while.
#
# Topics may arrive one after the other, and words late. Each change of words is another question,
# and each question costs.

MAX_HELD_MS: Final = 5_000
"""Longest that a question about a turn is held back, in ms of broker time: half of the time within
which scores are promised.
"""


class SteadyWords:
    """The turns of one call whose words have changed lately.

    Attributes:
        ask_at_ms: Broker time from when held questions may be asked; None when no question is held.
    """

    def __init__(self, rules: GoalRules) -> None:
        # Without a judge nothing costs, so nothing waits.
        self._for_ms = rules.steady_words_ms if rules.asks_judge else 0
        self._first_ms: dict[int, int] = {}
        self._steady_at_ms: dict[int, int] = {}
        self.ask_at_ms: int | None = None

    def changed(self, turns: Iterable[int], broker_ms: int) -> None:
        """Notes that the words or tools of these turns changed at this broker time."""
        for turn in turns:
            until_ms = self._first_ms.setdefault(turn, broker_ms) + MAX_HELD_MS
            self._steady_at_ms[turn] = min(broker_ms + self._for_ms, until_ms)

    def steady(
        self, abouts: list[About], turn_of: Callable[[About], int], now_ms: int | None
    ) -> list[About]:
        """The questions that may be asked now.

        Args:
            abouts: Open questions. Those about later turns than a held one are held too, because
                they contain its words.
            turn_of: The turn of a question.
            now_ms: Broker time; None when nothing is held any more, because the call is over.
        """
        for turn in [
            turn for turn, at_ms in self._steady_at_ms.items() if now_ms is None or at_ms <= now_ms
        ]:
            del self._steady_at_ms[turn]
        first = min(self._steady_at_ms, default=None)
        steady = [about for about in abouts if first is None or turn_of(about) < first]
        self.ask_at_ms = (
            max(self._steady_at_ms.values(), default=None) if len(steady) < len(abouts) else None
        )
        return steady
