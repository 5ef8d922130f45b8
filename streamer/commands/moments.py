"""Moments that a person names on the command line."""

import typer

from consumers.runtime.process import wall_clock_ms
from streamer.time_bounds import moment_ms


def moment_given(text: str) -> int:
    """The moment that a person names, in milliseconds since 1970.

    Raises:
        BadParameter: The text is no moment.
    """
    try:
        return moment_ms(text, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
