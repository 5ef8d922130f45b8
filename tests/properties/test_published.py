"""Published records: revisions that only grow, ids used once, values that are the context's at every moment."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.effects import Count
from consumers.engine.turns.timeline import ToolEntry, outcome_of
from schemas.closed_sets import ToolOutcome
from schemas.scores.records import (
    SCORE_RECORD,
    AnyScoreRecord,
    InterruptionFact,
    Scored,
    TurnStatus,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from tests.properties.evaluation import (
    Subject,
    assert_counted,
    closing_of_one,
    end_of,
    final_state,
    fresh,
    holds,
    newest,
    run,
)
from tests.properties.measured_anew import MeasuredTurns
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import LATENCY, Feed, assert_in_catalogue, records_of, value_of
from tests.support.laws import examples


@given(st.data())
def test_revisions_of_a_subject_only_grow_and_everything_counts_once(data: st.DataObject) -> None:
    call, order = drawn(data)
    records = records_of(run(arrivals_of(call, order)))
    assert_counted(records)
    for record in records:
        assert SCORE_RECORD.validate_json(record.model_dump_json()) == record


@given(st.data())
def test_a_closing_says_only_what_is_new(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    before = newest(records_of([effect for arrival in arrivals for effect in evaluator.receive(arrival)]))
    closing = closing_of_one(evaluator.advance(end_of(arrivals)))
    subjects = [(record.name, record.turn, record.index) for record in closing.records]
    assert len(subjects) == len(set(subjects))
    for subject, record in zip(subjects, closing.records, strict=True):
        assert record.status is TurnStatus.FINAL or not holds(record)
        old = before.get(subject)
        assert old is None or old.input_hash != record.input_hash


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


@examples(times=2.5)
@given(st.data())
def test_published_values_are_the_context_s_at_every_moment(data: st.DataObject) -> None:
    """In a call heard through audio. A turn whose user's sound has no end yet has no latency, though EVA's rule E1 has: of those
    that were left, their records say so.
    """
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    measured = MeasuredTurns(evaluator)
    published: dict[Subject, AnyScoreRecord] = {}
    for arrival in arrivals:
        effects = evaluator.receive(arrival)
        published |= newest(records_of(effects))
        is_measured = measured.take(effects, arrival.conversation_id) is not None
        folded = evaluator._calls[arrival.conversation_id]
        if folded.live.bot is not None:
            continue
        context = folded.eva_context()
        heard = folded.history.machine.turns
        expected: dict[int, float | str] = {}
        for turn, latency_s in context.latency_assistant_turns.items():
            has_end = len(heard[turn].user_ends) >= len(heard[turn].user_starts)
            if turn >= 1:
                expected[turn] = round(latency_s * 1000, 3) if has_end else "user_still_speaking"
        latencies = [r for r in published.values() if isinstance(r, VoiceToVoiceLatency) and holds(r)]
        scored = {turn: value for turn, value in expected.items() if not isinstance(value, str)}
        assert {record.turn: value_of(record) for record in latencies} == scored
        for name, turns in (
            ("interruption_by_user", {turn for turn, state in heard.items() if state.spoke_over}),
            ("interruption_by_assistant", context.assistant_interrupted_turns),
        ):
            assert {r.turn for r in published.values() if r.name == name and holds(r)} == turns
        assert all(isinstance(r, InterruptionFact) for r in published.values() if r.name.startswith("interruption"))
        if not is_measured:
            continue
        known = {turn for turn, record in measured.newest.items() if holds(record)}
        current = folded.history.machine.turn
        assert {turn for turn in heard if 1 <= turn < current} <= known <= set(heard), "only a greeting may wait"
        for turn in known & set(range(1, current)):
            waited = measured.newest[turn].voice_to_voice_ms
            if turn in expected:
                assert (waited.value if isinstance(waited, Scored) else waited.reason) == expected[turn]
            else:
                assert isinstance(waited, Unscored)


@given(st.data())
def test_a_moment_of_a_latency_says_what_the_record_of_its_turn_says(data: st.DataObject) -> None:
    """In the end, where both are of the whole call: a latency is there if and only if it is known."""
    call, order = drawn(data)
    last = final_state(run(arrivals_of(call, order)))
    moments = {turn: record["result"] for (name, turn, _), record in last.items() if name == LATENCY}
    turns = {turn: record["voice_to_voice_ms"] for (name, turn, _), record in last.items() if name == "turn"}
    assert moments == {turn: waited for turn, waited in turns.items() if waited["outcome"] == "scored"}


@given(st.data())
def test_a_status_goes_forward_and_every_turn_ends_with_its_record(data: st.DataObject) -> None:
    """A turn's record comes when the call leaves the turn; at the close each turn that is there has one, and no other has."""
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    effects = [effect for arrival in arrivals for effect in evaluator.receive(arrival)]
    (open_call,) = evaluator._calls.values()
    turns = set(open_call.live.machine.turns)
    for record in records_of(effects):
        if isinstance(record, TurnValues) and holds(record):
            assert record.status in (TurnStatus.PROVISIONAL, TurnStatus.SETTLED)
    effects += evaluator.advance(end_of(arrivals))
    finished = set()
    last: dict[int | None, TurnValues] = {}
    for record in records_of(effects):
        assert "closed" not in finished
        finished.add(record.name)
        if isinstance(record, TurnValues):
            assert record.turn not in last or last[record.turn].status is not TurnStatus.FINAL
            last[record.turn] = record
    assert {turn for turn, record in last.items() if holds(record)} == turns


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


@examples(times=2)
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
        bot = feed.evaluator._calls["call"].live.bot
        assert bot is not None
        expected = _paired(bot.machine.last_tool)
        newest = {(r.turn, r.index): r for r in feed.records("tool_call")}
        assert expected == {
            place: (r.tool, r.outcome, r.duration_ms) for place, r in newest.items() if not r.is_withdrawn
        }
