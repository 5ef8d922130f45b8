"""The command `score`: recorded calls through the live engine, and the score records of each."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from consumers.engine.redaction.redactor import Redactor
from streamer.cli.options import (
    AgentOption,
    ArrivalOption,
    ConfigOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    PathsArgument,
    ProcessesOption,
)
from streamer.cli.printing import found_calls, print_calls, printed_calls
from streamer.cli.settings_options import settings_from
from streamer.offline.call_work import (
    BrokenOff,
    CallOutput,
    eva_work,
    places_of,
    score_lines,
    score_work,
    scoring_of,
    unread,
)
from streamer.offline.scored_recordings import plan_from, reported_call, score_all, scorings_of
from streamer.offline.scoring import RecordedScoring
from streamer.offline.screen import reading_progress, tell_refused
from streamer.recordings.goals import goals_for
from streamer.recordings.reader import RecordingError, read_call
from streamer.settings.all_settings import Settings
from streamer.terminal import output_console, safe, say

app = typer.Typer(add_completion=False)


class ScoreFormat(StrEnum):
    """The kinds of printed results."""

    RECORDS = "records"
    TABLE = "table"
    EVA = "eva"


@app.command()
def score(
    paths: PathsArgument,
    *,
    output: Annotated[
        ScoreFormat,
        typer.Option("--format", help="Score records, a table for people, or EVA's results in its own encoding."),
    ] = ScoreFormat.RECORDS,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    all_records: Annotated[
        bool,
        typer.Option("--all", help="Every record that the evaluator would write, not only the newest of each score."),
    ] = False,
    arrival: ArrivalOption = None,
    agent: AgentOption = None,
    processes: ProcessesOption = None,
    config: ConfigOption = None,
) -> None:
    """Scores recorded calls and prints the score records.

    The calls go through the evaluator's engine. Each record is one line of JSON. Without --all only the newest record of
    each score is printed: its value at the end of the call. No broker is needed.

    With --format table each call is one row: how long callers waited, which goals were reached, how it ended. Below it is
    what stands out, turn by turn.

    Time is the time of the events, and silence lasts as long as in the recording. Limits that would cut a recording off
    do not apply; all other settings do.

    Without --goals there are no progress records. Subgoals that need a judge are unscored (judge_disabled) unless
    --judge is on. The judge sends the texts of the call to the endpoint of the settings. That costs money, at most what
    the budgets of the settings allow.

    With --format eva each call gives one line of EVA's own results, {"id": ..., "metrics": {...}}. It has the metrics
    that need no judge; as in EVA, an unknown value is zero.

    A whole run of EVA is one PATH. Many calls are read on all cores; the lines are in the order of the calls, and the
    same as from one core. With --judge on one process asks about some calls at a time, so that budgets and rates hold for
    all of them. A call that cannot be read is named and left out, and the exit code is 1.

    Examples:
        callgauge score sample --format table
        callgauge score output/my-run > scores.jsonl
        callgauge score records/1.1.2 --goals airline_dataset.jsonl > scores.jsonl
        callgauge score calls.jsonl.gz --goals goals/ --all
        callgauge score calls.jsonl.gz --format eva > metrics.jsonl
        OPENAI_API_KEY=... callgauge score records/1.1.2 --goals airline_dataset.jsonl --judge on
    """
    if output is ScoreFormat.EVA:
        if goals is not None or judge is JudgeSwitch.ON or all_records or agent is not None:
            raise typer.BadParameter("EVA's results have no goals, no judge and no agent: leave those options out.")
        print_calls(paths, eva_work(arrival), processes)
        return
    settings = settings_from(config)
    asks_judge = judge is JudgeSwitch.ON
    plan = plan_from(settings, asks_judge=asks_judge, arrival_seed=arrival)
    sets = goals_for(paths, goals)
    if output is ScoreFormat.TABLE:
        if all_records:
            raise typer.BadParameter("A table has no single records: leave --all out.")
        _print_table(scorings_of(paths, plan, sets, agent), settings, asks_judge=asks_judge)
        return
    if not asks_judge:
        print_calls(paths, score_work(plan, sets, agent, all_records=all_records), processes)
        return
    # One process asks: its calls wait for the model, not for a core, and budgets and rates hold for all of them.
    found = found_calls(paths)
    with printed_calls(found) as printed:

        def show(scoring: RecordedScoring) -> None:
            text, sentences = score_lines(scoring, all_records=all_records)
            printed.add(CallOutput(text, tuple(sentences)))

        def scorings() -> Iterator[RecordedScoring]:
            for place in places_of(found):
                try:
                    if isinstance(place, BrokenOff):
                        printed.add(CallOutput("", (place.sentences,), is_read=False))
                        continue
                    scoring, sentences = scoring_of(read_call(place), plan, sets, agent)
                except RecordingError as error:
                    printed.add(unread(error))
                    continue
                for sentence in sentences:
                    say(sentence)
                yield scoring

        score_all(scorings(), settings, show, printed.event, asks_judge=True)


def _print_table(scorings: Iterator[RecordedScoring], settings: Settings, *, asks_judge: bool) -> None:
    from streamer.report.summary import CallSummary, standout_lines, summary_of, summary_table  # brings the report

    redactor = Redactor(settings.redaction)
    calls: list[CallSummary] = []
    with reading_progress() as progress:

        def take(scoring: RecordedScoring) -> None:
            progress.calls += 1
            calls.append(summary_of(reported_call(scoring, "", redactor)))
            tell_refused(scoring.call.conversation_id, scoring.refused)

        score_all(scorings, settings, take, progress.event, asks_judge=asks_judge)
    output_console().print(summary_table(calls))
    typer.echo()
    for line in standout_lines(calls):
        typer.echo(safe(line))
