"""For each way in which somebody may be broken, a situation in which it must go wrong. Who is whole
comes through each of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tests.chaos.canaries.script import ALONE, JUDGED, SEVERAL, Script, call, split
from tests.chaos.evaluators.broken import HAS_WRITTEN, HESITANT, HESITATES
from tests.chaos.evaluators.fleet import Member, PageError, partitions_of
from tests.chaos.verdict.topic_reader import to_the_end
from tests.support.brokers.topic_changes import create_topics, delete_topic

CALLS: Final = 3
ALIKE: Final = 8
"""Calls that begin one after the other: several transactions that a successor must know."""
LONGEST_FREEZE_SECONDS: Final = 300.0
"""Until the script lets a frozen evaluator go on."""
LATER_SECONDS: Final = 15.0
"""From the end of some calls to the next call: a successor begins to fold behind their ends,
although it begins some seconds early.
"""
LATE_SECONDS: Final = 60.0
"""Until a call that is opened once more by mistake is closed for its silence, and some more."""


def _fencing(script: Script) -> None:
    """The owner is frozen between deciding and writing; it goes on when another has written the
    same.
    """
    name = f"{HESITANT}0"
    first, middle, last = split(call(1), 3)
    members = [script.evaluator(), script.evaluator()]
    owner = _owner(script, members)
    script.send(name, first).until("the owner to hesitate", lambda: HESITATES in owner.text)
    owner.freeze(LONGEST_FREEZE_SECONDS)
    script.until_scored(name)
    owner.thaw()
    (
        script.until("the former owner to write", lambda: HAS_WRITTEN in owner.text)
        .send(name, [*middle, *last])
        .finish([name])
    )


def _first(script: Script) -> None:
    """The owner is killed in the middle of a call whose first records everybody has
    read long ago.
    """
    owner = script.evaluator()
    first, middle, last = split(call(2), 3)
    script.send("open", first)
    script.until_read()
    script.send("open", middle)
    script.until_read()
    script.kill(owner).send("open", last).finish(["open"])


def _place(script: Script) -> None:
    """The owner is killed as soon as its last transaction can be read. Calls are judged too."""
    owner = script.evaluator()
    names = [f"call-{number}" for number in range(ALIKE)]
    template = call(3)
    first, last = template.events[:1], template.events[1:]
    for name in names:
        script.send(name, first).until_scored(name)
    script.kill(owner)
    for name in names:
        script.send(name, last)
    script.finish(names)


def _closed(script: Script) -> None:
    """Calls close, another begins and is open when its owner is killed; then a late record comes of
    each that is closed.
    """
    owner = script.evaluator()
    _late_records(script, lambda: script.kill(owner))


def _versions(script: Script) -> None:
    """The same, and a newer version closed them: this one learns from its records in `scores` that
    they are closed.
    """
    newer = script.evaluator(is_newer=True)

    def comes_back_older() -> None:
        newer.kill(for_good=True)
        script.until("the end of the newer version", lambda: not script.stage.fleet.members)
        script.evaluator()

    _late_records(script, comes_back_older)


def _late_records(script: Script, changes_owner: Callable[[], object]) -> None:
    done = [f"done-{number}" for number in range(CALLS)]
    for number, name in enumerate(done):
        script.send(name, call(20 + number).events)
    script.until_closed(done)
    script.stage.look_for(LATER_SECONDS)
    first, last = split(call(4), 2)
    script.send("open", first)
    script.until_read()
    changes_owner()
    for name in done:
        script.tell(name, "audit", message_type="user", value="Is anybody there?")
    script.send("open", last)
    script.until_read()
    script.stage.look_for(LATE_SECONDS)
    script.finish(["open", *done])


def _spread(script: Script) -> None:
    """Calls go on event by event on three inputs at once, and the sequencer is killed in the
    middle.
    """
    script.evaluator()
    (sequencer,) = script.stage.sequencers.members
    names = [f"call-{number}" for number in range(CALLS)]
    parts = [split(call(10 + number), 6) for number in range(CALLS)]
    for part in range(6):
        for name, each in zip(names, parts, strict=True):
            script.send(name, each[part])
        if part == 3:
            script.until_appended()
            script.kill(sequencer)
        script.stage.look_for(1.0)
    script.finish(names)


def _remade(script: Script) -> None:
    """An input is replaced with fewer records than it had, and once more with more, while nobody
    looks.
    """
    script.evaluator()
    (sequencer,) = script.stage.sequencers.members
    few, many = (
        [f"few-{number}" for number in range(CALLS)],
        [f"many-{number}" for number in range(4 * CALLS)],
    )
    for number, name in enumerate(few):
        script.send(name, call(30 + number).events)
    script.until_appended()
    _make_anew(script, "audit")
    script.tell("alone", "audit", message_type="user", value="Hello?")
    script.until_appended()
    sequencer.freeze(LONGEST_FREEZE_SECONDS)
    _make_anew(script, "audit")
    for number, name in enumerate(many):
        script.send(name, [event for event in call(40 + number).events if event.source == "audit"])
    sequencer.thaw()
    script.until_appended()
    script.tell("alone", "audit", type="call_ended", reason="goodbye").finish(
        [*few, *many, "alone"]
    )


def _make_anew(script: Script, source: str) -> None:
    stage = script.stage
    topic, bootstrap = stage.topic_of(source), stage.cluster.bootstrap
    for number in range(stage.inputs[source]):
        stage.kept.keep(topic, number, to_the_end(bootstrap, topic, number))
    stage.kept.made[topic] = stage.kept.made.get(topic, 0) + 1

    async def change() -> None:
        await delete_topic(bootstrap, topic)
        await create_topics(
            bootstrap, {topic: stage.inputs[source]}, {"message.timestamp.type": "LogAppendTime"}
        )

    asyncio.run(change())


def _owner(script: Script, members: list[Member]) -> Member:
    owners: list[Member] = []

    def is_known() -> bool:
        try:
            owners[:] = [member for member in members if partitions_of(member)]
        except PageError:
            return False
        return len(owners) == 1

    script.until("one owner", is_known)
    return owners[0]


class Canary(NamedTuple):
    """A script, and the settings of its processes."""

    play: Callable[[Script], None]
    settings: Mapping[str, str] = ALONE


CANARIES: Final[Mapping[str, Canary]] = {
    "place": Canary(_place, JUDGED),
    "first": Canary(_first),
    "closed": Canary(_closed),
    "versions": Canary(_versions),
    "fencing": Canary(_fencing, SEVERAL),
    "records": Canary(_spread),
    "sequence": Canary(_spread),
    "known": Canary(_spread),
    "generations": Canary(_remade),
}
"""By the part that is broken, one of `broken.KINDS`."""
