"""The command `quarantine`: refused records, the reasons, and putting records back after a fix."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from schemas.closed_sets import RefusalReason
from streamer.cli.options import (
    SINCE_HELP,
    BootstrapOption,
    ConfigOption,
    PrefixOption,
    ServedOption,
)
from streamer.terminal import output_console, print_document, say

if TYPE_CHECKING:
    from streamer.settings.all_settings import Settings

MAX_LISTED: Final = 10_000
app = typer.Typer(add_completion=False, no_args_is_help=True)
ReasonOption = Annotated[
    list[RefusalReason] | None,
    typer.Option(
        "--reason",
        metavar="REASON",
        help=f"Only this one of {', '.join(RefusalReason)}; may be given several times.",
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="NAME", help="Only this input topic; may be given several times."
    ),
]
ConversationOption = Annotated[
    str | None,
    typer.Option("--conversation", metavar="ID", help="Only records of this conversation."),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help=SINCE_HELP),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="WHEN", help="Before then; as --since.")
]


@app.callback()
def quarantine() -> None:
    """Shows refused records, and puts them back after a fix.

    A refused record stays in its topic; the topic `quarantine` has its coordinates and the reason.
    Reading here disturbs no other reader. With the --folder of `callgauge serve` the same holds of
    its log.

    Examples:
        callgauge quarantine list --since 2h
        callgauge quarantine show 'pipecat.events[3]@1041'
        callgauge quarantine replay --reason invalid_event --dry-run
    """


@app.command(name="list")
def list_refused(
    *,
    reason: ReasonOption = None,
    topic: TopicOption = None,
    conversation: ConversationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="N", min=1, max=MAX_LISTED, help="Only the newest N of them."
        ),
    ] = 50,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; the counts on standard error.")
    ] = False,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Lists refused records, the newest last, and counts them by reason.

    Times are broker times in UTC. The list does not say whether a record was put back since.

    Examples:
        callgauge quarantine list --since 2h --reason invalid_event
        callgauge quarantine list --json --limit 1000 > refused.jsonl
    """
    from streamer.cluster.readers import Coordinates
    from streamer.quarantine import (
        counted_entries,
        finished,
        listing,
        quarantined,
        summary,
        tell_unreadable,
        wanted_by,
    )

    settings = _settings(config, bootstrap, topic_prefix, folder)
    wanted = wanted_by(settings, reason, topic, conversation, since, until)
    found = finished(quarantined(settings.kafka, wanted, most=limit, folder=folder))
    if as_json:
        for entry in found.newest:
            print_document({"record": str(Coordinates.of(entry)), **entry.model_dump(mode="json")})
        counts = ", ".join(f"{count} {each.value}" for each, count in found.by_reason.most_common())
        say(f"{counted_entries(found.matching)}{': ' if counts else ''}{counts}.")
    else:
        console = output_console()
        if found.newest:
            console.print(listing(found.newest))
            console.print()
            console.print(summary(found))
        if (more := found.matching - len(found.newest)) > 0:
            say(
                f"The newest {len(found.newest)} of {found.matching} entries; --limit shows more "
                "of them."
            )
        elif more == 0 and not found.newest:
            say(
                "No refused record matches. A posted event that is refused is in the answer to its "
                "sender, and in the log of serve or ingest; `callgauge doctor` counts them."
            )
    tell_unreadable(found)


@app.command()
def show(
    record: Annotated[
        str, typer.Argument(metavar="RECORD", help="TOPIC[PARTITION]@OFFSET, as messages print it.")
    ],
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows one refused record.

    It shows the reason, the beginning of the record without personal data, and whether this version
    would accept it.

    Example:
        callgauge quarantine show 'pipecat.events[3]@1041'
    """
    from streamer.quarantine import finished, place_named, show_entry

    settings = _settings(config, bootstrap, topic_prefix, folder)
    place = place_named(settings.kafka, record)
    if not finished(show_entry(settings, place, folder)):
        raise typer.Exit(1)


@app.command()
def replay(
    records: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECORD...", help="TOPIC[PARTITION]@OFFSET, as messages print it."),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that match the filters.")] = False,
    reason: ReasonOption = None,
    topic: TopicOption = None,
    conversation: ConversationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the entries that would be put back; append nothing."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before several records are put back.")
    ] = False,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Puts refused records back.

    Each record is read again from its input and appended to the same partition there, as a new
    record with the same key, value and headers, after it was checked.

    Two kinds stay where they are, each with its reason:

    - Records that this version would refuse again with these settings; give this command the
      settings of the evaluator. A
    record with time_out_of_bounds gets a new broker time, so it is accepted only after
    max_event_time_skew_ms was raised.

    - Records of a call that has closed: no call is reopened, and its scores are final. If a call
      closes meanwhile, the
    evaluator counts the record as after_close.

    A call has a record once, however often it is put back, and also if a fixed evaluator takes it
    where it was refused: it is recognised by the header callgauge_replay_of, which has its first
    coordinates, and counted as repeated.

    With --folder the `serve` that runs there takes them into its log; a record that was put back
    before is never taken twice.

    Exit code 1 when a record that should be put back could not be.

    Examples:
        callgauge quarantine replay 'pipecat.events[3]@1041'
        callgauge quarantine replay --reason text_too_long --since 1d --dry-run
        callgauge quarantine replay --all --until 2026-08-01T14:30 --yes
        callgauge quarantine replay --all --folder calls
    """
    from streamer.quarantine import finished, place_named, wanted_by
    from streamer.quarantine import replay as put_back

    if bool(records) == bool(everything or reason):
        raise typer.BadParameter("say which records: name them, or give --reason, or --all.")
    if records and (topic or conversation or since or until):
        raise typer.BadParameter(
            "filters choose among all records; leave them out where records are named."
        )
    settings = _settings(config, bootstrap, topic_prefix, folder)
    places = frozenset(place_named(settings.kafka, text) for text in records or ())
    wanted = wanted_by(settings, reason, topic, conversation, since, until, places)
    if not finished(put_back(settings, wanted, folder, is_dry_run=dry_run, is_agreed=yes)):
        raise typer.Exit(1)


def _settings(
    config: Path | None, bootstrap: str | None, topic_prefix: str | None, folder: Path | None
) -> "Settings":
    from streamer.settings.listing import settings_from

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if folder is None:
        return settings
    from streamer.served_folder import served

    return served(settings, folder)
