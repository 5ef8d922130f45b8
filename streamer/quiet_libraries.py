"""For commands that say themselves what went wrong."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Leaves out what libraries log: aiokafka logs each refusal several times, and raises it too."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
