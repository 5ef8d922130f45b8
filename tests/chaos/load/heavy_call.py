"""A call that is as large as a call may be: long texts of digits, which cost more than any others
when it is closed.
"""

import json
from collections.abc import Iterator
from typing import Final

from consumers.engine.limits import Limits

SHARE: Final = 0.8
"""Of the bytes that one call may keep: inside every limit, so it is to be closed like any other."""
TEXT_CHARS: Final = 30_000
TURN_MS: Final = 4_000


def heavy_call(end_ms: int) -> Iterator[tuple[str, bytes]]:
    """Its events in order, each with its source; the last one is at `end_ms`."""
    text = "1," * (TEXT_CHARS // 2)
    turns = max(1, int(Limits().max_kept_bytes_per_call * SHARE / (5 * TEXT_CHARS)))
    begin_ms = end_ms - turns * TURN_MS
    yield "pipecat", _json(type="call_started", timestamp=begin_ms, agent="heavy")
    for turn in range(turns):
        at_ms = begin_ms + turn * TURN_MS
        yield "elevenlabs", _sound("audio_start", "elevenlabs_user", at_ms)
        yield "elevenlabs", _sound("audio_end", "elevenlabs_user", at_ms + 500)
        yield "elevenlabs", _json(type="user_speech", timestamp=at_ms + 500, data={"text": text})
        yield "audit", _json(message_type="user", timestamp=at_ms + 600, value=text)
        yield "audit", _json(message_type="assistant", timestamp=at_ms + 700, value=text)
        yield "pipecat", _json(type="tts_text", timestamp=at_ms + 800, data={"frame": text})
        yield "elevenlabs", _sound("audio_start", "pipecat_agent", at_ms + 900)
        yield "elevenlabs", _sound("audio_end", "pipecat_agent", at_ms + 1_500)
        yield (
            "elevenlabs",
            _json(type="assistant_speech", timestamp=at_ms + 1_500, data={"text": text}),
        )
    yield "audit", _json(type="call_ended", timestamp=end_ms, reason="goodbye")


def _sound(event_type: str, user: str, at_ms: int) -> bytes:
    return _json(event_type=event_type, user=user, timestamp=at_ms, audio_timestamp=at_ms / 1_000)


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()
