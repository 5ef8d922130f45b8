"""Exit codes of `callgauge` beside 0, and 1 and 2 of errors that a person can fix."""

from typing import Final

STOPPED_BY_SIGNAL: Final = 130
"""Ctrl-C or SIGTERM cut the work short: 128 and the number of SIGINT, as shells have it."""
STOP_OVERDUE: Final = 1
"""Stopping the roles of `run` took too long."""
READER_GONE: Final = 141
"""Nobody reads the output any more: 128 and the number of SIGPIPE."""
