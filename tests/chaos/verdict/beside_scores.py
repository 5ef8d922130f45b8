"""Compares what is written beside `scores` with the undisturbed run: each call has its transcript once, and each question is asked
once, by the partition of its call. Pure.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from schemas.judging import REPLY_PARTITION_HEADER, JudgeRequest
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
        questions: By call and question with its partition number, how often each is asked.
        lost: Calls that may have lost records.
    """

    transcripts: Places
    questions: Places
    lost: AbstractSet[str]

    @classmethod
    def of(cls, undisturbed: Undisturbed, number: int, lost: Iterable[str]) -> "Beside":
        """What belongs beside the scores of one partition number."""
        return cls(
            Counter((each.conversation_id, digest_of(each.value)) for each in undisturbed.transcripts),
            Counter((each.conversation_id, asked_by(each.request_id, number)) for each in undisturbed.questions),
            frozenset(lost),
        )

    def and_of(self, other: "Beside") -> "Beside":
        """What belongs there of these partitions and of another."""
        return Beside(self.transcripts + other.transcripts, self.questions + other.questions, self.lost | other.lost)


def asked_by(request_id: str, number: object) -> str:
    """A question and the partition number to which its verdict comes."""
    return f"{request_id} of partition {number}"


def digest_of(value: bytes) -> str:
    """A short name of a transcript's bytes."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def beside_compared(expected: Beside, transcripts: Iterable[ReadRecord], questions: Iterable[ReadRecord]) -> Findings:
    """Compares all partitions at once: a call's key decides where its transcript and its questions are.

    Args:
        expected: What belongs there.
        transcripts: The records of `transcripts`.
        questions: The records of `judge.requests`, with their headers.
    """
    findings = Findings()
    found = Counter((_text(record.key), digest_of(record.value or b"")) for record in transcripts)
    _compare(TRANSCRIPT, expected.transcripts, found, expected.lost, findings)
    asked: Places = Counter()
    for record in questions:
        request = JudgeRequest.model_validate_json(record.value or b"")
        if _text(record.key) != request.conversation_id:
            what = f"the question {request.request_id} of {request.conversation_id} has the key {record.key!r}"
            findings.note("wrong", QUESTION, what)
        number = dict(record.headers).get(REPLY_PARTITION_HEADER, b"").decode()
        asked[request.conversation_id, asked_by(request.request_id, number)] += 1
    _compare(QUESTION, expected.questions, asked, expected.lost, findings)
    return findings


def _compare(name: str, expected: Places, found: Places, lost: AbstractSet[str], findings: Findings) -> None:
    for place in sorted(expected.keys() | found.keys()):
        conversation, what = place
        count, wanted = found[place], expected[place]
        is_doubled = count > max(1, wanted)
        if is_doubled or (count != wanted and conversation not in lost):
            kind = "duplicate" if is_doubled else "wrong" if count else "missing"
            findings.note(kind, name, f"{conversation} {what} is there {count} times, expected {wanted}")


def _text(key: bytes | None) -> str:
    return (key or b"").decode("utf-8", "replace")
