"""Calls with one silence of a known length, a little below or above what is dead air: its times on
the inputs alone say which it must be.

The end of the caller's speech is on one input; what ends the silence is on the same one, or a tool
on another.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
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
        (
            MOMENT_MS,
            "audit",
            lambda now: _tool("tool_response", now, {"tool": "look", "response": {"status": "ok"}}),
        ),
    ]
    end: list[Step] = [
        (
            MOMENT_MS if ends_with_tool else silence_ms,
            "elevenlabs",
            _sound("audio_start", "pipecat_agent"),
        ),
        (MOMENT_MS, "elevenlabs", _sound("audio_end", "pipecat_agent")),
        (MOMENT_MS, "audit", lambda now: _json(type="call_ended", timestamp=now, reason="goodbye")),
    ]
    return [*begin, *(tool if ends_with_tool else []), *end]


def _sound(event_type: str, user: str) -> Callable[[int], bytes]:
    return lambda now: _json(
        event_type=event_type, user=user, timestamp=now, audio_timestamp=now / 1_000
    )


def _tool(message_type: str, now_ms: int, value: object) -> bytes:
    return _json(message_type=message_type, timestamp=str(now_ms), value=value)


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


# -- what the inputs alone say of them
# ---------------------------------------------------------------------------------

_KINDS: Final = {
    b'"event_type": "audio_end", "user": "elevenlabs_user"': "user end",
    b'"event_type": "audio_start", "user": "pipecat_agent"': "answer",
    b'"message_type": "tool_call"': "tool",
    b'"message_type": "tool_response"': "tool answer",
    b'"type": "call_ended"': "over",
}
_BEGINS: Final = ("user end", "tool answer")
"""Events with which a silence begins; any other ends it."""


class Moment(NamedTuple):
    """A record: when the broker took it, when its event was, and what it is."""

    broker_ms: int
    event_ms: int
    kind: str


class SilenceTimes:
    """The records of such calls, as the inputs have them.

    Attributes:
        lost: Calls of which records were deleted before they were read.
    """

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self._moments: dict[str, list[Moment]] = {}

    def take(self, name: str, value: bytes, timestamp_ms: int) -> None:
        """One record of such a call."""
        kind = next((kind for part, kind in _KINDS.items() if part in value), "")
        moment = Moment(timestamp_ms, int(json.loads(value)["timestamp"]), kind)
        self._moments.setdefault(name, []).append(moment)

    def add(self, other: "SilenceTimes") -> None:
        """Those of another input partition."""
        self.lost |= other.lost
        for name, moments in other._moments.items():
            self._moments.setdefault(name, []).extend(moments)

    def silences_ms(self) -> dict[str, list[int]]:
        """By call, how long each of its silences was: by the broker or by its events, whichever is
        longer.

        Only of calls that have all of their records, and whose records came to the brokers in the
        order of their events.
        """
        found: dict[str, list[int]] = {}
        for name, moments in self._moments.items():
            in_order = sorted(moments, key=lambda each: (each.event_ms, each.broker_ms))
            came = [each.broker_ms for each in in_order]
            if name not in self.lost and came == sorted(came) and in_order[-1].kind == "over":
                found[name] = [
                    max(after.broker_ms - before.broker_ms, after.event_ms - before.event_ms)
                    for before, after in pairwise(in_order)
                    if before.kind in _BEGINS
                ]
        return found

    def told(self, name: str) -> str:
        """When the records of a call came and were, since its first one."""
        moments = sorted(self._moments[name])
        begin = moments[0].broker_ms
        return ", ".join(
            f"{each.kind or '...'} {each.broker_ms - begin} ({each.event_ms - begin})"
            for each in moments
        )

    def came_ms(self, name: str) -> list[int]:
        """When the records of a call came to the brokers."""
        return [each.broker_ms for each in self._moments[name]]
