"""The calls of the demo's table: those that run, and those that ended lately. Pure."""

from typing import Final

from schemas.scores.live_view import CallFold, CallView
from schemas.scores.records import AnyScoreRecord

MAX_CALLS: Final = 500
"""Calls kept; the call that was quiet for longest makes room for a new one."""

SHOWN_AFTER_END_MS: Final = 20_000
"""How long a call stays in the table after it closed, so that a person sees how it ended."""


class CallTable:
    """The calls that run, and those that ended lately.

    Attributes:
        calls_started: Calls seen to start, since the table was made.
        calls_ended: Calls seen to close.
        calls_dropped: Calls that made room for others while they still ran.
    """

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self.calls_started = 0
        self.calls_ended = 0
        self.calls_dropped = 0
        self._max_calls = max_calls
        self._calls: dict[str, CallFold] = {}

    def fold(self, record: AnyScoreRecord) -> None:
        """Takes in one record."""
        call = self._calls.get(record.conversation_id)
        was_open = call is None or call.closed is None
        if call is None:
            self._make_room()
            call = self._calls[record.conversation_id] = CallFold(record)
            self.calls_started += 1
        else:
            call.fold(record)
        self.calls_ended += was_open and call.closed is not None

    def rows(self, now_ms: int) -> list[CallView]:
        """Returns the calls in the order in which they began, without those that closed over `SHOWN_AFTER_END_MS` ago."""
        self._calls = {
            conversation_id: call
            for conversation_id, call in self._calls.items()
            if call.closed is None or call.changed_ms >= now_ms - SHOWN_AFTER_END_MS
        }
        views = [call.view() for call in self._calls.values()]
        return sorted(views, key=lambda view: (view.first_seen_ms, view.conversation_id))

    @property
    def calls_running(self) -> int:
        """Calls in the table that have not closed."""
        return sum(call.closed is None for call in self._calls.values())

    def _make_room(self) -> None:
        if len(self._calls) < self._max_calls:
            return
        quietest = min(self._calls, key=lambda each: (self._calls[each].closed is None, self._calls[each].changed_ms))
        self.calls_dropped += self._calls[quietest].closed is None
        del self._calls[quietest]
