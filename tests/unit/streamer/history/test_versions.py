"""Two versions compared: the figures are those of trials, and of a computation by hand
on 40 calls.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from statistics import NormalDist, mean, variance

import pytest
from msgspec import structs

from consumers.console.pages import Site
from consumers.console.past import BESIDE, LotsQuery, PastQuery, versions_page
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import SetupError, wall_clock_ms
from consumers.store.changes import (
    BAD_ENDS,
    COMPARED,
    SUCCESS,
    WAIT,
    Change,
    ComparedMeasure,
    Comparison,
    Lot,
    change_of,
    ends,
    judgement,
    measure_of,
    more_calls,
    more_calls_in_words,
)
from schemas.closed_sets import CloseReason, UnscoredReason
from schemas.rows import (
    CallRow,
    Goals,
    GoalsRow,
    Labels,
    Progress,
    Row,
    SubgoalResult,
    Unscored,
    Waiting,
)
from schemas.units import DAY_MS
from streamer.history.comparison import lot_given, lots_compared, lots_in
from streamer.roles.past_calls import StoredCalls
from streamer.time_bounds import shown_moment
from streamer.trials.calls import NewestRows, Versus
from tests.support.calls.made_rows import with_end
from tests.unit.history.test_store import SCORED, batch
from tests.unit.streamer.command_line import command

SET = next(row for row in SCORED.rows if isinstance(row, GoalsRow))
CALLS = 40


def call(number: int, version: str, agent: str = "desk", slower_ms: float = 0) -> list[Row]:
    """A call that is over, with goals; of every fourth one the caller hung up unanswered."""
    random = Random(f"{agent} {version} {number}")  # noqa: S311  # no secret
    at_ms = wall_clock_ms() - 3_600_000 * (2 + number + (100 if version == "1" else 0))
    reached = [
        float(random.random() < share) for share in ((0.9, 0.6) if version == "1" else (0.9, 0.2))
    ]
    success, name, wait_ms = (
        float(all(reached)),
        f"{agent}-{version}-{number}",
        random.gauss(900, 80) + slower_ms,
    )
    goals = Goals(
        SET.goal_set["id"],
        SET.digest,
        tuple(SubgoalResult(each, reached_turn=1 if each else None) for each in reached),
        judged_turn=3,
        progress=Progress(mean(reached), 0.5, 0.5, 0.2, success, int(sum(reached)), 0, 2),
        success_final_turn=success,
    )
    ended = CallRow(
        conversation_id=name,
        revision=9,
        known_ms=at_ms + 60_000,
        first_known_ms=at_ms,
        began_ms=at_ms,
        ended_ms=at_ms + 50_000,
        labels=Labels(agent, version),
        state="closed",
        turn=3,
        turns=4,
        p50_ms=wait_ms,
        p95_ms=2 * wait_ms,
        longest_wait_ms=2 * wait_ms,
        close_reason=CloseReason.ENDED,
        goals=goals,
        waiting=None if number % 4 else Waiting(3, at_ms, 1),
        unanswered=int(number % 4 == 0),
    )
    row = with_end(ended)
    two = {**SET.goal_set, "subgoals": list(SET.goal_set["subgoals"][:2])}
    return [structs.replace(SET, conversation_id=name, revision=1, goal_set=two), row]


VERSION_1 = [call(number, "1") for number in range(CALLS // 2)]
VERSION_2 = [call(number, "2", slower_ms=400) for number in range(CALLS // 2)]
ROWS = [row for rows in (*VERSION_1, *VERSION_2) for row in rows]
LOTS = Lot("desk", "1"), Lot("desk", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(SqliteHistory(tmp_path, writes=True)) as writer:
        writer.write(batch(Random(4).sample(ROWS, len(ROWS))))  # noqa: S311  # no secret
    return tmp_path


@pytest.fixture
def found(folder: Path) -> Iterator[Comparison]:
    with closing(SqliteHistory(folder)) as store:
        yield lots_compared(store, LOTS, wall_clock_ms())


def change(found: Comparison, name: str) -> Change:
    return next(change for change in found.changes if change.measure == name)


def call_rows(calls: Sequence[Sequence[Row]]) -> list[CallRow]:
    return [row for rows in calls for row in rows if isinstance(row, CallRow)]


def test_the_figures_are_those_of_a_computation_by_hand(found: Comparison) -> None:
    assert found.calls == (20, 20)
    for name, values in (
        ("p50_ms", [[row.p50_ms or 0 for row in call_rows(lot)] for lot in (VERSION_1, VERSION_2)]),
        (
            "success",
            [
                [row.goals.success_final_turn for row in call_rows(lot) if row.goals]
                for lot in (VERSION_1, VERSION_2)
            ],
        ),
        (
            "unanswered",
            [[row.unanswered for row in call_rows(lot)] for lot in (VERSION_1, VERSION_2)],
        ),
        ("ended_badly", [[float(number % 4 == 0) for number in range(20)]] * 2),
        ("length_ms", [[50_000.0] * 20] * 2),
    ):
        seen = change(found, name)
        before, after = (mean(float(str(each)) for each in lot) for lot in values)
        assert (seen.before, seen.after) == pytest.approx((before, after))
        assert seen.change == pytest.approx(after - before)
        if measure_of(name).unit == "share":
            (low, high), (low_after, high_after) = (
                ends_by_hand(each, 20) for each in (before, after)
            )
            below = math.sqrt((after - low_after) ** 2 + (high - before) ** 2)
            above = math.sqrt((high_after - after) ** 2 + (before - low) ** 2)
            near = 1e-6
        else:
            below = above = 1.96 * math.sqrt(
                sum(variance([float(str(each)) for each in lot]) / 20 for lot in values)
            )
            near = 0.25 * below + 1e-9
        assert seen.low is not None
        assert seen.high is not None
        assert (seen.low, seen.high) == pytest.approx(
            (after - before - below, after - before + above), abs=near
        )


def ends_by_hand(share: float, calls: int) -> tuple[float, float]:
    """Between which true shares it is no further off than 95 % of such samples are: where (share -
    true)^2 = 1.96^2 true (1 - true) / calls.
    """
    z2 = NormalDist().inv_cdf(0.975) ** 2 / calls
    a, b, c = 1 + z2, -(2 * share + z2), share**2
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@pytest.mark.parametrize(
    ("before", "after", "judged"),
    [
        ([1.0] * 6, [1.0] * 88 + [0.0] * 29, "unclear"),  # by chance 6 of 6 are no rarity
        ([1.0] * 4, [1.0] * 26, "unclear"),
        ([1.0] * 100, [1.0] * 100, "no different"),
        ([0.0] * 30, [1.0] * 12, "better"),
        ([1.0], [1.0], "unclear"),
    ],
)
def test_a_few_calls_that_all_came_out_the_same_prove_little(
    before: list[float], after: list[float], judged: str
) -> None:
    found = change_of("success", before, after)
    assert judgement(SUCCESS, found) == judged
    assert change_of("any subgoal", before, after, is_share=True)[1:] == found[1:]


@pytest.mark.parametrize(
    ("before", "after", "is_known"),
    [
        ([900.0, 1000.0, 950.0, 800.0], [1.0, 2.0, 3.0, 4.0, 5.0], False),
        ([900.0, 1000.0, 950.0, 800.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0], True),
        ([0.0] * 4, [1.0, 0.0, 3.0, 0.0, 0.0], False),
        ([0.0] * 5, [0.0] * 5, True),
    ],
)
def test_an_interval_needs_some_calls(
    before: list[float], after: list[float], is_known: bool
) -> None:
    assert (change_of("p50_ms", before, after).low is not None) == is_known


def test_calls_that_are_all_alike_say_as_much_as_a_share_of_them() -> None:
    """A bootstrap draws the same again and again, and sees no chance in it."""
    found = change_of("unanswered", [0.0] * 38, [1.0] * 12)
    assert (found.low, found.high) == pytest.approx((0.741, 1.0), abs=0.001)
    assert judgement(measure_of("unanswered"), found) == "worse"
    few = change_of("unanswered", [0.0] * 5, [1.0, 0.0, 3.0, 0.0, 0.0])
    assert judgement(measure_of("unanswered"), few) == "unclear"
    below = change_of("answer.wait_ms", [100.0, 200.0, 300.0, 250.0, 220.0], [-300.0] * 5)
    assert judgement(measure_of("answer.wait_ms"), below) == "lower", "a bootstrap"
    same = change_of("unanswered", [0.0] * 90, [0.0] * 89 + [1.0])
    assert judgement(measure_of("unanswered"), same) == "no different"


def test_a_week_that_is_not_over_is_not_judged() -> None:
    lots = Lot("desk", since="2026-11-16", until="2026-11-23"), Lot("desk", since="2026-11-23")
    changes = [change_of("p50_ms", [900.0] * 20, [1_900.0] * 20)]
    found = Comparison(lots, (20, 20), changes, [])
    assert found.verdict().endswith("So it is worse, and there are enough calls to say so.")
    so_far = found._replace(is_over=False).verdict()
    assert ", which is not over, is slower by 1.00 s" in so_far
    assert so_far.endswith("That may change.")


def test_the_figures_are_those_of_trials(found: Comparison) -> None:
    lots = ([NewestRows(rows).trial("") for rows in lot] for lot in (VERSION_1, VERSION_2))
    trials = {
        each.measure: each
        for each in Versus(*([trial for trial in lot if trial] for lot in lots)).changes()
    }
    shared = [name for each in found.changes if (name := each.measure) in trials]
    assert {"success", "p50_ms", "p95_ms", "unanswered", "goals.progress.result", "turns"} <= set(
        shared
    )
    for name in shared:
        assert change(found, name) == trials[name], name
    assert change(found, "goals.progress.result")._replace(measure="progress") == trials["progress"]


def test_the_page_the_command_and_json_say_the_same(
    found: Comparison,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    versions = StoredCalls(HistorySettings(folder=folder)).versions(LotsQuery())
    assert versions.comparison == found
    assert versions.pair == LOTS
    run = command(monkeypatch, capsys, "history", "compare", "--folder", str(folder))
    by_version, two_lots = (
        run("--by", "version").out,
        run("--a", "agent=desk, version=1", "--b", "agent=desk,version=2").out,
    )
    assert by_version.removeprefix("agent desk: ") == two_lots
    assert two_lots.startswith(found.verdict())
    (document,) = json.loads(run("--by", "version", "--json").out)
    assert document["verdict"] == found.verdict()
    assert document["measures"]["p50_ms"]["change"] == change(found, "p50_ms").change
    assert document["measures"]["p50_ms"]["judgement"] == "worse"


def test_the_list_of_versions_has_the_figures_of_the_comparison(
    found: Comparison, folder: Path
) -> None:
    past = StoredCalls(HistorySettings(folder=folder))
    newest, first = past.versions(LotsQuery()).all
    for seen, calls, place in ((first, VERSION_1, 0), (newest, VERSION_2, 1)):
        assert (seen.lot, seen.calls) == (Lot("desk", LOTS[place].version), CALLS // 2)
        began_ms = [row.first_known_ms for row in call_rows(calls)]
        assert (seen.first_ms, seen.last_ms) == (min(began_ms), max(began_ms))
        for name in ("p50_ms", "ended_badly", "success"):
            means = change(found, name).before, change(found, name).after
            assert seen.values[name] == pytest.approx(means[place])
        assert seen.values["unanswered_share"] == pytest.approx(0.25 / 3), "of three turns each"
        left = [row for row in call_rows(calls) if row.waiting is not None]
        assert (seen.in_vain, seen.in_vain_ms) == (len(left), 60_000)
        assert seen.values["worst_wait_ms"] == 60_000, "longer than any that was answered"
        assert "cost_dollars" not in seen.values
    assert [each.lot.version for each in past.versions(LotsQuery(since="4d")).all] == ["2"]
    assert past.versions(LotsQuery(until="10d")).all == []


def test_the_period_is_that_of_the_lots_unless_they_have_their_own(folder: Path) -> None:
    past = StoredCalls(HistorySettings(folder=folder))
    both = {"a_agent": "desk", "a_version": "1", "b_agent": "desk", "b_version": "2"}
    for asked, calls in (
        (LotsQuery(since="4d", **both), (0, CALLS // 2)),
        (LotsQuery(since="4d", a_since="30d", **both), (CALLS // 2, CALLS // 2)),
        (LotsQuery(until="4d", **both), (CALLS // 2, 0)),
    ):
        comparison = past.versions(asked).comparison
        assert comparison is not None
        assert comparison.calls == calls


def test_a_sentence_says_whether_the_new_version_is_better(found: Comparison) -> None:
    wait = change(found, "p50_ms")
    assert found.verdict().startswith(
        f"Version 2 is slower by {(wait.change or 0) / 1_000:.2f} s {ends(WAIT, wait)}; bad ends: "
        "not"
    )
    assert "goals worse by" in found.verdict()
    turned = found._replace(
        lots=LOTS[::-1],
        changes=[wait._replace(low=-470.0, high=-360.0, before=1_310, after=900)],
    )
    assert turned.verdict() == (
        "Version 1 is faster by 0.41 s [0.36, 0.47]. So it is better, and there are enough calls to "
        "say so."
    )
    unclear = change(found, "ended_badly")._replace(low=-0.2, high=0.2)
    in_part = turned._replace(changes=[*turned.changes, unclear])
    assert in_part.verdict().endswith("there are too few calls to say so of everything.")
    assert (
        found._replace(calls=(20, 0)).verdict()
        == "There is no call of version 2 that is over: nothing can be compared."
    )


def test_subgoals_name_the_calls_that_flipped(found: Comparison) -> None:
    first = found.subgoals[0]
    assert first.name == SET.goal_set["subgoals"][1]["id"]
    lost = {
        row.conversation_id
        for row in call_rows(VERSION_2)
        if row.goals and row.goals.subgoals[1].result == 0
    }
    assert set(first.flipped) == lost
    assert first.change.is_more_than_chance
    assert (first.change.before, first.change.after) == pytest.approx(
        tuple(
            mean(float(str(row.goals.subgoals[1].result)) for row in call_rows(lot) if row.goals)
            for lot in (VERSION_1, VERSION_2)
        )
    )


@pytest.mark.parametrize(
    ("low", "high", "judged"),
    [
        (0.06, 0.2, "better"),
        (-0.2, -0.06, "worse"),
        (-0.04, 0.2, "no worse"),
        (-0.2, 0.04, "unclear"),
        (-0.04, 0.04, "no different"),
    ],
)
def test_what_can_be_said_of_a_change(low: float, high: float, judged: str) -> None:
    seen = Change("success", 0.5, 0.5 + (low + high) / 2, 40, 40, low, high)
    assert judgement(SUCCESS, seen) == judged
    less_is_better = Change("ended_badly", 0.5, 0.5 - (low + high) / 2, 40, 40, -high, -low)
    assert judgement(BAD_ENDS, less_is_better) == judged
    assert judgement(SUCCESS, seen._replace(low=None, high=None)) == "unknown"


def test_four_times_the_calls_halve_the_interval() -> None:
    seen = Change("success", 0.5, 0.5, 40, 50, -0.1, 0.1)  # twice what matters
    assert more_calls(SUCCESS, seen) == 120
    assert more_calls(SUCCESS, seen._replace(low=-0.04, high=0.04)) == 0


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        (0.04, ""),
        (0.0503, "1 more call"),
        (0.1, "120 more calls"),
        (5.0, "more than 10,000 more calls"),
    ],
)
def test_how_many_more_calls_would_tell_is_said_as_far_as_anyone_waits(
    apart: float, said: str
) -> None:
    seen = Change("success", 0.5, 0.5, 40, 50, -apart, apart)
    assert more_calls_in_words(SUCCESS, seen) == said


def test_without_two_versions_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SqliteHistory(tmp_path, writes=True).close()
    ended = command(monkeypatch, capsys, "history", "compare")(
        "--by", "version", "--folder", tmp_path
    )
    assert (ended.code, ended.out) == (0, "")
    assert "has calls of two versions in 30d" in ended.err
    versions = StoredCalls(HistorySettings(folder=tmp_path)).versions(LotsQuery())
    assert versions.comparison is None


def test_versions_are_in_order_and_unknown_ones_are_left_out(tmp_path: Path) -> None:
    names = ("10", "9", "2.10", "2.9")
    rows = [
        structs.replace(row, conversation_id=f"{name} {row.conversation_id}")
        for name in names
        for row in call(0, name)
    ]
    with closing(SqliteHistory(tmp_path, writes=True)) as store:
        store.write(batch([*rows, *call(0, "1"), *call_rows([call(0, "none", agent="other")])]))
        versions = lots_in(store, 0, 2**53)
    names_of = [each.lot.version for each in versions if each.lot.agent == "desk"]
    assert names_of == ["10", "9", "2.10", "2.9", "1"], "the newest first"


def test_versions_say_of_how_many_calls_goals_are_known(folder: Path) -> None:
    unknown = Unscored(UnscoredReason.NO_TURN_JUDGED)
    score = Progress(unknown, unknown, unknown, unknown, unknown, reached=1, missing=1, subgoals=2)
    rows = call(99, "2")
    row = rows[-1]
    assert isinstance(row, CallRow)
    assert row.goals is not None
    withheld = structs.replace(row.goals, progress=score, success_final_turn=unknown)
    with closing(SqliteHistory(folder, writes=True)) as store:
        store.write(batch([rows[0], structs.replace(row, goals=withheld)]))
        newest, before = lots_in(store, 0, 2**53)
    assert (newest.calls, newest.judged, newest.unjudged) == (21, 20, 1)
    assert (before.judged, before.unjudged) == (20, 0)
    reached = [each.goals.success_final_turn for each in call_rows(VERSION_2) if each.goals]
    assert newest.values["success"] == pytest.approx(mean(float(str(each)) for each in reached))


def test_a_lot_is_told_by_names_and_values() -> None:
    assert lot_given("agent=a, b,version = 2 , until=1d") == Lot("a, b", "2", until="1d")
    for wrong in ("", "2", "version", "color=red", "agent=a; x"):
        if wrong == "agent=a; x":
            assert lot_given(wrong).agent == "a; x"
            continue
        with pytest.raises(SetupError, match="names no calls"):
            lot_given(wrong)
    assert {measure.name for measure in COMPARED} >= {"success", "p50_ms"}


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--a", "version=1"),
        ("--before", "2026-11-20"),
        ("--by", "version", "--a", "version=1", "--b", "version=2"),
        ("--by", "agent"),
    ],
)
def test_half_a_comparison_is_refused(
    options: Sequence[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = command(monkeypatch, capsys, "history", "compare", "--folder", str(folder))(*options)
    assert (ended.code, ended.out) == (2, "")
    assert "Say what to compare" in ended.err


def test_calls_are_listed_by_agent_tenant_environment_and_day(folder: Path) -> None:
    past = StoredCalls(HistorySettings(folder=folder))
    every = call_rows([*VERSION_1, *VERSION_2])
    for by, lot in (
        ("agent", Lot("desk")),
        ("tenant", Lot(tenant="unknown")),
        ("environment", Lot(environment="unknown")),
    ):
        (listed,) = past.versions(LotsQuery(by=by)).all
        assert (listed.lot, listed.calls) == (lot, CALLS)
        assert listed.values["worst_wait_ms"] == 60_000
        assert past.versions(LotsQuery(by=by)).comparison is None, "there is no second one"
    found = past.versions(LotsQuery(by="day"))
    days = sorted({row.first_known_ms // DAY_MS for row in every}, reverse=True)
    assert [each.lot.days for each in found.all] == [
        shown_moment(day * DAY_MS)[:10] for day in days
    ]
    for listed, day in zip(found.all, days, strict=True):
        of_day = [row for row in every if row.first_known_ms // DAY_MS == day]
        turns = sum(row.turn or 0 for row in of_day)
        assert listed.calls == len(of_day)
        assert listed.values["unanswered_share"] == pytest.approx(
            sum(row.unanswered for row in of_day) / turns
        )
    assert found.comparison is not None
    today = shown_moment(wall_clock_ms())[:10]
    after, before = [each.lot for each in found.all if each.lot.until <= today][:2]
    assert found.comparison.lots == (before, after), "a whole day and the one before"
    assert found.comparison.verdict().startswith(after.days)
    with pytest.raises(SetupError, match="listed by version, agent"):
        past.versions(LotsQuery(by="weather"))


def test_calls_are_listed_by_week_and_of_one_agent_alone(folder: Path) -> None:
    past = StoredCalls(HistorySettings(folder=folder))
    every = call_rows([*VERSION_1, *VERSION_2])
    weeks = {
        datetime.fromtimestamp(row.first_known_ms / 1_000, UTC).date().isocalendar()[:2]
        for row in every
    }
    found = past.versions(LotsQuery(by="week", agent="desk"))
    assert found.agents == ["desk"]
    assert {date.fromisoformat(each.lot.since).isocalendar()[:2] for each in found.all} == weeks
    assert all(date.fromisoformat(each.lot.since).weekday() == 0 for each in found.all)
    assert sum(each.calls for each in found.all) == CALLS
    for listed in found.all:
        assert listed.lot == Lot("desk", since=listed.lot.since, until=listed.lot.until)
        assert listed.lot.days == f"week of {listed.lot.since}"
        assert past.find(PastQuery(**listed.lot._asdict())).total == listed.calls, "behind its link"
    first = found.all[-1].lot
    within = past.versions(LotsQuery(by="week", since=first.since, until=f"{first.since}T12:00"))
    assert [each.lot.since for each in within.all] == [first.since]
    assert within.all[0].calls == found.all[-1].calls, "a week is whole, as behind its link"
    page = versions_page(
        Site("./", "1", "s", has_past=True), LotsQuery(by="week", agent="desk"), found, ""
    )
    assert "Calls of desk that are over, by week" in page
    assert 'href="versions?by=week"' in page, "all agents again"
    assert past.versions(LotsQuery(by="week", agent="care")).all == []


@pytest.mark.parametrize(
    ("measure", "change", "low", "high", "more"),
    [
        (SUCCESS, 0.0, -0.1, 0.1, 120),  # none is seen: that less than 5 points matter, both ways
        (SUCCESS, -0.27, -0.35, 0.23, 98),  # of shares the end at 0 is the one that is far
        (SUCCESS, -0.04, -0.08, 0.0, 1),  # the next calls tell on which side of 0 it is
        (WAIT, 60.0, -40.0, 160.0, 72),  # on which side of 0 it is
        (WAIT, -60.0, -280.0, 160.0, 36),  # that it is slower by less than matters, at most
        (WAIT, -60.0, -180.0, 60.0, 0),
    ],
)
def test_more_calls_are_as_many_as_a_difference_of_this_size_needs(
    measure: ComparedMeasure, change: float, low: float, high: float, more: int
) -> None:
    before = 1_000.0 if measure is WAIT else 0.5
    seen = Change(measure.name, before, before + change, 40, 50, low, high)
    found = more_calls(measure, seen)
    assert (found == 0) == (judgement(measure, seen) != "unclear")
    assert found == more


def test_past_counts_missed_subgoals_and_finds_their_calls(folder: Path) -> None:
    past = StoredCalls(HistorySettings(folder=folder))
    asked = PastQuery(since="30d")
    counted = past.find(asked).facets["subgoal"]
    facets = {subgoal: calls for of, calls in counted for _, _, subgoal in [of.partition(BESIDE)]}
    assert {of.partition(BESIDE)[0] for of, _ in counted} == {SET.goal_set["id"]}
    of_set = asked.model_copy(update={"goal_set": SET.goal_set["id"]})
    assert dict(past.find(of_set).facets["subgoal"]) == facets, "then its name is enough"
    for place, subgoal in enumerate(SET.goal_set["subgoals"][:2]):
        missed = {
            row.conversation_id
            for row in call_rows([*VERSION_1, *VERSION_2])
            if row.goals and row.goals.subgoals[place].result == 0.0
        }
        chosen = asked.model_copy(update={"subgoal": subgoal["id"]})
        found = past.find(chosen)
        assert facets[subgoal["id"]] == found.total == len(missed) > 0
        assert {row["conversation_id"] for row in found.rows} == missed
        table = past.table(chosen, Site("./", "1", "s", has_past=True), None).decode()
        assert len(table.splitlines()) == len(missed) + 1
    assert past.find(asked.model_copy(update={"subgoal": "no such one"})).total == 0
