"""Counts the judge's requests and verdicts."""

from collections import Counter
from collections.abc import Collection

from consumers.judge.asking.reply import Reply, ReplyFault
from consumers.runtime.registry import Instruments
from schemas.judging import Judged, JudgeVerdict, NotRateable, Rated, TokenUse, TrialOutcome, Unjudged
from schemas.units import to_seconds


class Tally:
    """The judge's counters."""

    def __init__(self, instruments: Instruments, model: str) -> None:
        """Stores the instruments.

        Args:
            instruments: Built for the role `judge`, perhaps among others.
            model: Name of the model.
        """
        self._instruments = instruments
        self._model = model

    def request(self, reply: Reply, outcome: TrialOutcome, cost: float, faults: Collection[ReplyFault]) -> None:
        """Counts a finished request to the model, with its retries."""
        labels = (self._model, outcome)
        self._instruments.inc("callgauge_judge_requests_total", labels)
        self._instruments.observe("callgauge_judge_request_seconds", labels, to_seconds(reply.latency_ms))
        self._instruments.inc("callgauge_judge_retries_total", (self._model,), reply.requests - 1)
        self._instruments.inc("callgauge_judge_cost_total", labels, cost)
        for fault in faults:
            self._instruments.inc("callgauge_judge_reply_faults_total", (self._model, fault))
        tokens = reply.believed_tokens or TokenUse()
        for kind, count in (
            ("prompt", tokens.prompt - tokens.cached),
            ("cached", tokens.cached),
            ("answer", tokens.answer),
        ):
            self._instruments.inc("callgauge_judge_tokens_total", (*labels, kind), max(0, count))

    def verdict(self, verdict: JudgeVerdict, redactions: Counter[str]) -> None:
        """Counts a verdict, and the redactions in answers since the last verdict, which it then clears."""
        for kind, count in redactions.items():
            self._instruments.inc("callgauge_judge_redactions_total", (kind,), count)
        redactions.clear()
        self._instruments.inc("callgauge_judge_verdicts_total", (verdict.kind, _outcome_of(verdict)))
        self._instruments.observe("callgauge_judge_verdict_seconds", (verdict.kind,), to_seconds(verdict.latency_ms))
        if not verdict.votes.is_unanimous:
            self._instruments.inc("callgauge_judge_votes_not_unanimous_total", (self._model,))


def _outcome_of(verdict: JudgeVerdict) -> str:
    match verdict.result:
        case Judged(is_completed=is_completed):
            return "complete" if is_completed else "incomplete"
        case Rated():
            return "rated"
        case NotRateable():
            return "not_applicable"
        case Unjudged(reason=reason):
            return reason
