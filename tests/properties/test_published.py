"""What is published: revisions that only grow, ids used once, values that are the context's at every moment."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.engine.effects import Count
from consumers.engine.tool_uses import ToolEntry, outcome_of
from schemas.scores import SCORE_RECORD, InterruptionFact, Scored, ToolOutcome, TurnFact, VoiceToVoiceLatency
from tests.engine_feed import LATENCY, Feed, assert_in_catalogue, records_of, value_of
from tests.properties.evaluation import end_of, fresh, holds, run
from tests.properties.steered_calls import drawn
from tests.wire_calls import arrivals_of


@given(st.data())
def test_revisions_of_a_subject_only_grow_and_ids_are_unique(data: st.DataObject) -> None:
    call, order = drawn(data)
    revisions: dict[tuple[Any, ...], int] = {}
    ids = set()
    counted = set()
    for record in records_of(run(arrivals_of(call, order))):
        subject = (record.name, record.turn, record.index)
        assert record.revision == revisions.get(subject, 0) + record.is_change
        revisions[subject] = record.revision
        assert record.record_id not in ids
        ids.add(record.record_id)
        if record.is_first:
            assert subject not in counted, "counted twice"
            counted.add(subject)
        assert SCORE_RECORD.validate_json(record.model_dump_json()) == record


@given(st.data())
def test_counts_are_in_the_catalogue(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    effects = [effect for arrival in arrivals for effect in evaluator.receive(arrival)]
    effects += [*evaluator.advance(end_of(arrivals)), *evaluator.drain_counts()]
    for count in (effect for effect in effects if isinstance(effect, Count)):
        assert_in_catalogue(count)


@given(st.data())
def test_unknown_is_never_zero(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    for arrival in arrivals:
        for record in records_of(evaluator.receive(arrival)):
            if isinstance(record, VoiceToVoiceLatency) and isinstance(record.result, Scored):
                live = evaluator._calls[arrival.conversation_id].live
                assert record.turn is not None
                view = live.turns._views[record.turn]
                assert view.user_end_s is not None
                assert view.assistant_start_s is not None
                assert record.anchor is not None
                assert record.source is not None
                assert record.turn >= 1


@settings(max_examples=250)
@given(st.data())
def test_published_values_are_the_context_s_at_every_moment(data: st.DataObject) -> None:
    """In a call heard through audio. A turn whose user's sound has no end yet has no latency, though EVA's rule E1 has."""
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    newest: dict[tuple[str, int | None], Any] = {}
    for arrival in arrivals:
        for record in records_of(evaluator.receive(arrival)):
            newest[record.name, record.turn] = record
        folded = evaluator._calls[arrival.conversation_id]
        if folded.live._speaking is not None:
            continue
        context = folded.context()
        heard = folded.history.machine.turns
        expected: dict[int, float | str] = {}
        for turn, latency_s in context.latency_assistant_turns.items():
            has_end = len(heard[turn].user_ends) >= len(heard[turn].user_starts)
            if turn >= 1:
                expected[turn] = round(latency_s * 1000, 3) if has_end else "user_still_speaking"
        latencies = [r for r in newest.values() if r.name == LATENCY and value_of(r) != "withdrawn"]
        assert {record.turn: value_of(record) for record in latencies} == expected
        for name, turns in (
            ("interruption_by_user", context.user_interrupted_turns),
            ("interruption_by_assistant", context.assistant_interrupted_turns),
        ):
            assert {r.turn for r in newest.values() if r.name == name and holds(r)} == turns
        known = {r.turn for r in newest.values() if isinstance(r, TurnFact) and holds(r)}
        assert {turn for turn in heard if turn >= 1} <= known <= set(heard), "only a greeting may wait for its sound"
        assert all(isinstance(r, InterruptionFact) for r in newest.values() if r.name.startswith("interruption"))


@given(st.data())
def test_a_status_goes_forward_and_every_turn_ends_final(data: st.DataObject) -> None:
    call, order = drawn(data)
    status: dict[int | None, str] = {}
    for record in records_of(run(arrivals_of(call, order))):
        if isinstance(record, TurnFact):
            assert status.get(record.turn) != "final"
            status[record.turn] = "withdrawn" if record.is_withdrawn else record.status.value
    assert set(status.values()) <= {"final", "withdrawn"}


def _paired(last: ToolEntry | None) -> dict[tuple[int, int], tuple[str, ToolOutcome, int | None]]:
    """Every use whose outcome is known, paired anew from the whole chain: first call of a tool, first answer of it."""
    entries = []
    while last is not None:
        entries.append(last)
        last = last.previous
    known: dict[tuple[int, int], tuple[str, ToolOutcome, int | None]] = {}
    waiting: dict[str, list[tuple[int, int, int]]] = {}
    used: Counter[int] = Counter()
    for entry in reversed(entries):
        tool = entry.use.name
        if entry.is_response and waiting.get(tool):
            turn, index, called_at_ms = waiting[tool].pop(0)
            known[turn, index] = (tool, outcome_of(entry.use.value), max(0, entry.time_ms - called_at_ms))
            continue
        place = (entry.turn, used[entry.turn])
        used[entry.turn] += 1
        if entry.is_response:
            known[place] = (tool, outcome_of(entry.use.value), None)
        else:
            waiting.setdefault(tool, []).append((*place, entry.time_ms))
    return known


_tool_steps = st.lists(
    st.tuples(st.sampled_from(["text", "heard", "call a", "answer a", "call b", "answer b"]), st.integers(0, 12)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=200)
@given(_tool_steps)
def test_published_tool_uses_are_those_of_pairing_the_whole_call(steps: list[tuple[str, int]]) -> None:
    feed = Feed()
    for step, tenths in steps:
        at_ms = 100 * tenths
        what, _, tool = step.partition(" ")
        if what == "text":
            feed.bot_text("Yes.", at_ms)
        elif what == "heard":
            feed.heard("Hello", at_ms)
        else:
            (feed.tool_call if what == "call" else feed.tool_answer)(tool, at_ms)
        speaking = feed.evaluator._calls["call"].live._speaking
        assert speaking is not None
        expected = _paired(speaking.machine.last_tool)
        newest = {(r.turn, r.index): r for r in feed.records("tool_call")}
        assert expected == {
            place: (r.tool, r.outcome, r.duration_ms) for place, r in newest.items() if not r.is_withdrawn
        }
