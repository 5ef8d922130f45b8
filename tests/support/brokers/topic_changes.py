"""Changes of topics that return when they are in force: a broker confirms each one before it obeys
it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import UnknownTopicOrPartitionError, for_code

from tests.support.patience import patient

IN_FORCE_SECONDS: Final = 30
_LOOK_AGAIN_SECONDS: Final = 0.02
_SECOND_CHANGE: Final = {"file.delete.delay.ms": "59999"}
"""A setting that no test reads."""


@asynccontextmanager
async def admin_of(
    bootstrap: str, request_timeout_ms: int = 40_000
) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client for administrative requests; each may take 40 s, as in the library, or
    another time.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=request_timeout_ms)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def create_topics(
    bootstrap: str,
    partitions_by_name: Mapping[str, int],
    configs: Mapping[str, str] | None = None,
    replicas: int = 1,
) -> None:
    """Makes topics and returns when every partition has a leader."""
    settings = dict(configs or {})
    wanted = [
        NewTopic(name, count, replicas, topic_configs=settings)
        for name, count in partitions_by_name.items()
    ]
    async with admin_of(bootstrap) as admin:
        for _, code, message in (await admin.create_topics(wanted)).topic_errors:
            _require(code, message)
        for name, count in partitions_by_name.items():
            await _until_it_has(admin, name, count)


async def add_partitions(bootstrap: str, partitions_by_name: Mapping[str, int]) -> None:
    """Gives topics more partitions, one after the other, and returns when every partition has a
    leader.
    """
    async with admin_of(bootstrap) as admin:
        for name, count in partitions_by_name.items():
            for _, code, message in (
                await admin.create_partitions({name: NewPartitions(count)})
            ).topic_errors:
                _require(code, message)
        for name, count in partitions_by_name.items():
            await _until_it_has(admin, name, count)


async def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic and returns when the broker does not know it any more."""
    async with admin_of(bootstrap) as admin:
        ((_, code),) = (await admin.delete_topics([name])).topic_error_codes
        _require(code, name)

        async def is_gone() -> bool:
            (found,) = await admin.describe_topics([name])
            return bool(found["error_code"] == UnknownTopicOrPartitionError.errno)

        await _until(is_gone)


async def configure_topic(bootstrap: str, name: str, **settings: str) -> None:
    """Gives a topic these settings, and the broker's defaults for all others; returns when its log
    obeys them.

    A broker describes settings a moment before its logs obey them. It applies one change after the
    other, so the first is in force when a second one, sent after the first was described, is
    described.

    Args:
        bootstrap: The broker.
        name: The topic.
        settings: Names of settings, with _ in place of the dot, and values.
    """
    topic = ConfigResource(ConfigResourceType.TOPIC, name)
    wanted = {setting.replace("_", "."): value for setting, value in settings.items()}
    async with admin_of(bootstrap) as admin:
        for configs in (wanted, wanted | _SECOND_CHANGE):
            (answer,) = await admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name, configs=configs)]
            )
            for code, message, *_ in answer.resources:
                _require(code, message)

            async def is_described(configs: dict[str, str] = configs) -> bool:
                (answer,) = await admin.describe_configs([topic])
                ((_, _, _, _, entries),) = answer.resources
                return configs.items() <= {entry[0]: entry[1] for entry in entries}.items()

            await _until(is_described)


def _require(code: int, message: str | None) -> None:
    if code:
        raise for_code(code)(message)


async def _until_it_has(admin: AIOKafkaAdminClient, name: str, count: int) -> None:
    async def has_leaders() -> bool:
        (found,) = await admin.describe_topics([name])
        partitions = found["partitions"]
        return (
            not found["error_code"]
            and len(partitions) == count
            and all(each["leader"] >= 0 for each in partitions)
        )

    await _until(has_leaders)


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(patient(IN_FORCE_SECONDS)):
        while not await is_so():  # noqa: ASYNC110 - the broker sends no event: it has to be asked
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
