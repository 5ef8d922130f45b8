"""Does the same work on many recorded calls on all cores, and gives the results in the order of the
calls.

A few calls are done in this process: starting others takes longer. The work is a function of its
place alone, so the results are the same, whichever process has done it. Only a few results and
places are in memory at a time.
"""

import multiprocessing
import multiprocessing.context
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final, TypeVar

from consumers.runtime.process import OperatorError

PLACES_AHEAD: Final = 4
"""Calls of each process that are begun, or done and not yet printed: a long call in front must not
leave the others idle. It bounds the memory, together with the longest line of a file.
"""
ALONE_SECONDS: Final = 0.3
"""Time for which this process works alone: to start and end others takes a part of it."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Place = TypeVar("Place")
Result = TypeVar("Result")


class WorkerLostError(OperatorError):
    """A process that worked on calls was ended from outside, or had no memory left."""

    def __init__(self) -> None:
        super().__init__(
            "One of the processes that read the calls ended without a word, so reading stops here; "
            "results before it were printed. The system may have ended it because memory was "
            "short: try again with --processes 1."
        )


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results_in_order(
    places: Iterable[Place], work: Callable[[Place], Result], processes: int | None
) -> Iterator[Result]:
    """Yields the result of each place, in the order of the places.

    Args:
        places: Read as they are needed.
        work: Done for each; it and its results are sent between processes. Its errors end
            everything.
        processes: How many work at the same time; 1 is this one alone. None is one on each core,
            once the work has taken longer than it takes to start them.

    Raises:
        WorkerLostError: One of the processes was ended from outside.
    """
    waiting = iter(places)
    count = usable_cores() if processes is None else processes
    began_seconds = time.monotonic()
    if processes is None or count == 1:
        for place in waiting:
            yield work(place)
            if count > 1 and time.monotonic() - began_seconds > ALONE_SECONDS:
                break
        else:
            return
    yield from _beside_each_other(waiting, work, count)


def _beside_each_other(
    places: Iterator[Place], work: Callable[[Place], Result], count: int
) -> Iterator[Result]:
    first = next(places, None)
    if first is None:
        return
    pool = ProcessPoolExecutor(
        count, mp_context=_context(work), initializer=_begin, initargs=(work,)
    )
    # A copy has our handlers of signals until it has its own.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        begun: deque[Future[Any]] = deque([pool.submit(_do, first)])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    is_whole = False
    try:
        for place in places:
            if len(begun) >= count * PLACES_AHEAD:
                yield begun.popleft().result()
            begun.append(pool.submit(_do, place))
        while begun:
            yield begun.popleft().result()
        is_whole = True
    except BrokenProcessPool as error:
        raise WorkerLostError from error
    finally:
        if not is_whole:
            _end_now(pool)
        pool.shutdown(cancel_futures=True)


def _context(work: Callable[[Any], Any]) -> multiprocessing.context.BaseContext:
    """How processes begin: as copies of this one if it has a single thread, because a lock of
    another one would stay locked.

    Otherwise as copies of a process that has loaded the work, which takes as long as some fifty
    calls.
    """
    if _threads() == 1:
        return multiprocessing.get_context("fork")
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    return context


def _threads() -> int | None:
    """The threads of this process, those of libraries included; None where the system does not say,
    as on macOS.
    """
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return None


def _end_now(pool: ProcessPoolExecutor) -> None:
    """The results of the calls that are under way are not awaited: Ctrl-C must not take as long as
    the longest of them.
    """
    for process in list((pool._processes or {}).values()):  # noqa: SLF001 - `terminate_workers` comes with Python 3.14
        process.terminate()


_work: Callable[[Any], Any] | None = None


def _begin(work: Callable[[Any], Any]) -> None:
    """Makes a process ready: Ctrl-C is for its parent, without which it ends. SIGTERM ends it
    without a word.
    """
    global _work  # noqa: PLW0603 - sent once to each process, not with each of its calls
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(place: Any) -> Any:
    assert _work is not None, "the process was made ready"  # noqa: S101 - the pool does it before anything else
    return _work(place)
