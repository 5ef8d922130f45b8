"""The judge of one machine: answers the questions in a log in a file.

A verdict is appended in the transaction that deletes its question. So a question is answered once,
and those that a killed process left open are asked again.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final, Never

import structlog
from pydantic import ValidationError

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.ask import QuestionAnswerer
from consumers.judge.settings import JudgeSettings
from consumers.log.commits import NotWrittenError
from consumers.log.file import DecidedRecord, FileLog
from consumers.runtime.process import end_tasks, first_of
from consumers.runtime.received import RecordPlace, UnreadableRecords
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.events.envelope import envelope_headers
from schemas.judging import VERDICT_SOURCE, VERDICT_TYPE, JudgeRequest, JudgeVerdict
from schemas.log import OutgoingRecord
from schemas.topics import JUDGE_REQUESTS_TOPIC

LOOK_SECONDS: Final = 0.2
"""How often it is looked for new questions."""
RETRY_SECONDS: Final = 1.0
"""Pause after a verdict that the disk did not take."""
MAX_OPEN: Final = 2_000
"""Questions in progress at which no further ones are read."""
FINISH_SECONDS: Final = 1.0
"""How long questions in progress may take when the role stops. The next start asks the others
again.
"""

log = structlog.get_logger()


class FileJudge:
    """Answers questions until it is stopped.

    Attributes:
        ready: Set while it reads questions.
    """

    def __init__(
        self,
        log_file: FileLog,
        settings: JudgeSettings,
        instruments: Instruments,
        redactor: Redactor | None = None,
    ) -> None:
        """Nothing is asked before `run`. The log is open by then."""
        self.ready = asyncio.Event()
        self._log = log_file
        self._judge = QuestionAnswerer(settings, instruments, redactor=redactor)
        self._refusals = UnreadableRecords(
            "judge", "callgauge_judge_questions_refused_total", instruments
        )
        self._writing: set[asyncio.Task[None]] = set()
        self._open = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Answers until `stop` is set."""
        judging = asyncio.create_task(self._judge.run(), name="judging")
        try:
            await first_of(stop.wait(), self._read_for_ever(), _result_of(judging))
            self.ready.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_SECONDS):
                    await self._judge.finish()
        finally:
            self.ready.clear()
            await end_tasks([judging, *self._writing])

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        return () if self.ready.is_set() else ("judge: not reading questions",)

    async def _read_for_ever(self) -> Never:
        offset = 0
        while True:
            self.ready.set()
            records = (
                self._log.records(JUDGE_REQUESTS_TOPIC, offset, MAX_OPEN - self._open)
                if self._open < MAX_OPEN
                else []
            )
            for record in records:
                offset = record.offset + 1
                await self._ask(record)
            self._refusals.end_batch()
            if not records:
                await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, record: DecidedRecord) -> None:
        try:
            request = JudgeRequest.model_validate_json(record.value)
        except ValidationError as error:  # of another version
            place = RecordPlace(record.topic, 0, record.offset, record.timestamp, record.key)
            self._refusals.refuse(place, str(error).partition("\n")[0])
            with contextlib.suppress(NotWrittenError):  # it is refused again after a start
                await self._log.append([], answers=record.offset)
            return
        self._open += 1
        self._judge.ask(request).add_done_callback(partial(self._on_verdict, record))

    def _on_verdict(self, record: DecidedRecord, promised: "asyncio.Future[JudgeVerdict]") -> None:
        self._open -= 1
        if not promised.cancelled():
            task = asyncio.create_task(self._write(record, promised.result()))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, record: DecidedRecord, verdict: JudgeVerdict) -> None:
        headers = envelope_headers(
            event_id=verdict.request_id,
            source=VERDICT_SOURCE,
            event_type=VERDICT_TYPE,
            subject=verdict.conversation_id,
        )
        event = OutgoingRecord(
            InputSource.JUDGE,
            verdict.conversation_id.encode(),
            verdict.model_dump_json().encode(),
            headers,
        )
        while True:
            try:
                await self._log.append([event], answers=record.offset)
            except NotWrittenError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


async def _result_of(task: "asyncio.Task[None]") -> None:
    await task
