"""The history role goes on where the store says, waits for a disk, and passes over what it cannot
read.
"""

import asyncio
import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.engine.redaction.redactor import Redactor
from consumers.history import service
from consumers.history.service import HistoryRole
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import Batch, NotKept, SqliteHistory
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import SetupError
from consumers.runtime.registry import Instruments
from schemas.annotations import Annotation
from schemas.rows import WordsRow, encode
from tests.support.patience import patient
from tests.unit.history.test_store import EVER, NOON_MS, TRANSCRIPT, call, stored


class Read(NamedTuple):
    """A record as the client hands it over."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = b"c"
    timestamp: int = NOON_MS


class Topics:
    """Logs in memory, and the client that reads them."""

    def __init__(self, logs: Mapping[str, Sequence[bytes | None]]) -> None:
        self.logs = {"annotations": [], "words": [], **logs}
        self.positions: dict[TopicPartition, int] = {}
        self.sought: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()

    async def start(self) -> None: ...

    async def end_offsets(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.highwater(tp) for tp in tps}

    def pause(self, *tps: TopicPartition) -> None:
        self.paused |= {*tps}

    def resume(self, *tps: TopicPartition) -> None:
        self.paused -= {*tps}

    async def stop(self) -> None: ...

    def assign(self, tps: Sequence[TopicPartition]) -> None:
        self.positions = dict.fromkeys(tps, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = self.sought[tp] = offset

    def highwater(self, tp: TopicPartition) -> int:
        return len(self.logs[tp.topic])

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    async def getmany(self, timeout_ms: int) -> dict[TopicPartition, list[Read]]:
        assert timeout_ms > 0
        await asyncio.sleep(0.001)
        found = {}
        for tp, at in self.positions.items():
            if tp not in self.paused and (
                records := [
                    Read(tp.topic, 0, offset, self.logs[tp.topic][offset])
                    for offset in range(at, self.highwater(tp))
                ]
            ):
                found[tp] = records
                self.positions[tp] = self.highwater(tp)
        return found


class Running:
    """A role on such topics."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        logs: Mapping[str, Sequence[bytes | None]],
        *,
        words: bool = True,
    ) -> None:
        self.topics = Topics(logs)
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry, ["history"])
        self.stop = asyncio.Event()
        monkeypatch.setattr(KafkaSettings, "consumer", lambda *_, **__: self.topics)
        monkeypatch.setattr(service, "partition_counts", self._counts)
        monkeypatch.setattr(service, "RETRY_SECONDS", 0.001)
        self.role = HistoryRole(
            KafkaSettings(),
            HistorySettings(folder=folder, words=words),
            self.instruments,
            Redactor(),
        )
        self.running = asyncio.create_task(self.role.run(self.stop))

    async def _counts(self, _: KafkaSettings, topics: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"callgauge_history_{name}", labels) or 0

    async def until_written(self, records: int) -> None:
        async with asyncio.timeout(patient(10)):
            # a metric has no event
            while self.counted("records_total", outcome="written") < records:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def ended(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.running, patient(10))


SCORES = [encode(row) for row in call("c") if not isinstance(row, WordsRow)]
WORDS = [encode(row) for row in call("c") if isinstance(row, WordsRow)]


def is_kept(folder: Path, *, words: bool = False) -> bool:
    """Whether a folder has the whole call."""
    store = SqliteHistory(folder)
    try:
        return store.call("c") == stored(
            row for row in call("c") if words or not isinstance(row, WordsRow)
        )
    finally:
        store.close()


def breaks(folder: Path) -> None:
    """Overwrites the only file."""
    (file,) = folder.glob("calls-*.sqlite")
    file.write_bytes(b"broken" * 1_000)


async def test_it_keeps_what_the_topics_have_and_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: dict[str, list[bytes | None]] = {"scores": [None, *SCORES], "transcripts": [TRANSCRIPT]}
    first = Running(monkeypatch, tmp_path, logs)
    await first.until_written(len(SCORES) + 1)
    assert first.role.problems() == ()
    await first.ended()
    assert is_kept(tmp_path)
    second = Running(monkeypatch, tmp_path, logs)
    async with asyncio.timeout(patient(10)):
        await second.role.ready.wait()
    await second.ended()
    assert second.topics.sought == {
        TopicPartition("scores", 0): len(SCORES) + 1,
        TopicPartition("annotations", 0): 0,
        TopicPartition("words", 0): 0,
        TopicPartition("transcripts", 0): 1,
    }


async def test_words_are_kept_if_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WORDS
    for words in (True, False):
        logs = {"scores": SCORES, "words": WORDS, "transcripts": []}
        running = Running(monkeypatch, tmp_path / str(words), logs, words=words)
        await running.until_written(len(SCORES) + len(WORDS) * words)
        await running.ended()
        assert is_kept(tmp_path / str(words), words=words)
        assert (TopicPartition("words", 0) in running.topics.sought) is words


async def test_a_record_that_cannot_be_read_is_counted_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(
        monkeypatch, tmp_path, {"scores": [b"{}", b"\xff", *SCORES], "transcripts": []}
    )
    await running.until_written(len(SCORES))
    assert running.counted("records_total", outcome="refused") == 2
    await running.ended()
    assert is_kept(tmp_path)


async def test_a_full_disk_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = (
        SqliteHistory.write,
        [sqlite3.OperationalError("database or disk is full"), OSError("read-only")],
    )

    def fails_first(store: SqliteHistory, batch: Any) -> NotKept:
        if failures:
            raise failures.pop(0)
        return write(store, batch)

    monkeypatch.setattr(SqliteHistory, "write", fails_first)
    running = Running(monkeypatch, tmp_path, {"scores": SCORES, "transcripts": [TRANSCRIPT]})
    await running.until_written(len(SCORES) + 1)
    assert running.counted("write_failures_total") == 2
    assert running.role.problems() == ()
    await running.ended()
    assert is_kept(tmp_path)


async def test_a_file_that_breaks_is_read_again_from_the_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {"scores": SCORES, "transcripts": [TRANSCRIPT]}
    first = Running(monkeypatch, tmp_path, logs)
    await first.until_written(len(SCORES) + 1)
    await first.ended()
    breaks(tmp_path)
    second = Running(monkeypatch, tmp_path, logs)
    await second.until_written(len(SCORES) + 1)
    await second.ended()
    store = SqliteHistory(tmp_path)
    assert [row["conversation_id"] for row in store.find(EVER)] == ["c"]
    store.close()


async def test_what_people_said_is_kept_and_what_is_hostile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Annotation(by="anna", at_ms=10**15, label="bad", note="she said jane@example.com")
    hostile = [
        json.dumps({"kind": "annotation", "by": "x", "at_ms": 1, "label": label}).encode()
        for label in ("a" * 1_000_000, "a" * 41, "A b", "a\n", "a%'", "a\0", "")
    ]
    nothing: list[bytes | None] = [
        b"[]",
        b"\xff",
        b"{}",
        b'{"kind":"annotation","by":"x","at_ms":1}',
    ]
    logs: dict[str, list[bytes | None]] = {
        "scores": [*SCORES],
        "transcripts": [],
        "annotations": [*hostile, *nothing, said.model_dump_json().encode()],
    }
    running = Running(monkeypatch, tmp_path, logs)
    await running.until_written(len(SCORES) + 1)
    assert running.counted("records_total", outcome="refused") == len(hostile) + len(nothing)
    await running.ended()
    store = SqliteHistory(tmp_path)
    assert store.annotations_of(["c"]) == {
        "c": [said.model_copy(update={"at_ms": NOON_MS, "note": "she said [EMAIL]"})]
    }
    store.close()


async def test_a_forgotten_call_is_never_written_not_even_when_all_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    write = SqliteHistory.write

    def noted(store: SqliteHistory, batch: Batch) -> NotKept:
        batches.append(batch)
        return write(store, batch)

    monkeypatch.setattr(SqliteHistory, "write", noted)
    running = Running(
        monkeypatch,
        tmp_path,
        {"scores": SCORES, "transcripts": [TRANSCRIPT], "annotations": [None]},
    )
    async with asyncio.timeout(patient(10)):
        # as above
        while running.counted("records_total", outcome="forgotten") < len(SCORES) + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await running.ended()
    assert (batches[0].people.forgotten, batches[0].rows, batches[0].transcripts) == (["c"], [], [])
    running.instruments.refresh()
    assert running.counted("forgotten_calls") == 1
    assert not is_kept(tmp_path)


def test_without_a_folder_it_does_not_start() -> None:
    with pytest.raises(SetupError, match=r"Set history\.folder"):
        HistoryRole(
            KafkaSettings(),
            HistorySettings(),
            Instruments(CollectorRegistry(), ["history"]),
            Redactor(),
        )
