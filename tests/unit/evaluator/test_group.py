"""Others in the group: who is no evaluator is named, and of two evaluators with one name one stands
aside.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from consumers.evaluator import group, service
from consumers.evaluator.group import GroupWatch, Member, TwinError, named
from consumers.evaluator.service import SharedNameError
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import FencedError
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError
from schemas.topics import EVENTS_TOPIC
from tests.support.fakes.evaluator_fakes import START, Shell, until_idle
from tests.support.known import Logged

TOPICS = frozenset([EVENTS_TOPIC])
OURS = Member("ev-1-a", "callgauge-evaluator", "/10.0.0.1", TOPICS)
TWIN = Member("ev-1-b", "callgauge-evaluator", "/10.0.0.2", TOPICS)
STRANGER = Member("rdkafka-1", "rdkafka", "/10.0.0.9", frozenset({"theirs"}))


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(group, "ASK_AGAIN_SECONDS", 0)
    return Shell(monkeypatch, group_instance_id="ev-1")


async def put_out(shell: Shell) -> "asyncio.Task[None]":
    """The coordinator does not know us any more, so the client is about to join again."""
    await shell.assigned(0)
    shell.consumer._coordinator.member_id = ""
    revoking = asyncio.create_task(shell.revoked())
    await until_idle()
    return revoking


# Strangers.


async def test_a_stranger_is_named_after_each_rebalance(shell: Shell, logged: Logged) -> None:
    shell.members = [OURS, STRANGER]
    await shell.assigned(0)
    (line,) = [line for line in logged if line["event"] == "group_has_strangers"]
    assert (line["seen"], line["log_level"]) == ("client 'rdkafka' on 10.0.0.9", "error")
    assert shell.role.ready.is_set()


async def test_a_stranger_is_named_before_the_partitions_are_taken_over(
    shell: Shell, logged: Logged
) -> None:
    shell.members = [OURS, STRANGER]
    shell.takeover.gate.clear()
    await shell.assigned(0)
    assert "group_has_strangers" in {line["event"] for line in logged}
    assert not shell.role.ready.is_set()


@pytest.mark.parametrize("client", ["callgauge-evaluator", "mine-evaluator"])
async def test_evaluators_are_no_strangers(shell: Shell, client: str, logged: Logged) -> None:
    shell.members = [
        OURS,
        OURS._replace(id="other", client=client),
        OURS._replace(id="in a rebalance", topics=None),
    ]
    await shell.assigned(0)
    assert "group_has_strangers" not in {line["event"] for line in logged}


def let_nobody_in(shell: Shell, monkeypatch: pytest.MonkeyPatch, error: KafkaError) -> None:
    """The client's start fails with this."""

    async def fit(*_: object) -> int:
        return 1

    async def refused() -> None:
        raise error

    monkeypatch.setattr(service, "require_fit_topics", fit)
    monkeypatch.setattr(KafkaSettings, "consumer", lambda *_, **__: shell.consumer)
    monkeypatch.setattr(shell.consumer, "start", refused)


@pytest.mark.parametrize(
    ("member", "error", "told", "message"),
    [
        (
            STRANGER,
            "InconsistentGroupProtocolError",
            KafkaUnreachableError,
            r"InconsistentGroupProtocolError\. .* Members .*'rdkafka' on 10.0.0.9\. Stop these",
        ),
        (
            TWIN,
            "UnknownError()",
            SharedNameError,
            r"does not let this process in\. The evaluator_instance 'ev-1' .* on 10.0.0.2",
        ),
    ],
)
async def test_who_keeps_us_out_of_the_group_is_named_and_not_a_broker_that_does_not_answer(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    member: Any,
    error: str,
    told: type[Exception],
    message: str,
) -> None:
    shell.members = [member]
    let_nobody_in(shell, monkeypatch, KafkaError(error))
    with pytest.raises(told, match=message):
        await shell.role.run(asyncio.Event())


async def test_an_error_names_the_process_that_has_our_name(shell: Shell) -> None:
    shell.members = [TWIN]
    said = await shell.role._group.blame()
    assert said.startswith(
        f" The evaluator_instance 'ev-1' of this process on {socket.gethostname()} is also that of "
        f"{TWIN}"
    )
    shell.members = []
    assert await shell.role._group.blame() == ""


def test_a_message_names_some() -> None:
    assert named([STRANGER] * 7).count("rdkafka") == group.MAX_NAMED
    assert named([STRANGER] * 7).endswith(" and 2 more")
    assert named([]) == ""


# Twins.


async def test_who_lost_its_name_to_another_process_stands_aside_until_that_is_gone(
    shell: Shell, logged: Logged
) -> None:
    shell.members = [TWIN]
    revoking = await put_out(shell)
    (line,) = [line for line in logged if line["event"] == "evaluator_instance_is_shared"]
    assert "10.0.0.2" in line["seen"]
    assert socket.gethostname() in line["seen"]
    assert (line["evaluator_instance"], "setting evaluator_instance" in line["what_to_do"]) == (
        "ev-1",
        True,
    )
    assert not revoking.done(), "it does not join again"
    assert (shell.role.owned, shell.role.ready.is_set(), shell.writers[0].stopped) == (
        {},
        False,
        True,
    )
    assert shell.role.problems() == (
        f"evaluator: the evaluator_instance 'ev-1' is also that of {TWIN}",
    )
    assert shell.failures == []
    shell.members = []
    await revoking
    (failure,) = shell.failures
    assert isinstance(failure, TwinError)
    assert shell.role.problems() != (
        f"evaluator: the evaluator_instance 'ev-1' is also that of {TWIN}",
    )


async def test_who_is_fenced_off_by_another_process_of_its_name_stands_aside_too(
    shell: Shell, logged: Logged
) -> None:
    """It may write before a heartbeat says that it is no member any more. Beginning again, it would
    take the name from the other one.
    """
    await shell.assigned(0)
    shell.members = [TWIN]
    shell.writers[0].error = FencedError("another evaluator writes partition 0 now")
    await shell.folds(START)
    assert "evaluator_instance_is_shared" in {line["event"] for line in logged}
    assert (shell.failures, shell.role.owned, shell.role.ready.is_set()) == ([], {}, False)
    shell.consumer._coordinator.member_id = ""
    revoking = asyncio.create_task(shell.revoked())
    await until_idle()
    assert (shell.failures, revoking.done()) == ([], False)
    shell.members = []
    await revoking
    (failure,) = shell.failures
    assert isinstance(failure, TwinError)


@pytest.mark.parametrize(
    "members",
    [[], [OURS], [Member("ev-10-b", "callgauge-evaluator", "/10.0.0.2", TOPICS)], [STRANGER]],
    ids=[
        "nobody: the session was silent for too long",
        "what we were",
        "a longer name",
        "a stranger",
    ],
)
async def test_who_was_put_out_for_another_reason_joins_again(
    shell: Shell, members: list[Member]
) -> None:
    shell.members = members
    await (await put_out(shell))
    assert shell.failures == []
    assert shell.role.owned == {}, "another one may have had what was ours"


async def test_a_rebalance_and_a_first_join_ask_nothing(shell: Shell) -> None:
    shell.consumer._coordinator.member_id = ""
    shell.members = [TWIN]  # a restart: what we were before is still a member
    await shell.revoked()
    shell.consumer._coordinator.member_id = "ev-1-a"
    await shell.rebalanced(0)
    await shell.rebalanced(0)
    assert shell.failures == []
    assert shell.role.ready.is_set()


async def test_without_a_name_there_is_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(monkeypatch)
    shell.members = [Member("None-b", "callgauge-evaluator", "/10.0.0.2", TOPICS)]
    await (await put_out(shell))
    assert shell.failures == []


# What the broker says.


class Admin:
    async def describe_consumer_groups(self, _: list[str]) -> list[object]:
        metadata = ConsumerProtocolMemberMetadata(0, ["theirs"], b"").encode()
        members = [
            ("rdkafka-1", "rdkafka", "/10.0.0.9", metadata, b""),
            ("odd", "x", "/h", b"", b""),
        ]
        return [
            type("Answer", (), {"groups": [(0, "g", "Stable", "consumer", "range", members)]})()
        ]


async def test_members_are_read_from_the_answer_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[Exception] = []

    @asynccontextmanager
    async def administration(*_: object) -> AsyncIterator[Admin]:
        if errors:
            raise errors[0]
        yield Admin()

    watch = GroupWatch(KafkaSettings(), EvaluatorSettings(), [EVENTS_TOPIC])
    monkeypatch.setattr(KafkaSettings, "administration", administration)
    assert await watch.strangers() == [STRANGER, Member("odd", "x", "/h", None)]
    errors.append(KafkaUnreachableError("away"))
    assert await watch.strangers() == []
