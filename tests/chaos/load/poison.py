"""Records that can never be processed, of every kind a broken producer sends. Each must end in
quarantine and do no harm.

Some are sent as records, some in compressed batches that become far larger than they are, some in
batches made by hand. A foreign record in `scores` is no input: it is to be passed over.
"""

import json
import random
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from tests.chaos.load import foreign
from tests.chaos.load.raw_batch import RawRecord, batch

DAY_MS: Final = 24 * 3_600_000


class Kind(StrEnum):
    """Its fault, in the words of the report."""

    VALUE = "bad values"
    KEY = "bad keys"
    ODD_KEY = "odd keys"
    FOREIGN = "foreign records in scores"
    COMPRESSED = "compressed bad values"
    BOMB = "compressed batches that blow up"
    HEADER = "header keys that are not UTF-8"
    GZIP = "gzip with something behind it"


class Poison(NamedTuple):
    """A bad record: its fault, the source of its topic, key and value as they are sent, and the way
    of sending.

    Attributes:
        source: "scores" for that topic.
        codec: How its batch is compressed; None as the load's own records are.
        raw: The whole batch, if it is made by hand.
    """

    kind: Kind
    source: str
    key: bytes | None
    value: bytes | None
    codec: str | None = None
    raw: bytes | None = None


def _line(now_ms: int, **fields: object) -> bytes:
    return json.dumps(
        {"type": "tts_text", "timestamp": now_ms, "data": {"frame": "hello"}, **fields}
    ).encode()


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
    ("elevenlabs", lambda now_ms: _audio(now_ms, audio_timestamp=[])),
)
_BAD_KEYS: Final = (None, b"", b"k" * 5_000, b"\xff\xfe\x00")
_ODD_KEYS: Final = (
    b"line\nline",
    b"\x1b[31mred",
    "ключ-\U0001f511".encode(),
    b"../../etc/passwd",
    b"\x00",
)
"""They can be a conversation's name, so events under them are evaluated."""
_LIVE_KEY_SHARE: Final = 0.75
_PACK: Final = (
    *[Kind.VALUE] * 9,
    *[Kind.KEY] * 2,
    Kind.ODD_KEY,
    *[Kind.FOREIGN] * 3,
    *[Kind.COMPRESSED] * 2,
    *[Kind.HEADER] * 2,
    Kind.GZIP,
    Kind.BOMB,
)
_BOMB_BYTES: Final = {"gzip": 48 << 20, "zstd": 48 << 20, "lz4": 48 << 20, "snappy": 12 << 20}
"""Fits in a batch of 1 MB: every byte of it is read again by the judgement too."""
CODECS: Final = tuple(_BOMB_BYTES)


class Cook:
    """Makes them, all kinds in proportion."""

    def __init__(self, rng: random.Random, kinds: Collection[Kind] = frozenset(Kind)) -> None:
        """Draws from this, and makes these only."""
        self._rng = rng
        self._pack = [kind for kind in _PACK if kind in kinds]
        self._deck: list[Kind] = []
        self._number = 0

    def draw(self, live_key: bytes, now_ms: int) -> Poison:
        """A bad record, more often than not under the key of a live call."""
        if not self._deck:
            self._deck = self._rng.sample(self._pack, len(self._pack))
        kind = self._deck.pop()
        self._number += 1
        key = live_key if self._rng.random() < _LIVE_KEY_SHARE else b"nobody-%d" % self._number
        source, value = self._rng.choice(_VALUES)
        match kind:
            case Kind.KEY:
                return Poison(kind, "pipecat", self._rng.choice(_BAD_KEYS), _line(now_ms))
            case Kind.ODD_KEY:
                return Poison(kind, "pipecat", self._rng.choice(_ODD_KEYS), _line(now_ms))
            case Kind.FOREIGN:
                key = foreign.KEY_START + b"%d" % self._number
                return Poison(kind, "scores", key, self._rng.choice(foreign.VALUES))
            case Kind.COMPRESSED:
                return Poison(kind, source, key, value(now_ms), self._rng.choice(CODECS))
            case Kind.BOMB:
                codec = self._rng.choice(CODECS)
                return Poison(kind, "pipecat", key, bytes(_BOMB_BYTES[codec]), codec)
            case Kind.HEADER:
                return Poison(
                    kind, "audit", None, None, raw=batch(self._around_a_header(key, now_ms))
                )
            case Kind.GZIP:
                raw = batch([RawRecord(key, b"{")], is_compressed=True, behind=b"what is this?")
                return Poison(kind, "pipecat", None, None, raw=raw)
            case _:
                return Poison(kind, source, key, value(now_ms))

    def _around_a_header(self, key: bytes, now_ms: int) -> Sequence[RawRecord]:
        """A bad record with a bad header, between two of a call that has nothing to do with it."""
        neighbour = b"neighbour-%d" % self._number
        said = json.dumps({"message_type": "user", "timestamp": now_ms, "value": "hello"}).encode()
        header = (self._rng.choice([b"\xff\xfe", b"\x80", b"ce_\xc3", b"\xed\xa0\x80"]), b"v")
        return [
            RawRecord(neighbour, said),
            RawRecord(key, b"{", [header]),
            RawRecord(neighbour, said),
        ]
