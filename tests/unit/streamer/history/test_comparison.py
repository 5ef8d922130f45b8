"""Calls of two periods compared: a change that is there is found, one that is not there is chance,
and unknown is not zero.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import pytest

from consumers.history.search import CallSearch
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import SetupError
from consumers.store import changes
from consumers.store.changes import Change, remark_on_chance
from schemas.columns import Flat
from schemas.rows import CallRow
from schemas.units import DAY_MS
from streamer.history import comparison
from streamer.history.comparison import ComparedPeriod, compared, groups_given
from tests.support.known import instance_of, some
from tests.unit.history.test_store import NOON_MS, batch, call
from tests.unit.streamer.command_line import command

BEFORE, AFTER = ComparedPeriod(0, DAY_MS), ComparedPeriod(DAY_MS, 2 * DAY_MS)


class Calls:
    """A store whose calls have the columns that a test names."""

    def __init__(self, rows: Iterable[dict[str, Flat]]) -> None:
        self.rows = list(rows)

    def values(self, question: CallSearch, columns: Sequence[str]) -> Iterable[tuple[Flat, ...]]:
        assert question.most is None
        for row in self.rows:
            started_ms = instance_of(int, row["first_known_ms"])
            if question.since_ms <= started_ms < question.until_ms:
                yield tuple(row.get(name) for name in columns)


def measured(
    rows: Iterable[dict[str, Flat]], measure: str, by: tuple[str, ...] = ()
) -> dict[tuple[str, ...], Change]:
    # it has what is used of a store
    groups = compared(Calls(rows), BEFORE, AFTER, by)  # type: ignore[arg-type]
    return {
        group: next(change for change in each.changes if change.measure == measure)
        for group, each in groups
    }


def lot(started_ms: int, values: Iterable[Flat], **columns: Flat) -> list[dict[str, Flat]]:
    return [{"first_known_ms": started_ms, "p95_ms": value, **columns} for value in values]


def around(mean: float, seed: int, calls: int = 200) -> list[Flat]:
    random = Random(seed)  # noqa: S311  # no secret
    return [random.gauss(mean, 300) for _ in range(calls)]


def test_a_change_is_told_from_chance() -> None:
    slower = measured(lot(0, around(1_000, 1)) + lot(DAY_MS, around(1_300, 2)), "p95_ms")[()]
    assert slower.change == pytest.approx(300, abs=90)
    assert slower.low is not None
    assert slower.high is not None
    assert 0 < slower.low < 300 < slower.high < 450
    assert slower.is_more_than_chance is True


def test_what_did_not_change_is_rarely_called_more_than_chance() -> None:
    pairs = [
        lot(0, around(1_000, seed, 60)) + lot(DAY_MS, around(1_000, 100 + seed, 60))
        for seed in range(40)
    ]
    called = [measured(rows, "p95_ms")[()].is_more_than_chance for rows in pairs]
    assert None not in called
    assert sum(map(bool, called)) <= 6  # 2 are expected


def test_the_same_calls_have_the_same_interval() -> None:
    rows = lot(0, around(1_000, 3)) + lot(DAY_MS, around(1_000, 4))
    assert measured(rows, "p95_ms") == measured(rows, "p95_ms")


def test_many_calls_are_resampled_in_part_and_the_interval_stays_as_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = lot(0, around(1_000, 1, 4_000)) + lot(DAY_MS, around(1_030, 2, 4_000))
    whole = measured(rows, "p95_ms")[()]
    monkeypatch.setattr(changes, "MOST_DRAWS_OF_ALL", 1)
    part = measured(rows, "p95_ms")[()]
    assert None not in {whole.low, whole.high, part.low, part.high}
    # known, see above
    assert part.high - part.low == pytest.approx(whole.high - whole.low, rel=0.3)  # type: ignore[operator]


def test_an_unknown_value_counts_in_no_mean() -> None:
    change = measured(lot(0, [100, None, 300]) + lot(DAY_MS, [None]), "p95_ms")[()]
    assert change == Change("p95_ms", 200, None, 2, 0, None, None)
    assert change.change is None
    assert change.is_more_than_chance is None


def test_a_single_call_has_a_change_and_no_interval() -> None:
    change = measured(lot(0, [100]) + lot(DAY_MS, [300, 400]), "p95_ms")[()]
    assert (change.change, change.low, change.is_more_than_chance) == (250, None, None)


def test_groups_are_compared_with_themselves() -> None:
    rows = (
        lot(0, [100, 200], **{"labels.agent": "a"})
        + lot(DAY_MS, [300], **{"labels.agent": "a"})
        + lot(DAY_MS, [500], **{"labels.agent": None})
    )
    assert {
        group: (each.before, each.after)
        for group, each in measured(rows, "p95_ms", ("labels.agent",)).items()
    } == {
        ("a",): (150, 300),
        ("",): (None, 500),
    }


def test_too_many_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_GROUPS", 3)
    rows = [row for number in range(4) for row in lot(0, [1], **{"labels.agent": str(number)})]
    with pytest.raises(SetupError, match="more than 3 groups"):
        measured(rows, "p95_ms", ("labels.agent",))
    assert len(measured(rows[:3], "p95_ms", ("labels.agent",))) == 3


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("1970-01-02", ComparedPeriod(DAY_MS, 2 * DAY_MS)),
        ("1970-01-02..1970-01-03", ComparedPeriod(DAY_MS, 3 * DAY_MS)),
        ("1970-01-02..1970-01-03T12:00", ComparedPeriod(DAY_MS, 2 * DAY_MS + DAY_MS // 2)),
    ],
)
def test_a_period(text: str, period: ComparedPeriod) -> None:
    assert ComparedPeriod.parse(text) == period


@pytest.mark.parametrize(
    "text", ["", "7d", "yesterday", "2026-11-21..2026-11-20", "..", "9999-12-31", "2026-11-20.."]
)
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(SetupError):
        ComparedPeriod.parse(text)


def test_only_columns_with_few_values_make_groups() -> None:
    assert groups_given(" labels.agent,code_version,labels.agent") == (
        "labels.agent",
        "code_version",
    )
    assert groups_given(None) == ()
    with pytest.raises(SetupError, match=r"can be compared by labels\.agent"):
        groups_given("conversation_id")


def test_a_reader_is_told_how_many_changes_chance_makes() -> None:
    change = Change("p95_ms", 1, 2, 2, 2, 0.5, 1.5)
    remark = some(remark_on_chance([change] * 40))
    assert remark.startswith("40 changes have an interval. If nothing had changed, about 2 would")
    assert remark_on_chance([change._replace(low=None)]) is None


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    calls = [call(f"a{n}") for n in range(5)] + [call(f"b{n}", NOON_MS + DAY_MS) for n in range(6)]
    runs = next(row for row in call("runs") if isinstance(row, CallRow))
    writer.write(batch([*(row for rows in calls for row in rows), runs]))
    writer.close()
    run = command(monkeypatch, capsys, "history", "compare")
    days = ("--before", _day(NOON_MS), "--after", _day(NOON_MS + DAY_MS), "--folder", tmp_path)
    (group,) = json.loads(run(*days, "--by", "labels.agent,code_version", "--json").out)
    assert group["group"]["labels.agent"] == "desk"
    assert (group["a"]["calls"], group["b"]["calls"]) == (5, 6)
    assert group["measures"]["dead_airs"]["change"] == 0
    assert group["measures"]["dead_airs"]["is_more_than_chance"] is False
    ended = run(*days)
    assert "B minus A [95 % interval]" in ended.out
    assert f"B: {_day(NOON_MS + DAY_MS)}." in ended.out
    assert re.search(r"^Slow wait, p95 +\S+ s +\S+ s +0\.00 s", ended.out, re.MULTILINE)
    assert re.search(r"^tool_calls +5\.00 +5\.00 +0\.00 .* no different$", ended.out, re.MULTILINE)
    assert "waiting.since_ms" not in ended.out, "a moment has no mean"
    nothing = run("--before", "1970-01-01", "--after", "1970-01-02", "--folder", tmp_path)
    assert "No call" in nothing.err


def _day(at_ms: int) -> str:
    from consumers.history.sqlite import _day_name

    return _day_name(at_ms)
