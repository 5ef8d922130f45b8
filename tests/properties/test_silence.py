"""Broker time: nothing happens before its deadline, nothing due is slept through, nothing follows a
closing.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs, to_builtins

from consumers.engine.effects import Effect
from schemas.rows import GoalsRow, Row, Silence, TurnRow
from tests.properties.evaluation import (
    LONG_AFTER_MS,
    Subject,
    end_of,
    fold,
    fresh,
    lives_of,
    newest,
    renumbered,
    run,
    subject_of,
)
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, Json, closings_of, rows_of
from tests.support.known import some

STEP_MS = 5


@given(st.data())
def test_time_before_a_deadline_changes_nothing(data: st.DataObject) -> None:
    """There are no batches in the engine: a group of records is its records, with time allowed to
    pass in between.
    """
    call, order = drawn(data)
    # Evenly and within every deadline: a record from behind one waits until time is there.
    arrivals = [
        replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
        for place, arrival in enumerate(arrivals_of(call, order))
    ]
    pauses = data.draw(st.lists(st.sampled_from([0, 0, 1, 7, 400, 10**9]), min_size=1, max_size=8))
    steady, paused = fresh(), fresh()
    for place, arrival in enumerate(arrivals):
        assert paused.receive(arrival) == steady.receive(arrival)
        (open_call,) = paused._calls.values()
        due_ms = open_call.next_decision_ms
        open_call.end._plan()
        open_call._judged._plan()
        open_call._plan()
        assert open_call.next_decision_ms == due_ms, "a deadline has changed and was not set"
        wakeup_ms = some(paused.next_wakeup())
        assert wakeup_ms <= due_ms, "this would be slept through"
        now_ms = min(arrival.broker_time_ms + pauses[place % len(pauses)], due_ms - 1)
        assert paused.advance(now_ms) == []
        wakeup_ms = some(paused.next_wakeup())
        assert now_ms < wakeup_ms <= due_ms
    assert paused.advance(end_of(arrivals)) == steady.advance(end_of(arrivals))


@given(st.data())
def test_every_step_of_time_gives_what_one_leap_gives(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    leaping, stepping = fresh(), fresh()
    fold(leaping, arrivals)
    fold(stepping, arrivals)
    leap = leaping.advance(end_of(arrivals))
    steps: list[Effect] = []
    while (wakeup_ms := stepping.next_wakeup()) is not None:
        steps += stepping.advance(wakeup_ms)
    assert decided(leap) == decided(steps)


@given(st.data())
def test_a_silence_keeps_its_times_while_its_call_grows(data: st.DataObject) -> None:
    """Dead air does not flicker: it stays as it was first said, and its end is said once. A page
    draws it no shorter than its threshold.
    """
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    pauses = data.draw(
        st.lists(st.sampled_from([0, 0, 400, 4_000, 20_000]), min_size=1, max_size=8)
    )
    evaluator, now_ms = fresh(), T0_MS
    effects: list[Effect] = []
    for place, arrival in enumerate(arrivals):
        now_ms += STEP_MS + pauses[place % len(pauses)]
        effects += [
            *evaluator.receive(replace(arrival, broker_time_ms=now_ms)),
            *evaluator.advance(now_ms),
        ]
    effects += evaluator.advance(now_ms + LONG_AFTER_MS)
    shown: dict[int, tuple[Silence, ...]] = {}
    for row in rows_of(effects):
        if not isinstance(row, TurnRow):
            continue
        before = shown.get(row.turn, ())
        assert len(before) <= len(row.dead_air)
        for earlier, silence in zip(before, row.dead_air, strict=False):
            assert silence == (
                structs.replace(earlier, until_ms=silence.until_ms)
                if earlier.until_ms is None
                else earlier
            )
        shown[row.turn] = row.dead_air


@given(st.data())
def test_a_call_closes_once_and_is_silent_ever_after(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    close_at = data.draw(st.integers(1, len(arrivals)))
    evaluator = fresh()
    effects = fold(evaluator, arrivals[:close_at])
    closing = evaluator.advance(end_of(arrivals))
    assert len(closings_of(closing)) == 1
    assert closings_of(closing) == rows_of(closing)[-1:]
    assert closings_of(effects) == []
    assert fold(evaluator, arrivals[close_at:]) == []
    assert evaluator.open_calls == ()
    assert evaluator.next_wakeup() is None or evaluator.advance(2 * end_of(arrivals)) == []
    late = sum(count.by for count in evaluator.drain_counts() if count.labels[1] == "after_close")
    assert late == len(arrivals) - close_at


@given(st.data())
def test_every_call_ends_with_its_closed_row(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = renumbered(arrivals_of(call, order))
    effects = run(arrivals)
    (closed,) = closings_of(effects)
    assert rows_of(effects)[-1] is closed
    assert closed.last_place == len(arrivals) - 1


@given(st.data())
def test_the_pace_of_closing_changes_nothing(data: st.DataObject) -> None:
    """Calls that are over wait until there is time to close them; meanwhile others go on, and some
    begin.
    """
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    pauses = data.draw(st.lists(st.sampled_from([0, 0, 0, 400, 10**9]), min_size=1, max_size=8))
    closes = data.draw(st.lists(st.booleans(), min_size=1, max_size=5))
    prompt, slow = fresh(), fresh()
    now_ms = T0_MS
    effects: dict[int, list[Effect]] = {id(prompt): [], id(slow): []}
    for place, arrival in enumerate(arrivals):
        now_ms += STEP_MS + pauses[place % len(pauses)]
        for each in (prompt, slow):
            out = effects[id(each)]
            for key in (arrival.conversation_id, f"another, begun at {now_ms // 10**9}"):
                offset = 2 * arrival.offset + (key != arrival.conversation_id)
                out += each.receive(
                    replace(arrival, conversation_id=key, broker_time_ms=now_ms, offset=offset)
                )
            out += each.pass_time(now_ms) if each is slow else each.advance(now_ms)
        if closes[place % len(closes)]:
            effects[id(slow)] += slow.close_some()
    for each in (prompt, slow):
        effects[id(each)] += each.advance(now_ms + 10**9)
    assert _by_call(effects[id(slow)]) == _by_call(effects[id(prompt)])
    assert set(slow.drain_counts()) == set(prompt.drain_counts())


def _by_call(effects: list[Effect]) -> dict[str, list[Row]]:
    return {life[0].conversation_id: life for life in lives_of(rows_of(effects))}


def decided(effects: Sequence[Effect]) -> dict[Subject, tuple[Json, list[str]]]:
    """By subject: what time has decided in the end, and what has counted. How many rows that is
    depends on the steps.
    """
    rows = rows_of(effects)
    news: dict[Subject, list[str]] = {}
    for row in rows:
        if not isinstance(row, GoalsRow):
            news.setdefault(subject_of(row), []).extend(row.news)
    how = {"revision", "news", "known_ms"}
    return {
        subject: (
            {name: part for name, part in to_builtins(row).items() if name not in how},
            news.get(subject, []),
        )
        for subject, row in newest(rows).items()
    }
