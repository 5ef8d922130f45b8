"""The labels of a call over time."""

from operator import itemgetter
from typing import Final

from schemas.scores.all_records import CallLabels

MAX_KEPT: Final = 16
"""Changes of a call's labels that are kept; a call has one or two."""


class LabelHistory:
    """The newest changes of the labels of one call."""

    __slots__ = ("_by_ms",)

    def __init__(self) -> None:
        self._by_ms: list[tuple[int, CallLabels]] = []

    def note(self, broker_ms: int, labels: CallLabels) -> None:
        """Keeps the labels that the call has from this broker time on."""
        self._by_ms.append((broker_ms, labels))
        del self._by_ms[:-MAX_KEPT]

    def at(self, broker_ms: int) -> CallLabels:
        """The labels at that broker time, so that dead air found later has the same labels as dead air found at once."""
        known = [each for each in self._by_ms if each[0] <= broker_ms]
        return max(known, key=itemgetter(0))[1] if known else CallLabels()
