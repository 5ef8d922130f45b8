"""Counts records that a partition cannot use, or that are gone, and logs some of them."""

from collections.abc import Iterable
from typing import Any, Final

import structlog

from consumers.engine.effects import NotUnderstood
from consumers.runtime.received import MAX_QUARANTINE_LINES
from consumers.runtime.registry import Instruments
from schemas.closed_sets import RefusalReason
from schemas.log import LogError
from schemas.quarantine import QuarantineRecord

log = structlog.get_logger()

# Counts records that are taken and not understood, and logs each kind of them once, with the
# remedy.

MAX_KINDS: Final = 256
"""Kinds that one process logs. A producer that makes up a new one for each record would fill the
disk otherwise.
"""


def report_misread(report: NotUnderstood, instruments: Instruments) -> None:
    """Counts a record that was not understood, and logs it if it is the first of its kind."""
    misread, source = report.misread, report.source.value
    instruments.inc("callgauge_misread_records_total", (source, misread.reason.value))
    kinds, kind = instruments.not_understood, f"{source}: {misread.what}"
    if kind in kinds or len(kinds) >= MAX_KINDS:
        return
    kinds[kind] = misread.what_to_do
    log.warning(
        "records_not_understood",
        source=source,
        seen=misread.what,
        conversation_id=report.conversation_id,
        what_happens_now=(
            "They are counted and do nothing, or less than they could. This kind is logged once."
        ),
        what_to_do=misread.what_to_do,
    )


# Records that are refused, and records that were deleted before they were folded.

MAX_INCOMPLETE_NAMED: Final = 20
"""Most incomplete calls that one log line names. The metric counts all of them."""
LOG: Final = "control"
"""Source of what no producer of events has written."""


class Refusals:
    """The refused and the lost records of one partition."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._since_tick = 0
        self._incomplete: frozenset[str] = frozenset()

    def count(self, source: str, record: QuarantineRecord) -> None:
        """Counts a refused record, and logs it unless there were many."""
        self._instruments.inc("callgauge_events_total", (source, "quarantined"))
        self._instruments.inc("callgauge_quarantined_total", (source, record.reason))
        self._since_tick += 1
        if self._since_tick <= MAX_QUARANTINE_LINES:
            log.warning(
                "record_quarantined",
                conversation_id=record.key or None,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=record.reason.value,
                message=record.message(),
            )

    def tick(self) -> None:
        """Logs how many have no line of their own."""
        if self._since_tick > MAX_QUARANTINE_LINES:
            log.warning("more_records_quarantined", records=self._since_tick - MAX_QUARANTINE_LINES)
        self._since_tick = 0

    def lost(self, where: str, expected: int, first: int) -> None:
        """Counts and logs records that were deleted before they were folded."""
        self._instruments.inc("callgauge_log_records_lost_total", (), first - expected)
        log.error(
            "log_not_where_it_was",
            record=f"{where}@{expected}",
            seen=f"the log goes on at {first}",
            records=first - expected,
            what_happens_now="These records were deleted before they were folded. Calls that were "
            "open are incomplete, and calls that were in them alone are missing.",
            what_to_do="Keep `events` for longer than the longest outage; see `callgauge doctor`.",
        )

    def incomplete(self, calls: Iterable[str]) -> None:
        """Counts and logs the calls that lack records, each call once."""
        unfinished = frozenset(calls)
        incomplete = sorted(unfinished - self._incomplete)
        self._incomplete = unfinished
        if incomplete:
            self._instruments.inc("callgauge_calls_incomplete_total", (), len(incomplete))
            log.error(
                "calls_incomplete",
                calls=len(incomplete),
                conversation_ids=incomplete[:MAX_INCOMPLETE_NAMED],
                what_happens_now=(
                    "They go on and close without the lost records: their scores may lack turns "
                    "and ends."
                ),
                what_to_do=(
                    "Leave these calls out where it matters; only their producers still have the "
                    "lost records."
                ),
            )


def not_of_the_log(record: Any, error: LogError) -> QuarantineRecord:
    """The refusal of a record of the log that the sequencer did not write."""
    return QuarantineRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=(record.key or b"").decode("utf-8", "replace"),
        reason=RefusalReason.UNDECODABLE,
        what="this is no record of the log",
        expected_and_seen=str(error),
        what_happens_now="It is passed over.",
        what_to_do=(
            "Find who writes there, and give the right to write this topic to the sequencer alone."
        ),
        quarantined_at_ms=record.timestamp,
    )
