"""A call that still goes on is drawn as far as it is known: every prefix of a call is a page, with the same places for its parts."""

import functools
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.console.page.calls import HeardCall, ReportedCall, Stretch, heard_in
from consumers.console.page.sections import section, tiles
from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Effect, PublishScore
from consumers.engine.evaluator import PartitionEvaluator, folded
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import PipelineType, Speaker
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, DeadAirFact, Scored
from streamer.offline.contexts import arrivals_of as arrivals_of_recording
from streamer.sources.replay import in_time_order, with_control_events
from tests.properties.evaluation import EveryCall, end_of
from tests.support.calls.report_calls import T0_MS, Marks, recorded
from tests.support.calls.wire_calls import arrivals_of, in_random_order, wire_calls
from tests.support.conformance_data import conformance
from tests.unit.console.test_page import Shape, words
from tests.unit.console.test_why import common

PARTS = {"call", "call-head", "call-figures", "call-standouts"} | {
    f"call-{name}" for name in ("timeline", "wait", "progress", "scores", "transcript")
}
CALLS_OF_A_FILE = 60


def published(effects: Iterable[Effect]) -> list[AnyScoreRecord]:
    records: list[AnyScoreRecord] = []
    for effect in effects:
        match effect:
            case PublishScore(record):
                records.append(record)
            case CloseCall(records=last):
                records += last
    return records


def live(arrivals: Sequence[Arrival], end_ms: int | None = None) -> ReportedCall:
    """The call as a page shows it after these records; every judged question of it is pending."""
    evaluator = PartitionEvaluator(Limits(), "test", ChosenGoals(EveryCall(), GoalRules(asks_judge=True)))
    records: list[AnyScoreRecord] = []
    for arrival in arrivals:
        records += published(evaluator.advance(arrival.broker_time_ms))
        records += published(evaluator.receive(arrival))
    while end_ms is not None:
        records += published(evaluator.advance(end_ms))
        end_ms = evaluator.next_wakeup()
    heard = heard_in(
        folded(arrivals, PipelineType.CASCADE, None),
        [each.event.timestamp for each in arrivals if each.event.timestamp is not None],
    )
    return ReportedCall("c", heard, list(newest_scores(records).values()), "call", Marks("\x00"), records)


@functools.cache
def ours(turns: int = 4) -> list[Arrival]:
    call = with_control_events(recorded("hello", turns=turns))
    return [each for each in arrivals_of_recording("c", in_time_order(call), []) if each is not None]


@functools.cache
def of_file(name: str) -> list[list[Arrival]]:
    calls = islice(wire_calls(conformance(name)), CALLS_OF_A_FILE)
    return [arrivals_of(call, in_random_order(call, number)) for number, call in enumerate(calls)]


def check(call: ReportedCall) -> None:
    shape = Shape(section(call, has_index=False))
    assert {name: count for name, count in shape.ids.items() if count > 1} == {}
    assert PARTS - shape.ids.keys() == set()
    assert [link for link in shape.links if link[1:] not in shape.ids] == []


def test_every_prefix_of_a_call_is_a_page() -> None:
    arrivals = ours()
    for count in range(len(arrivals) + 1):
        check(live(arrivals[:count]))


@pytest.mark.parametrize(
    "name", ["calls.jsonl.gz", "cut_calls.jsonl.gz", "hostile_calls.jsonl.gz", "eva_histories.jsonl.gz"]
)
@given(data=st.data())
def test_every_prefix_of_any_call_is_a_page(name: str, data: Any) -> None:
    arrivals = data.draw(st.sampled_from(of_file(name)))
    check(live(arrivals[: data.draw(st.integers(0, len(arrivals)))]))


def test_a_call_with_no_turn_yet_says_what_is_not_known() -> None:
    call = live(ours()[:1])
    text = words(section(call, has_index=False))
    assert "Ended not yet Length 0 s so far" in text
    assert "Nothing in this call so far says who spoke when" in text
    assert "No turn of this call has an answer whose wait could be measured so far." in text
    assert "There are no words to show so far." in text


def heard(*stretches: Stretch) -> ReportedCall:
    return ReportedCall("c", HeardCall(0.0, 9_000.0, stretches, (), ()), [], "call", Marks("\x00"))


def test_speech_of_which_no_end_is_known_goes_on_while_the_call_is_open() -> None:
    answer, caller = Stretch(Speaker.ASSISTANT, 1, 2_000, 2_000), Stretch(Speaker.USER, 2, 5_000, 5_000)
    call = heard(answer, caller)
    assert call.heard.stretches == (answer._replace(end_ms=9_000), caller._replace(end_ms=9_000))
    assert [(each.start_ms, each.end_ms) for each in call.overlaps] == [(5_000, 9_000)]
    assert call.heard.has_ends


def test_an_end_that_was_lost_ends_with_the_next_speech_of_that_side() -> None:
    lost, next_one = Stretch(Speaker.USER, 1, 1_000, 1_000), Stretch(Speaker.USER, 2, 5_000, 6_000)
    assert heard(lost, next_one).heard.stretches == (lost, next_one)


def test_speech_goes_on_no_more_once_the_call_is_closed() -> None:
    arrivals = ours(1)
    begun = [each for each in arrivals if "audio_end" not in str(each.event)]
    call = live(begun, end_of(begun))
    assert call.closed is not None
    assert not call.heard.has_ends
    assert "of some speech only the beginning is known" in words(section(call, has_index=False)).lower()


def test_dead_air_so_far_is_as_drawn() -> None:
    """The measured value of a running call is older than the silence."""
    waits = Stretch(Speaker.USER, 1, 1_000, 2_000)
    assert heard(waits).dead_air_times == 0
    assert heard().dead_air_times is None
    whole = live(ours(), end_of(ours())).whole
    assert whole is not None
    assert whole.speech is not None
    older = whole.model_copy(update={"speech": whole.speech.model_copy(update={"dead_air_ms": Scored(value=0)})})
    fact = DeadAirFact(**common(turn=1, silent_since_ms=2_000, threshold_ms=3_000))
    call = ReportedCall("c", heard(waits).heard, [older, fact], "call", Marks("\x00"))
    assert (call.dead_air_times, call.dead_air_ms) == (1, 7_000)
    shown = words(section(heard(Stretch(Speaker.USER, 1, 9_000, 9_000)), has_index=False))
    assert "only the beginning is known" not in shown


def test_a_pending_question_is_shown_as_pending() -> None:
    arrivals = ours()
    judged_by = [arrival for arrival in arrivals if arrival.event.timestamp < T0_MS + 16_000]
    call = live(judged_by)
    assert call.unjudged_turns
    text = words(section(call, has_index=False))
    assert "Pending " in text
    assert "a judge is asked" in text
    assert "the verdict is pending." in text
    (progress,) = [each for each in tiles(call) if each.name == "Progress"]
    assert progress.more is not None
    assert progress.more.endswith("a verdict is pending")
    assert progress.judged is None
    closed = live(arrivals, end_of(arrivals))
    assert closed.unjudged_turns == []
    assert "the verdict is pending" not in words(section(closed, has_index=False))


def test_a_turn_says_how_far_it_can_still_change() -> None:
    text = section(live(ours()[:-1]), has_index=False)
    shown = words(text[text.index('id="call-transcript"') :])
    assert "open" in shown
    assert "provisional" in shown or "settled" in shown
