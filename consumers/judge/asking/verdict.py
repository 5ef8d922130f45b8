"""Builds the verdict on a question."""

from collections.abc import Iterable
from typing import Final

from consumers.judge.asking.poll import Poll
from schemas.judging import JudgeRequest, JudgeVerdict, TrialAnswer, VerdictResult

MAX_KEPT_ANSWERS: Final = 100
"""Answers kept in a verdict, the newest, so that it fits a Kafka record with any number of trials."""
MAX_RAW_CHARS: Final = 100_000
"""Characters of all whole answers in a verdict, for the same reason; of the others, grade and explanation are kept."""
_COST_DIGITS: Final = 9


def verdict_of(
    request: JudgeRequest, result: VerdictResult, poll: Poll | None, *, arrived_ms: int, now_ms: int
) -> JudgeVerdict:
    """Builds the record of a verdict.

    Args:
        request: The question.
        result: The decision, or why there is none.
        poll: The trials; None when the model was not asked.
        arrived_ms: When the question arrived at this judge.
        now_ms: The time of the verdict.
    """
    answered = JudgeVerdict(
        timestamp=now_ms,
        request_id=request.request_id,
        conversation_id=request.conversation_id,
        kind=request.kind,
        turn=request.turn,
        goal_set=request.goal_set,
        subgoal_id=request.subgoal_id,
        input_hash=request.input_hash,
        prompt_version=request.prompt_version,
        result=result,
        agent=request.agent,
        waited_ms=max(0, now_ms - arrived_ms),
        latency_ms=max(0, now_ms - arrived_ms),
    )
    if poll is None or not poll.answers:
        return answered
    asked = {
        "votes": poll.votes,
        "answers": _kept(poll.answers),
        "confidence": poll.votes.confidence,
        "model": poll.means.settings.model,
        "tokens": poll.tokens,
        "cost": round(poll.cost, _COST_DIGITS),
        "requests": poll.requests,
        "waited_ms": max(0, (poll.first_sent_ms or now_ms) - arrived_ms),
    }
    return answered.model_copy(update=asked)


def _kept(answers: Iterable[TrialAnswer]) -> tuple[TrialAnswer, ...]:
    """Returns the answers in the order of asking, as far as they fit."""
    newest_first = sorted(answers, key=lambda answer: answer.trial, reverse=True)[:MAX_KEPT_ANSWERS]
    kept = []
    left = MAX_RAW_CHARS
    for answer in newest_first:
        left -= len(answer.raw or "")
        kept.append(answer if left >= 0 else answer.model_copy(update={"raw": None}))
    return tuple(reversed(kept))
