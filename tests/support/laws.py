"""How hard the laws are tried."""

from hypothesis import settings


def examples(times: float) -> settings:
    """Settings of a law that needs so many times the examples of the others, however many these get
    in this run.
    """
    return settings(max_examples=max(1, round(times * settings().max_examples)))
