"""The agents of the page of running calls: each version by itself, the worst first, with figures
that are bounded.
"""

import pytest
from msgspec import structs

from consumers.console import agents as module
from consumers.console.agents import (
    MINUTES,
    PAUSE_MS,
    SURE_MS,
    WINDOW_MS,
    AgentNow,
    Agents,
    BadTime,
)
from consumers.console.fleet import Fleet
from schemas.closed_sets import CloseReason, UnscoredReason
from schemas.rows import Answer, CallRow, Labels, Unscored, Waiting
from schemas.scores.latency_stages import Stage
from schemas.scores.running import EVERY_CALL, SILENT_MS
from schemas.scores.trouble import SLOW_MS, TroubleKind
from schemas.units import MINUTE_MS
from tests.support.calls.console_calls import AT_MS, call_row, turn_row

V1, V2 = Labels(agent="desk", version="1"), Labels(agent="desk", version="2")


def agents_at(fleet: Fleet, at_ms: int = AT_MS) -> list[AgentNow]:
    fleet.now(at_ms)
    return fleet.agents.now


def bad_time(found: AgentNow) -> BadTime:
    assert found.bad is not None
    return found.bad


def failing(name: str, labels: Labels = V2, **more: object) -> CallRow:
    return call_row(name, labels=labels, failing_tools={"find": 1}, **more)


def given_up(name: str, labels: Labels = V2, at_ms: int = AT_MS) -> CallRow:
    """A call whose caller has waited in vain and hung up."""
    return call_row(
        name,
        labels=labels,
        state="closed",
        known_ms=at_ms,
        unanswered=3,
        waiting=Waiting(3, at_ms - 9_000, 2),
    )


def test_versions_of_an_agent_are_apart_and_the_bad_one_is_first() -> None:
    fleet = Fleet()
    for number in range(5):
        fleet.put_row(call_row(f"a{number}", labels=V1))
        fleet.put_row(call_row(f"b{number}", labels=V2) if number > 1 else failing(f"b{number}"))
    bad, well = agents_at(fleet)
    assert (bad.agent, bad.version, bad.calls_running, bad.calls_in_trouble) == ("desk", "2", 5, 2)
    assert (well.version, well.calls_running, well.calls_in_trouble, well.bad) == (
        "1",
        5,
        0,
        None,
    )
    assert (bad_time(bad).since_ms, bad_time(bad).calls_affected) == (AT_MS, 2)


def test_while_no_event_of_any_call_comes_no_agent_becomes_bad_or_well() -> None:
    fleet = Fleet()
    fleet.known.take_partition(0, AT_MS, event_ms=AT_MS)
    for number in range(3):
        fleet.put_row(call_row(f"c{number}", labels=V2, waiting=Waiting(2, AT_MS, 1)))
    silent_ms = AT_MS + SILENT_MS
    fleet.known.take_partition(0, silent_ms, event_ms=AT_MS)
    now = fleet.now(silent_ms)
    assert (now.silent_ms, now.age) == (SILENT_MS, "no event for 0:20")
    (found,) = fleet.agents.now
    assert (found.calls_in_trouble, found.bad) == (3, None), "nobody knows of them"
    fleet.known.take_partition(0, silent_ms, event_ms=silent_ms)
    (found,) = agents_at(fleet, silent_ms)
    assert not found.is_bad, "somebody sends, and of these three nothing came"
    for number in range(3):
        heard = {"revision": 2, "known_ms": silent_ms, "last_known_ms": silent_ms}
        fleet.put_row(call_row(f"c{number}", labels=V2, waiting=Waiting(2, AT_MS, 1), **heard))
    (found,) = agents_at(fleet, silent_ms)
    assert found.is_bad, "they send, and wait"
    fleet.known.take_partition(0, silent_ms + SILENT_MS, event_ms=silent_ms)
    fleet.now(silent_ms + SILENT_MS)
    later_ms = silent_ms + 20 * MINUTE_MS
    for number in range(3):  # they close, because nothing came of them
        close = {"state": "closed", "close_reason": CloseReason.IDLE, "known_ms": later_ms}
        waits = Waiting(2, AT_MS, 1)
        fleet.put_row(call_row(f"c{number}", labels=V2, revision=9, waiting=waits, **close))
    fleet.known.take_partition(0, later_ms, event_ms=silent_ms)
    now = fleet.now(later_ms)
    assert now.silent_ms == 20 * MINUTE_MS, "until an event comes"
    fleet.known.take_partition(0, later_ms, event_ms=later_ms)
    assert not any(each.is_bad for each in agents_at(fleet, later_ms)), "nobody saw them end"


def test_an_agent_is_not_bad_that_was_found_so_while_its_source_was_silent() -> None:
    fleet = Fleet()
    fleet.known.take_partition(0, AT_MS, event_ms=AT_MS)
    for number in range(3):
        waiting = Waiting(2, AT_MS - SURE_MS, 1)
        fleet.put_row(call_row(f"c{number}", labels=V2, waiting=waiting))
    assert agents_at(fleet, AT_MS + 9_000)[0].is_bad, "somebody else was heard meanwhile"
    fleet.known.take_partition(0, AT_MS + SILENT_MS, event_ms=AT_MS)
    assert not agents_at(fleet, AT_MS + SILENT_MS)[0].is_bad


def test_calls_whose_events_stopped_are_neither_bad_ends_nor_turns_without_an_answer() -> None:
    fleet = Fleet()
    stopped = {"close_reason": CloseReason.IDLE, "state": "closed", "known_ms": AT_MS}
    fleet.put_row(call_row("a", labels=V2, waiting=Waiting(2, AT_MS - 9_000, 1)))
    fleet.put_row(
        call_row(
            "a",
            labels=V2,
            revision=2,
            waiting=Waiting(2, AT_MS - 9_000, 1),
            **stopped,
        )
    )
    (found,) = agents_at(fleet)
    assert (found.calls_ended_badly, found.turns_unanswered) == (0, 0), "nobody knows"
    mute = Waiting(3, AT_MS - 9_000, 2)
    fleet.put_row(call_row("b", labels=V2, revision=2, waiting=mute, unanswered=2, **stopped))
    assert agents_at(fleet)[0].turns_unanswered == 2, "the caller spoke again, and was not answered"


def test_several_calls_that_fall_silent_with_all_others_make_no_agent_bad() -> None:
    """Their events may only be missing; once somebody else is heard, they wait."""
    fleet = Fleet()
    fleet.known.take_partition(0, AT_MS, event_ms=AT_MS)
    for number in range(3):
        fleet.put_row(call_row(f"c{number}", labels=V2, waiting=Waiting(2, AT_MS - 100, 1)))
    (found,) = agents_at(fleet, AT_MS + 9_000)
    assert (found.calls_in_trouble, found.is_bad) == (3, False)
    fleet.known.take_partition(0, AT_MS + 10_000, event_ms=AT_MS + 10_000)
    assert agents_at(fleet, AT_MS + 10_000)[0].is_bad
    for number in range(3):
        waiting = Waiting(3, AT_MS + 9_900, 1)
        fleet.put_row(call_row(f"c{number}", labels=V2, waiting=waiting, revision=2))
    assert agents_at(fleet, AT_MS + 14_000)[0].is_bad, "it goes on until it is known to be over"


def test_a_bad_time_that_is_over_is_told_as_it_was_and_does_not_begin_anew() -> None:
    """A call closes ten seconds after its last event, and looks come twice a second."""
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.put_row(call_row(name, labels=V2, waiting=Waiting(2, AT_MS - 90_000, 2)))
    assert agents_at(fleet, AT_MS - 80_000)[0].is_bad
    for state, revision, known_ms in (("ended", 2, AT_MS), ("closed", 3, AT_MS + 10_000)):
        for name in ("a", "b"):
            end = structs.replace(given_up(name, at_ms=known_ms), revision=revision, state=state)
            fleet.put_row(structs.replace(end, last_known_ms=AT_MS))
        for after_ms in range(0, WINDOW_MS - 20_000, 500):
            (found,) = agents_at(fleet, known_ms + after_ms)
            assert (bad_time(found).since_ms, bad_time(found).calls_affected) == (AT_MS - 90_000, 2)
            assert bad_time(found).until_ms == AT_MS
            if state == "ended" and after_ms >= 10_000:
                break


def test_a_call_began_when_its_own_clock_says_unless_that_is_another_one() -> None:
    for began_ms, expected_ms in (
        (AT_MS - 3_000, AT_MS - 3_000),
        (AT_MS - 86_400_000, AT_MS),  # a recording that is played again
        (None, AT_MS),
    ):
        fleet = Fleet()
        fleet.put_row(call_row("c", labels=V1, first_known_ms=AT_MS, began_ms=began_ms))
        (found,) = agents_at(fleet)
        assert found.first_call_ms == expected_ms


def test_waits_and_unanswered_turns_count_in_their_minute_and_for_a_quarter_of_an_hour() -> None:
    fleet = Fleet()
    fleet.put_row(call_row("c", labels=V1))
    for wait_ms, ago in ((100.0, 0), (300.0, 0), (900.0, 2), (7_000.0, MINUTES)):
        known_ms = AT_MS - ago * MINUTE_MS
        fleet.put_row(turn_row(1, labels=V1, wait_ms=wait_ms, known_ms=known_ms, news=("wait",)))
    fleet.put_row(turn_row(2, labels=V1, wait_ms=5_000.0, news=("wait_revised",)))
    fleet.put_row(
        turn_row(3, labels=V1, wait_ms=Unscored(UnscoredReason.NO_TURN_JUDGED), news=("wait",))
    )
    for unanswered, revision in ((1, 2), (3, 3), (2, 1)):
        fleet.put_row(call_row("c", labels=V1, unanswered=unanswered, revision=revision))
    (found,) = agents_at(fleet)
    assert (found.turns_answered, found.turns_unanswered, found.unanswered_share) == (3, 3, 0.5)
    assert (found.wait_p50_ms, found.wait_p95_ms) == (300.0, 900.0)
    assert found.waits_p95_ms == (*[None] * (MINUTES - 3), 900.0, None, 300.0)
    (later,) = agents_at(fleet, AT_MS + MINUTES * MINUTE_MS)
    assert (
        later.turns_answered,
        later.turns_unanswered,
        later.wait_p95_ms,
        later.unanswered_share,
    ) == (
        0,
        0,
        None,
        None,
    )


def test_the_time_of_trouble_ends_when_few_calls_have_any_and_is_told_for_a_while() -> None:
    fleet = Fleet()
    fleet.put_row(failing("a"))
    assert agents_at(fleet)[0].bad is None, "one of one says nothing"
    fleet.put_row(failing("b"))
    assert bad_time(agents_at(fleet)[0]).since_ms == AT_MS
    (found,) = agents_at(fleet, AT_MS + 5_000)
    assert (bad_time(found).since_ms, bad_time(found).calls_affected, found.is_bad) == (
        AT_MS,
        2,
        True,
    )
    for number in range(20):  # two of 22 are fewer than one in ten
        fleet.put_row(call_row(f"well-{number}", labels=V2))
    (found,) = agents_at(fleet, AT_MS + 6_000)
    assert (found.calls_in_trouble, bad_time(found).since_ms, bad_time(found).until_ms) == (
        2,
        AT_MS,
        AT_MS + 6_000,
    )
    assert (found.is_bad, bad_time(found).calls_affected) == (False, 2)
    fleet.put_row(failing("c"))
    (found,) = agents_at(fleet, AT_MS + 7_000)
    assert (bad_time(found).since_ms, bad_time(found).until_ms, bad_time(found).calls_affected) == (
        AT_MS,
        None,
        3,
    ), "a short pause"
    fleet.put_row(call_row("c", labels=V2, revision=1))
    agents_at(fleet, AT_MS + 8_000)
    fleet.put_row(failing("c", revision=2))
    (found,) = agents_at(fleet, AT_MS + 9_000 + PAUSE_MS)
    assert (bad_time(found).since_ms, bad_time(found).calls_affected) == (
        AT_MS + 9_000 + PAUSE_MS,
        3,
    ), "a new time"
    fleet.put_row(call_row("c", labels=V2, revision=3))
    agents_at(fleet, AT_MS + 2 * PAUSE_MS)
    (found,) = agents_at(fleet, AT_MS + 2 * PAUSE_MS + WINDOW_MS + 1)
    assert found.bad is None, "forgotten"


def test_one_call_in_trouble_makes_no_agent_bad_that_has_several() -> None:
    fleet = Fleet()
    for name in ("b", "c"):
        fleet.put_row(call_row(name, labels=V2))
    fleet.put_row(failing("a"))
    assert not agents_at(fleet)[0].is_bad
    fleet.put_row(failing("b", revision=1))
    assert agents_at(fleet)[0].is_bad


def test_a_mute_agent_stays_at_the_top_when_its_callers_have_given_up() -> None:
    fleet = Fleet()
    for number in range(30):
        fleet.put_row(call_row(f"well-{number}", labels=V1))
    fleet.put_row(given_up("a"))
    fleet.put_row(given_up("b"))
    (bad, _) = agents_at(fleet, AT_MS + 1_000)
    assert (
        bad.version,
        bad.calls_running,
        bad.calls_ended_badly,
        bad_time(bad).calls_affected,
    ) == (
        "2",
        0,
        2,
        2,
    )
    assert (bad.unanswered_share, bad_time(bad).trouble) == (1.0, TroubleKind.MUTE)
    (later, *_) = (each for each in agents_at(fleet, AT_MS + 5 * MINUTE_MS) if each.version == "2")
    assert (later.calls_ended_badly, later.is_bad) == (2, False), "it is over, and still seen"


def test_a_bad_time_ends_with_its_last_bad_call_and_says_so() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.put_row(call_row(name, labels=V2, waiting=Waiting(1, AT_MS - 4_000, 1)))
    (found,) = agents_at(fleet)
    assert (bad_time(found).until_ms, bad_time(found).trouble) == (None, TroubleKind.SILENT)
    fleet.put_row(given_up("a", at_ms=AT_MS + 75_000))
    assert agents_at(fleet, AT_MS + 76_000)[0].is_bad, "another caller waits"
    fleet.put_row(given_up("b", at_ms=AT_MS + 77_000))
    for at_ms in (AT_MS + 78_000, AT_MS + 5 * MINUTE_MS):
        (found,) = agents_at(fleet, at_ms)
        assert (
            bad_time(found).since_ms,
            bad_time(found).until_ms,
            bad_time(found).ended_with_call,
        ) == (
            AT_MS - 4_000,
            AT_MS + 77_000,
            True,
        )
        assert (bad_time(found).calls_affected, bad_time(found).trouble) == (2, TroubleKind.MUTE)


def test_a_caller_who_hung_up_earlier_ends_no_bad_time_that_others_recover_from() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.put_row(call_row(name, labels=V2, waiting=Waiting(1, AT_MS - 4_000, 1)))
    agents_at(fleet)
    fleet.put_row(given_up("a", at_ms=AT_MS + 5_000))
    agents_at(fleet, AT_MS + 30_000)
    fleet.put_row(call_row("b", labels=V2, revision=1))
    (found,) = agents_at(fleet, AT_MS + 40_000)
    assert (bad_time(found).until_ms, bad_time(found).ended_with_call) == (AT_MS + 40_000, False)


def test_a_bad_time_that_calls_recover_from_ends_when_few_are_left_in_trouble() -> None:
    fleet = Fleet()
    for name in "ab":
        fleet.put_row(failing(name))
    agents_at(fleet)
    for name in "ab":
        fleet.put_row(call_row(name, labels=V2, revision=1))
    (found,) = agents_at(fleet, AT_MS + 5_000)
    assert (bad_time(found).until_ms, bad_time(found).ended_with_call) == (AT_MS + 5_000, False)


def test_a_wait_in_vain_counts_after_its_call_and_the_minutes_before_keep_what_they_showed() -> (
    None
):
    fleet = Fleet()
    waits = Waiting(2, AT_MS - 12_000, 2)
    fleet.put_row(call_row("a", labels=V1, waiting=waits))
    assert agents_at(fleet, AT_MS)[0].wait_p95_ms == 12_000.0
    later_ms = AT_MS + MINUTE_MS
    over = call_row("a", labels=V1, waiting=waits, state="closed", revision=2, known_ms=later_ms)
    fleet.put_row(over)
    fleet.put_row(over)
    (found,) = agents_at(fleet, later_ms)
    assert found.wait_p95_ms == 12_000.0 + MINUTE_MS
    assert found.waits_p95_ms[-2:] == (12_000.0, 12_000.0 + MINUTE_MS)
    assert found.turns_answered == 0
    whole, _ = fleet.agents.figures(EVERY_CALL)
    assert whole.wait_p50_ms == 12_000.0 + MINUTE_MS, "it is one wait"


def test_no_wait_is_known_of_calls_that_close_without_one() -> None:
    fleet = Fleet()
    fleet.put_row(call_row("a", labels=V1))
    fleet.put_row(call_row("a", labels=V1, state="closed", revision=2, unanswered=1, turns=2))
    (found,) = agents_at(fleet)
    assert (found.wait_p50_ms, found.wait_p95_ms) == (None, None)


def test_one_caller_who_hung_up_at_once_makes_no_agent_bad_and_two_are_callers_without_answers() -> (
    None
):
    fleet = Fleet()
    for count, name in enumerate("ab", 1):
        gone = {"state": "closed", "close_reason": "ended", "unanswered": 1, "turns": 1}
        fleet.put_row(call_row(name, labels=V1, revision=2, **gone))
        (found,) = agents_at(fleet)
        assert (found.bad is not None) == (count == 2)
    assert bad_time(found).trouble is TroubleKind.MUTE


def test_callers_who_wait_now_count_with_their_wait_so_far_until_it_is_known() -> None:
    fleet = Fleet()
    fleet.put_row(turn_row(1, labels=V1, wait_ms=900.0, known_ms=AT_MS, news=("wait",)))
    fleet.put_row(call_row("a", labels=V1, waiting=Waiting(2, AT_MS - 12_000, 1)))
    fleet.put_row(call_row("b", labels=V1, waiting=Waiting(2, AT_MS - SLOW_MS, 1)))
    (found,) = agents_at(fleet)
    assert (found.wait_p95_ms, found.turns_answered) == (12_000.0, 1)
    assert bad_time(found).trouble is TroubleKind.MUTE, "it is no slow answer any more"
    fleet.put_row(call_row("greeted", labels=V1, waiting=Waiting(0, AT_MS - 30_000, 1)))
    assert agents_at(fleet)[0].wait_p95_ms == 12_000.0, "a greeting has no wait"
    stopped = [
        each._replace(has_stopped=True) for each in fleet.now(AT_MS).calls if not each.call.answer
    ]
    for _ in fleet.agents.looking(stopped, AT_MS):
        pass
    assert fleet.agents.now[0].wait_p95_ms == 900.0, "of these nobody knows whether they wait"
    for name in ("a", "b", "greeted"):
        fleet.put_row(call_row(name, labels=V1, revision=2))
    (later,) = agents_at(fleet, AT_MS + MINUTE_MS)
    assert later.wait_p95_ms == 900.0


def test_a_bad_version_says_what_most_of_its_calls_suffer_and_of_which_tenants_they_are() -> None:
    fleet = Fleet()
    slow = Answer(2, 9_000.0, slowest_stage=Stage.LLM_FIRST_TOKEN)
    for number, tenant in enumerate(("acme", "bolt", "acme")):
        labels = Labels(agent="desk", tenant=tenant)
        fleet.put_row(call_row(str(number), labels=labels, answer=slow))
    fleet.put_row(failing("d", Labels(agent="desk", tenant="bolt")))
    (found,) = agents_at(fleet)
    assert (bad_time(found).trouble, bad_time(found).stage) == (
        TroubleKind.VERY_SLOW,
        Stage.LLM_FIRST_TOKEN,
    )
    assert bad_time(found).tenants_affected == (("acme", 2), ("bolt", 2))


def slow(name: str, wait_ms: float = 5_800.0, **more: object) -> CallRow:
    """A call whose newest answer came late."""
    answer = Answer(2, wait_ms, slowest_stage=Stage.LLM_FIRST_TOKEN)
    return call_row(name, **{"labels": V2, "answer": answer} | more)


def test_one_slow_call_of_a_version_makes_it_not_bad_and_is_told() -> None:
    fleet = Fleet()
    fleet.put_row(slow("a"))
    for name in ("b", "c"):  # no answer yet
        fleet.put_row(call_row(name, labels=V2))
    (found,) = agents_at(fleet)
    assert (found.is_bad, found.calls_answered, found.calls_slow) == (False, 1, 1)
    assert found.slowest_ms == 5_800.0


def test_a_bad_time_begins_with_the_wait_of_its_first_caller() -> None:
    fleet = Fleet()
    for number in range(10):
        well = {"answer": Answer(1, 900.0), "first_known_ms": AT_MS - 90_000}
        fleet.put_row(call_row(f"well-{number}", labels=V2, **well))
    fleet.put_row(slow("a", known_ms=AT_MS, first_known_ms=AT_MS - 20_000))
    assert not agents_at(fleet, AT_MS)[0].is_bad
    fleet.put_row(slow("a", known_ms=AT_MS + 9_000, revision=1))
    fleet.put_row(call_row("b", labels=V2, waiting=Waiting(1, AT_MS + 5_000, 1)))
    (found,) = agents_at(fleet, AT_MS + 10_000)
    assert (found.is_bad, bad_time(found).since_ms) == (True, AT_MS - 5_800)
    assert (bad_time(found).calls_affected, bad_time(found).calls_meanwhile) == (2, 12)
    fleet.put_row(call_row("d", labels=V2, first_known_ms=AT_MS + 11_000))
    (found,) = agents_at(fleet, AT_MS + 12_000)
    assert bad_time(found).calls_meanwhile == 12, "it may be answered yet"
    fleet.put_row(call_row("d", labels=V2, revision=1, answer=Answer(1, 900.0)))
    later = agents_at(fleet, AT_MS + 12_500)[0]
    assert (bad_time(later).calls_affected, bad_time(later).calls_meanwhile) == (2, 13)
    assert (found.first_call_ms, found.last_call_ms) == (AT_MS - 90_000, AT_MS + 11_000)


def test_a_call_that_was_in_trouble_long_before_does_not_tell_since_when() -> None:
    fleet = Fleet()
    for number in range(10):
        fleet.put_row(call_row(f"well-{number}", labels=V2))
    fleet.put_row(failing("a"))
    agents_at(fleet, AT_MS)
    fleet.put_row(failing("b", known_ms=AT_MS + 2 * PAUSE_MS))
    assert bad_time(agents_at(fleet, AT_MS + 2 * PAUSE_MS)[0]).since_ms == AT_MS + 2 * PAUSE_MS


def test_what_a_version_suffers_does_not_change_while_it_is_still_true_of_half() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.put_row(call_row(name, labels=V2, waiting=Waiting(1, AT_MS - 4_000, 1)))
    assert bad_time(agents_at(fleet)[0]).trouble is TroubleKind.SILENT
    told = []
    for second in range(1, 9):  # in turns they wait, and have a late answer
        fleet.put_row(slow("ab"[second % 2], revision=second))
        waits = Waiting(1, AT_MS + 1_000 * second - 3_000, 1)
        fleet.put_row(slow("ba"[second % 2], revision=second, waiting=waits))
        (found,) = agents_at(fleet, AT_MS + 1_000 * second)
        told.append((bad_time(found).trouble, bad_time(found).stage))
    assert set(told) == {(TroubleKind.VERY_SLOW, Stage.LLM_FIRST_TOKEN)}
    mute = Waiting(3, AT_MS + 10_000, 2)
    for name, trouble in (("a", TroubleKind.VERY_SLOW), ("b", TroubleKind.MUTE)):
        fleet.put_row(slow(name, revision=10, waiting=mute))
        assert bad_time(agents_at(fleet, AT_MS + 11_000)[0]).trouble is trouble


def test_a_version_without_calls_is_told_of_for_a_quarter_of_an_hour() -> None:
    fleet = Fleet()
    fleet.put_row(call_row("a", labels=V1, state="closed"))
    later_ms = AT_MS + WINDOW_MS - 1
    assert [each.calls_running for each in agents_at(fleet, later_ms)] == [0]
    assert agents_at(fleet, later_ms + 1) == []


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 4)
    monkeypatch.setattr(module, "MAX_AFFECTED", 2)
    agents = Agents()
    for name in "abc":
        agents.take_turn(turn_row(labels=Labels(agent=name), wait_ms=1.0, news=("wait",)))
    assert list(agents._kept) == [("b", None), Labels(agent="b"), ("c", None), Labels(agent="c")]
    fleet = Fleet()
    for name in "ab":
        fleet.put_row(failing(name))
    agents_at(fleet)
    fleet.put_row(failing("c"))
    assert bad_time(agents_at(fleet)[0]).calls_affected == 2
