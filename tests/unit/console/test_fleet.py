"""The fleet: where each call begins, and moving figures, both bounded."""

from itertools import islice
from typing import Any

import pytest

from consumers.console import fleet as module
from consumers.console.fleet import STEP_MS, STEPS, Fleet, Place, Step
from schemas.scores.live_view import SHOWN_RECORD, CallFold
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, CallLabels
from tests.support.calls.watched_calls import scores_of
from tests.support.calls.wire_calls import arrivals_of, in_time_order, wire_calls
from tests.support.conformance_data import conformance, needs_conformance
from tests.unit.exporter.test_projection import CAUSED_AT_MS, latency
from tests.unit.schemas.test_live_view import judged, started

NOW_MS = CAUSED_AT_MS - CAUSED_AT_MS % STEP_MS


def begun(name: str, **more: Any) -> AnyScoreRecord:
    return started(conversation_id=name, **more)


def test_a_call_begins_at_its_first_record() -> None:
    fleet = Fleet()
    fleet.fold(begun("a", offsets={"audit.events": 3}), 2, 7)
    fleet.fold(begun("a", revision=2, offsets={"audit.events": 9}), 2, 8)
    assert fleet.place("a") == Place(2, 7)
    assert fleet.place("b") is None


def test_places_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 3)
    fleet = Fleet()
    for number in range(5):
        fleet.fold(begun(str(number)), 0, number)
    assert [fleet.place(str(number)) is not None for number in range(5)] == [False, False, True, True, True]


def test_a_flood_of_one_tenant_leaves_the_places_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 20)
    fleet = Fleet()
    for number in range(5):
        fleet.fold(begun(f"few-{number}", labels=CallLabels(tenant="acme")), 0, number)
    for number in range(100):
        fleet.fold(begun(f"many-{number}", labels=CallLabels(tenant="globex")), 0, number)
    assert all(fleet.place(f"few-{number}") == Place(0, number) for number in range(5))
    assert sum(fleet.place(f"many-{number}") is not None for number in range(100)) == 15


def test_steps_end_with_their_time_and_are_bounded() -> None:
    fleet = Fleet()
    fleet.fold(begun("a"), 0, 0)
    for number in range(STEPS + 5):
        fleet.now(NOW_MS + number * STEP_MS)
        fleet.now(NOW_MS + number * STEP_MS + STEP_MS - 1)
    assert len(fleet.steps) == STEPS
    assert [step.end_ms for step in fleet.steps][-2:] == [
        NOW_MS + (STEPS + 3) * STEP_MS,
        NOW_MS + (STEPS + 4) * STEP_MS,
    ]
    assert {step.running for step in fleet.steps} == {1}
    assert {step.progress for step in fleet.steps} == {None}


def test_a_latency_counts_once_and_where_it_became_known() -> None:
    fleet = Fleet()
    fleet.now(NOW_MS)
    for number, value in enumerate((100.0, 200.0, 300.0)):
        fleet.fold(latency(value, turn=number), 0, number)
    fleet.fold(latency(900.0, turn=0, revision=2, is_first=False), 0, 9)
    assert fleet.latencies().percentile_ms(50) == 200.0
    fleet.now(NOW_MS + STEP_MS)
    assert fleet.steps[-1].latencies_ms == [100.0, 200.0, 300.0]
    assert fleet.steps[-1].percentile_ms(95) == 300.0
    fleet.now(NOW_MS + 2 * STEP_MS)
    assert fleet.steps[-1].percentile_ms(95) is None
    assert fleet.latencies(1).percentile_ms(95) is None
    assert fleet.latencies(2).percentile_ms(95) == 300.0


def test_latencies_of_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS", 2)
    fleet = Fleet()
    fleet.now(NOW_MS)
    for number in range(5):
        fleet.fold(latency(1.0, turn=number), 0, number)
    fleet.now(NOW_MS + STEP_MS)
    assert fleet.steps[-1].latencies_ms == [1.0, 1.0]


def test_progress_is_the_mean_of_running_calls_with_goals() -> None:
    fleet = Fleet()
    fleet.fold(judged(1, 1), 0, 0)
    fleet.fold(begun("without goals"), 0, 1)
    fleet.now(NOW_MS)
    assert fleet.steps[-1].progress == pytest.approx(1 / 3)
    assert fleet.steps[-1].running == 2


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 2.0), (51, 3.0), (95, 4.0), (100, 4.0)])
def test_a_percentile_is_an_answer_that_was_given(percent: int, expected: float) -> None:
    assert Step(0, [1.0, 2.0, 3.0, 4.0]).percentile_ms(percent) == expected


def test_no_answer_has_no_percentile() -> None:
    assert Step(0).percentile_ms(95) is None
    assert Fleet().latencies().percentile_ms(50) is None


@needs_conformance("calls.jsonl.gz")
def test_what_is_read_of_a_record_is_all_that_the_fold_needs() -> None:
    kinds = set[str]()
    for call in islice(wire_calls(conformance("calls.jsonl.gz")), 12):
        scores = scores_of(arrivals_of(call, in_time_order(call)))
        whole, shown = CallFold(scores[0]), CallFold(scores[0])
        for record in scores[1:]:
            whole.fold(record)
            shown.fold(SHOWN_RECORD.validate_json(record.model_dump_json()))
            assert shown.view() == whole.view()
            kinds.add(record.name)
    assert {"turn", "call", "dead_air", "tool_call", "closed"} <= kinds


def test_every_kind_of_record_is_read() -> None:
    read, written = (each.json_schema()["discriminator"]["mapping"].keys() for each in (SHOWN_RECORD, SCORE_RECORD))
    assert read == written
