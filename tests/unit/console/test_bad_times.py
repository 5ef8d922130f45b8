"""The list of bad times: what Now found, in the words of Now, kept beyond its quarter of an hour."""

import re
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from consumers.console import bad_times as module
from consumers.console.bad_times import BadTimes
from consumers.console.fleet import Fleet
from consumers.console.pages import Site
from consumers.console.past import bad_times_page
from consumers.console.serving import BAD_TIMES_NAME, CallPages
from consumers.console.settings import ConsoleSettings
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.registry import Instruments
from schemas.rows import Answer, Labels, Waiting
from schemas.scores.running import SILENT_MS
from schemas.scores.trouble import TroubleKind
from schemas.units import MINUTE_MS, MS_PER_SECOND
from tests.support.calls.console_calls import AT_MS, call_row

V2 = Labels(agent="desk", version="2", tenant="acme")
SITE = Site("./", "1.2.3", "s", has_past=True)


def bad_fleet(since_ms: int = AT_MS - 90_000, **labels: str) -> Fleet:
    """Two calls of a version whose callers wait."""
    fleet = Fleet()
    waiting = Waiting(2, since_ms, 2)
    for name in ("a", "b"):
        whose = structs.replace(V2, **labels)
        fleet.put_row(call_row(name, labels=whose, waiting=waiting, first_known_ms=since_ms))
    for at_ms in (since_ms + 10_000, AT_MS):
        fleet.now(at_ms)
    return fleet


def end_calls(fleet: Fleet, at_ms: int) -> None:
    for name in ("a", "b"):
        end = call_row(name, labels=V2, state="closed", known_ms=at_ms, revision=2, unanswered=3)
        fleet.put_row(structs.replace(end, waiting=Waiting(2, AT_MS - 90_000, 2)))
    fleet.now(at_ms)


def test_a_bad_time_is_kept_as_it_was_when_now_tells_it_no_more() -> None:
    fleet = bad_fleet()
    (lasting,) = fleet.bad_times.newest_first
    assert (lasting.agent, lasting.version, lasting.since_ms, lasting.until_ms) == (
        *("desk", "2", AT_MS - 90_000),
        None,
    )
    end_calls(fleet, AT_MS + 5_000)
    for after_ms in (0, 30_000, 20 * MINUTE_MS):
        if after_ms == 30_000:  # calls that come later have no part in it
            for name in "cdef":
                began = {"known_ms": AT_MS + after_ms, "first_known_ms": AT_MS + after_ms}
                fleet.put_row(call_row(name, labels=V2, **began))
        fleet.now(AT_MS + 5_000 + after_ms)
        (ended,) = fleet.bad_times.newest_first
        assert (ended.until_ms, ended.calls_affected, ended.calls_meanwhile) == (
            *(AT_MS + 5_000, 2),
            2,
        )
        assert (ended.trouble, ended.tenants_affected) == (TroubleKind.MUTE, (("acme", 2),))
    assert all(each.bad is None for each in fleet.agents.now)


def test_one_that_was_short_or_found_while_no_event_came_is_none() -> None:
    fleet = bad_fleet(AT_MS - 1_000)
    end_calls(fleet, AT_MS + 5_000)
    assert len(fleet.bad_times) == 1
    fleet.put_row(call_row("well", labels=V2, known_ms=AT_MS + 3 * MINUTE_MS))
    fleet.now(AT_MS + 3 * MINUTE_MS)
    assert len(fleet.bad_times) == 0, "Now has forgotten it"

    fleet = Fleet()
    fleet.known.take_partition(0, AT_MS, event_ms=AT_MS)
    for number in range(3):
        waiting = Waiting(2, AT_MS - 5_000, 1)
        fleet.put_row(call_row(f"c{number}", labels=V2, waiting=waiting))
    fleet.now(AT_MS + 9_000)
    assert len(fleet.bad_times) == 1
    fleet.known.take_partition(0, AT_MS + SILENT_MS, event_ms=AT_MS)
    fleet.now(AT_MS + SILENT_MS)
    assert len(fleet.bad_times) == 0, "its events were only missing"


def test_callers_of_the_time_are_all_who_began_in_it_also_where_bad_calls_end_at_once() -> None:
    fleet = bad_fleet()
    for second in range(1, 41):
        at_ms = AT_MS + second * MS_PER_SECOND
        began = {"known_ms": at_ms, "first_known_ms": at_ms, "labels": V2}
        fleet.put_row(call_row(f"w{second}", state="closed", **began))
        if second % 4 == 0:
            waiting = Waiting(2, at_ms - 9_000, 2)
            fleet.put_row(call_row(f"b{second}", state="closed", waiting=waiting, **began))
        if second == 2:
            end_calls(fleet, at_ms)
        fleet.now(at_ms)
    (time,) = fleet.bad_times.newest_first
    (now,) = fleet.agents.now
    assert (time.calls_affected, time.calls_meanwhile) == (12, 52)
    assert now.bad is not None
    assert (now.bad.calls_affected, now.bad.calls_meanwhile) == (12, 52)


def test_while_no_event_comes_it_grows_no_longer_and_it_ends_where_it_was_seen_last() -> None:
    fleet = bad_fleet()
    fleet.known.take_partition(0, AT_MS, event_ms=AT_MS)
    fleet.put_row(call_row("c", labels=V2, waiting=Waiting(2, AT_MS - 90_000, 2)))
    for after_ms in (0, SILENT_MS, 30 * MINUTE_MS):
        fleet.known.take_partition(0, AT_MS + after_ms, event_ms=AT_MS)
        fleet.now(AT_MS + after_ms)
    (time,) = fleet.bad_times.newest_first
    assert time.seen_ms == AT_MS
    for name in "abc":
        closed = {"state": "closed", "known_ms": AT_MS + 5 * MINUTE_MS, "revision": 9}
        fleet.put_row(call_row(name, labels=V2, last_known_ms=AT_MS - 60_000, **closed))
    later_ms = AT_MS + 60 * MINUTE_MS
    for event_ms in (AT_MS, later_ms):
        if event_ms == later_ms:
            began = {"known_ms": later_ms, "first_known_ms": later_ms}
            fleet.put_row(call_row("d", labels=V2, **began))
        fleet.known.take_partition(0, later_ms, event_ms=event_ms)
        fleet.now(later_ms)
        (time,) = fleet.bad_times.newest_first
        assert time.until_ms == AT_MS, "nobody knows more"


def test_what_most_suffered_before_is_told_too() -> None:
    fleet = Fleet()
    slow = Answer(1, 6_000.0)
    for name in "ab":
        fleet.put_row(call_row(name, labels=V2, answer=slow, known_ms=AT_MS))
    fleet.now(AT_MS)
    for name in "abcde":
        waiting = Waiting(2, AT_MS, 2)
        fleet.put_row(call_row(name, labels=V2, waiting=waiting, known_ms=AT_MS, revision=5))
    fleet.now(AT_MS + 30_000)
    (time,) = fleet.bad_times.newest_first
    assert (time.before, time.trouble) == (((TroubleKind.VERY_SLOW, None),), TroubleKind.MUTE)
    shown = bad_times_page(SITE, [time], AT_MS)
    assert "callers get no answer; earlier: answers are slow" in shown
    again = BadTimes()
    again.read(fleet.bad_times.encode())
    assert again.newest_first[0].before == time.before


def test_it_is_worth_writing_when_it_begins_and_ends_and_once_a_minute() -> None:
    fleet = bad_fleet()
    editions = [fleet.bad_times.edition]
    for after_ms in range(500, 2 * MINUTE_MS, 500):
        fleet.now(AT_MS + after_ms)
        editions.append(fleet.bad_times.edition)
    assert sorted(set(editions)) == [2, 3]
    end_calls(fleet, AT_MS + 2 * MINUTE_MS)
    fleet.now(AT_MS + 3 * MINUTE_MS)
    assert fleet.bad_times.edition == 4


def test_the_next_process_has_them_and_one_that_lasted_ends_when_it_was_seen_last() -> None:
    fleet = bad_fleet()
    written = fleet.bad_times.encode()
    later = BadTimes()
    later.read(written)
    (found,) = later.newest_first
    assert found.until_ms == AT_MS
    later.note([], AT_MS + MINUTE_MS)
    assert len(later) == 1, "nobody knows more of it"
    with pytest.raises(msgspec.DecodeError):
        later.read(b'{"agent": 1}')


def test_it_names_the_tenants_with_most_calls_and_how_many_more() -> None:
    fleet = Fleet()
    whose = ["a", "a", "b", "b", "unknown", "c", "c", "d", "e"]
    for number, tenant in enumerate(whose):
        labels = structs.replace(V2, tenant=tenant)
        fleet.put_row(call_row(f"c{number}", labels=labels, waiting=Waiting(2, AT_MS - 9_000, 2)))
    fleet.now(AT_MS)
    (time,) = fleet.bad_times.newest_first
    assert (time.tenants_affected, time.tenants_more) == ((("a", 2), ("b", 2), ("c", 2)), 2)
    shown = bad_times_page(SITE, [time], AT_MS)
    assert "2 of a, 2 of b, 2 of c, others of 2 more tenants" in shown


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BAD_TIMES", 2)
    times = BadTimes()
    for number in range(4):
        (each,) = bad_fleet(AT_MS - 90_000 + number, agent=f"desk-{number}").agents.now
        times.note([each], AT_MS)
    assert [each.agent for each in times.newest_first] == ["desk-3", "desk-2"]


def test_of_more_than_there_is_room_for_at_the_same_time_none_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_BAD_TIMES", 2)
    fleet = Fleet()
    for number in range(8):
        labels = structs.replace(V2, agent=f"desk-{number % 4}")
        fleet.put_row(call_row(f"c{number}", labels=labels, waiting=Waiting(2, AT_MS - 9_000, 2)))
    fleet.now(AT_MS)
    edition, kept = fleet.bad_times.edition, fleet.bad_times.newest_first
    for after_ms in range(500, 10_000, 500):
        fleet.now(AT_MS + after_ms)
    assert fleet.bad_times.edition == edition
    assert [each.agent for each in fleet.bad_times.newest_first] == [each.agent for each in kept]


def test_its_page_leads_to_the_calls_of_the_time() -> None:
    fleet = bad_fleet()
    shown = bad_times_page(SITE, fleet.bad_times.newest_first, AT_MS)
    assert "goes on" in shown
    assert "callers get no answer" in shown
    assert "2 of acme" in shown
    assert "1:30" in shown
    end_calls(fleet, AT_MS + 5_000)
    shown = bad_times_page(SITE, fleet.bad_times.newest_first, AT_MS + 60 * MINUTE_MS)
    assert "goes on" not in shown
    assert 'href="past?since=' in shown
    assert "agent=desk&amp;version=2" in shown
    assert "b_agent=desk&amp;b_version=2" in shown
    no_past = bad_times_page(SITE._replace(has_past=False), fleet.bad_times.newest_first, AT_MS)
    assert 'href="past?since=' not in no_past
    two = [structs.replace(each, version="3") for each in fleet.bad_times.newest_first]
    both = bad_times_page(SITE, [*fleet.bad_times.newest_first, *two], AT_MS)
    assert len(set(re.findall('<tr id="([^"]*)"', both))) == 2, "each has an address"
    assert "No agent was bad" in bad_times_page(SITE, [], AT_MS)


def pages(folder: Path) -> CallPages:
    instruments = Instruments(CollectorRegistry(), ["console"])
    return CallPages(ConsoleSettings(), Redactor(), instruments, folder=folder)


async def test_they_are_in_a_file_of_the_folder(tmp_path: Path) -> None:
    made = pages(tmp_path)
    bad = bad_fleet()
    made.fleet.bad_times.note(bad.agents.now, AT_MS)
    made.start()
    await made.stop()  # writes what is new
    assert (tmp_path / BAD_TIMES_NAME).stat().st_mode & 0o077 == 0
    later = pages(tmp_path)
    (time,) = later.fleet.bad_times.newest_first
    assert time.until_ms == AT_MS
    later.fleet.put_row(call_row("new", labels=V2, known_ms=AT_MS, first_known_ms=AT_MS))
    later.fleet.now(AT_MS)
    assert len(later.fleet.bad_times) == 1, "this process knows nothing of it"
    (tmp_path / BAD_TIMES_NAME).write_text("not one")
    assert len(pages(tmp_path).fleet.bad_times) == 0, "and it starts nevertheless"
    assert (tmp_path / BAD_TIMES_NAME).with_suffix(".broken").read_text() == "not one"


async def test_a_folder_that_cannot_be_written_ends_no_page(tmp_path: Path) -> None:
    made = pages(tmp_path)
    made.fleet.bad_times.note(bad_fleet().agents.now, AT_MS)
    (tmp_path / BAD_TIMES_NAME).mkdir()
    made.start()
    await made.stop()
    (tmp_path / BAD_TIMES_NAME).rmdir()
    await made.stop()
    assert (tmp_path / BAD_TIMES_NAME).exists(), "it is tried again"
