"""A watched call is at each moment what was known then: the fold of the events, and the newest of the scores, up to it."""

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.console import watched as module
from consumers.console.page.calls import Said
from consumers.console.watched import WatchedCall, past_call
from consumers.engine.admission import Arrival
from consumers.engine.evaluator import NO_LIMITS, folded
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.turns.heard import Purpose, answers_of
from schemas.closed_sets import InputSource, PipelineType
from schemas.scores.live_view import is_withdrawn
from schemas.scores.records import AnyScoreRecord
from schemas.transcript import TranscriptTurn
from tests.support.calls.log_records import PlacedRecords, logged
from tests.support.calls.watched_calls import Input, inputs_of, scores_of, watched
from tests.support.calls.wire_calls import arrivals_of, in_random_order, in_time_order, wire_calls
from tests.support.conformance_data import conformance, needs_conformance

CALLS = 12
"""Of each file; a call has up to some hundred events, and each moment is a fold."""
FILES = ("calls.jsonl.gz", "hostile_calls.jsonl.gz")

pytestmark = needs_conformance("calls.jsonl.gz")


@functools.cache
def calls(name: str, most: int = CALLS) -> list[tuple[dict[str, Any], list[Arrival]]]:
    return [
        (call, arrivals_of(call, in_time_order(call)))
        for call in islice(wire_calls(conformance(name)), most)
        if call["pipeline_type"] == PipelineType.CASCADE.value
    ]


@functools.cache
def scores(name: str, number: int) -> list[AnyScoreRecord]:
    return scores_of(calls(name)[number][1])


def by_hand(records: Sequence[AnyScoreRecord], at_ms: int) -> set[str]:
    """The newest revision of each subject that was caused by then and has a value."""
    found: dict[tuple[object, ...], AnyScoreRecord] = {}
    for record in (each for each in records if each.caused_at_ms <= at_ms):
        subject = (record.name, record.turn, record.index)
        if subject not in found or found[subject].revision <= record.revision:
            found[subject] = record
    return {record.model_dump_json() for record in found.values() if not is_withdrawn(record)}


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_moment_is_the_fold_of_what_was_known_then(name: str, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(calls(name)) - 1))
    call, arrivals = calls(name)[number]
    inputs, published = inputs_of(arrivals), scores(name, number)
    whole = watched(str(call["id"]), inputs, published)
    assert whole.left_out == 0
    times_ms = sorted({each.broker_time_ms for each in arrivals} | {each.caused_at_ms for each in published})
    at_ms = data.draw(st.sampled_from([times_ms[0] - 1, *times_ms])) + data.draw(st.integers(0, 1))
    then = watched(str(call["id"]), [each for each in inputs if each[1].timestamp <= at_ms])
    assert whole.context(at_ms) == then.context()
    assert {record.model_dump_json() for record in whole.newest(at_ms)} == by_hand(published, at_ms)
    assert whole.transcript(at_ms) == then.transcript()
    assert whole.context(times_ms[-1]) == whole.context()
    assert (whole.first_ms, whole.last_ms) == (times_ms[0], times_ms[-1])


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_the_order_in_which_the_inputs_are_read_says_nothing(name: str, data: st.DataObject) -> None:
    call, arrivals = data.draw(st.sampled_from(calls(name)))
    inputs = inputs_of(arrivals)
    other = interleaved(inputs, data.draw(st.integers(0, 2**32)))
    at_ms = data.draw(st.sampled_from([each.timestamp for _, each in inputs]))
    one, another = watched(str(call["id"]), inputs), watched(str(call["id"]), other)
    assert one.context() == another.context()
    assert one.context(at_ms) == another.context(at_ms)


def interleaved(inputs: Sequence[Input], seed: int) -> list[Input]:
    """The same records in another order, those of each input in their own."""
    queues = {source: [each for each in inputs if each[0] is source] for source, _ in inputs}
    order = [source for source, _ in inputs]
    Random(seed).shuffle(order)  # noqa: S311  # a reproducible order, nothing secret
    return [queues[source].pop(0) for source in order]


def test_what_the_evaluator_refuses_is_counted_and_changes_nothing() -> None:
    call, arrivals = calls("calls.jsonl.gz")[0]
    (source, good), *_ = inputs = inputs_of(arrivals)
    whole = watched(str(call["id"]), inputs)
    known = whole.context()
    for number, bad in enumerate((b"", b"[" * 50_000, b"\xff", None, b"x" * 10_000_000)):
        record = replace(good, offset=1_000 + number, value=bad)  # type: ignore[arg-type]  # as a tombstone has
        (placed,) = logged([(source, record)])
        whole.take_event(placed)
    whole.take_event(good)  # no record of the log
    whole.take_score(b"{}")
    whole.take_score(b"\xff")
    assert whole.left_out == 8
    assert whole.context() == known


def test_repeats_verdicts_and_what_is_void_in_the_log_change_nothing() -> None:
    call, arrivals = calls("calls.jsonl.gz")[0]
    inputs = inputs_of(arrivals)
    once = watched(str(call["id"]), inputs)
    half = len(inputs) // 2
    log = PlacedRecords(term=1)
    for source, record in inputs[:half]:
        log.event(source, record)
    log.term, known = 2, dict(log.positions)
    log.tick(0, {})  # the successor found a tick from before all of them, and appends them again
    for source, record in inputs[:half]:
        log.event(source, record)
    log.positions = known
    log.term = 1
    log.event(*inputs[half])  # the one before it still writes
    log.term = 2
    for source, record in inputs[half:]:
        log.event(source, record)
    log.event(InputSource.JUDGE, replace(inputs[0][1], offset=0))
    again = WatchedCall(str(call["id"]), NO_LIMITS, Redactor())
    for record in log.records:
        again.take_event(record)
    assert again.context() == once.context()
    assert (again.events, again.left_out) == (once.events, once.left_out) == (len(inputs), 0)


def test_records_kept_of_a_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 3)
    monkeypatch.setattr(module, "MAX_SCORES", 2)
    call, arrivals = calls("calls.jsonl.gz")[0]
    published = scores("calls.jsonl.gz", 0)
    whole = watched(str(call["id"]), inputs_of(arrivals), published)
    assert len(whole.scores) == 2
    assert whole.left_out == len(arrivals) - 3 + len(published) - 2


def test_records_that_nobody_looks_at_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NEW", 4)
    call, arrivals = calls("calls.jsonl.gz")[0]
    whole = watched(str(call["id"]), inputs_of(arrivals))
    assert whole.left_out == len(arrivals) - 4


def test_a_call_is_the_same_whether_it_is_looked_at_in_between_or_by_another_thread() -> None:
    """A thread looks again and again while the call grows; nothing that it sees is torn, and at the end nothing is missing."""
    call, arrivals = max(calls("calls.jsonl.gz"), key=lambda each: len(each[1]))
    published = scores("calls.jsonl.gz", calls("calls.jsonl.gz").index((call, arrivals)))
    growing, is_over, looks = WatchedCall(str(call["id"]), NO_LIMITS, Redactor()), threading.Event(), list[int]()

    def look() -> None:
        while not is_over.is_set():
            looks.append(len(growing.reported().records))
            growing.transcript()

    with ThreadPoolExecutor(2) as threads:
        lookers = [threads.submit(look) for _ in range(2)]
        for record in logged(inputs_of(arrivals)):
            growing.take_event(record)
        for score in published:
            growing.take_score(score.model_dump_json().encode())
        is_over.set()
        for each in lookers:
            each.result()
    whole = watched(str(call["id"]), inputs_of(arrivals), published)
    assert (growing.context(), growing.transcript()) == (whole.context(), whole.transcript())
    assert growing.newest() == whole.newest()
    assert looks


def test_a_call_without_records_has_no_times() -> None:
    empty = watched("c", [])
    assert (empty.first_ms, empty.last_ms, empty.closed) == (None, None, None)
    assert empty.context(0) is empty.context() is None
    assert empty.transcript() == []


def test_an_end_is_known_once_it_is_read() -> None:
    call, arrivals = calls("calls.jsonl.gz")[0]
    published = scores("calls.jsonl.gz", 0)
    assert watched(str(call["id"]), inputs_of(arrivals), published[:-1]).closed is None
    assert watched(str(call["id"]), inputs_of(arrivals), published).closed == published[-1]


def test_limits_are_those_of_the_evaluator() -> None:
    call, arrivals = calls("calls.jsonl.gz")[0]
    inputs = inputs_of(arrivals)
    assert watched(str(call["id"]), inputs, limits=NO_LIMITS).left_out == 0
    assert watched(str(call["id"]), inputs, limits=Limits(max_record_bytes=1_000)).left_out == sum(
        len(record.value) > 1_000 for _, record in inputs
    )


def test_without_words_nothing_that_was_said_is_reported() -> None:
    call, arrivals = calls("calls.jsonl.gz")[0]
    whole = watched(str(call["id"]), inputs_of(arrivals), scores("calls.jsonl.gz", 0))
    assert any(said.text for turn in whole.reported().heard.turns for said in turn.items if hasattr(said, "text"))
    assert whole.reported(words=False).heard.turns == ()


def test_the_words_of_a_past_call_are_in_their_turns() -> None:
    """Its transcript has no numbers of turns: a greeting that the user answers at once, or a turn without words, shifts a count."""
    for call, arrivals in calls("calls.jsonl.gz", 120):
        published = scores_of(arrivals)
        whole = watched(str(call["id"]), inputs_of(arrivals), published)
        past = past_call(str(call["id"]), published, Redactor(), whole.transcript())
        shown = {(turn.turn, said.text) for turn in past.heard.turns for said in turn.items if isinstance(said, Said)}
        heard = folded(arrivals, PipelineType.CASCADE, None).live.heard()
        turns = heard.turns(sorted(heard.numbers()))
        answers = answers_of(turns)
        texts = {
            (number, text)
            for number, turn in turns.items()
            for text in (turn.user.said(Purpose.SPOKEN), answers[number])
        }
        assert shown == {(number, Redactor().redact(text)) for number, text in texts if text}
        assert past.closed == whole.closed
    assert past_call("c", published, Redactor(), None).heard.turns == ()


def test_a_turn_of_an_agents_record_begins_where_the_user_speaks_after_the_agent() -> None:
    """It has several texts of one side in a turn, so the rows of the turns cannot say which is whose."""
    said = [("agent", "hi"), ("user", "a"), ("user", "b"), ("agent", "c"), ("agent", "d"), ("user", "e")]
    entries = [TranscriptTurn(role=role, message=text, time_in_call_secs=1) for role, text in said]
    turns = past_call("c", (), Redactor(), entries).heard.turns
    assert [(turn.turn, len(turn.items)) for turn in turns] == [(0, 1), (1, 4), (2, 1)]


def test_in_random_order_is_another_order() -> None:
    call, arrivals = calls("calls.jsonl.gz")[0]
    assert in_random_order(call, 1) != in_time_order(call)
    assert interleaved(inputs_of(arrivals), 1) != inputs_of(arrivals)
