"""Gives the Kafka client the token of a file, for each connection again."""

import asyncio
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from consumers.runtime.settings import UnusableSecretError, token_in


# the library has no type hints; it must be its error, see TokenFile
class TokenError(KafkaError):  # type: ignore[misc]
    """There is no valid token for a login. A new one must be written."""


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # the library has no type hints
    """Gives aiokafka the token of a file, read for each connection, so that the file can be
    renewed.

    Its errors are errors of aiokafka, because the clients go on after those, and the next try may
    find a new token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """Reads the token.

        Raises:
            TokenError: There is none, or it has expired.
        """
        try:
            return await asyncio.to_thread(token_in, self._path)
        except UnusableSecretError as error:
            raise TokenError(f"no token in {self._path}: {error}") from None
