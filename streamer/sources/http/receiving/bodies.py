"""Bodies of requests, read within bounds: of one body, of all bodies in memory at a time, and of time."""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request

BODY_SECONDS: Final = 20.0
"""How long a body may take. A megabyte over a slow line (1 Mbit/s) takes 8 s."""
MAX_PENDING_BYTES: Final = 67_108_864
"""Bytes of all bodies of a route that are in memory at a time; further requests are asked to come again."""
MAX_DRAINED_BYTES: Final = 134_217_728
"""Bytes of one body that are read and dropped. A client that is cut while it still sends sees no answer; an hour of recorded
sound in base64 has 80 MB."""


class TooSlowError(Exception):
    """The body did not arrive in time."""


class BusyError(Exception):
    """Too many bodies are in memory; there is room again in a moment."""


class GoneError(Exception):
    """The client went away before the end of the body, or sends without an end."""


class Bodies:
    """The bodies of one route that are in memory now."""

    def __init__(self) -> None:
        """Starts without bodies."""
        self.pending_bytes = 0

    async def read(
        self, request: Request, most_bytes: Callable[[bytearray], int], on_piece: Callable[[bytes], None] | None = None
    ) -> "Body":
        """Reads a body to its end. Of a body that is too large, the beginning is kept and the rest is dropped.

        Args:
            request: The request.
            most_bytes: Returns how many bytes are kept, from the beginning of the body as far as it is known.
            on_piece: Called with each piece, in order, also with those that are dropped.

        Raises:
            TooSlowError, BusyError, GoneError: It was not read to its end; nothing of it is kept.
        """
        body = Body(self)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in request.stream():
                    if on_piece is not None:
                        on_piece(piece)
                    body.add(piece, most_bytes)
        except TimeoutError:
            body.release()
            raise TooSlowError from None
        except ClientDisconnect:
            body.release()
            raise GoneError from None
        except BaseException:
            body.release()
            raise
        return body


class Body:
    """One body. `release` gives its room back.

    Attributes:
        total_bytes: Its length, dropped pieces included.
    """

    def __init__(self, bodies: Bodies) -> None:
        self.total_bytes = 0
        self._bodies = bodies
        self._kept = bytearray()

    @property
    def content(self) -> bytes:
        """The kept bytes."""
        return bytes(self._kept)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was dropped."""
        return self.total_bytes == len(self._kept)

    def add(self, piece: bytes, most_bytes: Callable[[bytearray], int]) -> None:
        """Keeps a piece as far as there is room.

        Raises:
            BusyError: All bodies together are too many.
            GoneError: The body has no end.
        """
        self.total_bytes += len(piece)
        if self.total_bytes > MAX_DRAINED_BYTES:
            raise GoneError
        before = len(self._kept)
        if self.is_whole_but_for(piece):
            self._kept += piece
        del self._kept[most_bytes(self._kept) :]
        self._bodies.pending_bytes += len(self._kept) - before
        if self._bodies.pending_bytes > MAX_PENDING_BYTES:
            raise BusyError

    def is_whole_but_for(self, piece: bytes) -> bool:
        """Whether nothing before this piece was dropped."""
        return self.total_bytes - len(piece) == len(self._kept)

    def release(self) -> None:
        """Gives the room of the body back; harmless when repeated."""
        self._bodies.pending_bytes -= len(self._kept)
        self._kept = bytearray()
