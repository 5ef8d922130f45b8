"""The checks of a consumer group in `callgauge doctor`: members, lag and lost records. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from aiokafka import TopicPartition

from streamer.cluster.facts import GroupFacts, LogBounds
from streamer.operations.doctor.findings import Finding, Verdict, counted

MAX_SHOWN: Final = 5
"""Partitions named in a line; JSON has them all."""


def group_findings(
    check: str,
    role: str,
    group: GroupFacts,
    bounds: Mapping[TopicPartition, LogBounds],
    *,
    starts_at_end: bool,
) -> Iterator[Finding]:
    """Checks whether a role reads all of its partitions, its lag, and whether records were deleted before it read them.

    Args:
        check: Names the group.
        role: Name of the role, as in `callgauge run --roles`.
        group: The group.
        bounds: Every partition that it should read.
        starts_at_end: Whether it begins at the end of a partition without a committed offset.
    """
    lost = {
        tp: found.start - group.committed[tp]
        for tp, found in bounds.items()
        if group.committed.get(tp, found.start) < found.start
    }
    if lost:
        yield Finding(
            check, Verdict.WRONG,
            f"deleted before it was done with them: {counted(sum(lost.values()), 'record')}, {_shown(lost)}",
            "They are lost; raise retention.ms so that it is longer than any outage. An evaluator that starts now goes on "
            "with the oldest that are there.",
        )  # fmt: skip
    moved = [tp for tp, offset in group.committed.items() if tp in bounds and offset > bounds[tp].end]
    if moved:
        yield Finding(
            check, Verdict.WARNING, f"it committed offsets beyond the end of {_named(moved)}: they were made anew",
            "Nothing, when you made them anew: an evaluator goes on from their beginning. Else see what deleted records.",
        )  # fmt: skip
    begins = {tp: found.end if starts_at_end else found.start for tp, found in bounds.items()}
    behind = {tp: found.end - max(group.read.get(tp, begins[tp]), found.start) for tp, found in bounds.items()}
    behind = {tp: count for tp, count in behind.items() if count > 0}
    lag = {f"{tp.topic}[{tp.partition}]": count for tp, count in sorted(behind.items())}
    waiting = (
        f"{counted(sum(behind.values()), 'record')} to read: {_shown(behind)}" if behind else "nothing left to read"
    )
    again = sum(group.read[tp] - offset for tp, offset in group.committed.items() if tp in bounds)
    if again:
        waiting += f"; a restart reads {counted(again, 'record')} of open calls again"
    start = f"Start `callgauge run --roles {role}`."
    if group.state == "Dead" and not group.committed:
        seen, what_to_do = (
            "this group has never read",
            f"{start} If it runs, its group has another name: check the settings.",
        )
        yield Finding(check, Verdict.WARNING, seen, what_to_do, lag)
    elif group.members == 0:
        yield Finding(check, Verdict.WARNING, f"nobody reads ({group.state}); {waiting}", start, lag)
    elif group.state != "Stable":
        yield Finding(
            check, Verdict.WARNING, f"its {counted(group.members, 'member')} share out the partitions anew ({group.state}); {waiting}",
            "Look again in half a minute; if it goes on, a member dies again and again: see its log.", lag,
        )  # fmt: skip
    else:
        yield _assignment_finding(check, group, set(bounds), waiting, lag)


def _assignment_finding(
    check: str, group: GroupFacts, expected: set[TopicPartition], waiting: str, lag: Mapping[str, int]
) -> Finding:
    have = Counter(group.assigned)
    seen = f"{counted(group.members, 'member')}, {len(have.keys() & expected)} of {len(expected)} partitions assigned; {waiting}"
    if foreign := have.keys() - expected:
        topics = ", ".join(sorted({tp.topic for tp in foreign})[:MAX_SHOWN])
        what_to_do = "Give this installation a group of its own, or check the topic prefix."
        return Finding(check, Verdict.WRONG, f"{seen}; it also reads {topics}, so others use its name", what_to_do, lag)
    if missing := expected - have.keys():
        names = _named(sorted(missing))
        return Finding(
            check, Verdict.WRONG, f"{seen}; nobody reads {names}", "Restart its members: they see the topics anew.", lag
        )
    return Finding(check, Verdict.OK, seen, lag=lag)


def _shown(counts: Mapping[TopicPartition, int]) -> str:
    """The largest few, and how many more there are."""
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    largest_lags = ", ".join(f"{tp.topic}[{tp.partition}] {count}" for tp, count in largest[:MAX_SHOWN])
    return largest_lags + _more(len(largest))


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{tp.topic}[{tp.partition}]" for tp in partitions[:MAX_SHOWN]) + _more(len(partitions))


def _more(count: int) -> str:
    return f" and {count - MAX_SHOWN} more" if count > MAX_SHOWN else ""
