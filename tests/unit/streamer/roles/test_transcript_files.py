"""Transcripts become whole files under safe names, each at least once, in order, and a failed one
waits.
"""

import asyncio
import gzip
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaConnectionError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from consumers.runtime.registry import Instruments
from streamer.roles import transcript_files as transcript_filer
from streamer.roles.transcript_files import (
    MAX_NAME_CHARS,
    TranscriptFiler,
    TranscriptFiles,
    file_stem,
)
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.known import Logged
from tests.support.patience import patient

VALUE = b'[{"role":"user"}]'


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def files(tmp_path: Path) -> TranscriptFiles:
    made = TranscriptFiles(tmp_path / "a" / "b", packs=False)
    made.prepare()
    return made


def test_a_transcript_becomes_a_file_named_after_its_call(
    files: TranscriptFiles, tmp_path: Path
) -> None:
    path = files.write("conv-1", VALUE)
    assert path == files.path_of("conv-1") == tmp_path / "a" / "b" / "conv-1.json"
    assert path.read_bytes() == VALUE
    assert names_in(path.parent) == ["conv-1.json"], "nothing else is left"


def test_a_second_one_replaces_the_first(files: TranscriptFiles) -> None:
    files.write("conv-1", b"[]")
    assert files.write("conv-1", VALUE).read_bytes() == VALUE


def test_packed_files_are_the_same_for_the_same_transcript(tmp_path: Path) -> None:
    files = TranscriptFiles(tmp_path, packs=True)
    path = files.write("conv-1", VALUE)
    first = path.read_bytes()
    assert path.name == "conv-1.json.gz"
    assert gzip.decompress(first) == VALUE
    assert files.write("conv-1", VALUE).read_bytes() == first


def test_a_file_is_there_as_a_whole_or_not_at_all(
    files: TranscriptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the content is synced: the earlier file is still there, and no partial
    file.
    """
    path = files.write("conv-1", VALUE)

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("conv-1", "conv-2"):
        with pytest.raises(OSError, match="No space left"):
            files.write(name, b"x" * 1_000)
    assert path.read_bytes() == VALUE
    assert names_in(path.parent) == ["conv-1.json"]


def test_what_a_killed_process_had_begun_is_taken_away(files: TranscriptFiles) -> None:
    folder = files.path_of("x").parent
    (folder / ".conv-1.json.77.part").write_bytes(b"[{")
    (folder / "notes.txt").write_text("mine")
    files.prepare()
    assert names_in(folder) == ["notes.txt"]


@pytest.mark.parametrize("made_of", ["a file", "a path below a file"])
def test_a_folder_that_cannot_be_is_told_in_plain_words(tmp_path: Path, made_of: str) -> None:
    (tmp_path / "taken").write_text("")
    folder = tmp_path / "taken" if made_of == "a file" else tmp_path / "taken" / "below"
    with pytest.raises(OperatorError) as told:
        TranscriptFiles(folder, packs=False).prepare()
    assert str(told.value).startswith(f"Transcripts: the folder {folder} cannot be written to (")
    assert "nothing was started" in str(told.value)


@given(st.text(min_size=1, max_size=300))
def test_any_id_makes_a_safe_name(conversation_id: str) -> None:
    stem = file_stem(conversation_id)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", stem)
    assert len(stem) <= MAX_NAME_CHARS + 17
    assert Path(stem).name == stem
    assert file_stem(conversation_id) == stem


@pytest.mark.parametrize(
    ("one", "other"),
    [("a/b", "a_b"), ("a/b", "a:b"), ("x" * 101, "x" * 102), ("é", "è"), (".", ".."), ("-a", ".a")],
)
def test_different_ids_have_different_names(one: str, other: str) -> None:
    assert file_stem(one) != file_stem(other)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o377], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_files_and_the_folders_made_for_them_are_their_owners_alone(tmp_path: Path) -> None:
    files = TranscriptFiles(tmp_path / "a" / "b", packs=False)
    before = mode_of(tmp_path)
    assert not files.prepare()
    path = files.write("conv-1", VALUE)
    assert [mode_of(each) for each in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert mode_of(tmp_path) == before, "what is not ours stays as it is"


@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o755, True), (0o701, True), (0o750, False), (0o700, False)]
)
def test_a_folder_that_is_there_keeps_its_rights_and_says_whether_it_is_open(
    tmp_path: Path, mode: int, is_open: bool
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(mode)
    assert TranscriptFiles(folder, packs=False).prepare() is is_open
    assert mode_of(folder) == mode


def test_an_older_file_that_others_could_read_is_replaced_by_one_that_they_cannot(
    files: TranscriptFiles,
) -> None:
    files.path_of("conv-1").write_text("[]")
    files.path_of("conv-1").chmod(0o644)
    assert mode_of(files.write("conv-1", VALUE)) == 0o600


def test_links_are_not_followed(
    files: TranscriptFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links stay unused under the name of a transcript, under a guessed name of a part, and under a
    left-over part.
    """
    target = tmp_path / "another"
    target.write_text("mine")
    folder = files.path_of("conv-1").parent
    files.path_of("conv-1").symlink_to(target)
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: iter(["guessed", "new"]))
    part = folder / ".conv-1.json.guessed.part"
    part.symlink_to(target)
    path = files.write("conv-1", VALUE)
    assert not path.is_symlink()
    assert path.read_bytes() == VALUE
    assert part.is_symlink()
    monkeypatch.undo()
    files.prepare()
    assert names_in(folder) == ["conv-1.json"]
    assert target.read_text() == "mine"


def test_a_folder_with_the_name_of_a_part_keeps_nobody_from_starting(
    files: TranscriptFiles,
) -> None:
    (files.path_of("x").parent / ".odd.part").mkdir()
    files.prepare()
    assert files.write("conv-1", VALUE).read_bytes() == VALUE


def test_a_safe_id_is_its_own_name() -> None:
    assert file_stem("1.1.2-run_7") == "1.1.2-run_7"
    assert not file_stem("../up").startswith(".")


KAFKA = KafkaSettings(topic_prefix="t.")
TP = TopicPartition("t.transcripts", 1)
SOON_SECONDS = 60
"""A bound, not a goal: files are forced to a disk that may be busy."""


class FakeConsumer:
    """A log of one partition; remembers the read position and the committed offsets."""

    def __init__(self, records: Sequence[BrokerRecord]) -> None:
        self.log = {record.offset: record for record in records}
        self.position = min(self.log, default=0)
        self.committed: list[int] = []
        self.polled = asyncio.Event()
        self.errors: list[KafkaError] = []
        self.commit_error: KafkaError | None = None
        self.commits_for_ever = False
        self.is_stopped = False

    async def start(self) -> None:
        if self.errors:
            raise self.errors.pop()

    async def stop(self) -> None:
        self.is_stopped = True

    def subscribe(self, topics: Sequence[str], **_: Any) -> None:
        self.topics = topics

    async def getmany(
        self, *, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[BrokerRecord]]:
        assert timeout_ms <= 200, "what a stop waits for"
        found = [self.log[offset] for offset in sorted(self.log) if offset >= self.position]
        if not found:
            self.polled.set()
            await asyncio.sleep(0)
            return {}
        self.position = found[-1].offset + 1
        return {TP: found}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert partition == TP
        self.position = offset

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        if self.commits_for_ever:
            await asyncio.Event().wait()
        self.committed.append(offsets[TP].offset)


class FailingFiles(TranscriptFiles):
    """Fails as often as `failing` says to write the transcript of an id."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, packs=False)
        self.failing = Counter[str]()
        self.tried: list[str] = []

    def write(self, conversation_id: str, value: bytes) -> Path:
        self.tried.append(conversation_id)
        if self.failing[conversation_id]:
            self.failing[conversation_id] -= 1
            raise OSError(28, "No space left on device", str(self.path_of(conversation_id)))
        return super().write(conversation_id, value)


class Filing:
    """A filer that FastStream gives a fake client."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, *records: BrokerRecord
    ) -> None:
        self.consumer = FakeConsumer(records)
        self.files = FailingFiles(folder)
        self.registry = CollectorRegistry()
        self.asked: dict[str, Any] = {}
        self.stop = asyncio.Event()
        instruments = Instruments(self.registry, ["evaluator"])
        self.filer = TranscriptFiler(KAFKA, "g-files", self.files, instruments)

        def consumer(**options: Any) -> FakeConsumer:
            self.asked = options
            return self.consumer

        async def counts(_kafka: KafkaSettings, names: Sequence[str]) -> dict[str, int]:
            return dict.fromkeys(names, 2)

        monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", consumer)
        monkeypatch.setattr(transcript_filer, "partition_counts", counts)
        monkeypatch.setattr(transcript_filer, "RETRY_SECONDS", 0.0)

    def count(self, outcome: str) -> float:
        return (
            self.registry.get_sample_value("callgauge_transcript_files_total", {"outcome": outcome})
            or 0.0
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Follows until the condition is true, then stops."""
        following = asyncio.create_task(self.filer.follow(self.stop))

        async def wait() -> None:
            while not condition():
                assert not following.done(), following
                await asyncio.to_thread(
                    int
                    # files are written in threads, and a loop that never waits can keep them from
                    # running
                )

        await asyncio.wait_for(wait(), patient(SOON_SECONDS))
        self.stop.set()
        await asyncio.wait_for(following, patient(SOON_SECONDS))


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


TWO = (
    BrokerRecord(TP.topic, 3, 0, b"a", b"[1]", TP.partition),
    BrokerRecord(TP.topic, 5, 0, b"b", b"[2]", TP.partition),
)


@pytest.fixture
def filing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Filing:
    return Filing(monkeypatch, tmp_path, *TWO)


async def test_files_are_there_before_the_position_is_committed(
    filing: Filing, tmp_path: Path
) -> None:
    await filing.until(lambda: bool(filing.consumer.committed))
    assert files_in(tmp_path) == {"a.json": b"[1]", "b.json": b"[2]"}
    assert filing.consumer.committed == [6]
    assert (filing.count("written"), filing.count("failed")) == (2, 0)
    assert filing.consumer.is_stopped
    assert filing.consumer.topics == ["t.transcripts"]
    assert (filing.asked["group_id"], filing.asked["enable_auto_commit"]) == ("g-files", False)
    assert filing.asked["auto_offset_reset"] == "earliest", "a new group files all that is kept"


async def test_what_cannot_be_written_waits_and_is_told_once(
    filing: Filing, tmp_path: Path, logged: Logged
) -> None:
    filing.files.failing["b"] = 3
    await filing.until(lambda: 6 in filing.consumer.committed)
    assert filing.consumer.committed == [5, 6], "the position stays before it"
    assert filing.files.tried == ["a", "b", "b", "b", "b"]
    assert (filing.count("written"), filing.count("failed")) == (2, 3)
    (line,) = [line for line in logged if line["event"] == "transcript_files_wait"]
    assert "No space left on device" in line["problem"]
    assert (tmp_path / "b.json").read_bytes() == b"[2]"


async def test_records_that_are_no_transcripts_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    filing = Filing(
        monkeypatch,
        tmp_path,
        BrokerRecord(TP.topic, 0, 0, None, b"x", TP.partition),
        BrokerRecord(TP.topic, 1, 0, b"c", None, TP.partition),
        BrokerRecord(TP.topic, 2, 0, b"\xff", b"[]", TP.partition),
    )
    await filing.until(lambda: bool(filing.consumer.committed))
    assert filing.consumer.committed == [3]
    assert list(files_in(tmp_path).values()) == [b"[]"]


async def test_a_commit_that_fails_costs_nothing_but_the_same_files_again(
    filing: Filing, logged: Logged
) -> None:
    filing.consumer.commit_error = CommitFailedError()
    await filing.until(filing.consumer.polled.is_set)
    assert [line["event"] for line in logged] == ["commit_failed"]
    assert filing.count("written") == 2


async def test_a_commit_that_the_client_tries_for_ever_is_given_up(
    filing: Filing, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    """As it does if the topic is deleted."""
    monkeypatch.setattr(transcript_filer, "COMMIT_SECONDS", 0.01)
    filing.consumer.commits_for_ever = True
    await filing.until(filing.consumer.polled.is_set)
    assert [(line["event"], line["error"]) for line in logged] == [
        ("commit_failed", "TimeoutError")
    ]


async def test_a_broker_that_is_away_is_tried_again(
    filing: Filing, tmp_path: Path, logged: Logged
) -> None:
    filing.consumer.errors = [KafkaConnectionError("away"), KafkaConnectionError("away")]
    await filing.until(lambda: bool(filing.consumer.committed))
    (told,) = [line["problem"] for line in logged if line["event"] == "transcript_files_wait"]
    assert "away" in told


async def test_a_folder_that_cannot_be_used_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    filing = Filing(monkeypatch, tmp_path / "taken", *TWO)
    with pytest.raises(OperatorError):
        await asyncio.wait_for(filing.filer.follow(filing.stop), patient(SOON_SECONDS))
    assert filing.files.tried == []


@pytest.mark.parametrize(("mode", "lines"), [(0o755, 1), (0o750, 0)])
async def test_a_folder_that_everybody_can_look_into_is_told_once(
    filing: Filing, tmp_path: Path, mode: int, lines: int, logged: Logged
) -> None:
    await asyncio.to_thread(tmp_path.chmod, mode)
    filing.consumer.errors = [KafkaConnectionError("gone")]  # the filer begins again
    await filing.until(lambda: bool(filing.consumer.committed))
    assert [line["event"] for line in logged].count("transcripts_folder_is_open") == lines
