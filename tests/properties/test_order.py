"""Order of arrival, other calls and late facts do not change the results of a call at its end."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from tests.properties.evaluation import final_state, fold, fresh, renumbered, rows_of_calls, run
from tests.properties.steered_calls import drawn, steered_arrivals
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Json

START_MS = 1_790_000_000_000


@given(st.data())
def test_any_interleaving_gives_the_same_final_scores(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    other = data.draw(steered_arrivals(call))
    one, another = (run(arrivals_of(call, taken)) for taken in (order, other))
    assert final_state(one) == final_state(another)


@given(st.data())
def test_a_pipeline_type_told_late_equals_one_told_first(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    told = order.index(("control", 0))
    first = [order[told], *order[:told], *order[told + 1 :]]
    late, early = (run(arrivals_of(call, taken)) for taken in (order, first))
    assert final_state(late) == final_state(early)


@given(st.data())
def test_other_calls_in_between_change_nothing(data: st.DataObject) -> None:
    alone: dict[str, list[Arrival]] = {}
    for key in ("one", "two", "three"):
        call, order = drawn(data)
        alone[key] = arrivals_of({**call, "id": key}, order)
    turns = data.draw(
        st.permutations([key for key, arrivals in alone.items() for _ in arrivals][:300])
    )
    left = {key: iter(arrivals) for key, arrivals in alone.items()}
    mixed = [next(left[key]) for key in turns]
    together = rows_of_calls(fold(fresh(), renumbered(mixed)))
    for key in alone:
        mine = [arrival for arrival in mixed if arrival.conversation_id == key]
        assert together.get(key, []) == rows_of_calls(fold(fresh(), mine)).get(key, [])


@given(st.data())
def test_a_successor_begins_at_the_first_record_of_the_oldest_open_call(
    data: st.DataObject,
) -> None:
    call, order = drawn(data)
    arrivals = renumbered(arrivals_of(call, order))
    evaluator = fresh()
    assert evaluator.low_watermark() is None
    fold(evaluator, arrivals)
    fold(
        evaluator,
        [
            replace(each, conversation_id="another", offset=each.offset + len(arrivals))
            for each in arrivals
        ],
    )
    assert evaluator.low_watermark() == arrivals[0].offset


def test_the_sounds_of_a_turn_are_those_at_the_end_whatever_else_changed() -> None:
    started = {"type": "call_started", "timestamp": START_MS, "pipeline_type": "s2s"}
    said = {"message_type": "user", "value": "Hi", "timestamp": str(START_MS)}
    for second in (
        {**_sound("audio_end", "assistant"), "audio_timestamp": START_MS / 1_000},
        _sound("audio_start", "assistant"),
    ):
        call = {
            "id": "sounds",
            "audit": [said],
            "user_sim": [
                _sound("audio_start", "assistant"),
                _sound("audio_end", "assistant", after_ms=1, heard_after_ms=-599),
                _sound("audio_start", "simulated_user", after_ms=1),
                second,
            ],
            "control": [started],
            "control_on": ["audit"],
        }
        sounds = [("user_sim", place) for place in range(4)]
        words_first = [("control", 0), ("audit", 0), *sounds]
        words_last = [("control", 0), *sounds, ("audit", 0)]
        one, another = (run(arrivals_of(call, order)) for order in (words_first, words_last))
        assert final_state(one) == final_state(another)


def _sound(kind: str, side: str, after_ms: int = 0, heard_after_ms: int | None = None) -> Json:
    heard_ms = START_MS + (after_ms if heard_after_ms is None else heard_after_ms)
    return {
        "event_type": kind,
        "user": side,
        "timestamp": START_MS + after_ms,
        "audio_timestamp": heard_ms / 1_000,
    }
