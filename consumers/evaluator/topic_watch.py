"""Sees that a topic has gone while the evaluator runs: its clients only wait for it, for ever and without a word."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.preflight import misfit_now, used_topics
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError

SLOW_WRITE_SECONDS: Final = 15.0
"""A write that takes longer makes the role not ready, and asks the broker whether the topics are still there. Well within
the time after which a broker ends a transaction: a minute."""


class TopicWatch:
    """Asks for the topics when something looks as if one were gone."""

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings, fail: Callable[[Exception], None]) -> None:
        """Keeps what it needs; nothing is connected before something looks wrong.

        Args:
            kafka: Where the broker is.
            settings: They say which topics are used.
            fail: Called with what is wrong, if it is the topics.
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
        """Numbers of partitions whose write under way takes very long."""
        latest = time.monotonic() - SLOW_WRITE_SECONDS
        since = {number: owned.writer.writing_since for number, owned in active.items()}
        return [number for number, began in since.items() if began is not None and began < latest]

    def look(self, active: Mapping[int, OwnedPartition]) -> None:
        """To be called often: asks for the topics, now and then, while a write takes very long."""
        now = time.monotonic()
        if now - self._asked_at > SLOW_WRITE_SECONDS and self.slow_writers(active):
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask(), name="topics")

    async def misfit(self) -> TopicsUnfitError | None:
        """What is wrong with the topics now; None if nothing is, or no broker says so."""
        return await misfit_now(self._kafka, self._topics)

    def stop(self) -> None:
        """Asks no more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        if (error := await self.misfit()) is not None:
            self._fail(error)
