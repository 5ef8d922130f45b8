"""Decides which refused records can be put back, before the first one is."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from consumers.engine.limits import needs_of
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import RefusalReason
from schemas.quarantine import QuarantineRecord
from streamer.cluster.coordinates import Coordinates
from streamer.cluster.facts import administration, group_facts
from streamer.cluster.record_reader import record_reader
from streamer.operations.quarantine.closed_calls import closed_calls
from streamer.operations.quarantine.put_back import CallStates, CannotReplayError, Outcome, RefusedRecords, left_out
from streamer.settings.all_settings import Settings


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The plan of a replay.

    Attributes:
        chosen: Entries to put back, in their order in the topic.
        left: Entries that stay where they are, with the reason.
        calls: State of the calls at the time of the plan. It stays valid: closed calls stay closed, committed offsets only grow.
    """

    chosen: Sequence[QuarantineRecord]
    left: Sequence[Outcome]
    calls: CallStates


async def planned(
    settings: Settings, entries: Iterable[QuarantineRecord], named: Collection[Coordinates]
) -> ReplayPlan:
    """Checks each record as a replay would; appends nothing.

    Args:
        settings: The settings of the evaluator.
        entries: Entries of the quarantine topic.
        named: Records requested by coordinates; those without an entry are left out.

    Raises:
        KafkaUnreachableError: No broker answers, or a right is missing.
    """
    ordered = sorted(entries, key=Coordinates.of)
    missing = sorted(set(named) - {Coordinates.of(entry) for entry in ordered})
    left = [Outcome(place, reason="it is not in quarantine") for place in missing]
    chosen: list[QuarantineRecord] = []
    calls = await _call_states(settings, ordered) if ordered else CallStates()
    async with record_reader(settings.kafka) as reader:
        records = RefusedRecords(settings.kafka, settings.limits, reader, calls, Redactor(settings.redaction))
        for entry in ordered:
            try:
                await records.ready(entry, time.time_ns() // 1_000_000)
            except CannotReplayError as error:
                left.append(left_out(Coordinates.of(entry), error))
            else:
                chosen.append(entry)
    return ReplayPlan(chosen, left, calls)


async def _call_states(settings: Settings, entries: Sequence[QuarantineRecord]) -> CallStates:
    kafka = settings.kafka
    calls: dict[int, set[str]] = defaultdict(set)
    for entry in entries:
        calls[entry.partition].add(entry.key)
    async with administration(kafka) as admin:
        committed = (await group_facts(admin, settings.evaluator_group)).committed
    return CallStates(committed, await closed_calls(kafka, calls, _closed_since_ms(settings, entries)))


def _closed_since_ms(settings: Settings, entries: Sequence[QuarantineRecord]) -> int | None:
    """Since when the calls can have closed: not before they began, as far as that is known.

    A record came while its call was open, or later by less than a call may take; unless its time was so far from the
    broker's that it was refused for it: then its call may have closed at any time.
    """
    if any(entry.reason is RefusalReason.TIME_OUT_OF_BOUNDS for entry in entries):
        return None
    return min(entry.quarantined_at_ms for entry in entries) - needs_of(settings.limits).least_kept_ms
