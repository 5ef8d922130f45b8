"""Tells the past of a call from its present in the messages of ElevenLabs' monitor. Pure.

A monitor that joins a call is first sent its last hundred messages, all at once, and nothing marks the end of them. They have no
times, so their arrival says nothing of when they happened. The same is true after a reconnect, also of the messages that were
missed meanwhile.
"""

import hashlib
from collections import Counter, deque
from typing import Final, NamedTuple

QUIET_SECONDS: Final = 0.25
"""Pause after which a message is of the present. The past arrives in one piece; people take turns more slowly."""
MAX_REMEMBERED: Final = 200
"""Messages that are recognised when they come again; ElevenLabs repeats the last 100."""


class Judgement(NamedTuple):
    """One message, judged.

    Attributes:
        is_exact: Whether it is of the present, so that the time of its arrival is the time of the event.
        is_repeat: Whether an earlier connection delivered it already.
    """

    is_exact: bool
    is_repeat: bool


class JoinedCall:
    """The messages of one call, over all connections to it.

    Repeats are recognised by their bytes, because not every message has an id: each message of an earlier connection can come
    again once in the past of the next one. A caller who says the same words twice says them in the present.
    """

    def __init__(self) -> None:
        """Starts before the first connection."""
        self._in_past = True
        self._last_at: float | None = None
        self._newest: deque[bytes] = deque(maxlen=MAX_REMEMBERED)
        self._may_repeat: Counter[bytes] = Counter()

    def connected(self) -> None:
        """Begins a connection: its first messages are of the past."""
        self._in_past = True
        self._last_at = None
        self._may_repeat = Counter(self._newest)

    def judge(self, text: bytes, at_seconds: float) -> Judgement:
        """Judges the next message that says something of the call: pings and sound come all the time, and are no pause.

        Args:
            text: The message as it came.
            at_seconds: When it arrived, on a monotonic clock.
        """
        if self._last_at is not None and at_seconds - self._last_at >= QUIET_SECONDS:
            self._in_past = False
        self._last_at = at_seconds
        digest = hashlib.blake2b(text, digest_size=8).digest()
        if self._in_past and self._may_repeat[digest] > 0:
            self._may_repeat[digest] -= 1
            return Judgement(is_exact=False, is_repeat=True)
        self._newest.append(digest)
        return Judgement(is_exact=not self._in_past, is_repeat=False)
