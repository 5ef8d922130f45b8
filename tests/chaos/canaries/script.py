"""A few calls, sequencers and evaluators that a script leads event by event, so that what happens
is not left to luck.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

from confluent_kafka import Producer

from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.topics import EVENTS_TOPIC, TOPIC_BY_SOURCE
from tests.chaos.cluster.administration import committed
from tests.chaos.evaluators.fleet import Member
from tests.chaos.load.call_pool import CallTemplate, EventTemplate, call_template
from tests.chaos.stage import LIMITS, RunError, Stage
from tests.chaos.verdict.topic_reader import extent
from tests.support.patience import patient

PARTITION: Final = 0
"""A script has one partition, so that it knows whose it is."""
ALONE: Final = {**LIMITS, "CALLGAUGE_EVALUATOR_INSTANCE": "the only one"}
"""Settings of an evaluator that is alone: killed, it comes back at once, without a
session timeout.
"""
JUDGED: Final = {
    **ALONE,
    "CALLGAUGE_GOALS__ASKS_JUDGE": "true",
    "CALLGAUGE_GOALS__TEXT_JUDGES": "conciseness",
    "CALLGAUGE_GOALS__VERDICT_DEADLINE_MS": "5000",
}
"""The same, of one that puts questions to a judge who never answers."""
SEVERAL: Final = LIMITS
READY: Final = ("evaluator_ready", "sequencer_active", "sequencer_standing_by")
"""What processes log when they work, or stand by."""
WAIT_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 30.0
"""How long calls may take to close after their end. Those of a broken evaluator may stay open."""
SEND_SECONDS: Final = 30.0


class Script:
    """What a script does."""

    def __init__(self, stage: Stage) -> None:
        """Nothing is sent yet."""
        self.stage = stage
        self._producer = Producer(
            {"bootstrap.servers": stage.cluster.bootstrap, "acks": "all", "log_level": 0}
        )
        self._scored: Counter[str] = Counter()
        self._begin_seconds = int(time.time())

    def evaluator(self, *, is_newer: bool = False) -> Member:
        """One more evaluator, that shows its metrics and reads; before the first one a
        sequencer.
        """
        if not self.stage.sequencers.members:
            self.sequencer()
        member = self.stage.fleet.join(is_newer=is_newer)
        self.until_ready(member)
        return member

    def sequencer(self) -> Member:
        """One more sequencer, that shows its metrics and reads."""
        member = self.stage.sequencers.join()
        self.until_ready(member)
        return member

    def until_ready(self, member: Member) -> Self:
        """Waits until the process in this place works."""
        self.until(
            member.name, lambda: member.is_running and any(said in member.text for said in READY)
        )
        return self

    def send(self, name: str, events: Iterable[EventTemplate]) -> Self:
        """Sends events of a call; they are on the broker afterwards."""
        self._send(
            name,
            [
                (event.source, event.rendered(self._begin_seconds, name.encode()))
                for event in events
            ],
        )
        return self

    def tell(self, name: str, source: str, **fields: str) -> Self:
        """Sends one event of a call with the present time."""
        self._send(
            name,
            [(source, json.dumps({"timestamp": time.time_ns() // 1_000_000, **fields}).encode())],
        )
        return self

    def _send(self, name: str, events: Iterable[tuple[str, bytes]]) -> None:
        for source, value in events:
            topic = self.stage.prefix + TOPIC_BY_SOURCE[InputSource(source)]
            self._producer.produce(topic, value, name, PARTITION)
        if left := self._producer.flush(patient(SEND_SECONDS)):
            raise RunError(f"the broker did not take {left} records")

    def until(self, what: str, is_so: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Self:
        """Lets time pass until something is so."""
        if not self.perhaps(is_so, seconds):
            tails = "\n".join(member.tail() for member in self.stage.members)
            raise RunError(f"waited in vain for {what}; the last lines of each process:\n{tails}")
        return self

    def perhaps(self, is_so: Callable[[], Any], seconds: float) -> bool:
        """Lets time pass until something is so, or for so long; whether it is so."""
        deadline = time.monotonic() + patient(seconds)
        while not is_so():
            if time.monotonic() > deadline:
                return False
            for record in self.stage.look():
                self._scored[(record.key or b"").decode()] += 1
        return True

    def until_scored(self, name: str) -> Self:
        """Waits for a new record of `scores` about a call, which readers of committed
        records see.
        """
        before = self._scored[name]
        self.until(f"a score of {name}", lambda: self._scored[name] > before)
        return self

    def until_appended(self) -> None:
        """Waits until a tick says that all that was sent is in the log."""
        bootstrap = self.stage.cluster.bootstrap
        topics = {source: self.stage.topic_of(source) for source in TOPIC_BY_SOURCE}

        def is_appended() -> bool:
            positions = self.stage.positions()
            ends = {
                source: extent(bootstrap, topic, PARTITION)[1] for source, topic in topics.items()
            }
            return all(
                positions.get((source, PARTITION), Next(0, 0)).offset == end
                for source, end in ends.items()
            )

        self.until("a tick behind the last record", is_appended)

    def until_read(self) -> None:
        """Waits until all that was sent is folded, all that follows from it is written, and a
        commit says so.
        """
        self.until_appended()
        stage, events = self.stage, self.stage.prefix + EVENTS_TOPIC
        _, end = extent(stage.cluster.bootstrap, events, PARTITION)

        def is_read() -> bool:
            return (
                committed(stage.cluster.bootstrap, stage.group, {PARTITION}).get(
                    (events, PARTITION), 0
                )
                >= end
            )

        self.until("a commit behind the last record", is_read)

    def until_closed(self, names: Iterable[str], seconds: float = WAIT_SECONDS) -> Self:
        """Waits until these calls are closed."""
        wanted = {name.encode() for name in names}
        self.until(
            f"the end of {sorted(wanted)}", lambda: wanted <= self.stage.closed_keys, seconds
        )
        return self

    def finish(self, names: Iterable[str]) -> Self:
        """Waits until these calls are closed, or do not close; then the evaluators leave."""
        wanted = {name.encode() for name in names}
        if not self.perhaps(lambda: wanted <= self.stage.closed_keys, CLOSE_SECONDS):
            self.stage.note("not every call closes")
        self.stage.part_in_peace()
        return self

    def kill(self, member: Member) -> Self:
        """kill -9; returns when the next process in its place reads."""
        member.kill()
        self.until_ready(member)
        return self


def call(seed: int) -> CallTemplate:
    """A simulated call with events on each of the three topics of producers."""
    return call_template([seed], "cascade")


def split(template: CallTemplate, parts: int) -> Sequence[Sequence[EventTemplate]]:
    """Its events in so many parts; the last one has what comes from its first end event on."""
    events = template.events
    until = next(place for place, event in enumerate(events) if event.is_end)
    size = -(-until // (parts - 1))
    return [
        *(events[place * size : min(until, (place + 1) * size)] for place in range(parts - 1)),
        events[until:],
    ]
