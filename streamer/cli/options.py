"""Options that several commands share."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

PATHS_HELP: Final = (
    "Files of what callgauge reads live (events of any framework, spans by OTLP, records and "
    "webhooks of ElevenLabs agents) or of whole calls, folders of such files, and EVA run and "
    "record directories; `sample` is a call that comes with callgauge."
)
SINCE_HELP: Final = "From then on: 90s, 30m, 2h or 7d ago, or a UTC time, 2026-08-01T14:30."

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file (TOML); otherwise the one CALLGAUGE_CONFIG names.",
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", metavar="HOST:PORT", help="Kafka brokers (127.0.0.1:9092 unless set)."
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option("--topic-prefix", metavar="TEXT", help="Put before every topic name as it is."),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="The folder of history, or of `serve`; otherwise history.folder.",
    ),
]
ServedOption = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="PATH", help="The folder of `callgauge serve`, in place of Kafka."
    ),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option(
        "--http-port", metavar="N", help="Port of /metrics (8080 unless set); 0 takes a free one."
    ),
]
ArrivalOption = Annotated[
    int | None,
    typer.Option(
        "--arrival",
        metavar="SEED",
        help="Interleave the sources at random by this seed; each keeps its own order.",
    ),
]
AgentOption = Annotated[
    str | None, typer.Option("--agent", help="Agent name of calls whose recording has none.")
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        max=256,
        help="Processes that read calls; one on each core unless given.",
    ),
]
PathsArgument = Annotated[list[Path], typer.Argument(metavar="PATH", help=PATHS_HELP)]
GoalsOption = Annotated[
    Path | None,
    typer.Option(
        "--goals",
        metavar="FILE",
        help=(
            "Goal sets, a file or a folder. A call uses the set it names, the set with its id, "
            "that of its agent, or the only one."
        ),
    ),
]

SinceADayOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="WHEN",
        help=f"{SINCE_HELP} The last hour, then the last day, unless given.",
    ),
]


CallsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from-topics",
        metavar="ID",
        help="A call of the topics, by its id or its last characters; may be repeated.",
    ),
]


def require_one_kind(
    paths: Sequence[Path] | None,
    ids: Sequence[str] | None,
    since: str | None,
    bootstrap: str | None,
    prefix: str | None,
) -> None:
    """Requires recordings or calls of the topics, and no option that is for the others.

    Raises:
        BadParameter: Both are named or none, or an option does not fit.
    """
    if paths and ids:
        raise typer.BadParameter(
            "--from-topics reads live calls: leave the paths out, or leave --from-topics out."
        )
    if not paths and not ids:
        raise typer.BadParameter("Name recordings, or a call of the topics with --from-topics ID.")
    if not ids and (since or bootstrap or prefix):
        raise typer.BadParameter(
            "--since, --bootstrap and --topic-prefix are for --from-topics: leave them out."
        )


def since_in_words(since: str | None) -> str:
    """The time of that option as a message names it."""
    return "in the last day" if since is None else f"since {since}"


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document, for programs.")
]

CsvOption = Annotated[
    bool,
    typer.Option(
        "--csv", help="Print rows for programs, as CSV; docs/tables.md lists the columns."
    ),
]
ParquetOption = Annotated[
    Path | None,
    typer.Option("--parquet", metavar="FILE", help="Write these rows to a Parquet file."),
]


class TableRows(StrEnum):
    """The rows of a table for programs."""

    CALLS = "calls"
    TURNS = "turns"
    OWN = "own"


RowsOption = Annotated[
    TableRows,
    typer.Option(
        "--rows", help="A row for each call, each turn, or each value of your own measures."
    ),
]


def wants_table(as_csv: bool, parquet: Path | None, *others: object) -> bool:  # noqa: FBT001 - the option itself
    """Whether rows for programs are asked for.

    Raises:
        BadParameter: So are other results.
    """
    wanted = as_csv or parquet is not None
    if wanted and as_csv + (parquet is not None) + any(others) > 1:
        raise typer.BadParameter(
            "--csv, --parquet and other forms of the result exclude each other: choose one."
        )
    return wanted


class JudgeSwitch(StrEnum):
    """Whether a judge is asked."""

    OFF = "off"
    ON = "on"


JudgeOption = Annotated[
    JudgeSwitch, typer.Option("--judge", help="Whether a model judges what code cannot.")
]
VerdictsOption = Annotated[
    Path | None,
    typer.Option(
        "--verdicts",
        metavar="FILE",
        help="Keeps the judge's answers: a killed run continues, and pays for none twice.",
    ),
]


def require_judge(verdicts: Path | None, judge: JudgeSwitch) -> None:
    """Refuses a file of verdicts for a run that asks no judge.

    Raises:
        BadParameter: There is one.
    """
    if verdicts is not None and judge is JudgeSwitch.OFF:
        raise typer.BadParameter(
            "--verdicts keeps the answers of a judge: add --judge on, or leave it out."
        )
