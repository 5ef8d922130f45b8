"""The command `quarantine`: refused records, the reasons, and putting records back after a fix."""

import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.clock import wall_clock_ms
from consumers.runtime.kafka.access import require_access
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.events.codec import RefusalReason
from schemas.topics import SOURCE_BY_TOPIC
from streamer.cli.exit_codes import STOPPED_BY_SIGNAL
from streamer.cli.options import SINCE_HELP, BootstrapOption, ConfigOption, PrefixOption, moment_given
from streamer.cli.settings_options import settings_from
from streamer.cluster.coordinates import Coordinates
from streamer.cluster.record_reader import RecordGoneError, record_reader
from streamer.cluster.rights import PUT_BACK_NEEDS
from streamer.operations.quarantine.log import Entries, Wanted, quarantined
from streamer.operations.quarantine.plan import ReplayPlan, planned
from streamer.operations.quarantine.put_back import CallStates, CannotReplayError, Outcome, RefusedRecords, put_back
from streamer.operations.quarantine.screen import (
    entry_details,
    listing,
    record_details,
    shown_value,
    summary,
)
from streamer.quiet_libraries import quiet_libraries
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import output_console, safe, say

Result = TypeVar("Result")

UNTIMELY: Final = (
    "A record that is put back gets a new broker time, so one that was refused for its time is refused again unless "
    "max_event_time_skew_ms is raised, or 0, for the evaluator and for this command."
)

MAX_LISTED: Final = 10_000
MAX_REPLAYED: Final = 10_000
"""One replay is checked, confirmed and reported as a whole; more records need several."""

app = typer.Typer(add_completion=False, no_args_is_help=True)

ReasonOption = Annotated[
    list[RefusalReason] | None,
    typer.Option(
        "--reason", metavar="REASON", help=f"Only this one of {', '.join(RefusalReason)}; may be given several times."
    ),
]
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this input topic; may be given several times.")
]
ConversationOption = Annotated[
    str | None, typer.Option("--conversation", metavar="ID", help="Only records of this conversation.")
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help=SINCE_HELP),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Before then; as --since.")]


@app.callback()
def quarantine() -> None:
    """Shows refused records, and puts them back after a fix.

    A refused record stays in its topic; the topic `quarantine` has its coordinates and the reason. Reading here disturbs
    no other reader.

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
        int, typer.Option("--limit", metavar="N", min=1, max=MAX_LISTED, help="Only the newest N of them.")
    ] = 50,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; the counts on standard error.")
    ] = False,
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
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    wanted = _wanted(settings, reason, topic, conversation, since, until)
    found = _finished(quarantined(settings.kafka, wanted, most=limit))
    if as_json:
        for entry in found.newest:
            typer.echo(json.dumps({"record": str(Coordinates.of(entry)), **entry.model_dump(mode="json")}))
        counts = ", ".join(f"{count} {each.value}" for each, count in found.by_reason.most_common())
        say(f"{_entries(found.matching)}{': ' if counts else ''}{counts}.")
    else:
        console = output_console()
        if found.newest:
            console.print(listing(found.newest, console.width))
            console.print()
            console.print(summary(found))
        if (more := found.matching - len(found.newest)) > 0:
            say(f"The newest {len(found.newest)} of {found.matching} entries; --limit shows more of them.")
        elif more == 0 and not found.newest:
            say("No refused record matches.")
    _tell_unreadable(found)


@app.command()
def show(
    record: Annotated[str, typer.Argument(metavar="RECORD", help="TOPIC[PARTITION]@OFFSET, as messages print it.")],
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Shows one refused record.

    It shows the reason, the beginning of the record without personal data, and whether this version would accept it.

    Example:
        callgauge quarantine show 'pipecat.events[3]@1041'
    """
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    place = _place(settings.kafka, record)
    if not _finished(_show(settings, place)):
        raise typer.Exit(1)


@app.command()
def replay(
    records: Annotated[
        list[str] | None, typer.Argument(metavar="RECORD...", help="TOPIC[PARTITION]@OFFSET, as messages print it.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that match the filters.")] = False,
    reason: ReasonOption = None,
    topic: TopicOption = None,
    conversation: ConversationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the entries that would be put back; append nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before more than one record is appended.")] = False,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Puts refused records back.

    Each record is read again from its topic and appended to the same partition, as a new record with the same key, value
    and headers. Every record is checked first. Three kinds stay where they are, each with its reason:

    - Records that this version would refuse again with these settings; give this command the settings of the evaluator. A
    record with time_out_of_bounds gets a new broker time, so it is accepted only after max_event_time_skew_ms was raised.

    - Records of a call that has closed: no call is reopened, and its scores are final. If a call closes meanwhile, the
    evaluator counts the record as after_close.

    - Records that the evaluator reads again by itself. It starts at the oldest open call, so a fixed evaluator accepts
    such a record in its old place.

    While its call is open, a record that is put back twice is recognised and counted as repeated. The header
    callgauge_replay_of has its first coordinates.

    Exit code 1 when a record that should be put back could not be.

    Examples:
        callgauge quarantine replay 'pipecat.events[3]@1041'
        callgauge quarantine replay --reason text_too_long --since 1d --dry-run
        callgauge quarantine replay --all --until 2026-08-01T14:30 --yes
    """
    if bool(records) == bool(everything or reason):
        raise typer.BadParameter("say which records: name them, or give --reason, or --all.")
    if records and (topic or conversation or since or until):
        raise typer.BadParameter("filters choose among all records; leave them out where records are named.")
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    places = frozenset(_place(settings.kafka, text) for text in records or ())
    wanted = _wanted(settings, reason, topic, conversation, since, until, places)
    plan, failed = _finished(_judge(settings, wanted))
    chosen = plan.chosen
    if dry_run:
        for entry in chosen:
            typer.echo(Outcome(Coordinates.of(entry)))
    if dry_run or not chosen:
        say(f"{_records(len(chosen))} to put back; nothing was appended.")
    else:
        _confirm(len(chosen), is_agreed=yes)
        failed += _finished(_put_back(settings, plan))
    if failed:
        raise typer.Exit(1)


def _finished(work: Coroutine[Any, Any, Result]) -> Result:
    with quiet_libraries():
        return asyncio.run(work)


async def _show(settings: Settings, place: Coordinates) -> bool:
    """Prints an entry and its record; returns whether both were found."""
    console = output_console()
    found = await quarantined(settings.kafka, Wanted(places={place}), most=1)
    _tell_unreadable(found)
    if not found.newest:
        say(
            f"{place} is not in quarantine: it was not refused, or the entry is gone. `callgauge quarantine list` shows what is."
        )
        return False
    entry = found.newest[0]
    console.print(entry_details(entry))
    console.print()
    async with record_reader(settings.kafka) as reader:
        redactor = Redactor(settings.redaction)
        records = RefusedRecords(settings.kafka, settings.limits, reader, CallStates(), redactor)
        try:
            record = await records.read(entry)
            judged = records.judged(record, wall_clock_ms())
        except (RecordGoneError, CannotReplayError) as error:
            say(f"The record itself cannot be shown: {error}.")
            return False
    console.print(record_details(record, judged))
    typer.echo(shown_value(record.value or b"", redactor))
    return True


async def _judge(settings: Settings, wanted: Wanted) -> tuple[ReplayPlan, int]:
    """The plan, and the number of records that cannot be put back; prints each record that stays."""
    await require_access(settings.kafka, PUT_BACK_NEEDS)
    found = await quarantined(settings.kafka, wanted, most=MAX_REPLAYED + 1)
    if len(found.newest) > MAX_REPLAYED:
        raise typer.BadParameter(
            f"more than {MAX_REPLAYED} records match: narrow them with --since, --until, --topic or --reason."
        )
    _tell_unreadable(found)
    plan = await planned(settings, found.newest, wanted.places)
    for outcome in plan.left:
        typer.echo(safe(str(outcome)))
    failed = [outcome.place for outcome in plan.left if outcome.is_problem]
    reasons = {Coordinates.of(entry): entry.reason for entry in found.newest}
    if any(reasons.get(place) is RefusalReason.TIME_OUT_OF_BOUNDS for place in failed):
        say(UNTIMELY)
    return plan, len(failed)


async def _put_back(settings: Settings, plan: ReplayPlan) -> int:
    """Appends the chosen records; returns the number of those that failed."""
    kafka, chosen = settings.kafka, plan.chosen
    done = tried = 0
    async with record_reader(kafka) as reader, kafka.producer("quarantine") as producer:
        records = RefusedRecords(kafka, settings.limits, reader, plan.calls, Redactor(settings.redaction))
        with stop_on_signals() as stop:
            async for outcome in put_back(records, producer, chosen, wall_clock_ms(), stop):
                tried += 1
                done += outcome.appended is not None
                typer.echo(safe(str(outcome)))
            is_stopped = stop.is_set() and tried < len(chosen)
    say(f"{_records(done)} of {len(chosen)} put back. A call that closes meanwhile counts its record as after_close.")
    if is_stopped:
        say("Stopped. The entries above are done; the others are unchanged.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if tried < len(chosen):
        say(f"The broker failed, so {len(chosen) - tried} were not tried. Run the command again once it is well.")
    return len(chosen) - done


def _wanted(
    settings: Settings,
    reasons: Sequence[RefusalReason] | None,
    topics: Sequence[str] | None,
    conversation: str | None,
    since: str | None,
    until: str | None,
    places: frozenset[Coordinates] = frozenset(),
) -> Wanted:
    return Wanted(
        reasons=frozenset(reasons or ()),
        topics=frozenset(_topic(settings.kafka, name) for name in topics or ()),
        conversation=conversation,
        since_ms=None if since is None else moment_given(since),
        until_ms=None if until is None else moment_given(until),
        places=places,
    )


def _topic(kafka: KafkaSettings, name: str) -> str:
    """The full name of an input topic; the given one may lack the prefix."""
    if name in SOURCE_BY_TOPIC:
        return kafka.topic(name)
    if name.removeprefix(kafka.topic_prefix) in SOURCE_BY_TOPIC:
        return name
    raise typer.BadParameter(f"{name!r} is no input topic: there are {', '.join(SOURCE_BY_TOPIC)}.")


def _place(kafka: KafkaSettings, text: str) -> Coordinates:
    try:
        place = Coordinates.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    return place._replace(topic=_topic(kafka, place.topic))


def _confirm(count: int, *, is_agreed: bool) -> None:
    """Asks before more than one record is appended; ends the command without consent."""
    if count == 1 or is_agreed:
        return
    if not sys.stdin.isatty():
        _refuse(f"{count} records would be appended; nothing was: give --yes to append them without being asked.")
    if not typer.confirm(f"Append {count} records to the input topics?", err=True):
        _refuse("Nothing was appended.")


def _refuse(text: str) -> NoReturn:
    say(text)
    raise typer.Exit(1)


def _tell_unreadable(found: Entries) -> None:
    if found.unreadable:
        say(f"{_records(found.unreadable)} of the quarantine topic could not be read: not ours, or of a newer version.")


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
