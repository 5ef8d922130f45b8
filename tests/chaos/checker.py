"""Compares what is in `scores` with what the undisturbed run says must be there. Pure: records in, findings out.

It counts three things. *Missing*: a final score, or the closed fact of a call, that the undisturbed run has and the topic
has not; and a refused record that is not in quarantine. *Duplicate*: a record id read twice, a second final score of one
conversation, name, turn and index, or a second record that claims to be the first of its subject with a value, or the first
to know a stage of its turn, which is what counters count. *Wrong*: a final score that says something else than the
undisturbed run's, that the undisturbed run does not have, or that is no record of the contract.

Of a call that lost records nobody can say what its scores are to be: there only what is there twice counts.

What a final score says follows from the log alone, the end of a call and its silences too: whichever topic was read first,
whatever crashed in between, it must be equal.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from schemas.latency_stages import Stage
from schemas.scores import SCORE_RECORD, AnyScoreRecord, TurnStages, TurnStatus
from tests.chaos.newer_version import as_this_version

MOST_EXAMPLES: Final = 20
_MOST_ALIKE: Final = 3
"""Examples of one kind and name."""

Subject = tuple[str, str, int | None, int]
"""Conversation, name, turn and index: what a record is about."""
Coordinates = tuple[str, int, int]
"""Topic, partition and offset."""

_NOT_WHAT_BUT_HOW: Final = {
    "revision", "record_id", "is_first", "first_known", "is_change", "offsets", "through", "caused_at_ms", "code_version",
}  # fmt: skip
"""Which intermediate values came before, and when and from where it was written, may differ from run to run."""


_HASH: Final = "input_hash"


@dataclass(slots=True)
class Findings:
    """What a comparison found; of several partitions they add up.

    Attributes:
        missing: How many are missing.
        duplicate: How many are there twice.
        wrong: How many are wrong.
        calls: Closed calls of the undisturbed run.
        scores: Records read from `scores`.
        finals: Final scores compared.
        refused: Records that belong in quarantine.
        lost: Calls that may have lost records.
        by_name: How many findings there are of each kind and record name.
        examples_by_name: The first findings of each kind and record name, a line each.
    """

    missing: int = 0
    duplicate: int = 0
    wrong: int = 0
    calls: int = 0
    scores: int = 0
    finals: int = 0
    refused: int = 0
    lost: int = 0
    by_name: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples_by_name: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to complain about."""
        return not (self.missing or self.duplicate or self.wrong)

    def add(self, other: "Findings") -> None:
        """Takes over the findings of another partition."""
        for name in ("missing", "duplicate", "wrong", "calls", "scores", "finals", "refused", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_name.update(other.by_name)
        for about, examples in other.examples_by_name.items():
            self.examples_by_name.setdefault(about, []).extend(examples)

    @property
    def examples(self) -> list[str]:
        """The first findings, a line each: some of each kind and name, so that one fault does not hide the others."""
        alike = self.examples_by_name.values()
        some = [example for examples in alike for example in examples[:_MOST_ALIKE]]
        return some[:MOST_EXAMPLES]

    def note(self, kind: str, name: str, what: str) -> None:
        """Counts one finding about a record of this name, and keeps it as an example while there is room."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.by_name[kind, name] += 1
        examples = self.examples_by_name.setdefault((kind, name), [])
        if len(examples) < _MOST_ALIKE:
            examples.append(f"{kind}: {what}")


def compared(
    expected: Iterable[AnyScoreRecord],
    seen: Iterable[bytes],
    refused: frozenset[Coordinates] = frozenset(),
    quarantined: frozenset[Coordinates] = frozenset(),
    lost: AbstractSet[str] = frozenset(),
) -> Findings:
    """Compares one partition.

    Args:
        expected: What the undisturbed run published, in order.
        seen: The values of `scores`, in order, as a reader of committed records sees them.
        refused: What the undisturbed run refused.
        quarantined: What stands in quarantine of this partition.
        lost: Conversations of which records were deleted before they were read.
    """
    findings = Findings(refused=len(refused), lost=len(lost))
    finals = (record for record in expected if record.status is TurnStatus.FINAL)
    wanted = {_subject(record): said(record) for record in finals if record.conversation_id not in lost}
    findings.calls = sum(1 for subject in wanted if subject[1] == "closed")
    found = {subject: what for subject, what in _finals(seen, findings).items() if subject[0] not in lost}
    findings.finals = len(found)
    for subject in sorted(wanted.keys() ^ found.keys(), key=str):
        is_missing = subject in wanted
        what = _short(wanted[subject] if is_missing else found[subject])
        if is_missing:
            findings.note("missing", subject[1], f"{_named(subject)} is not there, expected {what}")
        else:
            findings.note("wrong", subject[1], f"{_named(subject)} is there, and nothing is expected: {what}")
    for subject in wanted.keys() & found.keys():
        if _HASH not in found[subject]:
            del wanted[subject][_HASH]
        if found[subject] != wanted[subject]:
            difference = _difference(wanted[subject], found[subject])
            findings.note("wrong", subject[1], f"{_named(subject)}: {difference}")
    for topic, partition, offset in sorted(refused - quarantined):
        findings.note("missing", "refused", f"{topic}[{partition}]@{offset} was to be refused and is not in quarantine")
    return findings


def said(record: AnyScoreRecord) -> dict[str, Any]:
    """What a record says, without when and after what it was said."""
    return record.model_dump(mode="json", exclude=_NOT_WHAT_BUT_HOW)


def _finals(seen: Iterable[bytes], findings: Findings) -> dict[Subject, dict[str, Any]]:
    """The final scores by what they are about; notes what stands there twice or is no score."""
    ids: Counter[str] = Counter()
    firsts: Counter[Subject] = Counter()
    stages: Counter[tuple[Subject, Stage]] = Counter()
    finals: Counter[Subject] = Counter()
    found: dict[Subject, dict[str, Any]] = {}
    for value in seen:
        findings.scores += 1
        ours = as_this_version(value)
        try:
            record = SCORE_RECORD.validate_json(ours)
        except ValidationError as error:
            findings.note(
                "wrong", "no score", f"no score: {error.errors(include_url=False)[0]['msg']}: {value[:100]!r}"
            )
            continue
        subject = _subject(record)
        name, what = record.name, _named(subject)
        ids[record.record_id] += 1
        if ids[record.record_id] > 1:
            findings.note("duplicate", name, f"{what}: {record.status} record {record.record_id} again")
            continue
        if record.status is TurnStatus.FINAL:
            finals[subject] += 1
            if finals[subject] > 1:
                findings.note("duplicate", name, f"{what}: a second final score, revision {record.revision}")
            found[subject] = said(record)
            if ours is not value:  # its hash is one of what the newer version says
                del found[subject][_HASH]
        firsts[subject] += record.is_first
        if record.is_first and firsts[subject] > 1:
            findings.note("duplicate", name, f"{what}: revision {record.revision} is the first one again")
        for stage in record.first_known if isinstance(record, TurnStages) else ():
            stages[subject, stage] += 1
            if stages[subject, stage] > 1:
                findings.note("duplicate", name, f"{what}: {stage} is known for the first time again")
    return found


def _subject(record: AnyScoreRecord) -> Subject:
    return record.conversation_id, record.name, record.turn, record.index


def _named(subject: Subject) -> str:
    conversation, name, turn, index = subject
    return f"{conversation} {name}" + ("" if turn is None else f" turn {turn}") + (f" index {index}" if index else "")


def _difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name} is {found.get(name)!r}, expected {wanted.get(name)!r}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    )


def _short(what: Mapping[str, Any]) -> str:
    return str({name: what[name] for name in what if name not in {"labels", "schema_version", "conversation_id"}})[:200]
