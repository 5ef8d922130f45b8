"""Calls with one silence of a known length, a little below or above what is dead air: its times on the inputs alone say which it must be.

The end of the caller's speech is on one input; what ends the silence is on the same one, or a tool on another.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

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


class Moment(NamedTuple):
    """When the broker took a record, and when its event was."""

    broker_ms: int
    event_ms: int


class SilenceTimes:
    """When such calls fell silent and when that ended, as the inputs have it.

    Attributes:
        ended: By call, when the caller's speech ended.
        answered: By call, when the silence ended.
        lost: Calls of which records were deleted before they were read.
    """

    def __init__(self) -> None:
        self.ended: dict[str, Moment] = {}
        self.answered: dict[str, Moment] = {}
        self.lost: set[str] = set()

    def take(self, name: str, value: bytes, timestamp_ms: int) -> None:
        """One record of such a call."""
        is_end = USER_END in value
        if is_end or any(part in value for part in ANSWERS):
            moment = Moment(timestamp_ms, int(json.loads(value)["timestamp"]))
            moments = self.ended if is_end else self.answered
            moments[name] = min(moment, moments.get(name, moment))

    def add(self, other: "SilenceTimes") -> None:
        """Those of another input partition."""
        self.lost |= other.lost
        self.ended.update(other.ended)
        for name, moment in other.answered.items():
            self.answered[name] = min(moment, self.answered.get(name, moment))

    def silent_ms(self) -> dict[str, int]:
        """By call, how long it was silent: by the broker or by its events, whichever is longer. Calls that have all of their records."""
        return {
            name: max(after - before for before, after in zip(ended, self.answered[name], strict=True))
            for name, ended in self.ended.items()
            if name in self.answered and name not in self.lost
        }
