"""Faithfulness is judged against what the agent was told; what cannot be judged without it is not
asked and not rated.
"""

import json

import pytest

from consumers.judge.prompts import POLICIES, not_applicable_to, question_of, read_answer, schema_of
from schemas.closed_sets import JudgeKind
from schemas.judging import AgentBrief, Rated
from tests.support.calls.judge_questions import question

KIND = JudgeKind.FAITHFULNESS
TOLD = AgentBrief(instructions="Never refund without a manager.")
RATINGS = dict.fromkeys(schema_of(KIND)["required"][1:], 3)


def rated(brief: AgentBrief | None, **ratings: int) -> Rated:
    left_out = not_applicable_to(question(kind=KIND, agent_brief=brief))
    answer = read_answer(
        KIND, "structured", json.dumps({"explanation": "", **RATINGS, **ratings}), None, left_out
    )
    assert answer is not None
    assert isinstance(answer.rating, Rated)
    return answer.rating


@pytest.mark.parametrize("brief", [None, AgentBrief(role="clerk"), AgentBrief(instructions="")])
def test_without_instructions_nothing_is_asked_or_said_of_them(brief: AgentBrief | None) -> None:
    asked = question_of(question(kind=KIND, agent_brief=brief), "structured")
    assert POLICIES not in asked.system + json.dumps(asked.schema)
    rating = rated(brief, violating_policies=1)
    assert rating.normalised == 1.0
    assert rating.dimensions.keys() == RATINGS.keys() - {POLICIES}
    assert rating.not_applicable == {POLICIES: "the agent's instructions are not known"}


def test_with_instructions_their_violation_counts() -> None:
    asked = question_of(question(kind=KIND, agent_brief=TOLD), "structured")
    assert f"{POLICIES}: the assistant does what its instructions forbid" in asked.system
    assert POLICIES in json.dumps(asked.schema)
    rating = rated(TOLD, violating_policies=1)
    assert (rating.normalised, rating.dimensions[POLICIES], rating.not_applicable) == (0.0, 1, {})
