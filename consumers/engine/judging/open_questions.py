"""What a call has asked the judges and still waits for. Who asks again on the same input gets the answer there was."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.judging import (
    JudgeRequest,
    JudgeVerdict,
    Unjudged,
    UnjudgedReason,
    VerdictResult,
    Votes,
)
from schemas.scores.all_records import UnscoredReason

MAX_KEPT_VERDICTS: Final = 2_000
"""Verdicts of a call that are kept for when their question is asked (again): 20 turns have some 100."""

About = TypeVar("About")


class Answer(NamedTuple, Generic[About]):
    """What became of a question.

    Attributes:
        about: What it was about.
        input_hash: The input it was asked on, as the asker names it.
        result: The verdict, or why there is none.
        votes: Of the verdict.
    """

    about: About
    input_hash: str
    result: VerdictResult | UnscoredReason
    votes: Votes = Votes()


class _Open(NamedTuple, Generic[About]):
    about: About
    input_hash: str
    request: JudgeRequest


class OpenQuestions(Generic[About]):
    """The questions of one call, by request id."""

    def __init__(self) -> None:
        """None is open."""
        self._open: dict[str, _Open[About]] = {}
        self._verdicts: OrderedDict[str, tuple[int, JudgeVerdict]] = OrderedDict()

    @property
    def requests(self) -> Iterator[JudgeRequest]:
        """What is asked and not answered, in the order of asking."""
        return (question.request for question in self._open.values())

    @property
    def abouts(self) -> Iterator[About]:
        """What the open questions are about."""
        return (question.about for question in self._open.values())

    @property
    def next_deadline_ms(self) -> int | None:
        """Broker time at which the next of them is not waited for any more; None when none is open."""
        return min((question.request.deadline_ms for question in self._open.values()), default=None)

    def is_open(self, about: About, input_hash: str) -> bool:
        """Whether just this is asked and not answered: then there is no need to write the question down again."""
        return any(question.about == about and question.input_hash == input_hash for question in self._open.values())

    def ask(
        self, about: About, input_hash: str, request: JudgeRequest, *, is_late: bool
    ) -> JudgeRequest | Answer[About] | None:
        """A question is to be answered.

        Args:
            about: What it is about.
            input_hash: The input it is asked on.
            request: The question.
            is_late: Whether the call is closing, so that nobody can be asked any more.

        Returns:
            The request to send; None when it is asked already; or the answer, where it is known or known not to come.
        """
        if request.is_too_large:
            return Answer(about, input_hash, UnscoredReason.TOO_LONG)
        name = request.request_id
        if name in self._open:
            return None
        known = self._verdicts.get(name)
        # The input is again what it was, or a replay reads the answer first.
        if known is not None and (is_late or known[0] < request.deadline_ms):
            return _answer(about, input_hash, known[1])
        if is_late:
            return Answer(about, input_hash, UnscoredReason.CALL_CUT_OFF)
        self._open[name] = _Open(about, input_hash, request)
        return request

    def fold(self, verdict: JudgeVerdict, broker_ms: int) -> Answer[About] | None:
        """A verdict; None when it answers nothing that is open, or came too late."""
        self._verdicts.setdefault(verdict.request_id, (broker_ms, verdict.model_copy(update={"answers": ()})))
        if len(self._verdicts) > MAX_KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        question = self._open.get(verdict.request_id)
        if question is None or broker_ms >= question.request.deadline_ms:
            return None
        del self._open[verdict.request_id]
        return _answer(question.about, question.input_hash, verdict)

    def expire(self, now_ms: int) -> list[Answer[About]]:
        """Broker time has reached `now_ms`: what is not waited for any more."""
        return self._drop(lambda question: question.request.deadline_ms <= now_ms, UnscoredReason.DEADLINE)

    def give_up(self) -> list[Answer[About]]:
        """The call is closed before the answers could come."""
        return self._drop(lambda _: True, UnscoredReason.CALL_CUT_OFF)

    def forget_unless(self, is_wanted: Callable[[About, str], bool]) -> None:
        """Questions on an input that is not so any more are not waited for."""
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
        return Answer(about, input_hash, unscored(result.reason), verdict.votes)
    return Answer(about, input_hash, result, verdict.votes)


def unscored(reason: UnjudgedReason) -> UnscoredReason:
    """The judge's reason in the words of scores, which are the same.

    >>> all(unscored(reason) for reason in UnjudgedReason)
    True
    """
    return UnscoredReason(reason.value)
