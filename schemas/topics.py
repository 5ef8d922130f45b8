"""The topic table: every topic that callgauge reads or writes, with its key, value, partitions and retention."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from schemas.closed_sets import InputSource
from schemas.units import DAY_MS


class Topic(BaseModel):
    """One row of the table. `partitions` is a rule, because the operator chooses the number; `retention_ms` -1 keeps for ever."""

    model_config = ConfigDict(frozen=True)

    name: str
    direction: Literal["input", "output", "reference"]
    key: str
    value: str
    partitions: Literal["same as the inputs", "any"]
    cleanup_policy: Literal["delete", "compact"]
    retention_ms: int
    what: str


_SAME: Literal["same as the inputs"] = "same as the inputs"
_CONVERSATION = "conversation id"

TOPICS = (
    Topic(name="pipecat.events", direction="input", key=_CONVERSATION, value="pipecat-event", partitions=_SAME,
          cleanup_policy="delete", retention_ms=7 * DAY_MS, what="what pipecat bots write while a call runs"),
    Topic(name="elevenlabs.events", direction="input", key=_CONVERSATION, value="simulator-event", partitions=_SAME,
          cleanup_policy="delete", retention_ms=7 * DAY_MS, what="the simulated caller's events, and those of ElevenLabs agents"),
    Topic(name="audit.events", direction="input", key=_CONVERSATION, value="audit-event", partitions=_SAME,
          cleanup_policy="delete", retention_ms=7 * DAY_MS, what="the agent framework's audit log: turns, replies, tools"),
    Topic(name="judge.verdicts", direction="input", key=_CONVERSATION, value="judge-verdict", partitions=_SAME,
          cleanup_policy="delete", retention_ms=7 * DAY_MS, what="the judges' answers"),
    Topic(name="scores", direction="output", key=_CONVERSATION, value="score", partitions=_SAME,
          cleanup_policy="delete", retention_ms=14 * DAY_MS,
          what="scores and facts of calls; no value: a new owner"),
    Topic(name="quarantine", direction="output", key="the refused record's key", value="quarantine", partitions="any",
          cleanup_policy="delete", retention_ms=14 * DAY_MS, what="records that can never be processed, with the reason"),
    Topic(name="transcripts", direction="output", key=_CONVERSATION, value="transcript", partitions="any",
          cleanup_policy="delete", retention_ms=14 * DAY_MS, what="one transcript per ended call"),
    Topic(name="judge.requests", direction="output", key=_CONVERSATION, value="judge-request", partitions="any",
          cleanup_policy="delete", retention_ms=7 * DAY_MS, what="questions to the judges"),
    Topic(name="order", direction="output", key="none", value="order", partitions=_SAME,
          cleanup_policy="delete", retention_ms=14 * DAY_MS,
          what="in which order each partition's inputs were evaluated; no value: a new owner"),
    Topic(name="goals", direction="reference", key="goal set id", value="goals", partitions="any",
          cleanup_policy="compact", retention_ms=-1, what="goal sets of calls"),
)  # fmt: skip

TOPIC_BY_SOURCE = {
    InputSource.PIPECAT: "pipecat.events",
    InputSource.ELEVENLABS: "elevenlabs.events",
    InputSource.AUDIT: "audit.events",
    InputSource.JUDGE: "judge.verdicts",
}
SOURCE_BY_TOPIC = {topic: source for source, topic in TOPIC_BY_SOURCE.items()}
INPUT_TOPICS = tuple(topic.name for topic in TOPICS if topic.direction == "input")
SCORES_TOPIC = "scores"
TRANSCRIPTS_TOPIC = "transcripts"
GOALS_TOPIC = "goals"
QUARANTINE_TOPIC = "quarantine"
ORDER_TOPIC = "order"
JUDGE_REQUESTS_TOPIC = "judge.requests"
JUDGE_VERDICTS_TOPIC = "judge.verdicts"
OWNER_MARK_KEY = b"callgauge-owner"
"""Key of records of `order` and `scores` without a value, with which an owner of the partition begins."""
