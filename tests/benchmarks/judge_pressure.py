"""`make pressure`: the cost to the evaluator of a saturated judge that fails, as a ratio within one
run.

A backlog of calls with goals is folded from a real broker into scores, again and again: once
without questions, once with every question sent to a judge process whose endpoint answers 500, 429
or nothing at all. Processor time is that of the evaluator alone: on a machine with few cores the
judge and the broker take part of the wall-clock time.
"""

import hashlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka.admin import AdminClient

from schemas.topics import JUDGE_REQUESTS_TOPIC
from tests.benchmarks.evaluator_cost import (
    BACKLOG_CALLS,
    appended,
    backlog,
    until_all_is_folded,
)
from tests.benchmarks.evaluator_cost import environment as variables
from tests.benchmarks.figures import say
from tests.chaos.verdict.topic_reader import to_the_end
from tests.integration.processes import ran, started, wait_for
from tests.support.brokers import kafka_broker
from tests.support.brokers.backlog import Sent, put_backlog
from tests.support.fakes.scripted_openai import Asked, Does, ScriptedOpenAI, fails, scripted_openai
from tests.support.sequencer_process import sequencer

PARTITIONS: Final = 2
ROUNDS: Final = ("off", "failing", "failing", "off", "off", "failing")
"""Interleaved, and each comes first as often as the other: other work of the machine hits both."""
GOAL: Final = 0.95
LOOK_SECONDS: Final = 0.05
READY_SECONDS: Final = 30.0
ROUND_SECONDS: Final = 300.0
AGENTS: Final = ("pharmacy-refill", "airline-rebooking", "library-desk", "internet-outage")
GOALS: Final = {
    "id": "pressure",
    "agents": AGENTS,
    "subgoals": [
        *(
            {
                "id": f"judged-{place}",
                "details": f"Matter {place} of the caller is settled.",
                "check": {"kind": "judge"},
            }
            for place in range(3)
        ),
        {
            "id": "named",
            "details": "d",
            "check": {"kind": "says", "speaker": "assistant", "pattern": "number|name"},
        },
        {
            "id": "thanked",
            "details": "d",
            "check": {"kind": "says", "speaker": "user", "pattern": "thank"},
        },
        {
            "id": "looked",
            "details": "d",
            "check": {"kind": "tool_result", "tool": "list_loans", "outcome": "success"},
        },
    ],
}


class Measured(NamedTuple):
    """The figures of one round.

    Attributes:
        events_per_second: Rate by the wall clock, from the first event seen folded to the last
            score written.
        cpu_us: Processor time of the evaluator for each event.
        questions: Questions written to `judge.requests`.
    """

    events_per_second: float
    cpu_us: float
    questions: int


def troubled(asked: Asked) -> Does:
    """A third of the questions meets errors, a third is put off, a third is never answered."""
    drawn = hashlib.blake2b(asked.user.encode(), digest_size=1).digest()[0]
    return (fails(500), fails(429, Retry_After="1"), Does(hangs=True))[drawn % 3]


def measured(
    bootstrap: str,
    name: str,
    load: Sequence[Sent],
    folder: Path,
    server: ScriptedOpenAI,
    *,
    asks: bool,
) -> Measured:
    """Folds the backlog once, with topics and processes of its own."""
    prefix = f"pressure.{name}."
    environment = {
        **variables(bootstrap, prefix),
        "CALLGAUGE_GOALS__FOLDER": str(folder / "goals"),
        "CALLGAUGE_GOALS__ASKS_JUDGE": str(asks).lower(),
        "OPENAI_API_KEY": "key",
        "OPENAI_BASE_URL": server.url,
    }
    ran("topics", "create", "--partitions", str(PARTITIONS), **environment)
    put_backlog(bootstrap, prefix, load)
    with ExitStack() as running:
        judge = running.enter_context(
            started(folder / f"judge-{name}.log", "run", "--roles", "judge", **environment)
        )
        wait_for("the judge", lambda: "judge_ready" in judge.text, READY_SECONDS)
        running.enter_context(sequencer(folder / f"sequencer-{name}.log", bootstrap, prefix))
        wait_for(
            "the backlog in the log",
            lambda: appended(bootstrap, prefix, PARTITIONS) >= len(load),
            ROUND_SECONDS,
        )
        log = folder / f"evaluator-{name}.log"
        evaluator = running.enter_context(
            started(log, "run", "--roles", "evaluator", **environment)
        )
        cpu_us, events_per_second = until_all_is_folded([evaluator], len(load), LOOK_SECONDS)
    topic = prefix + JUDGE_REQUESTS_TOPIC
    questions = sum(1 for number in range(PARTITIONS) for _ in to_the_end(bootstrap, topic, number))
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    mine = [each for each in admin.list_topics(timeout=10).topics if each.startswith(prefix)]
    for deleted in admin.delete_topics(mine).values():
        deleted.result(30)
    return Measured(events_per_second, cpu_us, questions)


def report(rounds: Mapping[str, Sequence[Measured]], events: int) -> None:
    """Prints both kinds of rounds side by side."""
    say(
        f"backlog on Kafka into scores, {BACKLOG_CALLS:,} calls with 3 judged subgoals and 3 by code, "
        f"{events:,} events"
    )
    medians: dict[str, tuple[float, float]] = {}
    for name, found in rounds.items():
        rate = statistics.median(each.events_per_second for each in found)
        cpu_us = statistics.median(each.cpu_us for each in found)
        medians[name] = rate, cpu_us
        asked = statistics.median(each.questions for each in found)
        every = ", ".join(f"{each.events_per_second:,.0f}" for each in found)
        say(
            f"  judge {name:<8} {rate:>8,.0f} events/s  {cpu_us:6.1f} us of processor time/event  "
            f"{asked:>7,.0f} questions  ({every})"
        )
    wall = medians["failing"][0] / medians["off"][0]
    cpu = medians["off"][1] / medians["failing"][1]
    say(
        f"  throughput with a judge that fails: {wall:.3f} of that without (goal {GOAL}); by "
        f"processor time {cpu:.3f}"
    )


def main() -> None:
    """Runs all rounds and prints the report."""
    load = backlog(PARTITIONS)
    rounds: dict[str, list[Measured]] = {"off": [], "failing": []}
    with (
        tempfile.TemporaryDirectory() as name,
        kafka_broker.running() as bootstrap,
        scripted_openai(troubled) as server,
    ):
        folder = Path(name)
        (folder / "goals").mkdir()
        (folder / "goals" / "pressure.json").write_text(json.dumps(GOALS))
        for number, kind in enumerate(ROUNDS):
            found = measured(
                bootstrap, f"{number}-{kind}", load, folder, server, asks=kind == "failing"
            )
            rounds[kind].append(found)
    report(rounds, len(load))


if __name__ == "__main__":
    main()
