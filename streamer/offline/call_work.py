"""Work on many recorded calls: on all cores, in order, with progress on the screen."""

import json
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

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

from schemas.quarantine import QuarantineRecord
from streamer.facts import STOPPED_BY_SIGNAL
from streamer.offline.contexts import context_of, eva_metrics_of
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.offline.side_by_side import results_in_order
from streamer.recordings.eva import with_state
from streamer.recordings.files import FiledEvents, Place, RecordedCall, RecordedPath, RecordingError, WireLine
from streamer.recordings.reader import NoCallError, RecordedGoals, read_call, unknown_speech
from streamer.sources.replay import with_control_events
from streamer.terminal import error_console, say, visible_json

# Progress and warnings on standard error while recorded calls are read and results go to standard output.

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


# The work on one recorded call as a function of its place: the lines to print and the sentences to say.
#
# A call that cannot be read gives no lines; its error is one of the sentences, and the others are not concerned.

LEFT_OUT: Final = "This call is left out; the others are not concerned."


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The result of the work on one call.

    Attributes:
        text: Lines for standard output.
        sentences: For standard error.
        events: Events that were read.
        is_read: Whether the call could be read.
    """

    text: str
    sentences: tuple[str, ...]
    events: int = 0
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """The place in a file at which reading had to stop, with the reason as sentences."""

    sentences: str


CallWork = Callable[[Place | BrokenOff], CallOutput]


def unread(error: RecordingError) -> CallOutput:
    """The output of a call that cannot be read, or of a webhook without one, which is no failure."""
    error.consequence = LEFT_OUT
    return CallOutput("", (str(error),), is_read=isinstance(error, NoCallError))


def places_of(found: Iterable[RecordedPath]) -> Iterator[Place | BrokenOff]:
    """The places of several paths, one after the other; a file that cannot be read further does not end it."""
    for path in found:
        try:
            yield from path
        except RecordingError as error:
            error.consequence = f"The calls before it were read; the rest of {path.path} is left out."
            yield BrokenOff(str(error))


@dataclass(frozen=True, slots=True)
class _Counted:
    """Work on a recorded call, and the number of its events."""

    work: Callable[[RecordedCall, Callable[[], None]], tuple[str, list[str]]]

    def __call__(self, place: Place | BrokenOff) -> CallOutput:
        if isinstance(place, BrokenOff):
            return CallOutput("", (place.sentences,), is_read=False)
        events = 0

        def on_event() -> None:
            nonlocal events
            events += 1

        try:
            text, sentences = self.work(read_call(place), on_event)
        except RecordingError as error:
            return unread(error)
        return CallOutput(text, tuple(sentences), events)


def context_work(arrival_seed: int | None) -> CallWork:
    """EVA's context of a call as one line of JSON."""
    return _Counted(partial(_context, arrival_seed))


def eva_work(arrival_seed: int | None) -> CallWork:
    """EVA's metrics of a call as one line of JSON."""
    return _Counted(partial(_eva_metrics, arrival_seed))


def score_work(plan: ScoringPlan, sets: RecordedGoals | None, agent: str | None, *, all_records: bool) -> CallWork:
    """The score records of a call that no judge is asked about."""
    return _Counted(partial(_scores, plan, sets, agent, all_records=all_records))


def scoring_of(
    recorded: RecordedCall, plan: ScoringPlan, sets: RecordedGoals | None, agent: str | None
) -> tuple[RecordedScoring, list[str]]:
    """A recorded call with the goals that are for it, before it is scored; and sentences about what it lacks.

    Raises:
        RecordingError: A file beside the events cannot be read.
    """
    call = with_state(with_control_events(recorded, agent=agent))
    goal_set = None if sets is None else sets.of(call)
    sentences = unknown_speech(recorded)
    if sets is not None and goal_set is None:
        sentences.append(
            f"Call {call.conversation_id}: no goal set is for it, by name, id or agent. It has no progress."
        )
    return RecordedScoring(call, plan, goal_set), sentences


def readable_scorings(
    found: Iterable[RecordedPath],
    plan: ScoringPlan,
    sets: RecordedGoals | None,
    agent: str | None,
    leave_out: Callable[[CallOutput], None],
) -> Iterator[tuple[str, RecordedScoring]]:
    """Each recorded call of several paths before it is scored, with its place as text; says of which calls there are no goals.

    Args:
        found: The paths.
        plan: How calls are scored.
        sets: The goal sets to choose from.
        agent: Agent of calls whose recording names none.
        leave_out: Called for each place that cannot be read; the others are not concerned.
    """
    for place in places_of(found):
        try:
            if isinstance(place, BrokenOff):
                leave_out(CallOutput("", (place.sentences,), is_read=False))
                continue
            scoring, sentences = scoring_of(read_call(place), plan, sets, agent)
        except RecordingError as error:
            leave_out(unread(error))
            continue
        for sentence in sentences:
            say(sentence)
        yield place_text(place), scoring


def place_text(place: Place) -> str:
    """The file or folder of a call; with the line, or the name of the call, where there are several in one file."""
    match place:
        case WireLine():
            return f"{place.path}:{place.number}"
        case FiledEvents():
            return f"{place.path} ({place.conversation_id})"
        case _:
            return str(place.path)


def score_lines(scoring: RecordedScoring, *, all_records: bool) -> tuple[str, list[str]]:
    """The lines of a scored call, and the sentences about its refused events."""
    records = scoring.records if all_records else scoring.final_records()
    lines = "".join(record.model_dump_json() + "\n" for record in records)
    return lines, about_refused(scoring.call.conversation_id, scoring.refused)


def _context(arrival_seed: int | None, recorded: RecordedCall, on_event: Callable[[], None]) -> tuple[str, list[str]]:
    result = context_of(recorded, arrival_seed, on_event)
    line = json.dumps({"id": result.conversation_id, "context": result.context}) + "\n"
    return line, [*unknown_speech(recorded), *about_refused(result.conversation_id, result.refused)]


def _eva_metrics(
    arrival_seed: int | None, recorded: RecordedCall, on_event: Callable[[], None]
) -> tuple[str, list[str]]:
    result = eva_metrics_of(recorded, arrival_seed, on_event)
    line = json.dumps({"id": result.conversation_id, "metrics": result.metrics}) + "\n"
    return line, [*unknown_speech(recorded), *about_refused(result.conversation_id, result.refused)]


def _scores(
    plan: ScoringPlan,
    sets: RecordedGoals | None,
    agent: str | None,
    recorded: RecordedCall,
    on_event: Callable[[], None],
    *,
    all_records: bool,
) -> tuple[str, list[str]]:
    scoring, sentences = scoring_of(recorded, plan, sets, agent)
    deque(scoring.run(on_event), maxlen=0)  # nothing is asked
    lines, refused = score_lines(scoring, all_records=all_records)
    return lines, [*sentences, *refused]


# Prints the results of recorded calls, for `score` and `context`: in the order of the calls, whatever happens to one
# of them.


class PrintedCalls:
    """Results on standard output, and sentences and progress on standard error.

    Attributes:
        unread: Number of calls, and ends of files, that could not be read.
        event: Called after each event of a call that is not done yet.
    """

    def __init__(self, progress: ReadingProgress) -> None:
        self.unread = 0
        self.event = progress.event
        self._progress = progress
        self._printed: list[int] = []

    def add(self, output: CallOutput) -> None:
        """Prints the results of one more call."""
        # Writing and counting are one step of the interpreter, so that no signal comes between them.
        (self._printed if output.is_read else []).extend(map(sys.stdout.write, (visible_json(output.text),)))
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
