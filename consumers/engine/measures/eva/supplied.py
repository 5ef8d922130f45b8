"""Facts that a producer supplies so that more of a call can be judged: the agent's tools, the expected and the final state, the
latencies that the producer itself measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.events.call import AgentTool, CallEnded, CallStarted


class SuppliedFacts:
    """The facts of the newest events; a field that an event leaves out keeps its value.

    Attributes:
        tools: The agent's tools; None before any event names them.
        expected_state: Expected state after the call.
        final_state: Actual state after the call.
        final_state_hash: Hash of the final state from the same event; takes precedence over the state.
        latencies_ms: The producer's own latencies in the order of the turns; empty before any event names them.
    """

    __slots__ = (
        "expected_state",
        "final_state",
        "final_state_hash",
        "latencies_ms",
        "tools",
    )

    def __init__(self) -> None:
        self.tools: Sequence[AgentTool] | None = None
        self.expected_state: Mapping[str, Any] | None = None
        self.final_state: Mapping[str, Any] | None = None
        self.final_state_hash: str | None = None
        self.latencies_ms: Sequence[float] = ()

    def started(self, event: CallStarted) -> None:
        """Folds a `call_started` event."""
        self.tools = self.tools if event.tools is None else event.tools
        self.expected_state = self.expected_state if event.expected_state is None else event.expected_state

    def ended(self, event: CallEnded) -> None:
        """Folds a `call_ended` event."""
        if event.final_state is not None:
            self.final_state, self.final_state_hash = event.final_state, event.final_state_hash
        if event.response_latencies_ms is not None:
            self.latencies_ms = event.response_latencies_ms
