"""Settings of the role `console`."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from consumers.runtime.settings import HeaderSecret

MIN_TOKEN_CHARS: Final = 16
"""Shortest token: at some thousand tries a second nobody guesses 16 random characters."""


class ConsoleSettings(BaseModel):
    """Where the page of calls is served, to whom, and how much it may cost."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to serve the page on; 0.0.0.0 is every network of the machine",
    )
    port: int = Field(
        8070, ge=0, le=65_535, description="port of the page of calls; 0 takes a free one"
    )
    token: HeaderSecret | None = Field(
        None,
        examples=["file:/run/secrets/console-token"],
        description=(
            f"token that readers of calls need, {MIN_TOKEN_CHARS} characters or more; without one "
            "everybody may read"
        ),
    )
    user_header: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9-]{1,60}$",
        examples=["X-Forwarded-User"],
        description=(
            "header in which a proxy in front names the person it let in; set it only if nobody "
            "can pass the proxy by"
        ),
    )
    is_public: bool = Field(
        default=False,
        description=(
            "whether everybody who reaches an address beyond this machine may read calls without a "
            "token"
        ),
    )
    words: bool = Field(
        default=True, description="whether the page of a call shows what was said, redacted"
    )
    max_pages: int = Field(
        400,
        gt=0,
        le=10_000,
        description="pages open at the same time; further ones are asked to wait",
    )
    folder: Path | None = Field(
        None,
        examples=["/var/lib/callgauge/console"],
        description=(
            "folder of this console alone, in which it keeps the rows that it has read; without "
            "one, they are in memory"
        ),
    )
    alertmanager: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        max_length=500,
        examples=["http://127.0.0.1:9093"],
        description="address of Alertmanager, whose firing alerts the page shows; without it, none",
    )
    prometheus: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        max_length=500,
        examples=["http://127.0.0.1:9090"],
        description=(
            "address of Prometheus, whose alerts that are about to fire the page shows; without "
            "it, none"
        ),
    )

    @field_validator("token")
    @classmethod
    def _cannot_be_guessed(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < MIN_TOKEN_CHARS:
            raise ValueError(
                f"the token has fewer than {MIN_TOKEN_CHARS} characters, so it could be guessed: "
                "take one from `openssl rand -hex 16`"
            )
        return token
