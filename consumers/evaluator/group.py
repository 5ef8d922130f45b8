"""The members of the evaluators' group: who in it is none of ours, and who has taken our name."""

import asyncio
import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import structlog
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import CONNECT_SECONDS, KafkaSettings, KafkaUnreachableError
from consumers.runtime.process import OperatorError

ASK_AGAIN_SECONDS: Final = 2.0
"""How often an evaluator that stands aside looks whether the other one is still there."""
MAX_NAMED: Final = 5
"""Most members that a message names."""

log = structlog.get_logger()


class TwinError(OperatorError):
    """Another process had the name of this one, and is gone: this one may begin again."""


class Member(NamedTuple):
    """One member as the coordinator of the group knows it.

    Attributes:
        id: Given by the coordinator; that of a member with an instance name begins with the name.
        client: What its client calls itself.
        host: Where its connection comes from.
        topics: What it subscribes to; None if the coordinator does not say, or it is no consumer's
            subscription.
    """

    id: str
    client: str
    host: str
    topics: frozenset[str] | None

    def __str__(self) -> str:
        return f"client {self.client!r} on {self.host.removeprefix('/')}"


class GroupWatch:
    """Looks at the other members of the group.

    Attributes:
        twin: The member that has taken our instance name; None if there is none.
        our_id: What we are or were as a member; empty before we are one.
    """

    def __init__(
        self, kafka: KafkaSettings, settings: EvaluatorSettings, topics: Iterable[str]
    ) -> None:
        """Nothing is asked yet; `topics` are the inputs by their full names."""
        self.twin: Member | None = None
        self._kafka = kafka
        self._group_id = settings.group_id
        self._instance = settings.group_instance_id
        self._topics = frozenset(topics)
        self.our_id = ""

    async def strangers(self) -> Sequence[Member]:
        """Returns the members that are no evaluators of this installation; none if the broker does
        not say.
        """
        # While the members reassign the partitions, the coordinator does not say what they
        # subscribe to.
        ours = None, self._topics
        return [
            each
            for each in await self._members()
            if not each.client.endswith("-evaluator") or each.topics not in ours
        ]

    async def blame(self) -> str:
        """Returns sentences for an error that others in the group may have caused, with a blank
        before them; empty if there are none.
        """
        said = ""
        if (twin := await self._holder()) is not None:
            said = (
                f" The evaluator_instance {self._instance!r} of this process on "
                f"{socket.gethostname()} is also that of {twin}, unless that was the process "
                "before this one. Give every evaluator a name of its own, or none."
            )
        if strangers := await self.strangers():
            said += (
                f" Members of the group {self._group_id} that are no evaluators of this "
                f"installation: {named(strangers)}. Stop these programs, or give them a group of "
                "their own: then the partitions come back by themselves, and what was committed "
                "meanwhile is read."
            )
        return said

    async def tell_strangers(self) -> None:
        """Logs the members that are no evaluators of this installation."""
        if strangers := await self.strangers():
            log.error(
                "group_has_strangers",
                group=self._group_id,
                seen=named(strangers),
                what_happens_now="They are given partitions that no evaluator reads then: the "
                "calls in them stand still. What they commit is not obeyed: the records are read "
                "once the partitions are ours again.",
                what_to_do="Stop these programs, or give them a group of their own.",
            )

    async def stand_aside(self) -> TwinError | None:
        """Waits as long as another process has our instance name. Call it when the membership was
        lost, before joining again.

        Two processes of one name would take it from each other for ever, so the one that lost it
        has to wait.

        Returns:
            The error with which this process ends and begins again, once the other one has gone;
            None if there is no other.
        """
        twin = self.twin = await self._holder()
        if twin is None:
            return None
        log.error(
            "evaluator_instance_is_shared",
            evaluator_instance=self._instance,
            seen=(
                f"{twin} has joined the group {self._group_id} with the instance name of this "
                f"process on {socket.gethostname()}"
            ),
            what_happens_now="This process gives up its partitions and reads nothing as long as "
            "the other one is there; the other one evaluates them.",
            what_to_do=(
                "Give every evaluator a name of its own in the setting evaluator_instance, or "
                "none, and restart this one."
            ),
        )
        while self.twin is not None:
            await asyncio.sleep(ASK_AGAIN_SECONDS)
            self.twin = await self._holder()
        return TwinError(
            f"The process that had the same evaluator_instance, {self._instance!r}, has left the "
            f"group: {twin}. This one on {socket.gethostname()} begins again. Give every evaluator "
            "a name of its own."
        )

    def problems(self) -> tuple[str, ...]:
        """Why the role is not ready, for `/readyz`."""
        if self.twin is None:
            return ()
        return (
            f"evaluator: the evaluator_instance {self._instance!r} is also that of {self.twin}",
        )

    async def _holder(self) -> Member | None:
        """The member that has our instance name and is not what we were."""
        if self._instance is None:
            return None
        ours = f"{self._instance}-"
        return next(
            (
                each
                for each in await self._members()
                if each.id.startswith(ours) and each.id != self.our_id
            ),
            None,
        )

    async def _members(self) -> Sequence[Member]:
        try:
            async with (
                asyncio.timeout(CONNECT_SECONDS),
                self._kafka.administration("evaluator") as admin,
            ):
                (answer,) = await admin.describe_consumer_groups([self._group_id])
        except (KafkaUnreachableError, TimeoutError):  # it looks again after the next rebalance
            return ()
        return [
            Member(member, client, host, _topics(metadata))
            for member, client, host, metadata, _ in answer.groups[0][5]
        ]


def named(members: Collection[Member]) -> str:
    """Returns the members for a message."""
    more = f" and {len(members) - MAX_NAMED} more" if len(members) > MAX_NAMED else ""
    return ", ".join(map(str, list(members)[:MAX_NAMED])) + more


def _topics(metadata: bytes) -> frozenset[str] | None:
    try:
        decoded: Any = ConsumerProtocolMemberMetadata.decode(metadata)
    except ValueError:
        return None
    return frozenset(decoded.subscription)
