"""The command `trials`: repeated calls of each goal set, compared."""

from pathlib import Path
from typing import Annotated, Final

import typer

from streamer.cli.options import (
    PATHS_HELP,
    SINCE_HELP,
    AgentOption,
    BootstrapOption,
    ConfigOption,
    CsvOption,
    FolderOption,
    GoalsOption,
    JudgeOption,
    JudgeSwitch,
    ParquetOption,
    PrefixOption,
    ProcessesOption,
    VerdictsOption,
    require_judge,
    wants_table,
)

_SINCE: Final = "1d"
app = typer.Typer(add_completion=False)


@app.command()
def trials(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help=f"{PATHS_HELP} Files of rows, as `callgauge score` prints them, too.",
        ),
    ] = None,
    *,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k",
            metavar="N",
            min=1,
            help=(
                "k of pass@k and pass^k; may be repeated. 1, 3 and 5 unless given; the success is "
                "that of 1."
            ),
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help=(
                "Compare two lots call by call: each a PATH, a goal set's name or the beginning of "
                "its digest."
            ),
        ),
    ] = None,
    causes: Annotated[
        bool,
        typer.Option(
            "--causes",
            help=(
                "Why calls fail: their faults in groups, by a judge with --judge on, otherwise by "
                "subgoal, tool, turn and last words."
            ),
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of tables.")
    ] = False,
    as_csv: CsvOption = False,
    parquet: ParquetOption = None,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    verdicts: VerdictsOption = None,
    agent: AgentOption = None,
    processes: ProcessesOption = None,
    from_topics: Annotated[
        bool,
        typer.Option(
            "--from-topics", help="Compare past live calls, as the topic scores has them."
        ),
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Compare past calls of the history (history.folder); no broker is needed.",
        ),
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"{SINCE_HELP} {_SINCE} unless given.")
    ] = None,
    folder: FolderOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Compares repeated calls: pass@k, judges, errors.

    A trial is one call. Calls with the same goal set, and the same content of it, are compared
    with each other: how many succeed, how far they get, pass@k (how likely one of k calls succeeds) and
    pass^k (how likely all of k calls succeed).

    Judges agree as often as a vote of the judge says what the majority of its verdict says. A call
    whose success is unknown is a trial without a score: it counts in neither.

    Below the table are the errors: subgoals that are missed most, the turn in which calls stall
    (the first turn after their last progress), and tools that fail up to that turn; each with calls
    to look at.

    With --causes missed subgoals, tools that fail and bad endings are put into groups, each with
    the calls behind it. With --judge on a judge makes the groups, with a sentence for each: it
    reads what was said in the turns of the faults, redacted, and the most that it may cost is said
    before. --verdicts keeps its answers, so the same calls give the same groups and nothing is
    asked again.

    PATH holds recordings, which are scored as by `callgauge score`, or files of rows. With
    --from-topics, calls that closed since then are read from the topic scores in no consumer group,
    and console_url makes the links to their pages. With --history calls that began since then are
    read from the files of the role history, which keeps them longer than the topics. --folder names
    a folder of history, or of `callgauge serve`.

    With --compare two lots of calls stand side by side, as of two goal sets, prompts or versions of
    the agent: success, progress, each measure of a call and each of one's own (its mean in a call),
    its change with a 95 % interval (the same for the same trials, of five or more), and for the calls that
    both have, the subgoals that were won and lost, with the turn and, where recordings are
    compared, what was said and done in it.

    Exit code 1 when something could not be read or grouped, when k is above the number of trials,
    or when there is nothing to compare; the other results are printed all the same.

    --csv and --parquet have a row for each trial, instead of the comparison.

    Examples:
        callgauge trials output/my-run --goals goals/
        callgauge trials output/my-run --goals goals/ --judge on --k 1 --k 5 --json > trials.json
        callgauge trials monday.jsonl tuesday.jsonl
        callgauge trials output/my-run --goals goals/ --causes --judge on --verdicts answers.jsonl
        callgauge trials --compare before.jsonl after.jsonl
        callgauge trials --from-topics --since 2h
        callgauge trials --from-topics --csv > trials.csv
        callgauge trials --history --since 30d --folder calls
    """
    from streamer.settings.listing import settings_from
    from streamer.tables import TRIAL_COLUMNS, print_table, row_of
    from streamer.trials.calls import Trials
    from streamer.trials.comparison import (
        from_files,
        from_history,
        from_past_calls,
        print_comparison,
        print_versus,
        require_trials,
        say_left_out,
    )

    is_table = wants_table(as_csv, parquet, as_json, k, compare, causes)
    if parquet is not None:
        from streamer.tables import require_parquet

        require_parquet(parquet)
    is_scored, asks_judge = from_topics or history, judge is JudgeSwitch.ON
    if compare is not None and not is_scored:
        more = [Path(name) for name in compare if name and Path(name).exists()]
        paths = [
            *(paths or ()),
            *(path for path in dict.fromkeys(more) if path not in (paths or ())),
        ]
    source = "--history" if history else "--from-topics"
    for is_wrong, why in (
        (
            compare is not None and k,
            "--k is for trials of one goal set: leave it out, or leave --compare out.",
        ),
        (
            compare is not None and causes,
            "--causes is of trials that are not compared in two lots: leave it out, or leave "
            "--compare out.",
        ),
        (
            history and from_topics,
            "--history and --from-topics both say where the calls are: leave one of them out.",
        ),
        (
            folder is not None and not is_scored,
            "--folder has live calls: it is of use only with --from-topics or --history.",
        ),
        (
            is_scored and paths,
            f"{source} reads live calls: leave the paths out, or leave {source} out.",
        ),
        (
            not is_scored and not paths,
            "Name recordings or files of rows, or use --from-topics or --history.",
        ),
        (
            not from_topics and (bootstrap or topic_prefix or (since and not history)),
            "--since, --bootstrap and --topic-prefix are for --from-topics: leave them out.",
        ),
        (
            is_scored and (goals or agent or processes or (asks_judge and not causes)),
            "Live calls are scored already: leave out --goals, --agent and --processes, and "
            "--judge unless it is for --causes.",
        ),
    ):
        if is_wrong:
            raise typer.BadParameter(why)
    require_judge(verdicts, judge)
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    gathered = Trials()
    if history or folder is not None:
        from streamer.served_folder import history_in, served

        there = (
            history_in(folder, settings)
            if history or folder is None
            else served(settings, folder).history
        )
        unread = from_history(there, settings.console_url, since or _SINCE, gathered)
    elif from_topics:
        unread = from_past_calls(settings, since or _SINCE, gathered)
    else:
        unread = from_files(
            paths or [],
            settings,
            goals,
            verdicts,
            agent,
            processes,
            gathered,
            asks_judge=asks_judge,
            quotes=compare is not None or causes,
        )
    require_trials(gathered)
    is_complete = True
    if is_table:
        rows = (row_of(TRIAL_COLUMNS, trial) for trial in gathered.found)
        print_table(TRIAL_COLUMNS, rows, parquet)
    elif compare is not None:
        print_versus(gathered, compare, as_json=as_json)
    else:
        found = None
        if causes:
            # brings the judge, which most comparisons do not need
            from streamer.trials.causes import causes_of

            found = causes_of(gathered.found, settings, asks_judge=asks_judge, verdicts=verdicts)
        is_complete = print_comparison(gathered, k, found, as_json=as_json)
    say_left_out(gathered)
    if unread or not is_complete:
        raise typer.Exit(1)
