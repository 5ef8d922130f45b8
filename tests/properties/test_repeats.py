"""A record that comes again is counted and changes nothing; one that only looks the same is an
event.
"""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from schemas.closed_sets import InputSource
from schemas.events.envelope import Envelope
from tests.properties.evaluation import LIMITS, fold, fresh, outcomes_of, renumbered, rows_of_calls
from tests.properties.steered_calls import drawn
from tests.support.calls.strategies import with_repeats
from tests.support.calls.wire_calls import arrivals_of


def _check(arrivals: list[Arrival], again: list[Arrival]) -> None:
    once, twice = fresh(), fresh()
    effects, repeated = rows_of_calls(fold(once, arrivals)), rows_of_calls(fold(twice, again))
    assert repeated == effects
    assert twice.context(arrivals[0].conversation_id) == once.context(arrivals[0].conversation_id)
    counts: Counter[tuple[str, ...]] = Counter()
    for count in outcomes_of(twice):
        counts[count.labels] += count.by
    for count in outcomes_of(once):
        counts[count.labels] -= count.by
    assert {outcome for (_, outcome), number in counts.items() if number} <= {"repeated"}
    assert counts.total() == len(again) - len(arrivals)


@given(st.data())
def test_events_sent_again_with_their_id_change_nothing(data: st.DataObject) -> None:
    call, order = drawn(data)
    has_sequence = data.draw(st.booleans())
    arrivals = [
        replace(
            a,
            envelope=Envelope(
                f"e-{place}", a.source.value, None, a.offset if has_sequence else None
            ),
        )
        for place, a in enumerate(arrivals_of(call, order))
    ]
    places = data.draw(with_repeats([("all", place) for place in range(len(arrivals))]))
    again = [arrivals[place] for _, place in places]
    _check(arrivals, _at_their_first_time(again))


@given(st.data())
def test_simulator_lines_sent_again_change_nothing(data: st.DataObject) -> None:
    call, order = drawn(data)
    numbered = [
        {**event, "sequence": number} for number, event in enumerate(call["user_sim"] or (), 1)
    ]
    arrivals = arrivals_of({**call, "user_sim": numbered}, order)
    places = data.draw(with_repeats([("all", place) for place in range(len(arrivals))]))
    seen: set[int] = set()
    again = []
    for _, place in places:
        # of the simulator's topic, but not of its numbered lines
        is_control = order[place][0] == "control"
        if place not in seen or (
            arrivals[place].source is InputSource.ELEVENLABS and not is_control
        ):
            again.append(arrivals[place])
        seen.add(place)
    _check(arrivals, _at_their_first_time(again))


def _at_their_first_time(again: list[Arrival]) -> list[Arrival]:
    """As new records of the log. A repeat comes when it comes, but the broker's clock decides
    nothing here.
    """
    return renumbered(again)


@given(st.data())
def test_equal_words_without_an_id_are_events(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = [a for a in arrivals_of(call, order) if getattr(a.event, "sequence", None) is None]
    if not arrivals:
        return
    evaluator = fresh(LIMITS)
    fold(evaluator, renumbered([arrival for arrival in arrivals for _ in range(2)]))
    assert all(count.labels[1] != "repeated" for count in outcomes_of(evaluator))
