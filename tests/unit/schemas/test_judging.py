"""Questions and verdicts: ids that follow from the question, and shapes that cannot be wrong."""

import json

import pytest
from pydantic import ValidationError

from consumers.judge.prompts import schema_of
from schemas.closed_sets import TEXT_JUDGES, JudgeKind, TrialOutcome, UnjudgedReason
from schemas.judging import (
    MAX_QUESTION_BYTES,
    PROMPT_VERSIONS,
    AgentBrief,
    GoalSetRef,
    JudgeRequest,
    JudgeVerdict,
    TranscriptItem,
    Votes,
    transcript_chars,
)
from schemas.metrics.catalogue import metric_named
from tests.support.calls.judge_questions import question, talk

CHANGES = {
    "conversation_id": "c-2",
    "turn": 2,
    "subgoal_id": "other",
    "subgoal": "Another subgoal.",
    "user_instruction": "Book a flight.",
    "agent_brief": AgentBrief(role="clerk"),
    "transcript": talk(1, 41),
    "prompt_version": "subgoal.9",
}
SAME = {
    "asked_at_ms": 5,
    "deadline_ms": 6,
    "priority": 3,
    "agent": "ben",
    "goal_set": GoalSetRef(id="other", digest="d"),
    "trials": 3,
    "stops_early": False,
    "retry_waves": 0,
}


def test_every_field_is_part_of_the_id_or_is_not() -> None:
    named_by_version = {"template"}
    assert CHANGES.keys() | SAME.keys() | named_by_version | {
        "type",
        "schema_version",
        "kind",
    } == set(JudgeRequest.model_fields)


@pytest.mark.parametrize("field", CHANGES)
def test_another_question_has_another_id(field: str) -> None:
    transcript = {"transcript": talk(1, 40)}
    assert (
        question(**transcript).request_id
        != question(**(transcript | {field: CHANGES[field]})).request_id
    )


def test_who_asks_and_when_changes_no_id() -> None:
    assert question(**SAME).request_id == question().request_id


@pytest.mark.parametrize("field", ["subgoal", "user_instruction", "agent_brief", "transcript"])
def test_another_input_has_another_hash(field: str) -> None:
    assert question(**{field: CHANGES[field]}).input_hash != question().input_hash


def test_what_is_asked_about_the_same_input_has_the_same_hash() -> None:
    transcript = talk(1, 40)
    one, other = (
        question(turn=turn, subgoal_id=str(turn), transcript=transcript) for turn in (1, 2)
    )
    assert one.input_hash == other.input_hash
    assert one.request_id != other.request_id


def test_neighbours_are_kept_apart() -> None:
    def hash_of(*said: tuple[int, str]) -> str:
        items = tuple(TranscriptItem(turn=turn, kind="user", text=text) for turn, text in said)
        return question(transcript=items).input_hash

    assert (
        len(
            {
                hash_of((1, "ab"), (1, "c")),
                hash_of((1, "a"), (1, "bc")),
                hash_of((11, "b"), (1, "c")),
            }
        )
        == 3
    )
    tool, name = ({"tool": "a", "text": "b"}, {"tool": None, "text": "ab"})
    assert (
        len(
            {
                question(transcript=[{"turn": 1, "kind": "tool_call", **each}]).input_hash
                for each in (tool, name)
            }
        )
        == 2
    )


def test_ids_are_pinned() -> None:
    """Another way to make them would ask everything again that is open during an update."""
    asked = question(transcript=talk(1, 40), prompt_version="subgoal.1")
    assert (asked.input_hash, asked.request_id) == PINNED


PINNED = ("338924252b56855379a08f882ef1a822", "8b5fbd9f8150a64d5828f6ba7a1d9d80")


def test_a_question_survives_the_wire() -> None:
    asked = question(goal_set={"id": "a", "digest": "b"}, transcript=talk(2))
    text = asked.model_dump_json()
    assert JudgeRequest.model_validate_json(text) == asked
    assert json.loads(text)["request_id"] == asked.request_id


@pytest.mark.parametrize(
    "fields",
    [
        {"trials": 4},
        {"trials": 0},
        {"trials": 101},
        {"retry_waves": 21},
        {"subgoal": None},
        {"subgoal_id": None},
        {"kind": "conciseness", "subgoal": "x", "subgoal_id": "y"},
        {"priority": 10},
        {"transcript": [{"turn": 1, "kind": "narrator", "text": "x"}]},
        {"subgoal": "x" * 32_769},
    ],
)
def test_a_question_that_makes_no_sense_cannot_be_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        question(**fields)


@pytest.mark.parametrize(
    ("text", "items", "is_too_large"),
    [
        ("w" * 200, 40, False),
        ("w" * 30_000, 6, False),
        ("w" * 30_000, 40, True),
        ("\u6771" * 30_000, 12, True),
        ("\x00" * 30_000, 7, True),
        ("", 5_000, False),
    ],
)
def test_a_question_that_fits_no_record_is_known(text: str, items: int, is_too_large: bool) -> None:
    asked = question(
        transcript=[TranscriptItem(turn=1_000, kind="tool_response", text=text, tool="t")] * items
    )
    assert (
        asked.is_too_large
        == is_too_large
        == (len(asked.model_dump_json().encode()) > MAX_QUESTION_BYTES)
    )


def test_characters_of_a_transcript() -> None:
    items = [*talk(3, 100), TranscriptItem(turn=3, kind="tool_call", tool="book", text="{}")]
    assert transcript_chars(items) == 606


@pytest.mark.parametrize(
    ("votes", "confidence", "is_unanimous"),
    [
        (Votes(), None, True),
        (Votes(invalid=3), None, True),
        (Votes(complete=3), 1.0, True),
        (Votes(complete=3, incomplete=1, invalid=1), 0.75, False),
        (Votes(complete=2, incomplete=3), 0.6, False),
    ],
)
def test_confidence_is_the_share_of_usable_answers(
    votes: Votes, confidence: float | None, is_unanimous: bool
) -> None:
    assert (votes.confidence, votes.is_unanimous) == (confidence, is_unanimous)


def test_a_verdict_of_a_later_version_is_read() -> None:
    text = json.dumps(
        {
            "type": "judge_verdict",
            "timestamp": 1,
            "request_id": "r",
            "conversation_id": "c",
            "kind": "subgoal",
            "turn": 1,
            "input_hash": "i",
            "prompt_version": "subgoal.9",
            "result": {"outcome": "judged", "is_completed": True, "new": 1},
            "new": 2,
        }
    )
    assert JudgeVerdict.model_validate_json(text).request_id == "r"


def test_the_catalogue_has_every_kind_outcome_and_reason() -> None:
    verdicts = {
        label.name: set(label.values)
        for label in metric_named("callgauge_judge_verdicts_total").label_set
    }
    requests = {
        label.name: set(label.values)
        for label in metric_named("callgauge_judge_requests_total").label_set
    }
    assert verdicts["kind"] == set(JudgeKind)
    assert verdicts["outcome"] == {
        "complete",
        "incomplete",
        "rated",
        "not_applicable",
        *UnjudgedReason,
    }
    assert requests["outcome"] == set(TrialOutcome)


def test_every_kind_has_a_prompt_and_a_schema() -> None:
    assert set(PROMPT_VERSIONS) == set(JudgeKind) == {JudgeKind.SUBGOAL, *TEXT_JUDGES}
    assert all(schema_of(kind) for kind in JudgeKind)
