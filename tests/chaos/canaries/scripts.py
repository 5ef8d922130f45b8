"""For each way in which an evaluator may be broken, a situation in which it must go wrong. A whole one comes through each of them."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tests.chaos.canaries.script import ALONE, JUDGED, SEVERAL, Script, call, split
from tests.chaos.evaluators.broken import HAS_WRITTEN, HESITANT, HESITATES
from tests.chaos.evaluators.fleet import Evaluator, PageError, partitions_of

CALLS: Final = 3
SOURCES: Final = ("pipecat", "audit", "elevenlabs")
"""The topics of producers, in the turn in which they come."""
ALIKE: Final = 8
"""Calls that begin one after the other: more transactions than an evaluator leaves out that does not read `order` to its end."""
STEP_SECONDS: Final = 600.0
WRONG_SECONDS: Final = 5.0
LONGEST_FREEZE_SECONDS: Final = 300.0
"""Until the script lets a frozen evaluator go on."""


def _fencing(script: Script) -> None:
    """The owner is frozen between deciding and writing; it goes on when another has written the same."""
    name = f"{HESITANT}0"
    first, middle, last = split(call(1), 3)
    members = [script.evaluator(), script.evaluator()]
    owner = _owner(script, members)
    script.send(name, first)
    script.until("the owner to hesitate", lambda: HESITATES in owner.text)
    owner.freeze(LONGEST_FREEZE_SECONDS)
    script.until_scored(name)
    owner.thaw()
    script.until("the former owner to write", lambda: HAS_WRITTEN in owner.text)
    script.send(name, [*middle, *last])
    script.finish([name])


def _watermark(script: Script) -> None:
    """The owner is killed when it has committed behind the last record of an open call."""
    owner = script.evaluator()
    first, middle, last = split(call(2), 3)
    script.send("open", first)
    script.until_read()
    script.send("open", middle)
    script.until_read()
    script.kill(owner)
    script.send("open", last)
    script.finish(["open"])


def _order(script: Script) -> None:
    """Topics come in turn, each late for what the others had; then the owner is killed in the middle of the calls.

    Two calls change their agent with each event, and the last word is that of another topic in each: who takes one topic after the
    other knows the wrong agent of one of them.
    """
    owner = script.evaluator()
    names = [f"call-{number}" for number in range(CALLS)]
    parts = [split(call(10 + number), 4) for number in range(CALLS)]
    for part in range(2):
        for source in SOURCES:
            for name, each in zip(names, parts, strict=True):
                script.send(name, [event for event in each[part] if event.source == source])
            script.until_read()
    renamed = {"last-on-audit": ("pipecat", "audit"), "last-on-pipecat": ("audit", "pipecat")}
    for name, sources in renamed.items():
        for number, source in enumerate(sources * 2):
            script.tell(name, source, type="call_started", agent=f"agent-{number}")
            script.until_scored(name)
    script.kill(owner)
    for part in (2, 3):
        for name, each in zip(names, parts, strict=True):
            script.send(name, each[part])
    for name in renamed:
        script.tell(name, "audit", type="call_ended", reason="goodbye")
    script.finish([*names, *renamed])


def _end(script: Script) -> None:
    """The owner is killed as soon as its last transaction can be read, long before it could commit behind it. Calls are judged too."""
    owner = script.evaluator()
    names = [f"call-{number}" for number in range(ALIKE)]
    template = call(3)
    first, last = template.events[:1], template.events[1:]
    for name in names:
        script.send(name, first)
        script.until_scored(name)
    script.kill(owner)
    for name in names:
        script.send(name, last)
    script.finish(names)


def _versions(script: Script) -> None:
    """A newer version closes calls and is killed; the order is lost, so this version learns from `scores` which calls are closed."""
    newer = script.evaluator(is_newer=True)
    done = [f"done-{number}" for number in range(CALLS)]
    first, last = split(call(4), 2)
    script.send("open", first)  # so that the records of the other calls are read again
    for number, name in enumerate(done):
        script.send(name, call(20 + number).events)
    script.until_closed(done)
    script.until_read()
    newer.kill(for_good=True)
    script.until("the end of the newer version", lambda: not script.stage.fleet.members)
    script.delete_order()
    script.evaluator()
    script.send("open", last)
    script.finish(["open", *done])


def _clock(script: Script) -> None:
    """The clock of the owner is ten minutes ahead for a while, in the middle of a call."""
    owner = script.evaluator()
    first, last = split(call(5), 2)
    script.send("open", first)
    script.until_read()
    owner.step_clock(STEP_SECONDS)
    script.stage.look_for(WRONG_SECONDS)
    owner.step_clock(0)
    script.send("open", last)
    script.finish(["open"])


def _owner(script: Script, members: list[Evaluator]) -> Evaluator:
    owners: list[Evaluator] = []

    def is_known() -> bool:
        try:
            owners[:] = [member for member in members if partitions_of(member)]
        except PageError:
            return False
        return len(owners) == 1

    script.until("one owner", is_known)
    return owners[0]


class Canary(NamedTuple):
    """A script, and the settings of its evaluators."""

    play: Callable[[Script], None]
    settings: Mapping[str, str] = ALONE


CANARIES: Final[Mapping[str, Canary]] = {
    "end": Canary(_end, JUDGED),
    "order": Canary(_order),
    "watermark": Canary(_watermark),
    "versions": Canary(_versions),
    "clock": Canary(_clock),
    "fencing": Canary(_fencing, SEVERAL),
}
"""By the part that is broken, one of `broken.KINDS`."""
