"""The command `score`: recorded calls through the live engine, and the score records of each."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import (
    AgentOption,
    ArrivalOption,
    ConfigOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    PathsArgument,
)
from streamer.cli.settings import settings_from
from streamer.offline.eva_results import eva_metrics_of
from streamer.offline.scored_recordings import plan_from, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring
from streamer.offline.screen import reading_progress, tell_refused
from streamer.recordings.goals import read_recorded_goals

app = typer.Typer(add_completion=False)


class ScoreFormat(StrEnum):
    """The two kinds of printed lines."""

    RECORDS = "records"
    EVA = "eva"


@app.command()
def score(
    paths: PathsArgument,
    *,
    output: Annotated[
        ScoreFormat, typer.Option("--format", help="Score records, or EVA's results in its own encoding.")
    ] = ScoreFormat.RECORDS,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    all_records: Annotated[
        bool,
        typer.Option("--all", help="Every record that the evaluator would write, not only the newest of each score."),
    ] = False,
    arrival: ArrivalOption = None,
    agent: AgentOption = None,
    config: ConfigOption = None,
) -> None:
    """Scores recorded calls and prints the score records.

    The calls go through the evaluator's engine. Each record is one line of JSON. Without --all only the newest record of
    each score is printed: its value at the end of the call. No broker is needed.

    Time is the time of the events, and silence lasts as long as in the recording. Limits that would cut a recording off
    do not apply; all other settings do.

    Without --goals there are no progress records. Subgoals that need a judge are unscored (judge_disabled) unless
    --judge is on. The judge sends the texts of the call to the endpoint of the settings. That costs money, at most what
    the budgets of the settings allow.

    With --format eva each call gives one line of EVA's own results, {"id": ..., "metrics": {...}}. It has the metrics
    that need no judge; as in EVA, an unknown value is zero.

    Examples:
        callgauge score records/1.1.2 --goals airline_dataset.jsonl > scores.jsonl
        callgauge score calls.jsonl.gz --goals goals/ --all
        callgauge score calls.jsonl.gz --format eva > metrics.jsonl
        OPENAI_API_KEY=... callgauge score records/1.1.2 --goals airline_dataset.jsonl --judge on
    """
    if output is ScoreFormat.EVA:
        if goals is not None or judge is JudgeSwitch.ON or all_records or agent is not None:
            raise typer.BadParameter("EVA's results have no goals, no judge and no agent: leave those options out.")
        _print_eva_metrics(paths, arrival)
        return
    settings = settings_from(config)
    asks_judge = judge is JudgeSwitch.ON
    plan = plan_from(settings, asks_judge=asks_judge, arrival_seed=arrival)
    sets = None if goals is None else read_recorded_goals(goals)
    with reading_progress() as progress:

        def show(scoring: RecordedScoring) -> None:
            progress.calls += 1
            for record in scoring.records if all_records else scoring.final_records():
                sys.stdout.write(record.model_dump_json() + "\n")
            tell_refused(scoring.call.conversation_id, scoring.refused)

        scorings = scorings_of(paths, plan, sets, agent)
        score_all(scorings, settings, show, progress.event, asks_judge=asks_judge)
    sys.stdout.flush()


def _print_eva_metrics(paths: Sequence[Path], arrival_seed: int | None) -> None:
    with reading_progress() as progress:
        for call in eva_metrics_of(paths, arrival_seed=arrival_seed, on_event=progress.event):
            progress.calls += 1
            sys.stdout.write(json.dumps({"id": call.conversation_id, "metrics": call.metrics}) + "\n")
            tell_refused(call.conversation_id, call.refused)
    sys.stdout.flush()
