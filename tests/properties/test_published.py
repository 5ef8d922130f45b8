"""Published rows: revisions that only grow, what counts once, values that are the context's at
every moment.
"""

from collections import Counter
from collections.abc import Iterable

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import structs

from consumers.engine.effects import Count, Effect
from consumers.engine.turns.timeline import ToolEntry, outcome_of
from schemas.closed_sets import Speaker, ToolOutcome
from schemas.rows import CallRow, GoalsRow, Silence, TurnRow, Unscored, decode, encode, number
from tests.properties.evaluation import (
    LIMITS,
    assert_counted,
    end_of,
    fresh,
    holds,
    newest,
    newest_turns,
    run,
)
from tests.properties.measured_anew import MeasuredTurns
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Feed, assert_in_catalogue, rows_of
from tests.support.laws import examples


@given(st.data())
def test_revisions_of_a_subject_only_grow_and_everything_counts_once(data: st.DataObject) -> None:
    call, order = drawn(data)
    rows = rows_of(run(arrivals_of(call, order)))
    assert_counted(rows)
    for row in rows:
        assert decode(encode(row)) == row


@given(st.data())
def test_a_closing_says_only_what_is_new(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    before = newest(
        rows_of([effect for arrival in arrivals for effect in evaluator.receive(arrival)])
    )
    evaluator.pass_time(end_of(arrivals))  # silences, which may be new in any turn
    said = newest(rows_of(evaluator.close_some()))
    for subject, row in said.items():
        old = before.get(subject)
        how = {"revision": 0, "known_ms": 0, "news": ()}
        assert (
            isinstance(row, GoalsRow)
            or old is None
            or structs.replace(old, **how) != structs.replace(row, **how)
        )


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
        for row in rows_of(evaluator.receive(arrival)):
            if isinstance(row, TurnRow) and number(row.wait_ms) is not None:
                live = evaluator._calls[arrival.conversation_id].live
                view = live.turns._views[row.turn]
                assert view.user_end_s is not None
                assert view.assistant_start_s is not None
                assert row.anchor is not None
                assert row.wait_source is not None
                assert row.turn >= 1


@examples(times=2.5)
@given(st.data())
def test_published_values_are_the_context_s_at_every_moment(data: st.DataObject) -> None:
    """In a call heard through audio. A turn whose user's sound has no end yet has no latency,
    though EVA's rule E1 has: of those that were left, their records say so.
    """
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    measured = MeasuredTurns(evaluator)
    published: dict[int, TurnRow] = {}
    for arrival in arrivals:
        effects = evaluator.receive(arrival)
        published |= {row.turn: row for row in rows_of(effects) if isinstance(row, TurnRow)}
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
        waits = {
            turn: wait_ms
            for turn, row in published.items()
            if (wait_ms := number(row.wait_ms)) is not None
        }
        assert waits == {
            turn: value for turn, value in expected.items() if not isinstance(value, str)
        }
        for by, turns in (
            (Speaker.USER, {turn for turn, state in heard.items() if state.spoke_over}),
            (Speaker.ASSISTANT, context.assistant_interrupted_turns),
        ):
            assert {turn for turn, row in published.items() if by in row.interruptions} == turns
        if not is_measured:
            continue
        known = {turn for turn, row in measured.newest.items() if holds(row)}
        current = folded.history.machine.turn
        assert {turn for turn in heard if 1 <= turn < current} <= known <= set(heard), (
            "only a greeting may wait"
        )
        for turn in known & set(range(1, current)):
            waited = measured.newest[turn].wait_ms
            if turn in expected:
                assert (waited.reason if isinstance(waited, Unscored) else waited) == expected[turn]
            else:
                assert isinstance(waited, Unscored)


@given(st.data())
def test_each_turn_that_is_there_has_its_measures_in_the_end_and_no_other_counts(
    data: st.DataObject,
) -> None:
    """A turn is measured when the call leaves it; at the close each turn that is there is."""
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    rows = rows_of([effect for arrival in arrivals for effect in evaluator.receive(arrival)])
    (open_call,) = evaluator._calls.values()
    turns = set(open_call.live.machine.turns)
    assert all(
        row.status != "open" for row in rows if isinstance(row, TurnRow) and "turn" in row.news
    )
    rows += rows_of(evaluator.advance(end_of(arrivals)))
    assert isinstance(rows[-1], CallRow)
    assert rows[-1].state == "closed"
    assert {turn for turn, row in newest_turns(rows).items() if row.talk is not None} == turns


@given(st.data())
def test_a_silence_that_was_said_never_changes_but_for_its_end_which_is_said_once(
    data: st.DataObject,
) -> None:
    """Of calls that grow: whatever comes later, the page draws it where it was."""
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh(LIMITS.model_copy(update={"dead_air_ms": 200, "delivery_allowance_ms": 0}))
    silences: dict[int, tuple[int, Silence]] = {}

    def look(effects: Iterable[Effect]) -> None:
        turns = (row for row in rows_of(effects) if isinstance(row, TurnRow))
        for row in turns:
            for each in row.dead_air:
                turn, said = silences.setdefault(each.number, (row.turn, each))
                assert (turn, structs.replace(said, until_ms=each.until_ms)) == (row.turn, each)
                assert said.until_ms in (None, each.until_ms)
                assert each.until_ms is None or each.until_ms >= each.since_ms
                silences[each.number] = turn, each

    for arrival in arrivals:
        look(evaluator.advance(arrival.broker_time_ms))
        look(evaluator.receive(arrival))
    look(evaluator.advance(end_of(arrivals)))
    event(
        f"{min(3, len(silences))} silences or more, "
        f"{min(2, sum(each.until_ms is not None for _, each in silences.values()))} ends"
    )


def _paired(last: ToolEntry | None) -> dict[tuple[int, int], tuple[str, ToolOutcome, int | None]]:
    """Every use whose outcome is known, paired anew from the whole chain: first call of a tool,
    first answer of it.
    """
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
            known[turn, index] = (
                tool,
                outcome_of(entry.use.value),
                max(0, entry.time_ms - called_at_ms),
            )
            continue
        place = (entry.turn, used[entry.turn])
        used[entry.turn] += 1
        if entry.is_response:
            known[place] = (tool, outcome_of(entry.use.value), None)
        else:
            waiting.setdefault(tool, []).append((*place, entry.time_ms))
    return known


_tool_steps = st.lists(
    st.tuples(
        st.sampled_from(["text", "heard", "call a", "answer a", "call b", "answer b"]),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=10,
)


@examples(times=2)
@given(_tool_steps)
def test_published_tool_uses_are_those_of_pairing_the_whole_call(
    steps: list[tuple[str, int]],
) -> None:
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
        assert expected == {
            place: (use.tool, use.outcome, use.duration_ms) for place, use in feed.tools().items()
        }
