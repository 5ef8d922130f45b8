"""The partitions that an evaluator expects to keep when the group shares them out anew."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import GroupAuthorizationFailedError
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.ownership import membership
from consumers.evaluator.ownership.membership import likely_given_away, member_options, members_of
from consumers.evaluator.settings import EvaluatorSettings
from schemas.topics import INPUT_TOPICS


@given(st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=7), st.integers(1, 20), st.data())
def test_it_is_what_the_assignor_does(members: set[str], partitions: int, data: st.DataObject) -> None:
    me = data.draw(st.sampled_from(sorted(members)))
    ours = data.draw(st.sets(st.integers(0, partitions - 1)))
    cluster: Any = SimpleNamespace(partitions_for_topic=lambda _: set(range(partitions)))
    assigned = RangePartitionAssignor.assign(
        cluster, {member: RangePartitionAssignor.metadata(INPUT_TOPICS) for member in members}
    )
    kept = {number for _, numbers in assigned[me].assignment for number in numbers}
    assert likely_given_away(ours, partitions, members, me) == sorted(ours - kept)


def test_who_does_not_know_the_members_expects_to_lose_all() -> None:
    assert likely_given_away([3, 1], 4, frozenset(), "me") == [1, 3]
    assert likely_given_away([3, 1], 4, {"you"}, "me") == [1, 3]


class Admin:
    """Answers as a broker in the middle of a rebalance."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def describe_consumer_groups(self, groups: list[str]) -> list[Any]:
        if self.error is not None:
            raise self.error
        members = [{"member_id": "a", "member_metadata": b""}, {"member_id": "b", "member_metadata": b""}]
        answer = {"groups": [{"group": groups[0], "state": "PreparingRebalance", "members": members}]}
        return [SimpleNamespace(to_object=lambda: answer)]


async def test_members_are_asked_for() -> None:
    admin: Any = Admin()
    assert await members_of(admin, "g") == {"a", "b"}


@pytest.mark.parametrize("error", [GroupAuthorizationFailedError("g"), TimeoutError()])
async def test_a_broker_that_does_not_say_costs_nothing_but_snapshots(error: Exception) -> None:
    admin: Any = Admin(error)
    assert await members_of(admin, "g") == frozenset()


def test_a_member_hears_of_a_rebalance_within_a_second_and_well_within_its_session() -> None:
    assert member_options(EvaluatorSettings())["heartbeat_interval_ms"] == membership.HEARTBEAT_MS
    assert member_options(EvaluatorSettings(session_timeout_ms=900))["heartbeat_interval_ms"] == 300
