"""New topics count as made when a record can be written to each of their partitions."""

from typing import Any

from streamer.cluster import topic_admin


class ScriptedAdmin:
    """Shows the topic `new` with these leaders, one state after the other; the last stays."""

    def __init__(self, *leaders: list[int]) -> None:
        self.left = list(leaders)

    async def describe_topics(self) -> list[dict[str, Any]]:
        leaders = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        new = {"topic": "new", "error_code": 0, "partitions": [{"leader": leader} for leader in leaders]}
        broken = {"topic": "broken", "error_code": 3, "partitions": []}
        return [broken, new] if leaders else [broken]


async def test_topics_are_in_force_when_each_partition_has_a_leader() -> None:
    admin: Any = ScriptedAdmin([], [-1, -1], [1, -1], [1, 2])
    await topic_admin._until_in_force(admin, ["new"])
    assert admin.left == [[1, 2]]


async def test_waiting_for_leaders_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr(topic_admin, "IN_FORCE_SECONDS", 0.01)
    admin: Any = ScriptedAdmin([-1])
    await topic_admin._until_in_force(admin, ["new"])
    await topic_admin._until_in_force(admin, ["broken"])
