"""What comes back from whoever is asked, and what asking is."""

from dataclasses import dataclass
from typing import Protocol

from consumers.judge.questions import Question
from schemas.judging import TokenUse, TrialOutcome


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request brought.

    Attributes:
        outcome: `ANSWERED` when there is text, which may still be no answer.
        text: What the model wrote.
        tokens: As counted by the endpoint; None when it did not say.
        requests: How often it was sent.
        latency_ms: From the first sending to the end of the last reply.
    """

    outcome: TrialOutcome
    text: str | None = None
    tokens: TokenUse | None = None
    requests: int = 1
    latency_ms: int = 0


class Asks(Protocol):
    """Whoever takes questions."""

    async def ask(self, question: Question, timeout_seconds: float) -> Reply:
        """One reply to the question. Never raises for what an endpoint or a network may do.

        Args:
            question: What to ask.
            timeout_seconds: Silence after which one try counts as failed.
        """

    async def close(self) -> None:
        """Ends all connections."""
