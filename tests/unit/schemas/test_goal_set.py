"""Goal sets in our own format and in others: their meaning, their digest, and every mistake with
its place.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.goals.goal_set import (
    DEFAULT_MAX_TURNS,
    MAX_SET_BYTES,
    MAX_SET_STEPS,
    MAX_SUBGOALS,
    MAX_TOOL_STRING_CHARS,
    ExpectedToolCall,
    GoalSet,
    ToolStringError,
    calls_in,
    read_goals,
)
from schemas.json_schemas import json_schema
from streamer.goals.files import read_goal_file
from tests.support.conformance_data import RECORD, conformance
from tests.support.known import some

ROOT = Path(__file__).parents[3]
SAYS = {"kind": "says", "speaker": "user", "pattern": "thanks"}
REBOOKING: dict[str, Any] = {
    "id": "rebooking",
    "agents": ["desk", "night-desk"],
    "user_instruction": "Move the flight to March 25.",
    "max_turns": 12,
    "subgoals": [
        {
            "id": "found",
            "details": "The reservation is found.",
            "check": {
                "kind": "tool_result",
                "tool": "get_reservation",
                "arguments": {
                    "confirmation_number": "ZK3FFW",
                    "last_name": {"matches": "rodr[ií]guez"},
                },
                "outcome": "success",
                "result": {"reservation.status": {"one_of": ["confirmed", "changed"]}},
            },
        },
        {
            "id": "no-apology",
            "details": "Nobody says sorry in the first minute.",
            "check": {
                "kind": "within",
                "seconds": 60,
                "check": {
                    "kind": "not",
                    "check": {"kind": "says", "speaker": "assistant", "pattern": "sorry"},
                },
            },
        },
        {"id": "friendly", "details": "The assistant is friendly.", "check": {"kind": "judge"}},
    ],
    "expected_tool_calls": [
        {
            "tool": "rebook_flight",
            "expected_parameters": [{"name": "waive_change_fee", "value": False}],
        }
    ],
}


def changed(**fields: Any) -> dict[str, Any]:
    return {**REBOOKING, **fields}


def with_check(check: object) -> dict[str, Any]:
    return {"id": "x", "subgoals": [{"id": "one", "details": "d", "check": check}]}


def mistakes(document: object) -> list[str]:
    return [f"{mistake.place}: {mistake.text}" for mistake in read_goals(document).mistakes]


def test_a_set_says_what_it_holds() -> None:
    ((_, goals),) = read_goals(REBOOKING).sets
    assert [(subgoal.id, subgoal.is_judged) for subgoal in goals.subgoals] == [
        ("found", False),
        ("no-apology", False),
        ("friendly", True),
    ]
    assert (goals.agents, goals.max_turns) == (("desk", "night-desk"), 12)
    assert goals.expected_tool_calls[0].expected_parameters[0].value is False
    assert GoalSet.model_validate({**with_check({"kind": "judge"})}).max_turns == DEFAULT_MAX_TURNS


def test_a_set_survives_json_and_pickle() -> None:
    goals = GoalSet.model_validate(REBOOKING)
    again = GoalSet.model_validate_json(goals.model_dump_json())
    assert (again, again.digest) == (goals, goals.digest)
    assert GoalSet.model_validate_json(goals.canonical()) == goals
    assert pickle.loads(pickle.dumps(goals)).digest == goals.digest  # noqa: S301 - our own bytes


def test_the_digest_depends_on_content_alone() -> None:
    goals = GoalSet.model_validate(REBOOKING)
    reordered = dict(reversed(REBOOKING.items()))
    assert GoalSet.model_validate(reordered).digest == goals.digest
    assert GoalSet.model_validate(changed(max_turns=13)).digest != goals.digest
    spelt_out = changed(expected_tool_calls=[{**REBOOKING["expected_tool_calls"][0], "turn": None}])
    assert GoalSet.model_validate(spelt_out).digest == goals.digest
    assert (
        GoalSet.model_validate(with_check({**SAYS, "pattern": "é"})).digest
        != GoalSet.model_validate(with_check({**SAYS, "pattern": "e"})).digest
    )


def test_the_canonical_form_is_what_it_was() -> None:
    """Digests are on topics: a new form would make every recorded set look changed."""
    goals = GoalSet.model_validate(
        {
            **with_check(
                {"kind": "tool_called", "tool": "t", "arguments": {"b": None, "a": {"at_most": 2}}}
            ),
            "max_turns": 20,
        }
    )
    assert goals.canonical() == (
        b'{"id":"x","subgoals":[{"check":{"arguments":{"a":{"at_most":2.0},"b":{"equals":null}},"kind":"tool_called",'
        b'"tool":"t"},"details":"d","id":"one"}]}'
    )
    assert goals.digest == "76b1f0eb7e4e9b476140cb3b33b8a4d9"


def test_the_digest_is_the_same_in_another_process() -> None:
    """Python draws a new seed for its own hashes in every process; the digest goes into a topic."""
    program = (
        "import sys; from schemas.goals.goal_set import GoalSet; "
        "print(GoalSet.model_validate_json(sys.stdin.read()).digest)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(REBOOKING),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == GoalSet.model_validate(REBOOKING).digest


def test_what_a_bare_argument_means() -> None:
    wanted = {
        "a": 5,
        "b": None,
        "c": [1],
        "d": {"equals": {"x": 1}},
        "e": {"at_least": 2},
        "f": {"present": False},
    }
    ((_, goals),) = read_goals(
        with_check({"kind": "tool_called", "tool": "t", "arguments": wanted})
    ).sets
    told = goals.model_dump(mode="json", exclude_defaults=True)["subgoals"][0]["check"]["arguments"]
    assert told == wanted | {"a": {"equals": 5}, "b": {"equals": None}, "c": {"equals": [1]}}


def test_every_mistake_is_told_not_just_the_first() -> None:
    told = mistakes(
        {
            "id": 5,
            "max_turns": 0,
            "oops": 1,
            "subgoals": [
                {"id": "a b", "details": "", "check": {"kind": "judge"}},
                {"id": "a", "detials": "x", "check": {"kind": "judge"}},
            ],
        }
    )
    assert told == [
        "id: expected a text, seen 5; put it in quotes",
        "subgoals[0].id: expected letters, digits, dot, dash and underscore, a letter or digit "
        'first; seen "a b"',
        "subgoals[0].details: must not be empty",
        "subgoals[1]: details is missing; say in plain words what must be so",
        "subgoals[1].detials: there is no field 'detials' here; probably 'details' is meant",
        "max_turns: must be greater than or equal to 1; seen 0",
        "oops: there is no field 'oops' here; there are id, agents, user_instruction, subgoals, "
        "expected_tool_calls, max_turns, "
        "num_judge_trials, optimize_judge_trials, max_retry_judge_trials, "
        "include_judge_explanation, template_subgoal",
    ]


def test_a_turn_that_no_call_is_judged_by_is_refused_in_our_own_format() -> None:
    def of_turns(*turns: object) -> dict[str, object]:
        judged = {"details": "d", "check": {"kind": "judge"}}
        return {
            "id": "g",
            "subgoals": [{**judged, "id": str(n), "turn": turn} for n, turn in enumerate(turns)],
        }

    assert mistakes(of_turns(None, "all")) == []
    assert mistakes(of_turns(None, "all", 0)) == [
        "subgoals[2].turn: no call is judged by it: a subgoal may be reached in any turn; seen 0. "
        "Leave it out, or put the check into "
        "one of kind `within`"
    ]
    # agent-inspect's own samples have it for scores of traces
    assert only(SAMPLE).subgoals[0].turn == 2


CHECK = "subgoals[0].check"


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("judge", f'{CHECK}: expected a mapping, for example `kind: judge`; seen "judge"'),
        (
            {"pattern": "x"},
            f"{CHECK}: kind is missing; say which kind of check it is, for example `kind: "
            "tool_called`",
        ),
        (
            {"within": {"turns": 3}},
            f"{CHECK}: kind is missing; say which kind of check it is, for example `kind: within`",
        ),
        (
            {"kind": "sayz"},
            f"{CHECK}: there is no check of kind 'sayz'; probably 'says' is meant, one of "
            "tool_called, tool_result, says, within, all_of, "
            "any_of, not, judge",
        ),
        (
            {"kind": "not", "check": {"kind": "judge"}},
            f"{CHECK}.check: a judge checks a whole subgoal, not a part of a check; expected one "
            "of tool_called, "
            "tool_result, says, within, all_of, any_of, not",
        ),
        (
            {**SAYS, "speaker": "agent"},
            f"{CHECK}.speaker: expected 'user' or 'assistant'; seen \"agent\"",
        ),
        (
            {**SAYS, "pattern": "a+"},
            f"{CHECK}.pattern: it repeats without a bound (*, + or {{3,}}); say how often at most, "
            f"for example {{1,80}}",
        ),
        (
            {**SAYS, "pattern": "a" * 501},
            f"{CHECK}.pattern: has 501 characters, and 500 are allowed; shorten it",
        ),
        (
            {"kind": "within", "check": SAYS},
            f"{CHECK}: expected either turns or seconds; for both, put one within inside the other",
        ),
        (
            {"kind": "within", "turns": 2, "seconds": 3, "check": SAYS},
            f"{CHECK}.seconds: expected either turns or seconds; for both, put one within inside "
            "the other",
        ),
        ({"kind": "all_of", "checks": []}, f"{CHECK}.checks: must not be empty"),
        (
            {"kind": "all_of", "checks": SAYS},
            f"{CHECK}.checks: expected a list, seen {json.dumps(SAYS)}",
        ),
        (
            {"kind": "tool_result", "tool": "t"},
            f"{CHECK}: nothing is said of the answer; give outcome (success or error) or result, "
            "or use tool_called",
        ),
        ({"kind": "tool_called"}, f"{CHECK}: tool is missing; name the tool"),
        (
            {"kind": "tool_called", "tool": "t", "arguments": {"a": {"mtches": "x"}}},
            f"{CHECK}.arguments.a: expected a value, or one of equals, one_of, matches, at_least, "
            "at_most, present; "
            'seen {"mtches": "x"}',
        ),
        (
            {"kind": "tool_called", "tool": "t", "arguments": {"a": {"equals": 1, "matches": "x"}}},
            f"{CHECK}.arguments.a.equals: there is a matcher already, and 'matches' beside it is "
            "not taken; make two checks, "
            "in an all_of",
        ),
        (
            {"kind": "tool_called", "tool": "t", "arguments": {"a": {"at_least": 2, "at_most": 1}}},
            f"{CHECK}.arguments.a: at_least is more than at_most, so no value fits; swap them",
        ),
        (
            {"kind": "tool_called", "tool": "t", "arguments": {"a": {"at_least": "many"}}},
            f'{CHECK}.arguments.a.at_least: expected a number, seen "many"',
        ),
    ],
)
def test_a_wrong_check_says_what_to_write(check: object, told: str) -> None:
    assert mistakes(with_check(check)) == [told]


def nested(depth: int) -> dict[str, Any]:
    check: dict[str, Any] = SAYS
    for _ in range(depth - 1):
        check = {"kind": "not", "check": check}
    return check


def subgoals(count: int, check: object = None) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "details": "d", "check": check or {"kind": "judge"}}
        for number in range(count)
    ]


def test_bounds_are_told_with_what_to_do() -> None:
    assert mistakes(with_check(nested(6))) == []
    assert mistakes(with_check(nested(7))) == [
        f"{CHECK}: checks are nested 7 deep, and 6 are allowed; make several subgoals"
    ]
    wide = {
        "kind": "all_of",
        "checks": [
            {"kind": "any_of", "checks": [SAYS] * 25},
            {"kind": "any_of", "checks": [SAYS] * 25},
        ],
    }
    assert mistakes(with_check(wide)) == [
        f"{CHECK}: has 53 checks, and 50 are allowed; make several subgoals of it"
    ]
    assert mistakes({"id": "x", "subgoals": subgoals(MAX_SUBGOALS)}) == []
    assert mistakes({"id": "x", "subgoals": subgoals(MAX_SUBGOALS + 1)}) == [
        "subgoals: has 51 entries, and 50 are allowed; leave some out"
    ]
    costly = {**SAYS, "pattern": ".{0,60}sorry.{0,60}x"}
    (told,) = mistakes({"id": "x", "subgoals": subgoals(5, costly)})
    assert told.startswith("subgoals[2].check: with this one, the patterns of the set may take 2")
    assert f"{MAX_SET_STEPS:,} are allowed" in told
    (told,) = mistakes(
        {
            "id": "x",
            "subgoals": [{**each, "details": "ü" * 4_000} for each in subgoals(MAX_SUBGOALS)],
        }
    )
    assert told.endswith(f"bytes as JSON, and {MAX_SET_BYTES} are allowed; shorten its texts")


def test_names_that_are_there_twice() -> None:
    assert mistakes(
        {"id": "x", "agents": ["a", "a"], "subgoals": [*subgoals(2), *subgoals(1)]}
    ) == [
        "subgoals[2].id: '0' names 2 subgoals; give each one its own",
        "agents[1]: 'a' is there twice; leave one out",
    ]
    assert mistakes([changed(), changed(agents=[])]) == [
        "[1].id: 'rebooking' is there twice; give each goal set its own id"
    ]
    assert mistakes([changed(), changed(id="other", agents=["night-desk"])]) == [
        "[1].agents[0]: 'night-desk' is an agent of 'rebooking' too; leave it to one goal set"
    ]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], ": holds no goal set; expected a mapping with id and subgoals, or a list of them"),
        (None, ": expected a goal set with id and subgoals, seen null"),
        ([3], "[0]: expected a goal set with id and subgoals, seen 3"),
    ],
)
def test_a_document_without_a_goal_set_says_so(document: object, told: str) -> None:
    assert mistakes(document) == [told]


def test_sets_beside_a_broken_one_are_still_read() -> None:
    found = read_goals([REBOOKING, {"id": "broken"}])
    assert [goals.id for _, goals in found.sets] == ["rebooking"]
    assert [mistake.path for mistake in found.mistakes] == [(1,)]


def test_the_schema_is_printed_and_closed() -> None:
    schema = json_schema("goals")
    assert schema["additionalProperties"] is False
    assert {"ToolCalled", "ToolResult", "Says", "Within", "AllOf", "AnyOf", "Not", "Judge"} <= set(
        schema["$defs"]
    )


def only(document: object, fallback_id: str | None = None) -> GoalSet:
    found = read_goals(document, fallback_id=fallback_id)
    assert found.mistakes == []
    ((_, goals),) = found.sets
    return goals


def calls(goals: GoalSet) -> list[tuple[str, dict[str, Any], object]]:
    """Tool, arguments (a judge's as a set of one) and turn of each expected call."""
    return [(call.tool, _arguments(call), call.turn) for call in goals.expected_tool_calls]


def _arguments(call: ExpectedToolCall) -> dict[str, Any]:
    return {
        each.name: each.value if each.check is None else {each.check}
        for each in call.expected_parameters
    }


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
            "expected_parameters": [
                {"name": "people", "value": 2},
                {"name": "note", "check": "something polite"},
            ],
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
    assert calls(goals) == [
        ("book", {"people": 2, "note": {"something polite"}}, 1),
        ("price", {}, None),
    ]
    output = some(goals.expected_tool_calls[0].expected_output)
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
        "input": [
            {"role": "user", "content": "Cancel my flight.", "terminating_condition": "cancelled"}
        ],
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
    assert [(subgoal.details, subgoal.turn) for subgoal in goals.subgoals] == [
        ("Flight cancelled.", "all")
    ]
    assert calls(goals) == [
        ("cancel", {"id": "A7", "reason": {"$AnyValue"}}, None),
        ("refund", {"amount": 20.5, "note": {"polite"}}, "all"),
        ("bye", {}, None),
    ]
    output = some(goals.expected_tool_calls[1].expected_output)
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


LEGS = "legs=[{'flight': 'X1', 'date': '2024-05-21'}, {'flight': 'X2', 'paid': True}]"
READ_LEGS = [{"flight": "X1", "date": "2024-05-21"}, {"flight": "X2", "paid": True}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"[{{'tool_code': 'change(id=AB1, {LEGS}, pay=card_1)', 'output': '$AnyValue'}}]",
            [("change", {"id": "AB1", "legs": READ_LEGS, "pay": "card_1"})],
        ),
        (f"{{'tool_code': 'change({LEGS})'}}", [("change", {"legs": READ_LEGS})]),
        (
            f"[{{'tool_code': 'get(n=5)'}}, {{'tool_code': 'change({LEGS})'}}, {{'tool_code': "
            f"'say(text='it's')', 'output': 'x'}}]",
            [("get", {"n": "5"}), ("change", {"legs": READ_LEGS}), ("say", {"text": "it's"})],
        ),
        (
            '[{"tool_code": "note(who={"a": "b"}, by=$AnyValue)", "output": "x"}]',
            [("note", {"who": {"a": "b"}, "by": {"$AnyValue"}})],
        ),
        ("[{'tool_code': 'pick(of={'a', 'b'})', 'output': 'x'}]", [("pick", {"of": "{'a', 'b'}"})]),
        ("[{'tool_code': 'open('x', 'y')', 'output': 'x'}]", [("open", {})]),
    ],
    ids=[
        "a list of objects",
        "one object without a list",
        "several calls",
        "double quotes",
        "no JSON",
        "no names: its tool",
    ],
)
def test_values_with_quotes_inside_are_read(
    text: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    read = [ExpectedToolCall.model_validate(call) for call in calls_in(text)]
    assert [(call.tool, _arguments(call)) for call in read] == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "get(",
        "get(5)",
        "get(=5)",
        "[]",
        "[5]",
        "[{'tool': 'x'}]",
        "[{'tool_code': 5}]",
        "[open('x')]",
        "[{'tool_code': 'x()'",
        "[" * 5_000,
        "get(a=" + "x" * MAX_TOOL_STRING_CHARS + ")",
    ],
)
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
                    {
                        "event_type": "tool_response",
                        "tool_name": "find",
                        "status": "success",
                        "response": {},
                    },
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
    assert [subgoal.details for subgoal in goals.subgoals] == [
        "The refund is confirmed.",
        "It is $20 or more.",
    ]
    assert calls(goals) == [("find", {"id": "A"}, None), ("refund", {"amount": 20}, None)]


def test_an_eva_record_needs_no_ground_truth() -> None:
    assert (
        calls(only({name: value for name, value in eva_record().items() if name != "ground_truth"}))
        == []
    )


def test_the_recorded_call_has_goals() -> None:
    """The real record beside the reference data; it is read where it lies."""
    record = conformance(RECORD.name) / "dataset_record.json"
    file = read_goal_file(record)
    assert file.mistakes == ()
    ((line, goals),) = file.sets
    raw = json.loads(record.read_text())
    assert (line, goals.id) == (1, "1.1.2")
    assert [subgoal.details for subgoal in goals.subgoals] == raw["user_goal"]["decision_tree"][
        "must_have_criteria"
    ]
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
                "expected_tool_calls[0]: expected a tool call with tool or tool_name, or a text "
                'with tool_code, seen {"nope": 1}',
                "expected_tool_calls[1].expected_parameters[0]: has both value and check; give "
                "value for an exact match, or "
                "check for a judge",
            ],
        ),
        (
            {**SAMPLE, "expected_tool_calls": {}},
            ["expected_tool_calls: expected a list of tool calls, seen {}"],
        ),
        (
            [
                entry(
                    expectedTools=[
                        "get(5)",
                        {
                            "tool_name": "t",
                            "tool_inputs": [{"name": "a", "content": 1, "mode": "fuzzy"}],
                        },
                    ]
                )
            ],
            [
                "[0].metadata.expectedTools[0]: expected name=value, seen '5'",
                "[0].metadata.expectedTools[1]: expected content with mode exact or judge, seen "
                '{"name": "a", "content": 1, '
                '"mode": "fuzzy"}',
            ],
        ),
        (
            [{**entry(), "input": [{"content": 5}]}],
            ["[0].input[0].content: expected a text, seen 5; put it in quotes"],
        ),
        (
            eva_record(user_goal="a refund"),
            ["user_goal: expected decision_tree.must_have_criteria in user_goal, a list of texts"],
        ),
        (
            eva_record(user_goal={"decision_tree": {"must_have_criteria": ["fine", 5]}}),
            [
                "user_goal.decision_tree.must_have_criteria[1]: expected a text, seen 5; put it in "
                "quotes"
            ],
        ),
        (
            eva_record(
                ground_truth={
                    "expected_trace": {
                        "trace": [{"event_type": "tool_call", "tool_name": None, "params": {}}]
                    }
                }
            ),
            ["ground_truth.expected_trace.trace[0].tool: expected a text, seen null"],
        ),
    ],
)
def test_mistakes_are_told_where_they_are_in_the_original(
    document: object, told: list[str]
) -> None:
    assert mistakes(document) == told
