"""Asks the broker for the settings of topics."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from consumers.runtime.kafka.connection import CONNECT_SECONDS, KafkaSettings


async def topic_settings(kafka: KafkaSettings, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Returns the settings of topics at the broker, including its defaults.

    Args:
        kafka: The cluster.
        names: Names in the topic table.

    Returns:
        Settings by name in the topic table, without topics that do not exist, that this user may not describe, or that the
        broker cannot describe.

    Raises:
        KafkaUnreachableError: No broker answers.
    """
    admin = kafka.admin("topics")
    try:
        await admin.start()
        async with asyncio.timeout(CONNECT_SECONDS):
            return await settings_of(admin, {kafka.topic(name): name for name in names})
    except (KafkaError, TimeoutError) as error:
        raise kafka.unreachable(error) from error
    finally:
        await admin.close()


async def settings_of(admin: AIOKafkaAdminClient, names: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Does the same as `topic_settings`, with a connected client.

    Args:
        admin: A started client.
        names: Names in the result, by names on the cluster.
    """
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in names]
    try:
        answers: list[Any] = await admin.describe_configs(asked)
    except IncompatibleBrokerVersion:  # a broker older than the question
        return {}
    # What an entry is, after its name and value, depends on the broker's version.
    return {
        names[topic]: {entry[0]: entry[1] for entry in entries if entry[1] is not None}
        for answer in answers
        for code, _, _, topic, entries in answer.resources
        if not code
    }
