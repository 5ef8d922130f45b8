"""Counts records that are taken and not understood, and logs each kind of them once, with the remedy."""

from typing import Final

import structlog

from consumers.engine.effects import NotUnderstood
from consumers.runtime.registry import Instruments

MAX_KINDS: Final = 256
"""Kinds that one process logs. A producer that makes up a new one for each record would fill the disk otherwise."""

log = structlog.get_logger()


class MisreadRecords:
    """The kinds that this process has met, over all of its partitions."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._logged: set[tuple[str, str]] = set()

    def take(self, report: NotUnderstood) -> None:
        """Counts a record that was not understood, and logs it if it is the first of its kind."""
        misread, source = report.misread, report.source.value
        self._instruments.inc("callgauge_misread_records_total", (source, misread.reason.value))
        kind = source, misread.what
        if kind in self._logged or len(self._logged) >= MAX_KINDS:
            return
        self._logged.add(kind)
        log.warning(
            "records_not_understood", source=source, seen=misread.what, conversation_id=report.conversation_id,
            what_happens_now="They are counted and do nothing, or less than they could. This kind is logged once.",
            what_to_do=misread.what_to_do,
        )  # fmt: skip
