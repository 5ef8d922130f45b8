"""Compares the rows of `scores` with those of the undisturbed run. Pure: rows in, findings out.

Of each subject (a turn, a call, the goals of a call) the newest row is all there is to know, so
those are compared, whole. A turn that was withdrawn, and one that was never there, are the same.
And what counters count is compared: the names in the `news` of all rows of a subject together. It
counts three things. *Missing*: a subject, or news of one, that the undisturbed run has and the
topic has not. *Duplicate*: a row read twice, a second closed row of a call, news that were news
before. *Wrong*: a newest row that says something else than that of the undisturbed run, one that
the undisturbed run does not have or that is no row of the contract, news that it does not have,
revisions that fall, and any row of a call after its closed one.

Revisions of a call never fall in the order of the log. When another version of the code takes a
call over, it says everything again, with an odd revision and without news; that can come twice if
two owners end in front of the same record.

What a newest row says, and which step decided it, follows from the log alone, the end of a call and
its silences too: whichever topic was read first, whatever crashed in between, it must be equal.
Rows between are not compared: of those in one transaction the last is enough. Which questions a
judge is asked does not follow from the log: but each of them is asked once, and before the call
closes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from schemas.rows import CallRow, Row, RowError, TurnRow, decode, encode, kind_of
from tests.chaos.evaluators.newer_version import as_this_version

MOST_EXAMPLES: Final = 20
_MOST_ALIKE: Final = 3
"""Examples of one kind and name."""

Subject = tuple[str, str, int | None]
"""Conversation, what the row is of, and the turn."""
Coordinates = tuple[str, int, int]
"""Topic, partition and offset."""

_NOT_WHAT_BUT_WHO: Final = {"row", "conversation_id", "code_version", "news"}
"""Which version wrote it, and with which of the rows before it is one, may differ from
run to run.
"""
_OF_ONE_LOG: Final = {"revision", "first_place", "last_place", "known_ms", "status"}
"""Fields, at any depth, that depend on the places of events and ticks in the log."""
_AS_IT_IS_WRITTEN: Final = {"revision", "status", "user_sounds", "assistant_sounds"}
"""Fields that are no reason to write a row: one that is said again has them as they are then."""
_OFTEN: Final = "wait_revised"
"""The only news that may come again."""


@dataclass(slots=True)
class Findings:
    """Findings of a comparison; those of several partitions add up.

    Attributes:
        missing: How many are missing.
        duplicate: How many are there twice.
        wrong: How many are wrong.
        calls: Closed calls of the undisturbed run.
        scores: Rows read from `scores`.
        finals: Newest rows compared.
        refused: Records that belong in quarantine.
        admitted: Records of the inputs that belong in the log.
        lost: Of them, those that were deleted before they were read.
        repeats: Records of the log that were in it already.
        void: Records of the log behind those of a later sequencer.
        again: Rows published once again, because another version of the code took their call over.
        by_name: How many findings there are of each kind and name of what they are about.
        examples_by_name: The first findings of each kind and name, a line each.
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
            "missing",
            "duplicate",
            "wrong",
            "calls",
            "scores",
            "finals",
            "refused",
            "admitted",
            "lost",
            "repeats",
            "void",
            "again",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_name.update(other.by_name)
        for about, examples in other.examples_by_name.items():
            self.examples_by_name.setdefault(about, []).extend(examples)

    @property
    def examples(self) -> list[str]:
        """The first findings, a line each: some of each kind and name, so that one fault does not
        hide the others.
        """
        alike = self.examples_by_name.values()
        some = [example for examples in alike for example in examples[:_MOST_ALIKE]]
        return some[:MOST_EXAMPLES]

    def note(self, kind: str, name: str, what: str) -> None:
        """Counts one finding about something of this name, and keeps it as an example while there
        is room.
        """
        setattr(self, kind, getattr(self, kind) + 1)
        self.by_name[kind, name] += 1
        examples = self.examples_by_name.setdefault((kind, name), [])
        if len(examples) < _MOST_ALIKE:
            examples.append(f"{kind}: {what}")


def compared(
    expected: Iterable[Row], seen: Iterable[bytes], *, is_one_log: bool = True
) -> Findings:
    """Compares one partition.

    Args:
        expected: Rows of the undisturbed run, in order.
        seen: The values of `scores`, in order, as a reader of committed records sees them.
        is_one_log: Whether both runs folded the same log. In two logs of the same inputs the events
            have other places, because ticks are between them.
    """
    findings = Findings()
    peaceful, read = _Read(Findings()), _Read(findings)
    for row in expected:
        peaceful.take(decode(encode(row)))
    for value in seen:
        findings.scores += 1
        try:
            read.take(decode(as_this_version(value)))
        except RowError as error:
            findings.note("wrong", "no row", f"no row: {error}: {value[:100]!r}")
    wanted, found = (
        {
            subject: said(row, is_one_log=is_one_log)
            for subject, row in each.newest.items()
            if not _is_withdrawn(row)
        }
        for each in (peaceful, read)
    )
    findings.calls = len(peaceful.closed)
    findings.finals = len(found)
    for subject in sorted(wanted.keys() ^ found.keys(), key=str):
        if subject in wanted:
            what = f"{_named(subject)} is not there, expected {_short(wanted[subject])}"
            findings.note("missing", subject[1], what)
        else:
            what = f"{_named(subject)} is there, and nothing is expected: {_short(found[subject])}"
            findings.note("wrong", subject[1], what)
    for subject in wanted.keys() & found.keys():
        if is_again(read.newest[subject].revision):
            for each in (wanted, found):
                each[subject] = {
                    name: value
                    for name, value in each[subject].items()
                    if name not in _AS_IT_IS_WRITTEN
                }
        if found[subject] != wanted[subject]:
            difference = _difference(wanted[subject], found[subject])
            findings.note("wrong", subject[1], f"{_named(subject)}: {difference}")
    _compare_news(peaceful, read, findings)
    return findings


def said(row: Row, *, is_one_log: bool = True) -> dict[str, Any]:
    """What a row says, without who wrote it; in another log without its place."""
    plain: dict[str, Any] = msgspec.to_builtins(row)
    what = {name: value for name, value in plain.items() if name not in _NOT_WHAT_BUT_WHO}
    return what if is_one_log else _without_places(what)


def _without_places(what: Any) -> Any:
    if isinstance(what, dict):
        return {
            name: _without_places(value) for name, value in what.items() if name not in _OF_ONE_LOG
        }
    return [_without_places(value) for value in what] if isinstance(what, (list, tuple)) else what


def is_again(revision: int) -> bool:
    """Whether something has this revision that a version of the code says again that has taken a
    call over.
    """
    return revision % 2 == 1


class _Read:
    """The rows read so far.

    Attributes:
        newest: By subject, its newest row.
        news: By subject, the names that were news.
        closed: Calls with a closed row.
    """

    def __init__(self, findings: Findings) -> None:
        self.newest: dict[Subject, Row] = {}
        self.news: dict[Subject, set[str]] = {}
        self.closed: set[str] = set()
        self._findings = findings
        self._revisions: dict[str, int] = {}

    def take(self, row: Row) -> None:
        """One more row."""
        subject = row.conversation_id, kind_of(row), row.turn if isinstance(row, TurnRow) else None
        before = self.newest.get(subject)
        if row.conversation_id in self.closed:
            self._take_after_the_end(subject, row)
            return
        if before == row and not is_again(row.revision):
            self._findings.note(
                "duplicate",
                subject[1],
                f"{_named(subject)}: revision {row.revision} is there twice",
            )
            return
        self._findings.again += is_again(row.revision)
        self._require_order(subject, row)
        self._require_news(subject, row)
        self.newest[subject] = row
        if isinstance(row, CallRow) and row.state == "closed":
            self.closed.add(row.conversation_id)

    def _take_after_the_end(self, subject: Subject, row: Row) -> None:
        if isinstance(row, CallRow) and row.state == "closed":
            what = f"{_named(subject)}: a second closed row, revision {row.revision}"
            self._findings.note("duplicate", subject[1], what)
        else:
            what = f"{_named(subject)}: revision {row.revision} after the end"
            self._findings.note("wrong", subject[1], what)

    def _require_order(self, subject: Subject, row: Row) -> None:
        """No revision of a call goes back. What is said again has that of the change of owners."""
        highest = self._revisions.get(row.conversation_id, 0)
        if row.revision < highest:
            what = f"{_named(subject)}: revision {row.revision} comes after {highest}"
            self._findings.note("wrong", subject[1], what)
        self._revisions[row.conversation_id] = max(row.revision, highest)

    def _require_news(self, subject: Subject, row: Row) -> None:
        if not isinstance(row, (TurnRow, CallRow)):
            return
        known = self.news.setdefault(subject, set())
        for name in row.news:
            if name in known and name != _OFTEN:
                what = f"{_named(subject)}: {name} is news again in revision {row.revision}"
                self._findings.note("duplicate", subject[1], what)
            known.add(name)


def _compare_news(peaceful: _Read, read: _Read, findings: Findings) -> None:
    for subject in sorted(peaceful.news.keys() & read.news.keys(), key=str):
        wanted, found = peaceful.news[subject], read.news[subject]
        for name in sorted(wanted - found):
            findings.note("missing", subject[1], f"{_named(subject)}: {name} was never news")
        for name in sorted(found - wanted):
            findings.note(
                "wrong", subject[1], f"{_named(subject)}: {name} is news, and is not expected"
            )


def _is_withdrawn(row: Row) -> bool:
    return isinstance(row, TurnRow) and row.status == "withdrawn"


def _named(subject: Subject) -> str:
    conversation, kind, turn = subject
    return f"{conversation} {kind}" + ("" if turn is None else f" {turn}")


def _difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name} is {found.get(name)!r}, expected {wanted.get(name)!r}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    )


def _short(what: Mapping[str, Any]) -> str:
    return str({name: what[name] for name in what if name != "labels"})[:200]
