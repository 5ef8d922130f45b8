"""What comes back from the endpoint, how far the question got, and what asking is."""

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from consumers.judge.prompting.questions import Question
from schemas.judging import TokenUse, TrialOutcome

MAX_REPORTED_TOKENS: Final = 10_000_000
"""Most tokens that an endpoint is believed to have counted for one request: several times the longest context of any
model. Beyond it, or below 0, what it counted is unknown, and the request costs what it can at most."""

ReplyFault = Literal["too_large", "compressed", "redirected", "token_count"]
"""What was wrong with a reply, so that it, or a part of it, was not taken: more bytes than are read; packed although it was
asked for plain; a redirect, which is never followed; a count of tokens that cannot be."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request brought.

    Attributes:
        outcome: `ANSWERED` when there is text, which may still be no answer.
        text: What the model wrote.
        tokens: As counted by the endpoint, whatever it counted; None when it did not say.
        requests: How often it was tried.
        latency_ms: From the first sending to the end of the last reply.
    """

    outcome: TrialOutcome
    text: str | None = None
    tokens: TokenUse | None = None
    requests: int = 1
    latency_ms: int = 0

    @property
    def believed_tokens(self) -> TokenUse | None:
        """The endpoint's count, if it can be; None when it did not say."""
        tokens = self.tokens
        if tokens is None:
            return None
        counts = (tokens.prompt, tokens.cached, tokens.answer)
        return tokens if all(0 <= count <= MAX_REPORTED_TOKENS for count in counts) else None


@dataclass(slots=True)
class Delivery:
    """How far a question got. The asker keeps it, so it is known even of a question that was cut off.

    Attributes:
        tries: How often a connection was wanted for it.
        departed: The numbers of the tries of which something was written to the endpoint, so that it may have arrived. The
            others cost nothing: refused connections, unknown names, failed TLS.
        faults: What was wrong with the replies.
    """

    tries: int = 0
    departed: set[int] = field(default_factory=set)
    faults: set[ReplyFault] = field(default_factory=set)

    @property
    def tries_that_stayed(self) -> int:
        """How many tries never reached the endpoint."""
        return self.tries - len(self.departed)


class Asks(Protocol):
    """Takes questions."""

    async def ask(self, question: Question, timeout_seconds: float, delivery: Delivery) -> Reply:
        """One reply to the question. Never raises for what an endpoint or a network may do.

        Args:
            question: What to ask.
            timeout_seconds: Silence after which one try counts as failed.
            delivery: Takes how far it got, as it gets there. One that leaves it as it is says that it got everywhere.
        """

    async def close(self) -> None:
        """Ends all connections."""
