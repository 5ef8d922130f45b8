"""Calls with one silence of a known length, a little below or above what is dead air: its broker times alone say which it must be.

The end of the caller's speech is on one input; what ends the silence is on the same one, or a tool on another.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final

SHORT_MS: Final = 2_900
LONG_MS: Final = 3_100
"""Beside the threshold of 3 s."""
LENGTHS_MS: Final = (SHORT_MS, LONG_MS, SHORT_MS, LONG_MS)
"""Of one round: the first two end with the agent's voice, the others with a tool."""
MOMENT_MS: Final = 150
"""Between the other events."""
NAME_START: Final = "silence-"

Step = tuple[int, str, Callable[[int], bytes]]
"""How long after the one before it, its source, and the event at a time."""


def silence_name(number: int) -> str:
    """The conversation id of the n-th such call, from 0."""
    return f"{NAME_START}{number:07d}"


class Silence:
    """One such call, told event by event.

    Attributes:
        number: From 0; decides the length of the silence and what ends it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        place = number % len(LENGTHS_MS)
        self._steps = _steps(LENGTHS_MS[place], ends_with_tool=place >= len(LENGTHS_MS) // 2)
        self._next = 0

    def event(self, now_ms: int) -> tuple[str, bytes]:
        """The next event, with its source."""
        _, source, made = self._steps[self._next]
        self._next += 1
        return source, made(now_ms)

    @property
    def wait_ms(self) -> int | None:
        """From the last event to the next; None after the last."""
        return self._steps[self._next][0] if self._next < len(self._steps) else None


def _steps(silence_ms: int, *, ends_with_tool: bool) -> Sequence[Step]:
    begin: list[Step] = [
        (0, "pipecat", lambda now: _json(type="call_started", timestamp=now, agent="silent")),
        (MOMENT_MS, "elevenlabs", _sound("audio_start", "elevenlabs_user")),
        (MOMENT_MS, "elevenlabs", _sound("audio_end", "elevenlabs_user")),
    ]
    tool: list[Step] = [
        (silence_ms, "audit", lambda now: _tool("tool_call", now, {"tool": "look"})),
        (MOMENT_MS, "audit", lambda now: _tool("tool_response", now, {"tool": "look", "response": {"status": "ok"}})),
    ]
    end: list[Step] = [
        (MOMENT_MS if ends_with_tool else silence_ms, "elevenlabs", _sound("audio_start", "pipecat_agent")),
        (MOMENT_MS, "elevenlabs", _sound("audio_end", "pipecat_agent")),
        (MOMENT_MS, "audit", lambda now: _json(type="call_ended", timestamp=now, reason="goodbye")),
    ]
    return [*begin, *(tool if ends_with_tool else []), *end]


def _sound(event_type: str, user: str) -> Callable[[int], bytes]:
    return lambda now: _json(event_type=event_type, user=user, timestamp=now, audio_timestamp=now / 1_000)


def _tool(message_type: str, now_ms: int, value: object) -> bytes:
    return _json(message_type=message_type, timestamp=str(now_ms), value=value)


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


# -- what the inputs alone say of them ---------------------------------------------------------------------------------

USER_END: Final = b'"event_type": "audio_end", "user": "elevenlabs_user"'
ANSWERS: Final = (b'"event_type": "audio_start", "user": "pipecat_agent"', b'"message_type": "tool_call"')


class SilenceTimes:
    """The broker times of the ends and answers of such calls, as the inputs have them.

    Attributes:
        ended_ms: By call, when the caller's speech ended.
        answered_ms: By call, when the silence ended.
        lost: Calls of which records were deleted before they were read.
    """

    def __init__(self) -> None:
        self.ended_ms: dict[str, int] = {}
        self.answered_ms: dict[str, int] = {}
        self.lost: set[str] = set()

    def take(self, name: str, value: bytes, timestamp_ms: int) -> None:
        """One record of such a call."""
        if USER_END in value:
            self.ended_ms[name] = timestamp_ms
        elif any(part in value for part in ANSWERS):
            self.answered_ms[name] = min(timestamp_ms, self.answered_ms.get(name, timestamp_ms))

    def add(self, other: "SilenceTimes") -> None:
        """Those of another input partition."""
        self.lost |= other.lost
        self.ended_ms.update(other.ended_ms)
        for name, at_ms in other.answered_ms.items():
            self.answered_ms[name] = min(at_ms, self.answered_ms.get(name, at_ms))

    def expected(self, dead_air_ms: int) -> dict[str, int]:
        """By call, how many dead airs it must have: calls that have both moments, and all of their records."""
        return {
            name: int(self.answered_ms[name] - ended_ms >= dead_air_ms)
            for name, ended_ms in self.ended_ms.items()
            if name in self.answered_ms and name not in self.lost
        }
