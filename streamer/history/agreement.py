"""How far a judge agrees with people: what people said of calls by two labels, against what a
condition says of the same calls.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from rich.table import Table

from consumers.history.search import CallSearch, Condition, HistoryStore

MOST_NAMED: Final = 100
"""Calls of which people and judge say different things that are named; the others are counted."""


class LabelAgreement(NamedTuple):
    """Calls by what people and the judge say of them.

    Attributes:
        both_yes: Both say yes.
        both_no: Both say no.
        people_alone: People say yes, the judge no.
        judge_alone: The judge says yes, people no.
        unknown_yes: People say yes, and the judge nothing: its value is unknown.
        unknown_no: The same where people say no.
        disputed: Calls of which people say both, so it is undecided what the judge should say.
        different: Ids of calls of which people and the judge say different things, the first
            `MOST_NAMED`.
    """

    both_yes: int
    both_no: int
    people_alone: int
    judge_alone: int
    unknown_yes: int
    unknown_no: int
    disputed: int
    different: tuple[str, ...] = ()

    @property
    def calls(self) -> int:
        """Calls of which both say something."""
        return self.both_yes + self.both_no + self.people_alone + self.judge_alone

    @property
    def share(self) -> float | None:
        """The share of these calls of which both say the same; None without such calls."""
        return (self.both_yes + self.both_no) / self.calls if self.calls else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa: the agreement beyond what chance gives, 1 at most. None where chance alone
        gives it all, or without calls.

        >>> LabelAgreement(20, 15, 10, 5, 0, 0, 0).kappa
        0.4
        >>> LabelAgreement(20, 0, 0, 0, 0, 0, 0).kappa is None
        True
        """
        share = self.share
        if share is None:
            return None
        people_yes, judge_yes = self.both_yes + self.people_alone, self.both_yes + self.judge_alone
        both_by_chance = people_yes * judge_yes + (self.calls - people_yes) * (
            self.calls - judge_yes
        )
        rest = self.calls**2 - both_by_chance
        return None if not rest else (share * self.calls**2 - both_by_chance) / rest

    @property
    def why_no_kappa(self) -> str | None:
        """Why kappa is unknown; None if it is known."""
        if not self.calls:
            return "no call has a label of people and a value of the judge"
        return "people and judge say the same of every call" if self.kappa is None else None


def agreement(
    store: HistoryStore, question: CallSearch, yes: str, no: str, judge: Condition
) -> LabelAgreement:
    """Compares people with a judge.

    Args:
        store: The calls, with what people said of them.
        question: Which calls.
        yes: The label with which people say yes.
        no: The label with which they say no. A call without a label is unknown, and is not
            compared.
        judge: What the judge says: yes where the condition holds, no where it does not, nothing
            where its value is unknown.
    """
    labelled = {label: store.labelled(label) for label in (yes, no)}
    disputed = {*labelled[yes]} & {*labelled[no]}
    seen: Counter[Any] = Counter()
    different: list[str] = []
    for name, is_yes, says in _said(store, question, labelled, yes, judge):
        if name in disputed:
            seen["disputed"] += is_yes  # it comes with each label
            continue
        seen[is_yes, says] += 1
        if says is not None and says is not is_yes and len(different) < MOST_NAMED:
            different.append(name)
    return LabelAgreement(
        seen[True, True],
        seen[False, False],
        seen[True, False],
        seen[False, True],
        seen[True, None],
        seen[False, None],
        seen["disputed"],
        tuple(different),
    )


def _said(
    store: HistoryStore, question: CallSearch, labelled: dict[str, Any], yes: str, judge: Condition
) -> Iterator[tuple[str, bool, bool | None]]:
    for label, names in labelled.items():
        asked = question._replace(ids=names, most=None)
        for name, value in store.values(asked, ["conversation_id", judge.column]) if names else ():
            yield str(name), label == yes, judge.holds(value)


def agreement_table(found: LabelAgreement, yes: str, no: str) -> Table:
    """The confusion table: a row for what people say, a column for what the judge says."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("people")
    for column in ("judge yes", "judge no", "judge unknown"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, counts in (
        (yes, (found.both_yes, found.people_alone, found.unknown_yes)),
        (no, (found.judge_alone, found.both_no, found.unknown_no)),
    ):
        table.add_row(label, *map(str, counts))
    return table


def agreement_json(found: LabelAgreement) -> dict[str, Any]:
    """The same for programs; unknown is null."""
    return {
        **found._asdict(),
        "calls": found.calls,
        "agreement": found.share,
        "kappa": found.kappa,
        "kappa_unknown_because": found.why_no_kappa,
    }
