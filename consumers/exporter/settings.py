"""Settings of the exporter role."""

from pydantic import BaseModel, ConfigDict, Field

from schemas.units import HOUR_MS


class OtlpSettings(BaseModel):
    """Final scores as OpenTelemetry log events. Headers, certificates and compression are taken
    from OpenTelemetry's own variables.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        examples=["http://collector:4318/v1/logs"],
        description=(
            "whole address of the logs at an OTLP/HTTP endpoint; without one nothing is sent"
        ),
    )


class ExporterSettings(BaseModel):
    """Settings of reading `scores` and of the memory of running calls."""

    model_config = ConfigDict(frozen=True)

    group_id: str = Field(
        "callgauge-exporter",
        min_length=1,
        description=(
            "Consumer group. A new one starts at the end of `scores`: the past is not counted as "
            "now."
        ),
    )
    max_batch_records: int = Field(
        500, gt=0, description="Most rows of one poll: 20 ms of a processor."
    )
    max_active_calls: int = Field(
        100_000,
        gt=0,
        description=(
            "Running calls remembered for the gauge; beyond it the quietest of the tenant with the "
            "most is forgotten and counted."
        ),
    )
    forget_after_ms: int = Field(
        5 * HOUR_MS,
        gt=0,
        description=(
            "Silence in ms after which a running call is forgotten; above the longest call the "
            "evaluator allows."
        ),
    )
    otlp: OtlpSettings = Field(
        OtlpSettings(), description="Final scores as OpenTelemetry log events; off by default."
    )
    code_version: str = Field(
        "unknown", description="Version of callgauge, as OpenTelemetry's resource has it."
    )
