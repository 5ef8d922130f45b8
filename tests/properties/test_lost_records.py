"""Records that are deleted unread cost scores, and never give one twice: revisions grow, and no value counts a second time."""

from collections.abc import Mapping, Sequence

from hypothesis import event, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import OrderLog, Replay
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.scores.live_view import Subject
from schemas.scores.records import AnyScoreRecord, ClosedFact, GoalsFact, TurnValues
from schemas.topics import SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from tests.properties.owners import Topics
from tests.properties.test_backtest import Acts, Owner, Past, _limits, _lives, _rules
from tests.properties.test_recovery import AgentsGoals, partitions

Offsets = Mapping[InputSource, int]


class Successor(Owner):
    """An owner that begins at the committed offsets, of inputs whose first records may be gone."""

    def __init__(self, past: Past, limits: Limits, rules: GoalRules, version: str, committed: Offsets) -> None:
        order = OrderLog()
        for each in past.order:
            order.take(each)
        goals = ChosenGoals(AgentsGoals("1"), rules)
        evaluator = PartitionEvaluator(limits, "test", goals)
        instruments = Instruments(CollectorRegistry(), ["evaluator"])
        self.partition = Partition(
            0, evaluator, limits, SOURCE_BY_TOPIC, instruments, goals=goals, version=version
        )  # fmt: skip
        self._past = past
        inputs = past.inputs()
        ends = {
            source: max([order.positions.get(source, 0), *(each.offset + 1 for each in some)])
            for source, some in inputs.items()
        }
        firsts = {source: min((each.offset for each in some), default=ends[source]) for source, some in inputs.items()}
        sets = {each.digest: each.goal_set for each in past.scores if isinstance(each, GoalsFact)}
        replay = Replay(order, committed, ends, version, evaluator, self.partition.admitted, goals, sets, firsts)
        self.partition.start(
            {TOPIC_BY_SOURCE[source]: max(at, firsts[source]) for source, at in committed.items()}, replay
        )
        for source, end in ends.items():
            self.partition.read_to(TOPIC_BY_SOURCE[source], end)
        read = [
            [each for each in some if committed[source] <= each.offset < order.positions.get(source, 0)]
            for source, some in inputs.items()
        ]
        self.partition.fold([some for some in read if some], None)
        while self.partition.is_recovering:
            self.partition.fold([], None)
        self.lost = replay.lost

    def committed(self) -> Offsets:
        """What it may commit once everything that it decided is written."""
        while self.partition.outbox.first():
            self.write(1_000)
        return {SOURCE_BY_TOPIC[topic]: at for topic, at in self.partition.offsets_to_commit().items()}


def _deleted(topics: Topics, shares: Sequence[int]) -> Topics:
    """The topics without a tenth of each input or more, from its first record on."""
    return Topics(
        {
            source: some[len(some) * share // 10 :]
            for (source, some), share in zip(topics.inputs.items(), shares, strict=True)
        }
    )


def _assert_no_value_twice(scores: Sequence[AnyScoreRecord]) -> None:
    ids, firsts, known = set[str](), set[tuple[str, Subject]](), set[tuple[str, int | None, str]]()
    newest: dict[tuple[str, Subject], int] = {}
    for record in scores:
        call = record.conversation_id
        place = (call, (record.name, record.turn, record.index))
        assert record.record_id not in ids, f"{place} again"
        ids.add(record.record_id)
        assert record.revision > newest.get(place, 0), f"{place}: {record.revision} comes after {newest[place]}"
        newest[place] = record.revision
        if record.is_first:
            assert place not in firsts, f"{place} counts twice"
            firsts.add(place)
        if isinstance(record, TurnValues):
            again = known & {(call, record.turn, name) for name in record.first_known}
            assert not again, f"{again} count twice"
            known |= {(call, record.turn, name) for name in record.first_known}


@given(
    partitions(),
    _limits,
    _rules,
    _lives,
    st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=3, max_size=3),
    st.data(),
)
def test_whatever_is_deleted_between_owners_no_record_and_no_count_comes_twice(
    topics: Topics,
    limits: Limits,
    rules: GoalRules,
    lives: Sequence[Acts],
    shares: Sequence[Sequence[int]],
    data: st.DataObject,
) -> None:
    past, lost = Past(topics), 0
    committed: Offsets = dict.fromkeys(InputSource, 0)
    for acts, share in zip(lives, shares, strict=False):
        owner = Successor(past, limits, rules, data.draw(st.sampled_from("12")), committed)
        lost += owner.lost
        owner.live(
            [("fold", data.draw(st.integers(0, 3)), None)] * data.draw(st.integers(0, 40)) + [*acts, ("write", 9, 0)]
        )
        if data.draw(st.booleans()):
            committed = owner.committed()
        past.topics = _deleted(past.topics, share)
    owner = Successor(past, limits, rules, "1", committed)
    lost += owner.lost
    owner.to_the_end()
    lives_of: dict[str, int] = {}
    for record in past.scores:
        lives_of[record.conversation_id] = lives_of.get(record.conversation_id, 0) + isinstance(record, ClosedFact)
    once = [record for record in past.scores if lives_of[record.conversation_id] == 1]  # an id may be that of two calls
    event(f"{min(lost, 1)} lost or more, {min(len(once), 1)} records or more")
    _assert_no_value_twice(once)
