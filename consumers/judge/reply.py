"""The reply of the endpoint, the delivery of a request, and the interface for asking."""

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from consumers.judge.prompts import JudgePrompt
from schemas.closed_sets import TrialOutcome
from schemas.judging import TokenUse

MAX_REPORTED_TOKENS: Final = 10_000_000
"""Highest token count that is accepted for one request: several times the longest context of any
model. A higher or negative count is ignored, and the request costs the highest possible amount.
"""
MAX_CHARS_OF_A_TOKEN: Final = 128
"""Longest token of any model: a run of spaces. Fewer tokens than the texts must have, such as 0,
are ignored in the same way: a request that is free would never fill a budget.
"""

ReplyFault = Literal["too_large", "compressed", "redirected", "token_count"]
"""Fault of a reply that was dropped in whole or in part: too many bytes, compressed although plain
text was requested, a redirect, which is never followed, or an impossible token count.
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to one request.

    Attributes:
        outcome: `ANSWERED` when there is text, which may still be no valid answer.
        text: The model's text.
        tokens: The endpoint's token count, unchecked; None without one.
        requests: Number of tries.
        latency_ms: From the first sending to the end of the last reply.
    """

    outcome: TrialOutcome
    text: str | None = None
    tokens: TokenUse | None = None
    requests: int = 1
    latency_ms: int = 0

    def believed_tokens(self, prompt_chars: int) -> TokenUse | None:
        """The endpoint's token count if it is possible for a prompt of this length and for the
        text; None without one.
        """
        tokens = self.tokens
        if tokens is None:
            return None
        is_possible = (
            prompt_chars <= tokens.prompt * MAX_CHARS_OF_A_TOKEN
            and len(self.text or "") <= tokens.answer * MAX_CHARS_OF_A_TOKEN
            and 0 <= tokens.cached <= tokens.prompt <= MAX_REPORTED_TOKENS
            and tokens.answer <= MAX_REPORTED_TOKENS
        )
        return tokens if is_possible else None


@dataclass(slots=True)
class RequestTries:
    """How far the tries of a request got. The caller keeps it, so it is known even if the request
    is cut off.

    Attributes:
        tries: Number of tries.
        departed: Numbers of the tries that wrote something to the endpoint, so they may have
            arrived. The others cost nothing: refused connections, unknown names, failed TLS.
        faults: Faults of the replies.
    """

    tries: int = 0
    departed: set[int] = field(default_factory=set)
    faults: set[ReplyFault] = field(default_factory=set)

    @property
    def tries_that_stayed(self) -> int:
        """Number of tries that never reached the endpoint."""
        return self.tries - len(self.departed)


class Asks(Protocol):
    """An endpoint that answers questions."""

    async def ask(
        self, question: JudgePrompt, timeout_seconds: float, delivery: RequestTries
    ) -> Reply:
        """Returns the reply to a question. Faults of the endpoint or the network do not raise.

        Args:
            question: The prompt.
            timeout_seconds: Silence after which one try counts as failed.
            delivery: Updated while the tries go on. If it stays unchanged, all tries count as
                delivered.
        """

    async def close(self) -> None:
        """Ends all connections."""
