"""Settings of every process, and secrets that come from settings or files."""

import base64
import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

# Reads passwords and tokens from files.

MAX_SECRET_BYTES: Final = 65_536
"""Largest file of a secret. A token with many claims has a few thousand bytes."""
EXPIRED_MARGIN_SECONDS: Final = 60.0
"""Time after its expiry at which a token counts as expired, because clocks differ and the broker
decides.
"""


class UnusableSecretError(ValueError):
    """A file has no usable secret. The text has the reason, but neither the file's name nor its
    content.
    """


def secret_in(path: Path) -> SecretStr:
    """Returns the text of a file without the line break at its end.

    Raises:
        UnusableSecretError: The file cannot be read, is empty, is too large, or is not text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise UnusableSecretError(f"the file cannot be read ({error.strerror})") from error
    if len(content) > MAX_SECRET_BYTES:
        raise UnusableSecretError(
            f"the file has more than {MAX_SECRET_BYTES} bytes, so it is the wrong one"
        )
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:  # not chained: it carries the secret
        raise UnusableSecretError("the file is no text in UTF-8") from None
    if not text:
        raise UnusableSecretError("the file is empty")
    return SecretStr(text)


def token_in(path: Path) -> str:
    """Returns the token of a file.

    Raises:
        UnusableSecretError: There is none, or it has expired by its own claim. The broker's refusal
            would go unnoticed, because aiokafka mistakes that answer for a success.
    """
    token = secret_in(path).get_secret_value().strip()
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise UnusableSecretError("its text is no token: expected one line of ASCII without spaces")
    expires_at = _expiry_seconds(token)
    if expires_at is not None and expires_at + EXPIRED_MARGIN_SECONDS < time.time():
        expired_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expires_at))
        raise UnusableSecretError(f"the token expired at {expired_at}")
    return token


def _expiry_seconds(token: str) -> float | None:
    """Returns the expiry of a JWT in epoch seconds; None if it has none or is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:  # header, claims, signature
        return None
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:  # base64's, UTF-8's and JSON's errors are all of this kind
        return None
    expires_at = claims.get("exp") if isinstance(claims, dict) else None
    return (
        float(expires_at)
        if isinstance(expires_at, int | float) and 0 < expires_at < _END_OF_TIME
        else None
    )


_END_OF_TIME: Final = 32_503_680_000
"""The year 3000 in epoch seconds; a token that expires later, never does."""


# A setting that is a secret, or `file:PATH`, which names a file with it.

FILE_PREFIX: Final = "file:"
"""Begins a value that stands in a file. No secret begins so; one that does must stand in a file."""
MAX_HEADER_SECRET_CHARS: Final = 1_024
"""Longest secret of a header line. A line has room for more, but a longer one is probably the
content of a file, set by mistake.
"""


def fit_for_a_header(secret: SecretStr) -> SecretStr:
    """Returns the secret if a header line can carry it.

    Raises:
        ValueError: It cannot. The text has the reason, and no part of the secret.
    """
    text = secret.get_secret_value()
    if not text:
        raise ValueError("it must not be empty")
    if len(text) > MAX_HEADER_SECRET_CHARS:
        raise ValueError(f"expected at most {MAX_HEADER_SECRET_CHARS} characters")
    if not all("!" <= char <= "~" for char in text):
        raise ValueError(
            "expected visible ASCII characters without spaces: it travels in a header line"
        )
    return secret


def _from_its_file(value: object) -> object:
    """The text of the file that `file:PATH` names; another value as it is."""
    if not isinstance(value, str) or not value.startswith(FILE_PREFIX):
        return value
    path = Path(value.removeprefix(FILE_PREFIX))
    try:
        return secret_in(path).get_secret_value()
    except UnusableSecretError as error:
        raise ValueError(f"{path}: {error}") from None


FromFile = BeforeValidator(_from_its_file)
"""Lets a setting name a file with its value, which is read once."""
HeaderSecret = Annotated[SecretStr, FromFile, AfterValidator(fit_for_a_header)]


def names_in(value: object) -> object:
    """The names in a text with commas, as the environment gives it; several are as they are."""
    return (
        [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, str)
        else value
    )


def names_of(known: Collection[str]) -> BeforeValidator:
    """Reads a setting with several of the known names."""

    def read(value: object) -> object:
        names = names_in(value)
        if isinstance(names, list) and (
            unknown := [name for name in names if name not in tuple(known)]
        ):
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return BeforeValidator(read)


# Settings of the parts that every process has: its log, its metrics page. They load none of these
# parts.

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_SERIES: Final = 40_000
"""Most series of one process, unless set otherwise: a page of some 7 MB, made in 60 ms. The caps of
the labels alone allow a hundred times as many. An agent in ordinary use has some 400 for each
tenant and environment, most of them of stages.
"""


class HttpSettings(BaseModel):
    """Address of the HTTP server, and the token for reading the metrics."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on; 0.0.0.0 shows the metrics to the whole network.",
    )
    port: int = Field(9464, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    names: tuple[str, ...] = Field(
        (),
        description="Names besides those of this machine by which a proxy or a tunnel on it asks.",
    )
    token: HeaderSecret | None = Field(
        None,
        description=(
            "What a reader of /metrics has to send as `Authorization: Bearer`; none means "
            "everybody may."
        ),
    )
