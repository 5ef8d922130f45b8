"""The work on one recorded call as a function of its place: the lines to print and the sentences to say.

A call that cannot be read gives no lines; its error is one of the sentences, and the others are not concerned.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from streamer.offline.contexts import context_of
from streamer.offline.eva_results import eva_metrics_of
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.offline.screen import about_refused
from streamer.recordings.eva_state import with_state
from streamer.recordings.files.event_files import FiledEvents
from streamer.recordings.files.json_files import RecordingError
from streamer.recordings.files.places import Place, RecordedPath, WireLine
from streamer.recordings.goals import RecordedGoals
from streamer.recordings.reader import NoCallError, read_call
from streamer.recordings.recorded_call import RecordedCall
from streamer.sources.replay.playback import with_control_events
from streamer.terminal import say

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
    """A recorded call with the goals that are for it, before it is scored; and a sentence if none are.

    Raises:
        RecordingError: A file beside the events cannot be read.
    """
    call = with_state(with_control_events(recorded, agent=agent))
    goal_set = None if sets is None else sets.of(call)
    sentences = []
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
    return line, about_refused(result.conversation_id, result.refused)


def _eva_metrics(
    arrival_seed: int | None, recorded: RecordedCall, on_event: Callable[[], None]
) -> tuple[str, list[str]]:
    result = eva_metrics_of(recorded, arrival_seed, on_event)
    line = json.dumps({"id": result.conversation_id, "metrics": result.metrics}) + "\n"
    return line, about_refused(result.conversation_id, result.refused)


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
