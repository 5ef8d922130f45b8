"""The frameworks whose servers or sockets report a call in their own words. A new one is a module,
and a line of this table.

`POST /events`, files and `callgauge events check` take their messages as they are. What no rule
reads is counted as left out. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

from consumers.engine.sources import deepgram, openai_realtime, vapi
from consumers.engine.sources.told import Framework, Translated

FRAMEWORKS: Final[tuple[Framework, ...]] = (
    vapi.FRAMEWORK,
    openai_realtime.FRAMEWORK,
    deepgram.FRAMEWORK,
)


def translated(event: Mapping[str, Any], now_ms: int) -> Translated | None:
    """An event in our words; None if it is of no framework of these.

    Args:
        event: Any JSON object.
        now_ms: When it came, in epoch ms: the time of an event that has none.

    Example:
        >>> message = {"type": "speech-update", "role": "user", "status": "stopped", "timestamp": 5_000, "call": {"id": "c"}}
        >>> translated({"message": message}, 9_000).events[0]["data"]
        {'kind': 'user_speech_stopped', 'timestamp': 5.0}
        >>> translated({"type": "speech_event"}, 9_000) is None
        True
    """
    framework = next((each for each in FRAMEWORKS if each.owns(event)), None)
    if framework is None:
        return None
    own_id = framework.id_of(event)
    found = tuple(framework.told(event, now_ms))
    return Translated(framework.name, found, own_id if isinstance(own_id, str) and own_id else None)
