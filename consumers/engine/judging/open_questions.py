"""The open questions of a call to its judges. A question asked again on the same input gets the earlier answer."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.judging import (
    JudgeRequest,
    JudgeVerdict,
    TrialAnswer,
    Unjudged,
    UnjudgedReason,
    VerdictResult,
    Votes,
)
from schemas.scores.all_records import UnscoredReason

MAX_KEPT_VERDICTS: Final = 2_000
"""Verdicts of a call that are kept until their question is asked (again): 20 turns have some 100."""

About = TypeVar("About")


class Answer(NamedTuple, Generic[About]):
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
        return any(question.about == about and question.input_hash == input_hash for question in self._open.values())

    def ask(
        self, about: About, input_hash: str, request: JudgeRequest, *, is_late: bool
    ) -> JudgeRequest | Answer[About] | None:
        """Asks a question.

        Args:
            about: Subject of the question.
            input_hash: Hash of the input it is asked on.
            request: The question.
            is_late: Whether the call is closing, so that no answer can come any more.

        Returns:
            The request to send; None when it is open already; or the answer, if it is known or cannot come.
        """
        if request.is_too_large:
            return Answer(about, input_hash, UnscoredReason.TOO_LONG)
        name = request.request_id
        if name in self._open:
            return None
        known = self._verdicts.get(name)
        # The input has returned to an earlier state, or a replay reads the answer first.
        if known is not None and (is_late or known[0] < request.deadline_ms):
            return _answer(about, input_hash, known[1])
        if is_late:
            return Answer(about, input_hash, UnscoredReason.CALL_CUT_OFF)
        self._open[name] = _Open(about, input_hash, request)
        return request

    def fold(self, verdict: JudgeVerdict, broker_ms: int) -> Answer[About] | None:
        """The answer that a verdict gives; None when no open question matches, or the deadline has passed."""
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

    def expire(self, now_ms: int) -> list[Answer[About]]:
        """Answers without a verdict for the questions whose deadline broker time has reached."""
        return self._drop(lambda question: question.request.deadline_ms <= now_ms, UnscoredReason.DEADLINE)

    def give_up(self) -> list[Answer[About]]:
        """Answers without a verdict for all open questions, at the close."""
        return self._drop(lambda _: True, UnscoredReason.CALL_CUT_OFF)

    def forget_unless(self, is_wanted: Callable[[About, str], bool]) -> None:
        """Drops the questions on inputs that are outdated."""
        for name, question in list(self._open.items()):
            if not is_wanted(question.about, question.input_hash):
                del self._open[name]

    def _drop(self, is_dropped: Callable[[_Open[About]], bool], reason: UnscoredReason) -> list[Answer[About]]:
        dropped = {name: question for name, question in self._open.items() if is_dropped(question)}
        for name in dropped:
            del self._open[name]
        return [Answer(question.about, question.input_hash, reason) for question in dropped.values()]


def _answer(about: About, input_hash: str, verdict: JudgeVerdict) -> Answer[About]:
    result = verdict.result
    if isinstance(result, Unjudged):
        return Answer(about, input_hash, unscored(result.reason), verdict.votes, verdict.answers)
    return Answer(about, input_hash, result, verdict.votes, verdict.answers)


def unscored(reason: UnjudgedReason) -> UnscoredReason:
    """The judge's reason as a reason of scores; both have the same values.

    >>> all(unscored(reason) for reason in UnjudgedReason)
    True
    """
    return UnscoredReason(reason.value)
