"""Secrets that stand in files: passwords, read once, and tokens, read whenever a connection needs one."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from pydantic import SecretStr

MAX_SECRET_BYTES: Final = 65_536
"""Largest file that is taken for a secret; a token with many claims has a few thousand bytes."""
EXPIRED_MARGIN_SECONDS: Final = 60.0
"""A token counts as expired this long after its time: clocks differ, and the broker has the last word."""


class UnusableSecretError(ValueError):
    """A file holds no secret that can be used; the text says why and names neither the file nor anything in it."""


class TokenError(KafkaError):  # type: ignore[misc]  # the library has no type hints; it must be its error, see TokenFile
    """There is no token to log in with; someone has to write a fresh one."""


def secret_in(path: Path) -> SecretStr:
    """The text of a file without the line break at its end.

    Raises:
        UnusableSecretError: The file cannot be read, is empty, is too large, or is no text.
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


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # the library has no type hints
    """Hands aiokafka the token of a file, as it is when a connection is made: who writes the file may renew it.

    What it raises is an error of aiokafka's, because its clients go on after those: a token that comes late is found by
    the next try.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """The token.

        Raises:
            TokenError: There is none, or it has expired.
        """
        try:
            return await asyncio.to_thread(token_in, self._path)
        except UnusableSecretError as error:
            raise TokenError(f"no token in {self._path}: {error}") from None


def token_in(path: Path) -> str:
    """The token of a file.

    Raises:
        UnusableSecretError: There is none, or it says of itself that it has expired: a broker's refusal of it would go
            unnoticed, since aiokafka takes the answer for a success.
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
    """When a JWT says that it expires, in epoch seconds; None when it does not say or is no JWT."""
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
