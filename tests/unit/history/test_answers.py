"""SQLite and ClickHouse give the same answers. With ClickHouse, which is chDB here, a
test is long.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from msgspec import structs
from pydantic import SecretStr

from consumers.history.annotations import FromPeople
from consumers.history.clickhouse import ClickHouseHistory
from consumers.history.search import (
    COLUMNS,
    COMPARISONS,
    DERIVED,
    TOOL_FAILED_REACHED,
    Condition,
    HistoryStore,
)
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import Batch, SqliteHistory
from consumers.runtime.process import OperatorError
from schemas.annotations import Annotation, ForgottenTenant
from schemas.closed_sets import CloseReason, UnscoredReason
from schemas.columns import CALL_COLUMNS
from schemas.rows import (
    Answer,
    CallRow,
    Errors,
    Goals,
    Labels,
    OwnRow,
    SubgoalResult,
    TurnRow,
    Unscored,
    Waiting,
)
from schemas.scores.trouble import bad_end, worst_wait_ms
from streamer.history.comparison import ComparedPeriod, compared
from streamer.offline.scoring import scored
from streamer.recordings.reader import read_recordings
from tests.support.calls.made_rows import with_end
from tests.support.clickhouse.running import TABLES, ClickHouse, running_clickhouse
from tests.support.conformance_data import conformance
from tests.unit.history.test_store import (
    DAY_MS,
    EVER,
    NOON_MS,
    PLAN,
    SCORED,
    SCORES,
    TRANSCRIPT,
    AnyRow,
    batch,
    call,
    columns_of,
    found,
    stored,
)

Keep = Callable[[Sequence[Batch]], HistoryStore]
LONG = pytest.param("clickhouse", marks=pytest.mark.long)


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouse]:
    with running_clickhouse() as there:
        yield there


def in_sqlite(folder: Path, batches: Sequence[Batch]) -> SqliteHistory:
    writer = SqliteHistory(folder, writes=True)
    for each in batches:
        writer.write(each)
    writer.close()
    return SqliteHistory(folder)


def in_clickhouse(server: ClickHouse, batches: Sequence[Batch]) -> ClickHouseHistory:
    server.empty()
    for each in batches:
        server.write(each)
    return ClickHouseHistory(HistorySettings(clickhouse_url=server.address))


@pytest.fixture(params=["sqlite", LONG])
def keep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keep]:
    """Gives records to a store, and opens it to read."""
    with ExitStack() as stores:

        def kept(batches: Sequence[Batch]) -> HistoryStore:
            if request.param == "sqlite":
                return stores.enter_context(closing(in_sqlite(tmp_path, batches)))
            return stores.enter_context(
                closing(in_clickhouse(request.getfixturevalue("server"), batches))
            )

        yield kept


def with_words(text: str) -> bytes:
    said = json.loads(TRANSCRIPT)
    said[0]["message"] = text
    return json.dumps(said).encode()


def three() -> list[Batch]:
    """Three calls of two agents on two days, of which the second has words of its own."""
    own = with_words('Ich möchte ein Zimmer\'s "Bett" 100% zurückgeben')
    return [
        batch([*call("a"), *call("b", agent="care")], a=TRANSCRIPT, b=own),
        batch(call("c", NOON_MS + DAY_MS), 2, c=TRANSCRIPT),
    ]


def one(name: str, **more: Any) -> CallRow:
    """The row of a call that is over."""
    plain: dict[str, Any] = {
        "state": "closed",
        "turns": 4,
        "p50_ms": 900.0,
        "longest_wait_ms": 1_000.0,
    }
    times = {"revision": 1, "known_ms": NOON_MS + 60_000, "first_known_ms": NOON_MS}
    return with_end(CallRow(conversation_id=name, **(times | plain | more)))


ENDED = [
    (
        one("mute", p50_ms=None, longest_wait_ms=None, unanswered=3),
        "never_answered",
        "unanswered",
        1,
    ),
    (one("silent", waiting=Waiting(0, NOON_MS, 1)), "never_answered", "", 1),
    (
        one("gave-up", waiting=Waiting(3, NOON_MS, 1), unanswered=1, longest_wait_ms=3_600.0),
        "hung_up",
        "unanswered slow",
        1,
    ),
    (one("broke", errors=Errors(2, 0, NOON_MS + 1_000)), "failed", "agent_error", 1),
    (one("broke-early", errors=Errors(1, 0, NOON_MS - 1_000)), "ended", "agent_error", 0),
    (one("well", ended_ms=30_000, began_ms=10_000), "ended", "", 0),
    (
        one(
            "struggle",
            user_interruptions=2,
            assistant_interruptions=1,
            dead_airs=1,
            p50_ms=1_600.0,
            failed_tool_calls=1,
        ),
        "ended",
        "tool_fails slow interruptions dead_air",
        0,
    ),
    (
        one(
            "missed",
            goals=Goals(
                "g",
                "d",
                (
                    SubgoalResult(1.0),
                    SubgoalResult(0.0),
                    SubgoalResult(Unscored(UnscoredReason.NO_TURN_JUDGED)),
                ),
                success_final_turn=0.0,
                is_stalled=True,
            ),
        ),
        "ended",
        "goals_missed stalled",
        0,
    ),
    (one("runs", state="running", unanswered=3, p50_ms=None), "running", "unanswered", None),
]
"""Calls with how they ended, their troubles, and whether that was a bad end."""


# Questions.


def test_how_calls_ended_and_what_was_wrong(keep: Keep) -> None:
    store = keep([batch([row for row, *_ in ENDED])])
    columns = (
        "outcome",
        "troubles",
        "ended_badly",
        "day_ms",
        "length_ms",
        "success",
        "all_goals",
        "main_trouble",
        "goals.subgoals.result",
        "in_vain_ms",
        "worst_wait_ms",
    )
    rows = {
        str(row["conversation_id"]): row for row in store.find(EVER, ("conversation_id", *columns))
    }
    for row, outcome, troubles, is_bad in ENDED:
        seen = rows[row.conversation_id]
        assert (seen["outcome"], str(seen["troubles"]).strip(), seen["ended_badly"]) == (
            outcome,
            troubles,
            is_bad,
        )
        assert (seen["in_vain_ms"], seen["worst_wait_ms"]) == (
            row.in_vain_ms,
            worst_wait_ms(row),
        )
        assert seen["day_ms"] == NOON_MS - DAY_MS // 2
    assert rows["missed"]["goals.subgoals.result"] == "1, 0, ?"
    assert (rows["missed"]["success"], rows["well"]["success"]) == (0, None)
    assert (rows["missed"]["all_goals"], rows["well"]["all_goals"]) == ("missed", None)
    mains = {name: row["main_trouble"] for name, row in rows.items()}
    assert (mains["missed"], mains["well"], mains["gave-up"], mains["runs"]) == (
        "goals_missed",
        "none",
        "hung_up",
        None,
    )
    assert (rows["well"]["length_ms"], rows["mute"]["length_ms"], rows["runs"]["length_ms"]) == (
        20_000,
        60_000,
        None,
    )
    assert set(found(store, "outcome = hung_up")) == {"gave-up"}
    assert set(found(store, "troubles ~ slow")) == {"gave-up", "struggle"}
    ranked = found(store, "state = closed", order_by="rank", most=5)
    assert ranked == ["silent", "mute", "gave-up", "broke", "struggle"], "who waited longest first"
    assert found(store, "state = closed", order_by="rank", most=3, skip=2) == [
        "gave-up",
        "broke",
        "struggle",
    ]
    assert found(store, order_by="p50_ms", ascends=True, most=100)[-3:] == [
        "struggle",
        "mute",
        "runs",
    ], "unknown comes last"
    assert found(store, order_by="p50_ms", most=100)[0] == "struggle"


def test_a_failed_tool_is_no_reason_for_a_call_that_reached_all_its_goals(keep: Keep) -> None:
    goals = {
        name: Goals("g", "d", (SubgoalResult(value),), success_final_turn=value)
        for name, value in (("reached", 1.0), ("missed", 0.0))
    }
    rows = [one(name, failed_tool_calls=1, goals=of) for name, of in goals.items()]
    rows.append(one("without-goals", failed_tool_calls=1))
    rows.append(
        one("unanswered", failed_tool_calls=1, goals=goals["reached"], unanswered=1, p50_ms=9.0)
    )
    found = keep([batch(rows)]).find(EVER, ("conversation_id", "main_trouble"))
    assert {str(row["conversation_id"]): row["main_trouble"] for row in found} == {
        "reached": TOOL_FAILED_REACHED,
        "missed": "tool_fails",
        "without-goals": "tool_fails",
        "unanswered": "unanswered",
    }


def test_a_call_whose_events_stopped_did_not_hang_up_and_one_that_ended_with_an_error_failed(
    keep: Keep,
) -> None:
    waits = Waiting(2, NOON_MS, 1)
    answered = {"answer": Answer(1, 900.0)}
    rows = [
        one("stopped", waiting=waits, close_reason=CloseReason.IDLE, **answered),
        one("error", waiting=waits, ended_reason="error", **answered),
        one("gone", waiting=waits, ended_reason="hangup", **answered),
    ]
    store = keep([batch(rows)])
    columns = ("conversation_id", "outcome", "ended_badly", "main_trouble")
    seen = {str(row["conversation_id"]): row for row in store.find(EVER, columns)}
    assert {name: (row["outcome"], row["ended_badly"]) for name, row in seen.items()} == {
        "stopped": ("events_stopped", None),
        "error": ("failed", 1),
        "gone": ("hung_up", 1),
    }
    assert {row["main_trouble"] for row in seen.values()} == {"events_stopped", "failed", "hung_up"}
    for row in rows:
        told = bad_end(row) or ""
        assert ("error" in told) == (row.conversation_id == "error"), "as the page of a call says"


def test_calls_are_counted_by_what_they_have_in_common(keep: Keep) -> None:
    store = keep([batch([row for row, *_ in ENDED]), batch(call("next-day", NOON_MS + DAY_MS), 2)])
    asked = EVER._replace(counts=True, most=None)
    outcomes: dict[object, int] = {}
    for outcome, _, number in store.values(asked, ["outcome", "day_ms"]):
        assert isinstance(number, int)
        outcomes[outcome] = outcomes.get(outcome, 0) + number
    assert outcomes == {"never_answered": 2, "hung_up": 1, "failed": 1, "ended": 5, "running": 1}
    only = asked._replace(conditions=[Condition.parse("outcome = ended")])
    assert sum(int(str(number)) for _, number in store.values(only, ["labels.agent"])) == 5
    assert DERIVED.keys() & COLUMNS.keys() == {"outcome"}


# Questions.


def test_conditions(keep: Keep) -> None:
    store = keep(three())
    for conditions, expected in (
        ((), {"a", "b", "c"}),
        (("labels.agent = desk",), {"a", "c"}),
        (("labels.agent != desk",), {"b"}),
        (("labels.agent ~ es",), {"a", "c"}),
        (("labels.agent = DESK",), set()),
        (("labels.agent ~ %",), set()),
        (("longest_wait_ms > 0", "labels.agent = care"), {"b"}),
        (("longest_wait_ms < 0",), set()),
        (("turns >= 1",), {"a", "b", "c"}),
        (
            ("stt_wer.result != -1",),
            {"a", "b", "c"} if columns_of(call("x"))["stt_wer.result"] is not None else set(),
        ),
        (("labels.agent = ' OR 1=1 --",), set()),
        (("labels.agent = \\' OR 1=1 --\t\n",), set()),
    ):
        assert set(found(store, *conditions)) == expected, conditions


def test_words(keep: Keep) -> None:
    store = keep(three())
    for words, expected in (
        (["zimmer's"], ["b"]),
        (["ZURÜCKGEBEN", "bett"], ["b"]),
        (["zuruckgeben"], ["b"]),
        (["100"], ["b"]),
        (["bett", "nowhere"], []),
        (["bet"], []),
        (["zimmer bett"], []),
        (["OR"], []),
        (["NEAR(", "*"], []),
        (['"'], []),
        (["\x00"], []),
    ):
        assert found(store, words=words) == expected, words


def test_a_period_the_most_calls_and_ids(keep: Keep) -> None:
    store = keep(three())
    assert found(store, until_ms=NOON_MS + 1) == ["a", "b"]
    assert found(store, since_ms=NOON_MS + 1) == ["c"]
    assert found(store, most=2) == ["a", "b"]
    assert found(store, order_by="first_known_ms") == ["c", "a", "b"]
    assert found(store, ids=["b", "c", "'"]) == ["b", "c"]
    assert found(store, ids=[]) == []


def test_the_columns_and_the_rows_are_those_of_the_call(keep: Keep) -> None:
    rows, running = call("c"), [row for row in call("d") if isinstance(row, CallRow)][:1]
    store = keep([batch([*rows, *running], c=TRANSCRIPT)])
    row, runs = store.find(EVER)
    assert row == columns_of(rows)
    assert tuple(row) == tuple(COLUMNS)
    assert runs == columns_of(running)
    assert (store.call("c"), store.transcript("c")) == (stored(rows), TRANSCRIPT)
    assert (store.call("d"), store.transcript("d")) == (stored(running), None)
    assert (store.call("nobody"), store.transcript("nobody")) == (None, None)


def test_a_higher_revision_counts_in_any_order(keep: Keep) -> None:
    rows = call("c")
    turn = max((row for row in rows if isinstance(row, TurnRow)), key=lambda row: row.revision)
    gone = structs.replace(turn, revision=turn.revision + 2, status="withdrawn")
    older = structs.replace(turn, revision=turn.revision + 1)
    store = keep([batch(rows), batch([gone], 2), batch([older], 3)])
    assert store.call("c") == stored([*rows, gone])


def test_the_newest_value_of_a_measure_of_ones_own_comes_by_measure_and_turn(keep: Keep) -> None:
    def own(measure: str, turn: int | None, revision: int, value: float) -> OwnRow:
        return OwnRow(
            conversation_id="c",
            measure=measure,
            turn=turn,
            revision=revision,
            known_ms=NOON_MS,
            value=value,
        )

    first = [own("b", 2, 4, 1.0), own("b", None, 8, 3.0)]
    later = [own("b", 2, 6, 2.0), own("b", 2, 2, 9.0), own("a", 10, 6, 0.5), own("a", 2, 6, 0.25)]
    store = keep([batch([*call("c"), *first]), batch(later, 2)])
    found = store.call("c")
    assert found is not None
    assert found._replace(own=()) == stored(call("c"))
    assert found.own == (later[3], later[2], first[1], later[0])


def test_a_moment_before_the_newest_row_of_a_call_is_known_to_a_store_with_all_rows(
    keep: Keep,
) -> None:
    rows = call("c")
    store = keep([batch(rows)])
    newest_ms = stored(rows).call.known_ms
    assert store.call("c", newest_ms) is not None
    before = store.call("c", newest_ms - 1)
    assert before is None or before.call.revision < stored(rows).call.revision


def test_a_new_transcript_replaces_the_words_of_the_old_one(keep: Keep) -> None:
    store = keep([*three(), batch([], 3, b=TRANSCRIPT)])
    assert found(store, words=["zimmer's"]) == []
    assert store.transcript("b") == TRANSCRIPT


def test_an_id_is_only_an_id(keep: Keep) -> None:
    ids = [
        "'; DROP TABLE call; --",
        "a\nb\t\\n",
        "100%",
        "\x00",
        "é",
        "../../etc",
        "a\x85b\u2028c",
        "x" * 10_000,
    ]
    log = [record for each in ids for record in call(each)]
    store = keep([Batch(log, [(each, NOON_MS, TRANSCRIPT) for each in ids], {SCORES: 1})])
    assert set(found(store)) == set(ids)
    for each in ids:
        assert (store.call(each), store.transcript(each)) == (stored(call(each)), TRANSCRIPT)
        assert found(store, ids=[each]) == [each]


# What people said.


def said(by: str, at_ms: int, label: str | None = None, **other: Any) -> Annotation:
    return Annotation(by=by, at_ms=at_ms, label=label, **other)


def test_labels_and_notes(keep: Keep) -> None:
    notes = [
        ("a", said("anna", 1, "false-alarm", note="it's\n100% \\ fine")),
        ("b", said("anna", 2, "false-alarm")),
        ("b", said("ben", 3, note="only a note")),
        ("c", said("anna", 4, "false-alarm")),
        ("c", said("anna", 5, "false-alarm", is_withdrawn=True)),
    ]
    store = keep([*three(), Batch([], [], {}, FromPeople(annotations=notes))])
    assert store.labelled("false-alarm") == ["b", "a"]
    assert store.labels() == [("false-alarm", "b"), ("false-alarm", "a")]
    assert store.labelled("other") == []
    assert store.annotations_of(["a", "b", "c", "'"]) == {
        "a": [notes[0][1]],
        "b": [notes[1][1], notes[2][1]],
    }


def test_forgotten_calls_are_not_found(keep: Keep) -> None:
    mine = call("t", tenant="acme")
    people = FromPeople(
        [("a", said("anna", 1, "bad"))],
        ["a"],
        [ForgottenTenant(kind="forgotten_tenant", tenant="acme", at_ms=NOON_MS + 10_000)],
    )
    later = call("later", NOON_MS + DAY_MS, tenant="acme")
    store = keep(
        [
            *three(),
            batch([*mine, *later], 4, t=TRANSCRIPT),
            Batch([], [], {}, people),
            batch(call("a")[-1:], 5),
        ]
    )
    assert sorted(map(str, found(store))) == ["b", "c", "later"]
    assert (store.call("a"), store.transcript("a")) == (None, None)
    assert (store.call("t"), store.transcript("t")) == (None, None)
    assert (store.labelled("bad"), store.annotations_of(["a"])) == ([], {})
    assert found(store, words=["rebooking"]) == ["c"]


@pytest.mark.long
def test_forgotten_calls_are_deleted_from_clickhouse(server: ClickHouse) -> None:
    people = FromPeople([(name, said("anna", 1, "bad")) for name in "ab"], ["a"])
    in_clickhouse(server, [*three(), Batch([], [], {}, people)]).close()
    server.run_file(TABLES.with_name("forget.sql"))
    for table in ("calls", "turns", "goal_sets", "transcript", "annotation"):
        counted = (
            f"SELECT countIf(conversation_id = 'a'), countIf(conversation_id = 'b') FROM {table} "  # noqa: S608
            "FORMAT TSV"
        )
        gone, kept = map(int, server.run(counted).split())
        assert (gone, kept > 0) == (0, True), table


@pytest.mark.long
def test_the_tables_that_read_kafka_are_made(server: ClickHouse) -> None:
    server.run_file(TABLES.with_name("kafka.sql"))
    for topic in ("score", "words", "transcript", "annotation"):
        assert f"FROM default.{topic}_topic" in server.query_of(f"{topic}_from_topic")
        for kind, name in (("VIEW", "from_topic"), ("TABLE", "topic")):
            server.run(f"DROP {kind} {topic}_{name}")


# Both at once.


def recorded_log() -> list[Batch]:
    """Recorded calls of four agents on two days, in parts of a hundred rows, some of them twice."""
    random = Random(1)  # noqa: S311  # no secret
    calls = [
        SCORED,
        *(
            scored(each, PLAN)
            for each in islice(read_recordings(conformance("calls.jsonl.gz")), 60)
        ),
    ]
    log: list[AnyRow] = []
    transcripts = []
    for number, each in enumerate(calls):
        start_ms = NOON_MS + number * 1_000 + number // 4 % 2 * DAY_MS
        for place, row in enumerate(each.rows):
            changed: dict[str, Any] = {"conversation_id": f"call-{number}"}
            if isinstance(row, CallRow | TurnRow):
                changed |= {
                    "known_ms": start_ms + place * 500,
                    "labels": Labels(agent=f"agent-{number % 4}"),
                }
            if isinstance(row, CallRow):
                changed["first_known_ms"] = start_ms
            row = structs.replace(row, **changed)
            log += [row, row] if random.random() < 0.2 else [row]
        transcripts.append((f"call-{number}", start_ms, each.transcript or b"[]"))
    parts = [log[at : at + 100] for at in range(0, len(log), 100)]
    return [
        *(Batch(part, [], {SCORES: place}, at_ms=NOON_MS) for place, part in enumerate(parts)),
        Batch([], transcripts, {}),
    ]


@pytest.mark.long
def test_every_question_has_the_same_answer(server: ClickHouse, tmp_path: Path) -> None:
    log = recorded_log()
    sqlite, clickhouse = in_sqlite(tmp_path, log), in_clickhouse(server, log)
    rows = sqlite.find(EVER._replace(most=100))
    assert len(rows) == 61
    assert clickhouse.find(EVER._replace(most=100)) == rows
    questions = []
    for place, column in enumerate(CALL_COLUMNS):
        known = sorted(row[column.name] for row in rows if row[column.name] is not None)  # type: ignore[type-var]
        value = (
            ("'" if not known else known[len(known) // 2])
            if column.kind == "text"
            else median(known or [1.0])  # type: ignore[type-var]
        )
        fitting = ("=", "!=", "~") if column.kind == "text" else COMPARISONS[:-1]
        comparison = fitting[place % len(fitting)]  # all of them for some column
        questions.append(EVER._replace(order_by=column.name, most=7))
        questions.append(EVER._replace(conditions=[Condition(column.name, comparison, value)]))
    questions += [EVER._replace(order_by=name, most=7) for name in DERIVED]
    assert clickhouse.find(EVER._replace(most=100), tuple(DERIVED)) == sqlite.find(
        EVER._replace(most=100), tuple(DERIVED)
    )
    texts = ("flight", "Your booking", "you're", "I'd", "ü", "$5", "two", "a.m.", "email@example")
    questions += [EVER._replace(words=text.split(), most=100) for text in texts]
    questions.append(EVER._replace(since_ms=NOON_MS + 5_000, until_ms=NOON_MS + DAY_MS + 20_000))
    questions.append(EVER._replace(ids=[f"call-{number}" for number in range(0, 80, 3)]))
    for question in questions:
        assert clickhouse.find(question) == sqlite.find(question), question
    assert sorted(clickhouse.values(EVER._replace(most=None), tuple(COLUMNS)), key=str) == sorted(
        sqlite.values(EVER._replace(most=None), tuple(COLUMNS)), key=str
    )
    day = NOON_MS // DAY_MS * DAY_MS
    days = ComparedPeriod(day, day + DAY_MS), ComparedPeriod(day + DAY_MS, day + 2 * DAY_MS)
    assert compared(clickhouse, *days, ("labels.agent",)) == compared(
        sqlite, *days, ("labels.agent",)
    )
    for row in rows[:10]:
        name = str(row["conversation_id"])
        assert clickhouse.call(name) == sqlite.call(name)
        assert clickhouse.transcript(name) == sqlite.transcript(name)
    sqlite.close()
    clickhouse.close()


# A ClickHouse that does not answer.


@pytest.mark.long
def test_a_refusal_says_what_to_do(server: ClickHouse) -> None:
    at = server.address
    wrong = HistorySettings(
        clickhouse_url=at, clickhouse_user="reader", clickhouse_password=SecretStr("wrong")
    )
    none = HistorySettings(clickhouse_url=at.replace("default", "none"))
    for settings, message in ((wrong, "403: Code: 516"), (none, r"none.*tables\.sql")):
        store = ClickHouseHistory(settings)
        with pytest.raises(OperatorError, match=message):
            store.find(EVER)
        store.close()


def test_nobody_answers() -> None:
    store = ClickHouseHistory(HistorySettings(clickhouse_url="http://127.0.0.1:1/"))
    with pytest.raises(OperatorError, match=r"did not answer.*history\.clickhouse_url"):
        store.labelled("bad")
    store.close()
