"""Where the command line begins: the entry point, and what a person is told when something goes wrong."""

import sys
import warnings
from typing import Final

STOPPED_BY_SIGNAL: Final = 130
"""Exit code of work that Ctrl-C or SIGTERM cut short: 128 and the number of SIGINT, as shells have it."""


def main() -> None:
    """Runs a command; exit code 2 when it was asked for wrongly, 1 when it failed, with the reason in plain words."""
    try:
        # A library's source has an escape that Python warns of when it compiles it, right after an installation.
        warnings.filterwarnings("ignore", "invalid escape sequence")
        # Loading takes most of a second, and Ctrl-C in it must not end in a traceback.
        from streamer.cli.app import FORESEEN, FORESEEN_AT_START, app
    except KeyboardInterrupt:
        sys.exit(STOPPED_BY_SIGNAL)
    try:
        app(prog_name="callgauge")
    except FORESEEN_AT_START as error:
        _end(error, exit_code=2)
    except FORESEEN as error:
        _end(error, exit_code=1)


def _end(error: Exception, *, exit_code: int) -> None:
    sys.stderr.write(f"{error}\n")
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
