"""Sets how often Python searches reference cycles, for a process with many long-lived objects."""

import gc

YOUNG_OBJECTS = 50_000
MIDDLE_ROUNDS = 20
OLD_ROUNDS = 50


def tune_collection() -> None:
    """Makes collections of cycles rare.

    State is freed by reference counts, because a closed call breaks its own cycles. So collections find almost nothing, but
    with 10,000 open calls each searches millions of objects: a fifth of the time per event at Python's default thresholds.
    """
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_ROUNDS, OLD_ROUNDS)
