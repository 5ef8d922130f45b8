"""Why trials fail: their faults in groups, each with a sentence and the calls behind it, by code or
by a judge. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from consumers.console.page.drawing import counted
from consumers.engine.redaction.redactor import Redactor
from streamer.trials.calls import Fault, FaultKind, Trial

# The groups, as data.

BY_CODE: Final = "subgoal, tool, turn and last words"
NOT_GROUPED: Final = "not grouped"
_KINDS: Final[dict[FaultKind, str]] = {
    "missed_subgoal": "missed subgoal",
    "failed_tool": "failed tool",
    "ending": "ending",
}


class FaultOfCall(NamedTuple):
    """A fault, and the call that has it."""

    trial: Trial
    fault: Fault


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """Faults with one cause.

    Attributes:
        sentence: The cause, in a sentence of the judge without personal data, or in words that code
            puts together.
        faults: At least one, in the order of the trials.
        is_grouped: Whether it is a group; False for what is left over.
    """

    sentence: str
    faults: tuple[FaultOfCall, ...]
    is_grouped: bool = True

    @property
    def calls(self) -> list[Trial]:
        """The calls behind it, each once, in the order of the trials."""
        return [*{id(each.trial): each.trial for each in self.faults}.values()]

    @property
    def kinds(self) -> str:
        """How many faults of each kind it has, in words."""
        counts = Counter(each.fault.kind for each in self.faults)
        return ", ".join(
            counted(counts[kind], words) for kind, words in _KINDS.items() if counts[kind]
        )


@dataclass(frozen=True, slots=True)
class Causes:
    """All faults of some trials, each in one group.

    Attributes:
        by: Who grouped them: the name of a model, or `BY_CODE`.
        groups: Most calls first; what is not grouped is the last.
        is_complete: Whether every question to the judge was asked and has an answer that can be
            used.
    """

    by: str
    groups: tuple[CauseGroup, ...]
    is_complete: bool = True


def faults_of(trials: Iterable[Trial]) -> list[FaultOfCall]:
    """The faults of all calls, in the order of the trials."""
    return [FaultOfCall(trial, fault) for trial in trials for fault in trial.faults]


def grouped_by_code(trials: Iterable[Trial], redactor: Redactor) -> Causes:
    """Groups faults of one kind, of one subgoal, tool or ending, in one turn, after the same last
    words. The same trials give the same.
    """
    found: defaultdict[str, list[FaultOfCall]] = defaultdict(list)
    for each in faults_of(trials):
        kind, what, turn = each.fault
        where = "" if turn is None else f" in turn {turn}"
        said = (
            ""
            if turn is None or turn not in each.trial.words
            else each.trial.words[turn].last_words
        )
        of = f" of {each.trial.goal_set.id}" if kind == "missed_subgoal" else ""
        after = f', after "{said}"' if said else ""
        found[redactor.redact(f"{_KINDS[kind]} {what}{of}{where}{after}")].append(each)
    return Causes(
        BY_CODE, in_order(CauseGroup(sentence, tuple(faults)) for sentence, faults in found.items())
    )


def in_order(causes: Iterable[CauseGroup]) -> tuple[CauseGroup, ...]:
    """Most calls first; what is not grouped is the last."""
    return tuple(
        sorted(
            causes,
            key=lambda each: (
                not each.is_grouped,
                -len(each.calls),
                -len(each.faults),
                each.sentence,
            ),
        )
    )


# The groups as lines for people and plain values for programs.

MOST_NAMED: Final = 3
"""Calls that a line names: enough to look at."""
MOST_SHOWN: Final = 25
"""Groups that the text lists, more than a judge makes; JSON has all."""


def causes_lines(causes: Causes) -> Iterator[str]:
    """Each group with its calls."""
    yield f"Causes, by {causes.by}:" if causes.groups else "Causes: no call has a fault."
    shown = causes.groups if len(causes.groups) <= MOST_SHOWN else causes.groups[:MOST_SHOWN]
    for each in shown:
        calls = each.calls
        places = ", ".join(trial.place or trial.conversation_id for trial in calls[:MOST_NAMED])
        more = f" and {len(calls) - MOST_NAMED} more" if len(calls) > MOST_NAMED else ""
        yield f"  {counted(len(calls), 'call')}: {each.sentence} ({each.kinds}): {places}{more}"
    if len(shown) < len(causes.groups):
        yield f"  and {counted(len(causes.groups) - len(shown), 'group')} more; --json has all."


def causes_json(causes: Causes) -> dict[str, Any]:
    """The groups as plain values."""
    return {
        "by": causes.by,
        "groups": [
            {
                "cause": each.sentence if each.is_grouped else None,
                "calls": [trial.place or trial.conversation_id for trial in each.calls],
                "faults": [
                    {"conversation_id": trial.conversation_id, **fault._asdict()}
                    for trial, fault in each.faults
                ],
            }
            for each in causes.groups
        ],
    }
