"""The command `history`: past calls, found by what happened in them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamer.cli.options import (
    SINCE_HELP,
    AgentOption,
    BootstrapOption,
    ConfigOption,
    CsvOption,
    FolderOption,
    GoalsOption,
    JsonOption,
    JudgeOption,
    JudgeSwitch,
    ParquetOption,
    PathsArgument,
    PrefixOption,
    ProcessesOption,
    RowsOption,
    TableRows,
    VerdictsOption,
    require_judge,
    wants_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from consumers.history.search import Condition, HistoryStore
    from schemas.annotations import Annotation
    from streamer.history.importing import Imported
    from streamer.offline.call_work import Done
    from streamer.settings.all_settings import Settings

app = typer.Typer(add_completion=False, no_args_is_help=True)

WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="A column, a comparison and a value; several must all hold.",
    ),
]


@app.callback()
def history() -> None:
    """Finds past calls by what happened in them.

    The role `history` keeps them. It runs with `callgauge run` when `history.folder` is set, writes
    a file for each day, with every row of every call, its words and its transcript, and deletes a
    file after `history.retention_days`.

    Example:
        callgauge history find --since 7d --where "p95_ms > 3000"
    """


@app.command()
def find(
    *,
    since: Annotated[str, typer.Option(metavar="WHEN", help=SINCE_HELP)] = "24h",
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Calls that began before then.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Calls of this agent.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Calls of this tenant.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="NAME", help="Calls of this environment.")
    ] = None,
    where: WhereOption = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="LABEL", help="Calls that people gave this label."),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(
            "--text", metavar="WORDS", help="Calls in which all of these words were said."
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="The highest value of it comes first; rank: the worst call.",
        ),
    ] = "rank",
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=1, max=10_000, help="Most calls to print.")
    ] = 50,
    folder: FolderOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    parquet: ParquetOption = None,
    kind: RowsOption = TableRows.CALLS,
    config: ConfigOption = None,
) -> None:
    """Finds past calls and prints a row for each, the worst first.

    A condition is a column, a comparison and a value, as in "p95_ms > 3000", "failed_tools ~
    payment" (contains) or "goals.progress.success = 0". A call whose value is unknown meets no
    condition. docs/tables.md lists the columns.

    --json has what people say of each call, and --csv their labels. Nothing is changed, and no
    broker is needed.

    Examples:
        callgauge history find --since 7d --agent desk --where "p95_ms > 3000"
        callgauge history find --where "failed_tools ~ payment" --text refund
        callgauge history find --since 30d --most 10000 --csv > calls.csv
        callgauge history find --where "success = 0" --rows turns --parquet turns.parquet
    """
    from consumers.history.search import MAX_ROWS, CallSearch, require_column
    from consumers.runtime.process import wall_clock_ms
    from streamer.history.finding import calls_table, said_of, where_others_are
    from streamer.terminal import output_console, print_document, print_line, say
    from streamer.time_bounds import moment_given

    is_table = wants_table(as_csv, parquet, as_json)
    if is_table:  # loading it takes as long as finding calls
        from schemas.columns import CALL_COLUMNS, OWN_COLUMNS, TURN_COLUMNS
        from streamer.tables import LABELS_COLUMN, own_rows, print_table, require_parquet, turn_rows
    if parquet is not None:
        require_parquet(parquet)
    require_column(sort, "--sort")
    question = CallSearch(
        since_ms=moment_given(since),
        until_ms=wall_clock_ms() + 1 if until is None else moment_given(until),
        conditions=_conditions(where, agent=agent, tenant=tenant, environment=environment),
        words=(words or "").split(),
        order_by=sort,
        most=most,
    )
    with _opened(folder, config) as store:
        if label is not None:
            ids = store.labelled(label)
            if len(ids) == MAX_ROWS:
                say(
                    f"Of the calls labelled {label}, the {MAX_ROWS} with the newest labels are "
                    "looked at."
                )
            question = question._replace(ids=ids)
        rows = store.find(question)
        names = [str(row["conversation_id"]) for row in rows]
        people = store.annotations_of(names)
        quotes = said_of(store, names, words) if words and not (is_table or as_json) else {}
        others = "" if rows else where_others_are(store, question)
        if is_table and kind is not TableRows.CALLS:
            calls = [
                call
                for row in rows
                if (call := store.call(str(row["conversation_id"]))) is not None
            ]
            if kind is TableRows.TURNS:
                print_table(
                    TURN_COLUMNS,
                    (turn for call in calls for turn in turn_rows(call.turns)),
                    parquet,
                )
            else:
                print_table(
                    OWN_COLUMNS, (value for call in calls for value in own_rows(call.own)), parquet
                )
    labels = {
        name: " ".join(sorted({each.label for each in said if each.label}))
        for name, said in people.items()
    }
    if as_json:
        print_document(
            [
                row | {"annotations": _said(people.get(str(row["conversation_id"]), ()))}
                for row in rows
            ]
        )
    elif is_table:
        if kind is TableRows.CALLS:
            table = ([*row.values(), labels.get(str(row["conversation_id"]))] for row in rows)
            print_table((*CALL_COLUMNS, LABELS_COLUMN), table, parquet)
    elif rows:
        output_console().print(calls_table(rows, labels, output_console().width))
        for name, (turn, who, text) in quotes.items():
            print_line(f"{name}, turn {turn}, {who}: {text}")
    if not as_json and len(rows) == most:
        say(f"These are the first {most}, by {sort}; --most shows more.")
    elif not rows:
        say(f"No call in {store.place} is like that.{others}")


@app.command()
def compare(
    *,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="DAY",
            help="A day in UTC, 2026-11-20, or a range, 2026-11-13..2026-11-20.",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="DAY", help="The day or range to compare with it."),
    ] = None,
    a: Annotated[
        str | None,
        typer.Option(
            "--a", metavar="CALLS", help='The calls of one side: "agent=desk, version=1".'
        ),
    ] = None,
    b: Annotated[
        str | None, typer.Option("--b", metavar="CALLS", help="Those of the other side.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="COLUMNS",
            help="version alone: the two newest versions of each agent. With days, compare the "
            "calls of each agent, or of each "
            "agent,version.",
        ),
    ] = None,
    where: WhereOption = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Compares two versions, any two lots of calls, or the calls of two days: what changed, and
    whether that is more than chance.

    --by version compares the newest version of each agent with the one before it; --a and --b any
    two lots, by agent, version, tenant, environment, since and until (30 days if nothing is said).
    A sentence says whether B is better; then each measure has its change, what can be said of it,
    or how many more calls are needed, and each subgoal the calls of B that came out otherwise than
    most of A.

    A measure is the mean of a column over the calls that are over and whose value is known. Its
    change has a 95 % interval, the same each time for the same calls (of shares Newcombe's,
    otherwise a bootstrap of 5 calls or more); it is more than chance if the interval does not
    contain 0.

    With --before and --after, --by splits the calls: agent, version, tenant, environment,
    labels.pipeline_type, code_version (that of the evaluator), goals.goal_set or close_reason, or
    several of them. A group that only one period has shows its figures without a change.

    Nothing is changed, and no broker is needed.

    Examples:
        callgauge history compare --by version
        callgauge history compare --a "agent=desk, version=1" --b "agent=desk, version=2"
        callgauge history compare --before 2026-11-20 --after 2026-11-21 --by agent,version
        callgauge history compare --before 14d..7d --after 7d..0d --where "labels.agent = desk"
    """
    from streamer.history.comparison import (
        ComparedPeriod,
        groups_given,
        lot_given,
        print_lots,
        print_periods,
    )

    periods = [ComparedPeriod.parse(each) for each in (before, after) if each is not None]
    lots = [lot_given(each) for each in (a, b) if each is not None]
    columns = groups_given(by)
    is_by_version = columns == ("labels.version",) and not periods
    if (
        len(periods) == 1
        or len(lots) == 1
        or bool(periods) + bool(lots) + is_by_version != 1
        or (lots and by)
    ):
        raise typer.BadParameter(
            "Say what to compare: --by version, or both --a and --b, or both --before and --after, "
            "which take --by, too."
        )
    with _opened(folder, config) as store:
        if periods:
            print_periods(
                store, periods[0], periods[1], columns, _conditions(where), as_json=as_json
            )
        else:
            print_lots(store, lots, _conditions(where), as_json=as_json)


@app.command()
def agreement(
    *,
    yes: Annotated[
        str, typer.Option("--yes", metavar="LABEL", help="The label with which people say yes.")
    ],
    no: Annotated[
        str, typer.Option("--no", metavar="LABEL", help="The label with which people say no.")
    ],
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            metavar="CONDITION",
            help="The judge says yes where this holds, and no where not.",
        ),
    ] = "goals.progress.success = 1",
    since: Annotated[str, typer.Option(metavar="WHEN", help=SINCE_HELP)] = "30d",
    where: WhereOption = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Compares labels of people with what a judge says of the same calls.

    It prints how often both say the same, Cohen's kappa, which is 0 where that is no more than
    chance, and how many calls there are of each kind. A call without a label of people is not
    compared, nor one whose value is unknown, or that people gave both labels.

    Nothing is changed, and no broker is needed.

    Examples:
        callgauge history agreement --yes solved --no unsolved
        callgauge history agreement --yes annoying --no fine --judge "longest_wait_ms > 3000"
    """
    from consumers.history.search import CallSearch, Condition
    from consumers.runtime.process import wall_clock_ms
    from consumers.view.words import counted, percent
    from streamer.history.agreement import agreement as compared
    from streamer.history.agreement import agreement_json, agreement_table
    from streamer.terminal import output_console, print_document, print_line, say
    from streamer.time_bounds import moment_given

    question = CallSearch(moment_given(since), wall_clock_ms() + 1, _conditions(where))
    with _opened(folder, config) as store:
        found = compared(store, question, yes, no, Condition.parse(judge))
    if as_json:
        print_document(agreement_json(found))
        return
    if found.share is not None:
        kappa = (
            f"unknown, because {found.why_no_kappa}"
            if found.kappa is None
            else f"{found.kappa:.2f}"
        )
        print_line(
            f"People and judge agree on {percent(found.share)} of {counted(found.calls, 'call')}; "
            f"kappa is {kappa}."
        )
    output_console().print(agreement_table(found, yes, no))
    for name in found.different:
        print_line(f"  they differ on {name}")
    if found.disputed:
        say(f"{counted(found.disputed, 'call')} left out: people gave both labels.")
    if found.share is None:
        say(f"Agreement is unknown: {found.why_no_kappa}.")


@app.command()
def forget(
    *,
    conversation: Annotated[
        list[str] | None,
        typer.Option(
            "--conversation", metavar="ID", help="A call, by its whole id; may be repeated."
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", help="All calls of a tenant that began before now."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before calls are deleted.")
    ] = False,
    without_topics: Annotated[
        bool,
        typer.Option(
            "--without-topics",
            help="Delete in the folder alone, for one that no role fills from topics.",
        ),
    ] = False,
    folder: FolderOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Deletes calls on request: from the files of history, and from what it reads later.

    The topic annotations gets a record that says so. Every history obeys it, also one that is
    rebuilt from the topics. If history.folder or --folder is there, the command returns when the
    calls are in no file of it any more: neither in a table nor in the index of words nor in freed
    space.

    What Kafka has of the calls, rows of words too, stays in its topics until their retention ends:
    single calls cannot be deleted there. Backups of the folder stay as they are.

    With the --folder of `callgauge serve`, which may run, a call that has closed leaves its log of
    events, too. One that is still open leaves the history immediately, and the log when it closes.

    Examples:
        callgauge history forget --conversation call-9f2c41
        callgauge history forget --tenant acme --yes
        callgauge history forget --conversation call-9f2c41 --folder calls
    """
    import asyncio

    from consumers.runtime.process import wall_clock_ms
    from consumers.view.words import counted
    from streamer.history.people import (
        Forgetting,
        calls_in,
        forget_in,
        left_in_topics,
        publish,
        require_consent,
    )
    from streamer.served_folder import is_served
    from streamer.settings.listing import settings_from
    from streamer.terminal import quiet_libraries, say

    what = Forgetting(tuple(conversation or ()), tenant, wall_clock_ms())
    what.require_fitting()
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if folder is not None and is_served(folder.parent):
        raise typer.BadParameter(
            f"{folder} is the history of `callgauge serve`, whose log has the events of the calls, "
            f"too: give --folder {folder.parent}."
        )
    if folder is not None and is_served(folder):
        from streamer.served_writes import forget_in_folder

        require_consent(what.in_words, is_agreed=yes)
        done = forget_in_folder(settings, folder, what)
        say(f"{counted(done.calls, 'call')} deleted from the history and the log in {folder}.")
        _tell_none_found(done.calls, what.conversations)
        for name in done.open:
            say(
                f"Call {name} is still open: nothing more of it is kept, and its events leave the "
                "log when it closes."
            )
        _tell_set_aside(_folder(folder, settings))
        return
    there = _folder(folder, settings) if folder or without_topics else settings.history.folder
    if there is not None and not there.is_dir() and not without_topics:  # it is on another machine
        there = None
    require_consent(what.in_words, is_agreed=yes)
    # a role that is told may be quicker than a look afterwards
    deleted = 0 if there is None else calls_in(there, what)
    if not without_topics:
        with quiet_libraries():
            asyncio.run(publish(settings.kafka, what.records()))
        say(f"The topic annotations says that {what.in_words} are to be forgotten.")
        say(left_in_topics())
    if there is None:
        say(
            "There is no folder of history here: the role that has one deletes them when it reads "
            "that."
        )
        return
    forget_in(there, what, waits=not without_topics)
    say(f"{counted(deleted, 'call')} deleted from {there}.")
    _tell_none_found(deleted, what.conversations)
    _tell_set_aside(there)


def _tell_none_found(deleted: int, conversations: "Sequence[str]") -> None:
    # no error: a deletion may be asked for again
    from streamer.terminal import say

    if conversations and not deleted:
        say("No call here has such an id. The whole id is needed: the page of a call copies it.")


def _tell_set_aside(folder: Path) -> None:
    from streamer.terminal import say

    for aside in sorted(folder.glob("*.broken-*")):
        say(f"{aside} was set aside as damaged and may still have them: delete it.")


@app.command("import")
def import_calls(
    paths: PathsArgument,
    *,
    goals: GoalsOption = None,
    judge: JudgeOption = JudgeSwitch.OFF,
    verdicts: VerdictsOption = None,
    agent: AgentOption = None,
    processes: ProcessesOption = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace calls that history has; without it they stay as they are."
        ),
    ] = False,
    folder: FolderOption = None,
    config: ConfigOption = None,
) -> None:
    """Brings recorded calls into history.

    The calls go through the evaluator's engine, as with `callgauge score`, and history gets the
    rows that the role `history` would have made of them, each in the file of the day of its first
    event. A call that cannot be read is named and left out, and the exit code is 1.

    One process writes the folder: stop the role `history` first, or give a folder of its own. When
    the role writes there next, it deletes the days that are older than `history.retention_days`. No
    broker is needed.

    Examples:
        callgauge history import output/my-run --folder history
        callgauge history import calls.jsonl.gz --goals goals/ --replace
    """
    from consumers.history.settings import MAX_RETENTION_DAYS
    from consumers.history.sqlite import SqliteHistory
    from consumers.view.words import counted
    from streamer.history.importing import Importing, imported
    from streamer.offline.call_work import found_calls, places_of, reading, score_each, total_of
    from streamer.offline.scoring import plan_from
    from streamer.recordings.reader import goals_for
    from streamer.settings.listing import settings_from
    from streamer.terminal import say

    require_judge(verdicts, judge)
    settings = settings_from(config)
    there = _folder(folder, settings)
    sets = goals_for(paths, goals)
    plan = plan_from(
        settings,
        sets,
        agent,
        asks_judge=judge is JudgeSwitch.ON,
        writes_transcripts=settings.history.words,
    )
    found = found_calls(paths)
    # Old calls are deleted by the role, which knows the newest day, and not by each other.
    store = SqliteHistory(
        there, writes=True, keeps_words=settings.history.words, retention_days=MAX_RETENTION_DAYS
    )
    try:
        importing = Importing(store, replaces=replace)
        with reading(total_of(found), stopped="the calls before it are in history") as read:

            def collect(done: "Done[Imported]") -> None:
                read.add(done)
                if done.result is not None and done.result[0]:
                    importing.add(done.result)

            try:
                score_each(
                    places_of(found),
                    plan,
                    imported,
                    collect,
                    settings,
                    read,
                    processes=processes,
                    verdicts=verdicts,
                )
            finally:
                importing.flush()
    finally:
        store.close()
    told = [f"{counted(importing.written, 'call')} brought into {there}"]
    if importing.forgotten:
        told.append(f"{importing.forgotten} left out, because they were deleted on request")
    if importing.there:
        told.append(f"{importing.there} that it had already stay as they are")
    say(f"{'; '.join(told)}.")
    read.require_all("imported")


def _folder(folder: Path | None, settings: "Settings") -> Path:
    from consumers.history.sqlite import HistoryFolderError
    from streamer.served_folder import history_of

    if (there := history_of(folder, settings) if folder else settings.history.folder) is None:
        raise HistoryFolderError(
            "History: there is no folder. Set history.folder to that of the role `history`, or "
            "give it with --folder."
        )
    return there


def _opened(folder: Path | None, config: Path | None) -> "AbstractContextManager[HistoryStore]":
    """Opens history to read it: the folder that is given, or what the settings say."""
    from consumers.history.opening import opened
    from streamer.served_folder import history_in
    from streamer.settings.listing import settings_from

    return opened(history_in(folder, settings_from(config)))


def _conditions(where: "Sequence[str] | None", **labels: str | None) -> "list[Condition]":
    from consumers.history.search import Condition

    return [
        *(
            Condition(f"labels.{name}", "=", value)
            for name, value in labels.items()
            if value is not None
        ),
        *(Condition.parse(text) for text in where or ()),
    ]


def _said(annotations: "Sequence[Annotation]") -> list[dict[str, Any]]:
    return [
        each.model_dump(mode="json", include={"by", "at_ms", "label", "note"})
        for each in annotations
    ]
