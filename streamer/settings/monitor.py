"""Settings of the role `monitor`: the key of ElevenLabs' API, and the agents whose calls are followed."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode

from consumers.runtime.settings import HeaderSecret, HeaderSecretFile, or_of_its_file


class MonitorSettings(BaseModel):
    """The bridge from ElevenLabs' conversation monitor to Kafka."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api_key_file: HeaderSecretFile | None = Field(
        None,
        examples=["/run/secrets/elevenlabs-api-key"],
        description="file with a key of ElevenLabs' API that may write agents",
    )
    api_key: HeaderSecret | None = Field(
        None, examples=["..."], description="the key itself; without one, no live call is followed"
    )
    agents: Annotated[tuple[str, ...], NoDecode] = Field(
        (), examples=["agent_1,agent_2"], description="ids of the agents to follow, separated by commas; none means all"
    )
    base_url: str = Field(
        "https://api.elevenlabs.io",
        pattern=r"^https?://[^/\s?#]+$",
        description="address of ElevenLabs' API, without a path; another one where data must stay in a region",
    )
    poll_seconds: float = Field(
        5.0, gt=0, le=300, description="pause between two looks for calls that have begun, in seconds"
    )

    @field_validator("api_key")
    @classmethod
    def _key_of_the_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return or_of_its_file(value, info)

    @field_validator("agents", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _settles_the_key(cls, given: object) -> object:
        """Lets the key's validator run when only its file is given."""
        return {"api_key": None, **given} if isinstance(given, dict) else given

    @property
    def is_on(self) -> bool:
        """Whether live calls can be followed."""
        return self.api_key is not None
