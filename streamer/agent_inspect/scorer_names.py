"""The scorers of agent-inspect by name. Nothing is imported, so that the help of `score` comes at once."""

from enum import StrEnum


class Scorer(StrEnum):
    """The scorers that read a trace, by their class names."""

    PROGRESS = "ProgressScore"
    SUCCESS = "SuccessScore"
    THROUGH_TURNS = "ProgressScoresThroughTurns"
    AUC = "AUC"
    PPT = "PPT"
    SUCCESS_AT_END = "SuccessScoreFinalTurn"
    TOOLS = "ToolCorrectnessMetric"
    TOTAL_LATENCY = "TotalLatency"
    AVERAGE_LATENCY = "AverageLatency"
    INPUT_TOKENS = "InputTotalTokenCount"
    OUTPUT_TOKENS = "OutputTotalTokenCount"
    REASONING_TOKENS = "ReasoningTotalTokenCount"
    TOKENS = "TotalTokenConsumption"
    TOOL_CALLS = "ToolCallCount"
