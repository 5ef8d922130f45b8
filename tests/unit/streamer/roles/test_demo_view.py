"""The table of running calls follows the score records: revisions replace, withdrawn records go,
rows are bounded.
"""

from typing import Any

import pytest

from schemas.closed_sets import Anchor, SortKey
from schemas.rows import CallRow, Labels, Row, SubgoalResult
from schemas.scores.running import (
    SHOWN_AFTER_END_MS,
    CallTable,
    KnownTime,
    RunningCalls,
    ShownCall,
    WantedCalls,
    age_of_data,
)
from schemas.scores.trouble import troubles_of
from streamer.roles.demo_view import (
    LEGEND,
    MOST_NEWS,
    MOST_NEWS_LINES,
    News,
    NewsLine,
    Totals,
    screen,
)
from streamer.terminal import Screen
from tests.support.calls.made_rows import (
    NOW_MS,
    answer,
    call_row,
    closed_row,
    goals,
    goals_row,
    silence,
    turn_row,
    waited,
    waiting,
)


@pytest.mark.parametrize(
    ("parts", "mark", "cell", "status"),
    [
        ({"goals": goals(3)}, [], "3/4", "running"),
        ({"goals": goals(1, missing=2)}, [], "1/4?", "running"),
        ({"goals": goals(1, since_turn=1)}, ["!"], "1/4", "stalled"),
    ],
)
@pytest.mark.parametrize("width", [80, 110, 120])
def test_the_screen_shows_how_far_a_call_is(
    parts: dict[str, Any], mark: list[str], cell: str, status: str, width: int
) -> None:
    line = shown([call_row(turn=1, **parts)], width)[4]
    assert (line.split()[: len(mark)], line.split()[len(mark) + 5]) == (mark, cell)
    assert line.split()[-1] == status


def test_a_call_that_waits_for_verdicts_is_over_and_waits_for_them() -> None:
    line = shown([call_row(turn=1, dead_airs=1, dead_air_turns=(1,), state="over")], 80)[4]
    assert line.rstrip().endswith("over, final values soon")
    assert "!" not in line, "nobody waits in silence any more"


def test_a_call_that_ended_badly_says_how() -> None:
    line = shown([closed_row(waiting=waiting(2))], 120)[4]
    assert line.split()[0] == "!"
    assert line.rstrip().endswith("hung up unanswered, turn 2")


def kept(table: CallTable, now_ms: int = NOW_MS) -> list[CallRow]:
    return [each.call for each in table.shown(now_ms, now_ms)]


def test_a_call_that_is_over_stays_for_a_moment() -> None:
    table = CallTable()
    for row in (
        call_row("a"),
        call_row("b", first_known_ms=NOW_MS + 1),
        closed_row("a"),
        closed_row("a"),
    ):
        table.put_row(row)
    assert [(row.conversation_id, row.state) for row in kept(table)] == [
        ("a", "closed"),
        ("b", "running"),
    ]
    assert (table.calls_running, table.calls_ended) == (1, 1)
    assert [row.conversation_id for row in kept(table, NOW_MS + SHOWN_AFTER_END_MS)] == ["a", "b"]
    assert [row.conversation_id for row in kept(table, NOW_MS + SHOWN_AFTER_END_MS + 1)] == ["b"]


def test_the_table_is_bounded_and_ended_calls_make_room_first() -> None:
    table = CallTable(max_calls=2)
    for row in (call_row("a"), closed_row("a"), call_row("b"), call_row("c")):
        table.put_row(row)
    assert [row.conversation_id for row in kept(table)] == ["b", "c"]
    assert table.calls_dropped == 0
    table.put_row(call_row("b", revision=2))
    table.put_row(call_row("d"))
    assert {row.conversation_id for row in kept(table)} == {"b", "d"}
    assert table.calls_dropped == 1


def test_a_call_that_made_room_comes_back_without_its_old_troubles() -> None:
    table = CallTable(max_calls=1)
    table.put_row(call_row(waiting=waiting(1)))
    assert table.shown(NOW_MS, NOW_MS)[0].is_bad
    table.put_row(call_row("another"))
    table.put_row(call_row())
    assert not table.shown(NOW_MS, NOW_MS)[0].is_bad


def in_order(rows: list[CallRow], sort: SortKey = "trouble") -> list[ShownCall]:
    calls = [ShownCall(row, troubles_of(row, NOW_MS)) for row in rows]
    return RunningCalls(calls, "", is_stale=False).chosen(WantedCalls(sort=sort)).calls


def shown(rows: list[CallRow], width: int = 120, height: int = 20) -> list[str]:
    console = Screen(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(
            screen("3 calls running", in_order(rows), NOW_MS + 65_000, width=width, height=height)
        )
    return captured.get().splitlines()


def test_a_wide_screen_names_the_version() -> None:
    row = call_row(labels=Labels(agent="internet-outage", version="v2"))
    assert "internet-outage v2 " in shown([row], 120)[4]
    assert "internet-\u2026" in shown([row], 80)[4]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_shows_all_that_is_known_of_a_call(width: int) -> None:
    newest = answer(2, 1_234.6, anchor=Anchor.TURN_RELEASE)
    row = call_row(
        turn=2,
        answer=newest,
        user_interruptions=1,
        interrupted_turns=(1,),
        dead_airs=1,
        dead_air_turns=(1,),
        tool_calls=1,
    )
    lines = shown([row], width)
    assert lines[0].rstrip() == "3 calls running"
    more = ["turn_release", "1/0", "1", "1"] if width > 80 else []
    cells = [
        "!",
        "call-1",
        "bot",
        "1:05",
        "2",
        "1:05",
        "1.23",
        "s",
        *more,
        "dead",
        "air",
        "in",
        "turn",
        "1",
    ]
    assert lines[4].split() == cells
    assert max(map(len, lines)) <= width


def test_the_end_of_a_call_and_an_overlap_are_shown_as_such() -> None:
    line = shown([closed_row(answer=answer(1, -5), known_ms=NOW_MS + 3_000)])[4]
    assert "0:03" in line
    assert "overlap" in line
    assert "over: goodbye" in line


def test_when_the_screen_is_too_small_the_worst_calls_are_shown_and_the_healthy_ones_counted() -> (
    None
):
    table = CallTable()
    for number in range(30):
        table.put_row(call_row(f"call{number:02}", first_known_ms=NOW_MS + number))
    table.put_row(
        call_row("call29", revision=2, first_known_ms=NOW_MS + 29, answer=answer(1, 2_000))
    )
    table.put_row(call_row("call28", revision=2, first_known_ms=NOW_MS + 28, waiting=waiting(1)))
    lines = shown(kept(table), height=16)
    assert len(lines) < 16
    assert [line.split()[:2] for line in lines[4:6]] == [["!!", "call28"], ["!", "call29"]]
    assert [line.split()[0] for line in lines[6:-1]] == [f"call{number:02}" for number in range(8)]
    assert lines[-1].strip() == "and 20 more calls without trouble: bot 20"
    tiny = shown([call_row(call, waiting=waiting(1)) for call in ("a", "b", "c")], height=6)
    assert tiny[-1].strip() == "and 2 more calls in trouble"


def ids(calls: list[ShownCall]) -> list[str]:
    return [each.call.conversation_id for each in calls]


def test_calls_can_be_shown_in_other_orders() -> None:
    rows = [
        call_row("a", first_known_ms=NOW_MS + 5, known_ms=NOW_MS + 6, answer=answer(1, 900)),
        closed_row("b", answer=answer(1, 1_400), known_ms=NOW_MS + 9),
        call_row("c", first_known_ms=NOW_MS + 1, known_ms=NOW_MS + 1, labels=Labels(agent="ava")),
    ]
    assert ids(in_order(rows)) == ["a", "c", "b"], "what is over comes last"
    assert ids(in_order(rows, "quiet")) == ["c", "a", "b"]
    assert ids(in_order(rows, "latency")) == ["b", "a", "c"]
    assert ids(in_order(rows, "began")) == ["b", "c", "a"]
    assert ids(in_order(rows, "agent")) == ["c", "a", "b"]


def test_old_data_are_named_while_calls_run() -> None:
    assert age_of_data(KnownTime(), NOW_MS, 1) == ("no score yet", False)
    known = KnownTime()
    known.note(NOW_MS)
    assert age_of_data(known, NOW_MS + 400, 1) == ("newest score 0.4 s old", False)
    assert age_of_data(known, NOW_MS + 25_000, 21) == (
        "SCORES ARE 25 s OLD: does callgauge run?",
        True,
    )
    assert age_of_data(known, NOW_MS + 25_000, 0) == ("nothing new for 0:25", False)
    assert age_of_data(known, NOW_MS - 50, 1)[0] == "newest score 0.0 s old", (
        "clocks differ a little"
    )
    known.take_partition(0, NOW_MS + 150_000)
    known.take_partition(1, NOW_MS + 155_000)
    assert age_of_data(known, NOW_MS + 160_000, 21) == ("nothing new for 2:40", False), (
        "evaluators say how far they are"
    )
    known.take_partition(1, NOW_MS + 200_000)
    assert age_of_data(known, NOW_MS + 200_000, 21) == (
        "SCORES ARE 50 s OLD: does callgauge run?",
        True,
    ), "one does not"
    known.take_partition(0, NOW_MS + 200_000, event_ms=NOW_MS + 120_000)
    assert age_of_data(known, NOW_MS + 200_000, 21) == ("no event for 1:20", False), (
        "rows that time alone makes are no events"
    )


def full_screen(calls: int, height: int, width: int = 120, lines: int = 30) -> list[str]:
    """The lines of a screen with totals, and with more news than fit."""
    table = CallTable()
    for number in range(calls):
        table.put_row(call_row(f"call{number:02}", first_known_ms=NOW_MS + number))
    news = [NewsLine(number, f"news {number:02}", "red") for number in range(lines)]
    console = Screen(width=width, height=height, color_system=None)
    calls_shown = in_order(kept(table))
    with console.capture() as captured:
        console.print(
            screen(
                "headline",
                calls_shown,
                NOW_MS,
                width=width,
                height=height,
                totals="totals",
                news=news,
            )
        )
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
    interrupted, anchor = full_screen(calls=6, height=40, width=120)[-2:]
    assert interrupted.endswith("; interrupted: by caller/agent")
    assert anchor.endswith("; anchor: how the end of speech is known")
    assert [line for line in lines if line.startswith("news")] == [
        f"news {n}" for n in range(30 - MOST_NEWS_LINES, 30)
    ]
    small = full_screen(calls=100, height=24)
    assert len([line for line in small if line.startswith("news")]) == 4
    assert [
        line for line in full_screen(calls=3, height=15) if line.startswith(("news", "latency"))
    ] == []


def news_of(*rows: Row) -> list[tuple[str, str]]:
    news = News()
    for row in rows:
        news.tell(row)
    return [(line.text.split("  ", 1)[1], line.style) for line in news.newest(MOST_NEWS)]


def test_news_are_of_slow_answers_and_other_things_of_note_each_once() -> None:
    reached = goals(1, since_turn=2, subgoals=(SubgoalResult(0.0), SubgoalResult(1.0, 4)))
    assert news_of(
        goals_row("found", "booked"),
        waited(1, 1_500),
        waited(2, 1_501),
        waited(3, 3_501),
        waited(3, 9_000, news=()),
        turn_row(2, interruptions=("user",), news=("interruption.user",)),
        turn_row(2, interruptions=("user",)),
        turn_row(1, dead_air=(silence(),), news=("dead_air.1",)),
        call_row(goals=reached, news=("subgoal.1",)),
        call_row(goals=reached, news=("stall.1",)),
        closed_row(),
        closed_row(ended_reason=None, waiting=waiting(2)),
    ) == [
        ("call-1 bot: turn 2 answered after 1.50 s (audio)", "magenta"),
        ("call-1 bot: turn 3 answered after 3.50 s (audio)", "bold red"),
        ("call-1 bot: turn 2 began by interrupting the agent", "magenta"),
        ("call-1 bot: dead air", "magenta"),
        ("call-1 bot: turn 4 reached the subgoal booked", "green"),
        ("call-1 bot: no subgoal reached since turn 2", "magenta"),
        ("call-1 bot: over (goodbye), 3 turns", "dim"),
        ("call-1 bot: over (ended), 3 turns: hung up unanswered, turn 2", "bold red"),
    ]


def test_a_subgoal_whose_set_was_not_read_is_told_by_its_number() -> None:
    reached = goals(1, subgoals=(SubgoalResult(1.0, 4),))
    assert (
        news_of(call_row(goals=reached, news=("subgoal.0",)))[0][0]
        == "call-1 bot: turn 4 reached the subgoal number 1"
    )


def test_news_are_in_the_order_of_their_times_and_bounded() -> None:
    def silent(call: str = "call-1", known_ms: int = NOW_MS) -> Row:
        return turn_row(1, call, known_ms=known_ms, dead_air=(silence(),), news=("dead_air.1",))

    found = news_of(*(silent(f"c-{ms}", NOW_MS + ms) for ms in (5, 3, 4)))
    assert [text for text, _ in found] == [
        "c-3 bot: dead air",
        "c-4 bot: dead air",
        "c-5 bot: dead air",
    ]
    assert len(news_of(*(silent() for _ in range(MOST_NEWS + 5)))) == MOST_NEWS
    assert News().newest(0) == []


def totals_of(*rows: Row) -> Totals:
    totals = Totals()
    for row in rows:
        totals.count_row(row)
    return totals


def test_totals_count_each_thing_once() -> None:
    answers = [waited(number, 100.0 * number) for number in range(1, 21)]
    totals = totals_of(
        call_row(news=("started",)),
        *answers,
        waited(3, 9_999, news=("wait_revised",)),
        turn_row(1, interruptions=("user",), news=("interruption.user",)),
        turn_row(1, interruptions=("user",)),
        turn_row(1, dead_air=(silence(),), news=("dead_air.1",)),
        call_row(goals=goals(1), news=("subgoal.0",)),
        closed_row(),
        closed_row("b", ended_reason=None, news=()),
    )
    assert totals.text() == (
        "answers 20 (p50 1.00 s, p95 1.90 s)  subgoals 1  interruptions 1  dead air 1  "
        "ended: goodbye 1, ended 1"
    )
    assert (
        totals_of().text()
        == "answers 0 (p50 -, p95 -)  subgoals 0  interruptions 0  dead air 0  ended: none"
    )
