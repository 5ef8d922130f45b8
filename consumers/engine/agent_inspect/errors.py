"""The errors that agent-inspect ends with, by their class names and internal codes; the wording is ours.

What it leaves unwrapped (TypeError, IndexError, KeyError, a plain ValueError) is raised here as such.
"""

from enum import StrEnum


class Code(StrEnum):
    """The last four digits of an internal code; the first two are the component's."""

    INVALID_VOTE = "0000"
    UNREADABLE_GRADE = "0003"
    NOTHING_JUDGED = "0004"
    NO_PROGRESS = "0005"
    AREA_FAILED = "0006"
    TOO_FEW_VALID_ANSWERS = "0007"
    MISSING_VALUE = "0008"
    INVALID_VALUE = "0009"
    PER_TURN_FAILED = "0012"


EVALUATION = "05"
ANALYSIS = "08"


class EvaluationError(Exception):
    """A metric could not be computed."""

    def __init__(self, code: Code, message: str) -> None:
        self.internal_code = EVALUATION + code
        super().__init__(message)


class InvalidInputValueError(ValueError):
    """The input of a metric is not usable."""

    def __init__(self, code: Code, message: str, component: str = EVALUATION) -> None:
        self.internal_code = component + code
        super().__init__(message)
