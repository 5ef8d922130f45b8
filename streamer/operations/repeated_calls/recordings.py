"""Scores recorded calls and gives each as a trial: on all cores, or beside each other in one process if a judge is asked."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamer.offline.call_work import (
    BrokenOff,
    CallOutput,
    place_text,
    places_of,
    readable_scorings,
    scoring_of,
    unread,
)
from streamer.offline.scored_recordings import score_all
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.offline.screen import about_refused
from streamer.offline.side_by_side import results_in_order
from streamer.recordings.files.json_files import RecordingError
from streamer.recordings.files.places import Place, RecordedPath
from streamer.recordings.goals import RecordedGoals
from streamer.recordings.reader import read_call
from streamer.settings.all_settings import Settings
from streamer.trials.trial import CallFold, Trial


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One recorded call after it was scored.

    Attributes:
        trial: None if it has no goals, or cannot be read.
        sentences: For a person.
        events: Events that were read.
        is_read: Whether it could be read.
        is_call: Whether there is a call: a webhook without one is no failure.
    """

    trial: Trial | None
    sentences: tuple[str, ...]
    events: int = 0
    is_read: bool = True
    is_call: bool = True


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """How recorded calls become trials: the plan of scoring, the goal sets, and the agent of calls that name none."""

    scoring: ScoringPlan
    sets: RecordedGoals | None
    agent: str | None


def trials_without_judge(found: Sequence[RecordedPath], plan: TrialPlan, processes: int | None) -> Iterator[ReadCall]:
    """The calls in the order of the recordings, read on all cores unless a number of processes is given."""
    return results_in_order(places_of(found), partial(_scored, plan), processes)


def trials_with_judge(
    found: Sequence[RecordedPath],
    plan: TrialPlan,
    settings: Settings,
    verdicts: Path | None,
    take: Callable[[ReadCall], None],
    on_event: Callable[[], None],
) -> None:
    """Scores the calls and asks the judge; many calls wait for answers at the same time.

    Args:
        found: The paths.
        plan: How they are scored.
        settings: The judge with its limits and budgets.
        verdicts: File of kept verdicts; None keeps none.
        take: Called with each call, in the order of the recordings, and with each place that cannot be read.
        on_event: Called after each event.

    Raises:
        VerdictFileError: The file of verdicts cannot be used.
        NoJudgeError: A setting of the judge is missing.
        JudgeFailedError: The judge answers nothing.
    """
    places: deque[str] = deque()

    def leave_out(output: CallOutput) -> None:
        take(_left_out(output))

    def scorings() -> Iterator[RecordedScoring]:
        for place, scoring in readable_scorings(found, plan.scoring, plan.sets, plan.agent, leave_out):
            places.append(place)
            yield scoring

    def show(scoring: RecordedScoring) -> None:
        take(_read(scoring, places.popleft(), [], 0))

    score_all(scorings(), settings, show, on_event, asks_judge=True, verdicts=verdicts)


def _scored(plan: TrialPlan, place: Place | BrokenOff) -> ReadCall:
    if isinstance(place, BrokenOff):
        return ReadCall(None, (place.sentences,), is_read=False, is_call=False)
    events = 0

    def on_event() -> None:
        nonlocal events
        events += 1

    try:
        scoring, sentences = scoring_of(read_call(place), plan.scoring, plan.sets, plan.agent)
        deque(scoring.run(on_event), maxlen=0)  # nothing is asked
    except RecordingError as error:
        return _left_out(unread(error))
    return _read(scoring, place_text(place), sentences, events)


def _read(scoring: RecordedScoring, place: str, sentences: Sequence[str], events: int) -> ReadCall:
    call = scoring.call.conversation_id
    trial = CallFold(scoring.records).trial(call, place)
    return ReadCall(trial, (*sentences, *about_refused(call, scoring.refused)), events)


def _left_out(output: CallOutput) -> ReadCall:
    return ReadCall(None, output.sentences, is_read=output.is_read, is_call=False)
