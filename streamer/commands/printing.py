"""Prints the results of recorded calls, for `score` and `context`: in the order of the calls, whatever happens to one of them."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from streamer.exit_codes import STOPPED_BY_SIGNAL
from streamer.offline.call_work import CallOutput, CallWork, places_of
from streamer.offline.screen import EVENTS, ReadingProgress, reading_progress
from streamer.offline.side_by_side import results_in_order
from streamer.recordings.files.places import RecordedPath
from streamer.terminal import say


class PrintedCalls:
    """Results on standard output, and sentences and progress on standard error.

    Attributes:
        unread: Number of calls, and ends of files, that could not be read.
        event: Called after each event of a call that is not done yet.
    """

    def __init__(self, progress: ReadingProgress) -> None:
        """Starts with no call."""
        self.unread = 0
        self.event = progress.event
        self._progress = progress
        self._printed: list[int] = []

    def add(self, output: CallOutput) -> None:
        """Prints the results of one more call."""
        # Writing and counting are one step of the interpreter, so that no signal comes between them.
        (self._printed if output.is_read else []).extend(map(sys.stdout.write, (output.text,)))
        for sentence in output.sentences:
            say(sentence)
        if output.is_read:
            self._progress.call(output.events)
        else:
            self.unread += 1

    @property
    def read(self) -> int:
        """The number of calls with results."""
        return len(self._printed)


def found_calls(paths: Sequence[Path]) -> list[RecordedPath]:
    """Looks below every path before a call is read, so that a misspelt path is noticed at once.

    Raises:
        RecordingError: There is no recorded call at one of them.
    """
    found = [RecordedPath(path) for path in paths]
    for path in found:
        if path.discarded:
            say(
                f"{path.path}: {path.discarded} folders of discarded attempts are left out, as in EVA. Name such a folder "
                "to read it."
            )
    return found


def print_calls(paths: Sequence[Path], work: CallWork, processes: int | None) -> None:
    """Does the work on every recorded call and prints the results.

    Raises:
        RecordingError: There is no recorded call at one of the paths; nothing was read.
        Exit: Calls could not be read, or a signal ended it.
    """
    found = found_calls(paths)
    with printed_calls(total_of(found)) as printed:
        for output in results_in_order(places_of(found), work, processes):
            printed.add(output)


def total_of(found: Sequence[RecordedPath]) -> int | None:
    """The number of calls; None where they are counted only by reading them."""
    return sum(len(path.known) for path in found) if all(path.known for path in found) else None


@contextmanager
def printed_calls(total: int | None, counted: str = EVENTS) -> Iterator[PrintedCalls]:
    """A place for results; at the end it reports missing calls, and ends the command if there are any.

    Args:
        total: The number of calls; None if it is unknown.
        counted: Name of the things that are counted beside calls.

    Raises:
        Exit: Calls could not be read, or a signal ended it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with reading_progress(total, counted) as progress:
        printed = PrintedCalls(progress)
        try:
            yield printed
        except KeyboardInterrupt:
            sys.stdout.flush()
            of_all = "" if total is None else f" of {total}"
            say(f"Stopped: {printed.read}{of_all} calls were printed, each of them whole.")
            raise typer.Exit(STOPPED_BY_SIGNAL) from None
    sys.stdout.flush()
    if printed.unread:
        counted = "1 place" if printed.unread == 1 else f"{printed.unread} places"
        say(f"{counted} could not be read, see above; the {printed.read} other calls were read and printed.")
        raise typer.Exit(1)
