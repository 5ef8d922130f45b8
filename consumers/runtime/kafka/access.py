"""Checks the rights of this process on the cluster before it does anything."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.coordination import FindCoordinatorRequest

from consumers.runtime.kafka.connection import KafkaRefusedError, KafkaSettings, counts_in, require_equal_counts
from consumers.runtime.kafka.first_contact import UNKNOWN_RIGHTS, TopicsRequest
from consumers.runtime.kafka.refusals import RIGHTS_PAGE

READ: Final = "Read"
WRITE: Final = "Write"

_BITS: Final[Mapping[str, int]] = {READ: 1 << 3, WRITE: 1 << 4}  # Kafka's AclOperation numbers
_COORDINATION: Final = {
    CoordinationType.GROUP: (errors.GroupAuthorizationFailedError, READ),
    CoordinationType.TRANSACTION: (errors.TransactionalIdAuthorizationFailed, WRITE),
}


@dataclass(frozen=True, slots=True)
class Needs:
    """Operations of a process on the cluster.

    Attributes:
        operations: By topic of the topic table, its operations: `READ`, `WRITE` or both.
        groups: Consumer groups that it joins.
        transactional_ids: Transactional ids of its producers.
        co_partitioned: Topics that need equal partition counts.
    """

    operations: Mapping[str, frozenset[str]]
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    co_partitioned: tuple[str, ...] = ()


async def require_access(kafka: KafkaSettings, needs: Needs) -> None:
    """Asks the broker whether the topics exist and this user has the needed rights.

    A broker that does not report rights (before Kafka 2.3) counts as granting them; a refusal then comes with the operation.
    The embedded broker grants everything.

    Args:
        kafka: The cluster, and our login.
        needs: The needed operations.

    Raises:
        KafkaUnreachableError: No broker answers, or it does not let us in.
        KafkaRefusedError: Rights are missing; the text names all of them.
        TopicsUnfitError: A topic is missing, or partition counts differ.
    """
    if kafka.is_embedded:
        return
    topics, missing = await _asked(kafka, needs)
    if missing:
        raise KafkaRefusedError(
            "\n".join(
                [
                    f"Kafka: {kafka.security.who} lacks rights on {kafka.bootstrap_servers}, so nothing was started:",
                    *(f"  {line}" for line in missing),
                    f"  Give it these, for example with `kafka-acls.sh --add`; {RIGHTS_PAGE}",
                ]
            )
        )
    counts = counts_in(topics, kafka, needs.operations)
    if needs.co_partitioned:
        require_equal_counts({name: counts[name] for name in needs.co_partitioned})


async def missing_rights(kafka: KafkaSettings, needs: Needs) -> Sequence[str]:
    """The rights that this user lacks, each as `topic NAME: Write`; none if the broker does not report rights.

    Raises:
        KafkaUnreachableError: No broker answers, or it does not let us in.
    """
    return [] if kafka.is_embedded else (await _asked(kafka, needs))[1]


async def _asked(kafka: KafkaSettings, needs: Needs) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
    """The broker's answer about the topics, and the rights that are missing."""
    needed = {kafka.topic(name): operations for name, operations in needs.operations.items()}
    async with kafka.first_contact("access") as connection:
        answer = await connection.send(TopicsRequest(list(needed)))
        topics = answer.to_object()["topics"]
        missing = [
            *_missing_on_topics(topics, needed),
            *await _missing_on(connection, "group", CoordinationType.GROUP, needs.groups),
            *await _missing_on(connection, "transactional id", CoordinationType.TRANSACTION, needs.transactional_ids),
        ]
    return topics, missing


def _missing_on_topics(topics: Iterable[Mapping[str, Any]], needed: Mapping[str, frozenset[str]]) -> list[str]:
    lines = []
    for topic in sorted(topics, key=itemgetter("topic")):
        name, rights = topic["topic"], topic.get("authorized_operations", UNKNOWN_RIGHTS)
        if topic["error_code"] == errors.TopicAuthorizationFailedError.errno:
            rights = 0
        elif topic["error_code"] or rights == UNKNOWN_RIGHTS:
            continue
        if lacking := [operation for operation in sorted(needed[name]) if not rights & _BITS[operation]]:
            lines.append(f"topic {name}: {', '.join(lacking)}")
    return lines


async def _missing_on(
    connection: AIOKafkaConnection, kind: str, coordination: CoordinationType, names: Iterable[str]
) -> list[str]:
    """Who may not even ask for the coordinator of a name has no right to it at all."""
    refusal, operation = _COORDINATION[coordination]
    answers = {name: await connection.send(FindCoordinatorRequest(name, coordination)) for name in names}
    return [f"{kind} {name}: {operation}" for name, answer in answers.items() if answer.error_code == refusal.errno]
