"""The entry point of `callgauge`, and how an error reaches the person who runs it."""

import sys
import warnings

from streamer.facts import STOPPED_BY_SIGNAL


def main() -> None:
    """Runs a command; an error that a person can fix is printed as its text and ends with its exit
    code.
    """
    try:
        # Loading takes a moment, and Ctrl-C in it must not end in a traceback.
        from consumers.runtime.process import OperatorError
        from streamer.cli.app import app
    except KeyboardInterrupt:
        sys.exit(STOPPED_BY_SIGNAL)
    # A library's source has an escape that Python warns of when it compiles it, right after an
    # installation.
    warnings.filterwarnings("ignore", "invalid escape sequence")
    try:
        app(prog_name="callgauge")
    except OperatorError as error:
        from streamer.terminal import say

        say(error)
        for hint in getattr(error, "__notes__", ()):
            say(hint)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
