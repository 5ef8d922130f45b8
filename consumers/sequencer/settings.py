"""Settings of the sequencer role."""

from pydantic import BaseModel, ConfigDict, Field


class SequencerSettings(BaseModel):
    """Settings of reading the inputs and appending to the log."""

    model_config = ConfigDict(frozen=True)

    group_id: str = Field(
        "callgauge-sequencer",
        min_length=1,
        description="Consumer group; one member is active in each shard.",
    )
    poll_interval_ms: int = Field(
        40,
        gt=0,
        le=1_000,
        description=(
            "How long the broker lets events gather before we take them, in ms, unless there is a "
            "backlog."
        ),
    )
    tick_ms: int = Field(
        500,
        gt=0,
        description=(
            "Time between two ticks in ms: how late a silence is noticed, and what a successor "
            "repeats."
        ),
    )
    session_timeout_ms: int = Field(
        6_000,
        gt=0,
        description=(
            "Silence towards the broker, in ms, after which another replica takes over; brokers "
            "allow 6 s at least by default."
        ),
    )
    max_record_bytes: int = Field(
        1_048_576, gt=0, description="Largest event in bytes, as in the limits of the evaluator."
    )
    max_batch_records: int = Field(
        2_000,
        gt=0,
        description=(
            "Most records of one step: 20 ms of work. A successor reads back twice as many at "
            "least."
        ),
    )
