"""The section about many calls: a row for each goal set, and errors that lead to the calls of the
same page.
"""

import re

from streamer.report import over_many_calls
from tests.support.calls.report_calls import goal_set, recorded, reported


def test_calls_of_a_goal_set_are_compared_with_links_to_them() -> None:
    calls = [reported(recorded(conversation_id=f"call {n}"), goal_set(), f"c{n}") for n in range(3)]
    page = str(over_many_calls(calls))
    cells = dict(re.findall('data-head="([^"]*)">([^<]*)<', page))
    assert (cells["Trials"], cells["Success"], cells["Progress"]) == ("3", "0 %", "50 %")
    assert (cells["pass@3"], cells["pass^3"], cells["Judges agree"]) == ("0", "0", "-")
    assert "pass@5" not in cells
    missed = page[page.index("missed in 3 of 3: used") :]
    assert re.findall('href="#(c[0-9])">(call [0-9])<', missed)[:3] == [
        (f"c{n}", f"call {n}") for n in range(3)
    ]
    assert "stalled in turn 2: 3 calls" in page
    assert "failed up to the stall: hello, 3 times" in page


def test_goal_sets_of_one_name_have_rows_of_their_own_and_a_note() -> None:
    changed = goal_set().model_copy(update={"max_turns": 7})
    calls = [
        reported(recorded(conversation_id=f"call {n}"), each, f"c{n}")
        for n, each in enumerate((goal_set(), changed))
    ]
    page = str(over_many_calls(calls))
    assert len(set(re.findall("hello [0-9a-f]{8}<", page))) == 2
    assert "changed between its trials" in page
    assert "max_turns 20 to 7" in page


def test_texts_of_the_goals_are_redacted() -> None:
    calls = [
        reported(recorded(conversation_id="c"), goal_set("secret"), "c1", "secret")
        for _ in range(2)
    ]
    assert "secret" not in str(over_many_calls(calls))


def test_without_two_calls_with_goals_there_is_nothing_to_compare() -> None:
    calls = [reported(recorded()), reported(recorded(), goal_set())]
    assert over_many_calls(calls) is None
