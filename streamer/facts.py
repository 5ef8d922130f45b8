"""Facts that both the help of commands and their work use. Nothing is imported, so that the help
comes at once.
"""

from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Final

MAX_OPEN_CALLS: Final = 5_000
"""Calls played at the same time; further ones wait until one is over."""
ID_MARK: Final = "{id}"
"""Stands for the recorded id in the name of a goal set."""
TOKEN_FILE: Final = "token"  # noqa: S105  # its name
"""Name of the file with the token of senders in the folder of `serve`."""
ADDRESS_FILE: Final = "address"
"""Name of the file that says where the process listens that serves the folder."""
KEY_FILE: Final = "key"
"""Name of the file with the key that commands show to that process, to write through it."""
ANNOTATIONS_PATH: Final = "/folder/annotations"
"""Where they post labels, notes and deletions."""
PUT_BACK_PATH: Final = "/folder/put-back"
"""Where they post the places of refused events."""
MAX_COMMAND_RECORDS: Final = 1_000
"""Records of one such request."""
POSITION_FILE: Final = ".callgauge-watch.sqlite"
"""Name of the file in a watched folder: it moves with the folder, and to delete it is to begin
again.
"""


# Exit codes of `callgauge` beside 0, and 1 and 2 of errors that a person can fix.

STOPPED_BY_SIGNAL: Final = 130
"""Ctrl-C or SIGTERM cut the work short: 128 and the number of SIGINT, as shells have it."""
STOP_OVERDUE: Final = 1
"""Stopping the roles of `run` took too long."""
READER_GONE: Final = 141
"""The output is not read any more: 128 and the number of SIGPIPE."""


# The version of the running program.


def installed_version() -> str:
    """The version of the installed distribution; `unknown` in a tree that is not installed."""
    try:
        return version("callgauge")
    except PackageNotFoundError:
        return "unknown"


# Finds the conversation ids that end with a part of one.

LEAST_CHARS: Final = 4
"""Characters of the end of an id that are looked for: fewer would find many calls."""


def is_wanted(conversation_id: str, wanted: str) -> bool:
    """Whether the id is the wanted one, or ends with it."""
    return conversation_id == wanted or (
        len(wanted) >= LEAST_CHARS and conversation_id.endswith(wanted)
    )


# The scorers of agent-inspect by name. Nothing is imported, so that the help of `score` comes at
# once.


class Scorer(StrEnum):
    """The scorers that read a trace, by their class names."""

    PROGRESS = "ProgressScore"
    SUCCESS = "SuccessScore"
    THROUGH_TURNS = "ProgressScoresThroughTurns"
    AUC = "AUC"
    PPT = "PPT"
    SUCCESS_AT_END = "SuccessScoreFinalTurn"
    TOOLS = "ToolCorrectnessMetric"
    STATISTICS = "StatisticAnalysis"
    TOTAL_LATENCY = "TotalLatency"
    AVERAGE_LATENCY = "AverageLatency"
    INPUT_TOKENS = "InputTotalTokenCount"
    OUTPUT_TOKENS = "OutputTotalTokenCount"
    REASONING_TOKENS = "ReasoningTotalTokenCount"
    TOKENS = "TotalTokenConsumption"
    TOOL_CALLS = "ToolCallCount"
