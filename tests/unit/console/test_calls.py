"""A call is drawn from its rows as far as it is known: its span, who spoke when, and its dead air,
which does not move.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from consumers.console.page.sections import section, timeline
from consumers.view.calls import Interval, ReportedCall
from schemas.closed_sets import Speaker
from schemas.rows import CallRow, GoalsRow, SideSpeech, Silence, Sound, Speech, TurnRow
from tests.support.calls.console_calls import (
    AT_MS,
    call_row,
    reported_rows,
    simulated,
    sounds,
    turn_row,
)
from tests.unit.console.test_page import words


def at(call: ReportedCall) -> list[tuple[Speaker, float, float]]:
    return [(each.speaker, each.start_ms - AT_MS, each.end_ms - AT_MS) for each in call.stretches]


def test_speech_of_which_no_end_is_known_goes_on_while_the_call_does() -> None:
    turns = (
        turn_row(1, user_sounds=sounds((1_000, None)), assistant_sounds=sounds((2_000, None))),
        turn_row(2, user_sounds=sounds((5_000, None))),
    )
    running = reported_rows(call_row(began_ms=AT_MS, known_ms=AT_MS + 9_000), *turns)
    assert at(running) == [
        (Speaker.USER, 1_000, 1_000),  # its end was lost: the caller spoke again
        (Speaker.ASSISTANT, 2_000, 9_000),
        (Speaker.USER, 5_000, 9_000),
    ]
    assert [(each.start_ms - AT_MS, each.end_ms - AT_MS) for each in running.overlaps] == [
        (5_000, 9_000)
    ]
    over = reported_rows(call_row(began_ms=AT_MS, ended_ms=AT_MS + 9_000, state="closed"), *turns)
    assert [end - start for _, start, end in at(over)] == [0, 0, 0]
    assert "Of some speech only the beginning is known" in words(timeline(over))


def test_a_call_is_as_long_as_it_is_known() -> None:
    """The broker's clock says how far a running call has come; its own clock may differ
    by hours.
    """
    heard = turn_row(1, user_sounds=sounds((1_000, 2_000)))
    for row, start_ms, end_ms in (
        (call_row(known_ms=AT_MS + 4_000), AT_MS + 1_000, AT_MS + 5_000),
        (call_row(began_ms=AT_MS, first_known_ms=5, known_ms=4_005), AT_MS, AT_MS + 4_000),
        (call_row(began_ms=AT_MS, ended_ms=AT_MS + 7_000, state="closed"), AT_MS, AT_MS + 7_000),
        (
            call_row(began_ms=5, ended_ms=AT_MS + 9_999_999, state="closed"),
            AT_MS + 1_000,
            AT_MS + 2_000,
        ),
    ):
        call = reported_rows(row, heard)
        assert (call.start_ms, call.end_ms) == (start_ms, end_ms), row
    nothing = reported_rows(call_row(known_ms=AT_MS + 4_000))
    assert (nothing.start_ms, nothing.length_ms) == (AT_MS, 4_000)


def test_where_both_speak_is_found() -> None:
    turns = (
        turn_row(
            1, user_sounds=sounds((0, 1_000)), assistant_sounds=sounds((900, 3_000), (2_900, 4_000))
        ),
        turn_row(2, user_sounds=sounds((3_500, 5_000))),
    )
    assert reported_rows(None, *turns).overlaps == [
        Interval(AT_MS + 900, AT_MS + 1_000, 1),
        Interval(AT_MS + 3_500, AT_MS + 4_000, 2),
    ]


SILENCE = Silence(1, AT_MS + 2_000, AT_MS + 5_000, 3_000)


@pytest.mark.parametrize(
    ("until_ms", "more", "drawn_ms"),
    [
        (7_000, {}, 7_000),
        (None, {"known_ms": AT_MS + 9_000}, 9_000),
        (None, {"state": "closed", "ended_ms": AT_MS + 8_000}, 8_000),
        # it was longer than the threshold, whatever is known of now
        (None, {"known_ms": AT_MS + 4_000}, 5_000),
    ],
)
def test_dead_air_is_drawn_up_to_the_answer(
    until_ms: int | None, more: dict[str, Any], drawn_ms: int
) -> None:
    until = None if until_ms is None else AT_MS + until_ms
    turn = turn_row(
        1, user_sounds=sounds((0, 2_000)), dead_air=(structs.replace(SILENCE, until_ms=until),)
    )
    call = reported_rows(call_row(began_ms=AT_MS, **more), turn)
    assert call.silences == [Interval(AT_MS + 2_000, AT_MS + drawn_ms, 1)]


def test_dead_air_ends_where_the_caller_speaks_again() -> None:
    second = structs.replace(SILENCE, number=2, since_ms=AT_MS + 7_000)
    turn = turn_row(1, user_sounds=sounds((0, 2_000), (6_000, 7_000)), dead_air=(SILENCE, second))
    call = reported_rows(call_row(began_ms=AT_MS, known_ms=AT_MS + 12_000), turn)
    assert [(each.start_ms - AT_MS, each.end_ms - AT_MS) for each in call.silences] == [
        (2_000, 6_000),
        (7_000, 12_000),
    ]


@given(st.lists(st.integers(0, 20_000), max_size=8), st.integers(0, 60_000))
def test_dead_air_whose_end_is_known_moves_no_more(later_ms: list[int], now_ms: int) -> None:
    """Whatever is heard behind it, and however long the call goes on."""
    known = structs.replace(SILENCE, until_ms=AT_MS + 7_000)
    answer = tuple(
        Sound(AT_MS + 7_000 + each, AT_MS + 7_500 + each) for each in sorted([0, *later_ms])
    )
    turn = turn_row(1, user_sounds=sounds((0, 2_000)), assistant_sounds=answer, dead_air=(known,))
    call = reported_rows(call_row(began_ms=AT_MS, known_ms=AT_MS + now_ms), turn)
    assert call.silences == [Interval(AT_MS + 2_000, AT_MS + 7_000, 1)]


def test_dead_air_that_nobody_could_hear_is_not_known() -> None:
    assert reported_rows().dead_airs is None
    assert reported_rows(call_row(dead_airs=2)).dead_airs == 2
    assert reported_rows(None, turn_row(user_sounds=sounds((0, 1)))).dead_airs == 0
    side = SideSpeech(0.0, 0.0, 0.0, 0.0)
    measured = call_row(speech=Speech(0.5, side, side, 0.0, 0.0, 0.0))
    assert reported_rows(measured).dead_airs == 0


def test_turns_that_were_withdrawn_are_no_turns_and_missing_ones_are_known() -> None:
    turns = (turn_row(4), turn_row(2), turn_row(5, status="withdrawn"))
    call = reported_rows(call_row(turn=4), *turns)
    assert [each.turn for each in call.turns] == [2, 4]
    assert call.missing_turns == [1, 3]
    assert reported_rows(call_row(turn=None)).missing_turns == []


@pytest.mark.parametrize("seed", [3, 4, 8])
def test_every_state_of_a_call_is_a_page(seed: int) -> None:
    """With the same places for its parts: each row replaces the one before it."""
    call: CallRow | None = None
    turns: dict[int, TurnRow] = {}
    goals: GoalsRow | None = None
    for row in simulated(seed):
        match row:
            case TurnRow():
                turns[row.turn] = row
            case GoalsRow():
                goals = row
            case CallRow():
                call = row
                text = section(reported_rows(call, *turns.values(), goals=goals), has_index=False)
                for place in (
                    "call",
                    "call-head",
                    "call-figures",
                    "call-standouts",
                    "call-timeline",
                    "call-scores",
                ):
                    assert text.count(f'id="{place}"') == 1
    assert call is not None
