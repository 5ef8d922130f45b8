"""The command `score`: recorded calls through the live engine, and the score records of each."""

from enum import StrEnum
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
    ProcessesOption,
    VerdictsOption,
    require_judge,
)
from streamer.facts import Scorer

app = typer.Typer(add_completion=False)


class ScoreFormat(StrEnum):
    """The kinds of printed results."""

    RECORDS = "records"
    TABLE = "table"
    EVA = "eva"
    AGENT_INSPECT = "agent-inspect"


@app.command()
def score(
    paths: PathsArgument,
    *,
    output: Annotated[
        ScoreFormat,
        typer.Option(
            "--format", help="Score records, a table for people, or results in the encoding of EVA or agent-inspect."
        ),
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
    scorer: Annotated[
        list[Scorer] | None,
        typer.Option(metavar="NAME", help="A scorer of agent-inspect; may be repeated. Those that fit unless given."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of agent-inspect for traces without it; may be repeated."),
    ] = None,
    verdicts: VerdictsOption = None,
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
    the budgets of the settings allow. With --verdicts a run that was ended goes on where it was.

    With --format eva each call gives one line of EVA's own results, {"id": ..., "metrics": {...}}. It has the metrics
    that need no judge; as in EVA, an unknown value is zero.

    With --format agent-inspect PATH holds traces of agent-inspect with their samples, one JSON object per line; --goals may
    name a file of samples. Each trace gives one line, {"id": ..., "metrics": {...}}.

    A whole run of EVA is one PATH. Many calls are read on all cores; the lines are in the order of the calls, and the
    same as from one core. With --judge on one process asks about some calls at a time, so that budgets and rates hold for
    all of them. A call that cannot be read is named and left out, and the exit code is 1.

    Examples:
        callgauge score sample --format table
        callgauge score output/my-run > scores.jsonl
        callgauge score records/1.1.2 --goals airline_dataset.jsonl > scores.jsonl
        callgauge score calls.jsonl.gz --goals goals/ --all
        callgauge score calls.jsonl.gz --format eva > metrics.jsonl
        callgauge score traces.jsonl --format agent-inspect --judge on --verdicts verdicts.jsonl > results.jsonl
        OPENAI_API_KEY=... callgauge score records/1.1.2 --goals airline_dataset.jsonl --judge on
    """
    from streamer.offline.call_work import (
        CallOutput,
        eva_work,
        found_calls,
        print_calls,
        printed_calls,
        readable_scorings,
        score_lines,
        score_work,
        total_of,
    )
    from streamer.offline.scored_recordings import options_in, plan_from, print_table, score_all, scorings_of
    from streamer.offline.scoring import RecordedScoring
    from streamer.recordings.reader import goals_for
    from streamer.settings.listing import settings_from

    require_judge(verdicts, judge)
    if output is ScoreFormat.AGENT_INSPECT:
        if all_records or arrival is not None or processes is not None:
            raise typer.BadParameter("A trace has no events: leave out --all, --arrival and --processes.")
        from streamer.agent_inspect.scoring import TracePlan, score_traces
        from streamer.agent_inspect.traces import TraceFiles

        files = TraceFiles(paths)
        trace_plan = TracePlan(
            settings_from(config), tuple(scorer or ()), judge is JudgeSwitch.ON, verdicts, agent or "unknown",
            options_in(option or ()),
        )  # fmt: skip
        with printed_calls(files.count(), "questions") as printed:
            score_traces(files, goals, trace_plan, printed.add, printed.event)
        return
    if scorer or option:
        raise typer.BadParameter("--scorer and --option are for --format agent-inspect: leave them out.")
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
        print_table(scorings_of(paths, plan, sets, agent), settings, verdicts, asks_judge=asks_judge)
        return
    if not asks_judge:
        print_calls(paths, score_work(plan, sets, agent, all_records=all_records), processes)
        return
    # One process asks: its calls wait for the model, not for a core, and budgets and rates hold for all of them.
    found = found_calls(paths)
    with printed_calls(total_of(found)) as printed:

        def show(scoring: RecordedScoring) -> None:
            text, sentences = score_lines(scoring, all_records=all_records)
            printed.add(CallOutput(text, tuple(sentences)))

        scorings = (scoring for _, scoring in readable_scorings(found, plan, sets, agent, printed.add))
        score_all(scorings, settings, show, printed.event, asks_judge=True, verdicts=verdicts)
