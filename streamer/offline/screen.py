"""Progress and warnings on standard error while recorded calls are read and results go to standard output."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from schemas.quarantine import QuarantineRecord
from streamer.terminal import error_console, say

_MOST_TOLD_PER_CALL: Final = 3
_REFRESH_EVENTS: Final = 500


@dataclass(slots=True)
class ReadingProgress:
    """Counts calls and their events, and now and then shows both."""

    _bar: Progress
    _task: TaskID
    calls: int = 0
    events: int = 0

    def event(self) -> None:
        """One more event was read."""
        self.events += 1
        if self.events % _REFRESH_EVENTS == 0:
            self._bar.update(self._task, description=f"{self.calls} calls, {self.events} events")


@contextmanager
def reading_progress() -> Iterator[ReadingProgress]:
    """A bar on standard error while recordings are read, where it can be seen and disturbs nothing."""
    console = error_console()
    # A bar beside results on the same screen would be torn apart by them.
    shows_progress = console.is_terminal and not sys.stdout.isatty()
    columns = (TextColumn("{task.description}"), BarColumn())
    # Without redirect_stdout=False results would go where the bar is, not to standard output.
    with Progress(*columns, console=console, disable=not shows_progress, redirect_stdout=False) as bar:
        yield ReadingProgress(bar, bar.add_task("", total=None))


def tell_refused(conversation_id: str, refused: Sequence[QuarantineRecord]) -> None:
    """Says which events of a call are not in its results."""
    for record in refused[:_MOST_TOLD_PER_CALL]:
        where = f"Call {conversation_id}, event {record.offset + 1} of {record.topic}"
        say(f"{where}: {record.what}: {record.expected_and_seen}. Left out, as the evaluator would.")
    if (more := len(refused) - _MOST_TOLD_PER_CALL) > 0:
        say(f"Call {conversation_id}: {more} more events left out.")
