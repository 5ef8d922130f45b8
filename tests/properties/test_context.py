"""The first law: the context at any moment is the batch result on the arrived events, in any order
of arrival. And of calls that two hear, the simulated caller and the bot: both have the same turns.
"""

import re
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.call import Call
from consumers.engine.contexts import NO_SOUND
from consumers.engine.effects import Effect
from consumers.engine.evaluator import NO_LIMITS
from schemas.metric_context import MetricContext
from streamer.offline.contexts import recorded_context
from streamer.sources.simulator.plan import SIMULATED_KINDS, CallKind
from streamer.sources.simulator.profile import AWKWARD, HEALTHY, Profile, always
from streamer.sources.simulator.traffic import simulate_call
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
        call.receive(arrival, 0, out)
        prefix.add(stream, index)
        assert call.eva_context().to_dict() == batch_context(prefix.call()), (
            f"after {stream}[{index}]"
        )
        spoken_over = {
            turn for turn, state in call.history.machine.turns.items() if state.spoke_over
        }
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
            call.receive(arrival, 0, [])
        contexts.append(call.eva_context().to_dict())
    assert contexts[0] == contexts[1] == batch_context(arrived(wire_call, other))


START_MS: Final = 1_795_000_000_000
LABELS: Final = re.compile(
    r"\[(?:user|assistant) interrupts]|\[likely [a-z ]+]|\[speaker likely [a-z ]+]|\[pause]"
)
"""EVA's own remarks in words."""


def words(turns: dict[int, str]) -> dict[int, str]:
    plain = {turn: " ".join(LABELS.sub("", text).split()) for turn, text in turns.items()}
    return {turn: text for turn, text in plain.items() if text}


def answered(context: MetricContext) -> set[int]:
    return {turn for turn in context.latency_assistant_turns if turn}


@examples(times=0.6)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(SIMULATED_KINDS),
    profile=st.sampled_from((HEALTHY, AWKWARD)),
)
def test_the_caller_and_the_bot_have_the_same_turns(
    seed: int, kind: CallKind, profile: Profile
) -> None:
    heard = simulate_call(seed, start_ms=START_MS, kind=kind, profile_of=always(profile)).call
    by_eva, _ = recorded_context(heard)
    by_the_bot, _ = recorded_context(replace(heard, elevenlabs=None))
    assert (by_eva.turns_by, by_the_bot.turns_by) == ("eva", "bot")
    assert by_the_bot.tools_called == by_eva.tools_called
    assert by_the_bot.tool_params == by_eva.tool_params
    assert by_the_bot.tool_responses == by_eva.tool_responses
    assert not by_the_bot.transcribed_user_turns.get(0)
    if kind == "s2s":  # without a caller no event of such a call says who spoke when
        assert by_the_bot.unknown["audio_timestamps_user_turns"] == NO_SOUND
        assert by_the_bot.unknown["latency_assistant_turns"].endswith("no_user_speech")
        return
    assert answered(by_the_bot) == answered(by_eva)
    assert words(by_the_bot.transcribed_user_turns) == words(by_eva.transcribed_user_turns)
    assert words(by_the_bot.intended_assistant_turns) == words(by_eva.intended_assistant_turns)


@examples(times=0.3)
@given(seed=st.integers(0, 10**6), profile=st.sampled_from((HEALTHY, AWKWARD)), data=st.data())
def test_the_context_of_a_call_that_only_its_bot_hears_does_not_depend_on_the_order_of_arrival(
    seed: int, profile: Profile, data: st.DataObject
) -> None:
    recorded = simulate_call(seed, start_ms=START_MS, kind="phone", profile_of=always(profile)).call
    in_order, _ = recorded_context(recorded)
    assert recorded_context(recorded, data.draw(st.integers(1, 2**32)))[0] == in_order
