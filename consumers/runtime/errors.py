"""The one class of errors that a person can fix."""

from typing import ClassVar


class OperatorError(Exception):
    """A fault of settings, files, rights, topics or the network: the person who runs the command can fix it.

    Its text has the mistake and the remedy. The command line prints it without a traceback and ends with `exit_code`.
    Every error of that kind derives from this class; every other error is a defect of the program and gets a traceback.

    Attributes:
        exit_code: 1 when work failed, 2 when the command was set up wrongly and nothing was started.
    """

    exit_code: ClassVar[int] = 1
