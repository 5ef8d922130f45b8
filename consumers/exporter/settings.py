"""Settings of the exporter role."""

from pydantic import BaseModel, ConfigDict, Field

from schemas.units import HOUR_MS


class ExporterSettings(BaseModel):
    """Settings of reading `scores` and of the memory of running calls."""

    model_config = ConfigDict(frozen=True)

    group_id: str = Field(
        "callgauge-exporter",
        min_length=1,
        description="Consumer group. A new one starts at the end of `scores`: the past is not counted as now.",
    )
    max_batch_records: int = Field(1_000, gt=0, description="Most score records of one poll.")
    max_active_calls: int = Field(
        100_000, gt=0, description="Running calls remembered for the gauge; the quietest is forgotten and counted."
    )
    forget_after_ms: int = Field(
        5 * HOUR_MS,
        gt=0,
        description="Silence in ms after which a running call is forgotten; above the longest call the evaluator allows.",
    )
