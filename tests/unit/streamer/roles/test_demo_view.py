"""The table of running calls follows the score records: revisions replace, withdrawn records go, rows are bounded."""

from typing import Any

import pytest

from schemas.closed_sets import Anchor, CloseReason, SortKey, ToolOutcome, UnscoredReason
from schemas.scores.live_view import CallView, GoalsReached, MeasuredLatency
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    ProgressScore,
    Result,
    Scored,
    StallFact,
    SubgoalScore,
    ToolUseFact,
    TurnStatus,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from schemas.scores.running import (
    SHOWN_AFTER_END_MS,
    CallTable,
    RunningCalls,
    ShownCall,
    WantedCalls,
    age_of_data,
)
from schemas.scores.trouble import troubles_of
from streamer.roles.demo_view import (
    LEGEND,
    MAX_AGENTS,
    MOST_NEWS,
    MOST_NEWS_LINES,
    News,
    NewsLine,
    Totals,
    screen,
)
from streamer.terminal import Screen

NOW_MS = 1_790_000_000_000


def common(call: str = "call-1", turn: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "conversation_id": call, "turn": turn, "revision": 1, "status": TurnStatus.OPEN, "input_hash": "", "offsets": {},
        "event_time_ms": NOW_MS, "caused_at_ms": NOW_MS, "labels": CallLabels(agent="bot"), "code_version": "1", **more,
    }  # fmt: skip


def started(call: str = "call-1", **more: Any) -> AnyScoreRecord:
    return CallStartedFact(**common(call, **more))


def turn(number: int, **more: Any) -> AnyScoreRecord:
    return TurnValues(voice_to_voice_ms=Unscored(reason=UnscoredReason.NO_USER_SPEECH), **common(turn=number, **more))


def latency(number: int, value: float | None, anchor: Anchor | None = Anchor.AUDIO, **more: Any) -> AnyScoreRecord:
    result = Unscored(reason=UnscoredReason.WITHDRAWN) if value is None else Scored(value=value)
    return VoiceToVoiceLatency(
        result=result, anchor=anchor, source="elevenlabs", **common(**{"turn": number, "is_first": True, **more})
    )


def interruption(number: int, by: str, **more: Any) -> AnyScoreRecord:
    name = "interruption_by_user" if by == "user" else "interruption_by_assistant"
    return InterruptionFact(name=name, **common(turn=number, **more))


def dead_air(number: int, **more: Any) -> AnyScoreRecord:
    return DeadAirFact(silent_since_ms=NOW_MS, threshold_ms=3_000, **common(turn=number, **more))


def tool(index: int, **more: Any) -> AnyScoreRecord:
    used = {"tool": "look_up", "outcome": ToolOutcome.SUCCESS, "duration_ms": 5}
    return ToolUseFact(**used, **common(turn=1, index=index, **more))


def progress(number: int, reached: int, missing: int = 0, **more: Any) -> AnyScoreRecord:
    known: Result = Scored(value=reached / 4)
    result = Unscored(reason=UnscoredReason.JUDGE_DISABLED) if missing else known
    values = dict.fromkeys(("result", "auc", "auc_if_ended_now", "ppt", "success"), more.pop("result", result))
    return ProgressScore(reached=reached, missing=missing, subgoals=4, **values, **common(turn=number, **more))


def subgoal(reached_turn: int | None, **more: Any) -> AnyScoreRecord:
    how = {"subgoal_id": "booked", "checked_by": "code", "reached_turn": reached_turn}
    return SubgoalScore(result=Scored(value=reached_turn is not None), **how, **common(index=1, **more))


def stall(since_turn: int, **more: Any) -> AnyScoreRecord:
    return StallFact(since_turn=since_turn, by="turns", **common(index=1, **more))


def closed(call: str = "call-1", ended_reason: str | None = "goodbye", **more: Any) -> AnyScoreRecord:
    return ClosedFact(
        reason=CloseReason.ENDED, ended_reason=ended_reason, turns=3, events=9, through={}, **common(call, **more)
    )


def row_of(*records: AnyScoreRecord) -> CallView:
    table = CallTable()
    for record in records:
        table.fold(record)
    (row,) = table.rows(NOW_MS)
    return row


def test_a_new_call_has_nothing_yet() -> None:
    row = row_of(started())
    assert (row.agent, row.turn, row.latency, row.dead_airs, row.tool_calls, row.closed) == (
        "bot", None, None, 0, 0, None,
    )  # fmt: skip


def test_the_newest_turn_counts_and_a_withdrawn_one_does_not() -> None:
    assert row_of(turn(0), turn(1), turn(2), turn(1, status=TurnStatus.SETTLED)).turn == 2
    assert row_of(turn(0), turn(1), turn(1, is_withdrawn=True, revision=2)).turn == 0


def test_a_turn_shows_with_the_first_thing_known_of_it() -> None:
    """The row of a turn is written when the call has left the turn."""
    assert row_of(turn(0), latency(1, 900)).turn == 1
    assert row_of(turn(0), turn(1), tool(0), interruption(2, "user")).turn == 2
    assert row_of(turn(0), latency(1, 900), latency(1, None, revision=2)).turn == 0
    assert row_of(turn(0), subgoal(4), stall(2)).turn == 0, "those are about the call"


def test_the_latency_is_that_of_the_newest_turn_that_has_one() -> None:
    first, second = latency(1, 900), latency(2, -300, Anchor.VAD)
    assert row_of(first, second).latency == MeasuredLatency(2, -300, Anchor.VAD)
    assert row_of(second, first).latency == MeasuredLatency(2, -300, Anchor.VAD)
    assert row_of(first, latency(1, 700, revision=2)).latency == MeasuredLatency(1, 700, Anchor.AUDIO)
    assert row_of(first, second, latency(2, None, revision=2)).latency == MeasuredLatency(1, 900, Anchor.AUDIO)


def test_interruptions_dead_air_and_tools_are_counted_once_each() -> None:
    row = row_of(
        interruption(1, "user"), interruption(1, "user", revision=2), interruption(2, "user"),
        interruption(2, "assistant"), interruption(3, "assistant"), interruption(3, "assistant", is_withdrawn=True),
        dead_air(1), dead_air(1, status=TurnStatus.FINAL), dead_air(2), tool(0), tool(0, revision=2), tool(1),
    )  # fmt: skip
    assert (row.user_interruptions, row.assistant_interruptions) == (2, 1)
    assert (row.dead_airs, row.tool_calls) == (2, 2)


def test_goals_are_those_of_the_newest_turn_that_was_judged() -> None:
    assert row_of(started()).goals is None
    assert row_of(progress(1, 0), progress(2, 2), progress(1, 1, revision=2)).goals == GoalsReached(2, 0, 4)
    withdrawn = progress(2, 0, result=Unscored(reason=UnscoredReason.WITHDRAWN), revision=2)
    assert row_of(progress(1, 1), progress(2, 2), withdrawn).goals == GoalsReached(1, 0, 4)
    assert row_of(progress(1, 1, missing=2)).goals == GoalsReached(1, 2, 4)


def test_a_call_is_stalled_until_it_moves_or_ends() -> None:
    stuck = [progress(1, 1), progress(5, 1), stall(1)]
    assert row_of(*stuck[:-1]).is_stalled is False
    assert row_of(*stuck).is_stalled is True
    assert row_of(*stuck, progress(6, 1)).is_stalled is True
    assert row_of(*stuck, progress(6, 2)).is_stalled is False
    assert row_of(*stuck, closed()).is_stalled is False
    assert row_of(stall(0)).is_stalled is True


@pytest.mark.parametrize(
    ("records", "mark", "cell", "status"),
    [
        ([progress(1, 3)], [], "3/4", "running"),
        ([progress(1, 1, missing=2)], [], "1/4?", "running"),
        ([progress(1, 1), stall(1)], ["!"], "1/4", "stalled"),
    ],
)
@pytest.mark.parametrize("width", [80, 110, 120])
def test_the_screen_shows_how_far_a_call_is(
    records: list[AnyScoreRecord], mark: list[str], cell: str, status: str, width: int
) -> None:
    line = shown([row_of(started(), *records)], width)[4]
    assert line.split()[: len(mark)] == mark
    assert line.split()[len(mark) + 5] == cell
    assert line.split()[-1] == status


def test_a_call_that_waits_for_verdicts_is_over_and_waits_for_them() -> None:
    over = CallValues(through_turn=1, is_over=True, **common())
    line = shown([row_of(started(), dead_air(1), over)], 80)[4]
    assert line.rstrip().endswith("over, waiting for verdicts")
    assert "!" not in line, "nobody waits in silence any more"


def test_a_call_that_is_over_stays_for_a_moment() -> None:
    table = CallTable()
    for record in (started("a"), started("b", caused_at_ms=NOW_MS + 1), closed("a"), closed("a")):
        table.fold(record)
    assert [(row.conversation_id, row.closed is None) for row in table.rows(NOW_MS)] == [("a", False), ("b", True)]
    assert (table.calls_running, table.calls_ended) == (1, 1)
    assert [row.conversation_id for row in table.rows(NOW_MS + SHOWN_AFTER_END_MS)] == ["a", "b"]
    assert [row.conversation_id for row in table.rows(NOW_MS + SHOWN_AFTER_END_MS + 1)] == ["b"]


def test_the_table_is_bounded_and_ended_calls_make_room_first() -> None:
    table = CallTable(max_calls=2)
    for record in (started("a"), closed("a", caused_at_ms=NOW_MS + 5), started("b"), started("c")):
        table.fold(record)
    assert [row.conversation_id for row in table.rows(NOW_MS)] == ["b", "c"]
    assert table.calls_dropped == 0
    table.fold(started("b", caused_at_ms=NOW_MS + 9))
    table.fold(started("d"))
    assert {row.conversation_id for row in table.rows(NOW_MS)} == {"b", "d"}
    assert table.calls_dropped == 1


def test_a_call_that_made_room_comes_back_without_its_old_troubles() -> None:
    table = CallTable(max_calls=1)
    table.fold(dead_air(1))
    assert table.shown(NOW_MS, NOW_MS)[0].is_bad
    table.fold(started("another"))
    table.fold(started(dead_air(1).conversation_id))
    assert not table.shown(NOW_MS, NOW_MS)[0].is_bad


def in_order(rows: list[CallView], sort: SortKey = "trouble") -> list[ShownCall]:
    calls = [ShownCall(row, troubles_of(row, NOW_MS)) for row in rows]
    return RunningCalls(calls, "", is_stale=False).chosen(WantedCalls(sort=sort)).calls


def shown(rows: list[CallView], width: int = 120, height: int = 20) -> list[str]:
    console = Screen(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(screen("3 calls running", in_order(rows), NOW_MS + 65_000, width=width, height=height))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_shows_all_that_is_known_of_a_call(width: int) -> None:
    row = row_of(
        started(), turn(2), latency(2, 1_234.6, Anchor.TURN_RELEASE), interruption(1, "user"), dead_air(1), tool(0)
    )
    lines = shown([row], width)
    assert lines[0].rstrip() == "3 calls running"
    more = ["turn_release", "1/0", "1", "1"] if width > 80 else []
    cells = ["!", "call-1", "bot", "1:05", "2", "1:05", "1.23", "s", *more, "dead", "air", "in", "turn", "1"]
    assert lines[4].split() == cells
    assert max(map(len, lines)) <= width


def test_the_end_of_a_call_and_an_overlap_are_shown_as_such() -> None:
    line = shown([row_of(started(), latency(1, -5), closed(caused_at_ms=NOW_MS + 3_000))])[4]
    assert "0:03" in line
    assert "overlap" in line
    assert "over: goodbye" in line


def test_when_the_screen_is_too_small_the_worst_calls_are_shown_and_the_healthy_ones_counted() -> None:
    table = CallTable()
    for number in range(30):
        table.fold(started(f"call{number:02}", caused_at_ms=NOW_MS + number))
    table.fold(latency(1, 2_000, conversation_id="call29"))
    table.fold(dead_air(1, conversation_id="call28"))
    lines = shown(table.rows(NOW_MS), height=16)
    assert len(lines) < 16
    assert [line.split()[:2] for line in lines[4:6]] == [["!!", "call28"], ["!", "call29"]]
    assert [line.split()[0] for line in lines[6:-1]] == [f"call{number:02}" for number in range(8)]
    assert lines[-1].strip() == "and 20 more calls without trouble: bot 20"
    tiny = shown([row_of(started(call), dead_air(1, conversation_id=call)) for call in ("a", "b", "c")], height=6)
    assert tiny[-1].strip() == "and 2 more calls in trouble"


def ids(calls: list[ShownCall]) -> list[str]:
    return [call.view.conversation_id for call in calls]


def test_calls_can_be_shown_in_other_orders() -> None:
    rows = [
        row_of(started("a", caused_at_ms=NOW_MS + 5), latency(1, 900, conversation_id="a", caused_at_ms=NOW_MS + 6)),
        row_of(started("b"), latency(1, 1_400, conversation_id="b"), closed("b", caused_at_ms=NOW_MS + 9)),
        row_of(started("c", caused_at_ms=NOW_MS + 1, labels=CallLabels(agent="ava"))),
    ]
    assert ids(in_order(rows)) == ["a", "c", "b"], "what is over comes last"
    assert ids(in_order(rows, "quiet")) == ["c", "a", "b"]
    assert ids(in_order(rows, "latency")) == ["b", "a", "c"]
    assert ids(in_order(rows, "began")) == ["b", "c", "a"]
    assert ids(in_order(rows, "agent")) == ["c", "a", "b"]


def test_old_data_are_named_while_calls_run() -> None:
    assert age_of_data(None, NOW_MS, 1) == ("no score yet", False)
    assert age_of_data(NOW_MS, NOW_MS + 400, 1) == ("newest score 0.4 s old", False)
    assert age_of_data(NOW_MS, NOW_MS + 25_000, 21) == ("SCORES ARE 25 s OLD: does an evaluator run?", True)
    assert age_of_data(NOW_MS, NOW_MS + 25_000, 0) == ("newest score 25 s old", False)
    assert age_of_data(NOW_MS + 50, NOW_MS, 1)[0] == "newest score 0.0 s old", "clocks differ a little"


def full_screen(calls: int, height: int, width: int = 120, lines: int = 30) -> list[str]:
    """The lines of a screen with totals, and with more news than fit."""
    table = CallTable()
    for number in range(calls):
        table.fold(started(f"call{number:02}", caused_at_ms=NOW_MS + number))
    news = [NewsLine(number, f"news {number:02}", "red") for number in range(lines)]
    console = Screen(width=width, height=height, color_system=None)
    calls_shown = in_order(table.rows(NOW_MS))
    with console.capture() as captured:
        console.print(screen("headline", calls_shown, NOW_MS, width=width, height=height, totals="totals", news=news))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("calls", [0, 1, 6, 12, 100])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (120, 36), (200, 60), (40, 6)])
def test_the_screen_fits_whatever_there_is_to_show(calls: int, width: int, height: int) -> None:
    lines = full_screen(calls, height, width)
    assert len(lines) < max(height, 9), "the cursor needs the last line"
    assert max(map(len, lines)) <= width
    assert lines[1] == "totals"


def test_news_and_a_legend_fill_the_room_below_the_table() -> None:
    lines = full_screen(calls=6, height=40, width=80)
    assert lines[-2:] == list(LEGEND)
    assert max(map(len, LEGEND)) <= 80, "a usual terminal shows all of it"
    cut_in, anchor = full_screen(calls=6, height=40, width=120)[-2:]
    assert cut_in.endswith("; cut in: by user/agent")
    assert anchor.endswith("; anchor: how the end of speech is known")
    assert [line for line in lines if line.startswith("news")] == [f"news {n}" for n in range(30 - MOST_NEWS_LINES, 30)]
    small = full_screen(calls=100, height=24)
    assert len([line for line in small if line.startswith("news")]) == 4
    assert [line for line in full_screen(calls=3, height=15) if line.startswith(("news", "latency"))] == []


def news_of(*records: AnyScoreRecord) -> list[tuple[str, str]]:
    news = News()
    for record in records:
        news.fold(record)
    return [(line.text.split("  ", 1)[1], line.style) for line in news.newest(MOST_NEWS)]


def test_news_are_of_slow_answers_and_other_things_of_note_each_once() -> None:
    assert news_of(
        latency(1, 1_500), latency(2, 1_501), latency(3, 3_501), latency(3, 9_000, is_first=False),
        latency(4, None), interruption(2, "user", is_first=True), interruption(2, "user"), dead_air(1, is_first=True), dead_air(1),
        interruption(3, "user", is_withdrawn=True), subgoal(4, is_first=True), subgoal(4), subgoal(None), stall(2, is_first=True), stall(2),
        progress(1, 1, is_first=True), closed(), closed(ended_reason=None), turn(1),
    ) == [
        ("call-1 bot: turn 2 answered after 1501 ms (audio)", "magenta"),
        ("call-1 bot: turn 3 answered after 3501 ms (audio)", "bold red"),
        ("call-1 bot: turn 2 began by interrupting the agent", "magenta"),
        ("call-1 bot: dead air", "magenta"),
        ("call-1 bot: turn 4 reached the subgoal booked", "green"),
        ("call-1 bot: no subgoal reached since turn 2", "magenta"),
        ("call-1 bot: over (goodbye), 3 turns", "dim"),
        ("call-1 bot: over (ended), 3 turns", "dim"),
    ]  # fmt: skip


def test_news_are_in_the_order_of_their_times_and_bounded() -> None:
    times_ms = (5, 3, 4)
    found = news_of(
        *(dead_air(1, is_first=True, conversation_id=f"c-{ms}", caused_at_ms=NOW_MS + ms) for ms in times_ms)
    )
    assert [text for text, _ in found] == ["c-3 bot: dead air", "c-4 bot: dead air", "c-5 bot: dead air"]
    assert len(news_of(*(dead_air(1, is_first=True) for _ in range(MOST_NEWS + 5)))) == MOST_NEWS
    assert News().newest(0) == []


def totals_of(*records: AnyScoreRecord) -> Totals:
    totals = Totals()
    for record in records:
        totals.fold(record)
    return totals


def test_totals_count_each_thing_once() -> None:
    answers = [latency(number, 100.0 * number) for number in range(1, 21)]
    totals = totals_of(
        started(), *answers, latency(3, 9_999, is_first=False), latency(4, None), interruption(1, "user", is_first=True),
        interruption(1, "user"), dead_air(1, is_first=True), dead_air(1), subgoal(1, is_first=True),
        subgoal(None, is_first=True), closed(), closed("b", ended_reason=None),
    )  # fmt: skip
    assert totals.text() == (
        "answers 20 (p50 1.00 s, p95 1.90 s)  subgoals 1  cut in 1  dead air 1  ended: goodbye 1, ended 1"
    )
    assert totals_of().text() == "answers 0 (p50 -, p95 -)  subgoals 0  cut in 0  dead air 0  ended: none"


def test_totals_by_agent_have_a_row_for_each_and_are_bounded() -> None:
    agents = [started(labels=CallLabels(agent=f"bot-{number:03}")) for number in range(MAX_AGENTS + 5)]
    totals = totals_of(*agents, latency(1, 500, labels=CallLabels(agent="bot-001")), latency(1, 500))
    console = Screen(width=80, color_system=None)
    with console.capture() as captured:
        console.print(totals.by_agent("bot-001"))
    rows = [line.split() for line in captured.get().splitlines()]
    assert len(rows) <= MAX_AGENTS + 2
    (row,) = [row for row in rows if row[0] == "bot-001"]
    assert row == ["bot-001", "0", "1", "0.50", "s", "0.50", "s", "0", "0", "0"]
    (other,) = [row for row in rows if row[0] == "unknown"]
    assert other[2] == "1"
