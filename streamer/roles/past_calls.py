"""History as the pages of the console ask for it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from statistics import median

from consumers.console.past import (
    ASKED_COLUMNS,
    CALL_MEASURES,
    FACETS,
    ROWS,
    LotsQuery,
    PastFound,
    PastQuery,
    Usual,
    Versions,
)
from consumers.history.opening import opened
from consumers.history.search import (
    MAX_ROWS,
    MAX_TEXT_CHARS,
    OUTCOMES,
    CallSearch,
    Condition,
    HistoryStore,
    require_column,
)
from consumers.history.settings import HistorySettings
from consumers.runtime.process import SetupError, wall_clock_ms
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.columns import Flat
from schemas.rows import CallRow, WordsRow
from schemas.units import DAY_MS
from streamer.history.comparison import USUAL_SINCE, lots_compared, newest_pairs, versions_in
from streamer.tables import csv_text
from streamer.time_bounds import moment_ms

MAX_SECONDS = 5.0
"""How long a question of a page may take. A search for a word over 200,000 calls takes half of one;
who asks more gets no page.
"""
USUAL_HOURS = "24h"
"""How far back past calls go where nothing is said."""
MOST_PAIRS = 8
"""Agents whose newest versions are offered."""
MOST_NAMES = 200
"""Names of one kind that are offered."""
SNIPPET_CHARS = 160
"""Characters of what was said that are shown around the words that were found."""
_TABLE_COLUMNS = (
    "conversation_id",
    *(name for name in ASKED_COLUMNS if name != "conversation_id"),
    "known_ms",
)


def moment_of(text: str, now_ms: int) -> int:
    """A moment that a page asks for.

    Raises:
        SetupError: It is none.
    """
    try:
        return moment_ms(text[:MAX_TEXT_CHARS], now_ms)
    except (ValueError, OverflowError) as error:
        raise SetupError(f"{error}. Nothing was searched.") from error


class StoredCalls:
    """Past calls where the settings say, opened anew for each question: what writes them may run
    elsewhere or not at all.
    """

    def __init__(self, settings: HistorySettings) -> None:
        self._settings = settings

    def find(self, asked: PastQuery) -> PastFound:
        """The calls of a page, with counts of what all that are asked for have in common.

        Raises:
            OperatorError: A part of the question cannot be understood, there is no folder, or it
                takes too long.
        """
        every, question = self._questions(asked)
        with opened(self._settings, MAX_SECONDS) as store:
            labels = store.labels()
            every, question = (_labelled(each, asked.label, labels) for each in (every, question))
            counts = list(
                store.values(
                    every._replace(counts=True), [column for _, column in FACETS.values() if column]
                )
            )
            rows = store.find(question, ASKED_COLUMNS)
            ids = [str(row["conversation_id"]) for row in rows]
            said: dict[str, tuple[int, str]] = {}
            if asked.text or asked.said:
                for each in ids:
                    stored = store.call(each)
                    found = None if stored is None else _said_in(stored.words, asked.text.split())
                    said |= {} if found is None else {each: found}
            people = {
                name: sorted({each.label for each in of if each.label})
                for name, of in store.annotations_of(ids).items()
            }
            of_label = self._label_counts(store, question, labels)
        facets = {name: _counts_of(counts, asked, name) for name in FACETS}
        chosen = asked.outcome.split(",") if asked.outcome else OUTCOMES[:-1]
        outcomes = dict(facets["outcome"])
        total = sum(calls for name, calls in outcomes.items() if name in chosen)
        return PastFound(
            rows, total, outcomes.get("running", 0), facets | {"label": of_label}, said, people
        )

    def _questions(self, asked: PastQuery) -> tuple[CallSearch, CallSearch]:
        """The calls that the facets count, and those of the page: facets count beside what they
        choose.
        """
        now_ms = wall_clock_ms()
        until_ms = moment_of(asked.until, now_ms) if asked.until else now_ms + 1
        where = [Condition.parse(asked.where)] if asked.where else []
        since_ms = moment_of(asked.since or USUAL_HOURS, now_ms)
        if asked.day and not asked.since:  # all of the day, and not what is left of it
            since_ms = min(since_ms, _day_ms(asked.day))
        every = CallSearch(
            since_ms,
            until_ms,
            where,
            asked.text[:MAX_TEXT_CHARS].split(),
            most=None,
        )
        outcomes = asked.outcome.split(",") if asked.outcome else OUTCOMES[:-1]
        chosen = [Condition("outcome", "!=", each) for each in OUTCOMES if each not in outcomes]
        plain = ("agent", "version", "tenant", "environment", "goal_set")
        chosen += [
            Condition(FACETS[name][1], "=", value)
            for name in plain
            if (value := getattr(asked, name))
        ]
        if asked.trouble:
            chosen.append(Condition("troubles", "~", f" {asked.trouble} "))
        if asked.day:
            chosen.append(Condition("day_ms", "=", _day_ms(asked.day)))
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
        asked = question._replace(ids=ids, most=None, skip=0)
        there = {name for (name,) in store.values(asked, ["conversation_id"])}
        return Counter(label for label, name in labels if name in there).most_common()

    def table(self, asked: PastQuery) -> bytes:
        """The calls of all pages as CSV, `MAX_ROWS` at most.

        Raises:
            OperatorError: As `find`.
        """
        _, question = self._questions(asked)
        with opened(self._settings, MAX_SECONDS) as store:
            question = _labelled(
                question._replace(most=MAX_ROWS, skip=0), asked.label, store.labels()
            )
            rows = store.find(question, _TABLE_COLUMNS)
        return csv_text([_TABLE_COLUMNS, *(list(row.values()) for row in rows)]).encode()

    def versions(self, asked: LotsQuery) -> Versions:
        """Two lots of calls compared: those that are asked for, otherwise the newest versions of
        the agent with most calls.

        Raises:
            OperatorError: As `find`.
        """
        now_ms = wall_clock_ms()
        since_ms = moment_of(USUAL_SINCE, now_ms)
        labels = ("agent", "version", "tenant", "environment")
        with opened(self._settings, MAX_SECONDS) as store:
            pairs = list(newest_pairs(versions_in(store, since_ms, now_ms + 1)))[:MOST_PAIRS]
            question = CallSearch(since_ms, now_ms + 1, most=None, counts=True)
            seen = [
                row[:-1] for row in store.values(question, [f"labels.{name}" for name in labels])
            ]
            names = {
                name: sorted({str(row[place]) for row in seen if row[place] is not None})[
                    :MOST_NAMES
                ]
                for place, name in enumerate(labels)
            }
            lots = asked.lots() or next(iter(pairs), None)
            return Versions(
                None if lots is None else lots_compared(store, lots, now_ms), names, pairs
            )

    def usual(self, call: CallRow) -> Usual:
        """What calls of its agent were like on the day before the end of a call."""
        until_ms, agent = call.known_ms + 1, call.labels.agent
        same = [Condition("labels.agent", "=", agent)]
        names = [each.name for each in CALL_MEASURES]
        with opened(self._settings, MAX_SECONDS) as store:
            rows = store.find(CallSearch(until_ms - DAY_MS, until_ms, same, most=MAX_ROWS), names)
        medians: dict[str, float] = {}
        for name in names:
            known = [value for row in rows if isinstance(value := row[name], int | float)]
            if known:
                medians[name] = median(known)
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


def _labelled(question: CallSearch, label: str, labels: Iterable[tuple[str, str]]) -> CallSearch:
    return (
        question._replace(ids={name for each, name in labels if each == label})
        if label
        else question
    )


def _day_ms(text: str) -> int:
    try:
        return int(
            datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC).timestamp() * 1_000
        )
    except ValueError:
        raise SetupError(
            f"day {text!r}: expected a day in UTC, for example 2026-11-20. Nothing was searched."
        ) from None


def _counts_of(
    counts: Iterable[Sequence[Flat]], asked: PastQuery, facet: str
) -> list[tuple[str, int]]:
    """The values of one facet with the number of calls, as all other facets choose them; days
    newest first.
    """
    columns = [name for name, (_, column) in FACETS.items() if column]
    found: Counter[str] = Counter()
    for *values, calls in counts:
        of = dict(zip(columns, map(_facet_values, columns, values), strict=True))
        if facet in of and all(_is_in(of[name], asked, name) for name in columns if name != facet):
            for value in of[facet]:
                found[value] += calls if isinstance(calls, int) else 0
    return sorted(found.items(), reverse=True) if facet == "day" else found.most_common()


def _facet_values(name: str, value: Flat) -> Sequence[str]:
    if name == "trouble":
        return str(value or "").split()
    if name == "day" and isinstance(value, int):
        return [datetime.fromtimestamp(value / 1_000, UTC).date().isoformat()]
    return ["" if value is None else str(value)]


def _is_in(values: Sequence[str], asked: PastQuery, name: str) -> bool:
    chosen = getattr(asked, name)
    if name == "outcome":
        return values[0] in (chosen.split(",") if chosen else OUTCOMES[:-1])
    return not chosen or chosen in values


def _said_in(words: Sequence[WordsRow], sought: Sequence[str]) -> tuple[int, str] | None:
    """The turn with most of the words and what was said around them; without words, the last that
    the caller said.
    """
    texts = [
        (row.turn, text)
        for row in words
        for text in ((row.user, row.assistant) if sought else (row.user,))
        if text
    ]
    if not texts:
        return None
    if not sought:
        turn, text = texts[-1]
        return turn, text[-SNIPPET_CHARS:]
    turn, text = max(
        texts, key=lambda each: sum(word.casefold() in each[1].casefold() for word in sought)
    )
    place = max(
        0,
        min(
            (at for word in sought if (at := text.casefold().find(word.casefold())) >= 0), default=0
        )
        - SNIPPET_CHARS // 2,
    )
    return turn, text[place : place + SNIPPET_CHARS]
