"""Nothing that a producer can write, and no limit, makes the engine fail: it folds, or says why it
does not.
"""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.examples import EXAMPLES
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow
from tests.properties.evaluation import end_of, fresh, outcomes_of
from tests.properties.steered_calls import MOMENTS, STRANGE, drawn
from tests.support.calls.strategies import (
    AUDIO_EVENTS,
    AUDIT_EVENTS,
    OTHER_SIMULATOR_EVENTS,
    PIPECAT_EVENTS,
)
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.engine_feed import rows_of
from tests.support.laws import examples

_small = st.sampled_from([1, 2, 5, 10_000])
_limits = st.builds(
    Limits,
    max_event_time_skew_ms=st.just(0),
    max_events_per_call=_small,
    max_turns_per_call=_small,
    max_open_calls=_small,
    max_closed_calls_remembered=_small,
    max_remembered_ids=_small,
    max_call_duration_ms=_small,
    closing_grace_ms=st.sampled_from([0, 10_000]),
    idle_ms=_small,
    allowed_lateness_ms=st.sampled_from([0, 5_000]),
    dead_air_ms=_small,
    delivery_allowance_ms=st.sampled_from([0, 500]),
)


@given(st.data(), _limits)
def test_any_sequence_of_valid_events_is_folded(data: st.DataObject, limits: Limits) -> None:
    call, order = drawn(data)
    keys = data.draw(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=5))
    evaluator = fresh(limits)
    arrivals = arrivals_of(call, order)
    effects: list[Effect] = []
    for place, arrival in enumerate(arrivals):
        arrival.conversation_id = keys[place % len(keys)]
        effects += evaluator.receive(arrival)
        effects += evaluator.advance(arrival.broker_time_ms)
        assert len(evaluator.open_calls) <= limits.max_open_calls
        assert not any(open_call.is_closed for open_call in evaluator._calls.values())
        wakeup_ms = evaluator.next_wakeup()
        assert wakeup_ms is None or wakeup_ms > arrival.broker_time_ms
    effects += evaluator.advance(end_of(arrivals))
    assert evaluator.open_calls == ()
    assert sum(count.by for count in outcomes_of(evaluator)) == len(arrivals), (
        "every event has one outcome"
    )
    closed: dict[str, int] = {}
    for row in rows_of(effects):
        is_closed = isinstance(row, CallRow) and row.state == "closed"
        closed[row.conversation_id] = closed.get(row.conversation_id, 0) + is_closed
    assert all(count >= 1 for count in closed.values())


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([1e308, -1e308, 10**400, "10" * 200, 1e22, -1, "1790000000000", "x" * 40_000]),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
_A, _P, _E = InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS
DETAILS = {**EXAMPLES["TurnDetails"], "turn_at": 1_790_000_000_500, "feedback": {"score": "like"}}
_templates = st.sampled_from(
    [
        *((_A, event) for event in (*AUDIT_EVENTS, *STRANGE["audit"])),
        *((_P, event) for event in (*PIPECAT_EVENTS, *STRANGE["pipecat"])),
        *((_E, event) for event in (*OTHER_SIMULATOR_EVENTS, *STRANGE["user_sim"])),
        *((_E, {**event, "audio_timestamp": 1790000000.5}) for event in AUDIO_EVENTS),
        *(
            (_P, {"type": "speech_event", "data": {"kind": kind, "timestamp": 1790000000.5}})
            for kind in MOMENTS
        ),
        *(
            (source, {"type": "call_started", "pipeline_type": "s2s", "agent": "desk"})
            for source in InputSource
        ),
        *((source, {"type": "call_ended", "reason": "goodbye"}) for source in InputSource),
        *(
            (source, {"type": "user_text_updated", "text": "Hello", "turn_id": 3})
            for source in InputSource
        ),
        *((source, DETAILS) for source in InputSource),
    ]
)


@st.composite
def _almost_valid(draw: st.DrawFn) -> tuple[InputSource, bytes]:
    """An event with one field replaced by anything, at its top or one level down."""
    source, template = draw(_templates)
    event: dict[str, Any] = {"timestamp": 1_790_000_000_000, **template}
    name = draw(st.sampled_from(sorted(event)))
    inner = event[name]
    if isinstance(inner, dict) and inner and draw(st.booleans()):
        event[name] = {**inner, draw(st.sampled_from(sorted(inner))): draw(_values)}
    else:
        event[name] = draw(_values)
    return source, json.dumps(event).encode()


_junk = st.one_of(st.none(), st.binary(max_size=60), _values.map(json.dumps).map(str.encode))
_inputs = st.one_of(
    _almost_valid(), _almost_valid(), st.tuples(st.sampled_from(InputSource), _junk)
)
_header_values = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"7" * 5000, b"7", b"callgauge.elevenlabs.x.v1"])
)
_header_names = st.sampled_from(["ce_id", "ce_source", "ce_type", "ce_sequence", "other"])
_records = st.builds(
    BrokerRecord,
    topic=st.just("audit.events"),
    partition=st.integers(0, 3),
    offset=st.just(0),
    timestamp=st.sampled_from([1_790_000_000_000, 0, -1]),
    key=st.one_of(st.just(b"call"), st.none(), st.binary(max_size=300)),
    value=st.none(),
    headers=st.lists(st.tuples(_header_names, _header_values), max_size=3),
)


@examples(times=4)
@given(st.lists(st.tuples(_inputs, _records), min_size=1, max_size=6), st.booleans())
def test_any_bytes_are_folded_or_quarantined(
    records: list[tuple[tuple[InputSource, bytes | None], BrokerRecord]], checks_time: bool
) -> None:
    limits = Limits(max_event_time_skew_ms=60_000 if checks_time else 0)
    evaluator = fresh(limits)
    for offset, ((source, value), record) in enumerate(records):
        admitted = admit(source, record._replace(offset=offset, value=value), limits)
        if isinstance(admitted, QuarantineRecord):
            assert len(admitted.message()) < 1_000
            assert QuarantineRecord.model_validate_json(admitted.model_dump_json()) == admitted
        else:
            assert isinstance(admitted, Arrival)
            evaluator.receive(admitted)
            context = evaluator.context(admitted.conversation_id)
            assert context is not None
            json.dumps(context.to_dict())
    evaluator.advance(10**15)
    assert evaluator.open_calls == ()
