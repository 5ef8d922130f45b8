"""Brokers may learn anything late or not at all: up to the moment for which the end of a log is known, no record is behind it."""

from typing import Final

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.runtime.kafka.log_ends import SILENT_REPLICA_MS, Agreement, Leadership, LogEnd, newest

NODES: Final = (1, 2, 3)
ALL: Final = frozenset(NODES)
BEGIN_MS: Final = 10_000


class Replicas:
    """One input on three brokers. A broker that is cut off does not learn that another leads, and goes on as before."""

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS
        self.truth = Leadership(1, 1, ALL, ALL)
        self.knows = dict.fromkeys(NODES, self.truth)
        self.records_ms: list[int] = []
        self.kept = dict.fromkeys(NODES, 0)

    def pass_time(self) -> None:
        self.now_ms += 1

    def fold_agent_record(self) -> None:
        """The leader takes one; replicas in sync have it at once."""
        self.records_ms.append(self.now_ms)
        for node in self.truth.in_sync:
            self.kept[node] = len(self.records_ms)

    def elect(self, node: int) -> None:
        """The leader is out of sight of the others, one of which leads from now on; only that one has learned it."""
        if node in self.truth.in_sync - {self.truth.leader}:
            in_sync = self.truth.in_sync - {self.truth.leader}
            self.truth = self.knows[node] = Leadership(node, self.truth.epoch + 1, in_sync, ALL)

    def rejoin(self, node: int) -> None:
        """One that was away follows the leader, and is in sync again; others may not have learned it."""
        self.truth = self.truth._replace(in_sync=self.truth.in_sync | {node})
        self.kept[node] = len(self.records_ms)
        for each in (self.truth.leader, node):
            self.knows[each] = self.truth

    def learn(self, node: int) -> None:
        self.knows[node] = self.truth


class Asking:
    """An evaluator's view of it."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.views = {1: replicas.truth}
        self.agreement = Agreement(replicas.truth)
        self.ends: list[LogEnd] = []

    def look(self, node: int) -> None:
        self.views[node] = self.replicas.knows[node]
        leadership = newest(self.views.values())
        if leadership[:2] == self.agreement.leadership[:2]:
            self.agreement.leadership = leadership
        else:
            self.agreement = Agreement(leadership)

    def ask(self, node: int, asked_ago_ms: int) -> None:
        epoch = self.agreement.leadership.epoch
        if self.replicas.knows[node].epoch > epoch:
            self.agreement.end_reign()
        elif self.replicas.knows[node].epoch == epoch:
            asked_at_ms = max(BEGIN_MS, self.replicas.now_ms - asked_ago_ms)
            end = self.agreement.answered(node, self.replicas.kept[node], asked_at_ms)
            self.ends += [] if end is None else [end]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "all are asked", "ask", "look", "learn", "elect", "rejoin"]),
        st.sampled_from(NODES),
    ),
    min_size=20,
    max_size=SILENT_REPLICA_MS // 40,
)


@given(STEPS, st.integers(0, 3))
def test_no_record_lies_behind_the_end_up_to_the_moment_for_which_it_is_known(
    steps: list[tuple[str, int]], delay_ms: int
) -> None:
    replicas = Replicas()
    asking = Asking(replicas)
    for what, node in steps:
        replicas.pass_time()
        match what:
            case "record":
                replicas.fold_agent_record()
            case "elect":
                replicas.elect(node)
            case "rejoin":
                replicas.rejoin(node)
                asking.ask(node, 0)  # being in sync takes longer than that
            case "learn":
                replicas.learn(node)
            case "look":
                asking.look(node)
            case "ask":
                asking.ask(node, delay_ms)
            case _:
                for each in NODES:
                    asking.ask(each, 0)
    for end in asking.ends:
        assert sum(time_ms < end.asked_at_ms for time_ms in replicas.records_ms) <= end.offset
    event(f"reigns: {replicas.truth.epoch}, ends known: {bool(asking.ends)}")


@given(st.permutations(NODES))
def test_a_replica_that_hangs_is_not_waited_for_for_ever_and_half_of_them_are_not_enough(order: list[int]) -> None:
    leader, other, hanging = order
    agreement = Agreement(Leadership(leader, 4, ALL, ALL))
    for node in order:
        assert (agreement.answered(node, 9, BEGIN_MS) is None) == (node != hanging)
    later_ms = BEGIN_MS + SILENT_REPLICA_MS
    for at_ms in (later_ms, later_ms + 1):
        agreement.answered(other, 8, at_ms)
    assert agreement.answered(leader, 9, later_ms) == LogEnd(9, BEGIN_MS + SILENT_REPLICA_MS)
    for at_ms in range(later_ms, later_ms + 3 * SILENT_REPLICA_MS, 100):
        end = agreement.answered(leader, 9, at_ms)
    assert end == LogEnd(9, later_ms + 1), "as long as another one agreed"
