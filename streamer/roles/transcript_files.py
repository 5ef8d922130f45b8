"""Writes the transcripts of closed calls as files."""

import asyncio
import gzip
import hashlib
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.log.file import FileLog
from consumers.runtime.kafka.connection import (
    KafkaSettings,
    KafkaUnreachableError,
    TopicsUnfitError,
    partition_counts,
)
from consumers.runtime.kafka.polling import COMMIT_SECONDS, GroupReader
from consumers.runtime.private_files import FILE_MODE, make_folder
from consumers.runtime.process import OperatorError, finish_unless, first_of, pause_unless
from consumers.runtime.received import Batch, Unreadable
from consumers.runtime.registry import Instruments
from schemas.topics import TRANSCRIPTS_TOPIC
from schemas.transcript import TranscriptTurn
from streamer.offline.scoring import RecordedScoring
from streamer.terminal import print_json, say

# Transcripts as files: one per conversation, always whole, with a safe name for every conversation
# id.
#
# They contain the words of people, so only the user of the process may read them, whatever the
# umask.

MAX_NAME_CHARS: Final = 100
"""Bound of the conversation id in a file name; file systems accept 255 bytes, some of them 143."""
_PART_SUFFIX: Final = ".part"
# a leading dot hides a file, a leading dash makes it an option
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]|^[.-]")


class TranscriptFiles:
    """A folder of transcripts. A file appears as a whole or not at all; an existing file is
    replaced.

    Attributes:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path, *, packs: bool = False) -> None:
        """Nothing is touched before `prepare`."""
        self.folder = folder
        self._packs = packs

    def prepare(self) -> bool:
        """Creates the folder if necessary, and deletes unfinished files of a killed process.

        Returns:
            Whether users other than the owner and its group can look into the folder.

        Raises:
            OperatorError: The folder cannot be created or written to.
        """
        try:
            make_folder(self.folder)
            for part in self.folder.glob(f".*{_PART_SUFFIX}"):
                if part.is_symlink() or part.is_file():  # a link is deleted, its target stays
                    part.unlink(missing_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".", suffix=_PART_SUFFIX, dir=self.folder):
                return bool(self.folder.stat().st_mode & stat.S_IRWXO)
        except OSError as error:
            raise OperatorError(
                f"Transcripts: the folder {self.folder} cannot be written to "
                f"({error.strerror or error}), so nothing was started. Make it, give this user the "
                "right to write there, or choose another one."
            ) from error

    def path_of(self, conversation_id: str) -> Path:
        """Where the transcript of this conversation is."""
        return self.folder / f"{file_stem(conversation_id)}.json{'.gz' if self._packs else ''}"

    def write(self, conversation_id: str, value: bytes) -> Path:
        """Writes the file. It waits for the disk, so call it in a thread.

        Returns:
            The path of the file.

        Raises:
            OSError: The file could not be written; an earlier file stays.
        """
        path = self.path_of(conversation_id)
        # A new file under a name that nobody can know: a link that waits there is not followed.
        descriptor, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=_PART_SUFFIX, dir=self.folder
        )
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, FILE_MODE)  # the umask may have left less
                # Without the time of packing the same transcript is the same file.
                file.write(gzip.compress(value, mtime=0) if self._packs else value)
                file.flush()
                # otherwise the name could survive a power cut and the content not
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return path


def file_stem(conversation_id: str) -> str:
    """The name of a conversation's file without its ending: a safe id, or the safe part of the id
    and a hash.

    Example:
        >>> file_stem("conv-12.a")
        'conv-12.a'
        >>> file_stem("../etc/passwd")
        '_._etc_passwd-3cba4c3a335390b6'
    """
    safe = _UNSAFE.sub("_", conversation_id)[:MAX_NAME_CHARS]
    if safe == conversation_id:
        return safe
    return f"{safe}-{hashlib.blake2b(conversation_id.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


# Writes the transcripts of the topic to files, apart from the evaluator: a full disk delays no
# score.
#
# Its position is committed when the files exist, so each transcript becomes a file at least once,
# also after a crash; a second time it becomes the same file. A transcript that cannot be written
# waits in the topic and is tried again.

MAX_BATCH_RECORDS: Final = 50
"""Transcripts of one poll: their files take a tenth of a second."""
LOOK_SECONDS: Final = 0.5
"""From one look into a log in a file to the next."""
RETRY_SECONDS: Final = 5.0
"""How long until a file is tried again that could not be written, or a broker that was away."""

log = structlog.get_logger()


class _Filing:
    """Writes files, counts them, and says what is in the way."""

    def __init__(self, files: TranscriptFiles, instruments: Instruments) -> None:
        self._files = files
        self._instruments = instruments
        self._has_warned = False

    async def _prepare(self) -> None:
        """Makes the folder.

        Raises:
            OperatorError: The folder cannot be used; nothing was read.
        """
        if await asyncio.to_thread(self._files.prepare):
            log.warning(
                "transcripts_folder_is_open",
                folder=str(self._files.folder),
                problem="Every user of this machine may look into the folder of transcripts.",
                what_happens_now="New files can be read by callgauge's user only; "
                "their names, which hold the "
                "calls' ids, "
                "and files of an older version are open to all.",
                what_to_do="Take the rights away: chmod o-rwx for the folder and the files in it.",
            )

    async def _written(self, key: bytes, value: bytes) -> bool:
        """Writes the file of a call; false if the disk does not take it."""
        try:
            await asyncio.to_thread(self._files.write, key.decode("utf-8", "replace"), value)
        except OSError as error:
            self._instruments.inc("callgauge_transcript_files_total", ("failed",))
            self._tell(f"{error.filename}: {error.strerror or error}")
            return False
        self._instruments.inc("callgauge_transcript_files_total", ("written",))
        self._has_warned = False
        return True

    def _tell(self, problem: str) -> None:
        """Logs a fault once for as long as it lasts."""
        if not self._has_warned:
            self._has_warned = True
            log.error(
                "transcript_files_wait",
                problem=problem,
                what_happens_now=f"It is tried again every {RETRY_SECONDS:.0f} s; "
                "transcripts wait in their "
                "topic, and calls are "
                "evaluated as ever.",
                what_to_do="See to the disk and the rights of the folder, or to the broker.",
            )


class FileFiler(_Filing):
    """Writes a file of each transcript in a log in a file.

    Attributes:
        ready: Set once the folder can be used.
        next: Offset of the next transcript; those in front of it have files.
    """

    def __init__(self, log_file: FileLog, files: TranscriptFiles, instruments: Instruments) -> None:
        """Nothing is written before `run`. The log is open by then."""
        super().__init__(files, instruments)
        self.ready = asyncio.Event()
        self.next = 0
        self._log = log_file

    async def run(self, stop: asyncio.Event) -> None:
        """Makes files until `stop` is set; what is left waits in the log.

        Raises:
            TranscriptFolderError: The folder cannot be used.
        """
        await self._prepare()
        self.ready.set()
        while not stop.is_set():
            records = self._log.records(TRANSCRIPTS_TOPIC, self.next, MAX_BATCH_RECORDS)
            for record in records:
                if not await self._written(record.key, record.value):
                    await pause_unless(stop, RETRY_SECONDS)
                    break
                self.next = record.offset + 1
            if not records:
                await pause_unless(stop, LOOK_SECONDS)

    def problems(self) -> Sequence[str]:
        """A file that waits delays no score."""
        return ()


class TranscriptFiler(_Filing):
    """One member of the group that writes transcript files."""

    def __init__(
        self, kafka: KafkaSettings, group_id: str, files: TranscriptFiles, instruments: Instruments
    ) -> None:
        """Nothing is connected before `follow`. A new group begins with the oldest transcripts
        there are.
        """
        super().__init__(files, instruments)
        self._kafka = kafka
        self._group_id = group_id
        self._stop = asyncio.Event()
        self.reader = self._new_reader()

    async def follow(self, stop: asyncio.Event) -> None:
        """Makes files until `stop` is set.

        Raises:
            TranscriptFolderError: The folder cannot be used; nothing was read.
        """
        await self._prepare()
        self._stop = stop
        while not stop.is_set():
            try:
                await self._read(stop)
            except (KafkaError, KafkaUnreachableError, TopicsUnfitError, TimeoutError) as error:
                self._tell(str(error) or type(error).__name__)
                await pause_unless(stop, RETRY_SECONDS)

    async def _read(self, stop: asyncio.Event) -> None:
        if await finish_unless(stop, partition_counts(self._kafka, [TRANSCRIPTS_TOPIC])) is None:
            return
        self.reader = self._new_reader()
        try:
            await self.reader.start()
            await first_of(stop.wait(), self.reader.failure())
        finally:
            await self.reader.stop()

    def _new_reader(self) -> GroupReader[bytes]:
        return GroupReader(
            self._kafka,
            "transcript-files",
            TRANSCRIPTS_TOPIC,
            self.handle,
            message=tuple[TranscriptTurn, ...],
            decode=bytes,  # files have the bytes as they are
            group_id=self._group_id,
            max_records=MAX_BATCH_RECORDS,
            begins="earliest",
        )

    async def handle(self, batch: Batch[bytes]) -> None:
        """Writes the files of transcripts; waits after one that cannot be written."""
        for partition, run in itertools.groupby(
            batch, lambda each: TopicPartition(*each.place[:2])
        ):
            await self._file(partition, list(run))

    async def _file(self, partition: TopicPartition, batch: Batch[bytes]) -> None:
        """Writes the files of one partition in order until one fails; the rest is polled again."""
        for written, (place, value) in enumerate(batch):
            if isinstance(value, Unreadable):
                self._instruments.inc("callgauge_transcript_files_total", ("undecodable",))
                log.warning(
                    "transcript_undecodable",
                    record=value.reason,
                    what_happens_now="There is no file of it.",
                    what_to_do=value.what_to_do,
                )
                continue
            if not place.key or value is None:
                continue  # none of ours
            if not await self._written(place.key, value):
                if written:
                    await self._commit(partition, place.offset)
                self.reader.consumer.seek(partition, place.offset)
                await pause_unless(self._stop, RETRY_SECONDS)
                return
        await self._commit(partition, batch[-1].place.offset + 1)

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        try:
            await self.reader.commit({partition: OffsetAndMetadata(offset, "")}, COMMIT_SECONDS)
        # costs writing the same files again, if anything
        except (KafkaError, TimeoutError) as error:
            log.warning(
                "commit_failed", role="transcript files", error=str(error) or type(error).__name__
            )


# The work of the command `transcript`: writes transcripts to files or prints them.


def write_transcript(scoring: RecordedScoring, write: Callable[[str, bytes], None]) -> None:
    """Writes the transcript of a call, or says why it has none."""
    conversation_id = scoring.call.conversation_id
    if scoring.transcript is None:
        say(
            f"Call {conversation_id}: it has no transcript, because it is empty or its transcript "
            "would be too large."
        )
    else:
        write(conversation_id, scoring.transcript)


def print_transcript(_conversation_id: str, value: bytes) -> None:
    """Prints a transcript as a line of JSON."""
    print_json(value.decode())


class FolderWriter:
    """Writes each transcript into a file of its own."""

    def __init__(self, folder: Path, *, packs: bool) -> None:
        self._files = TranscriptFiles(folder, packs=packs)
        if self._files.prepare():
            say(
                f"The folder {folder} can be looked into by every user of this machine; the files "
                "in it only by you."
            )
        self._written: set[Path] = set()

    def write(self, conversation_id: str, value: bytes) -> None:
        try:
            path = self._files.write(conversation_id, value)
        except OSError as error:
            raise OperatorError(
                f"Call {conversation_id}: its transcript could not be written to "
                f"{self._files.path_of(conversation_id)} ({error.strerror or error}). It ends "
                "here; the files written before are whole. Make room, or choose another folder, "
                "and run it again."
            ) from error
        if path in self._written:
            say(
                f"Call {conversation_id}: its transcript replaces that of an earlier call of the "
                f"same id, in {path}."
            )
        self._written.add(path)
