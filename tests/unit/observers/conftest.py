"""An address at which no server answers, for every observer."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which no server answers."""
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
