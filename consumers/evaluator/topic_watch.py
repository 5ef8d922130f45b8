"""Notices a deleted topic while the evaluator runs. The clients would wait for it for ever without an error."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.preflight import misfit_now, used_topics
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError

SLOW_WRITE_SECONDS: Final = 15.0
"""Duration of a write after which the role is not ready and the topics are checked. It is well within the minute after which a
broker ends a transaction."""


class TopicWatch:
    """Checks the topics when one of them may be gone."""

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings, fail: Callable[[Exception], None]) -> None:
        """Stores its settings; it connects only when a topic may be gone.

        Args:
            kafka: The cluster.
            settings: Decide which topics are used.
            fail: Called with the error if the topics do not fit.
        """
        self._kafka = kafka
        self._topics = used_topics(
            writes_transcripts=settings.writes_transcripts,
            asks_judge=settings.goals.asks_judge,
            hands_over_state=settings.hands_over_state,
        )
        self._fail = fail
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = -SLOW_WRITE_SECONDS

    def slow_writers(self, active: Mapping[int, OwnedPartition]) -> list[int]:
        """Returns the numbers of partitions whose current write takes longer than `SLOW_WRITE_SECONDS`."""
        latest = time.monotonic() - SLOW_WRITE_SECONDS
        since = {number: owned.writer.writing_since for number, owned in active.items()}
        return [number for number, began in since.items() if began is not None and began < latest]

    def look(self, active: Mapping[int, OwnedPartition]) -> None:
        """Checks the topics now and then while a write is slow. Call it often."""
        now = time.monotonic()
        if now - self._asked_at > SLOW_WRITE_SECONDS and self.slow_writers(active):
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask(), name="topics")

    async def misfit(self) -> TopicsUnfitError | None:
        """Returns the fault of the topics now; None if there is none, or no broker answers."""
        return await misfit_now(self._kafka, self._topics)

    def stop(self) -> None:
        """Stops the checks."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        if (error := await self.misfit()) is not None:
            self._fail(error)
