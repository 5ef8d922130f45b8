"""Past calls as the pages of the console ask for them."""

import csv
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from consumers.console.pages import Site
from consumers.console.past import BESIDE, LotsQuery, PastQuery, choice_of, past_page
from consumers.history.annotations import FromPeople
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import Batch, SqliteHistory
from consumers.runtime.process import OperatorError, SetupError
from schemas.annotations import Annotation
from schemas.rows import CallRow, WordsRow
from streamer.roles import past_calls
from streamer.roles.past_calls import PAST_CALL_COLUMNS, StoredCalls
from tests.unit.history.test_answers import ENDED, one
from tests.unit.history.test_store import DAY_MS, NOON_MS, TRANSCRIPT, batch, call, stored


def test_the_page_of_past_calls_finds_them_in_the_folder(tmp_path: Path) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch(call("c"), c=TRANSCRIPT))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    rows = past.find(PastQuery(since="2000-01-01", agent="desk", where="turns > 1")).rows
    assert [row["conversation_id"] for row in rows] == ["c"]
    assert past.find(PastQuery(since="2000-01-01", agent="care")).rows == []
    assert past.call("c") == stored(call("c"))
    first_ms = int(str(rows[0]["first_known_ms"]))
    then = past.call("c", first_ms + 5)
    assert then is not None
    assert then.call.state == "running"
    assert past.call("d") is None
    for since in ("soon", "9" * 500, "9999-12-31T23:59:59-23:59x"):
        with pytest.raises(SetupError, match=r"is no moment"):
            past.find(PastQuery(since=since))
    assert past.annotations_of("c") == ()
    writer = SqliteHistory(tmp_path, writes=True)
    writer.forget(["c"])
    writer.close()
    assert (past.annotations_of("c"), past.call("c")) == (None, None)


def test_one_call_is_compared_with_the_median_of_its_agent(tmp_path: Path) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch([*call("c"), *call("d"), *call("e", agent="care")]))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    row = stored(call("c")).call
    usual = past.usual(row)
    assert (usual.agent, usual.calls) == ("desk", 1), "without itself"
    assert usual.medians["worst_wait_ms"] == row.longest_wait_ms
    assert "faithfulness.result" not in usual.medians, "no judge was asked"


SINCE = "2000-01-01"
SITE = Site("http://here/", "1", "s", has_past=True)


@pytest.fixture
def past(tmp_path: Path) -> StoredCalls:
    """Calls of many ends on one day, two of the next day, and what people say of two of them."""
    said = [
        (name, Annotation(by="anna", at_ms=1, label="false-alarm")) for name in ("well", "broke")
    ]
    next_day = [
        row
        for agent in ("care", "desk")
        for row in call(f"next-{agent}", NOON_MS + DAY_MS, agent=agent)
    ]
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch([row for row, *_ in ENDED]))
    writer.write(batch(next_day, 2, **{"next-care": TRANSCRIPT}))
    said.append(("well", Annotation(by="ben", at_ms=2, note="they were on hold")))
    writer.write(Batch([], [], {}, FromPeople(annotations=said)))
    writer.close()
    return StoredCalls(HistorySettings(folder=tmp_path))


def test_a_chosen_day_is_whole_however_long_ago_it_was(past: StoredCalls) -> None:
    day = datetime.fromtimestamp(NOON_MS / 1_000, UTC).date().isoformat()
    assert past.find(PastQuery()).total == 0, "of the last 24 hours"
    found = past.find(PastQuery(day=day))
    assert found.total == past.find(PastQuery(day=day, since=SINCE)).total > 0
    assert past.find(PastQuery(day=day, since="1h")).total == 0, "who says since means it"


def test_today_and_yesterday_are_days(past: StoredCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_calls, "wall_clock_ms", lambda: NOON_MS + DAY_MS)
    assert set(names(past, day="today", since="")) == {"next-care", "next-desk"}
    assert past.find(PastQuery(day="yesterday")).total == 8


def names(past: StoredCalls, **asked: object) -> list[str]:
    return [
        str(row["conversation_id"])
        for row in past.find(PastQuery.model_validate({"since": SINCE} | asked)).rows
    ]


def test_the_worst_come_first_and_running_calls_stand_apart(past: StoredCalls) -> None:
    found = past.find(PastQuery(since=SINCE))
    ids = [str(row["conversation_id"]) for row in found.rows]
    assert ids[:4] == ["silent", "mute", "gave-up", "broke"]
    assert "runs" not in ids
    assert (found.total, found.running) == (10, 1)
    assert past.find(PastQuery(since=SINCE, outcome="ended")).running == 0, "none of these runs"
    assert names(past, outcome="running") == ["runs"]
    assert set(names(past, outcome="hung_up,failed")) == {"gave-up", "broke"}


def test_facets_count_beside_what_they_choose(past: StoredCalls) -> None:
    every, chosen = (
        past.find(PastQuery(since=SINCE)),
        past.find(PastQuery(since=SINCE, outcome="hung_up", trouble="slow")),
    )
    facets = {name: dict(values) for name, values in every.facets.items()}
    assert facets["outcome"] == {
        "ended": 6,
        "never_answered": 2,
        "hung_up": 1,
        "failed": 1,
        "running": 1,
    }
    assert facets["trouble"]["slow"] == len(names(past, trouble="slow"))
    assert facets["agent"] == {"desk": 1, "care": 1, "unknown": 8}
    assert facets["label"] == {"false-alarm": 2}
    assert [calls for _, calls in every.facets["day"]] == [2, 8], "the newest day comes first"
    assert dict(chosen.facets["outcome"])["ended"] == len(
        names(past, trouble="slow", outcome="ended")
    )
    assert dict(chosen.facets["trouble"]) == {"unanswered": 1, "slow": 1}
    assert chosen.total == 1


def test_a_tool_that_fails_stands_beside_the_calls_that_used_it(tmp_path: Path) -> None:
    used: dict[str, dict[str, Any]] = {
        "a": {"used_tools": ("find", "pay"), "failed_tools": ("find",)},
        "b": {"used_tools": ("find",)},
        "c": {"used_tools": ("find",), "failed_tools": ("find",), "turns": 9},
        "d": {},
    }
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch([one(name, **fields) for name, fields in used.items()]))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    for asked, failed, of in (
        (PastQuery(since=SINCE), 2, 3),
        (PastQuery(since=SINCE, tool="find"), 2, 3),
        (PastQuery(since=SINCE, where="turns > 8"), 1, 1),
    ):
        found = past.find(asked)
        assert (dict(found.facets["tool"]), found.used_tools["find"]) == ({"find": failed}, of)
        page = past_page(SITE, asked, found, "")
        assert 'href="versions?by=day"' in page
        assert f"<b>{failed} of {of}</b>" in page


def test_of_a_tool_that_older_rows_do_not_say_was_used_no_share_is_told(tmp_path: Path) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    old = one("old", failed_tools=("find",), used_tools=())
    new = one("new", failed_tools=("find", "pay"), used_tools=("find", "pay"), failed_tool_calls=1)
    writer.write(batch([old, new]))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    assert past.find(PastQuery(since=SINCE)).used_tools == {"pay": 1}
    assert past.find(PastQuery(since=SINCE, trouble="tool_fails")).used_tools == {}


def test_each_facet_chooses_the_calls_that_it_counts(past: StoredCalls) -> None:
    for facet, values in past.find(PastQuery(since=SINCE)).facets.items():
        for value, calls in (each for each in values if each[0]):
            agent, beside, version = value.partition(BESIDE)
            choice = {"agent": agent, "version": version} if beside else {facet: value}
            if not all(choice.values()):  # a version that calls do not say chooses none
                continue
            found = past.find(PastQuery.model_validate({"since": SINCE, **choice}))
            assert (len(found.rows), found.total) == (calls, calls), (facet, value)


def test_pages_have_each_call_once(past: StoredCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_calls, "ROWS", 3)
    pages = [names(past, page=number, sort="p50_ms", up="1") for number in range(1, 6)]
    assert [len(page) for page in pages] == [3, 3, 3, 1, 0]
    monkeypatch.undo()
    assert [name for page in pages for name in page] == names(past, sort="p50_ms", up="1")
    with pytest.raises(SetupError, match="no column 'color'"):
        names(past, sort="color")
    with pytest.raises(SetupError, match="expected a day"):
        names(past, day="tomorrow")


def test_the_words_that_were_sought_are_shown_with_their_turn(past: StoredCalls) -> None:
    words = next(row for row in call("next-care") if isinstance(row, WordsRow) and row.user)
    sought = max(words.user.split(), key=len).strip(".,?!")
    found = past.find(PastQuery(since=SINCE, text=sought))
    turn, who, text = found.said["next-care"]
    assert who in {"caller", "agent"}
    assert sought.casefold() in text.casefold()
    said = [row for row in call("c") if isinstance(row, WordsRow)]
    assert turn == next(
        row.turn for row in said if sought.casefold() in f"{row.user} {row.assistant}".casefold()
    )
    last = [row for row in said if row.user][-1]
    assert past.find(PastQuery(since=SINCE, said="last", agent="desk")).said["next-desk"] == (
        last.turn,
        "caller",
        last.user,
    )


def test_the_table_has_all_pages(past: StoredCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_calls, "ROWS", 3)
    asked = PastQuery(since=SINCE, page=2, sort="turns")
    text = past.table(asked, SITE, None).decode()
    head, *lines = csv.reader(io.StringIO(text))
    assert head[:4] == ["Began (UTC)", "Agent", "Version", "Tenant"]
    assert head == [column.name for column in PAST_CALL_COLUMNS]
    assert len(lines) == 10
    assert past.table(PastQuery(since=SINCE, label="false-alarm"), SITE, None).count(b"\n") == 3


def test_the_table_as_shown_has_the_columns_and_words_of_the_page_and_numbers(
    past: StoredCalls,
) -> None:
    asked = PastQuery(since=SINCE, shown="1")
    made = list(csv.DictReader(io.StringIO(past.table(asked, SITE, None).decode())))
    by_call = {each["Call"]: each for each in made}
    assert len(made) == 10
    assert list(made[0])[1:5] == ["Began, UTC", "Agent", "Why", "Median wait (s)"]
    assert by_call["broke"]["Why"].startswith("failed: agent error")
    assert by_call["well"]["Why"] == "", "nothing was wrong"
    assert by_call["broke"]["Labels"] == "false-alarm"
    assert by_call["next-care"]["Page"] == "http://here/calls/next-care"
    assert {float(each["Median wait (s)"]) for each in made if each["Median wait (s)"]} >= {0.9}
    assert "Last words" not in made[0]
    spoken = past.table(asked.model_copy(update={"said": "last"}), SITE, str).decode()
    assert "Last words" in next(csv.reader(io.StringIO(spoken)))
    assert "&amp;shown=1" in past_page(SITE, PastQuery(), past.find(asked), "")


def lines(past: StoredCalls, redact: Callable[[str], str] | None = str) -> dict[str, Any]:
    """The lines of the CSV by their calls."""
    made = past.table(PastQuery(since=SINCE), SITE, redact).decode()
    return {each["Call"]: each for each in csv.DictReader(io.StringIO(made))}


def test_the_table_says_what_the_page_says_and_where_it_is(
    past: StoredCalls, tmp_path: Path
) -> None:
    line = lines(past)["next-care"]
    assert line["Began (UTC)"].endswith("Z")
    *_, row = (each for each in call("next-care") if isinstance(each, CallRow))
    assert datetime.fromisoformat(line["Began (UTC)"]).timestamp() * 1_000 == row.began_ms
    assert line["Page"] == "http://here/calls/next-care"
    assert lines(past)["broke"]["Labels"] == "false-alarm"
    assert "failed: agent error" in lines(past)["broke"]["Why"]
    assert lines(past)["mute"]["Ended (UTC)"] == "", "nothing said when"
    assert lines(past)["well"]["Notes"] == "they were on hold"
    assert lines(past, None)["well"]["Notes"] == "", "words are hidden"
    elsewhere = StoredCalls(HistorySettings(folder=tmp_path), "https://calls.example/console")
    assert lines(elsewhere)["next-care"]["Page"] == "https://calls.example/console/calls/next-care"


def test_the_table_of_agents_has_what_the_page_lists(past: StoredCalls) -> None:
    asked = LotsQuery(since=SINCE, by="agent")
    made = past.lots_table(asked).decode()
    listed = past.versions(asked).all
    lines = list(csv.DictReader(io.StringIO(made)))
    assert [(each["Agent"], each["Calls"]) for each in lines] == [
        (each.lot.agent, str(each.calls)) for each in listed
    ]
    assert [each["Median wait for answers (ms)"] for each in lines] == [
        str(round(each.values["p50_ms"], 1)) for each in listed
    ]


def test_the_table_has_the_last_words_of_the_caller_where_they_may_be_shown(
    past: StoredCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in call("next-care") if isinstance(row, WordsRow) and row.user]
    last = " ".join(rows[-1].user[-160:].split())
    assert lines(past)["next-care"]["Last words of the caller"] == last
    assert lines(past, str.upper)["next-care"]["Last words of the caller"] == last.upper()
    assert lines(past, None)["next-care"]["Last words of the caller"] == ""
    monkeypatch.setattr(past_calls, "MOST_LAST_WORDS", 0)
    assert lines(past)["next-care"]["Last words of the caller"] == ""


def test_a_facet_is_counted_without_its_own_choice(past: StoredCalls) -> None:
    every = past.find(PastQuery(since=SINCE)).facets
    for facet, values in every.items():
        for value, _ in (each for each in values if each[0]):
            asked = PastQuery.model_validate({"since": SINCE, facet: value})
            assert past.find(asked).facets[facet] == values, (facet, value)
    nobody = past.find(PastQuery(since=SINCE, agent="no, body"))
    assert (nobody.total, dict(nobody.facets["agent"])["no, body"]) == (0, 0)
    assert set(dict(nobody.facets["agent"])) == {"no, body", "desk", "care", "unknown"}


def test_what_bad_calls_have_in_common_is_told_beside_the_others(
    past: StoredCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = PastQuery(since=SINCE, trouble="tool_fails")
    assert past.find(asked).in_common == [], "too few calls to say it"
    monkeypatch.setattr(past_calls, "LEAST_COMPARED", 1)
    found = past.find(asked)
    every = PastQuery(since=SINCE)
    for each in found.in_common:
        (these, those) = (past.find(query).total for query in (asked, every))
        choice = choice_of(each.facet, each.values[0])
        both, having = (
            past.find(query.model_copy(update=choice)).total for query in (asked, every)
        )
        assert each.share == both / these
        assert each.others == (having - both) / (those - these)
        assert each.share - each.others >= 0.2
        if each.share == 1:  # the next ones are compared with calls that have it too
            asked, every = (query.model_copy(update=choice) for query in (asked, every))
    assert found.in_common, "the two calls of the next day have it"
    narrow = past.find(PastQuery(since=SINCE, trouble="tool_fails", agent="desk"))
    assert "agent" not in {each.facet for each in narrow.in_common}
    assert past.find(PastQuery(since=SINCE)).in_common == [], "nothing is chosen"


def test_first_whose_the_bad_calls_are_then_what_was_wrong_with_them() -> None:
    """Each among the calls that have what was said before it: so a tenant of a version is found
    that is one of many tenants of its agent.
    """
    counts: list[tuple[dict[str, list[str]], int]] = []

    def add(calls: int, agent: str, version: str, tenant: str, *missed: str) -> None:
        counts.append(
            (
                {
                    "agent": [agent],
                    "version": [version],
                    "tenant": [tenant],
                    "goal_set": [agent],
                    "outcome": ["ended"],
                    "goals": ["missed" if missed else "reached"],
                    "subgoal": list(missed),
                },
                calls,
            )
        )

    add(20, "air", "5", "lark", "found", "rebooked")
    add(20, "air", "5", "fjord")
    add(30, "air", "4", "lark")
    add(10, "air", "4", "fjord", "found")
    add(90, "desk", "1", "lark")

    def told(**asked: str) -> list[tuple[str, Sequence[str], float, float, bool]]:
        return [
            (each.facet, each.values, round(each.share, 2), round(each.others, 2), each.is_within)
            for each in past_calls._in_common(counts, PastQuery.model_validate(asked))
        ]

    assert told(subgoal="rebooked") == [
        ("agent", ["air"], 1.0, 0.4, False),
        ("version", ["5"], 1.0, 0.33, True),
        ("tenant", ["lark"], 1.0, 0.0, True),
    ]
    lark = {"agent": "air", "version": "5", "tenant": "lark", "goal_set": "air"}
    assert told(**lark) == [("subgoal", ["rebooked", "found"], 1.0, 0.0, False)]
    assert told(goals="missed", agent="air") == [("version", ["5"], 0.67, 0.4, False)]


def test_a_question_that_takes_too_long_is_stopped(
    past: StoredCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_calls, "MAX_SECONDS", 1e-9)
    for ask in (
        lambda: past.find(PastQuery(since=SINCE)),
        lambda: past.versions(LotsQuery(a_since=SINCE, b_since=SINCE)),
    ):
        with pytest.raises(OperatorError, match="took longer"):
            ask()
