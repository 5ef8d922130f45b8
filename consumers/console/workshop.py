"""Work that takes long is done in threads of its own, once for all who want the same, and no more
of it waits than a bound allows.

Python runs one thread at a time, so threads make no work faster. They let the event loop have its
turn every few milliseconds, and with them the evaluator, probes and other pages.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

MAX_OF_ONE: Final = 6
"""Pieces of work about one subject, say a call, that may wait: a page, a report and the answers of
the API, each once.
"""

Made = TypeVar("Made")


class BusyError(Exception):
    """As much work of this kind waits as is allowed, or the console ends."""


class Bounds(NamedTuple):
    """The bounds of one kind of work.

    Attributes:
        threads: How many threads do it.
        waiting: How many pieces of it may wait for a thread.
        kept_bytes: How much of what was made is kept for those who want the same again; 0 keeps
            nothing.
        share: How much of a processor it may take on the average; more than that waits.
        at_once_seconds: How many seconds of a processor it may take at once after a pause.
    """

    threads: int
    waiting: int
    kept_bytes: int = 0
    share: float = math.inf
    at_once_seconds: float = 0.0


class Pace:
    """How much may be used: so much a second on the average, and so much at once after a pause.

    It may be overdrawn, because what something takes is known only afterwards; what comes next
    waits for it.
    """

    def __init__(
        self, a_second: float, at_once: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is used yet. An infinite rate never waits."""
        self._seconds_each = 1 / a_second
        self._at_once_seconds = at_once / a_second
        self._clock = clock
        self._paid_until = -math.inf

    def spend(self, amount: float) -> None:
        """Notes a use."""
        begin = max(self._paid_until, self._clock() - self._at_once_seconds)
        self._paid_until = begin + amount * self._seconds_each

    def wait_seconds(self) -> float:
        """How long the next use has to wait; 0 for not at all."""
        return max(0.0, self._paid_until - self._clock())


class _Piece:
    """One piece of work that is not done yet."""

    def __init__(self) -> None:
        self.has_begun = False
        self.version: Hashable = None
        self.task: asyncio.Task[Any]


class Workshop:
    """Threads for one kind of work, what waits for them, and what they made lately."""

    def __init__(
        self, name: str, bounds: Bounds, waited: Callable[[float], None] = lambda _: None
    ) -> None:
        """No thread begins before there is work.

        Args:
            name: Of the threads.
            bounds: What the work may take.
            waited: Is told how many seconds a piece of work waited for its share of the processor.
        """
        self._bounds = bounds
        self._threads = ThreadPoolExecutor(bounds.threads, f"console-{name}")
        self._free = asyncio.Semaphore(bounds.threads)
        self._pace = Pace(bounds.share, bounds.at_once_seconds)
        self._waited = waited
        self._turns: dict[Hashable, asyncio.Lock] = {}
        """By subject: one piece of its work is done at a time, so it leaves threads to others."""
        self._pieces: dict[Hashable, _Piece] = {}
        self._open: dict[asyncio.Task[Any], Hashable] = {}
        """By piece its subject."""
        self._kept: OrderedDict[Hashable, tuple[Hashable, Any, int]] = OrderedDict()
        """Results, each with the version that it was made of, and its bytes."""
        self._kept_bytes = 0
        self._is_closed = False

    async def make(
        self,
        subject: Hashable,
        what: Hashable,
        version: Callable[[], Hashable],
        work: Callable[[], Made],
    ) -> Made:
        """Returns what the work makes, which may also be what it made for somebody else: of this
        version, or of a later one.

        Args:
            subject: What it is about. One piece of work about it is done at a time.
            what: Names the work among all about this subject.
            version: Names the present state of what the work reads; asked when it begins.
            work: Runs in a thread of its own.

        Raises:
            BusyError: Too much waits already, or the workshop is closed.
        """
        key, wanted = (subject, what), version()
        version_of_kept, made, _ = self._kept.get(key, (object(), None, 0))
        if version_of_kept == wanted:
            self._kept.move_to_end(key)
            kept: Made = made
            return kept
        piece = self._pieces.get(key)
        if piece is None or (piece.has_begun and piece.version != wanted):
            piece = self._begun(key, subject, version, work)
        return await asyncio.shield(piece.task)  # a reader who leaves takes nothing from the others

    async def close(self, seconds: float) -> None:
        """Refuses further work, and waits for what is being done no longer than this."""
        self._is_closed = True
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begun(
        self,
        key: Hashable,
        subject: Hashable,
        version: Callable[[], Hashable],
        work: Callable[[], Any],
    ) -> _Piece:
        has_room = len(self._open) < self._bounds.threads + self._bounds.waiting
        of_subject = sum(each == subject for each in self._open.values())
        if self._is_closed or not has_room or of_subject >= MAX_OF_ONE:
            raise BusyError
        turn = self._turns.setdefault(subject, asyncio.Lock())
        piece = self._pieces[key] = _Piece()
        piece.task = asyncio.create_task(self._done(piece, key, turn, version, work))
        self._open[piece.task] = subject

        def ended(task: asyncio.Task[Any]) -> None:
            del self._open[task]
            if self._pieces.get(key) is piece:
                del self._pieces[key]
            if subject not in self._open.values():
                del self._turns[subject]
            if not task.cancelled():
                task.exception()  # its readers may have left

        piece.task.add_done_callback(ended)
        return piece

    async def _done(
        self,
        piece: _Piece,
        key: Hashable,
        turn: asyncio.Lock,
        version: Callable[[], Hashable],
        work: Callable[[], Any],
    ) -> Any:
        took_seconds = 0.0

        def timed() -> Any:
            nonlocal took_seconds
            began = time.thread_time()
            try:
                return work()
            finally:
                took_seconds = time.thread_time() - began

        async with turn, self._free:
            # the other thread may have gone on meanwhile
            while (seconds := self._pace.wait_seconds()) > 0:
                await asyncio.sleep(seconds)
                self._waited(seconds)
            piece.version, piece.has_begun = version(), True
            try:
                made = await asyncio.get_running_loop().run_in_executor(self._threads, timed)
            finally:
                self._pace.spend(took_seconds)
        self._keep(key, piece.version, made)
        return made

    def _keep(self, key: Hashable, version: Hashable, made: Any) -> None:
        """Keeps a result in the place of the one before; what has no room at all is not kept."""
        self._kept_bytes -= self._kept.pop(key, (None, None, 0))[2]
        size = size_of(made)
        self._kept[key] = version, made, size
        self._kept.move_to_end(key, last=size <= self._bounds.kept_bytes)
        self._kept_bytes += size
        while self._kept_bytes > self._bounds.kept_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1][2]


_LEAST_BYTES: Final = 500
"""A kept result takes so much at least: its key and its place."""


def size_of(made: Any) -> int:
    """Roughly how many bytes something takes: texts, bytes, and collections of them."""
    if isinstance(made, str | bytes):
        return _LEAST_BYTES + len(made)
    if isinstance(made, Mapping):
        return _LEAST_BYTES + sum(map(size_of, made.values()))
    if isinstance(made, list | tuple):
        return _LEAST_BYTES + sum(map(size_of, made))
    return _LEAST_BYTES
