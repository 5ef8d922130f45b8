"""The work of the command `quarantine`: finds, shows and puts back refused records."""

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

import typer

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import KafkaSettings, require_access
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import RefusalReason
from schemas.topics import SOURCE_BY_TOPIC
from streamer.cluster.coordinates import Coordinates
from streamer.cluster.record_reader import RecordGoneError, record_reader
from streamer.cluster.rights import PUT_BACK_NEEDS
from streamer.commands.moments import moment_given
from streamer.exit_codes import STOPPED_BY_SIGNAL
from streamer.operations.quarantine.log import Entries, Wanted, quarantined
from streamer.operations.quarantine.plan import ReplayPlan, planned
from streamer.operations.quarantine.put_back import CallStates, CannotReplayError, RefusedRecords, put_back
from streamer.operations.quarantine.screen import entry_details, record_details, shown_value
from streamer.quiet_libraries import quiet_libraries
from streamer.report.drawing.numbers import counted
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import output_console, safe, say

Result = TypeVar("Result")
UNTIMELY: Final = (
    "A record that is put back gets a new broker time, so one that was refused for its time is refused again unless "
    "max_event_time_skew_ms is raised, or 0, for the evaluator and for this command."
)
MAX_REPLAYED: Final = 10_000
"""One replay is checked, confirmed and reported as a whole; more records need several."""


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs the work to its end, without the log lines of the Kafka client."""
    with quiet_libraries():
        return asyncio.run(work)


async def show_entry(settings: Settings, place: Coordinates) -> bool:
    """Prints an entry and its record; returns whether both were found."""
    console = output_console()
    found = await quarantined(settings.kafka, Wanted(places={place}), most=1)
    tell_unreadable(found)
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


async def plan_of(settings: Settings, wanted: Wanted) -> tuple[ReplayPlan, int]:
    """The plan, and the number of records that cannot be put back; prints each record that stays."""
    await require_access(settings.kafka, PUT_BACK_NEEDS)
    found = await quarantined(settings.kafka, wanted, most=MAX_REPLAYED + 1)
    if len(found.newest) > MAX_REPLAYED:
        raise typer.BadParameter(
            f"more than {MAX_REPLAYED} records match: narrow them with --since, --until, --topic or --reason."
        )
    tell_unreadable(found)
    plan = await planned(settings, found.newest, wanted.places)
    for outcome in plan.left:
        typer.echo(safe(str(outcome)))
    failed = [outcome.place for outcome in plan.left if outcome.is_problem]
    reasons = {Coordinates.of(entry): entry.reason for entry in found.newest}
    if any(reasons.get(place) is RefusalReason.TIME_OUT_OF_BOUNDS for place in failed):
        say(UNTIMELY)
    return plan, len(failed)


async def put_back_planned(settings: Settings, plan: ReplayPlan) -> int:
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
    say(
        f"{counted(done, 'record')} of {len(chosen)} put back. A call that closes meanwhile counts its record as after_close."
    )
    if is_stopped:
        say("Stopped. The entries above are done; the others are unchanged.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if tried < len(chosen):
        say(f"The broker failed, so {len(chosen) - tried} were not tried. Run the command again once it is well.")
    return len(chosen) - done


def wanted_by(
    settings: Settings,
    reasons: Sequence[RefusalReason] | None,
    topics: Sequence[str] | None,
    conversation: str | None,
    since: str | None,
    until: str | None,
    places: frozenset[Coordinates] = frozenset(),
) -> Wanted:
    """The entries that the options choose."""
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


def place_named(kafka: KafkaSettings, text: str) -> Coordinates:
    """The coordinates that a text names; its topic may lack the prefix.

    Raises:
        BadParameter: It names none.
    """
    try:
        place = Coordinates.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    return place._replace(topic=_topic(kafka, place.topic))


def confirm(count: int, *, is_agreed: bool) -> None:
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


def tell_unreadable(found: Entries) -> None:
    """Says how many records of the quarantine topic could not be read, if any."""
    if found.unreadable:
        say(
            f"{counted(found.unreadable, 'record')} of the quarantine topic could not be read: not ours, or of a newer version."
        )


def counted_entries(count: int) -> str:
    """A number of entries, in words."""
    return f"{count} entr{'y' if count == 1 else 'ies'}"
