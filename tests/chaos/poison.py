"""Records that can never be processed, of every kind a broken producer sends. Each must end in quarantine and harm nobody."""

import json
import random
from collections.abc import Callable
from typing import Final, NamedTuple

DAY_MS: Final = 24 * 3_600_000


class Poison(NamedTuple):
    """A bad record: its topic's source, and key and value as they are sent."""

    source: str
    key: bytes | None
    value: bytes | None


def _line(now_ms: int, **fields: object) -> bytes:
    return json.dumps({"type": "tts_text", "timestamp": now_ms, "data": {"frame": "hello"}, **fields}).encode()


def _audio(now_ms: int, **fields: object) -> bytes:
    at = {"timestamp": now_ms, "audio_timestamp": now_ms / 1_000}
    return json.dumps({"event_type": "audio_start", "user": "assistant", **at, **fields}).encode()


# Given the moment of sending; those that name a topic are refused on that topic only.
_VALUES: Final[tuple[tuple[str, Callable[[int], bytes | None]], ...]] = (
    ("pipecat", lambda _now_ms: b'{"type": "tts_text", "timest'),
    ("audit", lambda _now_ms: b"\xff\xfe\x00"),
    ("judge", lambda _now_ms: b"[1, 2]"),
    ("pipecat", lambda _now_ms: None),
    ("pipecat", lambda _now_ms: b'{"type":"tts_text","data":' + b"[" * 5_000),
    ("pipecat", lambda now_ms: _line(now_ms, timestamp=None)),
    ("pipecat", lambda now_ms: _line(now_ms, data={"frame": 7})),
    ("pipecat", lambda now_ms: _line(now_ms, data={"frame": "x" * 40_000})),
    ("pipecat", lambda now_ms: _line(now_ms, timestamp=now_ms // 1_000)),
    ("pipecat", lambda now_ms: _line(now_ms, timestamp=now_ms + 3 * DAY_MS)),
    ("elevenlabs", lambda now_ms: _audio(now_ms, user="robot")),
    ("elevenlabs", lambda now_ms: _audio(now_ms, audio_timestamp=float("nan"))),
    ("elevenlabs", lambda now_ms: _audio(now_ms, sequence="ten")),
)
_BAD_KEYS: Final = (None, b"", b"k" * 5_000)
_LIVE_KEY_SHARE: Final = 0.6
_BAD_KEY_SHARE: Final = 0.2


def draw(rng: random.Random, live_key: bytes, now_ms: int) -> Poison:
    """A bad record, more often than not under the key of a live call."""
    kind = rng.random()
    if kind < _BAD_KEY_SHARE:
        return Poison("pipecat", rng.choice(_BAD_KEYS), _line(now_ms))
    source, value = rng.choice(_VALUES)
    key = live_key if kind < _BAD_KEY_SHARE + _LIVE_KEY_SHARE else b"nobody-%d" % rng.getrandbits(20)
    return Poison(source, key, value(now_ms))
