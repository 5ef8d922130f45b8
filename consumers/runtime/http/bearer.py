"""The token of a request: `Authorization: Bearer`, compared in constant time."""

import hmac
from typing import Final

from pydantic import SecretStr

CHALLENGE: Final = 'Bearer realm="callgauge"'


def given_token(authorization: bytes) -> bytes | None:
    """Returns the token in the value of the header; None if it has another scheme or is empty.

    Example:
        >>> given_token(b"bearer  abc "), given_token(b"Basic YTpi"), given_token(b"")
        (b'abc', None, None)
    """
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def is_token(given: bytes, expected: SecretStr) -> bool:
    """Whether the given bytes are the expected token. The time it takes says nothing of how much of it is right."""
    return hmac.compare_digest(given, expected.get_secret_value().encode())  # bytes: text beyond ASCII would raise


def challenge(authorization: bytes) -> str:
    """Returns the value of `WWW-Authenticate` for a request with this `Authorization`, empty if it has none."""
    return CHALLENGE + (', error="invalid_token"' if authorization else "")
