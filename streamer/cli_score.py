"""The command `score`: recorded calls through the live engine, and what it would have written to `scores`."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from consumers.judge.settings import JudgeSettings
from consumers.runtime.stopping import first_of
from streamer.cli_options import ConfigOption, PathsArgument, say, settings_from, with_example
from streamer.judge_in_process import JudgeInProcess
from streamer.offline_scores import RecordedScoring, ScoringPlan
from streamer.offline_screen import reading_progress, tell_refused
from streamer.playback import with_control_events
from streamer.recorded_goals import RecordedGoals, read_recorded_goals
from streamer.recordings import read_recordings
from streamer.version import installed_version

SCORE_HELP: Final = with_example(
    "Score recorded calls as the evaluator scores live ones, and print the score records as lines of JSON: what holds at "
    "the end of each call, or with --all every record as it would have been written.\n\nNo broker is needed. Time is the "
    "events' own, and silence passes with it. Limits that would cut a recording off do not apply; the other settings do. "
    "Without --goals there is no progress. Subgoals for a judge are unscored (judge_disabled) unless the judge is on; it "
    "sends what was said to the endpoint of the settings, and costs money there, at most what its budgets allow.",
    "callgauge score records/1.1.2 --goals airline_dataset.jsonl > scores.jsonl",
    "callgauge score calls.jsonl.gz --goals goals/ --all",
    "OPENAI_API_KEY=... callgauge score records/1.1.2 --goals airline_dataset.jsonl --judge on",
)
CALLS_AT_A_TIME: Final = 8
"""Calls that wait for the judge side by side; each asks about one turn at a time."""


class JudgeSwitch(StrEnum):
    """Whether a judge is asked."""

    OFF = "off"
    ON = "on"


def score(
    paths: PathsArgument,
    *,
    goals: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Goal sets, a file or a folder. A call has the one it names, that with its id, its agent's, or the only one.",
        ),
    ] = None,
    judge: Annotated[JudgeSwitch, typer.Option(help="Whether a model judges what code cannot.")] = JudgeSwitch.OFF,
    all_records: Annotated[
        bool, typer.Option("--all", help="Every record as it would have been written, not only what holds at the end.")
    ] = False,
    arrival: Annotated[
        int | None,
        typer.Option(
            "--arrival",
            metavar="SEED",
            help="Read the sources interleaved at random by this seed, each in its own order.",
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent name for calls whose recording has none.")] = None,
    config: ConfigOption = None,
) -> None:
    settings = settings_from(config)
    rules = settings.goals.rules(settings.judge, has_judge=False)
    rules = rules.model_copy(update={"asks_judge": judge is JudgeSwitch.ON})
    plan = ScoringPlan(settings.limits, rules, installed_version(), arrival)
    sets = None if goals is None else read_recorded_goals(goals)
    with reading_progress() as progress:

        def show(scoring: RecordedScoring) -> None:
            progress.calls += 1
            for record in scoring.records if all_records else scoring.final_records():
                sys.stdout.write(record.model_dump_json() + "\n")
            tell_refused(scoring.call.conversation_id, scoring.refused)

        scorings = _scorings(paths, plan, sets, agent)
        if judge is JudgeSwitch.ON:
            asyncio.run(_score_judged(scorings, settings.judge, show, progress.event))
        else:
            for scoring in scorings:
                deque(scoring.run(progress.event), maxlen=0)  # nothing is asked
                show(scoring)
    sys.stdout.flush()


def _scorings(
    paths: Sequence[Path], plan: ScoringPlan, sets: RecordedGoals | None, agent: str | None
) -> Iterator[RecordedScoring]:
    for path in paths:
        for recorded in read_recordings(path):
            call = with_control_events(recorded, agent=agent)
            goal_set = None if sets is None else sets.of(call)
            if sets is not None and goal_set is None:
                say(f"Call {call.conversation_id}: no goal set is for it, by name, id or agent. It has no progress.")
            yield RecordedScoring(call, plan, goal_set)


async def _score_judged(
    scorings: Iterator[RecordedScoring],
    settings: JudgeSettings,
    show: Callable[[RecordedScoring], None],
    on_event: Callable[[], None],
) -> None:
    """Scores some calls side by side, so that one waits for the judge while another is read; shows them in their order."""
    judge = JudgeInProcess(settings)

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
