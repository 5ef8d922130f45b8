"""History as the pages of the console ask for it."""

from collections.abc import Mapping, Sequence

from consumers.history.search import MAX_TEXT_CHARS, Condition, Question
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import wall_clock_ms
from schemas.scores.records import AnyScoreRecord
from streamer.time_bounds import moment_given

SHOWN = (
    "conversation_id", "started_ms", "agent", "turns", "p50_ms", "p95_ms", "dead_airs", "failed_tools", "progress", "success",
)  # fmt: skip
"""Columns of the table of past calls."""
MOST_ROWS = 100
"""Past calls of one page."""


class StoredCalls:
    """Past calls in the folder of the role `history`, opened anew for each question: the role may run elsewhere or not at all."""

    def __init__(self, settings: HistorySettings) -> None:
        if settings.folder is None:
            raise ValueError("history has no folder")
        self._folder = settings.folder

    def find(self, since: str, agent: str, where: str, text: str) -> tuple[Sequence[Mapping[str, object]], bool]:
        """The worst calls since a moment, with these agent, condition and words, and whether there are more.

        Raises:
            OperatorError: A part of the question cannot be understood, or there is no folder.
        """
        conditions = [Condition("agent", "=", agent[:MAX_TEXT_CHARS])] if agent else []
        conditions += [Condition.parse(where)] if where else []
        question = Question(
            moment_given(since), wall_clock_ms() + 1, conditions, text[:MAX_TEXT_CHARS].split(), most=MOST_ROWS + 1
        )
        store = SqliteHistory(self._folder)
        try:
            rows = store.find(question)
        finally:
            store.close()
        return [{name: row[name] for name in SHOWN} for row in rows[:MOST_ROWS]], len(rows) > MOST_ROWS

    def records_of(self, conversation_id: str) -> Sequence[AnyScoreRecord]:
        """The score records of a call; none of one that is not kept."""
        store = SqliteHistory(self._folder)
        try:
            return store.records_of(conversation_id)
        finally:
            store.close()

    def transcript_of(self, conversation_id: str) -> bytes | None:
        """The transcript of a call, if it is kept."""
        store = SqliteHistory(self._folder)
        try:
            return store.transcript_of(conversation_id)
        finally:
            store.close()
