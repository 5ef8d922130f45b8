"""The rows of turns and calls: written when something changes, over a restart too, once a minute,
and how many that is.
"""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations, takewhile
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine import rows
from consumers.engine.admission import Arrival
from consumers.engine.call import CALL_ROW_EVERY_MS
from consumers.engine.effects import NotUnderstood
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import Anchor, InputSource, Speaker, ToolOutcome, UnscoredReason
from schemas.columns import CALL_COLUMNS, flat
from schemas.events.codec import decode
from schemas.redaction import RedactionRules
from schemas.rows import (
    MAX_SOUNDS,
    MAX_TOOLS,
    Answer,
    CallRow,
    GoalsRow,
    Row,
    Silence,
    Sound,
    ToolUse,
    TurnOutcome,
    TurnRow,
    TurnStatus,
    Unscored,
    Waiting,
    encode,
    number,
)
from tests.benchmarks.traffic import recorded_events, simulated_events
from tests.properties.evaluation import EveryCall, assert_counted, subject_of
from tests.support.conformance_data import RECORD, needs_conformance
from tests.support.fakes.engine_feed import T0_MS, Feed, plain, rows_of

ENDED = {"type": "call_ended", "reason": "goodbye"}
HOUR_MS = 3_600_000


def talk(feed: Feed, first: int, last: int, *, apart_ms: int = 10_000) -> None:
    """Turns of a dialogue, the greeting as turn 0."""
    for turn in range(first, last + 1):
        at_ms = turn * apart_ms
        if turn:
            feed.user_audio(at_ms, at_ms + 1_000)
            at_ms += 2_000
        feed.assistant_audio(at_ms, at_ms + 2_000)


def spoken(feed: Feed, *starts_ms: int) -> None:
    """Turns of a call that only the bot hears."""
    for at_ms in starts_ms:
        feed.spoke("user", at_ms, at_ms + 1_000).spoke("bot", at_ms + 2_000, at_ms + 3_000)


Events = Sequence[tuple[int, InputSource, bytes]]


def arrivals_of(events: Events) -> list[Arrival]:
    return [
        Arrival(source, offset, at_ms, "call", decode(source, value, None), value, None)
        for offset, (at_ms, source, value) in enumerate(events)
    ]


def written_by(events: Events, *, taken_over: int = 0) -> list[Row]:
    """The rows of a call from an evaluator, which may have taken it over after so many events."""
    evaluator = PartitionEvaluator(Limits(), "test")
    evaluator.is_silent = True
    arrivals = arrivals_of(events)
    for arrival in arrivals[:taken_over]:
        assert rows_of(evaluator.receive(arrival)) == []
    evaluator.speak()
    rows = rows_of(
        effect for arrival in arrivals[taken_over:] for effect in evaluator.receive(arrival)
    )
    return [*rows, *rows_of(evaluator.advance(events[-1][0] + HOUR_MS))]


@pytest.mark.parametrize("counts", [True, False])
def test_after_a_loss_no_value_counts_as_the_first_one(*, counts: bool) -> None:
    """A former owner may have counted it."""
    feed = Feed()
    feed.evaluator.lacking = set() if counts else {"call"}
    talk(feed, 0, 3)
    feed.send("audit", ENDED, 60_000).advance(HOUR_MS)
    counted = [name for turn in (None, 0, 1, 2, 3) for name in feed.news(turn)]
    assert (
        {"started", "closed", "turn", "wait", "turn_taking"} <= {*counted}
        if counts
        else counted == []
    )


# The row of the call.


RECORDING: Final = "https://rec.example/a.wav"
PERSONAL: Final = (
    "https://rec.example/+4915112345678/jane@example.com?card=4111111111111111&X-Sig=%2B4111"
)


def test_the_newest_address_of_a_recording_counts_with_its_own_beginning() -> None:
    feed = Feed()
    started = {"type": "call_started", "recording_url": RECORDING}
    feed.send("audit", started | {"recording_starts_ms": T0_MS + 250}, 0)
    talk(feed, 0, 2)
    feed.send("pipecat", {"type": "call_started", "agent": "desk"}, 30_000)
    row = feed.call()
    assert (row.recording_url, row.recording_starts_ms) == (RECORDING, T0_MS + 250)
    feed.send("judge", ENDED | {"recording_starts_ms": T0_MS}, 40_000)
    assert feed.call().recording_starts_ms == T0_MS + 250, "a beginning alone is of no recording"
    feed.send("judge", ENDED | {"recording_url": f"{RECORDING}?b"}, 40_000).advance(HOUR_MS)
    closed = feed.call()
    assert closed.state == "closed"
    assert (closed.recording_url, closed.recording_starts_ms) == (f"{RECORDING}?b", None)
    found = dict(zip([each.name for each in CALL_COLUMNS], flat(CALL_COLUMNS, closed), strict=True))
    assert (found["recording_url"], found["recording_starts_ms"]) == (f"{RECORDING}?b", None)


def test_a_call_without_a_recording_has_no_word_of_it_on_the_wire() -> None:
    feed = Feed().send("audit", {"type": "call_started", "recording_url": "javascript:alert(1)"}, 0)
    talk(feed, 0, 2)
    feed.send("audit", ENDED, 40_000).advance(HOUR_MS)
    assert feed.call().state == "closed"
    assert not any(b"recording" in encode(row) for row in feed.rows())
    told = [each.misread.what for each in feed.effects if isinstance(each, NotUnderstood)]
    assert told == ["recording_url of another type or form"]


@pytest.mark.parametrize("redacts", [True, False])
def test_the_address_of_a_recording_is_written_as_it_came(*, redacts: bool) -> None:
    """A signature that is changed opens nothing. What is told as a text is redacted beside it."""
    feed = Feed()
    redactor = Redactor(RedactionRules(enabled=redacts))
    feed.evaluator = PartitionEvaluator(Limits(), "test", redactor=redactor)
    feed.send("audit", ENDED | {"reason": PERSONAL, "recording_url": PERSONAL}, 0).advance(HOUR_MS)
    closed = feed.call()
    assert closed.recording_url == PERSONAL
    assert closed.ended_reason is not None
    assert ("jane@example.com" in closed.ended_reason) is not redacts


def measured_ms(feed: Feed) -> list[int]:
    """When the measures of the call as a whole were other ones."""
    rows = feed.call_rows()
    return [
        now.known_ms - T0_MS
        for before, now in pairwise(rows)
        if now.through_turn != before.through_turn
    ]


def test_a_call_that_is_not_long_is_measured_as_a_whole_at_the_close() -> None:
    feed = Feed()
    talk(feed, 0, 11)
    assert measured_ms(feed) == []
    feed.send("judge", ENDED, 116_000).advance(HOUR_MS)
    assert feed.values("through_turn") == [None, 11]
    assert feed.rows()[-1] is feed.call()
    assert feed.call().state == "closed"


@pytest.mark.parametrize(
    ("every_ms", "expected"), [(30_000, [120, 150, 180, 210]), (15_000, [*range(120, 240, 20)])]
)
def test_a_long_call_is_measured_every_so_often_when_it_leaves_a_turn(
    every_ms: int, expected: list[int]
) -> None:
    feed = Feed(Limits(call_values_every_ms=every_ms))
    talk(feed, 0, 23)
    assert measured_ms(feed) == [1_000 * at_s for at_s in expected]
    assert feed.values("through_turn")[1:] == [at_s // 10 - 1 for at_s in expected]
    assert feed.values("state") == ["running"]


def test_a_long_call_keeps_its_rhythm_when_it_is_taken_over() -> None:
    whole = Feed()
    talk(whole, 0, 30)
    feed = Feed()
    talk(feed, 0, 19)
    feed.hand_over(PartitionEvaluator(Limits(), "test"))
    talk(feed, 20, 30)
    assert measured_ms(feed) == measured_ms(whole)
    assert all(later - sooner >= 30_000 for sooner, later in pairwise(measured_ms(whole)))


def test_a_call_of_which_nothing_is_known_has_its_last_row_alone() -> None:
    feed = Feed().send("audit", {"message_type": "llm_call"}, 0).advance(HOUR_MS)
    (row,) = feed.rows()
    assert isinstance(row, CallRow)
    assert (row.state, row.news, row.events) == ("closed", ("started", "closed"), 1)


def test_a_running_call_has_a_row_every_minute_though_nothing_changes() -> None:
    feed = Feed(Limits(idle_ms=10**6)).heard("Hello", 0)
    (first,) = feed.call_rows()
    for at_ms in range(500, 300_000, 500):
        feed.advance(at_ms)
    times_ms = [row.known_ms - first.known_ms for row in feed.call_rows()]
    assert times_ms == [0, 3_500, *range(3_500 + CALL_ROW_EVERY_MS, 300_000, CALL_ROW_EVERY_MS)], (
        "dead air, and the minutes"
    )
    assert feed.evaluator.next_wakeup() == T0_MS + times_ms[-1] + CALL_ROW_EVERY_MS
    assert [row.news for row in feed.call_rows()[1:]] == [()] * len(times_ms[1:])


def test_a_call_that_is_over_and_waits_for_verdicts_says_nothing_in_between() -> None:
    feed, rules = Feed(), GoalRules(asks_judge=True, verdict_deadline_ms=3_600_000)
    feed.evaluator = PartitionEvaluator(Limits(), "test", ChosenGoals(EveryCall(), rules))
    feed.send("judge", {"type": "call_started", "agent": "desk"}, 0)
    talk(feed, 0, 2)
    feed.send("judge", ENDED, 30_000)
    for at_s in range(30, 1_800, 5):
        feed.advance(1_000 * at_s)
    row = feed.call()
    assert (row.state, row.known_ms) == ("over", T0_MS + 40_000)


def test_minutes_are_counted_from_the_last_row_whoever_wrote_it() -> None:
    feed = (
        Feed(Limits(idle_ms=10**6, dead_air_ms=10**6))
        .heard("Hello", 0)
        .hand_over(PartitionEvaluator(Limits(idle_ms=10**6, dead_air_ms=10**6), "test"))
    )
    written = len(feed.call_rows())
    feed.advance(CALL_ROW_EVERY_MS - 1)
    assert len(feed.call_rows()) == written
    feed.advance(CALL_ROW_EVERY_MS)
    assert len(feed.call_rows()) == written + 1


def test_turns_get_the_labels_of_their_call_though_these_come_late() -> None:
    feed = Feed()
    talk(feed, 0, 2)
    rows = rows_of(feed.send("audit", {"type": "call_started", "agent": "desk"}, 25_000).latest)
    assert [(row.turn, row.labels.agent, row.news) for row in rows if isinstance(row, TurnRow)] == [
        (turn, "desk", ()) for turn in range(3)
    ]


def test_a_row_says_how_far_its_call_has_come() -> None:
    feed = Feed().send("judge", {"type": "call_started", "agent": "desk"}, 0, offset=7)
    talk(feed, 0, 2)
    row = feed.call()
    assert (row.first_place, row.first_known_ms, row.began_ms) == (7, T0_MS, T0_MS)
    assert (row.turn, row.turns, row.answer) == (2, 2, Answer(2, 1_000.0, Anchor.AUDIO))
    assert row.events == row.last_place - 7 + 1


def test_the_rows_of_a_call_cost_the_same_after_ten_turns_and_after_a_thousand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: Counter[int] = Counter()
    part_of = rows._part_of

    def counted(row: TurnRow) -> Any:
        looked_at[row.revision] += 1
        return part_of(row)

    monkeypatch.setattr(rows, "_part_of", counted)
    feed = Feed(Limits(max_turns_per_call=2_000, max_events_per_call=10**6))
    talk(feed, 0, 999)
    assert max(looked_at.values()) <= 2
    row = feed.call()
    assert (row.turn, row.p50_ms, row.longest_wait_ms) == (999, 1_000.0, 1_000.0)


class Sides(NamedTuple):
    """A turn as it may be, and as it may become."""

    wait_ms: float | None
    interruptions: tuple[Speaker, ...]
    outcome: TurnOutcome | None
    tools: tuple[ToolUse, ...]
    status: TurnStatus
    silences: int


TOOLS = st.lists(
    st.tuples(
        st.sampled_from(["find", "book"]),
        st.sampled_from([ToolOutcome.SUCCESS, ToolOutcome.ERROR, ToolOutcome.UNANSWERED]),
    ),
    max_size=3,
).map(
    lambda drawn: tuple(
        ToolUse(index, tool, outcome) for index, (tool, outcome) in enumerate(drawn)
    )
)
SIDES = st.builds(
    Sides,
    st.none() | st.sampled_from([-5.0, 100.0, 200.0, 900.0]),
    st.lists(st.sampled_from(Speaker), unique=True).map(tuple),
    st.sampled_from([None, "answered", "failed"]),
    TOOLS,
    st.sampled_from(["open", "open", "withdrawn"]),
    st.integers(0, 2),
)


@given(st.lists(st.tuples(st.integers(0, 6), SIDES), max_size=30))
def test_sums_that_follow_each_change_are_those_of_all_turns(
    changes: list[tuple[int, Sides]],
) -> None:
    call_rows, now_ms = rows.CallRows(CallRow(conversation_id="c")), 0
    for now_ms, (turn, sides) in enumerate(changes):
        silences = tuple(Silence(number, number, number, 3_000) for number in range(sides.silences))
        parts = sides._asdict() | {"dead_air": silences}
        parts.pop("silences")
        call_rows.set_turn(turn, now_ms, **parts)
        for _ in call_rows.drain(lambda _: None, is_told=True):
            pass
    call_rows.announce(now_ms)
    *_, row = call_rows.drain(lambda _: None, is_told=True)
    assert isinstance(row, CallRow)
    last = dict(changes)
    there = {turn: last[turn] for turn in sorted(last) if last[turn].status != "withdrawn"}
    waits = sorted(
        each.wait_ms
        for turn, each in there.items()
        if turn and each.wait_ms is not None and each.wait_ms >= 0
    )
    uses = [use for each in there.values() for use in each.tools]
    failed = [use.tool for use in uses if use.outcome is not ToolOutcome.SUCCESS]
    failing = {
        tool: len(
            [
                *takewhile(
                    lambda use: use.outcome is ToolOutcome.ERROR,
                    (use for use in reversed(uses) if use.tool == tool),
                )
            ]
        )
        for tool in failed
    }
    interrupted = [turn for turn, each in there.items() for _ in each.interruptions]
    answered = [turn for turn, each in there.items() if each.wait_ms is not None]
    assert (row.turn, row.answer and row.answer.turn) == (
        max(there, default=None),
        max(answered, default=None),
    )
    assert (row.p50_ms, row.p95_ms, row.longest_wait_ms) == tuple(
        rows.percentile(waits, share) for share in (0.5, 0.95, 1.0)
    )
    assert row.interrupted_turns == tuple(interrupted)
    assert row.user_interruptions + row.assistant_interruptions == len(interrupted)
    assert row.dead_air_turns == tuple(
        turn for turn in sorted(last) for _ in range(last[turn].silences)
    )
    assert row.unanswered == sum(each.outcome == "failed" for each in there.values())
    assert row.used_tools == tuple(sorted({use.tool for use in uses}))
    assert (row.tool_calls, row.failed_tool_calls, row.failed_tools) == (
        len(uses),
        len(failed),
        tuple(sorted({*failed})),
    )
    assert row.failing_tools == {tool: number for tool, number in failing.items() if number}


def test_of_many_tools_of_a_turn_the_first_are_in_its_row_and_the_others_are_counted() -> None:
    feed = Feed()
    for index in range(MAX_TOOLS + 3):
        feed.tool_call("find", 100 * index).tool_answer("find", 100 * index + 50)
    row = feed.turn(0)
    assert ([use.index for use in row.tools], row.tools_left_out) == ([*range(MAX_TOOLS)], 3)
    assert feed.call().tool_calls == MAX_TOOLS + 3
    assert len(feed.news(0)) == MAX_TOOLS


def test_a_row_has_the_sounds_of_both_sides_the_first_ones_of_many() -> None:
    feed = Feed().spoke("bot", 0, 900)
    for at_ms in range(2_000, 2_000 + 100 * (MAX_SOUNDS + 5), 100):
        feed.spoke("user", at_ms, at_ms + 50)
    feed.speech("bot_speech_started", 20_000)
    row = feed.turn(1)
    assert row.user_sounds[0] == Sound(T0_MS + 2_000, T0_MS + 2_050)
    assert (len(row.user_sounds), row.assistant_sounds) == (MAX_SOUNDS, (Sound(T0_MS + 20_000),))


@pytest.mark.parametrize("told", list(permutations(Speaker)))
def test_of_two_who_interrupt_each_other_the_caller_comes_first(told: Sequence[Speaker]) -> None:
    made = rows.CallRows(CallRow(conversation_id="one"))
    for by in told:
        made.interrupts(1, T0_MS, by, is_withdrawn=False)
    assert made.turns[1].interruptions == (Speaker.USER, Speaker.ASSISTANT)


# The wait of a caller whom nobody answers.


def test_the_call_of_a_mute_agent_keeps_its_reason() -> None:
    feed = Feed().spoke("bot", 0, 900).spoke("user", 2_000, 3_000).advance(6_500)
    waiting = Waiting(1, T0_MS + 3_500, 1)
    assert feed.call().waiting == waiting
    (
        feed.spoke("user", 8_000, 8_500)  # and hangs up
        .send("audit", ENDED, 9_000)
        .advance(HOUR_MS)
    )
    assert (feed.call().state, feed.call().waiting) == ("closed", waiting)


def test_a_call_whose_caller_was_answered_at_last_waits_for_nothing() -> None:
    feed = (
        Feed()
        .spoke("bot", 0, 900)
        .spoke("user", 2_000, 3_000)
        .advance(6_500)
        .spoke("bot", 8_000, 8_500)
    )
    assert feed.call().waiting is None
    feed.send("audit", ENDED, 9_000).advance(HOUR_MS)
    assert (feed.call().state, feed.call().waiting) == ("closed", None)


# Values that are not known.


def test_the_close_says_in_how_many_turns_a_value_is_not_known_and_why() -> None:
    feed = Feed()
    talk(feed, 0, 1)
    (
        feed.user_audio(20_000, 21_000)
        .bot_text("Nobody hears this.", 22_000)
        .user_audio(30_000, 31_000)
        .bot_text("Nor this.", 32_000)
        .user_audio(40_000)
        .assistant_audio(42_000, 43_000)
        .user_audio(50_000, 51_000)  # which gets no answer, since the call ends
        .send("judge", ENDED, 52_000)
        .advance(HOUR_MS)
    )
    turns = [feed.turn(turn) for turn in range(1, 6)]
    waits = [turn.wait_ms for turn in turns]
    assert [plain(wait) for wait in waits[:3] if wait is not None] == [
        1_000.0,
        "no_assistant_speech",
        "no_assistant_speech",
    ]
    timings = [turn.turn_taking.result for turn in turns if turn.turn_taking is not None]
    unscored = feed.call().unscored_turns
    assert unscored == {
        "voice_to_voice_latency_ms": Counter(
            wait.reason for wait in waits if isinstance(wait, Unscored)
        ),
        "turn_taking": Counter(timing.reason for timing in timings if isinstance(timing, Unscored)),
    }
    assert unscored["voice_to_voice_latency_ms"][UnscoredReason.NO_ASSISTANT_SPEECH] == 2
    assert unscored["turn_taking"]


def test_while_a_call_runs_nobody_counts_what_is_not_known() -> None:
    feed = Feed().user_audio(0, 1_000)
    talk(feed, 1, 20)
    assert measured_ms(feed)
    assert feed.values("unscored_turns") == [{}]


# Over a restart.


def test_turns_that_turn_out_to_be_none_are_withdrawn_once_over_a_restart_too() -> None:
    feed = Feed().speech("bot_speech_started", 0)
    spoken(feed, 2_000, 6_000, 10_000)
    assert {row.turn: row.status for row in feed.turn_rows()} == {
        0: "provisional",
        1: "provisional",
        2: "provisional",
        3: "open",
    }
    feed.hand_over(PartitionEvaluator(Limits(), "test")).assistant_audio(
        0, 900
    )  # on another topic, which lags: there is a simulated caller
    withdrawn = [row for row in feed.turn_rows() if row.status == "withdrawn"]
    assert [(row.turn, row.wait_ms) for row in withdrawn] == [
        (turn, Unscored(UnscoredReason.WITHDRAWN)) for turn in (1, 2, 3)
    ]
    (
        feed.hand_over(PartitionEvaluator(Limits(), "test"))
        .user_audio(20_000, 21_000)
        .assistant_audio(22_000, 23_000)
        .user_audio(30_000, 31_000)
    )
    assert [row for row in feed.turn_rows() if row.status == "withdrawn"] == withdrawn
    assert (feed.turn(1).status, feed.turn(1).wait_ms) == ("provisional", 1_000.0)


def _errs(at_ms: int) -> tuple[int, InputSource, bytes]:
    error = {"type": "error", "data": {"error": "gone"}, "timestamp": at_ms}
    return at_ms, InputSource.PIPECAT, json.dumps(error).encode()


@pytest.mark.parametrize("turns", [3, 1_000])
def test_a_silent_fold_makes_no_rows_and_knows_what_one_with_rows_knows(turns: int) -> None:
    """Also how many turns it may have."""
    events = simulated_events(2)
    arrivals = arrivals_of([_errs(events[0][0]), *events])
    for cut in (1, len(arrivals) // 2, len(arrivals) - 1):
        loud, silent = (
            PartitionEvaluator(Limits(max_turns_per_call=turns), "test") for _ in range(2)
        )
        silent.is_silent = True
        for arrival in arrivals[:cut]:
            loud.receive(arrival)
            assert rows_of(silent.receive(arrival)) == []
        silent.speak()
        assert (silent.next_wakeup(), silent.closing_calls) == (
            loud.next_wakeup(),
            loud.closing_calls,
        )
        for arrival in arrivals[cut:]:
            assert silent.receive(arrival) == loud.receive(arrival)
        assert silent.advance(events[-1][0] + HOUR_MS, 10**6) == loud.advance(
            events[-1][0] + HOUR_MS, 10**6
        )


@pytest.mark.parametrize("seed", [2, 4])
def test_each_value_of_a_turn_is_known_for_the_first_time_once_wherever_a_successor_takes_over(
    seed: int,
) -> None:
    events = simulated_events(seed)
    whole = written_by(events)
    expected = Counter(
        (subject_of(row), name)
        for row in whole
        if not isinstance(row, GoalsRow)
        for name in row.news
    )
    assert {name for (_, name), number in expected.items() if number > 1} <= {"wait_revised"}
    for cut in range(1, len(events), len(events) // 9):
        after = written_by(events, taken_over=cut)
        assert 0 < len(after) <= len(whole)
        assert after == whole[-len(after) :], (
            "what a successor publishes is the rest of what one evaluator publishes"
        )


def test_a_value_that_goes_and_comes_back_does_not_count_again() -> None:
    feed = Feed().spoke("bot", 0, 900)
    spoken(feed, 2_000, 12_000)
    feed.heard("Yes", 13_200)
    before = feed.news(1)
    assert "turn_taking" in before
    # a simulated caller is heard: other turns, without this one
    feed.assistant_audio(14_000, 14_500)
    assert feed.turn(1).status == "withdrawn"
    feed.user_audio(20_000, 21_000).assistant_audio(22_000, 23_000).user_audio(30_000, 31_000)
    assert (feed.turn(1).status, number(feed.turn(1).wait_ms)) == ("provisional", 1_000.0)
    assert [name for name in feed.news(1)[len(before) :] if name != "wait_revised"] == []


# How much it is.


def test_a_simulated_call_has_at_most_fifty_rows_on_average_and_80_kb() -> None:
    calls = [written_by(simulated_events(seed)) for seed in range(100)]
    for call in calls:
        assert_counted(call)
        assert isinstance(call[-1], CallRow)
        assert call[-1].state == "closed"
    assert sum(map(len, calls)) / len(calls) <= 50
    assert sum(len(encode(row)) for call in calls for row in call) / len(calls) <= 80_000


@needs_conformance(RECORD.name)
def test_the_recorded_call_has_at_most_ninety() -> None:
    written = written_by(recorded_events())
    assert_counted(written)
    assert len(written) <= 90
