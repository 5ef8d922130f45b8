"""Calls of a real ElevenLabs agent: neither the order of its events nor repeats change
the results.
"""

from hypothesis import given
from hypothesis import strategies as st

from schemas.rows import TurnRow, number
from tests.properties.evaluation import (
    assert_counted,
    end_of,
    final_state,
    final_values,
    fold,
    fresh,
    run,
    taken_over,
)
from tests.properties.owners import Acts, Log, Owner, Settings, acts, by_call, undisturbed
from tests.support.calls.agent_calls import Json, agent_calls, arrivals_of
from tests.support.fakes.engine_feed import rows_of

STARTED: tuple[Json, ...] = (
    {"type": "call_started", "timestamp": 1_790_000_000_000, "agent": "desk"},
)


def _all_of(drawn: tuple[list[Json], Json | None]) -> list[Json]:
    events, record = drawn
    return events if record is None else [*events, record]


@given(agent_calls(), st.data())
def test_any_order_of_an_agent_s_events_gives_the_same_final_scores(
    drawn: tuple[list[Json], Json | None], data: st.DataObject
) -> None:
    events = _all_of(drawn)
    shuffled = data.draw(st.permutations(events))
    in_order, otherwise = (run(arrivals_of(each, control=STARTED)) for each in (events, shuffled))
    assert final_state(in_order) == final_state(otherwise)


@given(agent_calls(), st.data())
def test_what_comes_again_changes_nothing(
    drawn: tuple[list[Json], Json | None], data: st.DataObject
) -> None:
    """A monitor that reconnects is sent the latest events again, and the bridge gives them the
    times of then.
    """
    events = _all_of(drawn)
    if any(
        "event_id" not in str(event)
        for event in events
        if event.get("type") in ("user_transcript", "agent_response")
    ):
        return  # without ids a repeat and words said twice are the same
    place = data.draw(st.integers(0, len(events)))
    back = data.draw(st.integers(0, place))
    again = [
        {**event, "timestamp": event["timestamp"] + 50_000}
        for event in events[back:place]
        if "type" in event
    ]
    once, twice = (
        run(arrivals_of(each, control=STARTED))
        for each in (events, [*events[:place], *again, *events[place:]])
    )
    assert final_state(once) == final_state(twice)


@given(agent_calls(), st.data())
def test_events_made_from_the_record_add_nothing_to_live_ones_whichever_come_first(
    drawn: tuple[list[Json], Json | None], data: st.DataObject
) -> None:
    events = _all_of(drawn)
    recorded = [{**event, "is_from_record": True} for event in events if "type" in event]
    both = data.draw(st.permutations([*events, *recorded]))
    alone, together = (
        final_state(run(arrivals_of(each, control=STARTED))) for each in (events, both)
    )
    for state in (alone, together):
        del state["call", None]["events"]
    assert together == alone


@given(agent_calls(), st.data())
def test_a_successor_anywhere_changes_nothing(
    drawn: tuple[list[Json], Json | None], data: st.DataObject
) -> None:
    arrivals = arrivals_of(data.draw(st.permutations(_all_of(drawn))), control=STARTED)
    place = data.draw(st.integers(0, len(arrivals)))
    straight = fresh()
    expected = fold(straight, arrivals)
    expected += straight.advance(end_of(arrivals))
    effects = fold(fresh(), arrivals[:place])
    second = taken_over(arrivals[:place])
    effects += fold(second, arrivals[place:])
    effects += second.advance(end_of(arrivals))
    assert rows_of(effects) == rows_of(expected)


@given(agent_calls())
def test_an_error_is_said_of_every_estimate_that_a_record_replaced_and_of_no_other(
    drawn: tuple[list[Json], Json | None],
) -> None:
    last = final_state(run(arrivals_of(_all_of(drawn), control=STARTED)))
    turns = {turn: row for (_, turn), row in last.items() if turn is not None}
    errors = {turn: row["estimate_error"] for turn, row in turns.items() if "estimate_error" in row}
    replaced = {turn for turn, row in turns.items() if row.get("anchor") == "record"}
    assert errors.keys() <= replaced
    for turn, error in errors.items():
        assert error["recorded_ms"] == turns[turn]["wait_ms"]
    rows = [
        row
        for row in rows_of(run(arrivals_of(drawn[0], control=STARTED)))
        if isinstance(row, TurnRow)
    ]
    assert errors.keys() == replaced & {row.turn for row in rows if number(row.wait_ms) is not None}
    assert all(row.estimate_error is None for row in rows)


@given(agent_calls(), st.lists(acts(), min_size=1, max_size=2), st.data())
def test_an_evaluator_that_ends_anywhere_loses_nothing(
    drawn: tuple[list[Json], Json | None], lives: list[Acts], data: st.DataObject
) -> None:
    arrivals = arrivals_of(data.draw(st.permutations(_all_of(drawn))), control=STARTED)
    log = Log.of(arrivals)
    for each in lives:
        Owner(log, Settings()).live(each)
    Owner(log, Settings()).to_the_end()
    assert_counted(log.rows)
    assert final_values(log.rows) == final_state(run(arrivals))
    assert by_call(log.published) == by_call(undisturbed(log, Settings()))
