"""How often Python looks for reference cycles in a process that holds many long-lived objects."""

import gc

YOUNG_OBJECTS = 50_000
MIDDLE_ROUNDS = 20
OLD_ROUNDS = 50


def tune_collection() -> None:
    """Collect cycles rarely.

    State is freed by reference counts (a closed call cuts its own cycles), so collections find next to nothing, yet with
    10,000 open calls each looks through millions of objects: a fifth of the time per event at Python's own thresholds.
    """
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_ROUNDS, OLD_ROUNDS)
