"""What people say of a call is kept once each, and a forgotten call is in no file any more and does
not come back.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from consumers.history import annotations
from consumers.history.annotations import FromPeople
from consumers.history.sqlite import (
    Batch,
    HistoryBrokenError,
    HistoryFolderError,
    NotKept,
    SqliteHistory,
)
from schemas.annotations import Annotation, ForgottenTenant
from tests.unit.history.test_store import (
    DAY_MS,
    EVER,
    NOON_MS,
    SCORES,
    TRANSCRIPT,
    AnyRow,
    batch,
    call,
    found,
)

PEOPLE = ("annotations", 0)
WORD = "xylophonist"
"""A word of one transcript alone."""


@pytest.fixture
def store(tmp_path: Path) -> Iterable[SqliteHistory]:
    there = SqliteHistory(tmp_path / "history", writes=True)
    yield there
    there.close()


def said(by: str, label: str | None = None, at_ms: int = NOON_MS, **more: object) -> Annotation:
    return Annotation.model_validate({"by": by, "label": label, "at_ms": at_ms, **more})


def takes(store: SqliteHistory, *each: tuple[str, Annotation], **people: object) -> NotKept:
    taken = FromPeople(each, **{"positions": {PEOPLE: 1}, **people})  # type: ignore[arg-type]
    return store.write(Batch([], [], {}, taken))


def of_tenant(conversation_id: str, at_ms: int = NOON_MS) -> list[AnyRow]:
    return call(conversation_id, at_ms, tenant="acme")


def in_files(folder: Path, *parts: bytes) -> list[bytes]:
    """Which of these bytes are in any file of a folder."""
    whole = [path.read_bytes() for path in folder.iterdir()]
    return [part for part in parts if any(part in content for content in whole)]


def test_the_last_of_a_person_and_label_counts(store: SqliteHistory) -> None:
    anna, ben = said("anna", "bad", note="first"), said("ben", "bad")
    newer = said("anna", "bad", NOON_MS + 2, note="second")
    note = said("anna", note="a note alone", at_ms=NOON_MS + 1)
    earlier = said("ben", "bad", NOON_MS - 1)
    takes(store, ("c", anna), ("c", newer), ("c", ben), ("c", anna), ("c", note), ("d", earlier))
    assert store.annotations_of(["c", "d", "e"]) == {"c": [ben, note, newer], "d": [earlier]}
    takes(
        store,
        ("c", said("anna", "bad", NOON_MS + 3, is_withdrawn=True)),
        ("d", said("anna", "bad", is_withdrawn=True)),
    )
    assert store.annotations_of(["c", "d"]) == {"c": [ben, note], "d": [earlier]}
    reader = SqliteHistory(store.folder)
    assert (reader.labelled("bad"), reader.labelled("none")) == (["c", "d"], [])
    reader.close()


@pytest.mark.parametrize(
    "conversation_id", ["'; DROP TABLE annotation; --", "a\nb", "100%", "\x00", "é", "x" * 10_000]
)
def test_an_id_is_only_an_id(store: SqliteHistory, conversation_id: str) -> None:
    store.write(batch([*call(conversation_id), *call("other")]))
    takes(
        store,
        (conversation_id, said("' OR 1 --", "bad", note="\0%'\n")),
        ("nobody", said("anna", "bad")),
    )
    assert found(store, ids=store.labelled("bad")) == [conversation_id]
    assert store.annotations_of([conversation_id])[conversation_id][0].note == "\0%'\n"
    assert store.forget([conversation_id]) == 1
    assert found(store) == ["other"]


def test_more_than_the_bound_is_refused_and_what_is_there_can_still_change(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotations, "MAX_OF_A_CALL", 2)
    monkeypatch.setattr(annotations, "MAX_ANNOTATIONS", 3)
    of_c = [("c", said(by, "bad")) for by in ("anna", "ben", "carl")]
    assert takes(store, *of_c, ("d", said("anna", "bad")), ("e", said("anna", "bad"))).refused == 2
    assert takes(store, ("c", said("anna", "bad", note="more"))).refused == 0
    assert [each.note for each in store.annotations_of(["c"])["c"]] == ["more", ""]


def test_what_is_forgotten_is_in_no_file_and_stays_away(store: SqliteHistory) -> None:
    words = json.loads(TRANSCRIPT)
    words[0]["message"] = f"I am a {WORD}"
    value = json.dumps(words).encode()
    store.write(
        batch([*call("kept"), *call("forgotten_call")], forgotten_call=value, kept=TRANSCRIPT)
    )
    takes(
        store,
        ("forgotten_call", said("anna", "bad", note="about the caller")),
        ("kept", said("anna", "bad")),
    )
    assert found(store, words=[WORD]) == ["forgotten_call"]
    (day,) = store._days.values()
    call_id = day.rows.id_of("forgotten_call")
    packed = [
        row[0] for row in day.connection.execute("SELECT packed FROM call WHERE id = ?", [call_id])
    ]
    packed += [
        row[0]
        for row in day.connection.execute("SELECT value FROM transcript WHERE call = ?", [call_id])
    ]
    secret = [
        b"forgotten_call",
        WORD.encode(),
        b"about the caller",
        *(each[-40:] for each in packed),
    ]
    assert in_files(store.folder, *secret) == secret
    takes(store, forgotten=("forgotten_call",), positions={PEOPLE: 2})
    assert in_files(store.folder, *secret) == []
    late = store.write(batch(call("forgotten_call"), 2, forgotten_call=value))
    assert late == NotKept(0, len(call("c")) + 1)
    takes(store, ("forgotten_call", said("ben", "good")))
    assert in_files(store.folder, *secret) == []
    assert found(store, words=["the"]) == found(store) == ["kept"]
    assert [*store.annotations_of(["forgotten_call", "kept"])] == ["kept"]
    assert store.positions() == {SCORES: 2, PEOPLE: 1}


def test_the_calls_of_a_tenant_are_forgotten_up_to_a_moment(store: SqliteHistory) -> None:
    store.write(Batch([*of_tenant("before"), *call("other")], [("late", NOON_MS, TRANSCRIPT)], {}))
    takes(store, ("before", said("anna", "bad", tenant="acme")), ("other", said("anna", "bad")))
    moment = ForgottenTenant(kind="forgotten_tenant", tenant="acme", at_ms=NOON_MS + DAY_MS)
    takes(store, tenants=[moment])
    assert found(store) == ["other"]
    assert [*store.annotations_of(["before", "other"])] == ["other"]
    store.write(
        batch([*of_tenant("late"), *of_tenant("after", NOON_MS + DAY_MS), *call("another")], 2)
    )
    store.write(batch(of_tenant("late", NOON_MS + DAY_MS), 3))  # it went on
    assert sorted(map(str, found(store))) == ["after", "another", "other"]
    assert (store.call("late"), store.transcript("late")) == (None, None)
    ids = ("before", "late", "after", "other")
    assert [each for each in ids if store.is_forgotten(each)] == ["before", "late"], (
        "whoever has rows of them still can ask"
    )


def test_a_reader_makes_forgetting_wait_and_then_it_is_whole(store: SqliteHistory) -> None:
    store.write(batch([*call("c"), *call("d")], c=TRANSCRIPT))
    reader = SqliteHistory(store.folder)
    row = reader.values(EVER, ["agent"])
    next(row)
    (day,) = store._days.values()
    day.connection.execute("PRAGMA busy_timeout = 0")
    with pytest.raises(Exception, match="reader"):
        takes(store, forgotten=("c",))
    assert store.positions() == {SCORES: 1}, "it is read again"
    row.close()  # type: ignore[attr-defined]  # a generator
    takes(store, forgotten=("c",))
    assert in_files(store.folder, b'"c"') == []
    reader.close()


def test_annotations_go_with_the_day_of_their_call(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path, writes=True, retention_days=2)
    store.write(batch(call("old")))
    late = NOON_MS + 2 * DAY_MS
    takes(
        store,
        ("old", said("anna", "bad", late)),
        ("never", said("anna", "bad")),
        ("soon", said("anna", "bad", late)),
    )
    store.write(batch(call("new", NOON_MS + 3 * DAY_MS), 2))
    assert store.labelled("bad") == ["soon"]
    store.close()


def test_a_damaged_file_is_set_aside_and_its_topic_is_read_again(store: SqliteHistory) -> None:
    store.write(batch(call("c")))
    takes(store, ("c", said("anna", "bad")), positions={PEOPLE: 7})
    store.close()
    (store.folder / annotations.FILE_NAME).write_bytes(b"no database" * 1_000)
    reader = SqliteHistory(store.folder)
    with pytest.raises(HistoryFolderError, match=r"annotations\.sqlite is damaged"):
        reader.labelled("bad")
    reader.close()
    again = SqliteHistory(store.folder, writes=True)
    with pytest.raises(HistoryBrokenError):
        again.positions()
    assert again.positions() == {SCORES: 1}
    assert [path.name for path in store.folder.glob("*.broken-*")] == ["annotations.broken-0"]
    takes(again, ("c", said("anna", "bad")))
    assert again.labelled("bad") == ["c"]
    again.close()
