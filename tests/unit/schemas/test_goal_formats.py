"""agent-inspect's samples in both shapes and EVA's dataset records load as they are, and their mistakes have places too."""

import json
from typing import Any

import pytest

from schemas.goals.goal_set import (
    MAX_TOOL_STRING_CHARS,
    ExpectedToolCall,
    GoalSet,
    ToolStringError,
    calls_in,
    read_goals,
)
from streamer.goals.files import read_goal_file
from tests.support.conformance_data import RECORD, conformance


def only(document: object, fallback_id: str | None = None) -> GoalSet:
    found = read_goals(document, fallback_id=fallback_id)
    assert found.mistakes == []
    ((_, goals),) = found.sets
    return goals


def mistakes(document: object) -> list[str]:
    return [f"{mistake.place}: {mistake.text}" for mistake in read_goals(document).mistakes]


def calls(goals: GoalSet) -> list[tuple[str, dict[str, Any], object]]:
    """Tool, arguments (a judge's as a set of one) and turn of each expected call."""
    return [(call.tool, _arguments(call), call.turn) for call in goals.expected_tool_calls]


def _arguments(call: ExpectedToolCall) -> dict[str, Any]:
    return {each.name: each.value if each.check is None else {each.check} for each in call.expected_parameters}


SAMPLE: dict[str, Any] = {
    "id": "sample-7",
    "user_instruction": "Book a table.",
    "sub_goals": [
        {"details": "A table is booked.", "type": "gradingNotes", "turn": 2},
        {"details": "A table is booked.", "type": "gradingNotes", "turn": "all"},
        {"details": "The price is told."},
    ],
    "expected_tool_calls": [
        {
            "tool": "book",
            "expected_parameters": [{"name": "people", "value": 2}, {"name": "note", "check": "something polite"}],
            "expected_output": {"value": "ok"},
            "turn": 1,
        },
        {"tool": "price", "expected_parameters": None, "expected_output": None, "turn": None},
    ],
    "conversation": [{"turn_id": 0, "message": "hi"}],
}


def test_a_sample_loads_with_all_it_says() -> None:
    goals = only(SAMPLE)
    assert (goals.id, goals.user_instruction, goals.agents) == ("sample-7", "Book a table.", ())
    assert [(subgoal.id, subgoal.details, subgoal.turn) for subgoal in goals.subgoals] == [
        ("1", "A table is booked.", 2),
        ("2", "A table is booked.", "all"),
        ("3", "The price is told.", None),
    ]
    assert all(subgoal.is_judged for subgoal in goals.subgoals)
    assert calls(goals) == [("book", {"people": 2, "note": {"something polite"}}, 1), ("price", {}, None)]
    output = goals.expected_tool_calls[0].expected_output
    assert output is not None
    assert output.value == "ok"


def test_a_sample_without_an_id_takes_the_name_it_is_given() -> None:
    nameless = {name: value for name, value in SAMPLE.items() if name != "id"}
    assert only(nameless, fallback_id="booking").id == "booking"
    assert only(SAMPLE, fallback_id="booking").id == "sample-7"
    assert mistakes(nameless) == [": id is missing; give it a name of its own"]


def entry(**metadata: Any) -> dict[str, Any]:
    """An element of a data file, with the field names and the empty target of the shipped ones."""
    return {
        "id": "airline-3",
        "input": [{"role": "user", "content": "Cancel my flight.", "terminating_condition": "cancelled"}],
        "metadata": {
            "subgoals": [{"type": "gradingNotes", "details": "Flight cancelled.", "turn": "all"}],
            "trace_type": "dynamic",
            **metadata,
        },
        "target": "",
        "domain": None,
    }


@pytest.mark.parametrize("key", ["expected_tools", "expected_tool_calls", "expectedTools"])
def test_a_data_file_loads_with_tool_calls_under_any_of_the_keys(key: str) -> None:
    text = "[{'tool_code': 'cancel(id=A7, reason=$AnyValue)', 'output': '$AnyValue'}]"
    as_dict = {
        "tool_name": "refund",
        "tool_inputs": [
            {"name": "amount", "content": 20.5, "mode": "exact"},
            {"name": "note", "content": "polite", "mode": "judge"},
        ],
        "tool_output": {"content": "done", "mode": "judge"},
        "turn": "all",
    }
    goals = only(entry(**{key: [text, as_dict, {"tool_code": "bye()"}]}))
    assert (goals.id, goals.user_instruction) == ("airline-3", "Cancel my flight.")
    assert [(subgoal.details, subgoal.turn) for subgoal in goals.subgoals] == [("Flight cancelled.", "all")]
    assert calls(goals) == [
        ("cancel", {"id": "A7", "reason": {"$AnyValue"}}, None),
        ("refund", {"amount": 20.5, "note": {"polite"}}, "all"),
        ("bye", {}, None),
    ]
    output = goals.expected_tool_calls[1].expected_output
    assert output is not None
    assert output.check == "done"


def test_a_data_file_is_a_list_of_goal_sets() -> None:
    found = read_goals([entry(), {**entry(), "id": 4}])
    assert [goals.id for _, goals in found.sets] == ["airline-3", "4"]
    assert found.mistakes == []


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        (
            "[{'tool_code': 'get(user_id=ivan_rossi_8555)', 'output': '$AnyValue'}]",
            "get",
            {"user_id": "ivan_rossi_8555"},
        ),
        ('[{"tool_code": "get(user_id=\'ivan\')"}]', "get", {"user_id": "ivan"}),
        ("get()", "get", {}),
        (" get-user ( ) ", "get-user", {}),
        ("sum(expression=1 + 2)", "sum", {"expression": {"1 + 2"}}),
        ("note(text=No Remarks)", "note", {"text": {"No Remarks"}}),
        ("note(text='No Remarks', n=5)", "note", {"text": {"No Remarks"}, "n": "5"}),
        (
            "book(seats=[1, 2], who={'a': 'b, c'}, by=(1, 2))",
            "book",
            {"seats": "[1, 2]", "who": "{'a': 'b, c'}", "by": "(1, 2)"},
        ),
        ("say(text='a, b', then=\"c, d\")", "say", {"text": "a, b", "then": "c, d"}),
        ("say(text='it's, well, fine', to=you)", "say", {"text": "it's, well, fine", "to": "you"}),
        ("say(text=I'm here, to=you)", "say", {"text": "I'm here", "to": "you"}),
        ("say(text=5 [approx, to=you)", "say", {"text": "5 [approx", "to": "you"}),
        ("say(equation=a=b)", "say", {"equation": "a=b"}),
    ],
)
def test_tool_strings(text: str, tool: str, arguments: dict[str, Any]) -> None:
    (call,) = calls_in(text)
    read = ExpectedToolCall.model_validate(call)
    assert (read.tool, _arguments(read)) == (tool, arguments)


@pytest.mark.parametrize(
    "text",
    [
        "", "nothing", "get(", "get(5)", "get(=5)", "[]", "[5]", "[{'tool': 'x'}]", "[{'tool_code': 5}]", "[open('x')]",
        "[{'tool_code': 'x()'", "[" * 5_000, "get(a=" + "x" * MAX_TOOL_STRING_CHARS + ")",
    ],
)  # fmt: skip
def test_a_text_that_is_no_tool_call_is_refused(text: str) -> None:
    with pytest.raises(ToolStringError):
        calls_in(text)


def eva_record(**fields: Any) -> dict[str, Any]:
    return {
        "id": "2.1",
        "user_goal": {
            "high_level_user_goal": "You want a refund.",
            "decision_tree": {
                "must_have_criteria": ["The refund is confirmed.", "It is $20 or more."],
                "edge_cases": [],
            },
        },
        "ground_truth": {
            "expected_scenario_db": {},
            "expected_trace": {
                "trace": [
                    {"event_type": "user_utterance", "utterance": "hi"},
                    {
                        "event_type": "tool_call",
                        "tool_name": "find",
                        "params": {"id": "A", "name": "<LAST_NAME_ROMANIZED>"},
                    },
                    {"event_type": "tool_response", "tool_name": "find", "status": "success", "response": {}},
                    {
                        "event_type": "tool_call",
                        "tool_name": "refund",
                        "params": {"amount": 20, "to": {"who": "<FIRST_NAME>"}},
                    },
                ]
            },
        },
        **fields,
    }


def test_an_eva_record_loads_with_its_criteria_and_expected_calls() -> None:
    goals = only(eva_record())
    assert (goals.id, goals.user_instruction) == ("2.1", "You want a refund.")
    assert [subgoal.details for subgoal in goals.subgoals] == ["The refund is confirmed.", "It is $20 or more."]
    assert calls(goals) == [("find", {"id": "A"}, None), ("refund", {"amount": 20}, None)]


def test_an_eva_record_needs_no_ground_truth() -> None:
    assert calls(only({name: value for name, value in eva_record().items() if name != "ground_truth"})) == []


def test_the_recorded_call_has_goals() -> None:
    """The real record beside the reference data; it is read where it lies."""
    record = conformance(RECORD.name) / "dataset_record.json"
    file = read_goal_file(record)
    assert file.mistakes == ()
    ((line, goals),) = file.sets
    raw = json.loads(record.read_text())
    assert (line, goals.id) == (1, "1.1.2")
    assert [subgoal.details for subgoal in goals.subgoals] == raw["user_goal"]["decision_tree"]["must_have_criteria"]
    assert [tool for tool, _, _ in calls(goals)] == [
        "get_reservation",
        "search_rebooking_options",
        "rebook_flight",
        "assign_seat",
    ]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (
            {**SAMPLE, "sub_goals": [{"turn": 1}, 7]},
            [
                "sub_goals[0]: details is missing; say in plain words what must be so",
                "sub_goals[1]: expected a mapping, seen 7",
            ],
        ),
        ({**SAMPLE, "sub_goals": []}, ["sub_goals: must not be empty"]),
        ({**SAMPLE, "sub_goals": "all"}, ['sub_goals: expected a list, seen "all"']),
        (
            {
                **SAMPLE,
                "expected_tool_calls": [
                    {"nope": 1},
                    {"tool": "t", "expected_parameters": [{"name": "a", "value": 1, "check": "x"}]},
                ],
            },
            [
                'expected_tool_calls[0]: expected a tool call with tool or tool_name, or a text with tool_code, seen {"nope": 1}',
                "expected_tool_calls[1].expected_parameters[0]: has both value and check; give value for an exact match, or "
                "check for a judge",
            ],
        ),
        ({**SAMPLE, "expected_tool_calls": {}}, ["expected_tool_calls: expected a list of tool calls, seen {}"]),
        (
            [entry(expectedTools=["get(5)", {"tool_name": "t", "tool_inputs": [{"name": "a", "content": 1, "mode": "fuzzy"}]}])],
            [
                "[0].metadata.expectedTools[0]: expected name=value, seen '5'",
                '[0].metadata.expectedTools[1]: expected content with mode exact or judge, seen {"name": "a", "content": 1, '
                '"mode": "fuzzy"}',
            ],
        ),
        (
            [{**entry(), "input": [{"content": 5}]}],
            ["[0].input[0].content: expected a text, seen 5; put it in quotes"],
        ),
        (eva_record(user_goal="a refund"), ["user_goal: expected decision_tree.must_have_criteria in user_goal, a list of texts"]),
        (
            eva_record(user_goal={"decision_tree": {"must_have_criteria": ["fine", 5]}}),
            ["user_goal.decision_tree.must_have_criteria[1]: expected a text, seen 5; put it in quotes"],
        ),
        (
            eva_record(ground_truth={"expected_trace": {"trace": [{"event_type": "tool_call", "tool_name": None, "params": {}}]}}),
            ["ground_truth.expected_trace.trace[0].tool: expected a text, seen null"],
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_where_they_are_in_the_original(document: object, told: list[str]) -> None:
    assert mistakes(document) == told
