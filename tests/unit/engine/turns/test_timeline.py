"""The timeline of a call and the uses of tools on it."""

import pytest

from consumers.engine.turns.timeline import (
    AUDIT_RANK,
    TIME_SHIFT,
    Replays,
    Timeline,
    ToolEntry,
    ToolPayload,
    ToolUses,
    order_key,
    outcome_of,
)
from schemas import rows
from schemas.closed_sets import ToolOutcome
from tests.support.fakes.engine_feed import T0_MS, Feed

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000


class Heard:
    """Remembers the times and payloads of its elements."""

    def __init__(self) -> None:
        self.seen: tuple[tuple[int, object], ...] = ()

    def apply(self, kind: int, payload: object, time_ms: int) -> None:
        del kind
        self.seen += ((time_ms, payload),)

    def freeze(self) -> object:
        return self.seen

    def thaw(self, frozen: object) -> None:
        assert isinstance(frozen, tuple)
        self.seen = frozen


@pytest.mark.parametrize("apart_ms", [1, DAY_MS, 30 * DAY_MS, 3_000 * DAY_MS])
def test_elements_are_in_the_order_of_their_keys(apart_ms: int) -> None:
    machine = Heard()
    timeline = Timeline(machine, TIME_SHIFT, Replays())
    places = [3, 5, 1, 4, 0, 2]
    times_ms = [NOW_MS + place * apart_ms for place in places]
    keys = [order_key(time_ms, AUDIT_RANK, 7) for time_ms in times_ms]
    for key, place in zip(keys, places, strict=True):
        timeline.insert(key, 0, place)
    assert machine.seen == tuple((NOW_MS + place * apart_ms, place) for place in range(6))
    assert [key for key, _, _ in timeline] == sorted(keys)
    assert [timeline.payload(key) for key in keys] == places
    assert timeline.payload(keys[0] + 1) is None
    timeline.replace(keys[2], "new")
    timeline.remove(keys[1])
    assert [payload for _, _, payload in timeline] == [0, "new", 2, 3, 4]


@pytest.mark.parametrize("apart_ms", [1, DAY_MS, 3_000 * DAY_MS])
@pytest.mark.parametrize("known", [0, 1, 40])
def test_late_elements_together_are_what_they_are_one_by_one(apart_ms: int, known: int) -> None:
    def element(place: int) -> tuple[int, int, object]:
        return order_key(NOW_MS + place * apart_ms, AUDIT_RANK, 7), 0, place

    late = [element(place) for place in range(-9, 2 * known, 3)]
    together, one_by_one = Heard(), Heard()
    timelines = (
        Timeline(together, TIME_SHIFT, Replays()),
        Timeline(one_by_one, TIME_SHIFT, Replays()),
    )
    for place in range(0, 2 * known, 2):
        for timeline in timelines:
            timeline.insert(*element(place))
    timelines[0].insert_all(late)
    for each in late:
        timelines[1].insert(*each)
    assert list(timelines[0]) == list(timelines[1])
    assert (
        sorted(together.seen)
        == sorted(one_by_one.seen)
        == [(time_ms, place) for time_ms, place in sorted(together.seen)]
    )
    timelines[0].insert_all([])
    assert list(timelines[0]) == list(timelines[1])


def _uses(*events: tuple[int, str, str, int]) -> list[tuple[int, int, str, str | None, int | None]]:
    last: ToolEntry | None = None
    for turn, what, tool, at_ms in events:
        last = ToolEntry(last, turn, ToolPayload(tool, {}), at_ms, is_response=what == "answer")
    uses = ToolUses()
    uses.follow(last)
    return [
        (use.turn, use.index, use.tool, use.outcome and use.outcome.value, use.duration_ms)
        for use in uses
    ]


def test_first_call_first_answer_by_tool() -> None:
    assert _uses(
        (1, "call", "a", 0),
        (1, "call", "b", 1),
        (1, "call", "a", 2),
        (1, "answer", "a", 10),
        (1, "answer", "a", 30),
    ) == [
        (1, 0, "a", "success", 10),
        (1, 1, "b", None, None),
        (1, 2, "a", "success", 28),
    ]


def test_an_answer_in_a_later_turn_belongs_to_the_call() -> None:
    assert _uses((1, "call", "a", 0), (2, "answer", "a", 10)) == [(1, 0, "a", "success", 10)]


def test_an_answer_without_a_call_has_no_duration() -> None:
    assert _uses((1, "answer", "a", 10)) == [(1, 0, "a", "success", None)]


def test_an_answer_stamped_before_its_call_took_no_time() -> None:
    assert _uses((1, "call", "a", 20), (1, "answer", "a", 10)) == [(1, 0, "a", "success", 0)]


def test_the_same_events_in_another_chain_change_nothing_but_what_is_in_another_turn() -> None:
    """A machine that folds a call again, after a snapshot or a late event, has new entries of the
    events it had.
    """
    payloads = [ToolPayload(tool, {}) for tool in "abc"]

    def chain(*turns: int) -> ToolEntry | None:
        last = None
        for place, (turn, use) in enumerate(zip(turns, payloads, strict=False)):
            last = ToolEntry(last, turn, use, place, is_response=False)
        return last

    uses = ToolUses()
    assert uses.follow(chain(1, 1)).keys() == {(1, 0), (1, 1)}
    assert not uses.follow(chain(1, 1))
    assert uses.follow(chain(1, 2, 2)).keys() == {(1, 1), (2, 0), (2, 1)}


@pytest.mark.parametrize(
    "response", [{"status": "error"}, {"status": "failed"}, {"error_type": "x"}, {"error": "no"}]
)
def test_answers_that_say_it_failed(response: object) -> None:
    assert outcome_of(response) is ToolOutcome.ERROR


@pytest.mark.parametrize(
    "response", [{"status": "ok"}, {"error": None}, {"error": ""}, None, "error", [], {}]
)
def test_answers_that_do_not(response: object) -> None:
    assert outcome_of(response) is ToolOutcome.SUCCESS


def test_a_use_is_published_when_its_outcome_is_known() -> None:
    feed = Feed().tool_call("rebook", 1_000)
    assert feed.tools() == {}
    feed.tool_answer("rebook", 1_800, {"status": "error"})
    assert feed.tools() == {
        (0, 0): rows.ToolUse(0, "rebook", ToolOutcome.ERROR, 800, T0_MS + 1_000)
    }
    assert feed.news(0) == ["tool.0"]


def test_a_use_that_was_never_answered_is_known_at_the_end() -> None:
    feed = Feed().tool_call("rebook", 1_000).advance(1_000_000)
    assert feed.tools() == {
        (0, 0): rows.ToolUse(0, "rebook", ToolOutcome.UNANSWERED, called_ms=T0_MS + 1_000)
    }
