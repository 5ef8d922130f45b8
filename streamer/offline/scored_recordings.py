"""Scores many recordings on all cores, and prints their records."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import typer

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import first_of
from streamer.agent_inspect.traces import option_in
from streamer.facts import installed_version
from streamer.offline.call_work import reading_progress, scoring_of, tell_refused
from streamer.offline.contexts import folded_recording
from streamer.offline.judge_in_process import JudgeInProcess
from streamer.offline.kept_verdicts import KeptVerdicts, keeping
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.reader import RecordedGoals, read_recordings
from streamer.report.calls import ReportedCall, heard_in
from streamer.report.drawing import Redacts
from streamer.settings.all_settings import Settings
from streamer.sources.replay import in_time_order
from streamer.terminal import output_console, print_line, say

# Scores recorded calls one after the other, or several side by side if a judge is asked: for `score` and `report`.

CALLS_AHEAD: Final = 4
"""Calls that are begun, or scored and not yet shown, for each call that may wait for the judge: a slow call in front must not
keep the others from asking. It bounds the memory."""


def plan_from(
    settings: Settings, *, asks_judge: bool, arrival_seed: int | None = None, writes_transcripts: bool = False
) -> ScoringPlan:
    """The plan of a command that scores recordings by these settings.

    Args:
        settings: Limits, goals and redaction of the evaluator.
        asks_judge: Whether a judge is asked, whatever the settings say.
        arrival_seed: Order in which events of different sources are read; None is by their times.
        writes_transcripts: Whether each call gets a transcript.
    """
    rules = settings.goals.rules(settings.judge, has_judge=False).model_copy(update={"asks_judge": asks_judge})
    return ScoringPlan(
        settings.limits, rules, installed_version(), arrival_seed, writes_transcripts, redaction=settings.redaction
    )


def score_all(
    scorings: Iterator[RecordedScoring],
    settings: Settings,
    show: Callable[[RecordedScoring], None],
    on_event: Callable[[], None],
    *,
    asks_judge: bool,
    verdicts: Path | None = None,
) -> None:
    """Scores the calls and shows each in the order of the recordings.

    Args:
        scorings: The calls before they are scored.
        settings: The judge with its limits and budgets.
        show: Called with each call that is scored.
        on_event: Called after each event.
        asks_judge: Whether a judge is asked.
        verdicts: File of kept verdicts; None keeps none.

    Raises:
        VerdictFileError: The file of verdicts cannot be used.
        NoJudgeError: A judge is asked, and a setting of it is missing.
        JudgeFailedError: The judge answers nothing.
    """
    if asks_judge:
        redact = Redactor(settings.redaction).redact
        configure_logging(settings.log_format, "warning", redact=redact)  # log lines of the judge are no results
        with keeping(verdicts, settings.judge) as kept:
            asyncio.run(_score_judged(scorings, settings, kept, show, on_event))
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
            scoring, sentences = scoring_of(recorded, plan, sets, agent)
            for sentence in sentences:
                say(sentence)
            yield scoring


def reported_call(scoring: RecordedScoring, anchor_id: str, redactor: Redacts) -> ReportedCall:
    """A call that was scored, with its words and sounds, as a report or a table shows it."""
    call = scoring.call
    folded, _ = folded_recording(call, None, None)
    heard = heard_in(folded, [event.time_ms for event in in_time_order(call)])
    return ReportedCall(call.conversation_id, heard, scoring.final_records(), anchor_id, redactor)


async def _score_judged(
    scorings: Iterator[RecordedScoring],
    settings: Settings,
    kept: KeptVerdicts | None,
    show: Callable[[RecordedScoring], None],
    on_event: Callable[[], None],
) -> None:
    """Scores many calls side by side, because each waits for the judge most of its time; shows them in their order."""
    judge = JudgeInProcess(settings.judge, redactor=Redactor(settings.redaction), kept=kept)
    # Each call asks about one turn at a time, so fewer would leave places of the judge empty.
    most_waiting = settings.judge.max_concurrent_requests
    places = asyncio.Semaphore(most_waiting)

    async def work() -> None:
        begun: deque[asyncio.Task[RecordedScoring]] = deque()
        try:
            for scoring in scorings:
                await places.acquire()
                task = asyncio.create_task(_judged(scoring, judge, on_event))
                task.add_done_callback(lambda _: places.release())
                begun.append(task)
                await asyncio.sleep(0)  # its first questions leave before the next call is read
                while begun and (begun[0].done() or len(begun) == most_waiting * CALLS_AHEAD):
                    show(await begun[0])
                    begun.popleft()
            while begun:
                show(await begun[0])
                begun.popleft()
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
        verdicts = await asyncio.gather(*map(judge.answer_whatever_the_rate, requests))
        try:
            requests = asking.send(verdicts)
        except StopIteration:
            requests = None
    return scoring


# The work of the command `score`: options of scorers, and the table of scores.


def print_table(
    scorings: Iterator[RecordedScoring], settings: Settings, verdicts: Path | None, *, asks_judge: bool
) -> None:
    """Scores the calls, and prints a table of them in place of their records."""
    from streamer.report.page import CallSummary, standout_lines, summary_of, summary_table  # brings the report

    redactor = Redactor(settings.redaction)
    calls: list[CallSummary] = []
    with reading_progress() as progress:

        def take(scoring: RecordedScoring) -> None:
            progress.calls += 1
            calls.append(summary_of(reported_call(scoring, "", redactor)))
            tell_refused(scoring.call.conversation_id, scoring.refused)

        score_all(scorings, settings, take, progress.event, asks_judge=asks_judge, verdicts=verdicts)
    output_console().print(summary_table(calls))
    print_line()
    for line in standout_lines(calls):
        print_line(line)


def options_in(given: Sequence[str]) -> dict[str, object]:
    """The options of scorers, by name.

    Raises:
        BadParameter: One of them does not exist, or has no such value.
    """
    try:
        return dict(map(option_in, given))
    except ValueError as error:
        raise typer.BadParameter(f"--option: {error}.") from error
