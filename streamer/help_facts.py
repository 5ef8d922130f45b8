"""Facts that both the help of commands and their work use. Nothing is imported, so that the help comes at once."""

from typing import Final

MAX_OPEN_CALLS: Final = 5_000
"""Calls played at the same time; further ones wait until one is over."""
ID_MARK: Final = "{id}"
"""Stands for the recorded id in the name of a goal set."""
POSITION_FILE: Final = ".callgauge-tail.json"
"""Name of the file in the run's folder: it moves with the run, and to delete it is to begin again."""
