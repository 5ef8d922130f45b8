"""Settings of snapshots: the shared key by which an evaluator trusts the state of another one."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from consumers.runtime.http.secret_settings import or_of_its_file
from consumers.runtime.kafka.secret_files import secret_in

FEWEST_KEY_CHARS: Final = 32
"""Everybody with the right to read the topic can try keys against its records without a limit."""


def _strong(key: SecretStr) -> SecretStr:
    """The key, if it is long enough.

    Raises:
        ValueError: It is not; the text says nothing of the key.
    """
    if len(key.get_secret_value()) < FEWEST_KEY_CHARS:
        raise ValueError(f"expected at least {FEWEST_KEY_CHARS} characters; `openssl rand -hex 32` makes a key")
    return key


SnapshotKey = Annotated[SecretStr, AfterValidator(_strong)]


class SnapshotSettings(BaseModel):
    """Whether a stopping evaluator hands its state over, and a starting one continues with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_file: Path | None = Field(
        None,
        examples=["/run/secrets/snapshot-key"],
        description="file with the key of all evaluators of the group; with one, an orderly stop costs seconds instead of a replay",
    )
    key: SnapshotKey | None = Field(
        None, examples=["..."], description="the key itself; without one no state is handed over"
    )
    interval_ms: int = Field(
        20_000,
        ge=0,
        le=600_000,
        examples=[20_000],
        description="how often each partition's state is written between stops, in ms: after a kill, the next owner evaluates again "
        "what came since; 0 writes it at stops only",
    )

    @field_validator("key_file")
    @classmethod
    def _file_fits(cls, value: Path | None) -> Path | None:
        if value is not None:
            _strong(secret_in(value))
        return value

    @field_validator("key")
    @classmethod
    def _key_of_the_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return or_of_its_file(value, info)

    @model_validator(mode="before")
    @classmethod
    def _settles_the_key(cls, given: object) -> object:
        """Lets the key's validator run when only its file is given."""
        return {"key": None, **given} if isinstance(given, dict) else given
