"""Compares what is written beside `scores` with the undisturbed run: each call has its transcript
once, and each question is asked once. Pure.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from schemas.judging import JudgeRequest
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.chaos.verdict.undisturbed import Undisturbed

Places = Counter[tuple[str, str]]

TRANSCRIPT, QUESTION = "transcript", "question"
"""The names under which findings are counted."""


class Beside(NamedTuple):
    """What belongs beside `scores`.

    Attributes:
        transcripts: By call and digest of its bytes, how often each transcript is there.
        questions: By call and question, how often each is asked.
    """

    transcripts: Places
    questions: Places

    @classmethod
    def of(cls, undisturbed: Undisturbed) -> "Beside":
        """What belongs beside the scores of one partition number."""
        return cls(
            Counter(
                (each.conversation_id, digest_of(each.value)) for each in undisturbed.transcripts
            ),
            Counter((each.conversation_id, each.request_id) for each in undisturbed.questions),
        )

    def and_of(self, other: "Beside") -> "Beside":
        """What belongs there of these partitions and of another."""
        return Beside(self.transcripts + other.transcripts, self.questions + other.questions)


def digest_of(value: bytes) -> str:
    """A short name of a transcript's bytes."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def beside_compared(
    expected: Beside, transcripts: Iterable[ReadRecord], questions: Iterable[ReadRecord]
) -> Findings:
    """Compares all partitions at once: a call's key decides where its transcript and its questions
    are.

    Args:
        expected: What belongs there.
        transcripts: The records of `transcripts`.
        questions: The records of `judge.requests`.
    """
    findings = Findings()
    found = Counter((_text(record.key), digest_of(record.value or b"")) for record in transcripts)
    _compare(TRANSCRIPT, expected.transcripts, found, findings)
    asked: Places = Counter()
    for record in questions:
        request = JudgeRequest.model_validate_json(record.value or b"")
        if _text(record.key) != request.conversation_id:
            what = (
                f"the question {request.request_id} of {request.conversation_id} has the key "
                f"{record.key!r}"
            )
            findings.note("wrong", QUESTION, what)
        asked[request.conversation_id, request.request_id] += 1
    _compare(QUESTION, expected.questions, asked, findings)
    return findings


def _compare(name: str, expected: Places, found: Places, findings: Findings) -> None:
    for place in sorted(expected.keys() | found.keys()):
        conversation, what = place
        count, wanted = found[place], expected[place]
        if count != wanted:
            kind = "duplicate" if count > max(1, wanted) else "wrong" if count else "missing"
            findings.note(
                kind, name, f"{conversation} {what} is there {count} times, expected {wanted}"
            )


def _text(key: bytes | None) -> str:
    return (key or b"").decode("utf-8", "replace")
