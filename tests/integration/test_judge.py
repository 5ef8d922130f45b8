"""The judge role on a real broker, with the real client and an endpoint that follows a test's
script.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.closed_sets import UnjudgedReason
from schemas.judging import VERDICT_SOURCE, Judged, JudgeRequest, JudgeVerdict, Unjudged
from tests.integration.conftest import variables
from tests.integration.metrics_page import address_in, total
from tests.integration.processes import Process, started
from tests.support.brokers.topic_changes import create_topics
from tests.support.calls.judge_questions import question
from tests.support.fakes.scripted_openai import (
    Asked,
    Does,
    ScriptedOpenAI,
    fails,
    grades,
    scripted_openai,
)
from tests.support.patience import patient

QUESTION_PARTITIONS = 2
CALL_PARTITIONS = 3
TRIALS = 3


@pytest.fixture
async def environment(bootstrap: str, topic_prefix: str) -> dict[str, str]:
    await create_topics(
        bootstrap,
        {
            f"{topic_prefix}judge.requests": QUESTION_PARTITIONS,
            f"{topic_prefix}judge.verdicts": CALL_PARTITIONS,
        },
    )
    return {**variables(bootstrap, topic_prefix), "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}


def asking(server: ScriptedOpenAI, environment: dict[str, str], **settings: str) -> dict[str, str]:
    """The environment of a judge that asks this endpoint."""
    given = {f"CALLGAUGE_JUDGE__{name.upper()}": value for name, value in settings.items()}
    return {**environment, "OPENAI_API_KEY": "key", "OPENAI_BASE_URL": server.url, **given}


def judge(log: Path, environment: dict[str, str]) -> AbstractContextManager[Process]:
    return started(log, "run", "--roles", "judge", **environment)


async def until(what: str, condition: Callable[[], Any], seconds: float = 60) -> Any:
    begin = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - begin < patient(seconds), (
            f"waited {time.monotonic() - begin:.0f} s in vain for {what}"
        )
        await asyncio.sleep(0.05)
    return found


async def address_of(process: Process) -> str:
    return str(
        await until(f"the judge to be ready in:\n{process.text}", lambda: address_in(process.text))
    )


async def put(
    environment: dict[str, str], records: Iterable[JudgeRequest | bytes], **headers: str
) -> None:
    """Writes questions as the evaluator does."""
    async with AIOKafkaProducer(bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"]) as producer:
        topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}judge.requests"
        named = [(name, value.encode()) for name, value in headers.items()]
        for record in records:
            if isinstance(record, bytes):
                await producer.send(topic, record, key=b"junk", headers=named)
            else:
                value, key = record.model_dump_json().encode(), record.conversation_id.encode()
                await producer.send(topic, value, key=key, headers=named)
        await producer.flush()


class Verdicts:
    """All that was written to `judge.verdicts` so far, in order of arrival here."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    @property
    def all(self) -> list[JudgeVerdict]:
        return [JudgeVerdict.model_validate_json(record.value) for record in self.records]

    def are_at_least(self, count: int) -> bool:
        return len(self.records) >= count

    def of(self, asked: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """One verdict for each of the questions, in their order."""
        found = {verdict.request_id: verdict for verdict in self.all}
        assert len(found) == len(self.records), "a question has two verdicts"
        return [found[request.request_id] for request in asked]


@asynccontextmanager
async def reading(environment: dict[str, str]) -> AsyncIterator[Verdicts]:
    verdicts = Verdicts()
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}judge.verdicts"
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        auto_offset_reset="earliest",
        isolation_level="read_committed",  # as evaluators read
    ) as consumer:

        async def read() -> None:
            async for record in consumer:
                verdicts.records.append(record)

        task = asyncio.create_task(read())
        try:
            yield verdicts
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def questions(count: int, **fields: Any) -> list[JudgeRequest]:
    """So many questions, three of each call, whose deadline is far: how soon a judge has started
    hangs on the machine.
    """
    fields = {"deadline_ms": 10**13, **fields}
    return [
        question(
            conversation_id=f"c-{number // 3}",
            subgoal_id=f"g{number % 3}",
            subgoal=f"mark-{number}.",
            trials=TRIALS,
            **fields,
        )
        for number in range(count)
    ]


async def test_a_question_is_answered_and_counted(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def script(asked: Asked) -> Does:
        return grades("C" if "mark-1." in asked.user else "I")

    with (
        scripted_openai(script) as server,
        judge(tmp_path / "judge.log", asking(server, environment)) as process,
    ):
        asked = questions(6)
        await put(environment, [b"no question", b"{}", *asked])
        async with reading(environment) as verdicts:
            await until("the verdicts", lambda: len(verdicts.records) >= len(asked))
        address = await address_of(process)
        found = verdicts.of(asked)
        assert [verdict.result for verdict in found] == [
            Judged(is_completed=place == 1) for place in range(6)
        ]
        assert {verdict.votes.complete + verdict.votes.incomplete for verdict in found} == {2}
        assert len(server.asked) == 2 * len(asked)
        for record, verdict in zip(verdicts.records, verdicts.all, strict=True):
            headers = dict(record.headers)
            assert record.key.decode() == verdict.conversation_id
            assert headers["ce_id"].decode() == verdict.request_id
            assert headers["ce_source"].decode() == VERDICT_SOURCE
        assert total(address, "callgauge_judge_verdicts_total", outcome="complete") == 1
        assert total(address, "callgauge_judge_verdicts_total", outcome="incomplete") == 5
        assert total(address, "callgauge_judge_requests_total", outcome="answered") == 12
        assert total(address, "callgauge_judge_questions_refused_total") == 2
        assert total(address, "callgauge_judge_tokens_total", kind="answer") > 0
        spent = total(address, "callgauge_judge_cost_total")
        assert spent == pytest.approx(sum(verdict.cost for verdict in found))
        assert total(address, "callgauge_judge_budget_left", budget="hour") == pytest.approx(
            50 - spent
        )
        assert process.signalled(signal.SIGTERM)[0] == 0, process.text


async def test_without_a_key_every_question_is_answered_at_once(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with judge(tmp_path / "judge.log", environment):
        asked = questions(30)
        await put(environment, asked)
        async with reading(environment) as verdicts:
            await until("the verdicts", lambda: len(verdicts.records) == 30)
    assert {verdict.result for verdict in verdicts.of(asked)} == {
        Unjudged(reason=UnjudgedReason.JUDGE_DISABLED)
    }


async def test_killed_in_the_middle_it_asks_nothing_twice_that_was_answered(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Questions without a committed verdict when a judge was killed with -9 are asked again, and no
    others.
    """
    asked = questions(60)
    kills, at_once = 2, 8
    begun, killed_at_ms = [0], [0]
    with scripted_openai(lambda _: grades("C", delay_seconds=0.15)) as server:
        known = asking(server, environment, max_concurrent_requests=str(at_once))
        async with reading(environment) as verdicts:
            await put(environment, asked)
            for kill in range(1, kills + 1):
                with judge(tmp_path / f"killed-{kill}.log", known) as process:
                    await until("verdicts", partial(verdicts.are_at_least, 20 * kill))
                    assert process.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
                killed_at_ms.append(time.time_ns() // 1_000_000)
                await asyncio.sleep(0.5)  # what it had sent before the kill reaches the endpoint
                begun.append(len(server.asked))
            with judge(tmp_path / "last.log", known):
                await until("all verdicts", partial(verdicts.are_at_least, len(asked)))
                await until_committed(environment)
        assert {verdict.result for verdict in verdicts.of(asked)} == {Judged(is_completed=True)}
        subjects = {one.request_id: one.subgoal for one in asked}
        lost = 0
        for kill in range(1, kills + 1):
            answered = {
                subjects[each.request_id]
                for each in verdicts.all
                if each.timestamp <= killed_at_ms[kill]
            }
            lost += sum(
                _subject(one) not in answered for one in server.asked[begun[kill - 1] : begun[kill]]
            )
        # Those in flight, and those answered during the last transaction, which is shorter than an
        # answer takes.
        assert 0 < lost <= kills * (2 * at_once + 1)
        assert len(server.asked) == 2 * len(asked) + lost


async def test_killed_behind_a_slow_question_it_asks_only_that_again(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The others come after the first open question, and are answered all the same."""
    asked = questions(40)
    with scripted_openai(
        lambda one: grades("C", delay_seconds=50 if "mark-0." in one.user else 0)
    ) as server:
        async with reading(environment) as verdicts:
            await put(environment, asked)
            with judge(tmp_path / "killed.log", asking(server, environment)) as process:
                await until("verdicts", partial(verdicts.are_at_least, len(asked) - 1))
                assert process.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
            assert await uncommitted(environment) > 1
            server.script = lambda _: grades("C")
            with judge(tmp_path / "last.log", asking(server, environment)):
                await until("the last verdict", partial(verdicts.are_at_least, len(asked)))
                await until_committed(environment)
    assert {verdict.result for verdict in verdicts.of(asked)} == {Judged(is_completed=True)}
    assert Counter(map(_subject, server.asked)) == {
        one.subgoal: 4 if one is asked[0] else 2 for one in asked
    }


async def test_a_judge_that_was_frozen_writes_nothing_on_what_another_has_by_now(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It is frozen for longer than its session while it asks, and has the answers as soon as it
    wakes.
    """
    asked, later = questions(6), questions(12)[6:]
    with scripted_openai(lambda _: grades("C", delay_seconds=3)) as server:
        async with reading(environment) as verdicts:
            await put(environment, asked)
            with judge(tmp_path / "frozen.log", asking(server, environment)) as frozen:
                await until("its questions", lambda: len(server.asked) == 2 * len(asked))
                frozen.send(signal.SIGSTOP)
                server.script = lambda _: grades("C")
                with judge(tmp_path / "other.log", asking(server, environment)) as other:
                    await until("all verdicts", partial(verdicts.are_at_least, len(asked)))
                    frozen.send(signal.SIGCONT)
                    await put(environment, later)
                    await until(
                        "the later verdicts",
                        partial(verdicts.are_at_least, len(asked) + len(later)),
                    )
                    await until_committed(environment)
                    assert other.signalled(signal.SIGTERM)[0] == 0
                assert frozen.signalled(signal.SIGTERM)[0] == 0, frozen.text
    assert {verdict.result for verdict in verdicts.of([*asked, *later])} == {
        Judged(is_completed=True)
    }


def _subject(asked: Asked) -> str:
    return asked.user.partition('Subgoal: "')[2].partition('"')[0]


async def test_a_judge_that_joins_takes_a_share_and_nothing_is_asked_twice(
    environment: dict[str, str], tmp_path: Path
) -> None:
    asked, at_once = questions(120), 4
    with scripted_openai(lambda _: grades("I", delay_seconds=0.05)) as server:
        known = asking(server, environment, max_concurrent_requests=str(at_once))
        async with reading(environment) as verdicts:
            await put(environment, asked)
            with judge(tmp_path / "first.log", known) as first:
                await until("verdicts", partial(verdicts.are_at_least, 5))
                # so that there is work left to share
                server.script = lambda _: grades("I", delay_seconds=2)
                with judge(tmp_path / "second.log", known) as second:
                    addresses = [await address_of(process) for process in (first, second)]
                    server.script = lambda _: grades("I", delay_seconds=0.05)
                    await until("all verdicts", partial(verdicts.are_at_least, len(asked)))
                    shares = [
                        total(address, "callgauge_judge_verdicts_total") for address in addresses
                    ]
        assert len(verdicts.of(asked)) == len(asked)
    assert all(share > 10 for share in shares), shares
    # The others are open questions of the first judge about the partition it lost.
    assert len(server.asked) <= 2 * len(asked) + at_once + 1


async def test_an_endpoint_that_fails_blocks_nobody(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Everything is answered by its deadline, with the reason, and the position is committed."""
    with scripted_openai(lambda _: fails(503)) as server:
        known = asking(server, environment, max_retries="0")
        with judge(tmp_path / "judge.log", known) as process:
            await address_of(process)
            now_ms = time.time_ns() // 1_000_000
            asked = questions(60, deadline_ms=now_ms + 4_000)
            await put(environment, asked)
            async with reading(environment) as verdicts:
                await until("all verdicts", lambda: len(verdicts.records) == len(asked), 20)
            assert time.time_ns() // 1_000_000 < now_ms + 4_000 + patient(4) * 1_000
            assert process.signalled(signal.SIGTERM)[0] == 0
    reasons = Counter(
        verdict.result.reason
        for verdict in verdicts.of(asked)
        if isinstance(verdict.result, Unjudged)
    )
    assert reasons.keys() == {UnjudgedReason.UNAVAILABLE, UnjudgedReason.CIRCUIT_OPEN}
    assert len(server.asked) < 40
    assert await uncommitted(environment) == 0


async def uncommitted(environment: dict[str, str]) -> int:
    """Questions that a successor would read."""
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}judge.requests"
    partitions = [TopicPartition(topic, number) for number in range(QUESTION_PARTITIONS)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        group_id=environment["CALLGAUGE_TOPIC_PREFIX"] + "callgauge-judge",
    )
    async with consumer:
        ends = await consumer.end_offsets(partitions)
        return sum([ends[tp] - (await consumer.committed(tp) or 0) for tp in partitions])


async def until_committed(environment: dict[str, str]) -> None:
    """Waits until a successor would read nothing."""
    async with asyncio.timeout(patient(20)):
        while await uncommitted(environment):  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.1)


async def test_what_waited_too_long_for_us_is_not_asked(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Questions that came while no judge ran, and whose deadline is over: no evaluator would read
    the answer.
    """
    with scripted_openai(lambda _: grades("C")) as server:
        asked = questions(12, deadline_ms=time.time_ns() // 1_000_000 - 1)
        await put(environment, asked)
        with judge(tmp_path / "judge.log", asking(server, environment)):
            async with reading(environment) as verdicts:
                await until("the verdicts", lambda: len(verdicts.records) == len(asked))
    assert {verdict.result for verdict in verdicts.of(asked)} == {
        Unjudged(reason=UnjudgedReason.DEADLINE)
    }
    assert server.asked == []
