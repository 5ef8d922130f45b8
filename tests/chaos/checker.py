"""Compares what is in `scores` with what the undisturbed run says must be there. Pure: records in, findings out.

It counts three things. *Missing*: a final score, or the closed fact of a call, that the undisturbed run has and the topic
has not; and a refused record that is not in quarantine. *Duplicate*: a record id read twice, a second final score of one
conversation, name, turn and index, or a second record that claims to be the first of its subject with a value, which is
what counters count. *Wrong*: a final score that says something else than the undisturbed run's, that the undisturbed run
does not have, or that is no record of the contract.

Nearly everything a final score says follows from the log alone, so it must be equal. Two things do not, and are treated so:

* A simulated caller hangs up with two events on two topics in the same moment, `session_ended` and `call_ended`. Which of
  them is read first decides the reason of the closed fact. Either is right; any other reason must be the expected one.
* Dead air is a fact: whoever was there decided by waiting, and what it wrote stands. Two records within a silence, on two
  topics, can be read in either order, and a tool call read late explains a silence that was already declared. So a dead air
  is found by its call and since when it was silent; its turn and number are those of the moment. One that only one of the
  two runs has is asked of the engine again, with the topics of the call read in many other orders. It is missing if every
  order has it and wrong if none has; otherwise the log leaves it open, and it is counted apart (`silences`) and no fault.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from schemas.scores import SCORE_RECORD, AnyScoreRecord, ClosedFact, CloseReason, DeadAirFact, TurnStatus

MOST_EXAMPLES: Final = 20
_MOST_ALIKE: Final = 3
"""Examples of one kind and name."""

DEAD_AIR: Final = "dead_air"

Subject = tuple[str, str, int | None, int]
"""Conversation, name, turn and index: what a record is about."""
Coordinates = tuple[str, int, int]
"""Topic, partition and offset."""
SilencesByOrder = Callable[[str], Sequence[frozenset[int]]]
"""Given a conversation id: since when it was silent, for each order of reading its topics."""

_NOT_WHAT_BUT_HOW: Final = {
    "revision", "record_id", "is_first", "is_change", "offsets", "through", "caused_at_ms", "code_version",
}  # fmt: skip
"""Which intermediate values came before, and when and from where it was written, may differ from run to run."""
_ANNOUNCED_ENDS: Final = frozenset({CloseReason.ENDED, CloseReason.SESSION_ENDED})


@dataclass(slots=True)
class Findings:
    """What a comparison found; of several partitions they add up.

    Attributes:
        missing: How many are missing.
        duplicate: How many are there twice.
        wrong: How many are wrong.
        silences: How many dead airs the undisturbed run judges otherwise, because of the order in which topics are read.
        calls: Closed calls of the undisturbed run.
        scores: Records read from `scores`.
        finals: Final scores compared.
        refused: Records that belong in quarantine.
        by_name: How many findings there are of each kind and record name.
        examples_by_name: The first findings of each kind and record name, a line each.
    """

    missing: int = 0
    duplicate: int = 0
    wrong: int = 0
    silences: int = 0
    calls: int = 0
    scores: int = 0
    finals: int = 0
    refused: int = 0
    by_name: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples_by_name: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to complain about."""
        return not (self.missing or self.duplicate or self.wrong)

    def add(self, other: "Findings") -> None:
        """Takes over the findings of another partition."""
        for name in ("missing", "duplicate", "wrong", "silences", "calls", "scores", "finals", "refused"):
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
    silences_by_order: SilencesByOrder = lambda _conversation_id: [],
) -> Findings:
    """Compares one partition.

    Args:
        expected: What the undisturbed run published, in order.
        seen: The values of `scores`, in order, as a reader of committed records sees them.
        refused: What the undisturbed run refused.
        quarantined: What stands in quarantine of this partition.
        silences_by_order: Asked of a call whose dead air is disputed; by default the undisturbed run is always right.
    """
    findings = Findings(refused=len(refused))
    wanted = {_place(record): said(record) for record in expected if record.status is TurnStatus.FINAL}
    findings.calls = sum(1 for subject in wanted if subject[1] == "closed")
    found = _finals(seen, findings)
    findings.finals = len(found)
    for subject in sorted(wanted.keys() ^ found.keys(), key=str):
        is_missing = subject in wanted
        what = _short(wanted[subject] if is_missing else found[subject])
        if subject[1] == DEAD_AIR and _is_open(subject, silences_by_order(subject[0]), is_missing=is_missing):
            findings.silences += 1
        elif is_missing:
            findings.note("missing", subject[1], f"{_named(subject)} is not there, expected {what}")
        else:
            findings.note("wrong", subject[1], f"{_named(subject)} is there, and nothing is expected: {what}")
    for subject in wanted.keys() & found.keys():
        if found[subject] != wanted[subject]:
            difference = _difference(wanted[subject], found[subject])
            findings.note("wrong", subject[1], f"{_named(subject)}: {difference}")
    for topic, partition, offset in sorted(refused - quarantined):
        findings.note("missing", "refused", f"{topic}[{partition}]@{offset} was to be refused and is not in quarantine")
    return findings


def said(record: AnyScoreRecord) -> dict[str, Any]:
    """What a record says, without when and after what it was said, and without what the log leaves open."""
    what = record.model_dump(mode="json", exclude=_NOT_WHAT_BUT_HOW)
    if isinstance(record, ClosedFact) and record.reason in _ANNOUNCED_ENDS:
        what["reason"] = "announced"
        del what["input_hash"]  # it is made of the reason
    elif isinstance(record, DeadAirFact):
        for of_the_moment in ("turn", "index", "input_hash"):
            del what[of_the_moment]
    return what


def _is_open(subject: Subject, orders: Sequence[frozenset[int]], *, is_missing: bool) -> bool:
    """Whether the order of reading decides about a dead air that one of the runs has."""
    since_ms = subject[3]
    return not all(since_ms in order for order in orders) if is_missing else any(since_ms in order for order in orders)


def _finals(seen: Iterable[bytes], findings: Findings) -> dict[Subject, dict[str, Any]]:
    """The final scores by what they are about; notes what stands there twice or is no score."""
    ids: Counter[str] = Counter()
    firsts: Counter[Subject] = Counter()
    finals: Counter[Subject] = Counter()
    found: dict[Subject, dict[str, Any]] = {}
    for value in seen:
        findings.scores += 1
        try:
            record = SCORE_RECORD.validate_json(value)
        except ValidationError as error:
            findings.note(
                "wrong", "no score", f"no score: {error.errors(include_url=False)[0]['msg']}: {value[:100]!r}"
            )
            continue
        subject, place = _subject(record), _place(record)
        name, what = record.name, _named(subject)
        ids[record.record_id] += 1
        if ids[record.record_id] > 1:
            findings.note("duplicate", name, f"{what}: {record.status} record {record.record_id} again")
            continue
        if record.status is TurnStatus.FINAL:
            finals[subject] += 1
            if finals[subject] > 1 or place in found:
                findings.note("duplicate", name, f"{what}: a second final score, revision {record.revision}")
            found[place] = said(record)
        firsts[subject] += record.is_first
        if record.is_first and firsts[subject] > 1:
            findings.note("duplicate", name, f"{what}: revision {record.revision} is the first one again")
    return found


def _subject(record: AnyScoreRecord) -> Subject:
    return record.conversation_id, record.name, record.turn, record.index


def _place(record: AnyScoreRecord) -> Subject:
    """Where to look for the same record of another run."""
    if isinstance(record, DeadAirFact):
        return record.conversation_id, record.name, None, record.silent_since_ms
    return _subject(record)


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
