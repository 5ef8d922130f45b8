"""History as the pages of the console ask for it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from operator import attrgetter, itemgetter
from statistics import median
from typing import Any, Final

from consumers.console.pages import Site
from consumers.console.past import (
    ASKED_COLUMNS,
    BELONGS_TO,
    BESIDE,
    FACETS,
    ROWS,
    USUAL_BY,
    InCommon,
    LotsQuery,
    PastFound,
    PastQuery,
    Usual,
    Versions,
    began_ms,
    choice_of,
    lines_as_shown,
    why,
    worst_first,
)
from consumers.history.opening import opened
from consumers.history.search import (
    COLUMNS,
    KINDS,
    MAX_RESULTS,
    MAX_ROWS,
    MAX_TEXT_CHARS,
    MONDAY_MS,
    TOOL_FAILED_REACHED,
    WEEK_MS,
    CallSearch,
    Condition,
    HistoryStore,
    require_column,
)
from consumers.history.settings import HistorySettings
from consumers.runtime.process import OperatorError, SetupError, wall_clock_ms
from consumers.store.changes import (
    CALL_MEASURES,
    LISTED,
    LONGEST_WAIT,
    USUAL_SINCE,
    ComparedMeasure,
    Lot,
    LotCalls,
)
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.closed_sets import CallOutcome
from schemas.columns import Flat
from schemas.rows import CallRow
from schemas.units import DAY_MS
from streamer.history.comparison import (
    DAYS_OF,
    lots_compared,
    lots_in,
    newest_pairs,
    subgoal_results,
)
from streamer.history.finding import said_of
from streamer.tables import Computed, csv_text, row_of
from streamer.time_bounds import moment_ms, shown_moment

MAX_SECONDS = 5.0
"""How long a question of a page may take. A search for a word over 200,000 calls takes half of one;
who asks more gets no page.
"""
USUAL_HOURS = "24h"
"""How far back past calls go where nothing is said."""
LEAST_COMPARED = 5
"""Calls on each side without which nothing is said of what they have in common."""
LEAST_APART = 0.2
"""The least difference of two shares that is worth a word."""
MOST_IN_COMMON = 5
"""Values that are named as common to calls."""
_WHOSE = ("agent", "version", "tenant", "environment")
"""Facets that may be behind a fault, those of more calls first."""
_FAULTS = ("main", "outcome", "trouble", "tool", "goals", "subgoal")
"""Facets that say what was wrong."""
NEARLY_ALL = 0.95
"""If so many calls have a value, only calls that have it are compared further."""
_FINE = frozenset({"not_judged", "no_turn", "none"})
_TOLD_OTHERWISE = frozenset({CallOutcome.ENDED, "tool_fails", "goals_missed", "unanswered"})
"""Values that are no fault, or that the tool, the subgoal and the outcome of the calls say already."""
_ALIKE = 0.05
"""Values that these calls have equally often but for this are one thing to say."""
_USED = "used_tools"
"""Is counted beside the facets: how many calls have called a tool that fails in some."""
MOST_ASKED_OF_A_SET = 5
"""Calls that are asked for the names of a goal set, the newest first."""
MOST_PAIRS = 4
"""Agents whose two newest versions are compared, those with the latest deployment."""
MOST_LAST_WORDS = 1_000
"""Calls of one CSV whose last words are looked up, a millisecond each: the first of them."""


def _utc(ms: Flat) -> str | None:
    return None if ms is None else f"{shown_moment(int(ms)).replace(' ', 'T')}Z"


_Line = Mapping[str, Any]


_HEADS = {
    "labels.agent": "Agent",
    "labels.version": "Version",
    "labels.tenant": "Tenant",
    "labels.environment": "Environment",
    "outcome": "Outcome",
    "main_trouble": "Main trouble",
    "conversation_id": "Call",
    "p50_ms": "Median wait (ms)",
    "p95_ms": "Slow wait, p95 (ms)",
    LONGEST_WAIT.name: f"{LONGEST_WAIT.title} (ms)",
    "unanswered": "Turns unanswered",
    "dead_airs": "Dead air",
    "tool_calls": "Tools used",
    "failed_tool_calls": "Tools failed",
    "failed_tools": "Names of failed tools",
    "goals.goal_set": "Goal set",
    "all_goals": "All goals",
    "goals.progress.result": "Subgoals reached (share)",
    "assistant_interruptions": "Interruptions by the agent",
    "user_interruptions": "Interruptions by the caller",
    "errors.number": "Errors of the agent",
    "turns": "Turns",
    "length_ms": "Length (ms)",
    "cost_dollars": "Cost (dollars)",
    "ended_reason": "Why it ended",
}
"""By column the heading of the CSV of past calls, in order: a spreadsheet is for people."""
_TABLE_COLUMNS = tuple(dict.fromkeys((*ASKED_COLUMNS, *_HEADS)))


def _of_columns(*names: str) -> list[Computed[_Line]]:
    return [
        Computed(
            _HEADS[name],
            KINDS[name],
            f"`{name}`" + (f": {COLUMNS[name].meaning}" if name in COLUMNS else ""),
            itemgetter(name),
        )
        for name in names
    ]


_ENDINGS: Final = tuple(each for each in CallOutcome if each is not CallOutcome.RUNNING)
_WHOSE_CALL = (*(f"labels.{name}" for name in _WHOSE), "outcome", "main_trouble")
PAST_CALL_COLUMNS: Sequence[Computed[_Line]] = (
    Computed(
        "Began (UTC)",
        "text",
        "`began_ms` by ISO 8601; without it `first_known_ms`",
        lambda line: _utc(began_ms(line)),
    ),
    *_of_columns(*_WHOSE_CALL),
    Computed(
        "Why",
        "text",
        "what was wrong, in the words of the page, the worst first",
        lambda line: "; ".join(why(line)) or None,
    ),
    Computed("Page", "text", "address of its page", itemgetter("page")),
    *_of_columns(*(name for name in _HEADS if name not in _WHOSE_CALL)),
    Computed(
        "Subgoals missed",
        "text",
        "the subgoals that it did not reach",
        lambda line: ", ".join(line.get("missed_subgoals", ())) or None,
    ),
    Computed("Ended (UTC)", "text", "`ended_ms` by ISO 8601", lambda line: _utc(line["ended_ms"])),
    Computed("Labels", "text", "labels of people", itemgetter("annotations")),
    Computed(
        "Notes",
        "text",
        "what people wrote of it; none with `console.words` false",
        itemgetter("notes"),
    ),
    Computed(
        "Last words of the caller",
        "text",
        f"of the first {MOST_LAST_WORDS:,} calls; none with `console.words` false",
        itemgetter("last_words"),
    ),
)
"""The columns of the CSV of past calls: those that the page has, and what its rows say beside."""


def _mean_of(measure: ComparedMeasure) -> Callable[[LotCalls], float | None]:
    name, digits = measure.name, _DIGITS[measure.unit]
    return lambda each: None if name not in each.values else round(each.values[name], digits)


_DIGITS = {"ms": 1, "share": 4, "dollars": 6, "": 4}


_UNITS = {"ms": " (ms)", "share": " (share)", "dollars": " (dollars)", "": ""}
LOT_COLUMNS: Sequence[Computed[LotCalls]] = (
    *(Computed(name.capitalize(), "text", "", attrgetter(f"lot.{name}")) for name in Lot._fields),
    Computed("Calls", "integer", "", attrgetter("calls")),
    *(
        Computed(measure.title + _UNITS[measure.unit], "real", "", _mean_of(measure))
        for measure in LISTED
    ),
    Computed("Turns unanswered", "integer", "", attrgetter("unanswered")),
    Computed("Calls judged", "integer", "", attrgetter("judged")),
    Computed("Calls not judged", "integer", "", attrgetter("unjudged")),
    Computed("First call (UTC)", "text", "", lambda each: _utc(each.first_ms)),
    Computed("Last call (UTC)", "text", "", lambda each: _utc(each.last_ms)),
)
"""The columns of the CSV of versions and other lots, as their page has them."""


class StoredCalls:
    """Past calls where the settings say, opened anew for each question: what writes them may run
    elsewhere or not at all.
    """

    def __init__(self, settings: HistorySettings, console_url: str | None = None) -> None:
        """`console_url` is where people find the pages; None for where the console was asked."""
        self._settings = settings
        self._console_url = console_url

    def find(self, asked: PastQuery) -> PastFound:
        """The calls of a page, with counts of what all that are asked for have in common.

        Raises:
            OperatorError: A part of the question cannot be understood, there is no folder, or it
                takes too long.
        """
        asked = _dated(asked)
        every, question = self._questions(asked)
        with opened(self._settings, MAX_SECONDS) as store:
            labels = store.labels()
            every, question = (_labelled(each, asked.label, labels) for each in (every, question))
            counts = _counted(store, every)
            question = _missing(store, question, asked.subgoal)
            rows = _found(store, question, ASKED_COLUMNS)
            ids = [str(row["conversation_id"]) for row in rows]
            said = said_of(store, ids, asked.text) if asked.text or asked.said else {}
            people = store.annotations_of(ids)
            of_label = self._label_counts(store, question, labels)
        facets = {name: _counts_of(counts, asked, name) for name in FACETS}
        return PastFound(
            rows,
            _number(counts, asked),
            0 if asked.outcome else dict(facets["outcome"]).get("running", 0),
            facets | {"label": of_label},
            said,
            {name: _labels(of) for name, of in people.items()},
            _in_common(counts, asked),
            _used_tools(counts, asked),
            every.since_ms,
        )

    def _questions(self, asked: PastQuery) -> tuple[CallSearch, CallSearch]:
        """The calls that the facets count, and those of the page: facets count beside what they
        choose.
        """
        now_ms = wall_clock_ms()
        until_ms = moment_ms(asked.until, now_ms) if asked.until else now_ms + 1
        where = [Condition.parse(asked.where)] if asked.where else []
        since_ms = moment_ms(asked.since or USUAL_HOURS, now_ms)
        if asked.day and not asked.since:  # all of the day, and not what is left of it
            since_ms = min(since_ms, _day_ms(asked.day))
        every = CallSearch(
            since_ms,
            until_ms,
            where,
            asked.text[:MAX_TEXT_CHARS].split(),
            most=None,
        )
        outcomes = asked.outcome.split(",") if asked.outcome else _ENDINGS
        chosen = (
            *(Condition("outcome", "!=", each) for each in CallOutcome if each not in outcomes),
            *(
                Condition(FACETS[name][1], "=", value)
                for name in (*_WHOSE, "goals", "goal_set", "main")
                if (value := getattr(asked, name))
            ),
            *(Condition("troubles", "~", f" {each} ") for each in asked.trouble.split()),
            *(Condition("tools_failed", "~", f", {each}, ") for each in (asked.tool,) if each),
            *(Condition("day_ms", "=", _day_ms(each)) for each in asked.day.split()),
        )
        require_column(asked.sort or "rank", "sort")
        page = every._replace(
            conditions=[*where, *chosen],
            order_by=asked.sort or "rank",
            ascends=bool(asked.up),
            most=ROWS,
            skip=(asked.page - 1) * ROWS,
        )
        return every, page

    def _label_counts(
        self, store: HistoryStore, question: CallSearch, labels: Sequence[tuple[str, str]]
    ) -> list[tuple[str, int]]:
        """How many of the calls have each label of people."""
        ids = {name for _, name in labels}
        if not ids:
            return []
        there = {
            name
            for (name,) in store.values(
                question._replace(ids=ids, most=None, skip=0), ["conversation_id"]
            )
        }
        return Counter(label for label, name in labels if name in there).most_common()

    def table(self, asked: PastQuery, site: Site, redact: Callable[[str], str] | None) -> bytes:
        """The calls of all pages as CSV, `MAX_ROWS` at most.

        Args:
            asked: Which.
            site: Has the address of a call's page, unless the settings do.
            redact: Redacts what was said; None where that is hidden.

        Raises:
            OperatorError: As `find`.
        """
        if self._console_url is not None:
            site = site._replace(root=f"{self._console_url.rstrip('/')}/")
        _, question = self._questions(_dated(asked))
        with opened(self._settings, MAX_SECONDS) as store:
            question = _labelled(
                question._replace(most=MAX_ROWS, skip=0), asked.label, store.labels()
            )
            question = _missing(store, question, asked.subgoal)
            rows = _found(store, question, _TABLE_COLUMNS)
            ids = [str(row["conversation_id"]) for row in rows]
            people = store.annotations_of(ids)
            said = {} if redact is None else said_of(store, ids[:MOST_LAST_WORDS])
        last_words = {name: redact(text) for name, (*_, text) in said.items() if redact}
        if asked.shown:
            labels = {name: _labels(of) for name, of in people.items()}
            shown_words = last_words if asked.said else None
            return csv_text(lines_as_shown(site, rows, labels, shown_words)).encode()
        lines: Iterable[_Line] = (
            row
            | {
                "annotations": " ".join(_labels(people.get(name, ()))),
                "notes": redact("; ".join(each.note for each in people.get(name, ()) if each.note))
                if redact
                else None,
                "last_words": last_words.get(name),
                "page": site.call_href(name),
            }
            for name, row in zip(ids, rows, strict=True)
        )
        return csv_text(
            [
                [column.name for column in PAST_CALL_COLUMNS],
                *(row_of(PAST_CALL_COLUMNS, line) for line in lines),
            ]
        ).encode()

    def versions(self, asked: LotsQuery) -> Versions:
        """Two lots of calls compared: those that are asked for, otherwise the two newest versions of
        the agent with the latest deployment, and what can be said of some other agents.

        Raises:
            OperatorError: As `find`.
        """
        now_ms = wall_clock_ms()
        since_ms, until_ms = _period(asked, now_ms)
        with opened(self._settings, MAX_SECONDS) as store:
            over = [Condition("state", "=", "closed")]
            every = CallSearch(since_ms, until_ms, over, most=None, counts=True)
            agents: Counter[str] = Counter()
            for name, calls in store.values(every, ["labels.agent"]):
                agents[str(name)] += int(str(calls))
            versions = lots_in(store, since_ms, until_ms, asked.by or USUAL_BY, asked.agent)
            pairs: list[tuple[Lot, Lot]] = []  # of two tenants nobody asks which is better
            if asked.by in {"", USUAL_BY}:
                first_ms = {each.lot: each.first_ms for each in versions}
                newest_first = sorted(newest_pairs(versions), key=lambda each: -first_ms[each[1]])
                pairs = newest_first[: MOST_PAIRS if asked.lots() is None else 1]
            elif asked.by in DAYS_OF and len(versions) > 1:
                today = shown_moment(now_ms)[:10]
                newest = [each.lot for each in versions]
                ended = [each for each in newest if each.until <= today]
                after, before = (ended if len(ended) > 1 else newest)[:2]
                pairs = [(before, after)]
            pair = pairs[0] if pairs else None
            lots = asked.lots() or pair
            return Versions(
                lots_compared(store, asked.within(lots), now_ms) if lots else None,
                versions,
                pair,
                others=list(_verdicts(store, asked, pairs[1:], now_ms)),
                today=shown_moment(now_ms)[:10],
                yesterday=shown_moment(now_ms - DAY_MS)[:10],
                agents=[name for name, _ in agents.most_common()],
            )

    def lots_table(self, asked: LotsQuery) -> bytes:
        """Returns the list of the page of versions as CSV.

        Raises:
            OperatorError: As `find`.
        """
        since_ms, until_ms = _period(asked, wall_clock_ms())
        with opened(self._settings, MAX_SECONDS) as store:
            listed = lots_in(store, since_ms, until_ms, asked.by or USUAL_BY, asked.agent)
        since, until = (shown_moment(ms).removesuffix(" 00:00:00") for ms in (since_ms, until_ms))
        in_order = (
            each._replace(
                lot=each.lot._replace(since=each.lot.since or since, until=each.lot.until or until)
            )
            for each, _ in worst_first([(each, None) for each in listed], asked.sort)
        )
        return csv_text(
            [
                [column.name for column in LOT_COLUMNS],
                *(row_of(LOT_COLUMNS, each) for each in in_order),
            ]
        ).encode()

    def usual(self, call: CallRow) -> Usual:
        """What calls of its agent were like on the day before the end of a call."""
        until_ms, agent = call.known_ms + 1, call.labels.agent
        names = [each.name for each in CALL_MEASURES]
        with opened(self._settings, MAX_SECONDS) as store:
            same = [
                Condition("labels.agent", "=", agent),
                Condition("conversation_id", "!=", call.conversation_id),
            ]
            rows = store.find(CallSearch(until_ms - DAY_MS, until_ms, same, most=MAX_ROWS), names)
        medians = {
            name: median(known)
            for name in names
            if (known := [each for row in rows if isinstance(each := row[name], int | float)])
        }
        return Usual(agent, len(rows), medians)

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """A call as it was known at a moment, None is now; None for one that is not kept."""
        with opened(self._settings, MAX_SECONDS) as store:
            return store.call(conversation_id, at_ms)

    def annotations_of(self, conversation_id: str) -> Sequence[Annotation] | None:
        """What people say of a call; None for one that was deleted on request."""
        with opened(self._settings, MAX_SECONDS) as store:
            return (
                None
                if store.is_forgotten(conversation_id)
                else store.annotations_of([conversation_id]).get(conversation_id, ())
            )


def _verdicts(
    store: HistoryStore, asked: LotsQuery, pairs: Iterable[tuple[Lot, Lot]], now_ms: int
) -> Iterator[tuple[tuple[Lot, Lot], str]]:
    """Yields the verdict of each pair, until the time of one page is used up."""
    for pair in pairs:
        try:
            yield pair, lots_compared(store, asked.within(pair), now_ms).verdict()
        except OperatorError:
            return


def _period(asked: LotsQuery, now_ms: int) -> tuple[int, int]:
    """From when to when the calls are that a page of versions lists: whole days and weeks, as behind
    its links.
    """
    since_ms = moment_ms(asked.since or USUAL_SINCE, now_ms)
    until_ms = moment_ms(asked.until, now_ms) if asked.until else now_ms + 1
    if (length_ms := {"day": DAY_MS, "week": WEEK_MS}.get(asked.by)) is not None:
        since_ms -= (since_ms - MONDAY_MS) % length_ms
        until_ms += (MONDAY_MS - until_ms) % length_ms
    return since_ms, until_ms


def _labelled(question: CallSearch, label: str, labels: Iterable[tuple[str, str]]) -> CallSearch:
    return (
        question._replace(ids={name for each, name in labels if each == label})
        if label
        else question
    )


def _missing(store: HistoryStore, question: CallSearch, subgoal: str) -> CallSearch:
    """The calls that missed a subgoal; all without one."""
    if not subgoal:
        return question
    asked = question._replace(counts=True, most=None, skip=0)
    missed = _Missed(store)
    results = {  # of each day's file
        str(results): None
        for results, _ in store.values(asked, ["subgoal_results"])
        if subgoal in missed.in_results(results)
    }
    return question._replace(results=[*results][:MAX_RESULTS])


class _Missed:
    """The names of missed subgoals; asks the store for each goal set once."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self._sets: dict[str, Sequence[str]] = {}

    def of_call(self, call: Flat, digest: Flat, results: Flat) -> list[str]:
        """The names of the subgoals that a call missed; the digest names its goal set."""
        found = subgoal_results(self._store, self._sets, call, digest, results)
        return [name for name, result in found if not result]

    def in_results(self, subgoal_results: Flat) -> list[str]:
        """The names of the subgoals that are missed in a value of the column `subgoal_results`."""
        digest, _, results = str(subgoal_results or "").partition(" ")
        if not digest:
            return []
        if digest in self._sets:
            return self.of_call(None, digest, results)
        of_set = CallSearch(
            0,
            wall_clock_ms() + 1,
            [Condition("goals.digest", "=", digest)],
            order_by="first_known_ms",
            most=MOST_ASKED_OF_A_SET,
        )
        for row in self._store.find(of_set, ["conversation_id"]):
            self._sets.pop(digest, None)
            names = self.of_call(row["conversation_id"], digest, results)
            if self._sets.get(digest):  # otherwise its set was written before history began
                return names
        return []


def _found(
    store: HistoryStore, question: CallSearch, columns: Sequence[str]
) -> list[dict[str, Any]]:
    """The calls, each with the names of the subgoals that it missed."""
    missed = _Missed(store)
    return [
        row
        | {
            "missed_subgoals": missed.of_call(
                row["conversation_id"], row["goals.digest"], row["goals.subgoals.result"]
            )
        }
        for row in store.find(question, columns)
    ]


def _dated(asked: PastQuery) -> PastQuery:
    """The question with the date of today or yesterday."""
    ago_ms = {"today": 0, "yesterday": DAY_MS}.get(asked.day)
    if ago_ms is None:
        return asked
    return asked.model_copy(update={"day": shown_moment(wall_clock_ms() - ago_ms)[:10]})


def _day_ms(text: str) -> int:
    try:
        return int(
            datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC).timestamp() * 1_000
        )
    except ValueError:
        raise SetupError(
            f"day {text!r}: expected a day in UTC, for example 2026-11-20. Nothing was searched."
        ) from None


_Counts = Sequence[tuple[Mapping[str, Sequence[str]], int]]
"""Calls that have the same values of all facets: the values by facet, and how many calls."""


def _counted(store: HistoryStore, question: CallSearch) -> _Counts:
    columns = {name: column for name, (_, column) in FACETS.items() if column} | {_USED: _USED}
    missed = _Missed(store)

    def values_of(name: str, value: Flat) -> Sequence[str]:
        return missed.in_results(value) if name == "subgoal" else _facet_values(name, value)

    return [
        (dict(zip(columns, map(values_of, columns, values), strict=True)), int(str(calls)))
        for *values, calls in store.values(question._replace(counts=True), list(columns.values()))
    ]


def _counts_of(counts: _Counts, asked: PastQuery, facet: str) -> list[tuple[str, int]]:
    """The values of one facet with the number of calls, as all other facets choose them; days
    newest first. What is chosen is there even where no call has it.
    """
    found: Counter[str] = Counter()
    for of, calls in counts:
        if facet in of and all(_is_in(of[name], asked, name) for name in of if name != facet):
            owner = BELONGS_TO.get(facet, "")
            whose = of[owner][0] + BESIDE if owner and not getattr(asked, owner) else ""
            for value in of[facet]:
                found[whose + value] += calls
    owner = BELONGS_TO.get(facet, "")
    if (chosen := getattr(asked, facet, "")) and (not owner or getattr(asked, owner)):
        found.update(dict.fromkeys(chosen.split(",") if facet == "outcome" else [chosen], 0))
    if facet == "main":
        return sorted(found.items(), key=lambda each: (each[0] in _FINE, -each[1]))
    return sorted(found.items(), reverse=True) if facet == "day" else found.most_common()


def _used_tools(counts: _Counts, asked: PastQuery) -> dict[str, int]:
    """How many calls used each tool; nothing of a tool of which that is not known of all calls, and
    nothing where only calls with failing ones are asked for.
    """
    if asked.trouble == "tool_fails":
        return {}
    used = dict(_counts_of(counts, asked.model_copy(update={"tool": ""}), _USED))
    for of, _ in counts:  # rows of an older version do not have it, and of very many it has some
        for tool in {*of["tool"]} - {*of[_USED]}:
            used.pop(tool, None)
    return used


def _number(counts: _Counts, asked: PastQuery) -> int:
    """How many calls all facets choose."""
    return sum(calls for of, calls in counts if all(_is_in(of[name], asked, name) for name in of))


def _in_common(counts: _Counts, asked: PastQuery) -> list[InCommon]:
    """Finds what the calls with a chosen fault have more often than the others: first whose they
    are, then what else was wrong with them. Where nearly all are of one agent, they are compared
    with its other calls, and so on. With no fault chosen, calls of a version, tenant or environment
    are compared with those of the others.
    """
    has_fault = any(getattr(asked, name) for name in _FAULTS)
    left_out = _FAULTS if has_fault else _WHOSE[1:]
    if not any(getattr(asked, name) for name in left_out):
        return []
    these, every = asked, asked.model_copy(update=dict.fromkeys(left_out, ""))
    found: list[InCommon] = []
    is_within = False
    for name in _WHOSE if has_fault else ():
        most = next(iter(_apart(counts, these, every, name)), None)
        if most is None:
            continue
        found.append(most._replace(is_within=is_within))
        narrowed = [
            each.model_copy(update=choice_of(name, most.values[0])) for each in (these, every)
        ]
        left = _number(counts, narrowed[1]) - _number(counts, narrowed[0])
        if most.share >= NEARLY_ALL and left >= LEAST_COMPARED:
            these, every = narrowed
            is_within = True
    wrong: list[InCommon] = []
    for name in ("tool", "subgoal") if has_fault else ("outcome", "trouble", "tool", "subgoal"):
        several = _apart(counts, these, every, name)
        together = [each for each in several if several[0].share - each.share <= _ALIKE]
        if together:
            values = [each.values[0] for each in together]
            wrong.append(together[0]._replace(values=values, is_within=is_within))
    return [*found, *wrong][:MOST_IN_COMMON]


def _apart(counts: _Counts, these: PastQuery, every: PastQuery, name: str) -> list[InCommon]:
    """The values of a facet that these calls have more often than the others of all, the greatest
    difference first; none that is chosen or that the choice says already.
    """
    number = _number(counts, these)
    others = _number(counts, every) - number
    is_said = {
        "subgoal": "goals_missed" in {these.trouble, these.main} or these.goals == "missed",
        "tool": not {"tool_fails", TOOL_FAILED_REACHED}.isdisjoint({these.trouble, these.main}),
    }
    if min(number, others) < LEAST_COMPARED or getattr(these, name) or is_said.get(name):
        return []
    of_these = dict(_counts_of(counts, these, name))
    found = []
    for value, calls in _counts_of(counts, every, name):
        mine = of_these.get(value, 0)
        share, other_share = mine / number, (calls - mine) / others
        is_told = value and not value.endswith(BESIDE) and value not in _TOLD_OTHERWISE
        if is_told and share - other_share >= LEAST_APART:
            found.append(InCommon(name, [value], share, other_share))
    return sorted(found, key=lambda each: each.others - each.share)


def _facet_values(name: str, value: Flat) -> Sequence[str]:
    if name == "trouble":
        return str(value or "").split()
    if name in {"tool", _USED}:
        return [each for each in str(value or "").split(", ") if each]
    if name == "day" and isinstance(value, int):
        return [datetime.fromtimestamp(value / 1_000, UTC).date().isoformat()]
    return ["" if value is None else str(value)]


def _is_in(values: Sequence[str], asked: PastQuery, name: str) -> bool:
    chosen = getattr(asked, name, "")
    if name == "outcome":
        return values[0] in (chosen.split(",") if chosen else _ENDINGS)
    return not chosen or chosen in values


def _labels(of: Iterable[Annotation]) -> list[str]:
    return sorted({each.label for each in of if each.label})
