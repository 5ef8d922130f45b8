"""Compares `scores` with the records of the undisturbed run. Pure: records in, findings out.

After `closed` the newest revision of each subject (conversation, name, turn and index) is final, so those are compared. What
was taken back, and what was never there, are the same. It counts three things. *Missing*: a subject that the undisturbed run
has and the topic has not. *Duplicate*: a record id
read twice, one that says nothing new, a second `closed` or final record of a call, or what counters count: a second record that
claims to be the first of its subject with a value, or the first of its turn to know a value. *Wrong*: a newest revision that says
something else than the undisturbed run's, that the undisturbed run does not have, or that is no record of the contract; a revision
below the one before it, what is final and is not any more, offsets that go back; and any record of a call after its end.

Revisions of a subject never fall in the order of the log. When another version of the code takes a call over, it says everything again,
with an odd revision: that may say what the one before it said, and come twice if two owners end in front of the same record.

What a newest revision says, and which step decided it, follows from the log alone, the end of a call and its silences too: whichever
topic was read first, whatever crashed in between, it must be equal. So do the offsets up to which a call was folded when it ended, and
its transcript.
Which questions a judge is asked does not: but each of them is asked once, and before the call closes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from schemas.scores.live_view import is_withdrawn
from schemas.scores.records import (
    SCORE_RECORD,
    AnyScoreRecord,
    CallValues,
    ClosedFact,
    TurnStatus,
    TurnValues,
)
from tests.chaos.evaluators.newer_version import as_this_version

MOST_EXAMPLES: Final = 20
_MOST_ALIKE: Final = 3
"""Examples of one kind and name."""

Subject = tuple[str, str, int | None, int]
"""Conversation, name, turn and index: the subject of a record."""
Coordinates = tuple[str, int, int]
"""Topic, partition and offset."""

_NOT_WHAT_BUT_HOW: Final = {
    "status", "record_id", "is_first", "first_known", "offsets", "through", "caused_at_ms", "code_version",
}  # fmt: skip
"""Which intermediate values came before, and when and from where it was written, may differ from run to run."""
_WHEN: Final = {"labels", "event_time_ms"}
"""Labels and time of the event that last changed a value: which event that is depends on the order of reading."""
_WHENEVER: Final = {"call_started", "dead_air", "call", "closed"}
"""Of these not even that may differ: they say it of the call, of a silence, or of the end."""
_OF_ONE_LOG: Final = {"revision", "offsets", "through"}
"""Fields of a record that depend on its place in the log."""
_PLACE: Final = {"offsets", "through"}
_AT_THE_END: Final = {"closed"}
"""Of these not even the offsets may differ."""

_HASH: Final = "input_hash"
_REVISION: Final = "revision"


@dataclass(slots=True)
class Findings:
    """Findings of a comparison; those of several partitions add up.

    Attributes:
        missing: How many are missing.
        duplicate: How many are there twice.
        wrong: How many are wrong.
        calls: Closed calls of the undisturbed run.
        scores: Records read from `scores`.
        finals: Newest revisions compared.
        refused: Records that belong in quarantine.
        admitted: Records of the inputs that belong in the log.
        lost: Of them, those that were deleted before they were read.
        repeats: Records of the log that were in it already.
        void: Records of the log behind those of a later sequencer.
        again: Records published once again, because another version of the code took their call over.
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
    admitted: int = 0
    lost: int = 0
    repeats: int = 0
    void: int = 0
    again: int = 0
    by_name: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples_by_name: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to complain about."""
        return not (self.missing or self.duplicate or self.wrong)

    def add(self, other: "Findings") -> None:
        """Takes over the findings of another partition."""
        for name in (
            "missing", "duplicate", "wrong", "calls", "scores", "finals", "refused", "admitted", "lost", "repeats", "void", "again",
        ):  # fmt: skip
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


def compared(expected: Iterable[AnyScoreRecord], seen: Iterable[bytes], *, is_one_log: bool = True) -> Findings:
    """Compares one partition.

    Args:
        expected: Records of the undisturbed run, in order.
        seen: The values of `scores`, in order, as a reader of committed records sees them.
        is_one_log: Whether both runs folded the same log. In two logs of the same inputs the events have other places, because ticks
            are between them.
    """
    findings = Findings()
    newest = {_subject(record): record for record in expected}
    wanted = {subject: said(record) for subject, record in newest.items() if not is_withdrawn(record)}
    findings.calls = sum(1 for subject in wanted if subject[1] == "closed")
    found = _newest(seen, findings)
    findings.finals = len(found)
    if not is_one_log:
        wanted, found = _without_places(wanted), _without_places(found)
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
        if is_again(found[subject].get(_REVISION, 1)):
            for each in (wanted, found):
                each[subject].pop(_REVISION, None)
        if found[subject] != wanted[subject]:
            difference = _difference(wanted[subject], found[subject])
            findings.note("wrong", subject[1], f"{_named(subject)}: {difference}")
    return findings


def _without_places(records: Mapping[Subject, dict[str, Any]]) -> dict[Subject, dict[str, Any]]:
    return {
        subject: {name: value for name, value in what.items() if name not in _OF_ONE_LOG}
        for subject, what in records.items()
    }


def said(record: AnyScoreRecord) -> dict[str, Any]:
    """The content of a record, without its time and its offsets."""
    left_out = _NOT_WHAT_BUT_HOW if record.name in _WHENEVER else _NOT_WHAT_BUT_HOW | _WHEN
    if record.name in _AT_THE_END:
        left_out = left_out - _PLACE
    return record.model_dump(mode="json", exclude=left_out)


def is_again(revision: int) -> bool:
    """Whether something has this revision that a version of the code says again that has taken a call over."""
    return revision % 2 == 1


def _newest(seen: Iterable[bytes], findings: Findings) -> dict[Subject, dict[str, Any]]:
    """The newest values by subject; notes doubled records, those out of order and those that are no scores."""
    read = _Read(findings)
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
        read.take(record, is_newer_version=ours is not value)
    return {subject: what for subject, (_, what) in read.newest.items() if what is not None}


class _Read:
    """The records read so far.

    Attributes:
        newest: By subject, its highest revision and the value of that; None where the revision withdraws the score.
    """

    def __init__(self, findings: Findings) -> None:
        self.newest: dict[Subject, tuple[int, dict[str, Any] | None]] = {}
        self._hashes: dict[Subject, str] = {}
        self._findings = findings
        self._ids: set[str] = set()
        self._once: Counter[tuple[Subject, str]] = Counter()
        self._over: set[str] = set()
        self._final: set[Subject] = set()
        self._offsets: dict[tuple[str, str], int] = {}

    def take(self, record: AnyScoreRecord, *, is_newer_version: bool) -> None:
        """One more record; a newer version's hash is of that version's own content."""
        subject = _subject(record)
        is_end = isinstance(record, ClosedFact) or (
            isinstance(record, CallValues) and record.status is TurnStatus.FINAL
        )
        if record.record_id in self._ids and (is_end or not is_again(record.revision)):
            what = f"{_named(subject)}: {record.status} record {record.record_id} again"
            self._findings.note("duplicate", record.name, what)
            return
        self._ids.add(record.record_id)
        highest, _ = self.newest.get(subject, (0, None))
        if record.revision < highest:
            what = f"{_named(subject)}: revision {record.revision} comes after {highest}"
            self._findings.note("wrong", record.name, what)
        self._require_news(subject, record)
        if not is_again(record.revision):
            self._require_progress(subject, record)
        if is_end:
            self._require_once(subject, f"a second final record, revision {record.revision}", "final")
        elif record.conversation_id in self._over:
            self._findings.note("wrong", record.name, f"{_named(subject)}: revision {record.revision} after the end")
        if isinstance(record, ClosedFact):
            self._over.add(record.conversation_id)
        if record.is_first:
            self._require_once(subject, f"revision {record.revision} is the first one again", "first")
        for name in record.first_known if isinstance(record, TurnValues) else ():
            self._require_once(subject, f"{name} is known for the first time again", name)
        if record.revision >= highest:
            what_it_says = None if is_withdrawn(record) else said(record)
            if what_it_says is not None and is_newer_version:
                del what_it_says[_HASH], what_it_says[_REVISION]
            self.newest[subject] = record.revision, what_it_says

    def _require_progress(self, subject: Subject, record: AnyScoreRecord) -> None:
        """What is final stays final, and no offset of a call goes back, except where values are published once again. Other statuses
        do go back: a late event opens a turn again.
        """
        if record.status is TurnStatus.FINAL:
            self._final.add(subject)
        elif subject in self._final:
            what = f"{_named(subject)}: revision {record.revision} is {record.status} after a final one"
            self._findings.note("wrong", record.name, what)
        for topic, offset in record.offsets.items():
            place = record.conversation_id, topic
            if offset < self._offsets.get(place, offset):
                what = f"{_named(subject)}: revision {record.revision} is of {topic}@{offset}, after {self._offsets[place]}"
                self._findings.note("wrong", record.name, what)
            self._offsets[place] = offset

    def _require_news(self, subject: Subject, record: AnyScoreRecord) -> None:
        """A revision says something new, unless another version of the code says everything once again."""
        says_the_same = self._hashes.get(subject) == record.input_hash
        self._hashes[subject] = record.input_hash
        if is_again(record.revision):
            self._findings.again += says_the_same
        elif says_the_same:
            what = f"{_named(subject)}: revision {record.revision} says what the one before it said"
            self._findings.note("duplicate", record.name, what)

    def _require_once(self, subject: Subject, seen: str, what: str) -> None:
        self._once[subject, what] += 1
        if self._once[subject, what] > 1:
            self._findings.note("duplicate", subject[1], f"{_named(subject)}: {seen}")


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
