"""History keeps each record once, whatever is read twice, cut off, deleted or damaged, and finds
calls by what happened in them.
"""

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
from msgspec import structs

from consumers.engine.limits import GoalRules, Limits
from consumers.history import sqlite
from consumers.history.search import COLUMNS, CallSearch, Condition, HistoryStore
from consumers.history.sqlite import Batch, HistoryBrokenError, HistoryFolderError, SqliteHistory
from consumers.runtime.process import OperatorError, SetupError
from consumers.store.rows import StoredCall
from schemas.columns import CALL_COLUMNS, flat
from schemas.rows import CallRow, GoalsRow, Labels, StoredRow, TurnRow, WordsRow
from streamer.offline.scoring import ScoringPlan, scored
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from tests.support.laws import examples

DAY_MS = 86_400_000
NOON_MS = 1_790_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2
SCORES = ("scores", 0)
EVER = CallSearch(0, 2**53)

PLAN = ScoringPlan(
    Limits(),
    GoalRules(asks_judge=False),
    "0.1.0",
    writes_transcripts=True,
    sets=goals_for([SAMPLE], None),
)
SCORED = scored(next(iter(read_recordings(SAMPLE))), PLAN)
TRANSCRIPT = SCORED.transcript or b""
AnyRow = StoredRow


def call(
    conversation_id: str, at_ms: int = NOON_MS, agent: str = "desk", tenant: str = "unknown"
) -> list[AnyRow]:
    """The rows of the sample as those of another call, at another time; each comes a millisecond
    after the one before it.
    """
    rows: list[AnyRow] = []
    for place, row in enumerate([*SCORED.rows, *SCORED.words]):
        match row:
            case GoalsRow():
                common: dict[str, Any] = {}
            case WordsRow():
                common = {"known_ms": at_ms + place, "tenant": tenant}
            case _:
                common = {"known_ms": at_ms + place, "labels": Labels(agent=agent, tenant=tenant)}
        if isinstance(row, CallRow):
            common["first_known_ms"] = at_ms
        rows.append(structs.replace(row, conversation_id=conversation_id, **common))
    return rows


def stored(rows: Iterable[AnyRow]) -> StoredCall:
    """What a reader of these rows of a call must find."""
    newest: dict[tuple[type, int | None], AnyRow] = {}
    for row in rows:
        key = (type(row), row.turn if isinstance(row, TurnRow | WordsRow) else None)
        if key not in newest or newest[key].revision <= row.revision:
            newest[key] = row
    (of_call,) = [row for row in newest.values() if isinstance(row, CallRow)]
    turns = sorted(
        (row for row in newest.values() if isinstance(row, TurnRow)), key=lambda row: row.turn
    )
    words = sorted(
        (row for row in newest.values() if isinstance(row, WordsRow)), key=lambda row: row.turn
    )
    goals = next((row for row in newest.values() if isinstance(row, GoalsRow)), None)
    return StoredCall(of_call, tuple(turns), goals, tuple(words))


def columns_of(rows: Iterable[AnyRow]) -> dict[str, object]:
    """The columns of a call with these rows."""
    return dict(zip(COLUMNS, flat(CALL_COLUMNS, stored(rows).call), strict=True))


def batch(rows: Iterable[AnyRow], next_offset: int = 1, **transcripts: bytes) -> Batch:
    return Batch(
        list(rows),
        [(name, NOON_MS, value) for name, value in transcripts.items()],
        {SCORES: next_offset},
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterable[SqliteHistory]:
    there = SqliteHistory(tmp_path / "history", writes=True)
    yield there
    there.close()


# Once each.


def log_of(random: Random) -> list[AnyRow]:
    """A partition of `scores`: calls of three days, one after another and at the same time, with
    revisions.
    """
    calls = [
        call(f"c-{number}", NOON_MS + random.randrange(3) * DAY_MS)
        for number in range(random.randint(1, 3))
    ]
    places = [number for number, records in enumerate(calls) for _ in records[:12]]
    random.shuffle(places)
    log: list[AnyRow] = []
    for number in places:
        record = calls[number].pop(0)
        log.append(record)
        if random.random() < 0.5:
            log.append(structs.replace(record, revision=record.revision + 1))
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
                store.write(Batch(log[at:until], [], {SCORES: until}, at_ms=NOON_MS))
                at = until
            if random.random() < 0.5:  # the next batch is cut off between two files
                crashes(
                    store,
                    Batch(log[at:], [], {SCORES: len(log)}, at_ms=NOON_MS),
                    random.randint(0, 2),
                )
            store.close()
        reader = SqliteHistory(folder)
        for conversation_id in {record.conversation_id for record in log}:
            of_call = [record for record in log if record.conversation_id == conversation_id]
            if any(isinstance(record, CallRow) for record in of_call):
                assert reader.call(conversation_id) == stored(of_call)
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


def test_a_call_over_midnight_stays_in_the_file_of_its_first_row(store: SqliteHistory) -> None:
    rows = call("c", NOON_MS // DAY_MS * DAY_MS + DAY_MS - 3)
    for place, row in enumerate(rows):
        store.write(Batch([row], [], {SCORES: place + 1}, at_ms=NOON_MS))
    assert (len(store._names()), store.call("c")) == (1, stored(rows))


def test_a_goal_set_that_comes_alone_is_kept_on_the_day_on_which_it_was_read(
    store: SqliteHistory,
) -> None:
    (goals, *rest) = sorted(call("c"), key=lambda row: not isinstance(row, GoalsRow))
    store.write(Batch([goals], [], {}, at_ms=NOON_MS))
    store.write(batch(rest))
    assert store.call("c") == stored([goals, *rest])
    assert len(store._names()) == 1


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
    store.write(Batch(call("old"), [], {SCORES: 10, ("scores", 1): 7}))
    for day in range(1, 4):
        store.write(batch(call(f"day-{day}", NOON_MS + day * DAY_MS), 10 + day))
    assert store.call("old") is None
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
    assert [path.name for path in store.folder.glob("*.broken-*")] == [
        newest.with_suffix(".broken-0").name
    ]
    again.close()


# The row of a call.


def test_the_columns_have_what_the_row_says(store: SqliteHistory) -> None:
    rows = call("c")
    store.write(batch(rows, c=TRANSCRIPT))
    (row,) = store.find(EVER)
    waits = [turn.wait_ms for turn in stored(rows).turns if isinstance(turn.wait_ms, float)]
    assert row["longest_wait_ms"] == max(waits)
    assert (row["labels.agent"], row["state"], row["first_known_ms"]) == ("desk", "closed", NOON_MS)
    assert row["failed_tools"] == "add_voucher"
    kinds = {"text": str, "integer": int, "real": float}
    for column in CALL_COLUMNS:
        assert row[column.name] is None or isinstance(row[column.name], kinds[column.kind]), (
            column.name
        )


def test_a_running_call_has_its_labels_and_no_figures_yet(store: SqliteHistory) -> None:
    (first, *_) = [row for row in call("c") if isinstance(row, CallRow)]
    store.write(batch([first]))
    (row,) = store.find(EVER)
    names = ("conversation_id", "labels.agent", "state", "p95_ms")
    assert [row[name] for name in names] == ["c", "desk", "running", None]


def test_a_transcript_that_comes_before_its_call_is_kept(store: SqliteHistory) -> None:
    store.write(Batch([], [("c", NOON_MS, TRANSCRIPT)], {}))
    assert store.find(EVER) == []
    store.write(batch(call("c")))
    assert (store.transcript("c"), len(store.find(EVER))) == (TRANSCRIPT, 1)


def test_without_words_there_are_none(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path, writes=True, keeps_words=False)
    store.write(batch(call("c"), c=TRANSCRIPT))
    assert store.transcript("c") is None
    assert store.call("c") == stored(row for row in call("c") if not isinstance(row, WordsRow))
    assert store.find(EVER._replace(words=["the"])) == []
    store.close()


def test_the_file_of_an_earlier_version_lacks_a_column_until_it_is_written_again(
    store: SqliteHistory,
) -> None:
    store.write(batch(call("c")))
    store.close()
    (file,) = store.folder.glob("calls-*.sqlite")
    earlier = sqlite3.connect(file)
    earlier.execute("DROP INDEX calls_by_wait")
    earlier.execute("ALTER TABLE calls DROP COLUMN longest_wait_ms")
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


# Questions.


def found(
    store: HistoryStore, *conditions: str, words: Sequence[str] = (), **question: Any
) -> list[object]:
    asked = EVER._replace(
        conditions=[Condition.parse(each) for each in conditions], words=words, **question
    )
    return [row["conversation_id"] for row in store.find(asked)]


@pytest.mark.parametrize("words", [["zimmer's"], ["bett", "nowhere"], ['"'], ["NEAR(", "*"]])
def test_where_words_are_not_indexed_a_question_for_them_is_answered(
    store: SqliteHistory, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.loads(TRANSCRIPT)
    said[0]["message"] = 'Ich möchte ein Zimmer\'s "Bett" 100% zurückgeben'
    store.write(batch([*call("a"), *call("b")], a=TRANSCRIPT, b=json.dumps(said).encode()))
    for day in store._days.values():
        monkeypatch.setattr(day, "has_words", False)
    assert set(found(store, words=words)) <= {"a", "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p95_ms", "expected a column"),
        ("p95 > 3", "no column 'p95'"),
        ("p95_ms > three", "is a number"),
        ("p95_ms ~ 3", "is a number"),
        ("p95_ms > nan", "is a number"),
        ("name = desk", "there is no column 'name'"),
        ("labels.agent > desk", "is a text"),
        ("labels.agent = " + "x" * 300, "at most 200"),
        ("1=1; DROP TABLE call", "no column '1'"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        Condition.parse(text)


def test_a_question_that_takes_too_long_is_stopped_and_says_so(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In SQLite itself, which would not come back, and between rows."""
    store.write(
        batch(
            [row for number in range(30) for row in call(f"c-{number}")], 1, **{"c-1": TRANSCRIPT}
        )
    )
    assert len(SqliteHistory(store.folder, seconds=60).find(EVER)) == 30
    for steps in (1, 10**9):
        monkeypatch.setattr(sqlite, "STEPS_BETWEEN_LOOKS", steps)
        late = SqliteHistory(store.folder, seconds=0)
        with pytest.raises(OperatorError, match="took longer than 0 s and was stopped"):
            late.find(EVER)
        late.close()
