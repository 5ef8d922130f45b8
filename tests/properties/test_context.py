"""The first law: the context at any moment is the batch result on the arrived events, in any order of arrival."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.call import Call
from consumers.engine.effects import Effect
from consumers.engine.evaluator import NO_LIMITS
from tests.properties.steered_calls import Prefix, arrived, drawn, steered_arrivals
from tests.reference.oracle import batch_context, turns_spoken_over
from tests.support.calls.wire_calls import arrivals_of
from tests.support.laws import examples


@given(st.data())
def test_prefix_equals_batch(data: st.DataObject) -> None:
    wire_call, order = drawn(data)
    prefix = Prefix(wire_call)
    call: Call | None = None
    out: list[Effect] = []
    for (stream, index), arrival in zip(order, arrivals_of(wire_call, order), strict=True):
        call = call or Call(arrival, NO_LIMITS, "test")
        call.receive(arrival, out)
        prefix.add(stream, index)
        assert call.eva_context().to_dict() == batch_context(prefix.call()), f"after {stream}[{index}]"
        spoken_over = {turn for turn, state in call.history.machine.turns.items() if state.spoke_over}
        assert spoken_over == turns_spoken_over(prefix.call()), f"after {stream}[{index}]"


@examples(times=0.4)
@given(st.data())
def test_any_interleaving_gives_the_same_context(data: st.DataObject) -> None:
    wire_call, order = drawn(data, updates=False)
    other = data.draw(steered_arrivals(wire_call))
    contexts = []
    for taken in (order, other):
        arrivals = arrivals_of(wire_call, taken)
        call = Call(arrivals[0], NO_LIMITS, "test")
        for arrival in arrivals:
            call.receive(arrival, [])
        contexts.append(call.eva_context().to_dict())
    assert contexts[0] == contexts[1] == batch_context(arrived(wire_call, other))
