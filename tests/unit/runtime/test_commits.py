"""No commit goes on while a member joins its group."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener

from consumers.runtime.kafka.polling import Commits
from tests.support.patience import patient

OURS = {TopicPartition("a", 0)}
OFFSETS = {TopicPartition("a", 0): OffsetAndMetadata(7, "")}


class Client:
    """A client that commits once it may, and tries until then."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.committed: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self.may.wait()
        self.committed.append(offsets)


class Owner(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Commits at a revocation and at an assignment."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.commits = Commits(self)
        self.heard: list[str] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.heard.append(f"revoked {len(revoked)}")
        await self.commit()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.heard.append(f"assigned {len(assigned)}")
        await self.commit()

    async def commit(self, seconds: float = 60) -> None:
        await self.commits.commit(self.client, OFFSETS, seconds)


async def test_the_owner_hands_over_and_begins_with_a_commit() -> None:
    client = Client()
    client.may.set()
    owner = Owner(client)
    await owner.commits.on_partitions_revoked(OURS)
    await owner.commits.on_partitions_assigned(OURS)
    assert owner.heard == ["revoked 1", "assigned 1"]
    assert client.committed == [OFFSETS, OFFSETS]


async def test_a_commit_takes_no_longer_than_it_may() -> None:
    with pytest.raises(TimeoutError):
        await Owner(Client()).commit(0.01)


async def test_an_open_commit_ends_with_the_revocation_and_none_begins_before_the_assignment() -> None:
    client = Client()
    commits = Commits(None)
    open_commit = asyncio.create_task(commits.commit(client, OFFSETS, 60))
    await asyncio.sleep(0)
    async with asyncio.timeout(patient(5)):
        await commits.on_partitions_revoked(OURS)
        with pytest.raises(TimeoutError):
            await open_commit
    client.may.set()
    assert not await commits.commit(client, OFFSETS, 60)
    assert client.committed == []
    await commits.on_partitions_assigned(OURS)
    assert await commits.commit(client, OFFSETS, 60)
    assert client.committed == [OFFSETS]


async def test_a_hand_over_that_fails_keeps_no_commit_going() -> None:
    class Failing(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
        async def on_partitions_revoked(self, _revoked: Any) -> None:
            raise ZeroDivisionError

        async def on_partitions_assigned(self, _assigned: Any) -> None: ...

    commits = Commits(Failing())
    open_commit = asyncio.create_task(commits.commit(Client(), OFFSETS, 60))
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await commits.on_partitions_revoked(OURS)
    with pytest.raises(TimeoutError):
        await open_commit
