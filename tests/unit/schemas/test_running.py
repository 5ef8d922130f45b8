"""The table of running calls under a flood: no tenant pushes out another one's, and each record costs the same."""

import time
from typing import Any

from schemas.scores import running
from schemas.scores.records import AnyScoreRecord, CallLabels
from schemas.scores.running import CallTable, RunningCalls, WantedCalls, looking, running_now
from tests.unit.schemas.test_live_view import closed, started

NOW_MS = 1_790_000_000_000
MOST = 200


def begun(name: str, tenant: str = "acme", **more: Any) -> AnyScoreRecord:
    return started(conversation_id=name, labels=CallLabels(agent="desk", tenant=tenant), caused_at_ms=NOW_MS, **more)


def ids(table: CallTable) -> set[str]:
    return {view.conversation_id for view in table.rows(NOW_MS)}


def test_a_flood_of_one_tenant_leaves_the_calls_of_the_others() -> None:
    table = CallTable(MOST)
    for number in range(20):
        table.fold(begun(f"few-{number}"))
    for number in range(5 * MOST):
        table.fold(begun(f"many-{number}", "globex"))
    table.fold(begun("few-late"))
    assert {f"few-{number}" for number in range(20)} | {"few-late"} < ids(table)
    assert len(ids(table)) == MOST
    assert table.calls_running == MOST
    assert table.calls_dropped == 20 + 5 * MOST + 1 - MOST


def test_a_call_counts_for_its_tenant_once_that_is_known() -> None:
    table = CallTable(4)
    for number in range(3):
        table.fold(begun(f"early-{number}", "unknown"))
    table.fold(begun("acme-0", "acme"))
    for number in range(3):
        table.fold(begun(f"early-{number}", f"tenant-{number}", revision=2))
    table.fold(begun("acme-1", "acme"))  # some tenant loses its only call
    table.fold(begun("acme-2", "acme"))
    assert "acme-2" in ids(table)
    assert len({name for name in ids(table) if name.startswith("early")}) >= 2


def test_calls_that_ended_make_room_whoever_has_them() -> None:
    table = CallTable(3)
    table.fold(begun("acme-0"))
    table.fold(closed(conversation_id="acme-0", caused_at_ms=NOW_MS))
    for number in range(2):
        table.fold(begun(f"globex-{number}", "globex"))
    table.fold(begun("globex-2", "globex"))
    assert ids(table) == {"globex-0", "globex-1", "globex-2"}
    assert table.calls_dropped == 0


def test_a_record_costs_the_same_in_a_full_table_as_in_a_small_one() -> None:
    def seconds(most: int) -> float:
        table = CallTable(most)
        for number in range(most):
            table.fold(begun(str(number), f"tenant-{number % 50}"))
        more = [begun(f"new-{number}", f"tenant-{number % 50}") for number in range(2_000)]
        began = time.process_time()
        for record in more:
            table.fold(record)
        return time.process_time() - began

    few, many = min(seconds(100) for _ in range(3)), min(seconds(10_000) for _ in range(3))
    assert many < 5 * few + 0.02, "looking through all calls takes a hundred times as long"


def test_records_may_come_between_the_steps_of_a_look() -> None:
    table = CallTable(30)
    for number in range(30):
        table.fold(begun(f"call-{number:02}"))
    table.fold(closed(conversation_id="call-29", caused_at_ms=NOW_MS - running.SHOWN_AFTER_END_MS - 1))
    steps, number = looking(table, NOW_MS, NOW_MS), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            now: RunningCalls = done.value
            break
        table.fold(begun(f"new-{number}"))
        table.fold(closed(conversation_id=f"call-{number % 30:02}", caused_at_ms=NOW_MS))
        number += 1
    assert now.calls == sorted(now.calls, key=lambda call: (call.view.first_seen_ms, call.view.conversation_id))
    assert len(table.rows(NOW_MS)) <= 30
    assert table.calls_running == sum(view.closed is None for view in table.rows(NOW_MS))


def test_what_is_made_once_is_what_each_choice_would_make() -> None:
    table = CallTable()
    for number in range(40):
        table.fold(begun(f"call-{number % 7}{number}", f"tenant-{number % 3}"))
    shared = running_now(table, NOW_MS, NOW_MS)
    for sort in ("trouble", "began", "quiet", "agent", "latency"):
        for text in ("", "CALL-3", "tenant-1", "nothing"):
            wanted = WantedCalls(text=text, sort=sort)
            alone = running_now(table, NOW_MS, NOW_MS).chosen(wanted)
            assert shared.chosen(wanted) == alone
            assert all(text.casefold() in running._said_of(call) for call in alone.calls)
