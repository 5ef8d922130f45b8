"""Events of frameworks whose servers or sockets report a call in their own words: Vapi's server messages, OpenAI's realtime events.

`POST /events` and `callgauge events check` take them as they are. What no rule reads is counted as left out. Pure.
"""

from collections.abc import Mapping
from typing import Any

from consumers.engine.sources import openai_realtime, vapi
from consumers.engine.sources.told import Translated


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
    message = event.get("message")
    if isinstance(message, Mapping) and isinstance(message.get("type"), str):
        return Translated("vapi", tuple(vapi.told(message, now_ms)))
    kind = event.get("type")
    if isinstance(kind, str) and (
        openai_realtime.TYPES.match(kind) or (kind == "error" and isinstance(event.get("error"), Mapping))
    ):
        own_id = event.get("event_id")
        found = tuple(openai_realtime.told(kind, event, now_ms))
        return Translated("openai-realtime", found, own_id if isinstance(own_id, str) and own_id else None)
    return None
