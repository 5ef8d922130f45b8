"""Progress, votes and tool correctness: live equals agent-inspect's result at every turn, on any
way there.
"""

import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.agent_inspect import (
    AgentStep,
    AgentTurn,
    Argument,
    Ballot,
    ExpectedCall,
    Options,
    Parameter,
    PlainSubgoal,
    Required,
    Trace,
    auc_of,
    of_curve,
    ppt_of,
    progress_through_turns,
    success_at_end_of,
    tool_correctness,
)
from consumers.engine.goals.checks import CalledTool
from consumers.engine.goals.curve import ProgressCurve, area_under
from consumers.engine.goals.questions import Voting
from consumers.engine.goals.tool_correctness import ToolCorrectness, ToolQuestion
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import ExpectedToolCall
from schemas.rows import ToolDifference, Unscored
from tests.support.calls.agent_inspect_votes import Judge, JudgeAnswer, driven

REASON = UnscoredReason.USER_STILL_SPEAKING
ODD = st.integers(0, 4).map(lambda half: 2 * half + 1)

Table = list[list[bool]]
"""By turn and subgoal: a judge's verdict there."""


@st.composite
def tables(draw: st.DrawFn) -> Table:
    subgoals = draw(st.integers(1, 9))
    chance = draw(st.integers(1, 6))
    row = st.lists(
        st.integers(0, chance).map(lambda number: number == 0), min_size=subgoals, max_size=subgoals
    )
    return draw(st.lists(row, min_size=1, max_size=24))


def _unanimous(verdict: bool) -> Judge:
    return lambda wave: [JudgeAnswer(200, "GRADE: C" if verdict else "GRADE: I")] * wave


def _hash(turn: int) -> str:
    return f"input of turn {turn}"


@given(tables(), st.integers(1, 30))
def test_the_curve_after_every_turn_is_agent_inspect_s_of_the_turns_so_far(
    table: Table, max_turns: int
) -> None:
    subgoals = [PlainSubgoal(str(place)) for place in range(len(table[0]))]
    curve = ProgressCurve(len(subgoals), max_turns)
    asked = 0
    for turn in range(1, len(table) + 1):
        curve.set_input(turn, _hash(turn))
        for asked_turn, subgoal in list(curve.open_questions()):
            asked += 1
            curve.fold(asked_turn, subgoal, table[asked_turn - 1][subgoal], _hash(asked_turn))
        evaluations: list[int] = []

        def judge_of(ballot: Ballot, evaluations: list[int] = evaluations) -> Judge:
            assert isinstance(ballot.about, PlainSubgoal)
            evaluations.append(ballot.turn_index)
            return _unanimous(table[ballot.turn_index][int(ballot.about.details)])

        turns = [AgentTurn("A question.", "An answer.")] * turn
        trace = Trace("a", turns, subgoals, options=Options(max_turns=max_turns))
        judged = driven(progress_through_turns(trace), judge_of)
        progress = [each.score for each in judged]
        scores, no_area = curve.at(turn), Unscored(UnscoredReason.ONE_TURN_HAS_NO_AREA)
        assert scores is not None
        assert scores.result == progress[-1]
        assert scores.auc == (of_curve(area_under, judged).score if max_turns > 1 else no_area)
        so_far = progress[:turn]
        assert scores.auc_if_ended_now == (auc_of(so_far) if len(so_far) > 1 else no_area)
        assert scores.ppt == of_curve(ppt_of, judged).score
        assert scores.success == success_at_end_of(judged).score
        assert asked == len(evaluations), "the same evaluations, one after another"


@given(st.lists(st.integers(0, 10_000).map(lambda units: units / 10_000), min_size=2, max_size=300))
def test_the_area_is_right_but_for_the_bits_that_numpy_loses(heights: list[float]) -> None:
    exact = (2 * sum(round(height * 10_000) for height in heights)) - round(
        (heights[0] + heights[-1]) * 10_000
    )
    assert abs(area_under(heights) - exact / (20_000 * (len(heights) - 1))) < 1e-12


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Subgoals, max_turns, and in some order: inputs that change, verdicts, turns that go, results
    of code.
    """
    subgoals, max_turns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    turn, subgoal = st.integers(1, 7), st.integers(0, subgoals - 1)
    step = st.one_of(
        st.tuples(st.just("input"), turn, st.sampled_from("ab")),
        st.tuples(
            st.just("verdict"),
            turn,
            subgoal,
            st.sampled_from([True, False, False, REASON]),
            st.sampled_from("ab"),
        ),
        st.tuples(
            st.just("verdict"),
            turn,
            subgoal,
            st.sampled_from([True, False, False, REASON]),
            st.sampled_from("ab"),
        ),
        st.tuples(st.just("gone"), turn),
        st.tuples(st.just("code"), subgoal, st.none() | turn),
    )
    return subgoals, max_turns, draw(st.lists(step, max_size=40))


@given(histories(), st.data())
def test_a_curve_that_changed_is_the_curve_of_what_it_became(
    history: tuple[int, int, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    subgoals, max_turns, steps = history
    live = ProgressCurve(subgoals, max_turns)
    inputs: dict[int, str] = {}
    verdicts: dict[tuple[int, int], bool | UnscoredReason] = {}
    by_code: dict[int, int | None] = {}
    for step in steps:
        match step:
            case ("input", turn, text):
                live.set_input(turn, text)
                if turn <= max_turns and inputs.get(turn) != text:
                    verdicts = {key: verdict for key, verdict in verdicts.items() if key[0] != turn}
                    inputs[turn] = text
            case ("verdict", turn, subgoal, verdict, text) if subgoal not in by_code:
                counts = live.fold(turn, subgoal, verdict, text)
                assert counts is (inputs.get(turn) == text)
                if counts:
                    verdicts[turn, subgoal] = verdict
            case ("gone", first):
                live.remove_from(first)
                inputs = {turn: text for turn, text in inputs.items() if turn < first}
                verdicts = {key: verdict for key, verdict in verdicts.items() if key[0] < first}
            case ("code", subgoal, reached_at):
                live.know(subgoal, reached_at)
                by_code[subgoal] = reached_at
        if data.draw(st.booleans()) and live.turns:
            # an intermediate result must not stay when it is wrong
            live.at(data.draw(st.integers(1, live.turns)))
    anew = ProgressCurve(subgoals, max_turns)
    for turn, text in sorted(inputs.items()):
        anew.set_input(turn, text)
    for (turn, subgoal), verdict in data.draw(
        st.permutations(sorted(verdicts.items(), key=lambda item: item[0]))
    ):
        assert anew.fold(turn, subgoal, verdict, inputs[turn])
    for subgoal, reached_at in by_code.items():
        anew.know(subgoal, reached_at)
    last = max(inputs, default=0)
    assert [anew.at(turn) for turn in range(1, last + 1)] == [
        live.at(turn) for turn in range(1, last + 1)
    ]
    assert anew.reached_at == live.reached_at
    assert list(anew.open_questions()) == list(live.open_questions())


def _run(
    voting: Voting,
    answers: list[bool | None],
    order: Callable[[list[bool | None]], list[bool | None]],
) -> int:
    """Vote until it is over; how many were asked."""
    asked = 0
    while wave := voting.next_wave:
        voting.fold(order(answers[asked : asked + wave]))
        asked += wave
    return asked


@given(ODD, st.data())
def test_stopping_early_changes_what_is_asked_and_not_what_comes_out(
    trials: int, data: st.DataObject
) -> None:
    answers: list[bool | None] = data.draw(
        st.lists(st.booleans(), min_size=trials, max_size=trials)
    )
    early, full = Voting(trials, stops_early=True), Voting(trials, stops_early=False)
    asked = _run(early, answers, lambda wave: wave)
    assert _run(full, answers, lambda wave: wave) == trials
    assert early.verdict is full.verdict is (answers.count(True) > trials // 2)
    # As many as one after the other up to the deciding one.
    majority = trials // 2 + 1
    assert asked == next(
        count
        for count in range(majority, trials + 1)
        if majority in (answers[:count].count(True), answers[:count].count(False))
    )


@given(ODD, st.booleans(), st.integers(0, 3), st.data())
def test_the_order_of_answers_in_a_wave_makes_no_difference(
    trials: int, stops_early: bool, retry_waves: int, data: st.DataObject
) -> None:
    most = trials * (1 + retry_waves)
    answers: list[bool | None] = data.draw(
        st.lists(st.sampled_from([True, False, None]), min_size=most, max_size=most)
    )
    one = Voting(trials, stops_early=stops_early, retry_waves=retry_waves)
    other = Voting(trials, stops_early=stops_early, retry_waves=retry_waves)
    asked = _run(one, answers, lambda wave: wave)
    assert _run(other, answers, lambda wave: data.draw(st.permutations(wave))) == asked
    assert (one.verdict, one.failure) == (other.verdict, other.failure)
    assert (one.verdict is None) != (one.failure is None), "it ends in one way"
    assert asked <= (trials if stops_early else most)


NAMES = st.sampled_from(["x", "y", " x"])
VALUES = st.sampled_from([1, 1.0, True, "1", None, [1], {"p": 1}])
CHECKS = st.sampled_from(["first check", "second check"])
REQUIRED = st.one_of(
    VALUES.map(lambda value: {"value": value}), CHECKS.map(lambda check: {"check": check})
)
MADE = st.builds(
    lambda tool, arguments, answer: CalledTool(tool, arguments, answer, is_success=True),
    st.sampled_from(["a", "b", "a "]),
    st.dictionaries(NAMES, VALUES, max_size=3),
    VALUES,
)
EXPECTED = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(["a", "b", " a"]),
        "expected_parameters": st.lists(
            st.tuples(NAMES, REQUIRED).map(lambda pair: {"name": pair[0], **pair[1]}), max_size=3
        ),
        "expected_output": st.none() | REQUIRED,
        "turn": st.sampled_from([0, 0, 1, 2, -1, "0", None]),
    }
)


def _as_agent_inspect_has_it(expected: ExpectedToolCall) -> ExpectedCall:
    output = expected.expected_output
    return ExpectedCall(
        expected.tool,
        [
            Parameter(each.value, each.check, name=each.name)
            for each in expected.expected_parameters
        ],
        None if output is None else Required(output.value, output.check),
        expected.turn,
    )


def _step(call: CalledTool) -> AgentStep:
    return AgentStep(
        call.tool, [Argument(name, value) for name, value in call.arguments.items()], call.answer
    )


@given(
    st.lists(EXPECTED, max_size=4),
    st.lists(st.lists(MADE, max_size=3), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_tool_correctness_after_every_turn_is_agent_inspect_s(
    specs: list[dict[str, Any]], made: list[list[CalledTool]], seed: int
) -> None:
    def verdict(asked: ToolQuestion) -> bool:
        made = (asked.call.tool, asked.call.arguments, asked.call.answer)
        return zlib.crc32(repr((seed, asked.check, asked.value, made)).encode()) % 2 == 0

    def judge_of(ballot: Ballot) -> Judge:
        assert isinstance(ballot.about, ToolQuestion)
        return _unanimous(verdict(ballot.about))

    expected = [ExpectedToolCall.model_validate(spec) for spec in specs]
    live = ToolCorrectness(expected)
    for turn in range(1, len(made) + 1):
        asked: list[ToolQuestion] = []
        while True:
            live.look(
                turn,
                made[turn - 1],
                # mypy infers no lambda with a default
                lambda each, asked=asked: verdict(each) if each in asked else None,  # type: ignore[misc]
            )
            if not (questions := list(live.open_questions())):
                break
            asked += questions
        turns = [
            AgentTurn("A question.", "An answer.", [_step(call) for call in calls])
            for calls in made[:turn]
        ]
        calls = [_as_agent_inspect_has_it(each) for each in expected]
        agent_inspect_s: float | Unscored = Unscored(UnscoredReason.NO_TOOL_CALL_DUE)
        is_made: list[bool] = []
        if any(each.turn in range(turn) for each in expected):
            trace = Trace("a", turns, expected_calls=calls)
            (found,) = driven(tool_correctness(trace), judge_of)
            agent_inspect_s = found.score
            is_made = [
                text.endswith("was made as expected.")
                for explained in found.explanations or ()
                for text, *_ in explained.values()
            ]
        assert live.at(turn) == agent_inspect_s
        # A call that names no turn is left out; one whose turn never came is unknown here, and left
        # out in agent-inspect.
        comes_later = any(isinstance(each.turn, int) and each.turn >= turn for each in expected)
        assert live.at_end(turn) == (
            Unscored(UnscoredReason.EXPECTED_TURN_NOT_REACHED) if comes_later else agent_inspect_s
        )
        # Each expected call that is due is told, as agent-inspect finds it, and a missed one has a
        # reason.
        told = list(
            live.found(
                turn, {}, lambda found: ToolDifference(found.parameter, "", None), is_over=False
            )
        )
        due = [expected[each.index] for each in told]
        assert due == [
            each for each in expected if isinstance(each.turn, int) and 0 <= each.turn < turn
        ]
        by_turn = sorted(told, key=lambda each: each.turn or 0)
        assert [each.result == 1 for each in by_turn] == is_made
        for each in told:
            is_called = any(
                call.tool.strip() == each.tool.strip() for call in made[(each.turn or 0) - 1]
            )
            assert (each.missed == ("name",)) == (each.result == 0 and not is_called)
            assert bool(each.differences) == (each.result == 0 and is_called)
