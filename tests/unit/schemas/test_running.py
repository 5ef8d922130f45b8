"""The table of running calls under a flood: no tenant pushes out another one's, and each row costs
the same.
"""

import time
from typing import Any

from schemas.rows import CallRow, Labels, Waiting
from schemas.scores import running
from schemas.scores.running import (
    CallTable,
    KnownTime,
    RunningCalls,
    WantedCalls,
    looking,
    running_now,
)
from schemas.scores.trouble import TroubleKind
from tests.support.calls.made_rows import NOW_MS, call_row, closed_row, waiting

MOST = 200
KNOWN = KnownTime()
KNOWN.note(NOW_MS)


def begun(name: str, tenant: str = "acme", **more: Any) -> CallRow:
    return call_row(name, labels=Labels(agent="desk", tenant=tenant), **more)


def ids(table: CallTable, now_ms: int = NOW_MS) -> set[str]:
    return {shown.call.conversation_id for shown in table.shown(now_ms, now_ms)}


def test_a_flood_of_one_tenant_leaves_the_calls_of_the_others() -> None:
    table = CallTable(MOST)
    for number in range(20):
        table.put_row(begun(f"few-{number}"))
    for number in range(5 * MOST):
        table.put_row(begun(f"many-{number}", "globex"))
    table.put_row(begun("few-late"))
    assert {f"few-{number}" for number in range(20)} | {"few-late"} < ids(table)
    assert len(ids(table)) == MOST
    assert (table.calls_running, table.calls_dropped) == (MOST, 20 + 5 * MOST + 1 - MOST)


def test_while_no_event_comes_time_decides_nothing() -> None:
    """A call that was silent then stays so, for as long as it was; one that only time made silent
    or stalled is as it was.
    """
    table, known = CallTable(MOST), KnownTime()
    table.put_row(begun("before", waiting=waiting(2, since_ms=NOW_MS - 9_000)))
    table.put_row(begun("well"))
    table.put_row(
        begun(
            "since",
            waiting=waiting(2, since_ms=NOW_MS - 1_000),
            known_ms=NOW_MS + 2_500,
            last_known_ms=NOW_MS,
        )
    )
    later_ms = NOW_MS + 60_000
    known.take_partition(0, later_ms, event_ms=NOW_MS)
    now = running_now(table, known, later_ms)
    assert now.silent_ms == 60_000
    assert {
        each.call.conversation_id: [trouble.reason for trouble in each.troubles]
        for each in now.calls
    } == {"before": ["silent for 9 s"], "well": [], "since": []}
    known.take_partition(0, later_ms, event_ms=later_ms)
    shown = running_now(table, known, later_ms).calls
    assert all(each.has_stopped and not each.is_bad for each in shown), "none has come of these"
    table.put_row(
        begun(
            "before",
            waiting=waiting(2, since_ms=NOW_MS - 9_000),
            revision=2,
            known_ms=later_ms,
            last_known_ms=later_ms,
        )
    )
    shown = running_now(table, known, later_ms).calls
    assert [each.call.conversation_id for each in shown if each.is_bad] == ["before"]


def test_a_caller_who_asked_again_before_events_stopped_waits_for_his_agent() -> None:
    table, known = CallTable(MOST), KnownTime()
    asked = Waiting(2, NOW_MS - 9_000, 2)
    for name in ("mute", "also", "third"):
        table.put_row(begun(name, waiting=asked, last_known_ms=NOW_MS))
    known.take_partition(0, NOW_MS + 30_000, event_ms=NOW_MS)
    assert running_now(table, known, NOW_MS + 30_000).silent_ms == 30_000
    known.take_partition(0, NOW_MS + 60_000, event_ms=NOW_MS + 60_000)
    shown = running_now(table, known, NOW_MS + 61_000).calls
    assert [each.troubles[0].kind for each in shown] == [TroubleKind.MUTE] * 3


def test_calls_that_nobody_has_heard_of_for_minutes_are_no_silence_of_all() -> None:
    table, known = CallTable(MOST), KnownTime()
    for name in ("left", "open", "behind"):
        table.put_row(begun(name, last_known_ms=NOW_MS - 200_000))
    table.put_row(begun("live", waiting=waiting(2, since_ms=NOW_MS), last_known_ms=NOW_MS))
    known.take_partition(0, NOW_MS + 30_000, event_ms=NOW_MS)
    now = running_now(table, known, NOW_MS + 30_000)
    assert now.silent_ms == 0
    assert [each.call.conversation_id for each in now.calls if each.is_bad] == ["live"]


def test_a_call_counts_for_its_tenant_once_that_is_known() -> None:
    table = CallTable(4)
    for number in range(3):
        table.put_row(begun(f"early-{number}", "unknown"))
    table.put_row(begun("acme-0", "acme"))
    for number in range(3):
        table.put_row(begun(f"early-{number}", f"tenant-{number}", revision=2))
    table.put_row(begun("acme-1", "acme"))  # some tenant loses its only call
    table.put_row(begun("acme-2", "acme"))
    assert "acme-2" in ids(table)
    assert len({name for name in ids(table) if name.startswith("early")}) >= 2


def test_calls_that_ended_make_room_whoever_has_them() -> None:
    table = CallTable(3)
    table.put_row(begun("acme-0"))
    table.put_row(closed_row("acme-0"))
    for number in range(2):
        table.put_row(begun(f"globex-{number}", "globex"))
    table.put_row(begun("globex-2", "globex"))
    assert ids(table) == {"globex-0", "globex-1", "globex-2"}
    assert table.calls_dropped == 0


def test_a_row_costs_the_same_in_a_full_table_as_in_a_small_one() -> None:
    def seconds(most: int) -> float:
        table = CallTable(most)
        for number in range(most):
            table.put_row(begun(str(number), f"tenant-{number % 50}"))
        more = [begun(f"new-{number}", f"tenant-{number % 50}") for number in range(2_000)]
        began = time.process_time()
        for row in more:
            table.put_row(row)
        return time.process_time() - began

    few, many = min(seconds(100) for _ in range(3)), min(seconds(10_000) for _ in range(3))
    assert many < 5 * few + 0.02, "looking through all calls takes a hundred times as long"


def test_rows_may_come_between_the_steps_of_a_look() -> None:
    table = CallTable(30)
    for number in range(30):
        table.put_row(begun(f"call-{number:02}"))
    table.put_row(closed_row("call-29", known_ms=NOW_MS - running.SHOWN_AFTER_END_MS - 1))
    steps, number = looking(table, KNOWN, NOW_MS), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            now: RunningCalls = done.value
            break
        table.put_row(begun(f"new-{number}"))
        table.put_row(closed_row(f"call-{number % 30:02}"))
        number += 1
    assert now.calls == sorted(
        now.calls, key=lambda each: (each.call.first_known_ms, each.call.conversation_id)
    )
    shown = table.shown(NOW_MS, NOW_MS)
    assert len(shown) <= 30
    assert table.calls_running == sum(each.call.state != "closed" for each in shown)


def test_what_is_made_once_is_what_each_choice_would_make() -> None:
    table = CallTable()
    for number in range(40):
        table.put_row(begun(f"call-{number % 7}{number}", f"tenant-{number % 3}"))
    shared = running_now(table, KNOWN, NOW_MS)
    for sort in ("trouble", "began", "quiet", "agent", "latency"):
        for text in ("", "CALL-3", "tenant-1", "nothing"):
            wanted = WantedCalls(text=text, sort=sort)
            alone = running_now(table, KNOWN, NOW_MS).chosen(wanted)
            assert shared.chosen(wanted) == alone
            assert all(text.casefold() in running._said_of(call) for call in alone.calls)


def test_a_call_that_ended_badly_stays_for_a_quarter_of_an_hour_in_front_of_the_healthy_ones() -> (
    None
):
    table = CallTable()
    for call in (begun("healthy"), closed_row("well"), closed_row("badly", waiting=waiting(2))):
        table.put_row(call)
    now = running_now(table, KNOWN, NOW_MS)
    assert [each.call.conversation_id for each in now.chosen(WantedCalls()).calls] == [
        "badly",
        "healthy",
        "well",
    ]
    assert [
        each.call.conversation_id for each in now.chosen(WantedCalls(text="unanswered")).calls
    ] == ["badly"]
    later_ms = NOW_MS + running.SHOWN_AFTER_BAD_END_MS
    assert ids(table, later_ms) == {"healthy", "badly"}
    assert ids(table, later_ms + 1) == {"healthy"}


def test_a_row_that_is_older_than_the_one_in_the_table_changes_nothing() -> None:
    table = CallTable()
    table.put_row(closed_row("acme-0", revision=8))
    table.put_row(begun("acme-0", revision=6))
    assert (table.calls_running, table.calls_ended) == (0, 1)


def test_the_end_of_an_id_names_a_call_if_it_is_the_only_one() -> None:
    table = CallTable(MOST)
    for name in ("call-125", "call-345", "other-345"):
        table.put_row(begun(name))
    assert table.ending_in("125") == "call-125"
    assert table.ending_in("345") is None, "two end so"
    assert (table.ending_in("call-125"), table.ending_in("")) == (None, None)
