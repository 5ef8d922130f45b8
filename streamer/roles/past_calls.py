"""History as the pages of the console ask for it."""

from collections.abc import Mapping, Sequence
from statistics import median

from consumers.console.page.drawing import counted
from consumers.history.opening import opened
from consumers.history.search import MAX_ROWS, MAX_TEXT_CHARS, Condition, Question
from consumers.history.settings import HistorySettings
from consumers.runtime.process import SetupError, wall_clock_ms
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.units import DAY_MS
from streamer.time_bounds import moment_ms

MOST_ROWS = 100
"""Past calls of one page."""
MAX_SECONDS = 5.0
"""How long a question of a page may take. A search for a word over 200,000 calls takes half of one; who asks more gets no page."""

_WITH_MEDIANS = ("turns", "p50_ms", "p95_ms", "longest_wait_ms", "dead_airs", "goals.progress.result")
"""Columns of the comparison that have a median."""


class StoredCalls:
    """Past calls where the settings say, opened anew for each question: what writes them may run elsewhere or not at all."""

    def __init__(self, settings: HistorySettings) -> None:
        self._settings = settings

    def find(self, since: str, agent: str, where: str, text: str) -> tuple[Sequence[Mapping[str, object]], bool]:
        """The worst calls since a moment, with these agent, condition and words, and whether there are more.

        Raises:
            OperatorError: A part of the question cannot be understood, or there is no folder.
        """
        now_ms = wall_clock_ms()
        try:
            since_ms = moment_ms(since[:MAX_TEXT_CHARS], now_ms)
        except (ValueError, OverflowError) as error:
            raise SetupError(f"{error}. Nothing was searched.") from error
        conditions = [Condition("labels.agent", "=", agent[:MAX_TEXT_CHARS])] if agent else []
        conditions += [Condition.parse(where)] if where else []
        question = Question(since_ms, now_ms + 1, conditions, text[:MAX_TEXT_CHARS].split(), most=MOST_ROWS + 1)
        with opened(self._settings, MAX_SECONDS) as store:
            rows = store.find(question)
        return rows[:MOST_ROWS], len(rows) > MOST_ROWS

    def compared(self, ids: Sequence[str]) -> Sequence[tuple[str, Mapping[str, object]]]:
        """The values of two calls with their ids, or of one and the medians of its agent's calls of the day before its end.

        Only calls that history has are among them.
        """
        with opened(self._settings, MAX_SECONDS) as store:
            found = [row for name in ids for row in store.find(_of_call(name))]
            columns: list[tuple[str, Mapping[str, object]]] = [(str(row["conversation_id"]), row) for row in found]
            if len(found) == 1:
                until_ms = int(found[0]["known_ms"] or 0) + 1
                agent = str(found[0]["labels.agent"])
                same = [Condition("labels.agent", "=", agent)]
                rows = store.find(Question(until_ms - DAY_MS, until_ms, same, most=MAX_ROWS))
                columns.append((f"median of {agent}, {counted(len(rows), 'call')} of a day", _medians(rows)))
        return columns

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


def _of_call(conversation_id: str) -> Question:
    return Question(0, 2**53, [Condition("conversation_id", "=", conversation_id[:MAX_TEXT_CHARS])], most=1)


def _medians(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """By column the median of its numbers."""
    medians: dict[str, object] = {}
    for name in _WITH_MEDIANS:
        numbers = [value for row in rows if isinstance(value := row[name], int | float)]
        if numbers:
            medians[name] = median(numbers)
    return medians
