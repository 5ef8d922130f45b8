"""Recorded calls scored one after the other, or some side by side while a judge thinks: for `score` and `report`."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.stopping import first_of
from streamer.offline.judge_in_process import JudgeInProcess
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.eva_state import with_state
from streamer.recordings.goals import RecordedGoals
from streamer.recordings.reader import read_recordings
from streamer.settings.all_settings import Settings
from streamer.sources.replay.playback import with_control_events
from streamer.terminal import say

CALLS_AT_A_TIME: Final = 8
"""Calls that wait for the judge side by side; each asks about one turn at a time."""


class JudgeSwitch(StrEnum):
    """Whether a judge is asked."""

    OFF = "off"
    ON = "on"


def score_all(
    scorings: Iterator[RecordedScoring],
    judge: JudgeSwitch,
    settings: Settings,
    show: Callable[[RecordedScoring], None],
    on_event: Callable[[], None],
) -> None:
    """Scores the calls and shows each in the order of the recordings; a judge is asked only if it is on.

    Raises:
        NoJudgeError: It is on and cannot be asked.
        JudgeFailedError: It answers nothing.
    """
    if judge is JudgeSwitch.ON:
        redact = Redactor(settings.redaction).redact
        configure_logging(settings.log_format, "warning", redact=redact)  # what the judge tells is no result
        asyncio.run(_score_judged(scorings, settings, show, on_event))
        return
    for scoring in scorings:
        deque(scoring.run(on_event), maxlen=0)  # nothing is asked
        show(scoring)


def scorings_of(
    paths: Sequence[Path], plan: ScoringPlan, sets: RecordedGoals | None, agent: str | None
) -> Iterator[RecordedScoring]:
    """Each recorded call with the goals that are for it, before it is scored; says of which calls there are none.

    Raises:
        RecordingError: A path or a line cannot be read.
    """
    for path in paths:
        for recorded in read_recordings(path):
            call = with_state(with_control_events(recorded, agent=agent))
            goal_set = None if sets is None else sets.of(call)
            if sets is not None and goal_set is None:
                say(f"Call {call.conversation_id}: no goal set is for it, by name, id or agent. It has no progress.")
            yield RecordedScoring(call, plan, goal_set)


async def _score_judged(
    scorings: Iterator[RecordedScoring],
    settings: Settings,
    show: Callable[[RecordedScoring], None],
    on_event: Callable[[], None],
) -> None:
    """Scores some calls side by side, so that one waits for the judge while another is read; shows them in their order."""
    judge = JudgeInProcess(settings.judge, redactor=Redactor(settings.redaction))

    async def work() -> None:
        begun: deque[asyncio.Task[RecordedScoring]] = deque()
        try:
            for scoring in scorings:
                begun.append(asyncio.create_task(_judged(scoring, judge, on_event)))
                if len(begun) == CALLS_AT_A_TIME:
                    show(await begun.popleft())
            while begun:
                show(await begun.popleft())
        finally:
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            await judge.finish()

    await first_of(work(), judge.run())
    say(judge.summary())


async def _judged(scoring: RecordedScoring, judge: JudgeInProcess, on_event: Callable[[], None]) -> RecordedScoring:
    asking = scoring.run(on_event)
    requests = next(asking, None)
    while requests is not None:
        verdicts = await judge.answers(requests)
        try:
            requests = asking.send(verdicts)
        except StopIteration:
            requests = None
    return scoring
