"""Packs the state of a partition into chunks that fit Kafka records, and unpacks them.

Packing runs in a thread beside the event loop, which gets its turn while zlib compresses a piece.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

CHUNK_BYTES: Final = 512 * 1_024
"""Bytes of one record: half of the default limit of brokers."""
MAX_PACKED_BYTES: Final = 64 * 2**20
"""Most bytes of one partition: some 15,000 open calls. A larger state is not written, because it would take too long."""
MAX_UNPACKED_BYTES: Final = 512 * 2**20
"""Most unpacked bytes, so that a state that compresses very well does not fill the memory of its reader."""
LEVEL: Final = 1
"""Level of zlib: it reduces the size to a third, in a tenth of the time that serialising takes."""


class TooLargeError(Exception):
    """The state is larger than a snapshot may be."""


class TooLateError(Exception):
    """The state is not packed before the deadline."""


class Packed(NamedTuple):
    """A packed state: its chunks in order, and its unpacked size."""

    chunks: Sequence[bytes]
    unpacked_bytes: int


def packed(write_into: Callable[[Any], None], deadline: float) -> Packed:
    """Packs a state.

    Args:
        write_into: Writes the state into its argument.
        deadline: Seconds of the monotonic clock.

    Raises:
        TooLargeError: The state has more bytes than a snapshot may have.
        TooLateError: The deadline passed first.
    """
    packer = _Packer(deadline)
    write_into(packer)
    return packer.end()


class _Packer:
    """Packs bytes as they are written."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._zlib = zlib.compressobj(LEVEL)
        self._chunks: list[bytes] = []
        self._unpacked_bytes = 0
        self._loose = bytearray()

    def write(self, piece: Any) -> int:
        """Packs one piece.

        Raises:
            TooLargeError: There are too many bytes now.
            TooLateError: The deadline has passed.
        """
        view = memoryview(piece)
        self._unpacked_bytes += view.nbytes
        self._keep(self._zlib.compress(view))
        self._check()
        return view.nbytes

    def end(self) -> Packed:
        """Returns the packed state."""
        self._keep(self._zlib.flush())
        self._check()
        if self._loose:
            self._chunks.append(bytes(self._loose))
        return Packed(self._chunks, self._unpacked_bytes)

    def _keep(self, piece: bytes) -> None:
        loose = self._loose
        loose += piece
        while len(loose) >= CHUNK_BYTES:
            self._chunks.append(bytes(loose[:CHUNK_BYTES]))
            del loose[:CHUNK_BYTES]

    def _check(self) -> None:
        packed_bytes = len(self._chunks) * CHUNK_BYTES + len(self._loose)
        if packed_bytes > MAX_PACKED_BYTES or self._unpacked_bytes > MAX_UNPACKED_BYTES:
            raise TooLargeError
        if time.monotonic() > self._deadline:
            raise TooLateError


class Unpacker:
    """A file with the unpacked content of chunks. It is read once from its start, and frees the chunks on the way."""

    def __init__(self, chunks: Sequence[bytes], unpacked_bytes: int) -> None:
        """Starts at the first chunk.

        Args:
            chunks: Chunks with a verified seal.
            unpacked_bytes: Most bytes to unpack.
        """
        self._pieces = _unpacked(chunks, unpacked_bytes)
        self._ready = b""
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        """Reads the given number of bytes; fewer at the end, and all for a negative number."""
        parts = []
        while size:
            if self._at == len(self._ready) and not self._next():
                break
            part = self._ready[self._at :] if size < 0 else self._ready[self._at : self._at + size]
            self._at += len(part)
            size -= len(part) if size > 0 else 0
            parts.append(part)
        return b"".join(parts)

    def readline(self) -> bytes:
        """Reads up to the next line break."""
        line = bytearray()
        while byte := self.read(1):
            line += byte
            if byte == b"\n":
                break
        return bytes(line)

    def _next(self) -> bool:
        self._ready, self._at = next(self._pieces, b""), 0
        return bool(self._ready)


_PIECE_BYTES: Final = 256 * 1_024


def _unpacked(chunks: Sequence[bytes], most_bytes: int) -> Iterator[bytes]:
    """Yields the unpacked bytes, at most `most_bytes`. The reader notices if there are fewer or more."""
    inflate = zlib.decompressobj()
    left = most_bytes
    for chunk in chunks:
        packed_piece = chunk
        while left and packed_piece:
            piece = inflate.decompress(packed_piece, min(_PIECE_BYTES, left))
            packed_piece = inflate.unconsumed_tail
            left -= len(piece)
            if piece:
                yield piece
            elif inflate.eof:
                return
