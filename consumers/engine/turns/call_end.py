"""Decides when a call without further events is over: announced, silent for too long, or too long altogether."""

from consumers.engine.limits import Limits
from consumers.engine.turns.timeline.silence import BrokerMoment
from schemas.scores.all_records import CloseReason


class CallEnd:
    """The end of one call, by the broker times of its records.

    Attributes:
        last_ms: Broker time of the latest record so far.
        awaits_record: Whether the agent is one of ElevenLabs: its record follows the end of the call.
    """

    __slots__ = (
        "_announced", "_first_ms", "_idle_before_ms", "_limits", "_reason", "_recorded_ms", "awaits_record", "last_ms"
    )  # fmt: skip

    def __init__(self, first_ms: int, limits: Limits) -> None:
        self.last_ms = first_ms
        self._limits = limits
        self._first_ms = first_ms
        self._announced: BrokerMoment | None = None
        self._reason = CloseReason.ENDED
        self._recorded_ms: int | None = None
        self.awaits_record = False
        self._idle_before_ms = first_ms + limits.max_call_duration_ms

    def heard(self, broker_ms: int) -> None:
        """Notes a record with this broker time."""
        if broker_ms > self.last_ms:
            self.last_ms = broker_ms
        elif broker_ms < self._first_ms:
            self._first_ms = broker_ms
            self._idle_before_ms = min(self._idle_before_ms, broker_ms + self._limits.max_call_duration_ms)

    def announce(self, at: BrokerMoment, reason: CloseReason) -> bool:
        """Notes an announced end of the call. Of several the first in the broker's order counts. The end of a session gives the
        reason, wherever it is in that order: which of two topics was faster says nothing of the call.

        Returns:
            Whether this is the first so far.
        """
        if reason is CloseReason.SESSION_ENDED:
            self._reason = reason
        if self._announced is not None and at >= self._announced:
            return False
        self._announced = at
        self._idle_before_ms = min(self._idle_before_ms, at.broker_ms + self._limits.closing_grace_ms)
        return True

    def recorded(self, at: BrokerMoment) -> None:
        """Notes the record of a conversation that is over; of several the first counts."""
        if self._recorded_ms is None or at.broker_ms < self._recorded_ms:
            self._recorded_ms = at.broker_ms

    def by_silence(self) -> tuple[int, CloseReason]:
        """Broker time from which the call is over if no record follows, and the reason."""
        limits = self._limits
        due_ms, reason = self.last_ms + limits.idle_ms, CloseReason.IDLE
        if due_ms < self._idle_before_ms:  # nothing can end it sooner: so it is with nearly every record
            return due_ms, reason
        longest_ms = self._first_ms + limits.max_call_duration_ms
        if longest_ms < due_ms:
            due_ms, reason = longest_ms, CloseReason.LIMIT_DURATION
        if self._announced is not None:
            announced_ms = self._announced.broker_ms + limits.closing_grace_ms
            if self._recorded_ms is not None:
                announced_ms = max(announced_ms, self._recorded_ms + limits.closing_grace_ms)
            elif self.awaits_record:
                announced_ms = max(announced_ms, self._announced.broker_ms + limits.agent_record_grace_ms)
            if announced_ms <= due_ms:
                return announced_ms, self._reason
        return due_ms, reason
