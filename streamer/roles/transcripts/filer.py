"""Writes the transcripts of the topic to files, apart from the evaluator: a full disk delays no score.

Its position is committed when the files exist, so each transcript becomes a file at least once, also after a crash; a
second time it becomes the same file. A transcript that cannot be written waits in the topic and is tried again.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError, TopicsUnfitError, partition_counts
from consumers.runtime.kafka.polling import COMMIT_SECONDS
from consumers.runtime.process import finish_unless
from consumers.runtime.registry import Instruments
from schemas.quarantine import UndecodableRecord
from schemas.topics import TRANSCRIPTS_TOPIC
from streamer.roles.transcripts.files import TranscriptFiles

POLL_MS: Final = 200
"""Duration of one poll: stopping may have to wait for it."""
MAX_BATCH_RECORDS: Final = 50
"""Transcripts of one poll: their files take a tenth of a second."""
RETRY_SECONDS: Final = 5.0
"""How long until a file is tried again that could not be written, or a broker that was away."""
STOP_SECONDS: Final = 1.0
"""How long leaving the group may take."""

log = structlog.get_logger()


class TranscriptFiler:
    """One member of the group that writes transcript files."""

    def __init__(self, kafka: KafkaSettings, group_id: str, files: TranscriptFiles, instruments: Instruments) -> None:
        """Nothing is connected before `follow`.

        Args:
            kafka: Where the broker is.
            group_id: The consumer group. A new one begins with the oldest transcripts there are.
            files: Where they go.
            instruments: Where files are counted.
        """
        self._kafka = kafka
        self._group_id = group_id
        self._files = files
        self._instruments = instruments
        self._has_warned = False

    async def follow(self, stop: asyncio.Event) -> None:
        """Makes files until `stop` is set.

        Raises:
            TranscriptFolderError: The folder cannot be used; nothing was read.
        """
        if await asyncio.to_thread(self._files.prepare):
            log.warning(
                "transcripts_folder_is_open",
                folder=str(self._files.folder),
                problem="Every user of this machine may look into the folder of transcripts.",
                what_happens_now="New files can be read by callgauge's user only; their names, which hold the calls' ids, "
                "and files of an older version are open to all.",
                what_to_do="Take the rights away: chmod o-rwx for the folder and the files in it.",
            )
        while not stop.is_set():
            try:
                await self._read(stop)
            except (KafkaError, KafkaUnreachableError, TopicsUnfitError, TimeoutError) as error:
                self._tell(str(error) or type(error).__name__)
                await _pause(stop)

    async def _read(self, stop: asyncio.Event) -> None:
        if await finish_unless(stop, partition_counts(self._kafka, [TRANSCRIPTS_TOPIC])) is None:
            return
        consumer = self._kafka.consumer(
            "transcript-files",
            self._kafka.topic(TRANSCRIPTS_TOPIC),
            group_id=self._group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=MAX_BATCH_RECORDS,
        )
        try:
            await consumer.start()
            while not stop.is_set():
                for partition, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                    await self._file(consumer, partition, records, stop)
        finally:
            with contextlib.suppress(TimeoutError, KafkaError):
                await asyncio.wait_for(consumer.stop(), STOP_SECONDS)

    async def _file(
        self, consumer: AIOKafkaConsumer, partition: TopicPartition, records: Sequence[Any], stop: asyncio.Event
    ) -> None:
        """Writes the files of one partition in order until one fails; the rest is polled again."""
        for written, record in enumerate(records):
            if isinstance(record, UndecodableRecord):
                self._instruments.inc("callgauge_transcript_files_total", ("undecodable",))
                log.warning(
                    "transcript_undecodable", record=str(record), what_happens_now="There is no file of it.",
                    what_to_do=record.what_to_do,
                )  # fmt: skip
                continue
            if not record.key or record.value is None:
                continue  # none of ours
            try:
                await asyncio.to_thread(self._files.write, record.key.decode("utf-8", "replace"), record.value)
            except OSError as error:
                self._instruments.inc("callgauge_transcript_files_total", ("failed",))
                self._tell(f"{error.filename}: {error.strerror or error}")
                if written:
                    await self._commit(consumer, partition, record.offset)
                consumer.seek(partition, record.offset)
                await _pause(stop)
                return
            self._instruments.inc("callgauge_transcript_files_total", ("written",))
            self._has_warned = False
        await self._commit(consumer, partition, records[-1].offset + 1)

    async def _commit(self, consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> None:
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await consumer.commit({partition: OffsetAndMetadata(offset, "")})
        except (KafkaError, TimeoutError) as error:  # costs writing the same files again, if anything
            log.warning("commit_failed", role="transcript files", error=str(error) or type(error).__name__)

    def _tell(self, problem: str) -> None:
        """Logs a fault once for as long as it lasts."""
        if not self._has_warned:
            self._has_warned = True
            log.error(
                "transcript_files_wait",
                problem=problem,
                what_happens_now=f"It is tried again every {RETRY_SECONDS:.0f} s; transcripts wait in their topic, and calls are "
                "evaluated as ever.",
                what_to_do="See to the disk and the rights of the folder, or to the broker.",
            )


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
