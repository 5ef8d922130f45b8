"""Settings of the role `ingest`: the address for senders, their tokens, and ElevenLabs' webhook secret."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from consumers.runtime.settings import MAX_SECRET_BYTES, HeaderSecret, HeaderSecretFile, SecretFile, or_of_its_file

MAX_TENANTS: Final = 100
"""Each tenant is a value of a label."""
_SECRETS: Final = ("token", "elevenlabs_secret")


def _not_empty(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value():
        raise ValueError("it must not be empty")
    return secret


WebhookSecret = Annotated[SecretStr, AfterValidator(_not_empty)]


class SenderSettings(BaseModel):
    """The rights and limits of one sender of events: a tenant, or everybody if there are no tenants."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    token_file: HeaderSecretFile | None = Field(
        None, examples=["/run/secrets/ingest-token"], description="file with the token for POST /events"
    )
    token: HeaderSecret | None = Field(
        None, examples=["..."], description="the token itself; without one, POST /events is switched off"
    )
    elevenlabs_secret_file: SecretFile | None = Field(
        None,
        examples=["/run/secrets/elevenlabs-webhook"],
        description="file with the secret of ElevenLabs' post-call webhook",
    )
    elevenlabs_secret: WebhookSecret | None = Field(
        None, examples=["wsec_..."], description="the secret itself; without one, the webhook is switched off"
    )
    events_per_second: int = Field(
        2_000, gt=0, le=1_000_000, description="events that a sender may post, over ten seconds on average"
    )

    @field_validator(*_SECRETS)
    @classmethod
    def _secret_of_the_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return or_of_its_file(value, info)

    @model_validator(mode="before")
    @classmethod
    def _settles_the_secrets(cls, given: object) -> object:
        """Lets the validators of the secrets run when only their files are given."""
        return {**dict.fromkeys(_SECRETS), **given} if isinstance(given, dict) else given

    @property
    def has_access(self) -> bool:
        """Whether there is a token or a secret, so that something can be received."""
        return self.token is not None or self.elevenlabs_secret is not None


class IngestSettings(SenderSettings):
    """The receiver of events over HTTP."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to listen on for events; 0.0.0.0 is every network of the machine",
    )
    port: int = Field(8090, ge=0, le=65_535, description="port to listen on for events; 0 takes a free one")
    tenants_file: Path | None = Field(
        None,
        examples=["/run/secrets/tenants.toml"],
        description="TOML file with a table for each tenant, which has the tenant's own token, elevenlabs_secret and "
        "events_per_second",
    )

    @field_validator("tenants_file")
    @classmethod
    def _tenants_fit(cls, value: Path | None) -> Path | None:
        if value is not None:
            tenants_in(value)
        return value

    @property
    def is_on(self) -> bool:
        """Whether anybody may send something."""
        return self.has_access or self.tenants_file is not None

    def senders(self) -> Mapping[str, SenderSettings]:
        """All senders by tenant; the one without a tenant is under the empty name.

        Raises:
            ValueError: The file of tenants has changed since the start, and cannot be used any more.
        """
        tenants = {} if self.tenants_file is None else tenants_in(self.tenants_file)
        return {"": self, **tenants} if self.has_access else tenants


def tenants_in(path: Path) -> Mapping[str, SenderSettings]:
    """Reads a file of tenants.

    Raises:
        ValueError: It is none. The text has the first mistake, and no secret.
    """
    try:
        if path.stat().st_size > MAX_SECRET_BYTES:
            raise ValueError(f"the file has more than {MAX_SECRET_BYTES} bytes")
        tables: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the file cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError:  # its text may repeat a secret
        raise ValueError("the file is not TOML") from None
    if not 0 < len(tables) <= MAX_TENANTS:
        raise ValueError(f"expected 1 to {MAX_TENANTS} tenants, each a table [name]; the file has {len(tables)}")
    tenants = {}
    for name, table in tables.items():
        try:
            tenants[name] = SenderSettings.model_validate(table)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False)[0]
            where = ".".join([name, *map(str, detail["loc"])])
            raise ValueError(f"{where}: {detail['msg'].removeprefix('Value error, ')}") from None
        if not tenants[name].has_access:
            raise ValueError(f"{name}: expected a token or an elevenlabs_secret, otherwise it can send nothing")
    tokens = [sender.token.get_secret_value() for sender in tenants.values() if sender.token is not None]
    if len(set(tokens)) < len(tokens):
        raise ValueError("two tenants have the same token")
    return tenants
