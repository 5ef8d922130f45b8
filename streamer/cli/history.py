"""The command `history`: past calls, found by what happened in them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from streamer.cli.options import SINCE_HELP, ConfigOption, JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from consumers.history.rows import Value

app = typer.Typer(add_completion=False, no_args_is_help=True)

SHOWN: Final = (
    "agent", "turns", "p50_ms", "p95_ms", "dead_airs", "failed_tools", "progress", "success", "conversation_id",
)  # fmt: skip
"""Columns of the table for people; programs get all of them."""


@app.callback()
def history() -> None:
    """Finds past calls by what happened in them.

    The role `history` keeps them. It runs with `callgauge run` when `history.folder` is set, writes a file for each day, with every
    score record of every call and its transcript, and deletes a file after `history.retention_days`.

    Example:
        callgauge history find --since 7d --where "p95_ms > 3000"
    """


@app.command()
def find(
    *,
    since: Annotated[str, typer.Option(metavar="WHEN", help=SINCE_HELP)] = "24h",
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Calls that began before then.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Calls of this agent.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Calls of this tenant.")] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="NAME", help="Calls of this environment.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="CONDITION", help="A column, a comparison and a value; several must all hold."),
    ] = None,
    words: Annotated[
        str | None, typer.Option("--text", metavar="WORDS", help="Calls in which all of these words were said.")
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help="The highest value of it comes first.")
    ] = "longest_wait_ms",
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, max=10_000, help="Most calls to print.")] = 50,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="The folder of history; otherwise history.folder.")
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all columns as a table for programs.")] = False,
    config: ConfigOption = None,
) -> None:
    """Finds past calls and prints a row for each, the worst first.

    A condition is a column, a comparison and a value, as in "p95_ms > 3000", "failed_tools ~ payment" (contains) or
    "success = 0". A call whose value is unknown meets no condition. docs/history.md lists the columns.

    Nothing is changed, and no broker is needed.

    Examples:
        callgauge history find --since 7d --agent desk --where "p95_ms > 3000"
        callgauge history find --where "failed_tools ~ payment" --text refund
        callgauge history find --since 30d --most 10000 --csv > calls.csv
    """
    from consumers.history.rows import COLUMN_NAMES
    from consumers.history.search import Condition, Question, QuestionError
    from consumers.history.sqlite import HistoryFolderError, SqliteHistory
    from consumers.runtime.process import wall_clock_ms
    from streamer.settings.listing import settings_from
    from streamer.terminal import output_console, print_document, print_line, say
    from streamer.time_bounds import moment_given

    there = folder or settings_from(config).history.folder
    if there is None:
        raise HistoryFolderError(
            "History: there is no folder. Set history.folder to that of the role `history`, or give it with --folder."
        )
    if sort not in COLUMN_NAMES:
        raise QuestionError(f"--sort {sort!r}: there is no such column. The columns are {', '.join(COLUMN_NAMES)}.")
    labels = {"agent": agent, "tenant": tenant, "environment": environment}
    question = Question(
        since_ms=moment_given(since),
        until_ms=wall_clock_ms() + 1 if until is None else moment_given(until),
        conditions=[
            *(Condition(column, "=", value) for column, value in labels.items() if value is not None),
            *(Condition.parse(text) for text in where or ()),
        ],
        words=(words or "").split(),
        order_by=sort,
        most=most,
    )
    store = SqliteHistory(there)
    try:
        rows = store.find(question)
    finally:
        store.close()
    if as_json:
        print_document(rows)
    elif as_csv:
        for line in csv_lines(rows, COLUMN_NAMES):
            print_line(line)
    elif rows:
        output_console().print(_table(rows))
    if not as_json and len(rows) == most:
        say(f"These are the first {most} by {sort}; --most shows more.")
    elif not rows and not as_json and not as_csv:
        say(f"No call in {there} is like that.")


def csv_lines(rows: "Sequence[dict[str, Value]]", columns: "Sequence[str]") -> "list[str]":
    """Returns a table as lines of CSV, the first with the names of the columns; unknown is empty.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_safe(row[column]) for column in columns])
    return text.getvalue().splitlines()


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        value = " ".join(value.split())
        return f"'{value}" if value[:1] in {"=", "+", "-", "@"} else value
    return value


def _table(rows: "Sequence[dict[str, Value]]") -> "Table":
    from rich.table import Table

    from streamer.time_bounds import shown_moment

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("started (UTC)", no_wrap=True)
    for column in SHOWN:
        is_text = column in {"agent", "failed_tools", "conversation_id"}
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        started_ms = row["started_ms"]
        when = shown_moment(int(started_ms)) if isinstance(started_ms, int) else ""
        table.add_row(when, *(_cell(row[column]) for column in SHOWN))
    return table


def _cell(value: "Value") -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")  # ms, or a share
    return "" if value is None else str(value)
