"""Progress and warnings on standard error while recorded calls are read and results go to standard output."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from schemas.quarantine import QuarantineRecord
from streamer.terminal import error_console, say

EVENTS: Final = "events"
RECORDS: Final = "records"
_MOST_LINES_PER_CALL: Final = 3
_MANY: Final = frozenset({EVENTS, RECORDS})
_REFRESH_EVENTS: Final = 500
_REFRESH_SECONDS: Final = 0.1


@dataclass(slots=True)
class ReadingProgress:
    """Counts calls and their events, or questions about them, and now and then shows both."""

    _bar: Progress
    _task: TaskID
    _counted: str
    calls: int = 0
    events: int = 0
    _shown_at: float = 0.0

    def event(self) -> None:
        """One more event was read."""
        self.events += 1
        if self.events % _REFRESH_EVENTS == 0 or self._counted not in _MANY:
            self._show()

    def call(self, events: int) -> None:
        """One more call was done, with so many events."""
        self.calls += 1
        self.events += events
        self._show()

    def _show(self) -> None:
        self._bar.update(
            self._task, completed=self.calls, description=f"{self.calls} calls, {self.events} {self._counted}"
        )
        if (now := time.monotonic()) - self._shown_at >= _REFRESH_SECONDS:
            self._shown_at = now
            self._bar.refresh()


@contextmanager
def reading_progress(total_calls: int | None = None, counted: str = EVENTS) -> Iterator[ReadingProgress]:
    """A bar on standard error while recordings are read, where it can be seen and disturbs nothing.

    Args:
        total_calls: The number of calls; None while nobody knows it.
        counted: Name of the things that are counted beside calls. Events and records are many, so not each of them is shown.
    """
    console = error_console()
    # A bar beside results on the same screen would be torn apart by them.
    shows_progress = console.is_terminal and not sys.stdout.isatty()
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    if total_calls is not None:
        columns += [MofNCompleteColumn(), TimeRemainingColumn()]
    # Without redirect_stdout=False results would go where the bar is, not to standard output. With auto_refresh the bar would
    # have a thread, and a process with threads cannot be copied to work on several cores.
    with Progress(
        *columns, console=console, disable=not shows_progress, redirect_stdout=False, auto_refresh=False
    ) as bar:
        yield ReadingProgress(bar, bar.add_task("", total=total_calls), counted)


def tell_refused(conversation_id: str, refused: Sequence[QuarantineRecord]) -> None:
    """Says which events of a call are not in its results."""
    for sentence in about_refused(conversation_id, refused):
        say(sentence)


def about_refused(conversation_id: str, refused: Sequence[QuarantineRecord]) -> list[str]:
    """The sentences about the events of a call that are not in its results."""
    sentences = []
    for record in refused[:_MOST_LINES_PER_CALL]:
        where = f"Call {conversation_id}, event {record.offset + 1} of {record.topic}"
        sentences.append(f"{where}: {record.what}: {record.expected_and_seen}. Left out, as the evaluator would.")
    if (more := len(refused) - _MOST_LINES_PER_CALL) > 0:
        sentences.append(f"Call {conversation_id}: {more} more events left out.")
    return sentences
