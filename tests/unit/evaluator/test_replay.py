"""The order of former owners is taken once more: each record once, in the same order, and silently."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Count, Effect, OpenCall, PublishScore, RequestVerdict
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.evaluator import recovery as replay_module
from consumers.evaluator.recovery import MAX_KEPT_REQUESTS, MAX_WAITING_RECORDS, UNPUBLISHED, Replay, Withheld
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.order import Closed, Fold, GoalsChosen, Renumbered, Step, TimePassed
from schemas.scores.records import TurnValues
from schemas.topics import TOPIC_BY_SOURCE
from tests.support.fakes.evaluator_fakes import NOW_MS, Record, StubEvaluator, WrittenOrder, fact, goal_set, question

PIPECAT, AUDIT = InputSource.PIPECAT, InputSource.AUDIT
GENERATION = 1_000_000


def said(source: InputSource, offset: int, call: str, **fields: Any) -> Record:
    return Record(TOPIC_BY_SOURCE[source], offset, key=call.encode(), **fields)


class Replaying:
    """A replay of an order, with an engine that only takes notes."""

    def __init__(
        self,
        order: WrittenOrder,
        ends: Mapping[InputSource, int],
        *,
        starts: Mapping[InputSource, int] | None = None,
        version: str = "test",
        effects: list[Effect] | None = None,
        **more: Any,
    ) -> None:
        self.decoded: list[tuple[str, int]] = []
        self.engine = StubEvaluator(effects or [])
        at_start = dict.fromkeys(InputSource, 0) | dict(starts or {})
        self.replay = Replay(order.read(), at_start, at_start | dict(ends), version, self.engine, self._admit, **more)

    def _admit(self, source: InputSource, record: Record) -> object:
        self.decoded.append((source.value, record.offset))
        return admit(source, record, Limits())

    def put(self, *records: Record) -> bool:
        """A poll: topic by topic. Returns whether the replay is over."""
        for source, topic in TOPIC_BY_SOURCE.items():
            self.replay.put(source, [record for record in records if record.topic == topic])
        return self.replay.go_on()

    @property
    def folded(self) -> list[tuple[str, int]]:
        return [(call, offset) for call, offset, _ in self.engine.again]


def order_of(*steps: Step, **owner: Any) -> WrittenOrder:
    order = WrittenOrder()
    order.owner(**owner)
    order.write(*steps)
    return order


# The order; tests/properties/test_recovery.py has its laws.


def test_a_record_that_was_not_read_yet_is_waited_for() -> None:
    replaying = Replaying(order_of(Fold(AUDIT, 0, "a"), Fold(PIPECAT, 0, "b")), {PIPECAT: 9, AUDIT: 9})
    assert not replaying.put(said(PIPECAT, 0, "b"))
    assert (replaying.folded, replaying.replay.can_go_on) == ([], False)
    assert (replaying.replay.waits(PIPECAT), replaying.replay.waits(AUDIT)) == (True, False)
    replaying.replay.put(AUDIT, [said(AUDIT, 0, "a")])
    assert replaying.replay.can_go_on
    assert replaying.replay.go_on()
    assert replaying.folded == [("a", 0), ("b", 0)]


@given(st.lists(st.sampled_from([PIPECAT, AUDIT]), max_size=20), st.lists(st.integers(0, 5), max_size=20), st.data())
def test_however_they_are_read_they_are_folded_as_they_were(
    sources: list[InputSource], sizes: list[int], data: st.DataObject
) -> None:
    steps = [
        Fold(source, sources[:place].count(source), None if source in sources[:place] else source.value)
        for place, source in enumerate(sources)
    ]
    replaying = Replaying(order_of(*steps), {source: sources.count(source) for source in (PIPECAT, AUDIT)})
    unread = {
        source: [said(source, n, source.value) for n in range(sources.count(source))] for source in (PIPECAT, AUDIT)
    }
    for size in sizes:
        source = data.draw(st.sampled_from([PIPECAT, AUDIT]))
        taken, unread[source] = unread[source][:size], unread[source][size:]
        replaying.put(*taken)
        if data.draw(st.booleans()):  # a rebalance: reading begins again
            replaying.replay.clear()
            unread = {
                each: [said(each, n, each.value) for n in range(replaying.replay.positions[each], sources.count(each))]
                for each in unread
            }
    assert replaying.put(*(record for records in unread.values() for record in records))
    assert replaying.folded == [(step.source.value, step.offset) for step in steps]


def test_a_long_order_is_taken_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "MAX_STEPS_AT_A_TIME", 3)  # the start is one
    replaying = Replaying(order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1), Fold(PIPECAT, 2)), {PIPECAT: 3})
    assert not replaying.put(*(said(PIPECAT, offset, "a") for offset in range(3)))
    assert (len(replaying.folded), replaying.replay.can_go_on) == (2, True)
    assert replaying.replay.go_on()


def test_what_comes_behind_the_order_is_nobody_s_yet() -> None:
    replaying = Replaying(order_of(Fold(PIPECAT, 0, "a")), {PIPECAT: 3, AUDIT: 1})
    behind = [said(PIPECAT, 1, "a"), said(PIPECAT, 2, "a"), said(AUDIT, 0, "a")]
    assert replaying.put(said(PIPECAT, 0, "a"), *behind)
    assert dict(replaying.replay.rest()) == {PIPECAT: tuple(behind[:2]), AUDIT: tuple(behind[2:])}
    assert (replaying.folded, replaying.replay.positions[PIPECAT]) == ([("a", 0)], 1)


def test_an_input_far_ahead_is_not_read_on() -> None:
    replaying = Replaying(order_of(Fold(AUDIT, 0, "a")), {PIPECAT: 9_999, AUDIT: 1})
    full = []
    for records in (MAX_WAITING_RECORDS, 1):
        replaying.replay.put(PIPECAT, [said(PIPECAT, offset, "a") for offset in range(records)])
        full.append([replaying.replay.is_full(PIPECAT, is_paused=is_paused) for is_paused in (False, True)])
    assert full == [[False, True], [True, True]]
    assert not replaying.replay.is_full(AUDIT, is_paused=True)


def test_time_passes_as_it_did() -> None:
    order = order_of(Fold(PIPECAT, 0, "a"), TimePassed(NOW_MS + 9), Fold(PIPECAT, 1), time_ms=NOW_MS)
    order.owner(time_ms=NOW_MS + 20)  # another start changes nothing: no owner passes time when it begins
    order.write(TimePassed(NOW_MS + 30))
    replaying = Replaying(order, {PIPECAT: 2})
    assert replaying.put(said(PIPECAT, 0, "a"), said(PIPECAT, 1, "a"))
    assert replaying.engine.advanced_to_ms == [NOW_MS, NOW_MS + 9, NOW_MS + 30]
    assert replaying.replay.time_ms == NOW_MS + 30


# Calls that the order closes.


def test_records_of_calls_that_closed_are_skipped_undecoded() -> None:
    order = order_of(
        Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1, "b"), Fold(PIPECAT, 2), Closed("a"), Fold(PIPECAT, 3), Fold(PIPECAT, 4)
    )  # fmt: skip
    replaying = Replaying(order, {PIPECAT: 5})
    assert replaying.put(*(said(PIPECAT, offset, call) for offset, call in enumerate("abaab")))
    assert replaying.decoded == [("pipecat", 1), ("pipecat", 4)]
    assert replaying.folded == [("b", 1), ("b", 4)]
    assert replaying.engine.closed == ["a"], "so that its later records open no other"


def test_what_opened_no_call_is_not_decoded() -> None:
    """A verdict of a call that closed long ago, or a record that was refused."""
    replaying = Replaying(order_of(Fold(PIPECAT, 0)), {PIPECAT: 1})
    assert replaying.put(said(PIPECAT, 0, "a"))
    assert replaying.decoded == []


def test_a_refused_record_of_an_open_call_is_passed_over() -> None:
    replaying = Replaying(order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1)), {PIPECAT: 2})
    assert replaying.put(said(PIPECAT, 0, "a"), said(PIPECAT, 1, "a", value=b"{"))
    assert replaying.folded == [("a", 0)]


def test_what_lies_before_the_first_record_that_is_read_is_of_closed_calls() -> None:
    order = order_of(Fold(PIPECAT, 4, "a"), Fold(PIPECAT, 5, "b"), Closed("a"), positions={PIPECAT: 4})
    replaying = Replaying(order, {PIPECAT: 6}, starts={PIPECAT: 5})
    assert replaying.put(said(PIPECAT, 5, "b"))
    assert (replaying.folded, replaying.replay.lost) == ([("b", 5)], 0)


# Records that the inputs do not have any more.


def test_a_lost_record_is_counted_and_not_waited_for() -> None:
    replaying = Replaying(order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1), Fold(PIPECAT, 2)), {PIPECAT: 3})
    assert not replaying.put(said(PIPECAT, 0, "a"))
    assert replaying.put(said(PIPECAT, 2, "a"))
    assert (replaying.folded, replaying.replay.lost) == ([("a", 0), ("a", 2)], 1)


def test_an_order_that_goes_beyond_the_end_of_an_input_ends() -> None:
    replaying = Replaying(order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1)), {PIPECAT: 1})
    assert replaying.put(said(PIPECAT, 0, "a"))
    assert (replaying.replay.lost, replaying.replay.positions[PIPECAT]) == (1, 2)


def test_a_call_whose_first_record_is_lost_goes_on_from_its_next_and_is_published_anew() -> None:
    order = order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1, "b"), Fold(PIPECAT, 2), Fold(PIPECAT, 3), Closed("c"))
    replaying = Replaying(order, {PIPECAT: 4})
    assert replaying.put(*(said(PIPECAT, offset, call) for offset, call in ((1, "b"), (2, "a"), (3, "c"))))
    assert replaying.engine.again == [("b", 1, OpenCall(None)), ("a", 2, None)]
    assert Renumbered("a", GENERATION, counts=False) in replaying.replay.of_other_versions()


def test_a_call_whose_first_record_was_lost_to_an_earlier_owner_is_folded_as_that_owner_folded_it() -> None:
    """Reading begins at the first record that owner had."""
    order = order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1), Fold(PIPECAT, 2))
    order.owner()
    order.write(Renumbered("a", GENERATION, counts=False), Fold(PIPECAT, 3))
    replaying = Replaying(order, {PIPECAT: 4}, starts={PIPECAT: 2}, firsts={PIPECAT: 2})
    assert replaying.put(said(PIPECAT, 2, "a"), said(PIPECAT, 3, "a"))
    assert replaying.folded == [("a", 2), ("a", 3)]
    assert replaying.engine.renumbered == [Renumbered("a", GENERATION, counts=False)]
    assert (replaying.replay.lost, replaying.replay.of_other_versions()) == (0, [])


def test_a_call_of_which_every_record_is_lost_goes_on_in_a_new_generation_too() -> None:
    order = order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1), Fold(AUDIT, 0, "b"))
    replaying = Replaying(order, {PIPECAT: 3, AUDIT: 1}, firsts={PIPECAT: 2})
    assert replaying.put(said(AUDIT, 0, "b"))
    assert replaying.replay.of_other_versions() == [
        Renumbered("a", GENERATION, counts=False), Renumbered("b", GENERATION, counts=False)
    ]  # fmt: skip
    order.owner()
    order.write(Renumbered("a", GENERATION))
    later = Replaying(order, {PIPECAT: 3, AUDIT: 1}, firsts={PIPECAT: 2})
    assert later.put(said(AUDIT, 0, "b"))
    assert later.engine.renumbered == [Renumbered("a", GENERATION)], (
        "it is not open, and the engine knows it all the same"
    )
    assert later.replay.of_other_versions()[0] == Renumbered("a", 2 * GENERATION, counts=False)


def test_what_was_deleted_before_the_first_record_that_there_is_is_not_waited_for() -> None:
    order = order_of(Fold(PIPECAT, 0, "a"), Fold(PIPECAT, 1), Fold(AUDIT, 0, "b"))
    replaying = Replaying(order, {PIPECAT: 2, AUDIT: 1}, firsts={PIPECAT: 2})
    assert replaying.put(said(AUDIT, 0, "b"))
    assert (replaying.folded, replaying.replay.lost) == ([("b", 0)], 2)


# Goals.


def test_a_call_gets_its_goals_in_the_step_in_which_it_got_them() -> None:
    then, goals = goal_set("As it was."), ChosenGoals()
    order = order_of(
        Fold(PIPECAT, 0, "a"), GoalsChosen("a", "goals", then.digest), Fold(PIPECAT, 1), Fold(PIPECAT, 2),
        GoalsChosen("a", "goals", "of a set that is gone"), TimePassed(NOW_MS),
    )  # fmt: skip
    replaying = Replaying(order, {PIPECAT: 3}, goals=goals, sets={then.digest: then})
    seen: list[Mapping[str, GoalSet] | None] = []
    receive, pass_time = replaying.engine.receive_again, replaying.engine.pass_time

    def receive_again(arrival: Arrival, opening: OpenCall | None) -> Sequence[Effect]:
        seen.append(goals.logged)
        return receive(arrival, opening)

    def passing(now_ms: int) -> Sequence[Effect]:
        seen.append(goals.logged)
        return pass_time(now_ms)

    replaying.engine.receive_again = receive_again  # type: ignore[method-assign]  # it looks, and goes on
    replaying.engine.pass_time = passing  # type: ignore[method-assign]  # as above
    assert replaying.put(*(said(PIPECAT, offset, "a") for offset in range(3)))
    assert seen == [{}, {}, {"a": then}, {}, {}], "the first is the time of the start"


# Other versions.


def by_two_versions() -> WrittenOrder:
    order = order_of(Fold(PIPECAT, 0, "a"), version="1")
    order.owner(version="2")
    order.write(Fold(PIPECAT, 1, "b"))
    return order


def test_calls_that_another_version_published_are_named_with_their_next_generation() -> None:
    for version, named in (("1", ["b"]), ("2", ["a"]), ("3", ["a", "b"])):
        replaying = Replaying(by_two_versions(), {PIPECAT: 2}, version=version)
        assert replaying.put(said(PIPECAT, 0, "a"), said(PIPECAT, 1, "b"))
        assert replaying.replay.of_other_versions() == [Renumbered(call, GENERATION) for call in named]


def test_what_an_owner_published_once_again_is_its_own_from_there_on() -> None:
    order = by_two_versions()
    order.write(Renumbered("a", GENERATION), Renumbered("closes", GENERATION), Closed("closes"))
    replaying = Replaying(order, {PIPECAT: 2}, version="2")
    assert replaying.put(said(PIPECAT, 0, "a"), said(PIPECAT, 1, "b"))
    assert replaying.engine.renumbered == [Renumbered("a", GENERATION)]
    assert replaying.replay.of_other_versions() == []
    order.owner(version="3")
    order.write(Renumbered("a", 2 * GENERATION))
    later = Replaying(order, {PIPECAT: 2}, version="1")
    assert later.put(said(PIPECAT, 0, "a"), said(PIPECAT, 1, "b"))
    assert later.replay.of_other_versions() == [Renumbered("a", 3 * GENERATION), Renumbered("b", GENERATION)]


def test_what_was_folded_to_catch_up_counts_as_published_by_nobody() -> None:
    replaying = Replaying(order_of(Fold(PIPECAT, 0, "a"), version=UNPUBLISHED), {PIPECAT: 1})
    assert replaying.put(said(PIPECAT, 0, "a"))
    assert replaying.replay.of_other_versions() == [Renumbered("a", GENERATION)]


@pytest.mark.parametrize(("version", "kept"), [("1", 0), ("2", 1)])
def test_results_are_kept_only_if_another_version_has_published(version: str, kept: int) -> None:
    order = order_of(Fold(PIPECAT, 0, "a"), GoalsChosen("a", "goals", "1"), version="1")
    replaying = Replaying(order, {PIPECAT: 1}, version=version, effects=[PublishScore(fact("a"))])
    assert replaying.put(said(PIPECAT, 0, "a"))
    assert len(replaying.replay.withheld.of("a", GENERATION)) == kept


# What is withheld.


def turn(number: int, revision: int, **fields: Any) -> TurnValues:
    values = dict(fact("a")) | {"name": "turn", "turn": number, "revision": revision, "is_first": revision == 1}
    return TurnValues.model_construct(**values | {"first_known": ("turn_taking",), **fields})


def test_of_each_subject_the_newest_record_is_published_once_and_counts_nothing_again() -> None:
    withheld = Withheld()
    withheld.take([PublishScore(turn(1, 1)), PublishScore(turn(2, 1)), Count("x", ()), PublishScore(fact("b"))])
    withheld.take([PublishScore(turn(1, 2, input_hash="2")), RequestVerdict(question("a")), PublishScore(fact("a"))])
    again = withheld.of("a", GENERATION)
    assert again == (
        turn(1, GENERATION, input_hash="2", first_known=()),
        turn(2, GENERATION, is_first=False, first_known=()),
        fact("a").model_copy(update={"revision": GENERATION, "is_first": False}),
        question("a"),
    )
    assert withheld.of("a", GENERATION) == ()
    assert len(withheld.of("b", GENERATION)) == 1


def test_questions_are_asked_once_more_and_of_very_many_the_last() -> None:
    withheld = Withheld()
    asked = [question("a").model_copy(update={"turn": number}) for number in range(MAX_KEPT_REQUESTS + 5)]
    withheld.take(RequestVerdict(request) for request in [*asked, asked[-1]])
    assert withheld.of("a", GENERATION) == tuple(asked[5:])
