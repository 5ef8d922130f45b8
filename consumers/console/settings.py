"""Settings of the role `console`."""

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
)
from pydantic_settings import NoDecode

from consumers.runtime.settings import HeaderSecret, names_in

MIN_TOKEN_CHARS: Final = 16
"""Shortest token: at some thousand tries a second nobody guesses 16 random characters."""
MAX_ORIGINS: Final = 20
"""Most origins of recordings: all of them stand in a header of each answer."""
MAX_CONTACTS: Final = 50
"""Most teams with a contact: alerts have two unless their rules are written anew."""
_Team = Annotated[str, Field(min_length=1, max_length=100)]
_Contact = Annotated[str, Field(min_length=1, max_length=200)]
_ORIGIN: Final = re.compile(
    r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
)


def origin_of(address: str) -> str:
    """The origin of an address of `http` or `https`, as browsers compare it: scheme, name in small
    letters, and a port that is not the usual one.

    >>> origin_of("https://Rec.Example.com:443/a.wav?b"), origin_of("http://127.0.0.1:9000")
    ('https://rec.example.com', 'http://127.0.0.1:9000')
    """
    scheme, _, rest = address.lower().partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.removesuffix(':443' if scheme == 'https' else ':80')}"


def _are_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [each for each in origins if not _ORIGIN.fullmatch(each)]:
        raise ValueError(
            f"{wrong[0][:100]!r} is no origin: a scheme, a name and perhaps a port, without a path"
        )
    return tuple(map(origin_of, origins))


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
    recording_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(names_in), AfterValidator(_are_origins)
    ] = Field(
        (),
        max_length=MAX_ORIGINS,
        examples=["https://recordings.example.com"],
        description=(
            "origins from which the page of a call may play its recording, separated by commas; "
            "without one, it shows the address as text"
        ),
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

    contacts: Annotated[dict[_Team, _Contact], Field(max_length=MAX_CONTACTS)] = Field(
        {},
        examples=[{"voice": "#voice-oncall, +1 415 555 0100"}],
        description=(
            "by team of the alerts, how its people are reached: the page says it beside whom to ask"
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
