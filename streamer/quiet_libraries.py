"""Silences libraries, for commands that report errors themselves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Turns logging off inside the block: aiokafka logs each refusal several times, and raises it too."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
