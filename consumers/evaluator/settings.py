"""Settings of the evaluator role."""

from pydantic import BaseModel, ConfigDict, Field

from consumers.engine.limits import GoalRules, Limits
from schemas.redaction import RedactionRules
from schemas.topics import MAX_TRANSACTION_MS


class EvaluatorSettings(BaseModel):
    """Settings of reading the log and writing the results."""

    model_config = ConfigDict(frozen=True)

    group_id: str = Field(
        "callgauge-evaluator",
        min_length=1,
        description="Consumer group; its members share the partitions of `events`.",
    )
    group_instance_id: str | None = Field(
        None,
        min_length=1,
        description=(
            "A name that outlives a restart of this replica, so that it causes no rebalance."
        ),
    )
    code_version: str = Field(
        "unknown", min_length=1, description="Written into the row of each call."
    )
    limits: Limits = Field(
        default_factory=Limits, description="Bounds of one partition's evaluation."
    )
    goals: GoalRules = Field(default_factory=GoalRules, description="How goals are judged.")
    redaction: RedactionRules = Field(
        default_factory=RedactionRules,
        description="What is taken out of every text that is written.",
    )
    writes_transcripts: bool = Field(
        default=False, description="Whether a call that closes gets a transcript."
    )
    max_batch_records: int = Field(
        250,
        gt=0,
        description=(
            "Most records folded before anything else has a turn: 15 ms of work, and 40 ms if each "
            "opens a call."
        ),
    )
    max_unwritten_records: int = Field(
        2_000,
        gt=0,
        description="Most rows decided and not yet written; reading waits when there are more.",
    )
    write_interval_ms: int = Field(
        500,
        ge=0,
        description="How long the values of turns and calls wait for company before they are "
        "written, in ms: a transaction costs the same full or empty. Moments such as latencies and "
        "dead air never wait for it.",
    )
    transaction_timeout_ms: int = Field(
        MAX_TRANSACTION_MS,
        gt=0,
        le=MAX_TRANSACTION_MS,
        description=(
            "How long an abandoned transaction hides later scores from readers, in ms, if no "
            "successor takes over."
        ),
    )
    closed_overlap_ms: int = Field(
        900_000,
        ge=0,
        description="How much more of `scores` a successor reads than open calls need, in ms, so "
        "that what arrives after a call's end does not open it again.",
    )
    tick_ms: int = Field(
        100, gt=0, description="How often calls that are over close, at least, in ms."
    )
    commit_interval_ms: int = Field(
        1_000,
        gt=0,
        description=(
            "Least time between two commits, in ms; only tools that show the lag read them."
        ),
    )
    session_timeout_ms: int = Field(
        10_000,
        gt=0,
        description=(
            "Silence towards the broker, in ms, after which another replica takes our partitions."
        ),
    )
