"""When silence next decides about a call: a heap of times, with few entries for each call."""

import heapq
from collections.abc import Mapping

from consumers.engine.call.call import Call


class Wakeups:
    """The next wake-up of each open call, which its `wakeup_ms` has too."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    @property
    def first_ms(self) -> int | None:
        """Broker time of the first wake-up; None without one."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, call: Call, due_ms: int | None) -> None:
        """Wakes the call at `due_ms` or sooner, unless it wakes sooner anyway.

        A wake-up far ahead that a sooner one replaced stays in the heap and is used again: an idle time of ten minutes would
        leave an entry for each turn in between.
        """
        soon_ms = call.wakeup_ms
        if due_ms is None or (soon_ms is not None and soon_ms <= due_ms):
            return
        if soon_ms is not None and call.replaced_wakeup_ms is None:
            call.replaced_wakeup_ms = soon_ms
        elif call.replaced_wakeup_ms is not None and call.replaced_wakeup_ms <= due_ms:
            call.wakeup_ms, call.replaced_wakeup_ms = call.replaced_wakeup_ms, None
            return
        call.wakeup_ms = due_ms
        heapq.heappush(self._heap, (due_ms, call.conversation_id))

    def next_due(self, now_ms: int, calls: Mapping[str, Call]) -> Call | None:
        """Takes the first wake-up up to `now_ms` and returns its call; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            woken_ms, conversation_id = heapq.heappop(heap)
            call = calls.get(conversation_id)
            if call is None:
                continue  # closed
            if call.wakeup_ms == woken_ms:
                call.wakeup_ms = None
                return call
            if call.replaced_wakeup_ms == woken_ms:
                call.replaced_wakeup_ms = None
        return None
