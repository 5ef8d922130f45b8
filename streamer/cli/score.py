"""The command `score`: recorded calls through the live engine, and the rows of each."""

import json
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamer.cli.options import (
    AgentOption,
    ArrivalOption,
    ConfigOption,
    CsvOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    ParquetOption,
    PathsArgument,
    ProcessesOption,
    RowsOption,
    TableRows,
    VerdictsOption,
    require_judge,
    wants_table,
)
from streamer.facts import Scorer

if TYPE_CHECKING:  # brought when the command runs
    from streamer.offline.call_work import Done, Found
    from streamer.offline.own_values import OwnMeasures
    from streamer.offline.scoring import RecordedScoring, ScoringPlan
    from streamer.recordings.files import RecordedCall
    from streamer.settings.all_settings import Settings
    from streamer.tables import Row

app = typer.Typer(add_completion=False)


class ScoreFormat(StrEnum):
    """The kinds of printed results."""

    ROWS = "rows"
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
            "--format",
            help="Rows, a table for people, or results in the encoding of EVA or agent-inspect.",
        ),
    ] = ScoreFormat.ROWS,
    as_csv: CsvOption = False,
    parquet: ParquetOption = None,
    rows: RowsOption = TableRows.CALLS,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    all_rows: Annotated[
        bool,
        typer.Option(
            "--all",
            help=(
                "Every row that the evaluator would write, not only the newest of each turn and "
                "call."
            ),
        ),
    ] = False,
    arrival: ArrivalOption = None,
    agent: AgentOption = None,
    processes: ProcessesOption = None,
    scorer: Annotated[
        list[Scorer] | None,
        typer.Option(
            metavar="NAME",
            help="A scorer of agent-inspect; may be repeated. Those that fit unless given.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of agent-inspect for traces without it; may be repeated.",
        ),
    ] = None,
    verdicts: VerdictsOption = None,
    config: ConfigOption = None,
) -> None:
    """Scores recorded calls and prints their rows.

    The calls go through the evaluator's engine. Each row, of a turn or of a call, is one line of
    JSON, as on the topic `scores`: the newest of each, or with --all every one. --format table says
    whether the calls were good, --format eva prints EVA's metrics, --format agent-inspect scores
    its traces; --judge on asks a model. No broker is needed.

    With --format table each call is one row: how long callers waited, which goals were reached, how
    it ended. Below it is what stands out, turn by turn. --csv and --parquet are tables for
    programs, with a row for each call or, with --rows turns, for each turn.

    Time is the time of the events, and silence lasts as long as in the recording. Limits that would
    cut a recording off do not apply; all other settings do.

    Without --goals there is no progress. Subgoals that need a judge are unscored (judge_disabled)
    unless --judge is on. The judge sends the texts of the call to the endpoint of the settings.
    That costs money, at most what the budgets of the settings allow. With --verdicts a run that was
    ended continues where it was.

    With --format eva each call gives one line of EVA's own results, {"id": ..., "metrics": {...}}.
    It has the metrics that need no judge; as in EVA, an unknown value is zero.

    With --format agent-inspect PATH holds traces of agent-inspect with their samples, one JSON
    object per line; --goals may name a file of samples. Each trace gives one line, {"id": ...,
    "metrics": {...}}.

    A whole run of EVA is one PATH. Many calls are read on all cores; the lines are in the order of
    the calls, and the same as from one core. With --judge on one process asks about some calls at a
    time, so that budgets and rates hold for all of them. A call that cannot be read is named and
    left out, and the exit code is 1.

    With measures.folder set, the values of your own measures follow the rows of a call, a row each.
    One process reads the calls then.

    Examples:
        callgauge score sample --format table
        callgauge score output/my-run > scores.jsonl
        callgauge score output/my-run --csv --rows turns > turns.csv
        callgauge score records/1.1.2 --goals airline_dataset.jsonl > scores.jsonl
        callgauge score calls.jsonl.gz --goals goals/ --all
        callgauge score calls.jsonl.gz --format eva > metrics.jsonl
        callgauge score traces.jsonl --format agent-inspect --judge on > results.jsonl
        OPENAI_API_KEY=... callgauge score records/1.1.2 --goals airline_dataset.jsonl --judge on
    """
    from streamer.offline.call_work import found_calls, places_of, reading, score_each, total_of
    from streamer.offline.own_values import OwnMeasures
    from streamer.offline.scoring import plan_from
    from streamer.recordings.reader import goals_for
    from streamer.settings.listing import settings_from

    require_judge(verdicts, judge)
    asks_judge = judge is JudgeSwitch.ON
    is_table = wants_table(as_csv, parquet, output is not ScoreFormat.ROWS, all_rows)
    if rows is not TableRows.CALLS and not is_table:
        raise typer.BadParameter("--rows chooses the lines of --csv or --parquet: add one of them.")
    if output is ScoreFormat.AGENT_INSPECT:
        if all_rows or arrival is not None or processes is not None:
            raise typer.BadParameter(
                "A trace has no events: leave out --all, --arrival and --processes."
            )
        from streamer.agent_inspect import options_in, score_traces

        try:
            options = options_in(option or ())
        except ValueError as error:
            raise typer.BadParameter(f"--option: {error}.") from error
        with reading(counted="questions") as read:
            score_traces(
                paths,
                goals,
                settings_from(config),
                read,
                scorers=scorer or (),
                options=options,
                asks_judge=asks_judge,
                verdicts=verdicts,
                agent=agent or "unknown",
            )
        read.require_all("read and printed")
        return
    if scorer or option:
        raise typer.BadParameter(
            "--scorer and --option are for --format agent-inspect: leave them out."
        )
    if output is ScoreFormat.EVA:
        if goals is not None or asks_judge or all_rows or agent is not None:
            raise typer.BadParameter(
                "EVA's results have no goals, no judge and no agent: leave those options out."
            )
        print_eva(paths, "metrics", arrival, processes)
        return
    if output is ScoreFormat.TABLE and all_rows:
        raise typer.BadParameter("A table has no single rows: leave --all out.")
    settings = settings_from(config)
    plan = plan_from(
        settings, goals_for(paths, goals), agent, asks_judge=asks_judge, arrival_seed=arrival
    )
    found = found_calls(paths)
    if output is ScoreFormat.TABLE:
        _print_table(found, plan, settings, verdicts)
        return
    if is_table:
        _write_rows(found, plan, settings, verdicts, rows, parquet, processes)
        return
    with reading(total_of(found)) as read:

        def show(done: "Done[str]") -> None:
            read.add(done, done.result or "")

        own = OwnMeasures(settings.measures)
        processes = 1 if own else processes  # the bounds of a measure are those of one process
        shape = partial(_lines, own, all_rows=all_rows)
        score_each(
            places_of(found),
            plan,
            shape,
            show,
            settings,
            read,
            processes=processes,
            verdicts=verdicts,
        )
    read.require_all("read and printed")


def _write_rows(
    found: "list[Found]",
    plan: "ScoringPlan",
    settings: "Settings",
    verdicts: Path | None,
    rows: TableRows,
    parquet: Path | None,
    processes: int | None,
) -> None:
    from schemas.columns import CALL_COLUMNS, OWN_COLUMNS, TURN_COLUMNS
    from streamer.offline.call_work import places_of, reading, score_each, total_of
    from streamer.offline.own_values import OwnMeasures
    from streamer.tables import table

    columns = {
        TableRows.CALLS: CALL_COLUMNS,
        TableRows.TURNS: TURN_COLUMNS,
        TableRows.OWN: OWN_COLUMNS,
    }[rows]
    with (
        table(columns, parquet) as put,
        reading(
            total_of(found), stopped=None if parquet is None else "no file was written"
        ) as read,
    ):

        def collect(done: "Done[list[Row]]") -> None:
            read.add(done, put(done.result or ()))

        own = OwnMeasures(settings.measures) if rows is TableRows.OWN else None
        # the bounds of a measure are those of one process
        processes = processes if own is None else 1
        shape = partial(_rows, rows, own)
        score_each(
            places_of(found),
            plan,
            shape,
            collect,
            settings,
            read,
            processes=processes,
            verdicts=verdicts,
        )
    read.require_all("read and written")


def _rows(rows: TableRows, own: "OwnMeasures | None", scoring: "RecordedScoring") -> "list[Row]":
    from streamer.tables import call_rows, own_rows, turn_rows

    if own is not None:
        return own_rows(own.of(scoring))
    return (turn_rows if rows is TableRows.TURNS else call_rows)(scoring.newest_rows())


def _lines(own: "OwnMeasures", scoring: "RecordedScoring", *, all_rows: bool) -> str:
    from schemas.rows import encode

    rows = [*(scoring.rows if all_rows else scoring.newest_rows()), *own.of(scoring)]
    return "".join(encode(row).decode() + "\n" for row in rows)


def _print_table(
    found: "list[Found]", plan: "ScoringPlan", settings: "Settings", verdicts: Path | None
) -> None:
    from consumers.engine.redaction.redactor import Redactor
    from streamer.offline.call_work import places_of, reading, score_each
    from streamer.summaries import (
        CallSummary,
        reported_call,
        standout_lines,
        summary_of,
        summary_table,
        unknown_lines,
    )
    from streamer.terminal import output_console, print_wrapped

    redactor = Redactor(settings.redaction)
    calls: list[CallSummary] = []
    with reading(stopped="no table was printed") as read:

        def collect(done: "Done[CallSummary]") -> None:
            read.add(done)
            if done.result is not None:
                calls.append(done.result)

        score_each(
            places_of(found),
            plan,
            lambda scoring: summary_of(reported_call(scoring, "", redactor)),
            collect,
            settings,
            read,
            verdicts=verdicts,
        )
    if calls or not read.unread:
        console = output_console()
        console.print(summary_table(calls, console.width))
        for line in (*unknown_lines(calls), "", *standout_lines(calls)):
            print_wrapped(line)
    read.require_all()


def print_eva(paths: Sequence[Path], name: str, arrival: int | None, processes: int | None) -> None:
    """Prints what EVA would have of each call, `context` or `metrics`, as a line of JSON.

    Raises:
        RecordingError: There is no recorded call at one of the paths; nothing was read.
        Exit: Calls could not be read, or a signal ended it.
    """
    from streamer.offline.call_work import each_call, found_calls, places_of, reading, total_of

    found = found_calls(paths)
    with reading(total_of(found)) as read:
        for done in each_call(places_of(found), partial(_eva, name, arrival), processes):
            read.add(done, done.result or "")
    read.require_all("read and printed")


def _eva(name: str, arrival: int | None, recorded: "RecordedCall") -> tuple[str, list[str]]:
    from streamer.offline.contexts import about_refused, context_of, eva_metrics_of
    from streamer.recordings.eva_needs import miss_sentences

    call = recorded.conversation_id
    line: dict[str, Any] = {"id": call}
    if name == "context":
        found = context_of(recorded, arrival)
        line["turns_by"] = found.turns_by
    else:
        found = eva_metrics_of(recorded, arrival)
    line[name] = found.values
    return json.dumps(line) + "\n", [
        *miss_sentences(recorded, wants_eva=name == "metrics"),
        *about_refused(call, found.refused),
    ]
