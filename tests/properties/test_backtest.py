"""Past calls evaluated again come out as they did, whatever else was in the log."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.log import LogReader
from schemas.rows import CallRow, Row, decode, encode
from streamer.backtest import LastValues, PastCalls, Rerun, RerunComparison, last_values
from streamer.history.comparison import ComparedPeriod
from streamer.trials.calls import NewestRows
from tests.properties.owners import Acts, Log, Owner, Settings, acts
from tests.properties.partitions import logs, rules, settings, times
from tests.support.laws import examples

EVER = ComparedPeriod(-(10**15), 10**15)

_lives = st.lists(acts(), max_size=3)


def _evaluated(log: Log, settings: Settings, lives: Sequence[Acts]) -> None:
    for each in lives:
        Owner(log, settings).live(each)
    Owner(log, settings).to_the_end()


def _again(rerun: Rerun, log: Log, since: int = 0) -> dict[str, list[bytes]]:
    """All that the new evaluation writes, by call. It sees the log from one of its records on."""
    reader = LogReader()
    written: dict[str, list[bytes]] = {}
    rows: list[Row] = []
    past: Sequence[Any] = log.records[since:]
    for record in past:
        if (found := reader.read(record)) is not None:
            rows += rerun.fold_record(found)
    for row in [*rows, *rerun.finish(0)]:
        written.setdefault(row.conversation_id, []).append(encode(row))
    return written


def _calls(
    scores: Iterable[bytes], period: ComparedPeriod
) -> tuple[PastCalls, dict[str, list[bytes]]]:
    """The calls that closed once, in the period, and all that was written of calls that closed in
    it.
    """
    calls, lives = PastCalls(period), dict[str, list[bytes]]()
    written: dict[str, list[bytes]] = {}
    for value in scores:
        row = decode(value)
        calls.read_record(row.conversation_id.encode(), value)
        lives.setdefault(row.conversation_id, []).append(value)
        if is_closed(row):
            life = lives.pop(row.conversation_id)
            if period.has(row.known_ms):
                written[row.conversation_id] = life
    return calls, written


def is_closed(row: Row) -> TypeGuard[CallRow]:
    return isinstance(row, CallRow) and row.state == "closed"


def _rerun(settings: Settings, calls: PastCalls, cut_ms: int = 0) -> Rerun:
    goals = ChosenGoals(None, settings.rules)
    return Rerun(
        settings.limits,
        "test",
        calls.period,
        calls.by_id,
        True,
        RerunComparison(),
        folds_all=True,
        cut_ms=cut_ms,
        goals=goals,
    )


@examples(times=2)
@given(logs(), settings, _lives, st.integers(0, 4))
def test_with_the_same_settings_every_row_is_the_same_byte_for_byte(
    log: Log, settings: Settings, lives: Sequence[Acts], skipped: int
) -> None:
    """Some calls may have closed before the period: they are not evaluated, and others gave way to
    them all the same.
    """
    _evaluated(log, settings, lives)
    closed = [row for row in map(decode, log.score_values) if is_closed(row)]
    since_ms = sorted(row.known_ms for row in closed)[skipped % len(closed)]
    calls, then = _calls(log.score_values, ComparedPeriod(since_ms, EVER.until_ms))
    rerun = _rerun(settings, calls)
    assert _again(rerun, log) == {
        conversation_id: then[conversation_id] for conversation_id in calls.by_id
    }
    assert (rerun.comparison.calls["equal"], rerun.comparison.examples) == (len(calls.by_id), [])
    assert (rerun.open_calls, rerun.counts["without_beginning"]) == (0, 0)
    event(f"{len(calls.by_id)} of {len(closed)} calls")
    event(
        f"{min(2, sum(row.close_reason == 'limit_open_calls' for row in closed))} evictions or more"
    )


class NoGoals:
    """No call has goals."""

    def choose(self, goals_id: str | None, agent: str | None) -> None:
        del goals_id, agent


@given(logs(), times, times, rules, _lives)
def test_other_settings_decide_as_if_they_had_been_there_then(
    log: Log, then: dict[str, Any], today: dict[str, Any], rules: GoalRules, lives: Sequence[Acts]
) -> None:
    _evaluated(log, Settings(Limits(**then), rules, lambda _: NoGoals()), lives)
    other = Settings(Limits(**today), rules, lambda _: NoGoals())
    rerun = _rerun(other, _calls(log.score_values, EVER)[0])
    again = _again(rerun, log)
    event(f"{min(1, rerun.comparison.calls['changed'])} changed calls or more")
    log.scores, log.published, log.answers = [], [], lambda _: None
    Owner(log, other).to_the_end()
    said = {key: _lasting(map(decode, values)) for key, values in again.items()}
    undisturbed, _ = _calls(log.score_values, EVER)
    assert said == {key: _lasting(call.rows()) for key, call in undisturbed.by_id.items()}


def _lasting(rows: Iterable[Row]) -> LastValues:
    """The values at the end. Late facts may still change the number of a turn when a silence in it
    is decided.
    """
    values = last_values(NewestRows(rows))
    return {
        each: value
        for each, value in values.items()
        if each[1] not in ("dead_air", "dead_air_turns")
    }
