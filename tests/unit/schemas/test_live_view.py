"""The live view of a call: one fold of its score records, in any order."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.closed_sets import Anchor, CloseReason, ToolOutcome, UnscoredReason
from schemas.scores import live_view
from schemas.scores.live_view import (
    CallFold,
    CallGoals,
    CallView,
    GoalsReached,
    MeasuredLatency,
    is_withdrawn,
    newest_scores,
)
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    NotApplicable,
    Scored,
    StallFact,
    ToolUseFact,
    TurnValues,
    Unscored,
)
from tests.unit.exporter.test_projection import CAUSED_AT_MS, FIRST, AnyRecord, goals, latency, progress, row, subgoal

MISSING = Unscored(reason=UnscoredReason.JUDGE_DISABLED)
WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)


def goals_after(*records: AnyScoreRecord) -> CallGoals:
    known = CallGoals()
    for record in records:
        known = known.after(record)
    return known


def view_of(first: AnyScoreRecord, *others: AnyScoreRecord) -> CallView:
    fold = CallFold(first)
    for record in others:
        fold.fold(record)
    return fold.view()


def looked_at(first: AnyScoreRecord, *others: AnyScoreRecord) -> CallView:
    """The view, seen after each record."""
    fold = CallFold(first)
    for record in others:
        before, is_news, after = fold.view(), fold.fold(record), fold.view()
        assert is_news or after == before._replace(first_seen_ms=after.first_seen_ms, changed_ms=after.changed_ms)
    return fold.view()


def judged(turn: int, reached: int, **fields: Any) -> AnyScoreRecord:
    return progress(Scored(value=round(reached / 3, 4)), turn=turn, reached=reached, subgoals=3, **fields)


def unjudged(turn: int, **fields: Any) -> AnyScoreRecord:
    """The turn is none any more."""
    return progress(WITHDRAWN, turn=turn, reached=0, subgoals=3, **fields)


def started(**fields: Any) -> AnyScoreRecord:
    return CallStartedFact(**FIRST | fields)


def interruption(turn: int, by: str = "user", **fields: Any) -> AnyScoreRecord:
    return InterruptionFact(**FIRST | {"turn": turn, "name": f"interruption_by_{by}"} | fields)


def dead_air(turn: int, index: int) -> AnyScoreRecord:
    return DeadAirFact(**FIRST | {"turn": turn, "index": index}, silent_since_ms=0, threshold_ms=3_000)


def tool(turn: int, index: int = 0, **fields: Any) -> AnyScoreRecord:
    used = {"turn": turn, "index": index, "tool": "find", "outcome": ToolOutcome.SUCCESS, "duration_ms": 5}
    return ToolUseFact(**FIRST | used | fields)


def stall(since_turn: int, index: int = 0) -> AnyScoreRecord:
    return StallFact(**FIRST | {"index": index}, since_turn=since_turn, by="turns")


def closed(**fields: Any) -> ClosedFact:
    return ClosedFact(**AnyRecord | fields, reason=CloseReason.ENDED, ended_reason=None, turns=3, events=9, through={})


@pytest.mark.parametrize(
    ("records", "subgoals", "reached", "share"),
    [
        ([], 0, 0, None),
        ([stall(0)], 0, 0, None),
        ([goals()], 3, 0, None),
        ([goals(), goals()], 3, 0, None),
        ([goals(), judged(1, 1)], 3, 1, 0.3333),
        ([judged(7, 2)], 3, 2, 0.6667),
        ([judged(1, 1), judged(2, 2)], 3, 2, 0.6667),
        ([judged(2, 3), goals()], 3, 3, 1.0),
        ([judged(2, 2), judged(2, 1)], 3, 1, 0.3333),
        ([judged(2, 2, revision=3), judged(2, 1, revision=2)], 3, 2, 0.6667),
        ([judged(2, 2), judged(1, 1)], 3, 2, 0.6667),
        ([judged(1, 0), progress(MISSING, turn=2, reached=1, subgoals=3)], 3, 1, None),
        ([judged(1, 1), unjudged(1)], 3, 0, None),
        ([judged(1, 1), judged(2, 2), unjudged(2)], 3, 1, 0.3333),
        ([judged(2, 1), unjudged(1)], 3, 1, 0.3333),
        ([judged(1, 1), unjudged(2, revision=2), judged(2, 2)], 3, 1, 0.3333),
        ([unjudged(1)], 0, 0, None),
    ],
    ids=[
        "of no record nothing is known",
        "nor of one without progress",
        "goals alone: nothing is reached yet",
        "goals that come again change nothing",
        "the first judged turn",
        "a call that was under way before",
        "the next turn replaces it",
        "goals that come late change nothing",
        "the turn judged again replaces it",
        "an outdated revision of it does not",
        "an older turn judged again stays the older one",
        "a missing verdict makes it unknown",
        "so does a turn that is withdrawn, if it was the only one",
        "otherwise the one before it counts again",
        "a withdrawn turn that was not the newest changes nothing",
        "nor does what was said of it before",
        "what nobody has seen cannot be withdrawn",
    ],
)
def test_the_newest_judged_turn_is_the_progress_of_a_call(
    records: list[AnyScoreRecord], subgoals: int, reached: int, share: float | None
) -> None:
    known = goals_after(*records)
    assert (known.subgoals, known.reached, known.progress) == (subgoals, reached, share)


def test_turns_that_are_withdrawn_give_way_to_the_one_before_them() -> None:
    """Nothing is published again of that one."""
    records = [judged(turn, reached) for turn, reached in ((1, 0), (2, 1), (3, 2), (4, 3), (5, 3))]
    known = goals_after(*records, unjudged(4), unjudged(5))
    assert (known.reached, known.progress) == (2, 0.6667)


def test_judged_turns_kept_of_a_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "MAX_JUDGED_TURNS", 2)
    known = goals_after(*(judged(turn, turn // 3) for turn in range(1, 9)))
    assert [each.turn for each in known.judged] == [7, 8]
    assert (known.had_reached(0), known.had_reached(1), known.had_reached(7), known.had_reached(8)) == (0, 2, 2, 2)


def test_a_view_shows_all_that_its_records_have() -> None:
    end = closed(caused_at_ms=CAUSED_AT_MS + 9_000)
    assert view_of(
        started(), latency(900, turn=1), row(turn=1), tool(1), interruption(2), interruption(2, "assistant"), dead_air(2, 0),
        latency(-40, turn=2), goals(), judged(1, 1), judged(2, 2), stall(2), end,
    ) == CallView(
        conversation_id="c-1",
        labels=CallLabels(agent="ava", tenant="acme", environment="live", pipeline_type="s2s"),
        first_seen_ms=CAUSED_AT_MS,
        changed_ms=CAUSED_AT_MS + 9_000,
        turn=2,
        latency=MeasuredLatency(2, -40, Anchor.VAD),
        user_interruptions=1,
        assistant_interruptions=1,
        dead_airs=1,
        tool_calls=1,
        goals=GoalsReached(2, 0, 3),
        is_stalled=False,
        closed=end,
        interrupted_turns=(2, 2),
        dead_air_turns=(2,),
        is_over=True,
    )  # fmt: skip


def test_the_labels_are_those_of_the_newest_start() -> None:
    ava, bob = {"labels": CallLabels(agent="ava")}, {"labels": CallLabels(agent="bob")}
    assert view_of(row(base=AnyRecord | ava)).agent == "ava"
    assert view_of(started(**ava), started(**bob, revision=2), row(base=AnyRecord | ava)).agent == "bob"
    assert view_of(started(**bob, revision=2), started(**ava)).agent == "bob"
    assert view_of(row(base=AnyRecord | bob | {"caused_at_ms": 9}), row(turn=3, base=AnyRecord | ava)).agent == "ava"


def test_a_call_is_stalled_until_it_reaches_more_or_ends() -> None:
    stuck = [judged(1, 1), judged(5, 1), stall(1)]
    assert [view_of(started(), *records).is_stalled for records in (
        stuck[:-1], stuck, [*stuck, judged(6, 1)], [*stuck, judged(6, 2)], [*stuck, judged(6, 2), stall(6, 1)],
        [*stuck, closed()], [stall(0)], [stall(0), judged(4, 1)],
    )] == [False, True, True, False, True, False, True, False]  # fmt: skip


def test_subjects_kept_of_a_call_are_bounded_and_the_oldest_turns_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "MAX_SUBJECTS", 3)
    view = view_of(*(interruption(turn) for turn in (5, 1, 4, 2, 3)), interruption(1))
    assert (view.turn, view.user_interruptions) == (5, 3)


REVISED: tuple[tuple[AnyScoreRecord, ...], ...] = (
    tuple(started(revision=revision, labels=CallLabels(agent=f"agent-{revision}")) for revision in (1, 2)),
    tuple(latency(value, turn=1, revision=revision) for revision, value in enumerate((900, 700, None), 1)),
    tuple(latency(value, turn=2, revision=revision) for revision, value in enumerate((None, 800, -50), 1)),
    tuple(interruption(3, is_withdrawn=is_gone, revision=revision) for revision, is_gone in enumerate((False, True), 1)),
    tuple(interruption(1, "assistant", is_withdrawn=not at % 2, revision=at) for at in (1, 2, 3)),
    tuple(tool(2, index) for index in (0, 1)),
    tuple(tool(3, 0, outcome=how, revision=at) for at, how in enumerate((ToolOutcome.ERROR, ToolOutcome.SUCCESS), 1)),
    (tool(5, 0, outcome=ToolOutcome.ERROR), tool(5, 1, outcome=ToolOutcome.ERROR)),
    tuple(CallValues(**FIRST | {"revision": at}, through_turn=1, is_over=at > 1) for at in (1, 2)),
    (dead_air(1, 0), dead_air(2, 1)),
    tuple(row(turn=4, is_withdrawn=is_gone, revision=revision) for revision, is_gone in enumerate((False, True), 1)),
    (goals(), judged(1, 1), judged(1, 0, revision=2), judged(2, 1), judged(3, 3), unjudged(3, revision=2)),
    (stall(0), stall(2, 1)),
    (closed(),),
)  # fmt: skip


@settings(max_examples=200)
@given(st.data())
def test_any_order_of_records_with_repeats_gives_the_same_view(data: st.DataObject) -> None:
    records = [record for subject in REVISED for record in subject]
    some = data.draw(st.lists(st.sampled_from(records), min_size=1, max_size=40, unique_by=lambda each: each.record_id))
    moved = data.draw(st.permutations([*some, *data.draw(st.lists(st.sampled_from(some), max_size=10))]))
    bound = data.draw(st.sampled_from((2, 4, 5_000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_view, "MAX_SUBJECTS", bound)
        patch.setattr(live_view, "MAX_JUDGED_TURNS", min(bound, 20))
        assert looked_at(*moved) == view_of(*moved) == view_of(*some)


def test_a_record_that_shows_nothing_else_is_no_news() -> None:
    fold = CallFold(row(turn=1))
    assert fold.fold(latency(900, turn=1))
    assert not fold.fold(latency(900, turn=1))
    assert not fold.fold(row(turn=1, revision=2, caused_at_ms=CAUSED_AT_MS + 9))
    assert fold.view().changed_ms == CAUSED_AT_MS + 9
    assert fold.fold(latency(901, turn=1, revision=2))


@pytest.mark.parametrize("kind", get_args(AnyScoreRecord), ids=lambda kind: kind.__name__)
def test_every_kind_of_record_can_say_that_it_is_withdrawn(kind: type[AnyScoreRecord]) -> None:
    withdrawn: dict[str, Any] = {"is_withdrawn": True, "result": WITHDRAWN}
    fields = {name: value for name, value in withdrawn.items() if name in kind.model_fields}
    assert is_withdrawn(kind.model_construct(**fields)) == bool(fields)


def revisions(*records: AnyScoreRecord) -> list[tuple[str, int | None, int]]:
    return [(record.name, record.turn, record.revision) for record in newest_scores(records).values()]


def test_a_higher_revision_replaces_a_lower_and_has_its_place() -> None:
    first, second = row(turn=1), row(turn=2)
    assert revisions(first, second, row(turn=1, revision=2)) == [("turn", 2, 1), ("turn", 1, 2)]
    assert revisions(row(turn=1, revision=2), first) == [("turn", 1, 2)]


def test_subjects_are_told_apart_by_name_turn_and_index() -> None:
    records: list[AnyScoreRecord] = [
        row(turn=1),
        latency(900, turn=1),
        latency(900, turn=2),
        latency(900, turn=2, index=1),
    ]
    assert len(newest_scores(records)) == 4


def test_what_was_taken_back_is_not_there_and_may_come_again() -> None:
    gone = row(revision=2, is_withdrawn=True)
    assert revisions(row(), gone) == []
    assert revisions(row(), gone, row(revision=3)) == [("turn", 2, 3)]


@pytest.mark.parametrize(
    ("record", "is_gone"),
    [
        (latency(900), False),
        (latency(-30), False),
        (latency(None), True),
        (latency(None, result=WITHDRAWN), True),
        (row(), False),
        (row(is_withdrawn=True), True),
        (row(voice_to_voice_ms=WITHDRAWN), False),
        (progress(Scored(value=0)), False),
        (progress(Unscored(reason=UnscoredReason.DEADLINE)), False),
        (progress(WITHDRAWN), True),
        (subgoal(Scored(value=0)), False),
        (subgoal(WITHDRAWN), True),
        (subgoal(NotApplicable(reason="none")), False),
    ],
)
def test_a_record_takes_back_what_was_there_or_says_something(record: AnyScoreRecord, *, is_gone: bool) -> None:
    assert is_withdrawn(record) is is_gone


def test_a_row_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    fields: dict[str, Any] = row(base=AnyRecord).model_dump(mode="json") | {"patience": {"result": None}}
    assert TurnValues.model_validate(fields) == row(base=AnyRecord)
