"""The role measures on a real broker, joined by a second one, killed, and joined again: each value is
there, is the one of the last rows, and is counted once.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer

from schemas.rows import CallRow, OwnRow, TurnRow, decode_own, decode_words
from schemas.topics import OWN_TOPIC, TOPIC_BY_SOURCE, WORDS_TOPIC
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.integration.metrics_page import total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import closed_rows, newest_rows, records_on, written_rows
from tests.support.patience import patient

CALLS: Final = 12
WAIT_SECONDS: Final = 120
LOOK_SECONDS: Final = 0.5

MEASURES: Final = """
from callgauge import measure


@measure
def revision(turn):
    return turn.revision


@measure
def said(turn, words):
    return len(words.assistant or "") if words else -1


@measure
def turns_of_call(call, turns):
    return len(turns)
"""

Key = tuple[str, str, int | None]
"""A call, a measure, and a turn."""

pytestmark = pytest.mark.service(limits__closing_grace_ms="300")


async def values_of_rows(environment: Mapping[str, str]) -> dict[Key, float]:
    """What the functions give of the last rows."""
    rows = newest_rows(await written_rows(environment))
    words = {
        (row.conversation_id, row.turn): row
        for record in await records_on(environment, WORDS_TOPIC)
        for row in [decode_words(record.value or b"")]
    }
    values: dict[Key, float] = {}
    for row in rows:
        match row:
            case TurnRow(conversation_id=call, turn=turn):
                said = words.get((call, turn))
                values[call, "revision", turn] = row.revision
                values[call, "said", turn] = len(said.assistant or "") if said else -1
                values.setdefault((call, "turns_of_call", None), 0)
                values[call, "turns_of_call", None] += 1
            case CallRow(conversation_id=call):
                values.setdefault((call, "turns_of_call", None), 0)
    return values


async def values_written(environment: Mapping[str, str]) -> dict[Key, float | None]:
    """The last row of each value."""
    rows: list[OwnRow] = [
        decode_own(record.value or b"") for record in await records_on(environment, OWN_TOPIC)
    ]
    return {(row.conversation_id, row.measure, row.turn): row.value for row in rows}


def counted(process: Process) -> Counter[str]:
    """By measure, how many of its values a process has counted."""
    address = process.metrics(WAIT_SECONDS)
    return Counter(
        {
            name: int(total(address, "callgauge_own_value_count", measure=name))
            for name in ("revision", "said", "turns_of_call")
        }
    )


async def test_each_value_is_there_once_and_right_after_two_joins_and_a_kill(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "measures"
    folder.mkdir()
    (folder / "mine.py").write_text(MEASURES)
    role = ("run", "--roles", "measures")
    measuring = {**environment, "CALLGAUGE_MEASURES__FOLDER": str(folder)}
    now_ms = time.time_ns() // 1_000_000
    traffic = interleaved([simulated_events(seed, now_ms) for seed in range(CALLS)])
    sent = 0

    async def go_on(share: float) -> None:
        nonlocal sent
        until = int(len(traffic) * share)
        async with AIOKafkaProducer(
            bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"]
        ) as producer:
            prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
            for source, record in traffic[sent:until]:
                await producer.send(prefix + TOPIC_BY_SOURCE[source], record.value, key=record.key)
        sent = until

    with (
        started(tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment),
        started(tmp_path / "first.log", *role, **measuring) as first,
    ):
        first.printed("measures_ready", WAIT_SECONDS)
        await go_on(0.4)
        with started(tmp_path / "second.log", *role, **measuring) as second:
            second.printed("measures_ready", WAIT_SECONDS)
            await go_on(0.7)
            assert first.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
            await go_on(0.9)
            wait_for(
                "the partitions of the killed one",
                lambda: second.text.count("measures_ready") > 1,
                WAIT_SECONDS,
            )
            with started(tmp_path / "third.log", *role, **measuring) as third:
                third.printed("measures_ready", WAIT_SECONDS)
                await go_on(1)
                assert len(await closed_rows(environment, CALLS, WAIT_SECONDS)) == CALLS
                expected = await values_of_rows(environment)
                deadline = time.monotonic() + patient(WAIT_SECONDS)
                while (written := await values_written(environment)) != expected:
                    assert time.monotonic() < deadline, {
                        key: (written.get(key), expected.get(key))
                        for key in written.keys() | expected.keys()
                        if written.get(key) != expected.get(key)
                    }
                    await asyncio.sleep(LOOK_SECONDS)
                assert -1 not in written.values(), "its words were there in time"
                # no call has closed before the kill
                each_once = Counter(measure for _, measure, _ in expected)
                wait_for(
                    lambda: f"{each_once}, each counted once: {counted(second)}, {counted(third)}",
                    lambda: counted(second) + counted(third) == each_once,
                    WAIT_SECONDS,
                )
