"""Labels of people: found, exported, compared with a judge; and calls that are forgotten in a
folder.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from consumers.engine.redaction.redactor import Redactor
from consumers.history.annotations import FromPeople
from consumers.history.search import CallSearch, Condition
from consumers.history.sqlite import Batch, FolderInUseError, SqliteHistory
from consumers.runtime.process import OperatorError, SetupError
from schemas.annotations import Annotation
from schemas.rows import Labels
from streamer.history import people
from streamer.history.agreement import LabelAgreement, agreement
from streamer.history.importing import Importing
from streamer.history.people import Forgetting, calls_in, forget_in
from streamer.history.said import annotation, this_user
from tests.unit.history.test_annotations import of_tenant, said
from tests.unit.history.test_store import NOON_MS, TRANSCRIPT, batch, call
from tests.unit.streamer.command_line import command

EVER = CallSearch(0, 2**53)


@pytest.fixture
def store(tmp_path: Path) -> Iterable[SqliteHistory]:
    there = SqliteHistory(tmp_path / "history", writes=True)
    yield there
    there.close()


def labels(store: SqliteHistory, *each: tuple[str, Annotation]) -> None:
    store.write(Batch([], [], {}, FromPeople(each)))


def succeeded(store: SqliteHistory, **calls: float | None) -> None:
    """Calls in history with these values of `goals.progress.success`."""
    store.write(batch([record for name in calls for record in call(name)]))
    for day in store._days.values():
        for name, value in calls.items():
            day.connection.execute(
                'UPDATE calls SET "goals.progress.success" = ? WHERE conversation_id = ?',
                [value, name],
            )


def test_people_and_a_judge_are_compared_on_calls_of_which_both_say_something(
    store: SqliteHistory,
) -> None:
    values = {
        "yy": 1.0,
        "yy2": 1.0,
        "nn": 0.0,
        "yn": 0.0,
        "ny": 1.0,
        "u": None,
        "both": 1.0,
        "unlabelled": 0.0,
    }
    succeeded(store, **values)
    yes = [(name, said("anna", "solved")) for name in ("yy", "yy2", "yn", "u", "both", "gone")]
    no = [(name, said("ben", "unsolved")) for name in ("nn", "ny", "both")]
    labels(store, *yes, *no)
    found = agreement(
        store, EVER, "solved", "unsolved", Condition.parse("goals.progress.success = 1")
    )
    assert found._replace(different=()) == LabelAgreement(2, 1, 1, 1, 1, 0, 1)
    assert sorted(found.different) == ["ny", "yn"]
    assert (found.calls, found.share) == (5, 0.6)
    assert found.kappa == pytest.approx((0.6 - 0.52) / 0.48)


@pytest.mark.parametrize(
    ("found", "share", "kappa"),
    [
        (LabelAgreement(0, 0, 0, 0, 3, 2, 1), None, None),
        (LabelAgreement(9, 0, 0, 0, 0, 0, 0), 1.0, None),
        (LabelAgreement(5, 5, 0, 0, 0, 0, 0), 1.0, 1.0),
        (LabelAgreement(0, 0, 5, 5, 0, 0, 0), 0.0, -1.0),
        (LabelAgreement(5, 0, 5, 0, 0, 0, 0), 0.5, 0.0),
    ],
)
def test_an_unknown_agreement_is_not_zero(
    found: LabelAgreement, share: float | None, kappa: float | None
) -> None:
    assert (found.share, found.kappa) == (share, kappa)
    assert (found.why_no_kappa is None) == (kappa is not None)


def test_labels_are_found_exported_and_compared_by_commands(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command(monkeypatch, capsys, "history")
    succeeded(store, a=1.0, b=0.0)
    labels(
        store,
        ("a", said("anna", "solved", note="=1+1")),
        ("a", said("ben", "odd")),
        ("b", said("ben", "solved")),
    )
    find = ("find", "--since", "2000-01-01", "--folder", str(store.folder))
    shown = run(*find)
    assert ("labels" in shown.out, "odd solved" in shown.out) == (True, True)
    (row,) = json.loads(run(*find, "--label", "odd", "--json").out)
    assert (row["conversation_id"], row["annotations"][0]) == (
        "a",
        {"by": "anna", "at_ms": NOON_MS, "label": "solved", "note": "=1+1"},
    )
    rows = {
        row["conversation_id"]: row["annotations"]
        for row in csv.DictReader(run(*find, "--csv").out.splitlines())
    }
    assert rows == {"a": "odd solved", "b": "solved"}
    compared = ("agreement", "--yes", "solved", "--no", "unsolved", "--since", "2000-01-01")
    folder = ("--folder", str(store.folder))
    printed = run(*compared, *folder)
    assert printed.out.startswith("People and judge agree on 50 % of 2 calls; kappa is 0.00.\n")
    assert printed.out.endswith("  they differ on b\n")
    unknown = json.loads(run(*compared[:2], "none", *compared[3:], *folder, "--json").out)
    assert (unknown["agreement"], unknown["kappa"]) == (None, None)
    assert (
        unknown["kappa_unknown_because"] == "no call has a label of people and a value of the judge"
    )


def test_a_note_is_redacted_and_what_does_not_fit_is_refused() -> None:
    made = annotation("anna", "bad", "write to jane@example.com", Labels(agent="desk"), Redactor())
    assert (made.note, made.agent, made.tenant) == ("write to [EMAIL]", "desk", "unknown")
    assert annotation("anna", None, "", Labels(), Redactor()).is_withdrawn
    for by, label, note in (
        ("", "bad", None),
        ("a", "Bad", None),
        ("a", "b" * 41, None),
        ("a", None, "x" * 2_001),
    ):
        with pytest.raises(SetupError, match="Nothing was written"):
            annotation(by, label, note, Labels(), Redactor())


def test_without_a_name_a_person_has_to_say_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SetupError, match="--by"):
        this_user()


@pytest.mark.parametrize(
    "options",
    [
        ["--label", "a", "--json"],
        ["--note", "a", "--follow"],
        ["--label", "a", "--unlabel", "b"],
        ["--by", "anna"],
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, capsys, "call")("any-call", *options).code == 2


def test_calls_are_forgotten_in_a_folder_that_nobody_writes(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command(monkeypatch, capsys, "history")
    store.write(batch([*call("a"), *call("b"), *of_tenant("t")], a=TRANSCRIPT))
    store.close()
    forget = ("forget", "--without-topics", "--folder", str(store.folder), "--yes")
    (store.folder / "calls-2026-01-01.broken-0").write_bytes(b"")
    ended = run(*forget, "--conversation", "a", "--tenant", "acme")
    assert (ended.code, f"2 calls deleted from {store.folder}.\n" in ended.err) == (0, True)
    assert "calls-2026-01-01.broken-0 was set aside as damaged and may still have them" in ended.err
    again = SqliteHistory(store.folder, writes=True)
    assert [row["conversation_id"] for row in again.find(EVER)] == ["b"]
    taking = Importing(again)
    taking.add((call("a"), None))
    taking.add((of_tenant("u"), None))
    taking.flush()
    assert (taking.written, taking.forgotten) == (0, 2)
    again.close()
    for arguments in (["--tenant", "unknown"], ["--conversation", ""], []):
        assert run(*forget, *arguments).code == 2


def test_a_role_that_writes_the_folder_is_waited_for(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(batch([*call("a"), *call("b")]))
    what = Forgetting(("a",), None, NOON_MS)
    with pytest.raises(FolderInUseError):
        forget_in(store.folder, what, waits=False)
    monkeypatch.setattr(people, "WAIT_SECONDS", 0.0)
    with pytest.raises(OperatorError, match="has not deleted 1 calls"):
        forget_in(store.folder, what, waits=True)
    deletes: Sequence[str] = ["a"]
    monkeypatch.setattr(people, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(people.time, "sleep", lambda _: store.forget(deletes))  # type: ignore[attr-defined]
    forget_in(store.folder, what, waits=True)
    assert [calls_in(store.folder, each) for each in (what, Forgetting(("b",), None, NOON_MS))] == [
        0,
        1,
    ]


def test_what_stays_in_topics_is_said_with_its_days() -> None:
    said = people.left_in_topics()
    assert "Kafka cannot delete single records" in said
    assert "14 of scores and transcripts" in said
