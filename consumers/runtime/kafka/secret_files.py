"""Reads passwords and tokens from files."""

import base64
import json
import time
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

MAX_SECRET_BYTES: Final = 65_536
"""Largest file of a secret. A token with many claims has a few thousand bytes."""
EXPIRED_MARGIN_SECONDS: Final = 60.0
"""Time after its expiry at which a token counts as expired, because clocks differ and the broker decides."""


class UnusableSecretError(ValueError):
    """A file has no usable secret. The text has the reason, but neither the file's name nor its content."""


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
        raise UnusableSecretError(f"the file has more than {MAX_SECRET_BYTES} bytes, so it is no secret")
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
        UnusableSecretError: There is none, or it has expired by its own claim. The broker's refusal would go unnoticed,
            because aiokafka mistakes that answer for a success.
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
    return float(expires_at) if isinstance(expires_at, int | float) and 0 < expires_at < _END_OF_TIME else None


_END_OF_TIME: Final = 32_503_680_000
"""The year 3000 in epoch seconds; a token that expires later, never does."""
