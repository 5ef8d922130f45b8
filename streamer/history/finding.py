"""Past calls that were found, as a table that fits the terminal, and where to look when
none was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rich.table import Table

from consumers.history.search import CallSearch, HistoryStore
from consumers.view.words import in_words, percent, seconds
from schemas.closed_sets import CallOutcome
from schemas.columns import Flat
from schemas.rows import WordsRow
from schemas.units import DAY_MS
from streamer.fitting import FittedColumn, fitted
from streamer.time_bounds import shown_moment

_SHOWN: Final[Mapping[str, tuple[str, Callable[[float], str], int]]] = {
    "turns": ("turns", str, 6),
    "p50_ms": ("median", seconds, 1),
    "worst_wait_ms": ("longest", seconds, 3),
    "unanswered": ("unanswered", str, 4),
    "goals.progress.result": ("subgoals", percent, 2),
    "dead_airs": ("dead air", str, 5),
}
"""Numbers of the table for people: what stands above each, how a value is written, and when the
column is left out; the median is of the waits. Programs get all columns.
"""


def calls_table(rows: Sequence[Mapping[str, Flat]], labels: Mapping[str, str], width: int) -> Table:
    """A line for each call, with its whole id, in so many characters."""
    ids = [str(row["conversation_id"]) for row in rows]
    rows = [{**row, "worst_wait_ms": _longest_ms(row)} for row in rows]
    columns = [
        FittedColumn(
            "began, UTC", [_when(row["began_ms"] or row["first_known_ms"]) for row in rows]
        ),
        FittedColumn("agent", _texts(rows, "labels.agent"), is_cut=True),
        *(
            FittedColumn(
                head,
                [
                    written(value) if isinstance(value := row[name], int | float) else "-"
                    for row in rows
                ],
                leaves,
                is_number=True,
            )
            for name, (head, written, leaves) in _SHOWN.items()
        ),
        FittedColumn("ended", [_ended(row) for row in rows], 6),
        FittedColumn("failed tools", _texts(rows, "failed_tools"), 7, is_cut=True),
        FittedColumn("version", _texts(rows, "labels.version"), 8, is_cut=True),
        FittedColumn("call", ids),
    ]
    if any(labels.values()):
        columns.append(FittedColumn("labels", [labels.get(each, "") for each in ids], is_cut=True))
    return fitted(columns, width)


def _longest_ms(row: Mapping[str, Flat]) -> float | None:
    """The longest wait, also one in vain."""
    waits_ms = (row["longest_wait_ms"], row["in_vain_ms"])
    return max((each for each in waits_ms if isinstance(each, int | float)), default=None)


def _ended(row: Mapping[str, Flat]) -> str:
    """How a call ended, if not well."""
    outcome = row["outcome"]
    return "-" if outcome in {None, CallOutcome.ENDED} else in_words(str(outcome))


def _texts(rows: Sequence[Mapping[str, Flat]], name: str) -> list[str]:
    return ["-" if row[name] is None else str(row[name]) for row in rows]


def _when(moment: Flat) -> str:
    return shown_moment(moment)[5:16] if isinstance(moment, int) else ""


def where_others_are(store: HistoryStore, question: CallSearch) -> str:
    """What to say where no call was found: how many are like that at other times, and which option
    shows them.
    """
    ever = question._replace(since_ms=0, until_ms=2**53, most=None, counts=True)
    days = sorted(
        (int(day_ms), int(number))
        for day_ms, number in store.values(ever, ["day_ms"])
        if day_ms and number
    )
    if not days:
        anything = store.values(CallSearch(0, 2**53, most=1), ["conversation_id"])
        return "" if any(anything) else " There is no call in it yet."
    first, last = (shown_moment(days[place][0])[:10] for place in (0, -1))
    when = first if first == last else f"{first} to {last}"
    number = sum(number for _, number in days)
    are = "1 call is, but began" if number == 1 else f"{number:,} calls are, but began"
    until = shown_moment(days[-1][0] + DAY_MS)[:10]
    return (
        f" At other times {are} on {when}: --since {first} --until {until} shows "
        f"{'it' if number == 1 else 'them'}."
    )


SNIPPET_CHARS: Final = 160
"""Characters of what was said that are shown around the words that were found."""


def said_of(
    store: HistoryStore, ids: Iterable[str], sought: str = ""
) -> dict[str, tuple[int, str, str]]:
    """By call a turn, who spoke and what was said: where most of the words are, with what stands
    around them; without words, the last that the caller said. Calls of which nothing is kept are
    left out.
    """
    found = {
        name: _said_in(stored.words, sought.split())
        for name in ids
        if (stored := store.call(name)) is not None
    }
    return {name: said for name, said in found.items() if said is not None}


def _said_in(words: Sequence[WordsRow], sought: Sequence[str]) -> tuple[int, str, str] | None:
    texts = [
        (row.turn, who, text)
        for row in words
        for who, text in (("caller", row.user), ("agent", row.assistant if sought else ""))
        if text
    ]
    if not texts:
        return None
    if not sought:
        turn, who, text = texts[-1]
        return turn, who, _snippet(text, len(text) - SNIPPET_CHARS)
    turn, who, text = max(
        texts, key=lambda each: sum(word.casefold() in each[2].casefold() for word in sought)
    )
    places = (text.casefold().find(word.casefold()) for word in sought)
    first = min((place for place in places if place >= 0), default=0)
    return turn, who, _snippet(text, first - SNIPPET_CHARS // 2)


def _snippet(text: str, begin: int) -> str:
    """A part of a text from about there on, from word to word where it has blanks.

    Example:
        >>> _snippet("please mind the gap", 9)
        '\u2026 the gap'
    """
    begin = max(0, begin)
    if begin:  # the next blank, if it is near
        begin = text.find(" ", begin - 1, begin + SNIPPET_CHARS // 4) + 1 or begin
    end = begin + SNIPPET_CHARS
    if end < len(text):
        end = max(text.rfind(" ", begin + SNIPPET_CHARS * 3 // 4, end), 0) or end
    return "\u2026 " * (begin > 0) + text[begin:end] + " \u2026" * (end < len(text))
