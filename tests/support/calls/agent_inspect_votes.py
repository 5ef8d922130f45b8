"""agent-inspect's scorers, driven by judges inside the process: wave by wave, as agent-inspect
sends its requests.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from consumers.engine.agent_inspect import Asking, Ballot, Vote
from consumers.engine.goals.questions import Voting, grade_of

Result = TypeVar("Result")


class JudgeAnswer(NamedTuple):
    """The outcome of one request to a judge; failures are statuses, never exceptions."""

    status: int
    text: str | None

    @property
    def vote(self) -> bool | None:
        """The vote in it; None when it is invalid."""
        return (
            grade_of(self.text) if self.status == 200 and self.text and self.text.strip() else None
        )

    @property
    def is_kept(self) -> bool:
        """Whether its text is among the kept completions: blank and unreadable ones are, an empty
        one is not.
        """
        return self.status == 200 and bool(self.text)


Judge = Callable[[int], Sequence[JudgeAnswer]]
"""Sends so many identical requests, one wave, and returns their answers."""


def driven(asking: Asking[Result], judge_of: Callable[[Ballot], Judge]) -> Result:
    """The result of a scorer whose questions these judges answer."""
    vote: Vote | None = None
    while True:
        try:
            ballot = next(asking) if vote is None else asking.send(vote)
        except StopIteration as ended:
            result: Result = ended.value
            return result
        judge = judge_of(ballot)
        voting = Voting(
            ballot.trials, stops_early=ballot.stops_early, retry_waves=ballot.retry_waves
        )
        kept: list[str] = []
        while wave := voting.next_wave:
            answers = judge(wave)
            kept += [answer.text for answer in answers if answer.is_kept and answer.text]
            voting.fold([answer.vote for answer in answers])
        vote = Vote(voting.verdict, tuple(kept))
