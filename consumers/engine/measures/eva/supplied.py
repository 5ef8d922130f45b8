"""What a producer says of a call so that more of it can be judged: the agent's tools, and the state before and after."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.events.call import AgentTool, CallEnded, CallStarted


class SuppliedFacts:
    """What the newest events say; what one leaves out stays as it was.

    Attributes:
        tools: The agent's tools; None while nobody has named them.
        expected_state: What the call should leave behind.
        final_state: What it did leave behind.
        final_state_hash: The hash of that as the same event tells it, which counts if there is one.
    """

    def __init__(self) -> None:
        self.tools: Sequence[AgentTool] | None = None
        self.expected_state: Mapping[str, Any] | None = None
        self.final_state: Mapping[str, Any] | None = None
        self.final_state_hash: str | None = None

    def started(self, event: CallStarted) -> None:
        """A `call_started` came."""
        self.tools = self.tools if event.tools is None else event.tools
        self.expected_state = self.expected_state if event.expected_state is None else event.expected_state

    def ended(self, event: CallEnded) -> None:
        """A `call_ended` came."""
        if event.final_state is not None:
            self.final_state, self.final_state_hash = event.final_state, event.final_state_hash
