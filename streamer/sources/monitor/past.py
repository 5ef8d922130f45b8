"""Separates the past of a call from its present in the messages of ElevenLabs' monitor. Pure.

A monitor that joins a call is first sent its last hundred messages, all at once, and nothing marks the end of them. They have no
times, so their arrival says nothing of when they happened. The same is true after a reconnect, also of the messages that were
missed meanwhile.
"""

import hashlib
from collections import Counter, deque
from typing import Final, NamedTuple

QUIET_SECONDS: Final = 0.25
"""Pause after which a message is of the present. The past arrives in one piece; people take turns more slowly."""
PAST_MESSAGES: Final = 100
"""Messages of the past that ElevenLabs sends to a monitor that joins."""
MAX_REMEMBERED: Final = 2 * PAST_MESSAGES
"""Messages that are recognised when they come again: as many as ElevenLabs repeats, and those that it adds meanwhile."""


class Judgement(NamedTuple):
    """One message, judged.

    Attributes:
        is_exact: Whether it is of the present, so that the time of its arrival is the time of the event.
        is_repeat: Whether an earlier connection delivered it already.
        number: Its number among the equal messages of the call, from 1: another bridge of the same call comes to the same one.
            None where earlier messages may be unknown.
    """

    is_exact: bool
    is_repeat: bool
    number: int | None = None


class JoinedCall:
    """The messages of one call, over all connections to it.

    Repeats are recognised by their bytes, because not every message has an id: each message of an earlier connection can come
    again once in the past of the next one. A caller who says the same words twice says them in the present. What an earlier
    bridge of the call has sent, before it was started again, is recognised by its `number`.
    """

    def __init__(self) -> None:
        """Starts before the first connection."""
        self._in_past = True
        self._last_at: float | None = None
        self._newest: deque[bytes] = deque(maxlen=MAX_REMEMBERED)
        self._may_repeat: Counter[bytes] = Counter()
        self._numbers: Counter[bytes] = Counter()
        self._past_messages = 0
        self._is_linked = False
        self._is_whole = True

    def connected(self) -> None:
        """Begins a connection: its first messages are of the past."""
        self._in_past = True
        self._last_at = None
        self._may_repeat = Counter(self._newest)
        self._past_messages = 0
        self._is_linked = False

    def passed_over(self) -> None:
        """Counts a message that says nothing of the call, because ElevenLabs counts it too."""
        if self._in_past:
            self._past_messages += 1
            # Before as many messages as ElevenLabs keeps, there may have been others, unless we know one of these.
            if self._past_messages >= PAST_MESSAGES and not self._is_linked:
                self._is_whole = False

    def judge(self, text: bytes, at_seconds: float) -> Judgement:
        """Judges the next message that says something of the call: pings and sound come all the time, and are no pause.

        Args:
            text: The message as it came.
            at_seconds: When it arrived, on a monotonic clock.
        """
        if self._last_at is not None and at_seconds - self._last_at >= QUIET_SECONDS:
            self._in_past = False
        self._last_at = at_seconds
        self.passed_over()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        if self._in_past and self._may_repeat[digest] > 0:
            self._may_repeat[digest] -= 1
            self._is_linked = True
            return Judgement(is_exact=False, is_repeat=True)
        self._newest.append(digest)
        self._numbers[digest] += 1
        number = self._numbers[digest] if self._in_past or self._is_whole else None
        return Judgement(is_exact=not self._in_past, is_repeat=False, number=number)
