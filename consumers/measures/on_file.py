"""The measures of one's own on one machine: reads rows out of a log in a file, and writes rows of
`scores.own` into it.

The place up to which all is counted is written in the transaction of the values. Records in front
of it may leave the log; the rows of calls that were open, or not counted, when the process ended
come from history.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Never

from consumers.engine.redaction.redactor import Redactor
from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, DecidedRecord, FileLog
from consumers.measures.files import MeasureSettings
from consumers.measures.live import ContextOf, LiveMeasures, Reached
from consumers.runtime.process import first_of
from consumers.runtime.registry import Instruments
from schemas.rows import CallRow, Row, RowError, StoredRow, decode, decode_words, encode
from schemas.topics import OWN_TOPIC, SCORES_TOPIC, WORDS_TOPIC

LOOK_SECONDS: Final = 0.2
"""How often it is looked for new rows."""
RETRY_SECONDS: Final = 1.0
"""Pause after values that the disk did not take."""
MAX_BATCH_RECORDS: Final = 1_000
"""Records of a topic that are read in one step."""
_NAME: Final = "measures"
_ONE: Final = 0
"""A log in a file has one partition."""


class FileMeasures:
    """Measures until it is stopped.

    Attributes:
        ready: Set while it reads rows.
        next: By topic, the offset in front of which it needs nothing any more.
    """

    def __init__(
        self,
        log_file: FileLog,
        settings: MeasureSettings,
        instruments: Instruments,
        redactor: Redactor,
        context_of: ContextOf,
    ) -> None:
        """Nothing is read before `run`. The log is open by then."""
        self.ready = asyncio.Event()
        self._log = log_file
        self._live = LiveMeasures(settings, instruments, redactor, context_of)
        counted = log_file.reached(_NAME)
        self.next = {SCORES_TOPIC: counted, WORDS_TOPIC: 0}
        self._live.begin(_ONE, Reached(0, counted, None))

    def uncounted(self) -> list[str]:
        """Calls that have closed and are not counted, when the process before this one ended."""
        rows = (
            _row_of(record) for record in self._log.records(SCORES_TOPIC, self.next[SCORES_TOPIC])
        )
        return [
            row.conversation_id
            for row in rows
            if isinstance(row, CallRow) and row.state == "closed"
        ]

    def know(self, rows: Iterable[StoredRow]) -> None:
        """Takes the rows, as history has them, of the calls that were open or not counted then."""
        self._live.know(_ONE, rows)

    async def run(self, stop: asyncio.Event) -> None:
        """Measures until `stop` is set."""
        try:
            await first_of(stop.wait(), self._live.follow_files(), self._read_for_ever())
        finally:
            self.ready.clear()

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`. A mistake in a function is none: it costs its
        value.
        """
        return () if self.ready.is_set() else ("measures: not reading rows",)

    async def _read_for_ever(self) -> Never:
        await self._live.read.wait()
        self.ready.set()
        offset = 0
        while True:
            scores = self._log.records(SCORES_TOPIC, offset, MAX_BATCH_RECORDS)
            # Read later, and taken first: the words of a turn are there when its row says that it
            # is left.
            while words := self._log.records(
                WORDS_TOPIC, self.next[WORDS_TOPIC], MAX_BATCH_RECORDS
            ):
                self.next[WORDS_TOPIC] = words[-1].offset + 1
                for record in words if self._live.wants_words else ():
                    try:
                        self._live.take_words(decode_words(record.value))
                    except RowError:  # of another version
                        continue
            for record in scores:
                offset = record.offset + 1
                self._live.read_row(_ONE, record.offset, _row_of(record))
            await self._write()
            if len(scores) < MAX_BATCH_RECORDS:
                await asyncio.sleep(LOOK_SECONDS)

    async def _write(self) -> None:
        """Writes the values that came, with the place up to which all is counted, until the disk
        has them.
        """
        rows, counted = self._live.values(), self._live.reached(_ONE).counted
        records = [
            DecidedRecord(OWN_TOPIC, row.conversation_id.encode(), encode(row)) for row in rows
        ]
        while records or counted > self.next[SCORES_TOPIC]:
            try:
                await self._log.publish(Decided(records, reached={_NAME: counted}))
            except NotWrittenError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._live.written(len(records))
                self.next[SCORES_TOPIC], records = counted, []


def _row_of(record: DecidedRecord) -> Row | None:
    try:
        return decode(record.value)
    except RowError:  # of another version
        return None
