"""Prepares recorded calls for `callgauge replay`: as if they happened now."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamer.facts import ID_MARK
from streamer.recordings.eva import with_state
from streamer.recordings.eva_needs import miss_sentences
from streamer.recordings.files import RecordedCall, without_trial
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import (
    PlayedCall,
    in_time_order,
    renamed,
    seconds_to_now,
    shifted,
    with_control_events,
)
from streamer.terminal import say

MAX_ID_BYTES_KEPT = 200
"""Length of the part of a recorded id in the new one; the rest must fit into the
longest key too.
"""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """How recorded calls are played.

    Attributes:
        paths: Record directories, wire-level files and records of ElevenLabs agents, played in this
            order.
        speed: Factor against the recording; None is as fast as possible.
        run_name: Part of the new conversation ids of this run; None keeps the recorded ids.
        keeps_times: Whether the recorded times are kept instead of moved to the present.
        agent: Agent in each `call_started` that the recording lacks.
        goals: Goal set in those events; `ID_MARK` in it is replaced by the recorded id.
    """

    paths: tuple[Path, ...]
    speed: float | None
    run_name: str | None
    keeps_times: bool
    agent: str | None
    goals: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedAmount:
    """How much there is to play."""

    calls: int
    events: int


def amount_of(plan: ReplayPlan) -> RecordedAmount:
    """Reads everything once without playing it: a broken line is found before anything is sent.

    Raises:
        RecordingError: A path or a line cannot be read.
    """
    calls = events = 0
    for call in _recorded(plan.paths):
        calls += 1
        events += with_control_events(call).events
    return RecordedAmount(calls, events)


def calls_to_play(plan: ReplayPlan, now_ms: Callable[[], int]) -> Iterator[PlayedCall]:
    """The calls, each moved to the present at the moment when it is taken.

    Every call gets `call_started` and `call_ended` where its recording has none.

    Raises:
        RecordingError: A path or a line cannot be read.
    """
    for number, recorded in enumerate(_recorded(plan.paths), start=1):
        call = recorded
        if plan.run_name is not None:
            name = call.conversation_id.encode()[:MAX_ID_BYTES_KEPT].decode(errors="ignore")
            call = renamed(call, f"{name}-{plan.run_name}-{number}")
        if not plan.keeps_times:
            call = shifted(call, seconds_to_now(call, now_ms(), plan.speed))
        goals = goals_named(plan.goals, recorded.conversation_id)
        call = with_state(
            with_control_events(call, agent=plan.agent, environment="replay", goals=goals)
        )
        yield PlayedCall(call.conversation_id, tuple(in_time_order(call)))


def goals_named(goals: str | None, recorded_id: str) -> str | None:
    """The goal set of a call, with the recorded id in the place of `ID_MARK`; goals are for
    records, so it is without the trial.
    """
    return None if goals is None else goals.replace(ID_MARK, without_trial(recorded_id))


def _recorded(paths: Sequence[Path]) -> Iterator[RecordedCall]:
    for call in read_recordings(*paths):
        for sentence in miss_sentences(call):
            say(sentence)
        yield call
