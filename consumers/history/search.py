"""Questions to history: conditions on the columns of calls, from a closed list of names and
comparisons. People write no SQL.
"""

import difflib
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from consumers.runtime.process import SetupError
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.closed_sets import CallOutcome
from schemas.columns import CALL_COLUMNS, Column, Flat, Kind
from schemas.scores.trouble import MANY_INTERRUPTIONS, SLOW_MS, VERY_SLOW_MS
from schemas.units import DAY_MS

Comparison = Literal[">=", "<=", "!=", "=", ">", "<", "~"]
COMPARISONS: Final[tuple[Comparison, ...]] = get_args(Comparison)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
COLUMNS: Final[Mapping[str, Column]] = {column.name: column for column in CALL_COLUMNS}
"""The columns of past calls by their names, in their order."""

WEEK_MS: Final = 7 * DAY_MS
MONDAY_MS: Final = 4 * DAY_MS
"""The first Monday of epoch time."""


class Derived(NamedTuple):
    """A column that follows from others. Its SQL is one that SQLite and ClickHouse understand
    alike; a condition on NULL does not hold.
    """

    kind: Kind
    sql: str


_IS_OVER: Final = "\"state\" = 'closed'"
_RANKS: Final = {
    CallOutcome.NEVER_ANSWERED: 300,
    CallOutcome.HUNG_UP: 200,
    CallOutcome.FAILED: 100,
    CallOutcome.EVENTS_STOPPED: 50,
}
"""How bad the ways to end are."""
_NOT_WELL: Final = ", ".join(f"'{each}'" for each in _RANKS)
TROUBLES: Final[Mapping[str, str]] = {
    "tool_fails": '"failed_tool_calls" > 0',
    "goals_missed": '"goals.success_final_turn" = 0',
    "unanswered": '"unanswered" > 0',
    "agent_error": '"errors.number" > 0',
    "stalled": '"goals.is_stalled" = 1',
    "slow": f'"longest_wait_ms" > {VERY_SLOW_MS} OR "p50_ms" > {SLOW_MS}',
    "interruptions": f'"user_interruptions" + "assistant_interruptions" >= {MANY_INTERRUPTIONS}',
    "dead_air": '"dead_airs" > 0',
}
"""What can be wrong with a call as a whole, and when it is: first what kept it from its goals. The
names are those of `TroubleKind` where it has them.
"""
TOOL_FAILED_REACHED: Final = "tool_failed_goals_reached"
"""The main trouble of a call whose tool failed, and that reached all its goals all the same."""
_REACHED: Final = 'coalesce("goals.success_final_turn", -1) = 1'


def _kept_from_goals(name: str) -> str:
    """When a call has a trouble; a failed tool is none where it reached all its goals all the same."""
    sql = f"({TROUBLES[name]})"
    return f"{sql} AND NOT {_REACHED}" if name == "tool_fails" else sql


def _main_trouble(name: str) -> str:
    """The case of a trouble among the main ones. What a call reached all its goals in spite of is no
    reason before the others.
    """
    case = f"WHEN {_kept_from_goals(name)} THEN '{name}' "
    if name == "stalled":
        return f"{case}WHEN {TROUBLES['tool_fails']} THEN '{TOOL_FAILED_REACHED}' "
    return case


_NOT_JUDGED: Final = (
    '"goals.goal_set" IS NOT NULL AND coalesce("goals.success_final_turn", -1) NOT IN (0, 1)'
)
_MOST_RANKED_MS: Final = 99_000
"""A wait in vain that is longer ranks as this one: below the next way to end."""
DERIVED: Final[Mapping[str, Derived]] = {
    "outcome": Derived("text", f"CASE WHEN {_IS_OVER} THEN \"outcome\" ELSE 'running' END"),
    "troubles": Derived(
        "text",
        " || ".join(
            [
                "' '",
                *(f"CASE WHEN {sql} THEN '{name} ' ELSE '' END" for name, sql in TROUBLES.items()),
            ]
        ),
    ),
    "main_trouble": Derived(
        "text",
        f"CASE WHEN NOT {_IS_OVER} THEN NULL "
        f'WHEN "outcome" IN ({_NOT_WELL}) THEN "outcome" '
        + "".join(_main_trouble(name) for name in TROUBLES)
        + f"WHEN {_NOT_JUDGED} THEN 'not_judged' WHEN \"turns\" = 0 THEN 'no_turn' "
        "ELSE 'none' END",
    ),
    "worst_wait_ms": Derived(
        "real",
        'CASE WHEN coalesce("in_vain_ms", -1) > coalesce("longest_wait_ms", -1) '
        'THEN "in_vain_ms" * 1.0 ELSE "longest_wait_ms" END',  # both of one type
    ),
    "tools_failed": Derived("text", "', ' || coalesce(\"failed_tools\", '') || ', '"),
    "subgoal_results": Derived("text", '"goals.digest" || \' \' || "goals.subgoals.result"'),
    "rank": Derived(
        "real",
        'CASE "outcome" '
        + "".join(f"WHEN '{outcome}' THEN {rank} " for outcome, rank in _RANKS.items())
        + f'ELSE 0 END + CASE WHEN "in_vain_ms" > {_MOST_RANKED_MS} THEN '
        f'{_MOST_RANKED_MS / 1_000} WHEN "in_vain_ms" > 0 THEN "in_vain_ms" / 1000.0 ELSE 0.0 '
        "END + ("
        + " + ".join(
            f"CASE WHEN {_kept_from_goals(name)} THEN {len(TROUBLES) - place} ELSE 0 END"
            for place, name in enumerate(TROUBLES)
        )
        + ") / 100.0"
        + ' + coalesce("longest_wait_ms", 0) / 100000000.0',
    ),
    "ended_badly": Derived(
        "integer",
        f"CASE WHEN NOT {_IS_OVER} OR \"outcome\" = '{CallOutcome.EVENTS_STOPPED}' THEN NULL "
        f"WHEN \"outcome\" = '{CallOutcome.ENDED}' THEN 0 "
        f'WHEN "outcome" IN ({_NOT_WELL}) THEN 1 END',
    ),
    "success": Derived(
        "real",
        'CASE WHEN "goals.success_final_turn.reason" IS NULL THEN '
        'coalesce("goals.success_final_turn", "goals.progress.success") END',
    ),
    "all_goals": Derived(
        "text",
        'CASE WHEN "goals.goal_set" IS NULL OR "state" != \'closed\' THEN NULL '
        "WHEN \"goals.success_final_turn\" = 1 THEN 'reached' "
        "WHEN \"goals.success_final_turn\" = 0 THEN 'missed' ELSE 'not judged' END",
    ),
    "unanswered_share": Derived(
        "real", 'CASE WHEN "turn" > 0 THEN "unanswered" * 1.0 / "turn" END'
    ),
    "length_ms": Derived(
        "integer",
        'CASE WHEN "state" != \'closed\' THEN NULL ELSE coalesce("ended_ms" - "began_ms", '
        '"known_ms" - "first_known_ms") END',
    ),
    "day_ms": Derived("integer", f'"first_known_ms" - "first_known_ms" % {DAY_MS}'),
    "week_ms": Derived(
        "integer", f'"first_known_ms" - ("first_known_ms" - {MONDAY_MS}) % {WEEK_MS}'
    ),
}
"""Columns that no file has: conditions, orders and counts take them like the others.

- `outcome`: that of the row, but `running` until the call has closed
- `troubles`: names of `TROUBLES`, a blank before and behind each
- `main_trouble`: how it ended if not well, otherwise its first trouble of `TROUBLES`;
  `not_judged` if there is none and its goals are not known, `no_turn` if no caller spoke, or `none`
- `worst_wait_ms`: the longest wait, also one in vain
- `tools_failed`: `failed_tools`, a comma and a blank before and behind each
- `subgoal_results`: `goals.digest` and `goals.subgoals.result`, with a blank between
- `rank`: the higher, the worse: how it ended, then how long the caller waited in vain, then its
  troubles, then its longest wait
- `all_goals`: `reached`, `missed` or `not judged`; none of a call without goals
- `ended_badly`: 1 or 0, unknown where events stopped; `success`: as a trial has it; `unanswered_share`: of the turns of the
  caller; `length_ms`; `day_ms`: when its day began, in UTC; `week_ms`: when its week did, on Monday
"""
KINDS: Final[Mapping[str, Kind]] = {name: each.kind for name, each in COLUMNS.items()} | {
    name: each.kind for name, each in DERIVED.items()
}
"""What the values of each column are."""
_CONDITION: Final = re.compile(
    rf"\s*([A-Za-z_0-9.]+)\s*({'|'.join(map(re.escape, COMPARISONS))})\s*(.*?)\s*", re.DOTALL
)

MAX_ROWS: Final = 10_000
"""Most calls of one answer: what a person or a table can hold."""
MAX_RESULTS: Final = 300
"""A question names no more results of goal sets than this: a set has some tens of them, and a
parameter of ClickHouse holds 128 kB.
"""
MAX_TEXT_CHARS: Final = 200
"""Longest text of a condition or of a search for words."""


MOST_MEANT: Final = 3
"""Most columns that are named in place of one that is not there."""


class Condition(NamedTuple):
    """One comparison of a column with a value; a call whose value is unknown never meets it."""

    column: str
    comparison: Comparison
    value: Flat

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Reads a condition as a person writes it.

        >>> Condition.parse("p95_ms > 3000")
        Condition(column='p95_ms', comparison='>', value=3000.0)
        >>> Condition.parse("failed_tools ~ payment")
        Condition(column='failed_tools', comparison='~', value='payment')
        >>> Condition.parse("agent = desk").column
        'labels.agent'

        Raises:
            SetupError: It is no condition.
        """
        found = (
            _CONDITION.fullmatch(text[: MAX_TEXT_CHARS + 1])
            if len(text) <= MAX_TEXT_CHARS
            else None
        )
        if found is None:
            raise SetupError(
                f"Condition {text[:MAX_TEXT_CHARS]!r}: expected a column, one of "
                f"{' '.join(COMPARISONS)}, and a value of at most {MAX_TEXT_CHARS} characters, as "
                "in 'p95_ms > 3000'. Nothing was searched."
            )
        column, comparison, value = found.group(1), found.group(2), found.group(3).strip("\"'")
        column = f"labels.{column}" if f"labels.{column}" in COLUMNS else column
        require_column(column, f"Condition {text!r}")
        if KINDS[column] == "text":
            if comparison not in {"=", "!=", "~"}:
                raise SetupError(
                    f"Condition {text!r}: {column} is a text, so it can be compared with = "
                    "(equal), != (not equal) and ~ (contains)."
                )
            # the pattern has these only
            return cls(column, comparison, value)  # type: ignore[arg-type]
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if comparison == "~" or number != number:  # no number
            raise SetupError(
                f"Condition {text!r}: {column} is a number, so it can be compared with a number by "
                f"{' '.join(COMPARISONS[:-1])}."
            )
        return cls(column, comparison, number)  # type: ignore[arg-type]

    def holds(self, value: Flat) -> bool | None:
        """Whether a value meets the condition; None for one that is unknown.

        >>> Condition("turns", "=", 1.0).holds(0.0), Condition("turns", "=", 1.0).holds(None)
        (False, None)
        """
        if value is None:
            return None
        if self.comparison == "~":
            return str(self.value) in str(value)
        return bool(_COMPARE[self.comparison](value, self.value))


def require_column(name: str, asked: str) -> None:
    """Refuses a name that is none of a column.

    Raises:
        SetupError: There is no such column. It names those that may be meant, and where all are.
    """
    if name in KINDS:
        return
    ends = {each.rpartition(".")[2]: each for each in reversed(list(KINDS))}
    similar = [
        each
        for each in KINDS
        if name.split(".")[-1] in re.split(r"[._]", each) and not each.endswith(".reason")
    ]
    near = difflib.get_close_matches(name, [*KINDS, *ends], MOST_MEANT, 0.7)
    meant = list(dict.fromkeys([*similar, *(ends.get(each, each) for each in near)]))[:MOST_MEANT]
    is_it = f" Is it {' or '.join(meant)}?" if meant else ""
    raise SetupError(
        f"{asked}: there is no column {name!r}. Nothing was searched.{is_it} docs/tables.md lists "
        f"all {len(COLUMNS)} columns of a call."
    )


def quoted(name: str) -> str:
    """A column of a file in SQL, because most names have dots."""
    return f'"{name}"'


_NAMES: Final = re.compile(r'"([^"]+)"')


def sql_of(name: str, there: Collection[str] = COLUMNS) -> str:
    """A column in SQL; those that a file of an earlier version does not have are unknown."""
    sql = DERIVED[name].sql if name in DERIVED else quoted(name)
    return f"({_NAMES.sub(lambda found: found[0] if found[1] in there else 'NULL', sql)})"


class CallSearch(NamedTuple):
    """The calls to find.

    Attributes:
        since_ms: Calls that were known first then or later, by the broker's time in epoch ms.
        until_ms: Calls that began before that.
        conditions: All of them must hold.
        words: Words that the transcript must have, all of them; empty for any.
        order_by: Column by which the calls come, highest first; calls whose value is unknown come
            last.
        most: Most calls to return; None for all of them, in no order.
        ids: Only calls with these ids, at most `MAX_ROWS`; None for any.
        results: Only calls with one of these `subgoal_results`, at most `MAX_RESULTS`; None for
            any.
        skip: How many of the first calls are left out.
        ascends: Whether the lowest come first instead.
        counts: Whether calls with the same values are one, with their number behind the values.
    """

    since_ms: int
    until_ms: int
    conditions: Sequence[Condition] = ()
    words: Sequence[str] = ()
    order_by: str = "longest_wait_ms"
    most: int | None = 50
    ids: Collection[str] | None = None
    results: Collection[str] | None = None
    skip: int = 0
    ascends: bool = False
    counts: bool = False

    @property
    def order_sql(self) -> str:
        """The way of its order, in SQL."""
        return "ASC NULLS LAST" if self.ascends else "DESC NULLS LAST"


def found(
    store: "HistoryStore", question: CallSearch, columns: Collection[str]
) -> list[dict[str, Flat]]:
    """The rows of the calls that a question asks for, by its column; those with the same value by
    their ids.
    """
    names = tuple(dict.fromkeys((*columns, "conversation_id", question.order_by)))
    most = None if question.most is None else question.skip + question.most
    rows = [
        dict(zip(names, row, strict=True))
        for row in store.values(question._replace(most=most), names)
    ]
    rows.sort(key=lambda row: str(row["conversation_id"]))
    rows.sort(key=lambda row: _rank(row[question.order_by], question), reverse=not question.ascends)
    return [{name: row[name] for name in columns} for row in rows[question.skip : most]]


def _rank(value: Flat, question: CallSearch) -> tuple[bool, Any]:
    return (value is None) is question.ascends, value if value is not None else 0


class HistoryStore(Protocol):
    """Past calls, as every store of them answers.

    Attributes:
        place: Where they are, for people.
    """

    @property
    def place(self) -> str: ...

    def close(self) -> None:
        """Lets go of files and connections."""

    def find(
        self, question: CallSearch, columns: Collection[str] = COLUMNS
    ) -> list[dict[str, Flat]]:
        """These columns of the calls that are asked for, in their order."""

    def values(self, question: CallSearch, columns: Sequence[str]) -> Iterator[tuple[Flat, ...]]:
        """These columns of the calls that are asked for; without a number of calls, all of them in
        no order.
        """

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """A call as it was known at a moment; None if it is not here."""

    def transcript(self, conversation_id: str) -> bytes | None:
        """The transcript of a call; None without one."""

    def is_forgotten(self, conversation_id: str) -> bool:
        """Whether a call was deleted on request."""

    def labelled(self, label: str) -> Sequence[str]:
        """The calls that people gave a label, the newest label first; at most `MAX_ROWS`."""

    def labels(self) -> Sequence[tuple[str, str]]:
        """The labels of calls, each with its call, the newest first; at most `MAX_ROWS`."""

    def annotations_of(self, conversation_ids: Collection[str]) -> Mapping[str, list[Annotation]]:
        """What people said of these calls, by conversation, without calls that
        have none.
        """
