"""Tool calls with their responses: first call of a tool, first response of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from consumers.engine.turn_state import ToolEvent
from schemas.scores import ToolOutcome

_ERROR_STATUSES = frozenset({"error", "failed", "failure"})


@dataclass(slots=True)
class PairedUse:
    """One use of a tool; `index` counts the uses of its turn, `outcome` is None while it runs,
    `response_turn` the turn in which the answer came.
    """

    turn: int
    index: int
    tool: str
    called_at_ms: int | None
    outcome: ToolOutcome | None = None
    duration_ms: int | None = None
    response_turn: int | None = None


def paired_uses(events: Iterable[tuple[int, ToolEvent]]) -> list[PairedUse]:
    """Pair calls with responses, by tool and in order; a response without a call is a use of its own.

    Args:
        events: (turn, tool event), in the order of the timeline.
    """
    uses: list[PairedUse] = []
    waiting: dict[str, list[PairedUse]] = {}
    next_index: dict[int, int] = {}
    for turn, (is_response, tool, value, time_ms) in events:
        open_uses = waiting.get(tool)
        if is_response and open_uses:
            use = open_uses.pop(0)
        else:
            index = next_index.get(turn, 0)
            next_index[turn] = index + 1
            use = PairedUse(turn, index, tool, None if is_response else time_ms)
            uses.append(use)
            if not is_response:
                waiting.setdefault(tool, []).append(use)
        if is_response:
            use.outcome = outcome_of(value)
            use.response_turn = turn
            use.duration_ms = None if use.called_at_ms is None else max(0, time_ms - use.called_at_ms)
    return uses


def outcome_of(response: object) -> ToolOutcome:
    """Whether a tool's answer says that it failed: an error status, an `error_type` or an `error`.

    Example:
        >>> outcome_of({"status": "error", "error_type": "not_found"}), outcome_of({"status": "ok"}), outcome_of(None)
        (<ToolOutcome.ERROR: 'error'>, <ToolOutcome.SUCCESS: 'success'>, <ToolOutcome.SUCCESS: 'success'>)
        >>> outcome_of({"status": {"code": 200}})
        <ToolOutcome.SUCCESS: 'success'>
    """
    if not isinstance(response, Mapping):
        return ToolOutcome.SUCCESS
    status = response.get("status")
    is_error_status = isinstance(status, str) and status in _ERROR_STATUSES  # some tools put an object there
    if is_error_status or response.get("error_type") or response.get("error"):
        return ToolOutcome.ERROR
    return ToolOutcome.SUCCESS
