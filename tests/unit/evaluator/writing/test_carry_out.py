"""Effects are carried out: records to write, counts, and what the order must know of a call."""

from collections.abc import Sequence
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from consumers.engine.effects import CloseCall, Count, Effect, NotUnderstood, OpenCall, PublishScore, RequestVerdict
from consumers.evaluator.writer import Written, carry_out
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason
from schemas.events.codec import Misread
from schemas.order import Closed, GoalsChosen, OrderDecoder, OrderEncoder, OrderStart, Step, order_value
from schemas.transcript import Transcript
from tests.support.fakes.evaluator_fakes import fact, goal_set, goals_fact, question

CHOSEN = goals_fact("c-1", goal_set())
MISREAD = NotUnderstood(InputSource.AUDIT, "c-1", Misread(MisreadReason.UNKNOWN_TYPE, "x", "y"))
EFFECTS: list[tuple[Effect, Sequence[Written], list[Step]]] = [
    (PublishScore(fact("c-1")), [fact("c-1")], []),
    (PublishScore(CHOSEN), [CHOSEN], [GoalsChosen("c-1", "goals", CHOSEN.digest)]),
    (OpenCall(None), [], []),
    (CloseCall("c-1", (fact("last"), fact("closed"))), [fact("last"), fact("closed")], [Closed("c-1")]),
    (Count("callgauge_late_events_total", ("audit",), 2), [], []),
    (RequestVerdict(question("asked")), [question("asked")], []),
    (MISREAD, [], []),
]


@pytest.mark.parametrize(
    ("effect", "records", "steps"), EFFECTS, ids=[type(effect).__name__ for effect, _, _ in EFFECTS]
)
def test_each_effect_is_carried_out(effect: Effect, records: Sequence[Written], steps: list[Step]) -> None:
    registry = CollectorRegistry()
    order, reported = OrderEncoder({}, 0), list[NotUnderstood]()
    before = PublishScore(fact("before"))
    written = carry_out([before, effect], order, Instruments(registry, ["evaluator"]), reported.append)
    assert written == [fact("before"), *records]
    decoder = OrderDecoder(OrderStart(version="1", positions={}, time_ms=0))
    assert list(decoder.steps(order_value(order.take()))) == steps
    late = registry.get_sample_value("callgauge_late_events_total", {"source": "audit"})
    assert late == (2 if isinstance(effect, Count) else 0)
    assert reported == ([effect] if isinstance(effect, NotUnderstood) else [])


def test_a_transcript_is_written_with_the_closing_and_before_it() -> None:
    closing = CloseCall("c-1", (fact("last"), fact("closed")), b"[]")
    written = carry_out(
        [closing], OrderEncoder({}, 0), Instruments(CollectorRegistry(), ["evaluator"]), list[object]().append
    )
    assert written == [Transcript("c-1", b"[]"), fact("last"), fact("closed")]


def test_every_effect_has_a_case() -> None:
    assert {type(effect) for effect, _, _ in EFFECTS} == set(get_args(Effect))
