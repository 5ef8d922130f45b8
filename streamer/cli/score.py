"""The command `score`: recorded calls through the live engine, and what it would have written to `scores`."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from streamer.cli.options import AgentOption, ArrivalOption, ConfigOption, PathsArgument, settings_from, with_example
from streamer.offline.eva_results import eva_metrics_of
from streamer.offline.scored_recordings import JudgeSwitch, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.offline.screen import reading_progress, tell_refused
from streamer.recordings.goals import read_recorded_goals
from streamer.version import installed_version

SCORE_HELP: Final = with_example(
    "Score recorded calls as the evaluator scores live ones, and print the score records as lines of JSON: what holds at "
    "the end of each call, the newest record of each score, or with --all every record as it would have been written.\n\n"
    "No broker is needed. Time is the events' own, and silence passes with it. Limits that would cut a recording off do not "
    "apply; the other settings do. "
    "Without --goals there is no progress. Subgoals for a judge are unscored (judge_disabled) unless the judge is on; it "
    "sends what was said to the endpoint of the settings, and costs money there, at most what its budgets allow.\n\n"
    'With --format eva the lines are EVA\'s own results, one per call: {"id": ..., "metrics": {...}}, of its metrics that '
    "need no judge, with its zeros for what cannot be known.",
    "callgauge score records/1.1.2 --goals airline_dataset.jsonl > scores.jsonl",
    "callgauge score calls.jsonl.gz --goals goals/ --all",
    "callgauge score calls.jsonl.gz --format eva > metrics.jsonl",
    "OPENAI_API_KEY=... callgauge score records/1.1.2 --goals airline_dataset.jsonl --judge on",
)


class ScoreFormat(StrEnum):
    """What is printed."""

    RECORDS = "records"
    EVA = "eva"


def score(
    paths: PathsArgument,
    *,
    output: Annotated[
        ScoreFormat, typer.Option("--format", help="Score records, or EVA's results in its own encoding.")
    ] = ScoreFormat.RECORDS,
    goals: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Goal sets, a file or a folder. A call has the one it names, that with its id, its agent's, or the only one.",
        ),
    ] = None,
    judge: Annotated[JudgeSwitch, typer.Option(help="Whether a model judges what code cannot.")] = JudgeSwitch.OFF,
    all_records: Annotated[
        bool,
        typer.Option("--all", help="Every record as it would have been written, not only the newest of each score."),
    ] = False,
    arrival: ArrivalOption = None,
    agent: AgentOption = None,
    config: ConfigOption = None,
) -> None:
    if output is ScoreFormat.EVA:
        if goals is not None or judge is JudgeSwitch.ON or all_records or agent is not None:
            raise typer.BadParameter("EVA's results have no goals, no judge and no agent: leave those options out.")
        _print_eva_metrics(paths, arrival)
        return
    settings = settings_from(config)
    rules = settings.goals.rules(settings.judge, has_judge=False)
    rules = rules.model_copy(update={"asks_judge": judge is JudgeSwitch.ON})
    plan = ScoringPlan(settings.limits, rules, installed_version(), arrival, redaction=settings.redaction)
    sets = None if goals is None else read_recorded_goals(goals)
    with reading_progress() as progress:

        def show(scoring: RecordedScoring) -> None:
            progress.calls += 1
            for record in scoring.records if all_records else scoring.final_records():
                sys.stdout.write(record.model_dump_json() + "\n")
            tell_refused(scoring.call.conversation_id, scoring.refused)

        scorings = scorings_of(paths, plan, sets, agent)
        score_all(scorings, judge, settings, show, progress.event)
    sys.stdout.flush()


def _print_eva_metrics(paths: Sequence[Path], arrival_seed: int | None) -> None:
    with reading_progress() as progress:
        for call in eva_metrics_of(paths, arrival_seed=arrival_seed, on_event=progress.event):
            progress.calls += 1
            sys.stdout.write(json.dumps({"id": call.conversation_id, "metrics": call.metrics}) + "\n")
            tell_refused(call.conversation_id, call.refused)
    sys.stdout.flush()
