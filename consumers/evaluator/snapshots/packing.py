"""The state of a partition, packed into chunks that a broker takes, and unpacked again.

Works in a thread beside the event loop, which has its turn whenever a piece goes through zlib.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

CHUNK_BYTES: Final = 512 * 1_024
"""Of one record: half of what brokers take unless they are told otherwise."""
MAX_PACKED_BYTES: Final = 64 * 2**20
"""Of one partition: some 15,000 open calls. A larger state is not written; it would not fit into the time there is."""
MAX_UNPACKED_BYTES: Final = 512 * 2**20
"""The same before packing: what packs very well must not fill the memory of who unpacks it."""
LEVEL: Final = 1
"""Of zlib: a third of the size, for a tenth of the time that making the bytes takes."""


class TooLargeError(Exception):
    """The state is larger than a snapshot may be."""


class TooLateError(Exception):
    """The state is not packed in the time there is."""


class Packed(NamedTuple):
    """A packed state: its chunks in order, and the size of what they unpack to."""

    chunks: Sequence[bytes]
    unpacked_bytes: int


def packed(write_into: Callable[[Any], None], deadline: float) -> Packed:
    """Packs what is written.

    Args:
        write_into: Writes the state into what it is given.
        deadline: In seconds of the monotonic clock.

    Raises:
        TooLargeError: It has more bytes than a snapshot may have.
        TooLateError: The deadline came first.
    """
    packer = _Packer(deadline)
    write_into(packer)
    return packer.end()


class _Packer:
    """Takes bytes and packs them as they come."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._zlib = zlib.compressobj(LEVEL)
        self._chunks: list[bytes] = []
        self._unpacked_bytes = 0
        self._loose = bytearray()

    def write(self, piece: Any) -> int:
        """Takes a piece.

        Raises:
            TooLargeError: It is one too many.
            TooLateError: It came after the deadline.
        """
        view = memoryview(piece)
        self._unpacked_bytes += view.nbytes
        self._keep(self._zlib.compress(view))
        self._check()
        return view.nbytes

    def end(self) -> Packed:
        """What was packed."""
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
    """A file of what chunks unpack to, read once from its beginning. Chunks that are read are forgotten."""

    def __init__(self, chunks: Sequence[bytes], unpacked_bytes: int) -> None:
        """Nothing is unpacked yet.

        Args:
            chunks: Known to be ours.
            unpacked_bytes: How many bytes may come out.
        """
        self._pieces = _unpacked(chunks, unpacked_bytes)
        self._ready = b""
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        """So many bytes; fewer at the end, and all for a negative number."""
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
        """Up to the next line break."""
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
    """The bytes, never more than `most_bytes`: what ends early or is longer is found out by whoever reads it."""
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
