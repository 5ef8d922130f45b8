"""Dead air: nobody speaks and no tool runs after the caller has finished, for longer than a threshold.

It is known by the absence of events, so it is decided on arrival, once, and not taken back. Live time is the broker's; the
detector's delay, which the event itself shows, counts as silence already passed.
"""

from collections.abc import Collection
from typing import NamedTuple


class DeadAir(NamedTuple):
    """A silence that became dead air: since when (event time), in which turn, and the how many-th of the call."""

    silent_since_ms: int
    turn: int
    number: int


class SilenceWatch:
    """Watches one call. Times ending in `_at_ms` are the broker's, others the call's own."""

    __slots__ = (
        "_allowance_ms",
        "_answered",
        "_counted_since_ms",
        "_due_at_ms",
        "_is_line_down",
        "_last_start_ms",
        "_running_tools",
        "_since_ms",
        "_threshold_ms",
        "_tool_called_ms",
        "_turn",
        "_user_end_ms",
        "count",
    )

    def __init__(self, threshold_ms: int, allowance_ms: int) -> None:
        self._threshold_ms = threshold_ms
        self._allowance_ms = allowance_ms
        self._since_ms: int | None = None
        self._turn = 0
        self._due_at_ms: int | None = None
        self._is_line_down = False
        self._last_start_ms = 0
        self._running_tools = 0
        self._tool_called_ms: int | None = None
        self._counted_since_ms: int | None = None
        self._user_end_ms = 0
        self._answered = (0, 0)  # the latest answer of a tool: when, and when the silence after it becomes dead air
        self.count = 0

    @property
    def due_at_ms(self) -> int | None:
        """Broker time at which the silence becomes dead air; None while someone speaks, a tool runs or nobody waits."""
        return None if self._running_tools else self._due_at_ms

    def user_ended(self, end_ms: int, logged_ms: int, broker_ms: int, turn: int) -> None:
        """The user fell silent at `end_ms`, which was noticed at `logged_ms` and taken by the broker at `broker_ms`."""
        if self._is_line_down or self._last_start_ms > end_ms:
            return  # somebody has spoken since: this end came late
        noticed_after_ms = min(max(0, logged_ms - end_ms), self._threshold_ms)
        self._since_ms = self._user_end_ms = end_ms
        self._turn = turn
        if self._tool_called_ms is not None and self._tool_called_ms < end_ms:
            self._running_tools = 0  # a tool of an earlier turn that never answered explains nothing here
        self._due_at_ms = broker_ms + self._threshold_ms - noticed_after_ms + self._allowance_ms
        answered_ms, answered_due_ms = self._answered
        if answered_ms > end_ms:  # read before, from another topic; the order must make no difference
            self._since_ms, self._due_at_ms = answered_ms, answered_due_ms

    def recall(self, silences_ms: Collection[int]) -> None:
        """The silences that began at these times are declared, whoever did it: the one that lasts is not declared again."""
        self.count = len(silences_ms)
        if self._since_ms in silences_ms:
            self._counted_since_ms = self._since_ms

    def line_went_down(self) -> None:
        """The call is over: nobody waits for an answer any more."""
        self._is_line_down = True
        self._since_ms = self._due_at_ms = None

    def leave_to_the_log(self) -> None:
        """What was dead air in this call is written already: nothing is declared."""
        self.line_went_down()

    def speech_started(self, start_ms: int, broker_ms: int) -> DeadAir | None:
        """Someone speaks from `start_ms`: the silence is over; dead air if it had lasted and nobody had said so yet.

        It had lasted by the call's own clock, or by the broker's: whoever waits finds out by that, and whoever reads the
        log later must find the same.
        """
        self._last_start_ms = max(self._last_start_ms, start_ms)
        since_ms = self._since_ms
        if since_ms is None or start_ms < since_ms:
            return None
        dead_air = None
        if not self._running_tools and (start_ms - since_ms >= self._threshold_ms or self._is_due(broker_ms)):
            dead_air = self._declare()
        self._since_ms = self._due_at_ms = None
        return dead_air

    def tool_called(self, time_ms: int, broker_ms: int) -> DeadAir | None:
        """A tool runs: waiting is explained from now on; dead air if the silence before had lasted too long."""
        dead_air = None
        since_ms = self._since_ms
        if time_ms < self._user_end_ms:
            return None  # called before the caller had finished: it explains no waiting now
        has_lasted = since_ms is not None and time_ms - since_ms >= self._threshold_ms
        if not self._running_tools and (has_lasted or self._is_due(broker_ms)):
            dead_air = self._declare()
        self._running_tools += 1
        self._tool_called_ms = time_ms
        return dead_air

    def tool_answered(self, time_ms: int, broker_ms: int) -> None:
        """A tool has answered: silence counts from there."""
        self._running_tools = max(0, self._running_tools - 1)
        due_at_ms = broker_ms + self._threshold_ms + self._allowance_ms
        if time_ms > self._answered[0]:
            self._answered = (time_ms, due_at_ms)
        if self._since_ms is not None and time_ms > self._since_ms:
            self._since_ms, self._due_at_ms = time_ms, due_at_ms

    def reached(self, now_ms: int) -> DeadAir | None:
        """Broker time is `now_ms`: dead air, if it is due."""
        if not self._is_due(now_ms):
            return None
        self._due_at_ms = None
        return self._declare()

    def _is_due(self, broker_ms: int) -> bool:
        due_at_ms = self.due_at_ms
        return due_at_ms is not None and broker_ms >= due_at_ms

    def _declare(self) -> DeadAir | None:
        since_ms = self._since_ms
        if since_ms is None or since_ms == self._counted_since_ms:
            return None
        self._counted_since_ms = since_ms
        self.count += 1
        return DeadAir(since_ms, self._turn, self.count)
