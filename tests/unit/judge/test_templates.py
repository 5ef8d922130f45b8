"""A prompt of the user's own: its places are checked, its version follows its text, and the words of a call stay in their frame."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.judge.prompts import UnknownPromptError, question_of, read_answer, schema_of, sections_of
from schemas.closed_sets import JudgeKind
from schemas.goals.goal_set import GoalSet
from schemas.judging import (
    MAX_TEMPLATE_CHARS,
    OWN_PROMPT,
    JudgeRequest,
    TemplateError,
    TranscriptItem,
    check_template,
    prompt_version,
    prompt_version_of,
)
from tests.support.calls.judge_questions import question, talk

TEMPLATE = (
    "Our rules: a promise is enough.\n{call}\nIs {subgoal} done by turn {turn}? They wanted {user_instruction}. {{ok}}"
)


def asked(template: str = TEMPLATE, **fields: object) -> JudgeRequest:
    return question(template=template, prompt_version=prompt_version(template), **fields)


def test_every_place_is_filled_and_the_call_is_in_a_frame() -> None:
    made = question_of(asked(transcript=talk(1, 20), user_instruction="a later flight"), "structured")
    assert re.fullmatch(
        "Our rules: a promise is enough.\n"
        "BEGIN ([0-9a-f]{12})\n"
        '1 user "user in turn 1: wwww"\n1 assistant "assistant in turn 1:"\n'
        "END \\1\n"
        'Is "The flight is booked." done by turn 1\\? They wanted "a later flight". \\{ok\\}',
        made.user,
    ), made.user
    assert made.schema == schema_of(JudgeKind.SUBGOAL)
    assert question_of(asked(), "structured").user.endswith("They wanted null. {ok}")


def test_the_answer_keeps_its_form() -> None:
    """So a template cannot make answers unreadable."""
    sections = sections_of(OWN_PROMPT)
    assert question_of(asked(), "grade").system.endswith(sections["grade"])
    assert question_of(asked(), "structured").system.endswith(sections["structured"])
    answer = read_answer(JudgeKind.SUBGOAL, "grade", "Booked in turn 1.\nGRADE: C")
    assert answer is not None
    assert answer.grade is True


@given(
    st.lists(
        st.one_of(
            st.text(),
            st.sampled_from(["{call}", "{subgoal}", "{mark}", "{lines}", "END", "\nEND 000000000000\n{subgoal}", '"\n', "}}", "BEGIN"]),
        ),
        min_size=1,
    ).map("".join)
)  # fmt: skip
def test_words_of_a_call_cannot_close_the_frame(words: str) -> None:
    items = tuple(TranscriptItem(turn=1, kind="user", text=text[:30_000]) for text in (words, "the end"))
    user = question_of(asked(transcript=items), "structured").user
    before, begin, rest = user.partition("BEGIN ")
    mark = rest[:12]
    inside, end, after = rest[12:].partition(f"END {mark}")
    assert (before, begin, end) == ("Our rules: a promise is enough.\n", "BEGIN ", f"END {mark}")
    assert after == '\nIs "The flight is booked." done by turn 1? They wanted null. {ok}'
    assert mark not in inside
    lines = inside.strip("\n").split("\n")
    assert [line[:8] for line in lines] == ['1 user "', '1 user "']


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{call}\n\nDid {subgaol} happen?", "line 3: the place {subgaol} is not known; known are {call}, {subgoal}, {turn}"),
        ("{dynamicDialogue} {subgoal}", "it is agent-inspect's, and {call} has the same here"),
        ("Is {subgoal} done?", "the place {call} is missing"),
        ("{call} Done?", "the place {subgoal} is missing"),
        ("{call}{subgoal}\n{call}", "the place {call} is in line 1 and line 2; leave one of them"),
        ("{call}{subgoal}" + "x" * MAX_TEMPLATE_CHARS, "the template has 20,015 characters, and 20,000 are allowed"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_refused_with_its_place(template: str, expected: str) -> None:
    with pytest.raises(TemplateError) as error:
        check_template(template)
    assert expected in str(error.value)


def test_another_text_is_another_question_and_the_same_text_the_same() -> None:
    changed = TEMPLATE.replace("enough", "not enough")
    ids = {asked().request_id, asked(changed).request_id, question().request_id}
    assert len(ids) == 3
    assert asked().request_id == asked().request_id
    assert prompt_version_of(TEMPLATE).startswith(f"{OWN_PROMPT}.")


def test_a_version_that_is_not_that_of_the_template_is_unknown() -> None:
    wrong = asked().model_copy(update={"template": "{call} {subgoal}"})
    with pytest.raises(UnknownPromptError):
        question_of(wrong, "structured")


def test_a_goal_set_names_the_line_of_its_template() -> None:
    subgoals = [{"id": "a", "details": "A.", "check": {"kind": "judge"}}]
    with pytest.raises(ValueError, match=r"line 2: the place \{calls\} is not known"):
        GoalSet.model_validate({"id": "x", "subgoals": subgoals, "template_subgoal": "{subgoal}\n{calls}"})
    plain = GoalSet.model_validate({"id": "x", "subgoals": subgoals})
    own = GoalSet.model_validate({"id": "x", "subgoals": subgoals, "template_subgoal": TEMPLATE})
    assert plain.digest != own.digest
    assert "template_subgoal" not in plain.model_dump_json()
