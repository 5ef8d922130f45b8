"""Evaluates past traffic again with today's code and settings, writes to a separate topic, and compares."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import (
    READ,
    WRITE,
    KafkaSettings,
    Needs,
    TopicsUnfitError,
    partition_counts,
    require_access,
    require_equal_counts,
)
from schemas.goals.goal_set import ChoosesGoals
from schemas.order import OrderError
from schemas.scores.records import AnyScoreRecord
from schemas.topics import INPUT_TOPICS, ORDER_TOPIC, SCORES_TOPIC, TOPICS
from streamer.cluster.onlooker import onlooker
from streamer.operations.backtest.comparison import Comparison
from streamer.operations.backtest.inputs import FETCH_WAIT_MS, PastInputs, past_inputs
from streamer.operations.backtest.past import BacktestError, Period, past_calls
from streamer.operations.backtest.rerun import Rerun
from streamer.roles.evaluator_role import goals_of_now
from streamer.settings.all_settings import Settings
from streamer.sources.publisher import PublishError
from streamer.version import installed_version

RUN_HEADER: Final = "callgauge_run"
"""Header of every record that a back-test writes; its value is the id of the run."""
MAX_UNACKNOWLEDGED: Final = 1_000
"""Records on their way to the topic at a time."""

_SHOWN_EVERY: Final = 500
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

ShowProgress = Callable[[int, int, float], None]
"""Gets the partition number, the number of partitions, and the finished share of this one's time."""


@dataclass(frozen=True, slots=True)
class BacktestPlan:
    """The past to evaluate again, and how.

    Attributes:
        period: The past, in broker time.
        into: Topic of the new records, without the prefix.
        obeys_facts: Whether records are folded in the order of the log, and goals taken from it.
        run_id: Identifies the records of this run.
        now_ms: Start of the command: an open silence lasts until then.
    """

    period: Period
    into: str
    obeys_facts: bool
    run_id: str
    now_ms: int


@dataclass(slots=True)
class BacktestResult:
    """The outcome of a back-test.

    Attributes:
        comparison: The final scores of the log against the new ones.
        written: Records put on the topic.
        refused: Input records of the calls that are refused today.
        open_calls: Calls that have not ended yet.
        without_beginning: Calls left out because `order` or the inputs do not have their beginning.
        closed_twice: Calls left out because their id was used again after they had closed.
        older: Calls left out because their records have an older schema version.
        unreadable: Records of `scores` that this version cannot read.
        cut: Time in ms of the oldest record of each input partition whose older records are deleted.
    """

    comparison: Comparison = field(default_factory=Comparison)
    written: int = 0
    refused: int = 0
    open_calls: int = 0
    without_beginning: int = 0
    closed_twice: int = 0
    older: int = 0
    unreadable: int = 0
    cut: dict[str, int] = field(default_factory=dict)


def topic_to_write(kafka: KafkaSettings, into: str) -> str:
    """The name, without the prefix, of the topic that the records go to.

    Args:
        kafka: How topics are called here.
        into: As typed, with the prefix or without.

    Raises:
        ValueError: It cannot be a topic's name, or it is a topic that others read.
    """
    name = into.removeprefix(kafka.topic_prefix)
    if not _TOPIC_NAME.fullmatch(kafka.topic(name)) or not name:
        raise ValueError(f"{into!r} is no name of a topic: letters, digits, dot, dash and underscore, at most 249")
    if name in {topic.name for topic in TOPICS}:
        raise ValueError(f"{into!r} is a topic of the running system; a back-test writes to one of its own")
    return name


async def backtest(settings: Settings, plan: BacktestPlan, show: ShowProgress) -> BacktestResult:
    """Evaluates one partition number after the other; each is read once, and no consumer group knows of it.

    Args:
        settings: Today's settings.
        plan: The past, and the topic of the new records.
        show: Gets the progress.

    Raises:
        BacktestError: It cannot run as requested.
        GoalFolderError: The folder of goals cannot be read.
        KafkaUnreachableError: No broker answers, or rights are missing.
        PublishError: A record could not be written.
        TopicsUnfitError: A topic is missing.
    """
    kafka = settings.kafka
    count = await _partitions(kafka, plan)
    result = BacktestResult()
    rules = settings.goal_rules(("evaluator", "judge"))
    async with (
        _goals(settings, plan) as goals,
        past_inputs(kafka) as inputs,
        onlooker(kafka, "backtest-scores", auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS) as ledger,
        _Writer(kafka, plan) as writer,
    ):
        for number in range(count):
            show(number, count, 0.0)
            # Without the facts a call may close as late as the longest one that begins at the end of the period.
            longest_ms = settings.limits.max_call_duration_ms
            since_ms, until_ms = plan.period
            closing = plan.period if plan.obeys_facts else Period(since_ms, until_ms + longest_ms)
            past = await past_calls(ledger, kafka, number, closing, longest_ms)
            rerun = Rerun(
                limits=settings.limits,
                code_version=installed_version(),
                period=plan.period,
                past=past.by_id,
                obeys_facts=plan.obeys_facts,
                comparison=result.comparison,
                left_out=frozenset(past.closed_twice | past.older),
                goals=ChosenGoals(goals, rules),
                redactor=Redactor(settings.redaction),
            )
            order = ledger if plan.obeys_facts else None
            await _evaluate(rerun, inputs, number, order, writer, plan, partial(show, number, count))
            result.refused += rerun.refused
            result.open_calls += rerun.open_calls
            result.without_beginning += rerun.without_beginning
            result.closed_twice += len(past.closed_twice)
            result.older += len(past.older)
            result.unreadable += past.unreadable
        await writer.flush()
        result.written = writer.written
        result.cut = inputs.cut
    show(count, count, 0.0)
    return result


def _goals(settings: Settings, plan: BacktestPlan) -> AbstractAsyncContextManager[ChoosesGoals | None]:
    """The source of goals, unless those of the log count."""
    return nullcontext() if plan.obeys_facts else goals_of_now(settings.kafka, settings)


async def _evaluate(
    rerun: Rerun,
    inputs: PastInputs,
    number: int,
    order: AIOKafkaConsumer | None,
    writer: "_Writer",
    plan: BacktestPlan,
    show: Callable[[float], None],
) -> None:
    """One partition number, from as long before the period as a call may last."""
    if rerun.is_over(plan.period.since_ms):
        return
    begin_ms, end_ms = plan.period.since_ms - rerun.limits.max_call_duration_ms, plan.period.until_ms
    taken = 0
    try:
        async with inputs.steps(number, begin_ms, order) as steps:
            async for logged in steps:
                await writer.write(rerun.take(logged))
                taken += 1
                if taken % _SHOWN_EVERY == 0:
                    show(min(1.0, max(0.0, (logged.time_ms - begin_ms) / (end_ms - begin_ms))))
                if rerun.is_over(logged.time_ms):
                    break
    except OrderError as error:
        raise BacktestError(
            f"Back-test: `order` of partition {number} cannot be used: {error}. Nothing more was evaluated. Take a later --since, "
            "or --without-facts, which goes by broker time."
        ) from error
    await writer.write(rerun.finish(plan.now_ms))


async def _partitions(kafka: KafkaSettings, plan: BacktestPlan) -> int:
    """How many partition numbers there are to evaluate."""
    into, order = plan.into, (ORDER_TOPIC,) if plan.obeys_facts else ()
    reads = {topic: frozenset({READ}) for topic in (*INPUT_TOPICS, SCORES_TOPIC, *order)}
    await require_access(kafka, Needs(reads))
    count = require_equal_counts(await partition_counts(kafka, reads))
    try:
        await require_access(kafka, Needs({into: frozenset({WRITE})}))
    except TopicsUnfitError as error:
        raise BacktestError(
            f"Back-test: there is no topic {kafka.topic(into)} on {kafka.bootstrap_servers} to write to, and callgauge "
            "creates none on the way. Nothing was evaluated. Create it:\n"
            f"  callgauge topics create --scores-copy {into} --partitions {count} --bootstrap {kafka.bootstrap_servers}"
            f"{f' --topic-prefix {kafka.topic_prefix}' if kafka.topic_prefix else ''}"
        ) from error
    return count


class _Writer:
    """Puts records on the topic of a back-test, in order, each with the id of the run."""

    def __init__(self, kafka: KafkaSettings, plan: BacktestPlan) -> None:
        self.written = 0
        self._kafka = kafka
        self._topic = kafka.topic(plan.into)
        self._headers = [(RUN_HEADER, plan.run_id.encode())]
        self._producer: AIOKafkaProducer | None = None
        self._sent: list[asyncio.Future[Any]] = []

    async def __aenter__(self) -> Self:
        self._producer = self._kafka.producer("backtest")
        try:
            await self._producer.start()
        except KafkaError as error:
            await self._producer.stop()
            raise self._kafka.unreachable(error) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._producer is not None:
            await self._producer.stop()

    async def write(self, records: Sequence[AnyScoreRecord]) -> None:
        """Hands records over; waits when too many are on their way.

        Raises:
            PublishError: The broker did not take one.
        """
        producer = self._producer
        if producer is None or not records:
            return
        try:
            for record in records:
                value, key = record.model_dump_json().encode(), record.conversation_id.encode()
                self._sent.append(await producer.send(self._topic, value, key=key, headers=self._headers))
        except KafkaError as error:
            raise self._refused(error) from error
        if len(self._sent) >= MAX_UNACKNOWLEDGED:
            await self.flush()

    async def flush(self) -> None:
        """Waits until all that was handed over is acknowledged.

        Raises:
            PublishError: The broker did not take one.
        """
        sent, self._sent = self._sent, []
        try:
            await asyncio.gather(*sent)
        except KafkaError as error:
            raise self._refused(error) from error
        self.written += len(sent)

    def _refused(self, error: KafkaError) -> PublishError:
        return PublishError(
            f"Back-test: records could not be written to {self._topic} on {self._kafka.bootstrap_servers}: "
            f"{str(error) or type(error).__name__}. It ends here, and its output is incomplete. Check the broker "
            "and the rights on the topic, then run it again: a run has an id of its own."
        )
