"""Turns a judge's answers to one question into one verdict: reads grades, and votes in waves.

Voting is a state machine without I/O: it says how many identical requests to send now, and takes their answers.
"""

import re
from collections.abc import Sequence
from enum import StrEnum

_GRADE = re.compile(r"GRADE\s*:\s*([CPI])", re.IGNORECASE)
_VOTES = {"C": True, "I": False}


def grade_of(text: str | None) -> bool | None:
    r"""The grade that a judge's free text ends with, read as agent-inspect reads it; None when there is none.

    The word and the letter may have any case to be found, but only an upper-case C (complete) or I (incomplete) counts.
    Of the grades on the last line the first one decides, also when it does not count.

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
    """Why a vote ended without a verdict: an answer stayed invalid to the last retry; no majority can be reached."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    TOO_FEW_VALID = "too_few_valid"


class Voting:
    """One question asked an odd number of times; the majority decides. Two ways, both agent-inspect's.

    - With `stops_early`, a wave has only as many requests as could still decide the vote. An invalid answer uses up its
      trial and is not asked again; the majority is one of all trials, not of the valid answers.
    - Without it, all trials are asked at once and then the invalid ones again, up to `retry_waves` times. One that stays
      invalid fails the whole vote, even when the others have decided it.

    Inside a wave the order of the answers makes no difference.

    Attributes:
        votes_complete: Valid answers so far that say complete.
        votes_incomplete: Valid answers so far that say incomplete.
        votes_invalid: Invalid answers so far, including those that were asked again.
    """

    __slots__ = (
        "_majority",
        "_pending",
        "_retries_left",
        "_stops_early",
        "_trials_left",
        "failure",
        "votes_complete",
        "votes_incomplete",
        "votes_invalid",
    )

    def __init__(self, trials: int, *, stops_early: bool, retry_waves: int = 5) -> None:
        """Starts with nothing asked.

        Args:
            trials: Times the question may be asked; odd, so that there is no tie.
            stops_early: Which of the two ways.
            retry_waves: Times that invalid answers are asked for again; without effect when the vote stops early.

        Raises:
            ValueError: `trials` is even or not positive, or `retry_waves` is negative.
        """
        if trials <= 0 or trials % 2 == 0:
            raise ValueError(
                f"A vote needs an odd number of trials, 1 or more, so that it cannot tie; it was {trials}."
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
        """The majority's verdict, True for complete; None while it is open and when the vote has failed."""
        if self.failure is not None:
            return None
        if self._stops_early:
            if self._majority in (self.votes_complete, self.votes_incomplete):
                return self.votes_complete == self._majority
            return None
        return None if self._pending else self.votes_complete > self.votes_incomplete

    def fold(self, answers: Sequence[bool | None]) -> None:
        """Count the answers of the wave that `next_wave` asked for, in any order; None is an invalid one.

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
