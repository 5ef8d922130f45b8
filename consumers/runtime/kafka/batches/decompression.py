"""Decompresses batches up to a bound, because their unpacked size is up to the producer."""

import mmap
import struct
from collections.abc import Callable
from typing import Any, Final

import cramjam

MAX_UNPACKED_BATCH_BYTES: Final = 16 * 2**20
"""Records of one compressed batch, unpacked. Producers make batches of up to 1 MB before compression unless set otherwise,
and one record may have `max_record_bytes` (1 MB); this is sixteen times as much. One such batch of each input partition can
be in memory, and a copy of it while it is unpacked."""
CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
"""The codecs of Kafka's message format 2, by their number in a batch's attributes."""

_SNAPPY_BLOCKS: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
"""Header of Java's snappy format, with blocks that have lengths. Other producers write a single block without a header."""
_LENGTH: Final = struct.Struct(">i")
_IS_FULL: Final = "failed to write whole buffer"
"""Error text of cramjam when the output does not fit."""


class DecompressionError(Exception):
    """The bytes cannot be decompressed. The text is the reason, as a phrase that follows "saw"."""


class BatchTooLargeError(DecompressionError):
    """The decompressed bytes would exceed MAX_UNPACKED_BATCH_BYTES."""


def decompressed(codec: int, packed: bytes | memoryview, head: bytes) -> bytes:
    """Returns `head` and the decompressed bytes behind it.

    The buffer exists only during the call, and uses real memory only as far as it is filled.

    Args:
        codec: A key of `CODECS`.
        packed: The compressed bytes.
        head: Start of the result.

    Raises:
        BatchTooLargeError: The result would exceed MAX_UNPACKED_BATCH_BYTES.
        DecompressionError: The bytes are not in the codec's format.
    """
    with mmap.mmap(-1, len(head) + MAX_UNPACKED_BATCH_BYTES) as scratch:
        scratch[: len(head)] = head
        with memoryview(scratch) as whole, whole[len(head) :] as room:
            try:
                size = _UNPACK[codec](packed, room)
            except cramjam.DecompressionError as error:
                if str(error) == _IS_FULL:
                    raise BatchTooLargeError("more") from None
                raise DecompressionError(str(error)) from None
        return scratch[: len(head) + size]


def _unpack_snappy(packed: bytes | memoryview, room: memoryview) -> int:
    if bytes(packed[: len(_SNAPPY_BLOCKS)]) != _SNAPPY_BLOCKS:
        return _unpack_snappy_block(packed, room)
    size, position = 0, len(_SNAPPY_BLOCKS)
    while position < len(packed):
        if position + _LENGTH.size > len(packed):
            raise DecompressionError("a block without its length")
        begin = position + _LENGTH.size
        position = begin + _LENGTH.unpack_from(packed, position)[0]
        if not begin < position <= len(packed):
            raise DecompressionError("a block whose length is wrong")
        with room[size:] as rest:
            size += _unpack_snappy_block(packed[begin:position], rest)
    return size


def _unpack_snappy_block(packed: bytes | memoryview, room: memoryview) -> int:
    if (declared := cramjam.snappy.decompress_raw_len(packed)) > len(room):
        raise BatchTooLargeError(f"{declared} in one block")
    return cramjam.snappy.decompress_raw_into(packed, room)


_UNPACK: Final[dict[int, Callable[[Any, memoryview], int]]] = {
    1: cramjam.gzip.decompress_into,
    2: _unpack_snappy,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
