"""The receiver of the ingest role, as most tests need it."""

import pytest

from tests.unit.streamer.sources.http.receiver import Receiver


@pytest.fixture
async def receiver() -> Receiver:
    return Receiver()
