"""History keeps each record once, whatever is read twice, cut off, deleted or damaged, and finds calls by what happened in them."""

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.history import sqlite
from consumers.history.rows import CALL_COLUMNS, COLUMN_NAMES, call_row
from consumers.history.search import Condition, Question, QuestionError
from consumers.history.sqlite import (
    Batch,
    HistoryBrokenError,
    HistoryFolderError,
    QuestionTooLongError,
    SqliteHistory,
)
from schemas.closed_sets import ToolOutcome
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, CallLabels, ToolUseFact
from streamer.notebook import score
from tests.support.laws import examples

DAY_MS = 86_400_000
NOON_MS = 1_790_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2
SCORES = ("scores", 0)
EVER = Question(0, 2**53)

(SAMPLE,) = score("sample")
TRANSCRIPT = json.dumps([turn.model_dump(mode="json") for turn in SAMPLE.transcript or ()]).encode()


def call(conversation_id: str, at_ms: int = NOON_MS, agent: str = "desk") -> list[AnyScoreRecord]:
    """The records of the sample as those of another call, at another time; each comes a millisecond after the one before it."""
    return [
        record.model_copy(
            update={
                "conversation_id": conversation_id,
                "caused_at_ms": at_ms + place,
                "labels": CallLabels(agent=agent),
            }
        )
        for place, record in enumerate(SAMPLE.records)
    ]


def valued(records: Iterable[AnyScoreRecord]) -> list[tuple[AnyScoreRecord, bytes]]:
    return [(record, record.model_dump_json().encode()) for record in records]


def batch(records: Iterable[AnyScoreRecord], next_offset: int = 1, **transcripts: bytes) -> Batch:
    return Batch(
        valued(records), [(name, NOON_MS, value) for name, value in transcripts.items()], {SCORES: next_offset}
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterable[SqliteHistory]:
    there = SqliteHistory(tmp_path / "history", writes=True)
    yield there
    there.close()


def in_order(records: Iterable[AnyScoreRecord]) -> list[str]:
    return sorted(record.model_dump_json() for record in records)


# Once each.


def log_of(random: Random) -> list[AnyScoreRecord]:
    """A partition of `scores`: calls of three days, one after another and at the same time, with revisions."""
    calls = [call(f"c-{number}", NOON_MS + random.randrange(3) * DAY_MS) for number in range(random.randint(1, 3))]
    places = [number for number, records in enumerate(calls) for _ in records[:12]]
    random.shuffle(places)
    log: list[AnyScoreRecord] = []
    for number in places:
        record = calls[number].pop(0)
        log.append(record)
        if random.random() < 0.5:
            log.append(record.model_copy(update={"revision": record.revision + 1}))
    return log


@examples(0.3)
@given(st.integers(0, 2**32))
def test_reading_in_parts_with_crashes_leaves_what_reading_once_leaves(seed: int) -> None:
    random = Random(seed)  # noqa: S311  # no secret
    log = log_of(random)
    with tempfile.TemporaryDirectory() as name:
        folder, at = Path(name), 0
        while at < len(log):
            store = SqliteHistory(folder, writes=True)
            at = store.positions().get(SCORES, 0)
            for _ in range(random.randint(1, 3)):
                until = random.randint(at, len(log))
                store.write(Batch(valued(log[at:until]), [], {SCORES: until}))
                at = until
            if random.random() < 0.5:  # the next batch is cut off between two files
                crashes(store, Batch(valued(log[at:]), [], {SCORES: len(log)}), random.randint(0, 2))
            store.close()
        reader = SqliteHistory(folder)
        for conversation_id in {record.conversation_id for record in log}:
            newest: dict[tuple[str, int | None, int], AnyScoreRecord] = {}
            for record in log:
                if record.conversation_id == conversation_id:
                    newest[record.name, record.turn, record.index] = record
            assert in_order(reader.call_records(conversation_id)[0]) == in_order(newest.values())
        reader.close()


def crashes(store: SqliteHistory, batch: Batch, after: int) -> None:
    """Writes a batch, with a disk that is full after so many files got their share of it."""
    whole = store._write_day
    written: list[Any] = []

    def write_day(*arguments: Any) -> None:
        if len(written) == after:
            raise sqlite3.OperationalError("database or disk is full")
        whole(*arguments)
        written.append(arguments)

    setattr(store, "_write_day", write_day)  # noqa: B010  # mypy lets no method be replaced
    with contextlib.suppress(sqlite3.OperationalError):
        store.write(batch)


def test_an_older_revision_does_not_replace_a_newer_one(store: SqliteHistory) -> None:
    (first, *_) = call("c")
    newer = first.model_copy(update={"revision": first.revision + 1})
    store.write(batch([newer]))
    store.write(batch([first]))
    assert store.call_records("c")[0] == [newer]


def test_a_call_over_midnight_stays_in_the_file_of_its_first_record(store: SqliteHistory) -> None:
    records = call("c", NOON_MS // DAY_MS * DAY_MS + DAY_MS - 3)
    for place, record in enumerate(records):
        store.write(batch([record], place + 1))
    assert len(store._names()) == 1
    assert in_order(store.call_records("c")[0]) == in_order(records)


# The folder.


def test_two_writers_of_one_folder_are_refused_and_readers_are_not(store: SqliteHistory) -> None:
    store.write(batch(call("c")))
    with pytest.raises(HistoryFolderError, match="another process writes"):
        SqliteHistory(store.folder, writes=True)
    reader = SqliteHistory(store.folder)
    assert [row["conversation_id"] for row in reader.find(EVER)] == ["c"]
    reader.close()


def test_only_the_owner_may_read_the_files(store: SqliteHistory) -> None:
    store.write(batch(call("c")))
    assert {path.stat().st_mode & 0o777 for path in store.folder.glob("calls-*.sqlite")} == {0o600}
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryFolderError, match="cannot be written"):
        SqliteHistory(tmp_path / "file" / "history", writes=True)
    with pytest.raises(HistoryFolderError, match="there is no folder"):
        SqliteHistory(tmp_path / "none")


def test_old_days_are_deleted_and_the_place_of_a_quiet_partition_stays(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path, writes=True, retention_days=2)
    store.write(Batch(valued(call("old")), [], {SCORES: 10, ("scores", 1): 7}))
    for day in range(1, 4):
        store.write(batch(call(f"day-{day}", NOON_MS + day * DAY_MS), 10 + day))
    assert store.call_records("old")[0] == []
    assert {row["conversation_id"] for row in store.find(EVER)} == {"day-1", "day-2", "day-3"}
    assert store.positions() == {SCORES: 13, ("scores", 1): 7}
    store.close()


def test_a_damaged_file_is_set_aside_and_read_again(store: SqliteHistory, tmp_path: Path) -> None:
    store.write(batch(call("kept"), 10))
    store.write(batch(call("lost", NOON_MS + DAY_MS), 20))
    store.close()
    (*_, newest) = sorted(store.folder.glob("calls-*.sqlite"))
    newest.write_bytes(b"no database" * 1_000)
    with pytest.raises(HistoryFolderError, match="damaged"):
        SqliteHistory(store.folder).find(EVER)
    again = SqliteHistory(store.folder, writes=True)
    with pytest.raises(HistoryBrokenError):
        again.positions()
    assert again.positions() == {SCORES: 10}
    again.write(batch(call("lost", NOON_MS + DAY_MS), 20))
    assert {row["conversation_id"] for row in again.find(EVER)} == {"kept", "lost"}
    assert [path.name for path in store.folder.glob("*.broken-*")] == [newest.with_suffix(".broken-0").name]
    again.close()


# The row of a call.


def test_the_row_has_what_the_records_say(store: SqliteHistory) -> None:
    records = call("c")
    store.write(batch(records, c=TRANSCRIPT))
    (row,) = store.find(EVER)
    assert row == call_row(records)
    assert tuple(row) == COLUMN_NAMES
    waits = sorted(
        record.voice_to_voice_ms.value
        for record in newest_scores(records).values()
        if record.name == "turn" and record.voice_to_voice_ms.outcome == "scored"
    )
    assert row["longest_wait_ms"] == waits[-1]
    assert (row["agent"], row["is_closed"], row["started_ms"]) == ("desk", 1, NOON_MS)
    kinds = {"text": str, "integer": int, "real": float}
    for column in CALL_COLUMNS:
        assert row[column.name] is None or isinstance(row[column.name], kinds[column.kind]), column.name


def test_a_running_call_has_its_labels_and_no_figures_yet(store: SqliteHistory) -> None:
    store.write(batch(call("c")[:1]))
    (row,) = store.find(EVER)
    assert (row["conversation_id"], row["agent"], row["is_closed"], row["p95_ms"]) == ("c", "desk", 0, None)


def test_a_transcript_that_comes_before_its_call_is_kept(store: SqliteHistory) -> None:
    store.write(Batch([], [("c", NOON_MS, TRANSCRIPT)], {}))
    assert store.find(EVER) == []
    store.write(batch(call("c")))
    assert store.call_records("c")[1] == TRANSCRIPT
    assert len(store.find(EVER)) == 1


def test_without_words_there_are_none(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path, writes=True, keeps_words=False)
    store.write(batch(call("c"), c=TRANSCRIPT))
    assert store.call_records("c")[1] is None
    assert store.find(EVER._replace(words=["the"])) == []
    store.close()


def test_the_file_of_an_earlier_version_lacks_a_column_until_it_is_written_again(store: SqliteHistory) -> None:
    store.write(batch(call("c")))
    store.close()
    (file,) = store.folder.glob("calls-*.sqlite")
    earlier = sqlite3.connect(file)
    earlier.execute("DROP INDEX call_by_wait")
    earlier.execute("ALTER TABLE call DROP COLUMN longest_wait_ms")
    earlier.close()
    reader = SqliteHistory(store.folder)
    assert [row["longest_wait_ms"] for row in reader.find(EVER)] == [None]
    assert found(reader, "longest_wait_ms > 0") == []
    reader.close()
    writer = SqliteHistory(store.folder, writes=True)
    writer.write(batch(call("d"), 2))
    assert found(writer, "longest_wait_ms > 0") == ["d"]
    assert found(writer)[-1] == "c"
    writer.close()


def test_a_call_is_read_with_its_transcript(store: SqliteHistory) -> None:
    records = call("c")
    store.write(batch([*records, *call("d")], c=TRANSCRIPT))
    read, transcript = store.call_records("c")
    assert in_order(read) == in_order(records)
    assert transcript == TRANSCRIPT
    assert len(store.call_records("d")[0]) == len(records)
    assert store.call_records("d")[1] is None
    assert store.call_records("nobody") == ([], None)


# Questions.


def found(store: SqliteHistory, *conditions: str, words: Sequence[str] = (), **question: Any) -> list[object]:
    asked = EVER._replace(conditions=[Condition.parse(each) for each in conditions], words=words, **question)
    return [row["conversation_id"] for row in store.find(asked)]


@pytest.fixture
def three(store: SqliteHistory) -> SqliteHistory:
    """Three calls of two agents on two days, of which the second has words of its own."""
    said = json.loads(TRANSCRIPT)
    said[0]["message"] = 'Ich möchte ein Zimmer\'s "Bett" 100% zurückgeben'
    store.write(batch([*call("a"), *call("b", agent="care")], a=TRANSCRIPT, b=json.dumps(said).encode()))
    store.write(batch(call("c", NOON_MS + DAY_MS), 2, c=TRANSCRIPT))
    return store


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), {"a", "b", "c"}),
        (("agent = desk",), {"a", "c"}),
        (("agent != desk",), {"b"}),
        (("agent ~ es",), {"a", "c"}),
        (("agent = DESK",), set()),
        (("agent ~ %",), set()),
        (("longest_wait_ms > 0", "agent = care"), {"b"}),
        (("longest_wait_ms < 0",), set()),
        (("is_closed >= 1",), {"a", "b", "c"}),
        (("stt_wer != -1",), {"a", "b", "c"} if call_row(call("x"))["stt_wer"] is not None else set()),
        (("agent = ' OR 1=1 --",), set()),
    ],
)  # fmt: skip
def test_conditions(three: SqliteHistory, conditions: tuple[str, ...], expected: set[str]) -> None:
    assert set(found(three, *conditions)) == expected


@pytest.mark.parametrize("has_words", [True, False])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["zimmer's"], ["b"]),
        (["ZURÜCKGEBEN", "bett"], ["b"]),
        (["bett", "nowhere"], []),
        (['"'], None),
        (["OR"], None),
        (["NEAR(", "*"], None),
        (["\x00"], None),
    ],
)  # fmt: skip
def test_words(
    three: SqliteHistory, words: list[str], expected: list[str] | None, has_words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_words:
        for day in three._days.values():
            monkeypatch.setattr(day, "has_words", False)
    answer = found(three, words=words)
    assert expected is None or answer == expected


def test_a_period_and_the_most_calls(three: SqliteHistory) -> None:
    assert set(found(three, until_ms=NOON_MS + 1)) == {"a", "b"}
    assert found(three, since_ms=NOON_MS + 1) == ["c"]
    assert len(found(three, most=2)) == 2
    assert found(three, order_by="started_ms")[0] == "c"


def test_a_new_transcript_replaces_the_words_of_the_old_one(three: SqliteHistory) -> None:
    three.write(batch([], 3, b=TRANSCRIPT))
    assert found(three, words=["zimmer's"]) == []
    assert three.call_records("b")[1] == TRANSCRIPT


@pytest.mark.parametrize(
    "conversation_id", ["'; DROP TABLE call; --", "a\nb", "100%", "\x00", "é", "../../etc", "x" * 10_000]
)
def test_an_id_is_only_an_id(store: SqliteHistory, conversation_id: str) -> None:
    records = call(conversation_id)
    store.write(Batch(valued(records), [(conversation_id, NOON_MS, TRANSCRIPT)], {SCORES: 1}))
    assert in_order(store.call_records(conversation_id)[0]) == in_order(records)
    assert [row["conversation_id"] for row in store.find(EVER)] == [conversation_id]
    assert store.call_records(conversation_id)[1] == TRANSCRIPT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p95_ms", "expected a column"),
        ("p95 > 3", "no column 'p95'"),
        ("p95_ms > three", "is a number"),
        ("p95_ms ~ 3", "is a number"),
        ("p95_ms > nan", "is a number"),
        ("agent > desk", "is a text"),
        ("agent = " + "x" * 300, "at most 200"),
        ("1=1; DROP TABLE call", "no column '1'"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(QuestionError, match=message):
        Condition.parse(text)


def test_a_tool_whose_answer_is_withheld_is_not_known_to_have_failed() -> None:
    uses = [record for record in SAMPLE.records if isinstance(record, ToolUseFact)]
    others = [record for record in SAMPLE.records if not isinstance(record, ToolUseFact)]
    assert uses
    for outcome in ToolOutcome:
        row = call_row([*others, *(use.model_copy(update={"outcome": outcome}) for use in uses)])
        failed = len(uses) if outcome in {ToolOutcome.ERROR, ToolOutcome.UNANSWERED} else 0
        assert (row["failed_tool_calls"], bool(row["failed_tools"])) == (failed, failed > 0)


def test_a_question_that_takes_too_long_is_stopped_and_says_so(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In SQLite itself, which would not come back, and between rows."""
    store.write(batch([record for number in range(30) for record in call(f"c-{number}")], 1, **{"c-1": TRANSCRIPT}))
    assert len(SqliteHistory(store.folder, seconds=60).find(EVER)) == 30
    for steps in (1, 10**9):
        monkeypatch.setattr(sqlite, "STEPS_BETWEEN_LOOKS", steps)
        late = SqliteHistory(store.folder, seconds=0)
        with pytest.raises(QuestionTooLongError, match="took longer than 0 s and was stopped"):
            late.find(EVER)
        late.close()
