"""Reads the recorded calls below some paths: on all cores, in order, with progress on the screen,
whatever happens to one of them.
"""

import re
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from streamer.facts import STOPPED_BY_SIGNAL
from streamer.offline.scoring import RecordedScoring, ScoringPlan, score_judged, scored, scoring_of
from streamer.offline.side_by_side import results_in_order
from streamer.recordings.elements import WholeCall
from streamer.recordings.files import RecordedCall, RecordingError
from streamer.recordings.places import FiledEvents, Place, RecordedFiles, RecordedPath
from streamer.recordings.reader import NoCallError, read_call
from streamer.settings.all_settings import Settings
from streamer.terminal import error_console, say, visible_json

# The places of calls, and the work on each as a function of its place. A call that cannot be read
# gives no result; its error is one of the sentences, and the others are not concerned.

LEFT_OUT: Final = "This call is left out; the others are not concerned."

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """What came of one place.

    Attributes:
        result: The result of the call; None without a call.
        sentences: For a person.
        place: Where the call is, as text; None if there is none or it cannot be read.
        events: Events that were read.
        is_read: Whether the place could be read. A webhook without a call is read.
    """

    result: Result | None
    sentences: tuple[str, ...] = ()
    place: str | None = None
    events: int = 0
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """The place in a file at which reading had to stop, with the reason as sentences."""

    sentences: str


Places = Iterable[Place | BrokenOff]


Found = RecordedPath | BrokenOff
"""A path with calls, or the reason why one has none."""


def found_calls(paths: Sequence[Path]) -> list[Found]:
    """Looks below every path before a call is read, so that a misspelt path is noticed immediately.

    A path that is there and holds no calls costs no other one its calls.

    Raises:
        RecordingError: One of them does not exist, or none has recorded calls.
    """
    found: list[Found] = []
    first: RecordingError | None = None
    for path in paths:
        try:
            recorded = RecordedPath(path)
        except RecordingError as error:
            if not path.exists():
                raise
            first = first or error
            error.consequence = "Nothing is read from it; other paths are read."
            found.append(BrokenOff(str(error)))
            continue
        found.append(recorded)
        if recorded.discarded:
            say(
                f"{path}: {recorded.discarded} folders of discarded attempts are left out, as in "
                "EVA. Name such a folder to read it."
            )
    if first is not None and not any(isinstance(each, RecordedPath) for each in found):
        raise first
    return found


def total_of(found: Sequence[Found]) -> int | None:
    """The number of calls; None where they are counted only by reading them."""
    recorded = [path for path in found if isinstance(path, RecordedPath)]
    return (
        sum(len(path.known) for path in recorded) if all(path.known for path in recorded) else None
    )


def places_of(found: Iterable[Found]) -> Iterator[Place | BrokenOff]:
    """The places of several paths, one after the other; a file that cannot be read further does not
    end it.
    """
    files = RecordedFiles()
    for path in found:
        if isinstance(path, BrokenOff):
            yield path
            continue
        is_any_read = False
        try:
            for place in path.places(files):
                is_any_read = True
                yield place
        except RecordingError as error:
            error.consequence = (
                f"The calls before it were read; the rest of {path.path} is left out."
                if is_any_read
                else f"No call of {path.path} is read."
            )
            yield BrokenOff(str(error))
    yield from files.of_spans()


def place_text(place: Place) -> str:
    """The file or folder of a call; with the line, or the name of the call, where there are several
    in one file.
    """
    match place:
        case WholeCall():
            return str(place.at)
        case FiledEvents():
            return f"{place.path} ({place.conversation_id})"
        case _:
            return str(place.path)


def _done(
    work: Callable[[RecordedCall], tuple[Result, Iterable[str]]], place: Place | BrokenOff
) -> Done[Result]:
    if isinstance(place, BrokenOff):
        return Done(None, (place.sentences,), is_read=False)
    try:
        call = read_call(place)
        result, sentences = work(call)
    except RecordingError as error:
        error.consequence = LEFT_OUT
        return Done(None, (str(error),), is_read=isinstance(error, NoCallError))
    return Done(result, tuple(sentences), place_text(place), call.events)


def each_call(
    places: Places,
    work: Callable[[RecordedCall], tuple[Result, Iterable[str]]],
    processes: int | None = 1,
) -> Iterator[Done[Result]]:
    """Does the work on each call, in the order of the places.

    Args:
        places: Read as they are needed.
        work: Gives the result, and sentences for a person; it and its results are sent between
            processes.
        processes: How many work at the same time; None is one on each core.
    """
    return results_in_order(places, partial(_done, work), processes)


def score_each(
    places: Places,
    plan: ScoringPlan,
    shape: Callable[[RecordedScoring], Result],
    each: Callable[[Done[Result]], None],
    settings: Settings,
    reading: "Reading",
    *,
    processes: int | None = 1,
    verdicts: Path | None = None,
) -> None:
    """Scores each call, and hands over what `shape` makes of it, in the order of the places.

    If a judge is asked, one process asks: its calls wait for the model, not for a core, and budgets
    and rates hold for all of them.

    Args:
        places: Read as they are needed.
        plan: How calls are scored, and whether a judge is asked.
        shape: It and its results are sent between processes if there are several.
        each: Called with each call, and with each place that cannot be read.
        settings: The judge with its limits and budgets.
        reading: Counts the events of calls that are not done yet.
        processes: How many work at the same time; None is one on each core.
        verdicts: File of kept verdicts; None keeps none.

    Raises:
        VerdictFileError: The file of verdicts cannot be used.
        SetupError: A judge is asked, and a setting of it is missing.
        OperatorError: The judge answers nothing.
    """
    if not plan.rules.asks_judge:
        for done in each_call(places, partial(_shaped, plan, shape), processes):
            each(done)
        return
    begun: deque[str | None] = deque()

    def scorings() -> Iterator[RecordedScoring]:
        for place in places:
            ready = _done(lambda recorded: (scoring_of(recorded, plan), ()), place)
            if ready.result is None:
                each(Done(None, ready.sentences, is_read=ready.is_read))
            else:
                begun.append(ready.place)
                yield ready.result

    def show(scoring: RecordedScoring) -> None:
        each(Done(shape(scoring), scoring.remarks, begun.popleft()))

    score_judged(scorings(), settings, show, reading.event, verdicts)


def _shaped(
    plan: ScoringPlan, shape: Callable[[RecordedScoring], Result], recorded: RecordedCall
) -> tuple[Result, tuple[str, ...]]:
    scoring = scored(recorded, plan)
    return shape(scoring), scoring.remarks


# Results on standard output, and warnings and progress on standard error.

EVENTS: Final = "events"
RECORDS: Final = "records"
_MANY: Final = frozenset({EVENTS, RECORDS})
MOST_NAMED: Final = 3
"""Calls that are named for one thing that they lack; further ones are counted."""
_LACK: Final = re.compile(r"Call .*: (no .+)", re.DOTALL)
"""A sentence about what a call lacks: a goal set, an input of EVA's rules. Behind the call it is
the same for every call.
"""
_REFRESH_EVENTS: Final = 500
_REFRESH_SECONDS: Final = 0.1


class Reading:
    """Counts calls and their events, or questions about them, and now and then shows both.

    Attributes:
        events: Events so far.
        unread: Number of calls, and ends of files, that could not be read.
        lacking: Number of calls by what they lack.
    """

    def __init__(self, bar: Progress, task: TaskID, counted: str) -> None:
        self.events = 0
        self.unread = 0
        self.lacking: Counter[str] = Counter()
        self._bar = bar
        self._task = task
        self._counted = counted
        self._read: list[int] = []
        self._shown_at = 0.0

    @property
    def calls(self) -> int:
        """The number of calls that were read, whole."""
        return len(self._read)

    def event(self) -> None:
        """One more event of a call that is not done yet."""
        self.events += 1
        if self.events % _REFRESH_EVENTS == 0 or self._counted not in _MANY:
            self._show()

    def add(self, done: Done[Result], text: str = "") -> None:
        """Prints the text of one more call, and says the sentences."""
        # Writing and counting are one step of the interpreter, so that no signal comes between
        # them.
        (self._read if done.is_read else []).extend(map(sys.stdout.write, (visible_json(text),)))
        for sentence in done.sentences:
            lack = _LACK.fullmatch(sentence) if done.is_read else None
            self.lacking.update([] if lack is None else [lack[1]])
            if lack is None or self.lacking[lack[1]] <= MOST_NAMED:
                say(sentence)
        self.unread += not done.is_read
        self.events += done.events
        self._show()

    def _show(self) -> None:
        self._bar.update(
            self._task,
            completed=self.calls,
            description=f"{self.calls} calls, {self.events} {self._counted}",
        )
        if (now := time.monotonic()) - self._shown_at >= _REFRESH_SECONDS:
            self._shown_at = now
            self._bar.refresh()

    def require_all(self, what_was_done: str = "read") -> None:
        """Ends the command with 1 if something could not be read."""
        if self.unread:
            counted = "1 place" if self.unread == 1 else f"{self.unread} places"
            others = f"the {self.calls} other calls were" if self.calls else "no call was"
            say(f"{counted} could not be read, see above; {others} {what_was_done}.")
            raise typer.Exit(1)


@contextmanager
def reading(
    total: int | None = None, counted: str = EVENTS, *, stopped: str | None = None
) -> Iterator[Reading]:
    """A bar on standard error while calls are read, where it can be seen and disturbs nothing; a
    signal ends the command in plain words.

    Args:
        total: The number of calls; None while it is unknown.
        counted: Name of the things that are counted beside calls. Events and records are many, so
            not each of them is shown.
        stopped: What a signal leaves; None where each call is printed as soon as it is done.

    Raises:
        Exit: A signal ended it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = error_console()
    # A bar beside results on the same screen would be torn apart by them.
    shows_progress = console.is_terminal and not sys.stdout.isatty()
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    if total is not None:
        columns += [MofNCompleteColumn(), TimeRemainingColumn()]
    # Without redirect_stdout=False results would go where the bar is, not to standard output. With
    # auto_refresh the bar would have a thread, and a process with threads cannot be copied to work
    # on several cores.
    with Progress(
        *columns,
        console=console,
        disable=not shows_progress,
        redirect_stdout=False,
        auto_refresh=False,
    ) as bar:
        calls = Reading(bar, bar.add_task("", total=total), counted)
        try:
            yield calls
        except KeyboardInterrupt:
            sys.stdout.flush()
            of_all = "" if total is None else f" of {total}"
            printed = f"Stopped: {calls.calls}{of_all} calls were printed, each of them whole."
            say(
                f"Stopped after {calls.events} {counted}: {stopped}."
                if stopped is not None
                else printed
            )
            raise typer.Exit(STOPPED_BY_SIGNAL) from None
    for lack, count in calls.lacking.items():
        if count > MOST_NAMED:
            say(f"And {count - MOST_NAMED} more: {lack}")
    sys.stdout.flush()
